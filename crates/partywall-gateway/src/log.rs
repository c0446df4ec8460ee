//! The access log: a line of JSON for each request, written in lots by whoever looks after it.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Bytes that wait to be written. What comes while there are so many is dropped and counted: the log must not hold up requests.
const MAX_WAITING_BYTES: usize = 4 << 20;

/// Lines that wait, and where they go.
pub(crate) struct Log {
    waiting: Mutex<Vec<u8>>,
    sink: Mutex<Box<dyn Write + Send>>,
    dropped: AtomicU64,
}

impl Log {
    pub(crate) fn new(sink: Box<dyn Write + Send>) -> Self {
        Self { waiting: Mutex::default(), sink: Mutex::new(sink), dropped: AtomicU64::new(0) }
    }

    /// Adds a line.
    pub(crate) fn write(&self, line: &impl Serialize) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let before = waiting.len();
        if before >= MAX_WAITING_BYTES || serde_json::to_writer(&mut *waiting, line).is_err() {
            waiting.truncate(before);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        waiting.push(b'\n');
    }

    /// Lines that are lost, because they could not be written or too many were waiting.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Writes what waits. This may take long, so nobody who serves requests does it.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        if lines.is_empty() {
            return Ok(());
        }
        let written = sink.write_all(&lines).and_then(|()| sink.flush());
        if written.is_err() {
            let lost = lines.iter().filter(|byte| **byte == b'\n').count();
            self.dropped.fetch_add(lost as u64, Ordering::Relaxed);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_cannot_wait_is_counted() {
        let sink = Sink::default();
        let log = Log::new(Box::new(sink.clone()));
        let line = "x".repeat(1 << 20);
        for _ in 0..10 {
            log.write(&line);
        }
        log.flush().unwrap();
        let written = sink.0.lock().unwrap().iter().filter(|byte| **byte == b'\n').count() as u64;
        assert!(written >= 4 && log.dropped() > 0);
        assert_eq!(written + log.dropped(), 10);
        log.write(&"again");
        log.flush().unwrap();
        assert!(sink.0.lock().unwrap().ends_with(b"\"again\"\n"));
    }
}
