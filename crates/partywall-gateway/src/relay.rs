//! The body of an answer: whole, or passed on from a replica piece by piece.
//!
//! A piece that ends with an event is passed on as it is, in the same poll in which it came. Of a stream of events only an event that has
//! not ended is held back, so that a replica that dies in the middle of one leaves the client a stream that it can read: the events
//! that there were, and one that says what happened.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use partywall_core::units::Nanos;
use tokio::time::Sleep;

use crate::answer::Problem;
use crate::clock;
use crate::fleet::{Outcome, Ticket};
use crate::record::Record;
use crate::scan::{Events, MAX_HELD_BYTES, UsageScan};
use crate::upstream::{Connection, said};
use crate::worker::Pooled;

/// Tokens are counted at the router in lots: each time takes its lock.
const TOKENS_LOT: u64 = 16;

/// The body of an answer.
pub(crate) enum Body {
    /// All of it.
    Whole(Option<Bytes>),
    /// As it comes.
    Relay(Box<Relay>),
}

impl Body {
    /// All of it.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }
}

/// Why an answer ends before its end: the connection to the client is closed, which is how it knows.
#[derive(Debug, thiserror::Error)]
#[error("the replica's answer ended before its end: {0}")]
pub(crate) struct Broken(String);

/// What came of one answer.
pub(crate) struct Flow {
    pub upstream: Incoming,
    /// Given back at the end.
    pub connection: Option<(Connection, Pooled)>,
    pub ticket: Option<Ticket>,
    pub record: Record,
    pub usage: UsageScan,
    /// How long nothing may come.
    pub silence: Nanos,
}

/// An answer that is passed on.
pub(crate) struct Relay {
    flow: Flow,
    /// What was read already.
    ahead: Option<Bytes>,
    events: Option<Stream>,
    last: Nanos,
    timer: Option<Pin<Box<Sleep>>>,
    over: bool,
}

/// A stream of events.
struct Stream {
    events: Events,
    /// An event that has not ended.
    held: BytesMut,
    /// Tokens that the router was told of.
    told: u64,
    /// The end of the body says that it is complete; otherwise only `[DONE]` does.
    framed: bool,
}

impl Relay {
    /// Passes on what comes, after what is `ahead`.
    pub(crate) fn plain(flow: Flow, ahead: Option<Bytes>) -> Self {
        Self { flow, ahead, events: None, last: clock::now(), timer: None, over: false }
    }

    /// The same with a stream of events. `framed`: whether its end can be told from a connection that broke.
    pub(crate) fn events(flow: Flow, framed: bool) -> Self {
        let stream = Stream { events: Events::default(), held: BytesMut::new(), told: 0, framed };
        Self { events: Some(stream), ..Self::plain(flow, None) }
    }

    /// Takes note of a piece, and gives what of it goes on now.
    fn passed(&mut self, piece: Bytes) -> Option<Bytes> {
        let now = clock::now();
        self.last = now;
        let flow = &mut self.flow;
        flow.usage.feed(&piece);
        let Some(stream) = &mut self.events else {
            flow.begun(now);
            flow.record.out_bytes += piece.len() as u64;
            return Some(piece);
        };
        let whole = stream.events.feed(&piece);
        let piece = if stream.held.is_empty() && whole == piece.len() {
            piece
        } else {
            // More than one event, and the last one has not ended; or the beginning of one was held.
            let mut piece = piece;
            let rest = piece.split_off(whole);
            let ready = match (stream.held.is_empty(), whole) {
                (true, _) => piece,
                (false, 0) => Bytes::new(),
                (false, _) => {
                    stream.held.extend_from_slice(&piece);
                    stream.held.split().freeze()
                }
            };
            stream.held.extend_from_slice(&rest);
            if stream.held.len() > MAX_HELD_BYTES {
                let mut all = BytesMut::from(&ready[..]);
                all.extend_from_slice(&stream.held.split());
                all.freeze()
            } else {
                ready
            }
        };
        if stream.events.ended > 0 {
            flow.begun(now);
            let tokens = stream.events.ended - 1;
            if tokens >= stream.told + TOKENS_LOT {
                if let Some(ticket) = &flow.ticket {
                    ticket.tokens(u32::try_from(tokens - stream.told).unwrap_or(u32::MAX));
                }
                stream.told = tokens;
            }
        }
        flow.record.events = stream.events.ended;
        flow.record.out_bytes += piece.len() as u64;
        Some(piece).filter(|piece| !piece.is_empty())
    }

