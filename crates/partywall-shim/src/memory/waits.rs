//! Waits of the host: what pools have given back by then is entered, so that siblings can have it.
//!
//! Only after something was freed to a pool; else each costs one load.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::c_void;

use crate::hooks::{Hook, hooks};
use crate::launch::busy;
use crate::sms;
use crate::sys::CUresult;

use super::abi::{CUcontext, CUstream, real};
use super::{book, settle_all};

/// The hooks of this module.
pub(super) static HOOKS: &[Hook] = hooks![
    cuCtxSynchronize,
    cuCtxSynchronize_v2,
    cuStreamSynchronize,
    cuStreamSynchronize_ptsz,
    cuEventSynchronize
];

/// After a wait, `all`: for the whole context.
fn waited(all: bool, result: CUresult) -> CUresult {
    if result == CUresult::SUCCESS {
        busy::waited(all);
        if book().was_freed_to_pool() {
            settle_all();
        }
    }
    result
}

unsafe extern "C" fn cuCtxSynchronize() -> CUresult {
    // SAFETY: no arguments.
    waited(true, sms::synchronize(None, || unsafe { real::cuCtxSynchronize() }))
}

unsafe extern "C" fn cuCtxSynchronize_v2(context: CUcontext) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    waited(true, sms::synchronize(Some(context), || unsafe { real::cuCtxSynchronize_v2(context) }))
}

unsafe extern "C" fn cuStreamSynchronize(stream: CUstream) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    waited(false, unsafe { real::cuStreamSynchronize(stream) })
}

unsafe extern "C" fn cuStreamSynchronize_ptsz(stream: CUstream) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    waited(false, unsafe { real::cuStreamSynchronize_ptsz(stream) })
}

unsafe extern "C" fn cuEventSynchronize(event: *mut c_void) -> CUresult {
    // SAFETY: the argument is the program's, passed on as it is.
    waited(false, unsafe { real::cuEventSynchronize(event) })
}
