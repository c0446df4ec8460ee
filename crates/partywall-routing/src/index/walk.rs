//! A lookup.

use super::Index;
use crate::prefix::PrefixHash;

impl Index {
    /// Calls `reached` for each of the lanes with the number of blocks that it holds of the beginning, except where that is zero.
    #[inline]
    pub(super) fn walk(&self, prefixes: &[PrefixHash], lanes: &[u64], reached: impl FnMut(u32, u32)) {
        match lanes.len() {
            0 => {}
            1 => self.walk_words::<1>(prefixes, lanes, reached),
            2..=8 => self.walk_words::<8>(prefixes, lanes, reached),
            _ => self.walk_words::<64>(prefixes, lanes, reached),
        }
    }

    /// With room for `WORDS` words of lanes.
    #[inline]
    fn walk_words<const WORDS: usize>(
        &self,
        prefixes: &[PrefixHash],
        lanes: &[u64],
        mut reached: impl FnMut(u32, u32),
    ) {
        let words = lanes.len().min(WORDS);
        let mut alive = [0; WORDS];
        alive[..words].copy_from_slice(&lanes[..words]);
        let mut depth = 0;
        while let Some(rest) = prefixes.get(depth..).filter(|rest| !rest.is_empty()) {
            let Some(run) = self.runs.find(rest[0].0) else { break };
            let same = self.runs.common(run, 0, rest.len(), |at| rest[at].0);
            // Lanes that hold some of the run go on if the prompt leaves it before they end.
            let mut stay = [0; WORDS];
            for partial in self.runs.partials(run) {
                let (word, bit) = (partial.lane as usize / 64, 1 << (partial.lane % 64));
                if word >= words || alive[word] & bit == 0 {
                    continue;
                }
                if partial.cutoff as usize >= same {
                    stay[word] |= bit;
                } else {
                    alive[word] &= !bit;
                    if depth as u32 + partial.cutoff > 0 {
                        reached(partial.lane, depth as u32 + partial.cutoff);
                    }
                }
            }
            let mut left = 0;
            for word in 0..words {
                let stays = self.runs.full(run, word) | stay[word];
                if depth > 0 {
                    each(word, alive[word] & !stays, |lane| reached(lane, depth as u32));
                }
                alive[word] &= stays;
                left |= alive[word];
            }
            if left == 0 {
                return;
            }
            depth += same;
        }
        if depth > 0 {
            for (word, &alive) in alive[..words].iter().enumerate() {
                each(word, alive, |lane| reached(lane, depth as u32));
            }
        }
    }
}

/// Calls `with` for each of the lanes of a word.
#[inline]
fn each(word: usize, mut bits: u64, mut with: impl FnMut(u32)) {
    while bits != 0 {
        with(word as u32 * 64 + bits.trailing_zeros());
        bits &= bits - 1;
    }
}
