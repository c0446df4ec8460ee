//! Everything NVIDIA, loaded at run time: the CUDA driver API, NVML, MPS, Green Contexts, MIG, and the probe kernels.

pub mod availability;
pub mod checks;
mod clock;
pub mod context;
pub mod device;
pub mod error;
pub mod event;
pub mod graph;
pub mod green;
mod in_flight;
pub mod kernels;
pub mod library;
pub mod memory;
pub mod mig;
pub mod module;
pub mod mps;
pub mod nvml;
pub mod sampler;
pub mod soft;
pub mod stream;
pub mod survey;
mod sys;
pub mod vmm;

pub use crate::context::Context;
pub use crate::device::Device;
pub use crate::error::DriverError;
pub use crate::event::Event;
pub use crate::graph::{Graph, GraphExec};
pub use crate::green::{GreenContext, GroupSet, SmSplit};
pub use crate::library::{Cuda, CudaVersion};
pub use crate::memory::{DeviceBuffer, PinnedBuffer};
pub use crate::module::{Function, KernelArg, Module};
pub use crate::stream::{Priority, Stream};

#[cfg(test)]
mod tests {
    use super::{
        Context, Cuda, Device, DeviceBuffer, Event, Function, Graph, GraphExec, GreenContext, Module,
        PinnedBuffer, SmSplit, Stream,
    };

    /// Does not compile for a type that is `Sync`: then both implementations would do.
    trait OneThreadAtATime<Which> {
        fn holds() {}
    }
    impl<T> OneThreadAtATime<()> for T {}
    impl<T: Sync> OneThreadAtATime<u8> for T {}

    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}

    #[test]
    fn what_may_be_shared_and_what_is_used_by_one_thread_at_a_time() {
        shared::<(Cuda, Device, Context, SmSplit, DeviceBuffer, Module, Function)>();
        sent::<(Stream, Event, Graph, GraphExec, GreenContext, PinnedBuffer)>();
        <Stream as OneThreadAtATime<_>>::holds();
        <Event as OneThreadAtATime<_>>::holds();
        <Graph as OneThreadAtATime<_>>::holds();
        <GraphExec as OneThreadAtATime<_>>::holds();
        <GreenContext as OneThreadAtATime<_>>::holds();
        <PinnedBuffer as OneThreadAtATime<_>>::holds();
    }
}
