//! The functions of the driver API, by subject.
//!
//! Each is written once in the macro `api!`, also where it has a second name for programs whose default stream is per thread.
//! What no module has is exported from [`missing`], which `build.rs` makes from the list of the whole API.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::context::Context;
use crate::engine::operation::Operation;
use crate::engine::stream::{Kind, Stream, node_kind};
use crate::error::Code;
use crate::process::{self, Process};

/// `fn cuName(arguments) { body }` is the export `cuName`; the body's value is `Result<(), Code>`. In
/// `fn cuName / cuName_ptsz (arguments) { body }` the second export means by the stream 0 that of the calling thread.
macro_rules! api {
    () => {};
    (fn $name:ident($($arg:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        api!(@export $name, $crate::api::answer, ($($arg: $type),*) $body);
        api!($($rest)*);
    };
    (fn $name:ident / $twin:ident ($($arg:ident: $type:ty),* $(,)?) $body:block $($rest:tt)*) => {
        api!(@export $name, $crate::api::answer, ($($arg: $type),*) $body);
        api!(@export $twin, $crate::api::answer_per_thread, ($($arg: $type),*) $body);
        api!($($rest)*);
    };
    (@export $name:ident, $answer:path, ($($arg:ident: $type:ty),*) $body:block) => {
        #[doc = concat!("`", stringify!($name), "`, as NVIDIA documents it.")]
        ///
        /// # Safety
        /// Pointers are what the documentation of the driver API demands of them.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the names are NVIDIA's")]
        pub(crate) unsafe extern "C" fn $name($($arg: $type),*) -> u32 {
            $answer(|| -> Result<(), $crate::error::Code> { $body })
        }
    };
}

mod arrays;
mod capture;
mod contexts;
mod copies;
mod devices;
mod events;
mod fills;
mod functions;
mod graph_nodes;
mod graphs;
mod green;
mod ipc;
mod launches;
mod memory;
mod memory_operations;
mod missing;
mod modules;
mod pointers;
mod pools;
mod start;
mod streams;
mod virtual_memory;

thread_local! {
    /// Whether the stream 0 of the call in progress is that of the thread.
    static PER_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Turns what came of a call into its code. A panic must not cross into C, and a library that lies about its state is of no
/// use: it ends the process.
pub(crate) fn answer(call: impl FnOnce() -> Result<(), Code>) -> u32 {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => std::process::abort(),
    }
}

/// As [`answer`], for a function whose stream 0 is that of the thread.
pub(crate) fn answer_per_thread(call: impl FnOnce() -> Result<(), Code>) -> u32 {
    PER_THREAD.set(true);
    let code = answer(call);
    PER_THREAD.set(false);
    code
}

/// The handles that stand for default streams.
pub(crate) const LEGACY: u64 = 1;
const THREAD: u64 = 2;

/// The stream of a handle; 0, 1 and 2 are default streams of the current context.
pub(crate) fn stream(process: &Process, handle: u64) -> Result<Arc<Stream>, Code> {
    process.check()?;
    match handle {
        0 if PER_THREAD.get() => thread_stream(process),
        THREAD => thread_stream(process),
        0 | LEGACY => Ok(Arc::clone(&process.current()?.legacy)),
        _ => process.objects.streams.get(handle),
    }
}

/// The calling thread's default stream in the current context.
fn thread_stream(process: &Process) -> Result<Arc<Stream>, Code> {
    thread_local! {
        static STREAMS: std::cell::RefCell<Vec<Arc<Stream>>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let context: Arc<Context> = process.current()?;
    STREAMS.with_borrow_mut(|streams| {
        if let Some(stream) = streams.iter().find(|stream| stream.place.context == context.handle) {
            return Ok(Arc::clone(stream));
        }
        let stream = Stream::new(&context.place, Kind::Blocking, 0);
        streams.push(Arc::clone(&stream));
        Ok(stream)
    })
}

/// Submits to the stream of a handle.
pub(crate) fn submit(process: &'static Process, handle: u64, operation: Operation) -> Result<(), Code> {
    let stream = stream(process, handle)?;
    stream.submit(process, node_kind(&operation), operation).map(|_| ())
}

/// Submits to the default stream and waits.
pub(crate) fn submit_and_wait(process: &'static Process, operation: Operation) -> Result<(), Code> {
    let stream = stream(process, 0)?;
    stream.refuse_capture()?;
    let number = stream.submit(process, node_kind(&operation), operation)?;
    stream.wait(process, number)
}

/// The state of a process whose contexts are alive.
pub(crate) fn ready() -> Result<&'static Process, Code> {
    let process = process::get()?;
    process.check()?;
    Ok(process)
}

/// An export: its name and where it is.
pub(crate) struct Export(pub(crate) &'static str, pub(crate) *const ());

// SAFETY: the pointer is that of a function, which lies in memory that nobody writes to.
unsafe impl Sync for Export {}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// Where the export of this name is.
pub(crate) fn export(name: &str) -> Option<*const ()> {
    let found = EXPORTS.binary_search_by(|Export(known, _)| (*known).cmp(name)).ok()?;
    Some(EXPORTS[found].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_list_is_exported() {
        let mut listed = 0;
        for function in partywall_shim_api::driver_api::cuda() {
            assert!(export(function.name).is_some_and(|address| !address.is_null()), "{}", function.name);
            listed += 1;
        }
        assert!(listed > 600, "{listed}");
        assert!(export("cuNothing").is_none());
    }

    #[test]
    fn what_the_sources_have_is_on_the_list() {
        let listed: Vec<&str> =
            partywall_shim_api::driver_api::cuda().map(|function| function.name).collect();
        for Export(name, _) in &EXPORTS {
            assert!(listed.contains(name), "{name} is no function of the driver API");
        }
    }
}
