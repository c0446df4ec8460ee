//! Calls that change an executable graph: its pieces, if it has any, are dropped before. Whether the driver then does what it is asked does
//! not matter: one that refuses may have changed some of it.
#![allow(non_snake_case, reason = "the names are the driver's")]

use std::ffi::{c_uint, c_void};

use super::pieces;
use crate::hooks::{Hook, hooks};
use crate::sys::CUresult;

type Pointer = *mut c_void;

/// Makes hooks of functions whose first argument is an executable graph.
macro_rules! changing {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        mod real {
            use super::{Pointer, c_uint};
            crate::real::functions! { $(fn $name(exec: Pointer, $($argument: $type),*);)* }
        }

        $(
            unsafe extern "C" fn $name(exec: Pointer, $($argument: $type),*) -> CUresult {
                pieces::changed(exec.addr());
                // SAFETY: the arguments are the program's, passed on as they are.
                unsafe { real::$name(exec, $($argument),*) }
            }
        )*

        /// The hooks of this module.
        pub(crate) static HOOKS: &[Hook] = hooks![$($name),*];
    };
}

changing! {
    fn cuGraphExecUpdate(graph: Pointer, error_node: *mut Pointer, result: *mut c_uint);
    fn cuGraphExecUpdate_v2(graph: Pointer, result: Pointer);
    fn cuGraphExecNodeSetParams(node: Pointer, parameters: Pointer);
    fn cuGraphExecKernelNodeSetParams(node: Pointer, parameters: Pointer);
    fn cuGraphExecKernelNodeSetParams_v2(node: Pointer, parameters: Pointer);
    fn cuGraphExecMemcpyNodeSetParams(node: Pointer, parameters: Pointer, context: Pointer);
    fn cuGraphExecMemsetNodeSetParams(node: Pointer, parameters: Pointer, context: Pointer);
    fn cuGraphExecHostNodeSetParams(node: Pointer, parameters: Pointer);
    fn cuGraphExecChildGraphNodeSetParams(node: Pointer, graph: Pointer);
    fn cuGraphExecEventRecordNodeSetEvent(node: Pointer, event: Pointer);
    fn cuGraphExecEventWaitNodeSetEvent(node: Pointer, event: Pointer);
    fn cuGraphExecExternalSemaphoresSignalNodeSetParams(node: Pointer, parameters: Pointer);
    fn cuGraphExecExternalSemaphoresWaitNodeSetParams(node: Pointer, parameters: Pointer);
    fn cuGraphExecBatchMemOpNodeSetParams(node: Pointer, parameters: Pointer);
    fn cuGraphNodeSetEnabled(node: Pointer, is_enabled: c_uint);
}
