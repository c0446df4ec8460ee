//! A request in the engine, as long as somebody waits for it.

use partywall_routing::router::RequestId;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};

use crate::replica::{Accepted, Command, End, Progress};

/// Holds a request's place; when it is dropped before the end, the engine is told to forget the request.
#[derive(Debug)]
pub(super) struct Ticket {
    rank: usize,
    id: RequestId,
    progress: watch::Receiver<Progress>,
    commands: mpsc::UnboundedSender<Command>,
    _slot: OwnedSemaphorePermit,
}

impl Ticket {
    pub(super) fn new(
        rank: usize,
        accepted: Accepted,
        commands: mpsc::UnboundedSender<Command>,
        slot: OwnedSemaphorePermit,
    ) -> Self {
        Self { rank, id: accepted.id, progress: accepted.progress, commands, _slot: slot }
    }

    /// What tells it from all others of the replica.
    pub(super) fn name(&self) -> String {
        format!("{}-{}", self.rank, self.id.0)
    }

    /// How far it has come, when it has come further.
    pub(super) async fn next(&mut self) -> Progress {
        match self.progress.changed().await {
            Ok(()) => *self.progress.borrow_and_update(),
            // The replica is gone.
            Err(_) => Progress { end: Some(End::Cut), ..*self.progress.borrow() },
        }
    }

    /// Waits for the end; `None` when that was not a good one.
    pub(super) async fn ended(&mut self) -> Option<Progress> {
        loop {
            let progress = self.next().await;
            match progress.end {
                Some(End::Complete) => return Some(progress),
                Some(End::Cut) => return None,
                None => {}
            }
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.progress.borrow().end.is_none() {
            // Where the replica is gone there is nothing to forget.
            let _ = self.commands.send(Command::Cancel(self.id));
        }
    }
}
