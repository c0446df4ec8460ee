//! The body of an answer that comes piece by piece.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;

/// The connection is to be closed in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the replica is gone")]
pub struct Gone;

/// Pieces from a channel.
#[derive(Debug)]
pub struct Streamed {
    pieces: mpsc::Receiver<Result<Bytes, Gone>>,
    /// What was sent before the end is on its way.
    flushed: bool,
    gone: bool,
}

impl Streamed {
    /// Of these pieces.
    pub fn new(pieces: mpsc::Receiver<Result<Bytes, Gone>>) -> Self {
        Self { pieces, flushed: false, gone: false }
    }
}

impl Body for Streamed {
    type Data = Bytes;
    type Error = Gone;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Gone>>> {
        if !self.gone {
            match self.pieces.poll_recv(context) {
                Poll::Ready(Some(Err(Gone))) => self.gone = true,
                Poll::Ready(piece) => return Poll::Ready(piece.map(|piece| piece.map(Frame::data))),
                Poll::Pending => return Poll::Pending,
            }
        }
        // An error makes hyper drop what it has not written yet. It writes when a body has nothing for the moment.
        if !self.flushed {
            self.flushed = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Some(Err(Gone)))
    }
}
