//! What streams do, one after the other.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::{HostFunction, StreamCallback};
use crate::code::Function;
use crate::context::SmSet;
use crate::engine::event::{Event, Mark, Recording};
use crate::engine::graph::Node;
use crate::memory::pool::Pool;

/// An entry of a stream's queue, or of a graph.
#[derive(Clone)]
pub(crate) enum Operation {
    Nothing,
    Launch(Arc<Launch>),
    Copy(Arc<Copy>),
    Fill(Fill),
    Record(Arc<Recording>),
    /// A graph records an event each time it runs.
    RecordAgain(Arc<Event>),
    Wait(Mark),
    /// A graph waits for what the event is when it runs.
    WaitAgain(Arc<Event>),
    WaitValue(WaitValue),
    WriteValue {
        address: u64,
        value: u64,
        wide: bool,
    },
    Host {
        function: HostFunction,
        data: Data,
    },
    Callback {
        function: StreamCallback,
        stream: u64,
        data: Data,
    },
    Graph(Arc<Vec<Node>>),
    GivePool {
        pool: Arc<Pool>,
        address: u64,
    },
}

/// A pointer of the program's, handed back to it.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Data(pub(crate) *mut c_void);

// SAFETY: the pointer is never followed here; the program said that its function may be called with it on another thread.
unsafe impl Send for Data {}
// SAFETY: as for `Send`.
unsafe impl Sync for Data {}

/// A launch of a kernel.
pub(crate) struct Launch {
    pub(crate) function: Arc<Function>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    /// The parameters as the kernel gets them.
    pub(crate) arguments: Vec<u8>,
    pub(crate) sms: SmSet,
}

impl Launch {
    pub(crate) fn blocks(&self) -> u64 {
        self.grid.iter().map(|size| u64::from(*size)).product()
    }
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToDevice,
    ToHost,
    OnDevice,
    OnHost,
}

/// A copy of `depth` planes of `height` rows of `width` bytes.
#[derive(Clone)]
pub(crate) struct Copy {
    pub(crate) way: Way,
    pub(crate) source: Place,
    pub(crate) destination: Place,
    pub(crate) width: u64,
    pub(crate) height: u64,
    pub(crate) depth: u64,
    /// The source, where the program may change it before the copy is made.
    pub(crate) staged: Option<Arc<Vec<u8>>>,
}

/// Where a copy begins, and how far apart rows and planes are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) plane: u64,
}

impl Place {
    /// Bytes from the first to the last that is touched.
    pub(crate) fn reach(&self, width: u64, height: u64, depth: u64) -> u64 {
        if width == 0 || height == 0 || depth == 0 {
            return 0;
        }
        ((depth - 1).saturating_mul(self.plane))
            .saturating_add((height - 1).saturating_mul(self.pitch))
            .saturating_add(width)
    }
}

impl Copy {
    pub(crate) fn bytes(&self) -> u64 {
        self.width.saturating_mul(self.height).saturating_mul(self.depth)
    }
}

/// Fills `height` rows of `width` elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fill {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub(crate) element: u32,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

/// Waits until a word in memory is as told.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitValue {
    pub(crate) address: u64,
    pub(crate) value: u64,
    pub(crate) wide: bool,
    pub(crate) condition: Condition,
}

/// What a word is compared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// The difference, as a signed number, is not negative.
    AtLeast,
    Equal,
    /// A bit is set in both.
    And,
    /// A bit is clear in both.
    Nor,
}

impl Condition {
    /// From the low bits of `CUstreamWaitValue_flags`.
    pub(crate) fn of(flags: u32) -> Option<Self> {
        // The flush bit, 1 << 30, has no meaning here.
        Some(match flags & !(1 << 30) {
            0 => Self::AtLeast,
            1 => Self::Equal,
            2 => Self::And,
            3 => Self::Nor,
            _ => return None,
        })
    }

    pub(crate) fn holds(self, word: u64, value: u64, wide: bool) -> bool {
        match self {
            Self::AtLeast if wide => (word.wrapping_sub(value) as i64) >= 0,
            Self::AtLeast => ((word as u32).wrapping_sub(value as u32) as i32) >= 0,
            Self::Equal => word == value,
            Self::And => word & value != 0,
            Self::Nor if wide => !(word | value) != 0,
            Self::Nor => !(word as u32 | value as u32) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_compared_as_documented() {
        let cases = [
            (Condition::AtLeast, 5, 5, true),
            (Condition::AtLeast, 4, 5, false),
            // Around the end of 32 bits: 1 comes after 0xffff_ffff.
            (Condition::AtLeast, 1, 0xffff_ffff, true),
            (Condition::Equal, 5, 5, true),
            (Condition::Equal, 6, 5, false),
            (Condition::And, 6, 2, true),
            (Condition::And, 4, 2, false),
            (Condition::Nor, 0xffff_fffe, 1, false),
            (Condition::Nor, 0xffff_fff0, 1, true),
        ];
        for (condition, word, value, expect) in cases {
            assert_eq!(condition.holds(word, value, false), expect, "{condition:?} {word} {value}");
        }
        assert!(!Condition::AtLeast.holds(1, 0xffff_ffff, true));
        assert_eq!(Condition::of(1 << 30 | 1), Some(Condition::Equal));
        assert_eq!(Condition::of(4), None);
    }

    #[test]
    fn reach_is_from_the_first_to_the_last_byte() {
        let place = Place { address: 0, pitch: 100, plane: 1000 };
        assert_eq!(place.reach(10, 3, 2), 1000 + 200 + 10);
        assert_eq!(place.reach(0, 3, 2), 0);
    }
}
