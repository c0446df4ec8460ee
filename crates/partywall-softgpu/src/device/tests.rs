//! The state with several processes: each opening of the file stands for one, except where a real one is needed.

use super::*;
use crate::folder::tests::made;

#[test]
fn memory_belongs_to_processes_and_runs_out() {
    let (_directory, folder) = made("h200");
    let device = Device::open(folder.clone()).unwrap();
    let context = folder.figures().context().0;
    assert_eq!((device.used().unwrap(), device.processes().unwrap().len()), (0, 0));
    device.add_context(0).unwrap();
    device.take(10 * PAGE).unwrap();
    assert_eq!(device.used().unwrap(), context + 10 * PAGE);
    let seen = Device::open(folder).unwrap().processes().unwrap();
    assert_eq!((seen[0].pid, seen[0].memory, seen[0].contexts), (std::process::id(), 10 * PAGE, 1));
    assert!(matches!(device.take(device.total()), Err(DeviceError::OutOfMemory)));
    assert!(matches!(device.take(u64::MAX), Err(DeviceError::OutOfMemory)));
    device.give(10 * PAGE).unwrap();
    device.remove_context().unwrap();
    assert_eq!(device.processes().unwrap(), []);
}

#[test]
fn what_the_dead_held_comes_back() {
    let (_directory, folder) = made("h200");
    let device = Device::open(folder.clone()).unwrap();
    device.add_context(0).unwrap();
    device.take(PAGE).unwrap();
    // The entry of a process whose pid has been reused since.
    let entry = device.own_entry().unwrap();
    entry.start_time.fetch_add(1, Relaxed);
    let other = Device::open(folder).unwrap();
    assert_eq!(other.used().unwrap(), 0);
    other.take(other.total()).unwrap();
}

#[test]
fn a_fault_ends_all_clients_of_a_daemon_and_nobody_else() {
    let (_directory, folder) = made("h200");
    let [a, b, c, d] = std::array::from_fn(|_| Device::open(folder.clone()).unwrap());
    for (device, group) in [(&a, 7), (&b, 7), (&c, 8), (&d, 0)] {
        device.add_context(group).unwrap();
    }
    a.raise(700, Some(719)).unwrap();
    assert_eq!([&a, &b, &c, &d].map(Device::fault), [700, 719, 0, 0]);
    d.raise(719, Some(719)).unwrap();
    assert_eq!([&a, &b, &c, &d].map(Device::fault), [700, 719, 0, 719]);
    let late = Device::open(folder).unwrap();
    assert!(matches!(late.add_context(7), Err(DeviceError::MpsRecovering)));
    drop((a, b));
    late.add_context(7).unwrap();
    assert_eq!(late.fault(), 0);
}

#[test]
fn a_contained_fault_ends_one_client_and_the_daemon_takes_others() {
    let (_directory, folder) = made("h200");
    let [a, b] = std::array::from_fn(|_| Device::open(folder.clone()).unwrap());
    for device in [&a, &b] {
        device.add_context(7).unwrap();
    }
    a.raise(710, None).unwrap();
    assert_eq!([&a, &b].map(Device::fault), [710, 0]);
    let late = Device::open(folder).unwrap();
    late.add_context(7).unwrap();
    b.raise(700, Some(700)).unwrap();
    assert_eq!([&a, &b, &late].map(Device::fault), [710, 700, 700]);
}

#[test]
fn the_state_of_another_version_is_refused() {
    let (_directory, folder) = made("h200");
    std::fs::write(folder.state(), "something else").unwrap();
    let error = Device::open(folder).unwrap_err();
    assert!(matches!(error, DeviceError::Foreign { .. }), "{error}");
}

#[test]
fn a_lost_device_is_lost_for_everybody_until_they_are_gone() {
    let (_directory, folder) = made("h200");
    let [a, b, looks] = std::array::from_fn(|_| Device::open(folder.clone()).unwrap());
    a.add_context(0).unwrap();
    b.add_context(0).unwrap();
    assert!(!b.is_lost());
    a.lose();
    assert!(b.is_lost());
    let lost_for_another = || Device::open(folder.clone()).unwrap().is_lost();
    assert!(lost_for_another());
    drop(a);
    assert!(lost_for_another());
    // Not even one that has given everything back finds it again.
    b.remove_context().unwrap();
    assert!(lost_for_another());
    drop(b);
    assert!(!lost_for_another());
    // One that never had a context does not stand in the way.
    assert!(!looks.is_lost());
}
