//! How blocks find their places, and lose them.

use super::{EngineHash, Index, Tier, many};
use crate::prefix::PrefixHash;
use crate::table::{Put, Taken};

/// Names that are noted together. Where one is there already the rest of them is looked at again, so they are not all that come.
const TOGETHER: usize = 128;

impl Index {
    /// Stores blocks behind a place, or at the beginning. How many found room.
    pub(super) fn place(
        &mut self,
        cache: u32,
        tier: Tier,
        mut after: Option<(u32, u32)>,
        blocks: &[(EngineHash, PrefixHash)],
    ) -> usize {
        let (lanes, count) = self.caches[cache as usize].lanes_of(tier);
        let lanes = &lanes[..count];
        let mut done = 0;
        while done < blocks.len() {
            let rest = &blocks[done..];
            let hash = |at: usize| rest[at].1.0;
            // In the run where we are: the blocks are known.
            if let Some((run, at)) = after
                && at < self.runs.run(run).len
                && self.runs.arena.hash(self.runs.run(run).start + at) == hash(0)
            {
                let same = self.runs.common(run, at, rest.len(), hash);
                let held = self.hold(cache, tier, lanes, run, at, &rest[..same]);
                done += held as usize;
                after = Some((run, at + held));
                continue;
            }
            // At the beginning of another.
            if let Some(run) = self.runs.find(hash(0)) {
                if let Some((run, at)) = after {
                    self.runs.split(run, at);
                }
                after = Some((run, 0));
                continue;
            }
            // Nowhere, and so are those that follow up to one that a run begins with.
            let names = &self.caches[cache as usize].names[tier as usize];
            names.prefetch(rest[0].0);
            let is_new = |at: &usize| {
                names.prefetch(rest[*at].0);
                self.runs.find(hash(*at)).is_none()
            };
            let new = 1 + (1..rest.len()).take_while(is_new).count();
            let mut grown = 0;
            if let Some((run, at)) = after {
                if at == self.runs.run(run).len && self.runs.only(run, lanes) {
                    grown = self.runs.append(run, &rest[..new]);
                } else {
                    self.runs.split(run, at);
                }
                if grown > 0 {
                    self.name(cache, tier, lanes, run, at, &rest[..grown as usize]);
                    after = Some((run, at + grown));
                }
            }
            if grown == 0 {
                let Some((run, len)) = self.runs.create(&rest[..new]) else { break };
                grown = self.hold(cache, tier, lanes, run, 0, &rest[..len as usize]);
                after = Some((run, grown));
            }
            done += grown as usize;
        }
        done
    }

    /// The cache holds blocks of a run, from `at` on. How many: a name that moves away from a later block of the run may end it before.
    fn hold(
        &mut self,
        cache: u32,
        tier: Tier,
        lanes: &[u32],
        run: u32,
        at: u32,
        blocks: &[(EngineHash, PrefixHash)],
    ) -> u32 {
        let end = at + blocks.len() as u32;
        if lanes.iter().any(|&lane| self.runs.touches(run, lane, at, end)) {
            for (place, &(hash, _)) in (at..end).zip(blocks) {
                if place >= self.runs.run(run).len {
                    return place - at;
                }
                self.put_one(cache, tier, hash, run, place);
            }
            return end - at;
        }
        for &lane in lanes {
            self.runs.hold(run, lane, at, end);
        }
        self.name(cache, tier, lanes, run, at, blocks);
        end - at
    }

    /// Notes the names of blocks that the cache's lanes hold as of now, and did not before.
    fn name(
        &mut self,
        cache: u32,
        tier: Tier,
        lanes: &[u32],
        run: u32,
        at: u32,
        blocks: &[(EngineHash, PrefixHash)],
    ) {
        let first = self.runs.run(run).start + at;
        let mut done = 0;
        while done < blocks.len() {
            let end = blocks.len().min(done + TOGETHER);
            let names = &mut self.caches[cache as usize].names[tier as usize];
            done += names.put_new(&blocks[done..end], first + done as u32, &self.runs.arena);
            if done == end {
                continue;
            }
            let (name, _) = blocks[done];
            let slot = first + done as u32;
            match names.put(name, slot, &self.runs.arena) {
                Put::New => {}
                Put::Copy => self.counts.copies += 1,
                Put::Moved { from } => {
                    self.counts.moved += 1;
                    self.release(lanes, from, from + 1);
                }
                Put::Refused => {
                    self.counts.refused += 1;
                    self.release(lanes, slot, slot + 1);
                }
            }
            done += 1;
        }
    }

    /// The cache holds one block, which it may hold already.
    pub(super) fn put_one(&mut self, cache: u32, tier: Tier, hash: EngineHash, run: u32, at: u32) {
        let (lanes, count) = self.caches[cache as usize].lanes_of(tier);
        let lanes = &lanes[..count];
        let slot = self.runs.run(run).start + at;
        let put = self.caches[cache as usize].names[tier as usize].put(hash, slot, &self.runs.arena);
        match put {
            Put::Copy => {
                self.counts.copies += 1;
                return;
            }
            Put::Refused => {
                self.counts.refused += 1;
                return;
            }
            Put::New | Put::Moved { .. } => {}
        }
        for &lane in lanes {
            if self.runs.has(run, lane, at) {
                self.more.put(many(lane, slot), slot);
            } else {
                self.runs.hold(run, lane, at, at + 1);
            }
        }
        if let Put::Moved { from } = put {
            self.counts.moved += 1;
            self.release(lanes, from, from + 1);
        }
    }

    /// One of the names has gone under which the lanes held each of the blocks at the slots `from..to`.
    pub(super) fn release(&mut self, lanes: &[u32], from: u32, to: u32) {
        let mut to = to;
        while from < to {
            // From the end, run by run, and block by block where some are held under several names.
            let Some((run, last)) = self.runs.place(to - 1) else { return };
            let first = if self.more.len() > 0 { to - 1 } else { from.max(to - 1 - last) };
            let (at, end) = (last + 1 - (to - first), last + 1);
            for &lane in lanes {
                if self.more.len() == 0 || self.more.take(many(lane, first)) == Taken::Unknown {
                    self.runs.release(run, lane, at, end);
                }
            }
            to = first;
        }
    }
}
