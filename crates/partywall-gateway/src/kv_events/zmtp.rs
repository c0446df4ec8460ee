//! As much of ZeroMQ's protocol (ZMTP 3.0, without security) as a subscriber needs, with a limit on everything that a peer announces.
//!
//! The library that would do this reserves as much memory as a frame says it is long, before it has come: an engine that sends one wrong
//! length ends the gateway. It also connects again on its own, while here it has to be known when a connection broke.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::Error;

/// The longest frame that is read. A batch of an engine's step has 5 bytes for a token at most: this is room for 1.6 M tokens.
pub const MAX_FRAME_BYTES: usize = 8 << 20;
/// The most frames of a message: a replay's has four.
const MAX_FRAMES: usize = 8;
/// How long a connection may take until it can be used.
const PATIENCE: Duration = Duration::from_secs(10);
/// What is read at a time.
const CHUNK_BYTES: usize = 64 << 10;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a socket is for, as the peer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Subscriber,
    Dealer,
}

/// A connection to a socket.
pub(super) struct Connection {
    endpoint: String,
    stream: Box<dyn Stream>,
    /// What was read and is not a message yet.
    buffer: BytesMut,
    /// The frames of a message of which more are to come.
    frames: Vec<Bytes>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One frame, as it comes.
struct Frame {
    flags: u8,
    body: Bytes,
}

impl Connection {
    /// Connects to `tcp://HOST:PORT` or `ipc://PATH`.
    pub(super) async fn open(endpoint: &str, kind: Kind) -> Result<Self, Error> {
        let opened = tokio::time::timeout(PATIENCE, async {
            let stream: Box<dyn Stream> = if let Some(path) = endpoint.strip_prefix("ipc://") {
                Box::new(UnixStream::connect(path).await.map_err(|error| broken(endpoint, &error))?)
            } else if let Some(address) = endpoint.strip_prefix("tcp://") {
                Box::new(TcpStream::connect(address).await.map_err(|error| broken(endpoint, &error))?)
            } else {
                return Err(Error::Connection {
                    endpoint: endpoint.to_owned(),
                    what: "not an address; write tcp://HOST:PORT or ipc://PATH".to_owned(),
                });
            };
            let mut connection =
                Self { endpoint: endpoint.to_owned(), stream, buffer: BytesMut::new(), frames: Vec::new() };
            connection.handshake(kind).await?;
            Ok(connection)
        });
        opened.await.unwrap_or_else(|_| {
            let what = format!("no connection within {} s", PATIENCE.as_secs());
            Err(Error::Connection { endpoint: endpoint.to_owned(), what })
        })
    }

    /// Asks for messages that begin with this.
    pub(super) async fn subscribe(&mut self, topic: &[u8]) -> Result<(), Error> {
        self.send(&[&[&[1], topic].concat()]).await
    }

    /// Sends a message.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> Result<(), Error> {
        let mut bytes = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            let more = if at + 1 < frames.len() { MORE } else { 0 };
            write_frame(&mut bytes, more, frame);
        }
        self.write(&bytes).await
    }

    /// The next message. When this is dropped before it is done, nothing is lost.
    pub(super) async fn receive(&mut self) -> Result<Vec<Bytes>, Error> {
        loop {
            while let Some(frame) = self.frame()? {
                if frame.flags & COMMAND != 0 {
                    // Of those that follow the handshake a subscriber needs none, and a version 3.0 is not pinged.
                    continue;
                }
                if self.frames.len() == MAX_FRAMES {
                    return Err(Error::TooMany { what: "frames in a message", limit: MAX_FRAMES });
                }
                self.frames.push(frame.body);
                if frame.flags & MORE == 0 {
                    return Ok(std::mem::take(&mut self.frames));
                }
            }
            self.read().await?;
        }
    }

    async fn handshake(&mut self, kind: Kind) -> Result<(), Error> {
        let mut greeting = [0; 64];
        (greeting[0], greeting[9]) = (0xff, 0x7f);
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        self.write(&greeting).await?;
        while self.buffer.len() < greeting.len() {
            self.read().await?;
        }
        let theirs = self.buffer.split_to(greeting.len());
        if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
            return Err(self.wrong("its greeting is another protocol's or an older version's"));
        }
        if theirs[12..32] != greeting[12..32] {
            return Err(self.wrong("it wants a security mechanism"));
        }
        let name: &[u8] = match kind {
            Kind::Subscriber => b"SUB",
            Kind::Dealer => b"DEALER",
        };
        let mut ready = b"\x05READY".to_vec();
        for (property, value) in [(&b"Socket-Type"[..], name), (b"Identity", b"")] {
            ready.push(property.len() as u8);
            ready.extend_from_slice(property);
            ready.extend_from_slice(&(value.len() as u32).to_be_bytes());
            ready.extend_from_slice(value);
        }
        let mut bytes = Vec::new();
        write_frame(&mut bytes, COMMAND, &ready);
        self.write(&bytes).await?;
        loop {
            if let Some(frame) = self.frame()? {
                if frame.flags & COMMAND == 0 || !frame.body.starts_with(b"\x05READY") {
                    return Err(self.wrong("it was not ready first"));
                }
                return Ok(());
            }
            self.read().await?;
        }
    }

    /// A frame, if all of it is there.
    fn frame(&mut self) -> Result<Option<Frame>, Error> {
        let Some(&flags) = self.buffer.first() else { return Ok(None) };
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(self.wrong("a frame has flags that there are not"));
        }
        let (head, length) = if flags & LONG == 0 {
            let Some(&length) = self.buffer.get(1) else { return Ok(None) };
            (2, u64::from(length))
        } else {
            let Some(length) = self.buffer.get(1..9) else { return Ok(None) };
            (9, length.iter().fold(0, |length, &byte| length << 8 | u64::from(byte)))
        };
        if length > MAX_FRAME_BYTES as u64 {
            return Err(Error::TooMany { what: "bytes in a frame", limit: MAX_FRAME_BYTES });
        }
        let whole = head + length as usize;
        if self.buffer.len() < whole {
            return Ok(None);
        }
        self.buffer.advance(head);
        Ok(Some(Frame { flags, body: self.buffer.split_to(length as usize).freeze() }))
    }

    async fn read(&mut self) -> Result<(), Error> {
        self.buffer.reserve(CHUNK_BYTES);
        match self.stream.read_buf(&mut self.buffer).await {
            Ok(0) => Err(Error::Connection {
                endpoint: self.endpoint.clone(),
                what: "the peer has closed it".into(),
            }),
            Ok(_) => Ok(()),
            Err(error) => Err(broken(&self.endpoint, &error)),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let written = tokio::time::timeout(PATIENCE, async {
            self.stream.write_all(bytes).await?;
            self.stream.flush().await
        });
        match written.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(broken(&self.endpoint, &error)),
            Err(_) => Err(Error::Connection {
                endpoint: self.endpoint.clone(),
                what: "the peer does not read".into(),
            }),
        }
    }

    fn wrong(&self, what: &'static str) -> Error {
        Error::Protocol { endpoint: self.endpoint.clone(), what }
    }
}

fn broken(endpoint: &str, error: &std::io::Error) -> Error {
    Error::Connection { endpoint: endpoint.to_owned(), what: error.to_string() }
}

fn write_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => bytes.extend_from_slice(&[flags, length]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}
