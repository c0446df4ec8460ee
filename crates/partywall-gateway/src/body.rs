//! Bodies that are kept: of requests until they are answered, of answers until they are complete. All together take no more than they may.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::answer::Problem;
use crate::clock;
use crate::config::Config;
use crate::upstream::said;

/// What is counted at a time: a permit is so many bytes.
const UNIT_BYTES: u64 = 1024;

/// Room for bodies.
pub(crate) struct Bodies {
    room: Arc<Semaphore>,
    units: usize,
}

impl Bodies {
    /// Of so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let units =
            usize::try_from(bytes / UNIT_BYTES).unwrap_or(usize::MAX).clamp(1, Semaphore::MAX_PERMITS);
        Self { room: Arc::new(Semaphore::new(units)), units }
    }

    /// Bytes that are kept.
    pub(crate) fn used(&self) -> u64 {
        (self.units - self.room.available_permits()) as u64 * UNIT_BYTES
    }

    fn reserve(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).ok()?;
        Arc::clone(&self.room).try_acquire_many_owned(units).ok()
    }

    /// Reads the body of a request.
    pub(crate) async fn read(
        &self,
        mut body: Incoming,
        config: &Config,
    ) -> Result<(Bytes, Option<OwnedSemaphorePermit>), Problem> {
        if body.is_end_stream() {
            return Ok((Bytes::new(), None));
        }
        let limit = config.limits.body.0;
        let said_length = body.size_hint().exact();
        if said_length.is_some_and(|length| length > limit) {
            return Err(too_large(config));
        }
        let busy =
            || Problem::busy("too_many_bodies", "too many large requests are under way; send it later");
        let mut kept = self.reserve(said_length.unwrap_or(UNIT_BYTES)).ok_or_else(busy)?;
        let reading = async move {
            let mut whole = Whole::default();
            while let Some(frame) = body.frame().await {
                let frame = frame
                    .map_err(|error| Problem::bad(format!("the body cannot be read: {}", said(&error))))?;
                let Ok(piece) = frame.into_data() else { continue };
                let length = whole.length() as u64 + piece.len() as u64;
                if length > limit {
                    return Err(too_large(config));
                }
                let room = kept.num_permits() as u64 * UNIT_BYTES;
                if length > room {
                    kept.merge(self.reserve((length - room).max(room)).ok_or_else(busy)?);
                }
                whole.add(piece, said_length);
            }
            Ok((whole.bytes(), Some(kept)))
        };
        // Most bodies have come with their heads and need no timer.
        let mut reading = std::pin::pin!(reading);
        let at_once = std::future::poll_fn(|context| {
            std::task::Poll::Ready(match reading.as_mut().poll(context) {
                std::task::Poll::Ready(result) => Some(result),
                std::task::Poll::Pending => None,
            })
        });
        if let Some(result) = at_once.await {
            return result;
        }
        let limit = clock::duration(config.timeouts.body);
        let late =
            |_| Problem::new(StatusCode::REQUEST_TIMEOUT, "slow_body", "the body took too long to come");
        timeout(limit, reading).await.map_err(late)?
    }

    /// Reads the body of an answer, and whether that is all of it: a long one is left to be read on.
    pub(crate) async fn collect(
        &self,
        body: &mut Incoming,
        config: &Config,
    ) -> Result<(Bytes, bool), String> {
        let silence = clock::duration(config.timeouts.silence);
        let said_length = body.size_hint().exact();
        let mut whole = Whole::default();
        let mut kept: Option<OwnedSemaphorePermit> = None;
        loop {
            if body.is_end_stream() {
                return Ok((whole.bytes(), true));
            }
            let next = timeout(silence, body.frame()).await;
            let next = next.map_err(|_| format!("nothing came for {}", config.timeouts.silence))?;
            let Some(frame) = next else { return Ok((whole.bytes(), true)) };
            let Ok(piece) = frame.map_err(|error| said(&error))?.into_data() else { continue };
            whole.add(piece, said_length);
            let length = whole.length() as u64;
            let room = kept.as_ref().map_or(0, |kept| kept.num_permits() as u64 * UNIT_BYTES);
            if length > config.limits.answer.0 {
                return Ok((whole.bytes(), false));
            }
            if length > room {
                match (self.reserve((length - room).max(room)), &mut kept) {
                    (None, _) => return Ok((whole.bytes(), false)),
                    (Some(more), Some(kept)) => kept.merge(more),
                    (more, none) => *none = more,
                }
            }
        }
    }
}

fn too_large(config: &Config) -> Problem {
    let limit = config.limits.body;
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "body_too_large",
        format!("the body is larger than {limit}; send less, or have limits.body raised"),
    )
}

/// Pieces put together; a single one is not copied.
#[derive(Default)]
struct Whole {
    first: Bytes,
    more: BytesMut,
}

impl Whole {
    fn length(&self) -> usize {
        self.first.len() + self.more.len()
    }

    fn add(&mut self, piece: Bytes, expected: Option<u64>) {
        if self.first.is_empty() && self.more.is_empty() {
            self.first = piece;
            return;
        }
        if self.more.is_empty() {
            let expected = expected.and_then(|expected| usize::try_from(expected).ok()).unwrap_or(0);
            self.more.reserve(expected.max(self.first.len() + piece.len()));
            self.more.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.more.extend_from_slice(&piece);
    }

    fn bytes(self) -> Bytes {
        if self.more.is_empty() { self.first } else { self.more.freeze() }
    }
}
