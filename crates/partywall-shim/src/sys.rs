//! Types of the driver API, as far as hooks need them.
#![allow(
    non_camel_case_types,
    reason = "the names are those of cuda.h, so that prototypes can be compared with it"
)]

use std::ffi::c_void;

/// What functions of the driver return. Any number may come from a newer driver, so it is no `enum`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct CUresult(pub(crate) u32);

impl CUresult {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NO_DEVICE: Self = Self(100);
    pub(crate) const INVALID_PTX: Self = Self(218);
    pub(crate) const NOT_FOUND: Self = Self(500);
    pub(crate) const NOT_SUPPORTED: Self = Self(801);
    pub(crate) const INVALID_RESOURCE_CONFIGURATION: Self = Self(915);
}

/// Makes types for handles: pointers to what only the driver knows.
macro_rules! handles {
    ($($(#[$about:meta])* $name:ident)*) => { $(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(transparent)]
        pub(crate) struct $name(pub(crate) *mut c_void);
    )* };
}

handles! {
    /// A kernel of a module, or a `CUkernel` of a library.
    CUfunction
    /// A stream; 0, 1 and 2 are default streams.
    CUstream
}
