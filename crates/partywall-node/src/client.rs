//! The other end of the control socket: what the command line uses.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use crate::control::{LINE_BYTES_MAX, Reply, Request};
use crate::error::Error;
use crate::folder::Folder;

/// A conversation with the node that owns a folder.
#[derive(Debug)]
pub struct Client {
    folder: Folder,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// With the node of `folder`.
    ///
    /// # Errors
    /// [`Error::NoNode`] when there is none.
    pub fn connect(folder: &Folder) -> Result<Self, Error> {
        let path = folder.control_socket();
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Self { folder: folder.clone(), stream: BufReader::new(stream) }),
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) =>
            {
                Err(Error::NoNode { folder: folder.path().to_owned() })
            }
            Err(error) => Err(Error::file("connect to", path)(error)),
        }
    }

    /// Asks, and waits for the answer as long as it takes.
    ///
    /// # Errors
    /// [`Error::Refused`] when the node refuses; [`Error::Conversation`] when it ends meanwhile.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, Error> {
        self.send(request)?;
        self.receive()
    }

    /// Asks, and leaves the answer to [`Client::receive`].
    ///
    /// # Errors
    /// [`Error::Conversation`] when the node has ended.
    pub fn send(&mut self, request: &Request) -> Result<(), Error> {
        let mut line = serde_json::to_vec(request).map_err(|error| self.broken(error.to_string()))?;
        if line.len() >= LINE_BYTES_MAX {
            let bytes = line.len();
            let why = "is the environment that large?";
            return Err(Error::Refused(format!(
                "this request has {bytes} bytes, at most {LINE_BYTES_MAX} are taken; {why}"
            )));
        }
        line.push(b'\n');
        let sent = self.stream.get_mut().write_all(&line);
        // Whoever does not let us in says why before it hangs up.
        sent.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
            .map_err(|error| self.broken(format!("does not listen: {error}")))
    }

    /// The answer to what was sent.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn receive(&mut self) -> Result<Reply, Error> {
        let mut line = Vec::new();
        let read = self.stream.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line);
        read.map_err(|error| self.broken(format!("cannot be heard: {error}")))?;
        if line.is_empty() {
            return Err(self.broken("ended before it answered".to_owned()));
        }
        match serde_json::from_slice(&line) {
            Ok(Reply::Refused { message }) => Err(Error::Refused(message)),
            Ok(reply) => Ok(reply),
            Err(error) => Err(self.broken(format!("answered something else: {error}"))),
        }
    }

    /// An answer that is not one to what was asked.
    pub fn unexpected(&self, reply: &Reply) -> Error {
        self.broken(format!("answered something else: {reply:?}"))
    }

    fn broken(&self, what: String) -> Error {
        Error::Conversation { folder: self.folder.path().to_owned(), what }
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.get_ref().as_fd()
    }
}
