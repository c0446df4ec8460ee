//! What one lane holds of one run, where that is not all of it.

/// The blocks `0..cutoff` of a run and, behind a gap, perhaps more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// How many blocks from the beginning.
    pub(super) cutoff: u32,
    /// Which blocks behind the one at `cutoff`, as bits by their place in the run. Empty when there are none.
    pub(super) islands: Vec<u64>,
}

impl Held {
    /// The blocks `from..to` and nothing else.
    pub(super) fn range(from: u32, to: u32) -> Self {
        let mut held = Self::default();
        held.add(from, to);
        held
    }

    /// Nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.cutoff == 0 && self.islands.is_empty()
    }

    /// Whether any of the blocks `from..to` is among them.
    pub(super) fn touches(&self, from: u32, to: u32) -> bool {
        from < self.cutoff || (!self.islands.is_empty() && (from..to).any(|at| bit(&self.islands, at)))
    }

    /// One behind the last block.
    pub(super) fn end(&self) -> u32 {
        let top = self.islands.iter().rposition(|&word| word != 0);
        top.map_or(self.cutoff, |word| word as u32 * 64 + 64 - self.islands[word].leading_zeros())
    }

    /// The blocks `from..to` as well.
    pub(super) fn add(&mut self, from: u32, to: u32) {
        if from <= self.cutoff {
            self.cutoff = self.cutoff.max(to);
        } else {
            for at in from..to {
                self.set(at);
            }
        }
        self.settle();
    }

    /// The blocks `from..to` no longer. What is behind them is an island now.
    pub(super) fn remove(&mut self, from: u32, to: u32) {
        for behind in to..self.cutoff {
            self.set(behind);
        }
        if !self.islands.is_empty() {
            for at in from..to {
                if let Some(word) = self.islands.get_mut(at as usize / 64) {
                    *word &= !(1 << (at % 64));
                }
            }
        }
        self.cutoff = self.cutoff.min(from);
        self.settle();
    }

    /// Keeps the blocks before `at` and returns those from there on, as a run of their own has them.
    pub(super) fn split(&mut self, at: u32) -> Self {
        let mut behind = Self { cutoff: self.cutoff.saturating_sub(at), islands: Vec::new() };
        for place in at..self.end() {
            if bit(&self.islands, place) {
                behind.set(place - at);
                self.islands[place as usize / 64] &= !(1 << (place % 64));
            }
        }
        self.cutoff = self.cutoff.min(at);
        self.settle();
        behind.settle();
        behind
    }

    fn set(&mut self, at: u32) {
        let word = at as usize / 64;
        if word >= self.islands.len() {
            self.islands.resize(word + 1, 0);
        }
        self.islands[word] |= 1 << (at % 64);
    }

    /// An island that touches the beginning is part of it, and bits without a block are nothing.
    fn settle(&mut self) {
        if self.islands.is_empty() {
            return;
        }
        while bit(&self.islands, self.cutoff) {
            self.cutoff += 1;
        }
        for at in 0..(self.cutoff as usize).div_ceil(64).min(self.islands.len()) {
            let below = self.cutoff as usize - at * 64;
            self.islands[at] &= if below >= 64 { 0 } else { !0 << below };
        }
        if self.islands.iter().all(|&word| word == 0) {
            self.islands = Vec::new();
        }
    }
}

fn bit(words: &[u64], at: u32) -> bool {
    words.get(at as usize / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
}
