//! What is not simulated: it exists, returns `CUDA_ERROR_NOT_SUPPORTED`, and says so once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Code;

macro_rules! missing {
    ($name:ident) => {
        #[doc = concat!("`", stringify!($name), "`: not simulated.")]
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the names are NVIDIA's")]
        pub(crate) extern "C" fn $name() -> u32 {
            static SAID: AtomicBool = AtomicBool::new(false);
            not_simulated(stringify!($name), &SAID)
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/missing.rs"));

#[cold]
fn not_simulated(name: &str, said: &AtomicBool) -> u32 {
    let code = Code::NOT_SUPPORTED;
    if !said.swap(true, Ordering::Relaxed) {
        crate::process::say(&format_args!("{name} is not simulated"), code);
    }
    code.0
}
