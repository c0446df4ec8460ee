//! What the router costs per request: deciding, its first token and its end, with so many replicas that each have something to do.

use divan::Bencher;
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::cached::Cached;
use partywall_routing::policy;
use partywall_routing::prefix::PrefixHash;
use partywall_routing::replica::Capacity;
use partywall_routing::router::{Arrival, ModelId, RequestId, Router, RouterSettings, Verdict};

fn main() {
    divan::main();
}

/// One replica of eight holds half of every prompt.
struct Eighth(usize);

impl Cached for Eighth {
    fn cached(&self, prefixes: &[PrefixHash], _: Nanos, blocks: &mut Vec<u32>) {
        blocks.clear();
        blocks.resize(self.0, 0);
        for held in blocks.iter_mut().step_by(8) {
            *held = prefixes.len() as u32 / 2;
        }
    }
}

fn arrival(id: u64) -> Arrival {
    Arrival {
        id: RequestId(id),
        class: Class::LatencySensitive,
        model: ModelId(0),
        prefixes: (0..23).map(|block| PrefixHash((id % 100) * 1_000 + block)).collect(),
        input_tokens: 12_000,
        whole: false,
        output_tokens: None,
        affinity: None,
        deadline: None,
    }
}

fn router(policy: &str, replicas: usize) -> Option<Router> {
    let mut router = Router::new(policy::named(policy)?, RouterSettings::default());
    let capacity = Capacity {
        prefill_tokens_per_s: 8_000.0,
        token_time: Nanos::from_millis(25),
        streams: 64,
        block_tokens: 512,
        cache_blocks: 2_000,
    };
    for _ in 0..replicas {
        router.add_replica(Nanos::ZERO, capacity, &[ModelId(0)]).ok()?;
    }
    // Two prompts wait at each.
    for id in 0..replicas as u64 * 2 {
        router.arrive(Nanos::ZERO, arrival(id), &Eighth(replicas));
    }
    Some(router)
}

#[divan::bench(args = [8, 64, 512, 4096], consts = [0, 8])]
fn request<const POLICY: usize>(bencher: Bencher, replicas: usize) {
    let Some(mut router) = router(policy::NAMES[POLICY], replicas) else { return };
    let (cached, mut id) = (Eighth(replicas), 1_000_000);
    bencher.bench_local(|| {
        id += 1;
        let now = Nanos(id * 1_000);
        let verdict = router.arrive(now, arrival(id), &cached);
        router.first_token(now, RequestId(id), Some(0));
        router.ended(now, RequestId(id));
        matches!(verdict, Verdict::Send(_))
    });
}
