#[path = "../src/trace.rs"]
mod trace;
use partywall_routing::index::*;
use partywall_routing::prefix::PrefixHash;
use partywall_routing::replica::ReplicaId;
use std::time::Instant;
fn main() {
    let requests = trace::read(std::path::Path::new(&std::env::args().nth(1).unwrap())).unwrap();
    for replicas in [8, 64] {
        let steps = trace::engines(&requests, replicas, 16384);
        let stored: usize = steps.iter().map(|s| s.stored.len()).sum();
        let removed: usize = steps.iter().map(|s| s.removed.len()).sum();
        let ev = steps.iter().filter(|s| !s.stored.is_empty()).count();
        eprintln!("{replicas}: stored {stored} removed {removed} events {ev} of {}", steps.len());
        let pre: Vec<(Vec<EngineHash>, Vec<(EngineHash, PrefixHash)>)> = steps.iter().map(|s| (s.removed.iter().map(|&h| EngineHash(h)).collect(), s.stored.iter().map(|b| (EngineHash(b.0), PrefixHash(b.1))).collect())).collect();
        for _ in 0..3 {
            let mut index = Index::new(Limits::default());
            let (mut a, mut b) = (0.0, 0.0);
            for (s, (r, st)) in steps.iter().zip(&pre) {
                let h = Holder { replica: ReplicaId(s.replica), rank: 0 };
                let t = Instant::now();
                index.remove(h, Tier::Device, r);
                let u = Instant::now();
                index.store(h, Tier::Device, s.parent.map(EngineHash), st);
                b += u.elapsed().as_secs_f64();
                a += (u - t).as_secs_f64();
            }
            eprintln!("{replicas}: stores {:.1} M/s removals {:.1} M/s runs {} blocks {} held {} bytes {}", stored as f64 / b / 1e6, removed as f64 / a / 1e6, index.runs(), index.blocks(), index.held(), index.bytes());
        }
    }
}
