//! What is not simulated exists as well, and says so when it is called.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Status;

/// A line on standard error, where a library has to say what its caller cannot be told. Nobody may be there to read it.
pub(super) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "softgpu: {text}");
}

/// A function that answers "not supported", as the driver does for what a part does not have. The arguments that callers
/// pass stay where the calling convention has them.
macro_rules! missing {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> Status {
            static SAID: AtomicBool = AtomicBool::new(false);
            if !SAID.swap(true, Ordering::Relaxed) {
                say(concat!(stringify!($name), " is not simulated"));
            }
            Status::NOT_SUPPORTED
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/nvml_missing.rs"));
