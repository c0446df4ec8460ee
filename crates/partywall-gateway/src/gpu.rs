//! How the GPU below a replica is, from what its node says.
//!
//! A node says how long a best-effort tenant's launches were held, and how many went onto the SMs that are left to it, both summed up since it
//! started. The difference of two readings is what is the case now: held for half of the time between them, it has half of its speed. Of a
//! latency-sensitive tenant the node says how much slower it is than alone.

use partywall_routing::replica::GpuState;
use serde::Deserialize;

/// Held for less than this part of the time is not called squeezed: a neighbour was busy for a moment.
const SQUEEZED_FROM: f64 = 0.05;

/// Held for more than this part of the time, nothing of it runs.
const PAUSED_FROM: f64 = 0.98;

/// No replica counts as slower than this, or one that is slow for a moment would get nothing for long.
const MIN_SPEED: f64 = 0.05;

/// What a node says of one tenant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reading {
    generation: String,
    uptime_ns: u64,
    held_ns: u64,
    squeezed_launches: u64,
    slowdown: Option<f64>,
}

#[derive(Deserialize)]
struct Node {
    generation: String,
    uptime_ns: Number,
    tenants: Vec<Tenant>,
}

#[derive(Deserialize)]
struct Tenant {
    name: String,
    held_ns: Number,
    squeezed_launches: u64,
    #[serde(default)]
    promise: Option<Promise>,
}

#[derive(Deserialize)]
struct Promise {
    #[serde(default)]
    slowdown: Option<f64>,
}

/// Times are texts with a unit or numbers of nanoseconds.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Plain(u64),
    Text(partywall_core::units::Nanos),
}

impl Number {
    fn nanos(&self) -> u64 {
        match self {
            Self::Plain(nanos) => *nanos,
            Self::Text(time) => time.0,
        }
    }
}

impl Reading {
    /// Of a node's facts; `None` where they say nothing of the tenant.
    pub(crate) fn of(facts: &[u8], tenant: &str) -> Option<Self> {
        let node: Node = serde_json::from_slice(facts).ok()?;
        let found = node.tenants.into_iter().find(|found| found.name == tenant)?;
        Some(Self {
            generation: node.generation,
            uptime_ns: node.uptime_ns.nanos(),
            held_ns: found.held_ns.nanos(),
            squeezed_launches: found.squeezed_launches,
            slowdown: found.promise.and_then(|promise| promise.slowdown),
        })
    }
}

/// How the GPU is between two readings.
pub(crate) fn state(last: Option<&Reading>, now: &Reading) -> GpuState {
    let slowed = now.slowdown.filter(|slowdown| slowdown.is_finite() && *slowdown > 1.0);
    let alone = slowed.map_or(1.0, |slowdown| 1.0 / slowdown);
    let speed = |speed: f64| speed.clamp(MIN_SPEED, 1.0);
    // What another node, or the same one before it was started again, had summed up says nothing.
    let Some(last) = last.filter(|last| last.generation == now.generation) else {
        return GpuState { speed: speed(alone), ..GpuState::default() };
    };
    let passed = now.uptime_ns.saturating_sub(last.uptime_ns).max(1);
    let held = (now.held_ns.saturating_sub(last.held_ns) as f64 / passed as f64).min(1.0);
    GpuState {
        speed: speed(alone * (1.0 - held)),
        squeezed: held >= SQUEEZED_FROM || now.squeezed_launches > last.squeezed_launches,
        paused: held >= PAUSED_FROM,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(uptime_ms: u64, held_ms: u64, launches: u64, slowdown: Option<f64>) -> Reading {
        let facts = serde_json::json!({
            "generation": "0a", "uptime_ns": format!("{uptime_ms}ms"), "pid": 1,
            "tenants": [
                { "name": "other", "held_ns": "0ns", "squeezed_launches": 0, "promise": null },
                { "name": "llama", "held_ns": held_ms * 1_000_000, "squeezed_launches": launches,
                  "promise": slowdown.map(|slowdown| serde_json::json!({ "slowdown": slowdown, "verdict": "kept" })) },
            ],
        });
        Reading::of(facts.to_string().as_bytes(), "llama").unwrap()
    }

    #[test]
    fn differences_say_what_is_the_case_now() {
        let first = reading(1_000, 900, 5, None);
        let said = |now: &Reading| {
            let GpuState { speed, squeezed, paused } = state(Some(&first), now);
            ((speed * 100.0).round(), squeezed, paused)
        };
        assert_eq!(state(None, &first), GpuState::default());
        assert_eq!(said(&reading(1_500, 900, 5, None)), (100.0, false, false));
        assert_eq!(said(&reading(1_500, 1_150, 5, None)), (50.0, true, false));
        assert_eq!(said(&reading(1_500, 1_400, 5, None)), (5.0, true, true));
        assert_eq!(said(&reading(1_500, 900, 6, None)), (100.0, true, false));
        assert_eq!(said(&reading(1_500, 900, 5, Some(1.25))), (80.0, false, false));
        let restarted = Reading { generation: "0b".to_owned(), ..reading(100, 100, 0, None) };
        assert_eq!(said(&restarted), (100.0, false, false));
    }

    #[test]
    fn what_is_not_said_is_not_known() {
        for facts in ["", "[]", "{\"generation\":\"a\",\"uptime_ns\":1,\"tenants\":[]}"] {
            assert_eq!(Reading::of(facts.as_bytes(), "llama"), None, "{facts}");
        }
    }
}
