//! A stand-in for libcuda.so.1 and libnvidia-ml.so.1: one simulated GPU for all processes that load it.
//!
//! Programs load the shared object under the driver's names from a *driver folder* ([`folder`]), whose `gpu.json` says
//! what the device is. What the processes have in common (who holds how much memory, when the link and the SMs are free) is
//! in the file `device` of that folder, which every one of them maps ([`device`]).

mod abi;
mod api;
pub mod clock;
mod code;
mod context;
pub mod device;
mod engine;
pub mod environment;
mod error;
pub mod folder;
mod kernels;
mod memory;
mod nvml;
mod objects;
mod process;
mod slices;

#[cfg(test)]
mod tests;
