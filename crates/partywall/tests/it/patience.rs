//! Waiting on machines that do other things as well.

use std::time::{Duration, Instant};

/// What takes longer than this does not happen at all. Long, because test machines are busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Waits until `done`; panics with `what` when that takes too long.
#[track_caller]
pub(crate) fn until(what: &str, done: impl FnMut() -> bool) {
    until_or(done, || what.to_owned());
}

/// The same, with what is to be said found out at the end.
#[track_caller]
pub(crate) fn until_or(mut done: impl FnMut() -> bool, what: impl Fn() -> String) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "waited in vain until {}", what());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// What is about times holds if it holds in one of some tries: a machine that does other things as well keeps some waiting, and not always
/// the same.
#[track_caller]
pub(crate) fn in_one_of(tries: usize, try_it: impl Fn() -> Result<(), String>) {
    let failed: Vec<String> = (0..tries).map_while(|_| try_it().err()).collect();
    assert!(failed.len() < tries, "in none of {tries} tries: {failed:#?}");
}
