//! Modules, kernels and their arguments.

use partywall_core::units::Bytes;
use partywall_driver::{DriverError, Function, KernelArg, Priority, Stream};

use crate::fake::{Fake, load};

/// Launches on two blocks.
fn launch(function: &Function, stream: &Stream, args: &[KernelArg<'_>]) -> Result<(), DriverError> {
    // SAFETY: the stand-in runs nothing; it reads the three arguments that its kernels have.
    unsafe { function.launch(stream, (2, 1, 1), (32, 4, 1), 1024, args) }
}

#[test]
fn a_launch_hands_over_its_arguments() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let buffer = context.alloc(Bytes(64)).unwrap();
    fake.take();
    let function = context.module("text").unwrap().function("reader").unwrap();
    assert_eq!(
        fake.asked(),
        ["cuModuleLoadDataEx -> 600", "cuModuleGetFunction reader -> 700 in 600", "cuFuncLoad 700"]
    );
    let args = [KernelArg::U32(u32::MAX), KernelArg::BufferAt(&buffer, 16), KernelArg::F32(-2.5)];
    launch(&function, &stream, &args).unwrap();
    function.set_max_dynamic_shared(200_000).unwrap();
    assert_eq!(function.max_active_blocks(256, 0).unwrap(), 8);
    assert_eq!(
        fake.asked(),
        [
            "cuLaunchKernel 700 grid 2 1 1 block 32 4 1 shared 1024 stream 400 args 4294967295 0x10010 -2.5 extra 0",
            "cuFuncSetAttribute 700 8 = 200000",
            "cuOccupancyMaxActiveBlocksPerMultiprocessor 700",
        ]
    );
}

#[test]
fn arguments_that_do_not_fit_never_reach_the_driver() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let buffer = context.alloc(Bytes(64)).unwrap();
    let function = context.module("text").unwrap().function("reader").unwrap();
    fake.take();
    let (number, float) = (KernelArg::I32(-1), KernelArg::F32(0.5));
    for (args, message) in [
        (&[number, KernelArg::Buffer(&buffer)][..], "the kernel `reader` takes 3 arguments and was given 2"),
        (
            &[number, number, float],
            "argument 1 (counted from 0) of the kernel `reader` has 8 bytes, and I32(-1) has 4",
        ),
        (
            &[number, KernelArg::BufferAt(&buffer, 65), float],
            "argument that points into a buffer: 0 bytes from byte 65 on do not fit into 64 bytes",
        ),
        (&[number; 33], "the launch of `reader` has 33 arguments; at most 32 are possible"),
    ] {
        assert_eq!(launch(&function, &stream, args).unwrap_err().to_string(), message);
    }
    assert_eq!(fake.take(), [""; 0]);
}

#[test]
fn without_the_drivers_help_arguments_are_the_callers_word() {
    let fake = load(&["WITHOUT_GREEN"]).unwrap();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let function = context.module("text").unwrap().function("reader").unwrap();
    launch(&function, &stream, &[KernelArg::U32(1), KernelArg::U64(2), KernelArg::F32(3.0)]).unwrap();
    assert!(fake.asked().last().unwrap().contains("args 1 0x2 3 "));
}

#[test]
fn code_is_unloaded_when_its_kernels_are_done() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let pinned = context.pinned(Bytes(64)).unwrap();
    let function = context.module("text").unwrap().function("reader").unwrap();
    launch(&function, &stream, &[KernelArg::U32(1), KernelArg::Pinned(&pinned), KernelArg::F32(3.0)])
        .unwrap();
    fake.take();
    drop(function);
    drop(pinned);
    assert_eq!(
        fake.asked(),
        ["cuStreamSynchronize 400", "cuModuleUnload 600", "cuStreamSynchronize 400", "cuMemFreeHost"]
    );
}

#[test]
fn errors_say_what_was_loaded_or_launched() {
    let fake = Fake::new();
    let context = fake.context();
    let stream = context.stream(Priority::Normal).unwrap();
    let function = context.module("text").unwrap().function("reader").unwrap();

    fake.fail("cuLaunchKernel", 700);
    let args = [KernelArg::U32(1), KernelArg::U64(2), KernelArg::F32(3.0)];
    assert_eq!(
        launch(&function, &stream, &args).unwrap_err().to_string(),
        "launching the kernel `reader` with grid (2, 1, 1), block (32, 4, 1) and 1024 bytes of shared memory: \
         cuLaunchKernel returned CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access"
    );
    fake.fail("cuModuleLoadDataEx", 218);
    let error = context.module("nonsense").unwrap_err().to_string();
    let expect =
        "loading a PTX module, of which the compiler said: line 1: `nonsense` is not PTX: cuModuleLoadDataEx";
    assert!(error.starts_with(expect), "{error}");
    assert!(matches!(context.module("a\0b"), Err(DriverError::Invalid(_))));
    fake.fail("cuModuleGetFunction", 500);
    let error = context.module("text").unwrap().function("writer").unwrap_err();
    assert!(error.to_string().starts_with("looking for the kernel `writer`: "), "{error}");
}
