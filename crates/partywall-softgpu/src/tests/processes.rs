//! Several processes on one device.

use super::{Player, allocate, ask, begin, command, cuMemFree_v2, cuMemcpyHtoD_v2, listen, read_u32, say};
use crate::abi::Shareable;
use crate::environment;
use crate::folder::tests::made;

unsafe extern "C" {
    fn cuIpcGetMemHandle(place: *mut Shareable, address: u64) -> u32;
    fn cuIpcOpenMemHandle_v2(place: *mut u64, handle: Shareable, flags: u32) -> u32;
    fn cuIpcCloseMemHandle(address: u64) -> u32;
    fn cuIpcGetEventHandle(place: *mut Shareable, event: u64) -> u32;
    fn cuIpcOpenEventHandle(place: *mut u64, handle: Shareable) -> u32;
    fn cuEventSynchronize(event: u64) -> u32;
}

const HALF: usize = 90 << 30;

#[test]
fn memory_of_a_killed_process_comes_back() {
    const NAME: &str = "processes::memory_of_a_killed_process_comes_back";
    if environment::get(super::PART).is_some() {
        begin();
        say(&format!("{:?}", allocate(HALF).map(|_| ())));
        listen();
        return;
    }
    let (directory, _folder) = made("h200");
    let start = || Player::start(NAME, "greedy", directory.path(), &[]);
    let mut first = start();
    assert_eq!(first.hear(), "Ok(())");
    assert_eq!(start().hear(), "Err(2)", "two halves and a bit are too much");
    // Killed, not asked.
    drop(first);
    assert_eq!(start().hear(), "Ok(())");
}

#[test]
fn processes_share_memory_and_events() {
    const NAME: &str = "processes::processes_share_memory_and_events";
    match environment::text(super::PART).as_deref() {
        Some("owner") => return owner(),
        Some(words) => return guest(words),
        None => {}
    }
    let (directory, _folder) = made("h200");
    let mut owner = Player::start(NAME, "owner", directory.path(), &[]);
    let handles = owner.hear();
    let guest = command(NAME, &handles, directory.path(), &[]).output().unwrap();
    assert!(guest.status.success(), "{}", String::from_utf8_lossy(&guest.stdout));
    owner.tell("done");
    assert_eq!(owner.hear(), "8");
}

fn owner() {
    begin();
    // Two, so that the second does not begin at a page of the host.
    let (_first, second) = (allocate(600).unwrap(), allocate(600).unwrap());
    let word = 7_u32;
    // SAFETY: places are valid; the event and the memory are alive.
    unsafe {
        assert_eq!(cuMemcpyHtoD_v2(second, (&raw const word).cast(), 4), 0);
        let event = ask(|place| super::cuEventCreate(place, 6)).unwrap();
        assert_eq!(super::cuEventRecord(event, 0), 0);
        let (mut memory, mut shared) = (Shareable { words: [0; 8] }, Shareable { words: [0; 8] });
        assert_eq!((cuIpcGetMemHandle(&mut memory, second), cuIpcGetEventHandle(&mut shared, event)), (0, 0));
        let mut own = 0;
        assert_eq!(cuIpcOpenMemHandle_v2(&mut own, memory, 1), 201, "its own");
        let words = memory.words.iter().chain(&shared.words).map(u64::to_string).collect::<Vec<_>>();
        say(&words.join(","));
        listen();
        say(&read_u32(second).to_string());
        assert_eq!(cuMemFree_v2(second), 0);
    }
}

fn guest(words: &str) {
    begin();
    let words: Vec<u64> = words.split(',').map(|word| word.parse().unwrap()).collect();
    let handle = |part: &[u64]| Shareable { words: part.try_into().unwrap() };
    // SAFETY: places are valid; the handles are the other process's.
    unsafe {
        let event = ask(|place| cuIpcOpenEventHandle(place, handle(&words[8..]))).unwrap();
        assert_eq!(cuEventSynchronize(event), 0);
        let memory = ask(|place| cuIpcOpenMemHandle_v2(place, handle(&words[..8]), 1)).unwrap();
        assert_eq!(read_u32(memory), 7);
        let word = 8_u32;
        assert_eq!(cuMemcpyHtoD_v2(memory, (&raw const word).cast(), 4), 0);
        assert_eq!((cuIpcCloseMemHandle(memory), cuIpcCloseMemHandle(memory)), (0, 1));
        let mut forged = handle(&words[..8]);
        forged.words[4] = 1 << 60;
        assert_eq!(ask(|place| cuIpcOpenMemHandle_v2(place, forged, 1)), Err(1), "beyond the file");
    }
}
