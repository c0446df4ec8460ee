//! Signals as descriptors, so that one `poll` waits for everything.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use signal_hook::SigId;
use signal_hook::low_level::{pipe, unregister};

use crate::error::Error;

/// One signal of this process, until it is dropped: its usual effect does not take place.
#[derive(Debug)]
pub struct Arrivals {
    stream: UnixStream,
    id: SigId,
}

impl Arrivals {
    /// Of `signal`.
    ///
    /// # Errors
    /// When the system has no descriptors left.
    pub fn of(signal: Signal) -> Result<Self, Error> {
        let made = || -> io::Result<Self> {
            let (stream, write) = UnixStream::pair()?;
            stream.set_nonblocking(true)?;
            let id = pipe::register(signal.as_raw(), write)?;
            Ok(Self { stream, id })
        };
        made().map_err(Error::system("waiting for signals"))
    }

    /// Whether it has arrived since this was last asked.
    pub fn take(&mut self) -> bool {
        let mut buffer = [0; 64];
        let mut arrived = false;
        while matches!(self.stream.read(&mut buffer), Ok(count) if count > 0) {
            arrived = true;
        }
        arrived
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        unregister(self.id);
    }
}

/// Makes writing beyond a limit on file sizes an ordinary error instead of the end of this process.
///
/// # Errors
/// When the system does not allow it.
pub fn survive_file_limits() -> Result<(), Error> {
    let flag = std::sync::Arc::default();
    let registered = signal_hook::flag::register(Signal::XFSZ.as_raw(), flag);
    registered.map(|_| ()).map_err(Error::system("waiting for signals"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_arrives_once() {
        let mut arrivals = Arrivals::of(Signal::USR2).unwrap();
        assert!(!arrivals.take());
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, Signal::USR2).unwrap();
        rustix::process::kill_process(own, Signal::USR2).unwrap();
        let mut polled = [rustix::event::PollFd::new(&arrivals, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        assert!(arrivals.take());
    }
}
