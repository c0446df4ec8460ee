//! One conversation on the control socket, on the node's side: lines in, lines out, never waiting.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::event::PollFlags;

use crate::control::{LINE_BYTES_MAX, Reply, Request};

/// Read at a time.
const READ_BYTES: usize = 64 << 10;

/// What a conversation is waiting for before its next reply.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Waiting {
    /// Until these are not active; answered with their names.
    Stopped(Vec<String>),
    /// Until these are not active; answered with how they are.
    Ended(Vec<String>),
    /// Until it is known whether the SMs of these are their own; answered with this, or refused.
    Proven {
        /// The answer if nothing is wrong.
        reply: Box<Reply>,
        /// Who is waited for.
        names: Vec<String>,
        /// Whether they are there because of what was asked.
        new: bool,
    },
    /// Until the node has ended everything.
    Shutdown,
}

/// A conversation.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    /// The process at the other end, as it was when it connected.
    pub(crate) peer: i32,
    incoming: Vec<u8>,
    outgoing: VecDeque<u8>,
    /// What the next reply waits for.
    pub(crate) waiting: Option<Waiting>,
    /// Nothing more will come.
    heard_all: bool,
    /// Nothing more can be said either.
    over: bool,
}

impl Connection {
    /// With the process `peer`.
    ///
    /// # Errors
    /// When the socket cannot be used without waiting.
    pub(crate) fn new(stream: UnixStream, peer: i32) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (incoming, outgoing) = (Vec::new(), VecDeque::new());
        Ok(Self { stream, peer, incoming, outgoing, waiting: None, heard_all: false, over: false })
    }

    /// What to wait for on its descriptor.
    pub(crate) fn interest(&self) -> PollFlags {
        if self.outgoing.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }

    /// Whether it has ended. Who has hung up gets the answers to what was asked, but none that takes its time.
    pub(crate) fn is_over(&self) -> bool {
        self.over || self.heard_all && (self.waiting.is_some() || self.outgoing.is_empty())
    }

    /// Whether everything said has been taken.
    pub(crate) fn is_flushed(&self) -> bool {
        self.over || self.outgoing.is_empty()
    }

    /// Takes what has come and sends what can be sent.
    pub(crate) fn serve(&mut self) {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.heard_all = true,
                Ok(count) => {
                    self.incoming.extend_from_slice(&buffer[..count]);
                    if self.incoming.len() <= LINE_BYTES_MAX {
                        continue;
                    }
                    self.over = true;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => self.over = true,
            }
            break;
        }
        self.flush();
    }

    /// The next request, unless the last one is still being answered.
    pub(crate) fn request(&mut self) -> Option<Request> {
        while self.waiting.is_none() && !self.over {
            let end = self.incoming.iter().position(|byte| *byte == b'\n')?;
            let line: Vec<u8> = self.incoming.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(request) => return Some(request),
                Err(error) => {
                    let message = format!("this is no request: {error}");
                    self.reply(&Reply::Refused { message });
                }
            }
        }
        None
    }

    /// Says something.
    pub(crate) fn reply(&mut self, reply: &Reply) {
        self.waiting = None;
        match serde_json::to_vec(reply) {
            Ok(line) => self.outgoing.extend(line.into_iter().chain([b'\n'])),
            Err(_) => self.over = true,
        }
        self.flush();
    }

    fn flush(&mut self) {
        while !self.outgoing.is_empty() && !self.over {
            match self.stream.write(self.outgoing.as_slices().0) {
                Ok(0) => self.over = true,
                Ok(count) => drop(self.outgoing.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.over = true,
            }
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_in_pieces_and_rubbish_is_answered() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(near, 1).unwrap();
        let mut ask = |text: &str, connection: &mut Connection| {
            far.write_all(text.as_bytes()).unwrap();
            connection.serve();
            connection.request()
        };
        assert_eq!(ask("{\"verb\":", &mut connection), None);
        assert_eq!(ask("\"ps\"}\nrubbish\n", &mut connection), Some(Request::Ps));
        assert_eq!(connection.request(), None);
        // While one request is being answered, the next one waits.
        connection.waiting = Some(Waiting::Shutdown);
        assert_eq!(ask("{\"verb\":\"ps\"}\n", &mut connection), None);
        connection.reply(&Reply::Done { names: Vec::new() });
        assert_eq!(connection.request(), Some(Request::Ps));
        far.set_nonblocking(true).unwrap();
        let mut text = String::new();
        let _ = far.read_to_string(&mut text);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("this is no request") && lines[1].contains("done"), "{text}");
    }

    #[test]
    fn a_line_without_end_ends_the_conversation() {
        let (mut far, near) = UnixStream::pair().unwrap();
        let mut connection = Connection::new(near, 1).unwrap();
        let piece = vec![b'x'; READ_BYTES];
        far.set_nonblocking(true).unwrap();
        for _ in 0..1000 {
            if connection.is_over() {
                return;
            }
            // Full: the other end has not been read yet.
            let _ = far.write(&piece);
            connection.serve();
        }
        panic!("{} bytes were taken", connection.incoming.len());
    }
}
