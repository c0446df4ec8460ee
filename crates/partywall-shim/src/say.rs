//! Text for people, on standard error.

/// Writes one line to standard error.
pub(crate) fn say(line: &str) {
    raw(format!("partywall: {line}\n").as_bytes());
}

/// Writes bytes to standard error, straight to the descriptor: the program may hold its own locks on the stream. What
/// cannot be written is lost, because there is nobody else to tell.
pub(crate) fn raw(bytes: &[u8]) {
    // SAFETY: descriptor 2 is only borrowed for the call; where the program has closed it, the call fails.
    let stderr = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    let mut rest = bytes;
    while let Ok(written @ 1..) = rustix::io::write(stderr, rest) {
        rest = rest.get(written..).unwrap_or_default();
    }
}
