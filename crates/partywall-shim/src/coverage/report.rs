//! Who is told what the program has used: the node, and a file.

use std::ffi::CStr;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use partywall_shim_api::environment;
use partywall_shim_api::frame::{Disposition, TEXT_BYTES, ToNode};

use super::{OWN, SEEN, SENT, UNKNOWN_SENT, is_set, of, seen, set, unknown, unset};
use crate::forwarders::NAMES;
use crate::process::{is_started, variable};
use crate::{node, say};

/// Sends the node what it does not know yet. Threads that do so at the same time share the work: each sends what it was
/// the first to claim.
pub(crate) fn send_new() {
    let claim = |(index, name): (usize, &'static CStr)| set(&SENT, index).then_some((index, name));
    let listed = NAMES.iter().copied().enumerate().filter(|(index, _)| is_set(&SEEN, *index));
    let listed: Vec<(usize, &CStr)> = listed.filter_map(claim).collect();
    for disposition in Disposition::ALL {
        let of_it = listed.iter().filter(|(index, _)| of(*index) == disposition);
        if !send(disposition, of_it.clone().map(|(_, name)| *name)) {
            of_it.for_each(|(index, _)| unset(&SENT, *index));
        }
    }
    let unlisted = unknown().enumerate();
    let unlisted: Vec<(usize, &CStr)> = unlisted.filter(|(place, _)| set(&UNKNOWN_SENT, *place)).collect();
    if !send(Disposition::Unknown, unlisted.iter().map(|(_, name)| *name)) {
        unlisted.iter().for_each(|(place, _)| unset(&UNKNOWN_SENT, *place));
    }
}

/// Sends names in as many frames as they need; whether all were sent.
fn send<'a>(disposition: Disposition, names: impl Iterator<Item = &'a CStr>) -> bool {
    frames(names).into_iter().all(|names| node::tell(&ToNode::Coverage { disposition, names }))
}

/// Names, separated by blanks, in texts of at most [`TEXT_BYTES`]. What the program has asked for may be any text: a name
/// with blanks or beyond ASCII is no function of a driver, and shown so that it stays one word.
fn frames<'a>(names: impl Iterator<Item = &'a CStr>) -> Vec<String> {
    let mut frames: Vec<String> = Vec::new();
    for name in names {
        let word: String = name.to_bytes().iter().take(TEXT_BYTES).map(|byte| shown(*byte)).collect();
        match frames.last_mut() {
            Some(frame) if frame.len() + 1 + word.len() <= TEXT_BYTES => {
                frame.push(' ');
                frame.push_str(&word);
            }
            _ => frames.push(word),
        }
    }
    frames
}

fn shown(byte: u8) -> char {
    if byte.is_ascii_graphic() { char::from(byte) } else { '?' }
}

/// Has [`at_exit`] called when the process ends. Once for a process and its descendants, which inherit it.
pub(crate) fn arm() {
    static ARMED: AtomicBool = AtomicBool::new(false);
    if !ARMED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handler stays where it is, because this library is never unloaded.
        unsafe { libc::atexit(at_exit) };
    }
}

/// The end of the process, by `exit` or a return from `main`. Other threads may still be running, so nothing is taken down.
extern "C" fn at_exit() {
    // A child that has not used CUDA has nothing to report: what it knows of is its parent's.
    if !OWN.load(Ordering::Relaxed) && !is_started() {
        return;
    }
    send_new();
    if let Some(place) = variable(environment::COVERAGE) {
        write(Path::new(&place), &table());
    }
}

/// The table for people: a line with the process and what it comes to, then a line for each function.
fn table() -> String {
    let mut rows: Vec<(Disposition, &CStr)> = seen().map(|(name, disposition)| (disposition, name)).collect();
    rows.sort_unstable();
    let program = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let unknown = rows.iter().filter(|(disposition, _)| *disposition == Disposition::Unknown).count();
    let verdict = if unknown == 0 {
        "every one is known".to_owned()
    } else {
        format!("NOT GUARANTEED: {unknown} unknown")
    };
    let mut table = format!(
        "# process {} ({}): {} functions of the driver, {verdict}\n",
        std::process::id(),
        program.trim_end(),
        rows.len()
    );
    for (disposition, name) in rows {
        table += &format!("{}\t{}\n", disposition.name(), name.to_string_lossy());
    }
    table
}

/// Adds to the file, in one piece: processes that end at the same time do not mix.
fn write(place: &Path, table: &str) {
    if place == Path::new("-") {
        return say::raw(table.as_bytes());
    }
    let file = OpenOptions::new().append(true).create(true).open(place);
    if let Err(error) = file.and_then(|mut file| file.write_all(table.as_bytes())) {
        say::say(&format!("{}={}: {error}", environment::COVERAGE, place.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fill_frames_and_none_is_cut() {
        assert!(frames([].into_iter()).is_empty());
        assert_eq!(frames([c"cuA", c"cuB"].into_iter()), ["cuA cuB"]);
        assert_eq!(frames([c"cu strange\n"].into_iter()), ["cu?strange?"]);
        let frames = frames(NAMES.iter().copied());
        assert!(frames.iter().all(|frame| frame.len() <= TEXT_BYTES));
        let names: Vec<&str> = frames.iter().flat_map(|frame| frame.split(' ')).collect();
        assert!(names.iter().copied().eq(NAMES.iter().map(|name| name.to_str().unwrap())));
    }
}
