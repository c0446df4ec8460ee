//! The library preloaded into tenants: stands before the CUDA driver and enforces.
//!
//! # How a call gets here
//!
//! The library exports every function of `libcuda.so.1` and carries its soname, so that whoever links against the driver,
//! opens it by name or asks a handle of it gets a *forwarder*: a jump through a slot (`forwarders`). What the library has
//! something to do at is a *hook* (`hooks`), a Rust function with the prototype of the driver's; it calls the real
//! function through `real`. All other slots lead straight into the real library. The two other ways to a function of the
//! driver, `cuGetProcAddress` and `dlsym` on a handle, end at the same table (`resolve`, `dlsym`).
//!
//! # Rules
//!
//! This is other people's process. Nothing happens before the first use of CUDA (`process`). No lock is held across a
//! call into the driver or the loader. No panic leaves: a hook is `extern "C"`, from which Rust does not unwind but ends
//! the process with a message. On the way of a launch there is no lock, no allocation and no system call.
#![cfg_attr(
    test,
    allow(
        dead_code,
        reason = "the exports, through which programs come in, are left out of the tests' own program"
    )
)]

mod clock;
mod code;
mod copies;
mod coverage;
#[cfg(not(test))]
mod dlsym;
mod elf;
mod fault;
mod forwarders;
mod hooks;
mod launch;
mod loader;
mod memory;
mod node;
mod nvml;
mod process;
mod real;
mod resolve;
mod say;
mod slices;
mod sms;
mod sys;

/// Which version of the page and the frames this library speaks. It is also how another copy of the library is known for
/// what it is: no driver exports this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn partywall_shim_version() -> u32 {
    partywall_shim_api::VERSION
}
