//! Contexts: the primary one, those that programs make, and green contexts, which are parts of the SMs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use crate::engine::stream::{Place, Stream};
use crate::error::Code;

/// SMs, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SmSet(pub(crate) [u64; SM_WORDS]);

/// Words of a set: no GPU has more than 256 SMs.
pub(crate) const SM_WORDS: usize = 4;

impl SmSet {
    /// No SM.
    pub(crate) const NONE: Self = Self([0; SM_WORDS]);

    /// The SMs `range`, in order.
    pub(crate) fn of(range: impl IntoIterator<Item = u32>) -> Self {
        let mut set = Self::NONE;
        for sm in range {
            if let Some(word) = set.0.get_mut(sm as usize / 64) {
                *word |= 1 << (sm % 64);
            }
        }
        set
    }

    pub(crate) fn count(self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    pub(crate) fn union(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// The SMs' numbers, smallest first.
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        (0..64 * SM_WORDS as u32).filter(move |sm| self.0[*sm as usize / 64] >> (sm % 64) & 1 == 1)
    }
}

/// What a context is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Primary,
    Own,
    Green,
}

/// A context.
pub(crate) struct Context {
    pub(crate) handle: u64,
    pub(crate) kind: Kind,
    pub(crate) place: Arc<Place>,
    /// The stream 0.
    pub(crate) legacy: Arc<Stream>,
    pub(crate) flags: AtomicU32,
    /// SMs that an execution affinity leaves to it.
    pub(crate) affinity: Option<u32>,
    pub(crate) limits: Mutex<BTreeMap<u32, usize>>,
}

impl Context {
    pub(crate) fn new(kind: Kind, sms: SmSet, flags: u32, affinity: Option<u32>) -> Arc<Self> {
        let handle = crate::objects::number();
        let place = Arc::new(Place::new(handle, kind == Kind::Green, sms));
        let legacy = Stream::legacy(&place);
        Arc::new(Self {
            handle,
            kind,
            place,
            legacy,
            flags: AtomicU32::new(flags),
            affinity,
            limits: Mutex::default(),
        })
    }

    /// Its SMs.
    pub(crate) fn sms(&self) -> SmSet {
        self.place.sms
    }
}

thread_local! {
    /// The contexts that are current on this thread, the present one last; 0 is none.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The handle of the context that is current on this thread; 0 for none.
pub(crate) fn current() -> u64 {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

/// Makes a context current, above the present one.
pub(crate) fn push(handle: u64) {
    STACK.with_borrow_mut(|stack| stack.push(handle));
}

/// Takes the current context away; the one below becomes current.
pub(crate) fn pop() -> Result<u64, Code> {
    STACK.with_borrow_mut(Vec::pop).ok_or(Code::INVALID_CONTEXT)
}

/// Puts a context in the place of the current one; 0 for none.
pub(crate) fn replace(handle: u64) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_sms() {
        let set = SmSet::of([0, 63, 64, 131]);
        assert_eq!((set.count(), set.iter().collect::<Vec<_>>()), (4, vec![0, 63, 64, 131]));
        assert_eq!(set.union(SmSet::of([1])).count(), 5);
        assert_eq!(SmSet::of([1000]).count(), 0);
    }

    #[test]
    fn contexts_stack() {
        assert_eq!((current(), pop()), (0, Err(Code::INVALID_CONTEXT)));
        push(1);
        push(2);
        replace(3);
        assert_eq!((current(), pop(), current()), (3, Ok(3), 1));
        replace(0);
        assert_eq!(current(), 0);
        replace(4);
        assert_eq!(pop(), Ok(4));
    }
}
