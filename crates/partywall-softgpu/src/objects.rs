//! Handles: numbers that stand for what the process made. A handle that names nothing is an ordinary error.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::code::{Function, Module};
use crate::context::{Context, SmSet};
use crate::engine::event::Event;
use crate::engine::graph::{Graph, GraphExec, NodeName};
use crate::engine::stream::Stream;
use crate::error::Code;
use crate::memory::physical::Physical;
use crate::memory::pool::Pool;

/// A number that was not given before in this process. It looks like an address, is aligned like one, and is none.
pub(crate) fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x00c0_de00_0000_1000);
    NEXT.fetch_add(64, Ordering::Relaxed)
}

/// Objects of one kind by their handles.
pub(crate) struct Table<T> {
    entries: Mutex<BTreeMap<u64, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { entries: Mutex::default() }
    }
}

impl<T> Table<T> {
    /// Makes a handle for an object.
    pub(crate) fn add(&self, object: Arc<T>) -> u64 {
        let handle = number();
        self.put(handle, object);
        handle
    }

    /// As [`Table::add`], under a handle that the object knows already.
    pub(crate) fn put(&self, handle: u64, object: Arc<T>) {
        self.lock().insert(handle, object);
    }

    /// The object of a handle.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Code> {
        self.lock().get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
    }

    /// Takes the object of a handle out.
    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<T>, Code> {
        self.lock().remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// All objects.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<T>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An array of pixels: only its memory is simulated.
pub(crate) struct Array {
    pub(crate) address: u64,
    pub(crate) description: crate::abi::Array3DDescription,
}

/// All objects of the process.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) contexts: Table<Context>,
    pub(crate) streams: Table<Stream>,
    pub(crate) events: Table<Event>,
    pub(crate) modules: Table<Module>,
    pub(crate) functions: Table<Function>,
    pub(crate) graphs: Table<Graph>,
    pub(crate) nodes: Table<NodeName>,
    pub(crate) execs: Table<GraphExec>,
    pub(crate) descriptions: Table<SmSet>,
    pub(crate) physicals: Table<Physical>,
    pub(crate) pools: Table<Pool>,
    pub(crate) arrays: Table<Array>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_its_object_until_it_is_removed() {
        let table = Table::default();
        let (a, b) = (table.add(Arc::new(1)), table.add(Arc::new(2)));
        assert_ne!(a, b);
        assert_eq!((*table.get(a).unwrap(), *table.remove(b).unwrap()), (1, 2));
        assert_eq!(table.get(b).unwrap_err(), Code::INVALID_HANDLE);
        assert_eq!(table.get(0).unwrap_err(), Code::INVALID_HANDLE);
    }
}
