//! The engine as programs meet it: HTTP, events, and what goes wrong on request.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests may panic; what they wait for is bounded"
)]

mod answers;
mod client;
mod events;
mod faults;
mod mirror;
mod requests;

use std::net::SocketAddr;
use std::time::Duration;

use partywall_engine_sim::server::{Address, Running};
use partywall_engine_sim::settings::{EventSettings, Settings};

/// For whatever a test waits for: far beyond what a loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(120);

/// An engine on free ports whose requests take next to no time.
fn quick() -> Settings {
    Settings { listen: SocketAddr::from(([127, 0, 0, 1], 0)), time_scale: 1e5, ..Settings::default() }
}

/// The same, with events.
fn telling() -> Settings {
    let any = "tcp://127.0.0.1:0".to_owned();
    let events = EventSettings {
        publish: any.clone(),
        replay: Some(any),
        topic: "kv".to_owned(),
        kept: 10_000,
        shape: Default::default(),
    };
    Settings { events: Some(events), ..quick() }
}

/// Engines that run as long as this lives.
struct Engines {
    running: Running,
}

impl Engines {
    async fn start(settings: Settings) -> Self {
        Self { running: Running::start(settings).await.unwrap() }
    }

    fn address(&self, replica: usize) -> &Address {
        &self.running.addresses()[replica]
    }

    fn http(&self) -> SocketAddr {
        self.address(0).http
    }
}

/// Runs a test on a runtime of its own, and ends it when it takes too long.
fn within_reason(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, test).await.expect("the test waits for something that does not come")
    });
}
