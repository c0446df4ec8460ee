//! Who may still be using a resource: the streams to which work with it was submitted.
//!
//! The driver works on after a call returned. Host memory that the device writes to, or code that it runs, must not go away
//! before that work is done; and the documentation does not promise that freeing waits. So a resource remembers the
//! streams it was given to and waits for them before it is freed.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::stream::StreamInner;

/// From so many streams on, those that were dropped and have nothing left to do are forgotten.
const TRIM_AT: usize = 8;

/// The streams that may still use a resource.
#[derive(Default)]
pub(crate) struct InFlight {
    /// The stream noted last, to find the usual case without a lock.
    last: AtomicPtr<StreamInner>,
    streams: Mutex<Vec<Arc<StreamInner>>>,
}

impl InFlight {
    /// Remembers that work with the resource goes to `stream`. Call it before submitting the work.
    pub(crate) fn note(&self, stream: &Arc<StreamInner>) {
        let address = Arc::as_ptr(stream).cast_mut();
        // A stream whose owner is alive is never forgotten, and the address of one that was is taken out of `last` before
        // it can be reused: so an equal address is this stream, and it is in the list.
        if self.last.load(Ordering::Relaxed) == address {
            return;
        }
        let mut streams = self.lock();
        if !streams.iter().any(|known| Arc::ptr_eq(known, stream)) {
            if streams.len() >= TRIM_AT {
                self.last.store(std::ptr::null_mut(), Ordering::Relaxed);
                streams.retain(|known| !(known.is_closed() && known.is_idle()));
            }
            streams.push(Arc::clone(stream));
        }
        self.last.store(address, Ordering::Relaxed);
    }

    /// Waits for all that was noted. False where that failed: then the resource must not be freed.
    pub(crate) fn settle(&self) -> bool {
        self.lock().iter().all(|stream| stream.wait_quietly())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<StreamInner>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
