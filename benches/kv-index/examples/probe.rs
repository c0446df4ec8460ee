#[path = "../src/trace.rs"]
mod trace;
use partywall_routing::index::*;
use partywall_routing::prefix::PrefixHash;
use partywall_routing::replica::ReplicaId;
use kv_index::*;
#[repr(C)] struct Ts { s: i64, n: i64 }
unsafe extern "C" { fn clock_gettime(c: i32, t: *mut Ts) -> i32; }
fn cpu() -> f64 { let mut t = Ts { s: 0, n: 0 }; unsafe { clock_gettime(3, &mut t) }; t.s as f64 + t.n as f64 * 1e-9 }
fn main() {
    let requests = trace::read(std::path::Path::new(&std::env::args().nth(1).unwrap())).unwrap();
    for replicas in [8u32, 64] {
        let steps = trace::engines(&requests, replicas, 16384);
        let stored: usize = steps.iter().map(|s| s.stored.len()).sum();
        let removed: usize = steps.iter().map(|s| s.removed.len()).sum();
        let pre: Vec<(Vec<EngineHash>, Vec<(EngineHash, PrefixHash)>)> = steps.iter().map(|s| (s.removed.iter().map(|&h| EngineHash(h)).collect(), s.stored.iter().map(|b| (EngineHash(b.0), PrefixHash(b.1))).collect())).collect();
        let kre: Vec<(Vec<SequenceHash>, Vec<StoredBlock>)> = steps.iter().map(|s| (s.removed.iter().map(|&h| SequenceHash(h)).collect(), s.stored.iter().map(|b| StoredBlock { seq_hash: SequenceHash(b.0), content_hash: ContentHash(b.2) }).collect())).collect();
        let (mut bo, mut bk) = ((0f64, 0f64), (0f64, 0f64));
        for _ in 0..6 {
            let mut index = Index::new(Limits::default());
            let (mut a, mut b) = (0.0, 0.0);
            for (s, (r, st)) in steps.iter().zip(&pre) {
                let h = Holder { replica: ReplicaId(s.replica), rank: 0 };
                let t = cpu();
                index.remove(h, Tier::Device, r);
                let u = cpu();
                index.store(h, Tier::Device, s.parent.map(EngineHash), st);
                b += cpu() - u;
                a += u - t;
            }
            bo = (bo.0.max(stored as f64 / b / 1e6), bo.1.max(removed as f64 / a / 1e6));
            let ki = ChainIndex::with_max_workers(replicas as usize);
            let ids: Vec<u32> = (0..replicas).map(|r| ki.intern_worker(&r.to_string()).unwrap()).collect();
            let mut maps: Vec<ChainBlockMap> = (0..replicas).map(|_| ChainBlockMap::new()).collect();
            let (mut a, mut b) = (0.0, 0.0);
            for (s, (r, st)) in steps.iter().zip(&kre) {
                let m = &mut maps[s.replica as usize];
                let t = cpu();
                ki.apply_removed(ids[s.replica as usize], r, m);
                let u = cpu();
                ki.apply_stored(ids[s.replica as usize], st, s.parent.map(SequenceHash), m).unwrap();
                b += cpu() - u;
                a += u - t;
            }
            bk = (bk.0.max(stored as f64 / b / 1e6), bk.1.max(removed as f64 / a / 1e6));
            drop(index);
        }
        eprintln!("{replicas}: best CPU-time  ours stores {:.1} removals {:.1} | kv stores {:.1} removals {:.1}", bo.0, bo.1, bk.0, bk.1);
    }
}
