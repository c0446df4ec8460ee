//! The socket between shim and node: `SOCK_SEQPACKET`, so that a frame arrives whole or not at all.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, UCred, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, sockopt,
};
use rustix::time::{ClockId, clock_gettime};

use crate::Error;
use crate::frame::FRAME_BYTES;

#[cfg(test)]
mod tests;

/// Descriptors that one frame can carry: the page and the bell.
pub const DESCRIPTORS: usize = 2;

/// Processes that may be waiting to be accepted: a tenant that forks a hundred children at once fits.
const BACKLOG: i32 = 128;

/// One end of a connection.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// A frame's bytes and the descriptors that came with it.
#[derive(Debug)]
pub struct Received {
    /// At most [`FRAME_BYTES`].
    pub bytes: Vec<u8>,
    /// At most [`DESCRIPTORS`].
    pub descriptors: Vec<OwnedFd>,
}

/// A socket on which the node waits for tenants' processes. Does not block.
#[derive(Debug)]
pub struct Listener(OwnedFd);

fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, Error> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
        .map_err(Error::system("creating a socket"))
}

fn address(path: &Path) -> Result<SocketAddrUnix, Error> {
    SocketAddrUnix::new(path).map_err(Error::system("using a path as a socket's address (at most 107 bytes)"))
}

impl Listener {
    /// Listens on `path`, which must not exist.
    ///
    /// # Errors
    /// What the system says; among others that the path is too long (107 bytes) or in use.
    pub fn bind(path: &Path) -> Result<Self, Error> {
        let socket = seqpacket(SocketFlags::NONBLOCK)?;
        bind(&socket, &address(path)?).map_err(Error::system("binding the socket for tenants"))?;
        listen(&socket, BACKLOG).map_err(Error::system("listening for tenants"))?;
        Ok(Self(socket))
    }

    /// The next process that wants in; `None` if there is none now.
    ///
    /// # Errors
    /// What the system says.
    pub fn accept(&self) -> Result<Option<Socket>, Error> {
        match accept_with(&self.0, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Socket(socket))),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno) => Err(Error::system("accepting a tenant's process")(errno)),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Socket {
    /// Connects to a node. Never waits for longer than the node's kernel side takes: where its backlog is full, this is an
    /// error. Does not block afterwards either.
    ///
    /// # Errors
    /// What the system says.
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let socket = seqpacket(SocketFlags::NONBLOCK)?;
        connect(&socket, &address(path)?).map_err(Error::system("connecting to the node"))?;
        Ok(Self(socket))
    }

    /// Who is at the other end, as the kernel recorded it when the connection was made.
    ///
    /// # Errors
    /// What the system says.
    pub fn peer(&self) -> Result<UCred, Error> {
        sockopt::socket_peercred(&self.0).map_err(Error::system("asking who has connected"))
    }

    /// Sends one frame with at most [`DESCRIPTORS`] descriptors. Does not wait.
    ///
    /// # Errors
    /// [`Error::Closed`] when the other end is gone, and what the system says: also that the other end does not read.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Error::system("sending descriptors")(Errno::INVAL));
        }
        loop {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
                Err(errno) => return Err(Error::system("sending a frame")(errno)),
            }
        }
    }

    /// The next frame; `None` if there is none now.
    ///
    /// # Errors
    /// [`Error::Closed`] when the other end is gone, and what the system says.
    pub fn receive(&self) -> Result<Option<Received>, Error> {
        let mut bytes = [0; FRAME_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let message = match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
            Ok(message) => message,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(Error::Closed),
            Err(errno) => return Err(Error::system("receiving a frame")(errno)),
        };
        let descriptors = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        // No frame is empty, so nothing received is the end.
        if message.bytes == 0 {
            return Err(Error::Closed);
        }
        if message.flags.contains(ReturnFlags::TRUNC) {
            return Err(Error::Frame(crate::frame::FrameError::Length { bytes: FRAME_BYTES + 1 }));
        }
        Ok(Some(Received { bytes: bytes[..message.bytes].to_vec(), descriptors }))
    }

    /// Waits for the next frame, for at most `limit_ms` milliseconds; `None` when they have passed.
    ///
    /// # Errors
    /// As [`Socket::receive`].
    pub fn wait(&self, limit_ms: u32) -> Result<Option<Received>, Error> {
        let now_ms = || {
            let now = clock_gettime(ClockId::Monotonic);
            now.tv_sec * 1_000 + now.tv_nsec / 1_000_000
        };
        let until_ms = now_ms() + i64::from(limit_ms);
        loop {
            if let Some(received) = self.receive()? {
                return Ok(Some(received));
            }
            let left = (until_ms - now_ms()).max(0);
            let limit = Timespec { tv_sec: left / 1_000, tv_nsec: left % 1_000 * 1_000_000 };
            match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&limit)) {
                Ok(_) => return self.receive(),
                // A signal of the program's own, such as a profiler sends all the time: the limit is still that of the beginning.
                Err(Errno::INTR) if left > 0 => {}
                Err(Errno::INTR) => return self.receive(),
                Err(errno) => return Err(Error::system("waiting for a frame")(errno)),
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
