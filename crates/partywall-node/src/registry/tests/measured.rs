//! What the driver shows, held against what processes say.

use std::sync::atomic::AtomicU32;

use super::*;
use crate::facts::Contexts;

fn show(bench: &Bench, mib: Option<u64>) {
    *bench.shows.lock().unwrap() =
        Ok(mib.map(|mib| (std::process::id(), Some(Bytes::from_mib(mib)))).into_iter().collect());
}

fn context(shim: &Shim) -> u64 {
    shim.page.node.context_bytes.load(Ordering::Acquire) / MIB
}

#[test]
fn a_context_is_what_the_driver_shows_beyond_what_the_shim_counts() {
    let mut bench = Bench::with_contexts(Bytes::from_mib(100));
    let token = bench.tenant(1, 1000);
    show(&bench, None);
    let mut shim = bench.join(token);
    assert_eq!((context(&shim), shim.lease / MIB), (100, 100));
    shim.ask(200, 200);
    shim.uses(200);
    show(&bench, Some(440));
    wait("the context, and room for its growth", || context(&shim) == 240 + 16);
    let view = bench.view(1);
    assert!(view.processes[0].context_measured);
    assert_eq!(
        (view.memory.leased_bytes, view.memory.used_bytes),
        (Bytes::from_mib(456), Bytes::from_mib(456))
    );
    assert_eq!(view.memory.uncounted_bytes, Bytes::ZERO);
    // The shim is told of the larger lease with the next answer.
    assert_eq!(shim.ask(156, 156), (456, true));
    // The next process gets what the last context was.
    show(&bench, None);
    wait("the driver to show nothing", || {
        bench.registry().shared.lock().measuring.shown(Some(std::process::id())).is_none()
    });
    let other = bench.join(token);
    assert_eq!((context(&other), other.lease / MIB), (256, 256));
}

#[test]
fn memory_that_was_not_counted_is_said_aloud() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 500);
    show(&bench, None);
    let mut shim = bench.join(token);
    shim.ask(300, 300);
    shim.uses(300);
    show(&bench, Some(900));
    wait("the debt", || bench.view(1).memory.uncounted_bytes == Bytes::from_mib(400));
    let view = bench.view(1);
    assert_eq!(view.guaranteed, Some(false));
    assert!(
        view.reasons.contains(&"holds 400MiB of GPU memory that was not counted".to_owned()),
        "{:?}",
        view.reasons
    );
    assert_eq!((view.memory.leased_bytes, shim.ask(402, 402)), (Bytes::from_mib(500), (500, false)));
    show(&bench, Some(300));
    wait("the debt to be paid", || bench.view(1).memory.uncounted_bytes == Bytes::ZERO);
    assert_eq!(bench.view(1).reasons, ["a process held GPU memory that was not counted"]);
}

#[test]
fn a_reading_while_the_shim_counts_is_not_taken() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 5000);
    show(&bench, Some(1000));
    let shim = bench.join(token);
    let before = context(&shim);
    let (page, readings) = (Arc::clone(&shim.page), Arc::new(AtomicU32::new(0)));
    let counted = Arc::clone(&readings);
    *bench.meanwhile.lock().unwrap() = Some(Box::new(move || {
        page.shim.memory_bytes.fetch_add(1, Ordering::Relaxed);
        counted.fetch_add(1, Ordering::Relaxed);
    }));
    show(&bench, Some(3000));
    wait("some readings", || readings.load(Ordering::Relaxed) > 3);
    assert_eq!(context(&shim), before);
    *bench.meanwhile.lock().unwrap() = None;
    wait("quiet", || context(&shim) >= 2999);
}

#[test]
fn what_cannot_be_measured_is_estimated_and_that_is_said() {
    let mut bench = Bench::with_contexts(Bytes::from_mib(100));
    let token = bench.tenant(1, 1000);
    let view = bench.registry().reader().view();
    assert_eq!(view.contexts, Contexts::Estimated { reason: "nothing to show".to_owned() });
    let mut shim = bench.join(token);
    shim.ask(20, 20);
    shim.uses(20);
    // Processes are shown, but by other ids.
    *bench.shows.lock().unwrap() = Ok([(1, Some(Bytes::from_mib(120)))].into());
    wait(
        "the doubt",
        || matches!(bench.registry().reader().view().contexts, Contexts::Estimated { reason } if reason.contains("namespace")),
    );
    assert_eq!(context(&shim), 100);
    assert!(!bench.view(1).processes[0].context_measured);
}

#[test]
fn who_hung_up_and_holds_nothing_is_forgotten() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    show(&bench, Some(10));
    let mut shim = bench.join(token);
    shim.ask(100, 100);
    drop(shim);
    wait("the end of the connection", || !bench.view(1).processes[0].connected);
    let start = clock::now();
    wait("some readings", || clock::now().saturating_sub(start) > Nanos::from_secs(2));
    assert_eq!(bench.view(1).processes.len(), 1);
    show(&bench, None);
    wait("it to be forgotten", || bench.view(1).processes.is_empty());
    assert_eq!(bench.view(1).memory.leased_bytes, Bytes::ZERO);
}