    /// The replica says that this was all.
    fn complete(&mut self) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(stream) = &self.events
            && !stream.framed
            && !stream.events.is_done()
        {
            return self.broken("its connection was closed before the stream's end".to_owned());
        }
        self.over = true;
        let rest = self.events.as_mut().map(|stream| stream.held.split().freeze());
        self.flow.complete();
        match rest.filter(|rest| !rest.is_empty()) {
            Some(rest) => Poll::Ready(Some(Ok(Frame::data(rest)))),
            None => Poll::Ready(None),
        }
    }

    /// The replica failed in the middle.
    fn broken(&mut self, why: String) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.over = true;
        let name = self.flow.ticket.as_ref().map(|ticket| ticket.replica.name().to_owned());
        let name = name.unwrap_or_default();
        self.flow.fail("replica_failed");
        match self.events.take() {
            Some(_) => {
                let message = format!(
                    "the replica `{name}` failed before the end of its answer: {why}; what came until here is all there is"
                );
                Poll::Ready(Some(Ok(Frame::data(Problem::upstream("replica_failed", message).event()))))
            }
            None => Poll::Ready(Some(Err(Broken(why)))),
        }
    }

    fn silent(&mut self, context: &mut Context<'_>) -> bool {
        let limit = clock::duration(self.flow.silence);
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        while timer.as_mut().poll(context).is_ready() {
            let quiet = clock::now().saturating_sub(self.last);
            if quiet >= self.flow.silence {
                return true;
            }
            let left = self.flow.silence.saturating_sub(quiet).max(Nanos::from_millis(1));
            timer.set(tokio::time::sleep(clock::duration(left)));
        }
        false
    }
}

impl Flow {
    /// The first token is there.
    pub(crate) fn begun(&mut self, now: Nanos) {
        if self.record.first_at.is_none() {
            self.record.first_at = Some(now);
            if let Some(ticket) = &mut self.ticket {
                ticket.first_token(now);
            }
        }
    }

    /// All of the answer has come.
    pub(crate) fn complete(&mut self) {
        if let Some((connection, pool)) = self.connection.take() {
            pool.give_back(connection);
        }
        self.record.usage = self.usage.found();
        self.record.end("complete");
        if let Some(ticket) = self.ticket.take() {
            let outcome = if self.record.replica_is_ill() { Outcome::Failed } else { Outcome::Succeeded };
            ticket.end(outcome);
        }
    }

    /// Nothing of it has been passed on, and it is lost: gives the record for another try.
    pub(crate) fn lost(mut self) -> Record {
        if let Some(ticket) = self.ticket.take() {
            ticket.end(Outcome::Failed);
        }
        self.record
    }

    /// No more will come.
    pub(crate) fn fail(&mut self, code: &'static str) {
        self.connection = None;
        self.record.usage = self.usage.found();
        self.record.end(code);
        if let Some(ticket) = self.ticket.take() {
            ticket.end(Outcome::Failed);
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let relay = match self.get_mut() {
            Self::Whole(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Relay(relay) => relay,
        };
        if relay.over {
            return Poll::Ready(None);
        }
        if let Some(ahead) = relay.ahead.take() {
            relay.flow.record.out_bytes += ahead.len() as u64;
            return Poll::Ready(Some(Ok(Frame::data(ahead))));
        }
        loop {
            match Pin::new(&mut relay.flow.upstream).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers are between the replica and us.
                    let Ok(piece) = frame.into_data() else { continue };
                    if let Some(piece) = relay.passed(piece) {
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                }
                Poll::Ready(Some(Err(error))) => return relay.broken(said(&error)),
                Poll::Ready(None) => return relay.complete(),
                Poll::Pending if relay.silent(context) => {
                    let limit = relay.flow.silence;
                    return relay.broken(format!("nothing came for {limit}"));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Relay(relay) => relay.over,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Relay(_) => SizeHint::default(),
        }
    }
}
