//! The one place that reads the environment: a library has no other arguments.

use std::ffi::OsString;

/// The driver folder, where it is not the one that the library was loaded from.
pub const DIRECTORY: &str = "PARTYWALL_SOFTGPU_DIR";

/// Faults to inject into this process, see [`crate::device::fault`].
pub const FAULT: &str = "PARTYWALL_SOFTGPU_FAULT";

/// As for the real driver: which devices this process sees.
pub const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// As for the real driver: where the MPS control daemon listens.
pub const MPS_PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// As for the real driver: the share of the SMs that an MPS client may use.
pub const MPS_PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// The value of a variable; `None` where it is not set.
#[expect(
    clippy::disallowed_methods,
    reason = "the environment is all that a library is told by who starts the program"
)]
pub fn get(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// As [`get`], as text; what is not UTF-8 comes with replacement characters.
pub fn text(name: &str) -> Option<String> {
    get(name).map(|value| value.to_string_lossy().into_owned())
}
