//! What can go wrong between this program and the CUDA driver.

use crate::library::CudaVersion;

/// An error of the CUDA half of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// There is no CUDA driver on this machine, or it cannot be loaded.
    #[error(
        "no CUDA driver: {library} cannot be loaded ({message}); an NVIDIA driver for CUDA {} or later is needed",
        CudaVersion::OLDEST
    )]
    LibraryMissing {
        /// The library that was looked for.
        library: String,
        /// What the dynamic loader said.
        message: String,
    },
    /// The driver is older than what this crate is written for.
    #[error(
        "the NVIDIA driver supports CUDA {found} at most; {needed} or later is needed: update the driver"
    )]
    TooOld {
        /// The newest CUDA that the driver supports.
        found: CudaVersion,
        /// The oldest that would do.
        needed: CudaVersion,
    },
    /// The driver does not have a function. Where it is one that not every driver has, only what needs it fails.
    #[error(
        "the NVIDIA driver (CUDA {found}) does not have {symbol}; complete drivers have it from CUDA {since} on"
    )]
    SymbolMissing {
        /// The name as exported.
        symbol: &'static str,
        /// The newest CUDA that the driver supports.
        found: CudaVersion,
        /// The CUDA version that brought the function.
        since: CudaVersion,
    },
    /// There is no device of this number.
    #[error(
        "there is no CUDA device {ordinal}: {count} visible, counted from 0 (CUDA_VISIBLE_DEVICES decides)"
    )]
    NoSuchDevice {
        /// What was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// A range does not lie inside its memory. Nothing was given to the driver.
    #[error("{what}: {length} bytes from byte {offset} on do not fit into {size} bytes")]
    OutOfBounds {
        /// Which of the ranges of which call.
        what: &'static str,
        /// Where the range begins, bytes.
        offset: u64,
        /// How long it is, bytes.
        length: u64,
        /// The size of the memory, bytes.
        size: u64,
    },
    /// An argument that cannot be right. Nothing was given to the driver.
    #[error("{0}")]
    Invalid(String),
    /// The driver returned an error.
    #[error("{what}: {call} returned {name} ({code}): {message}")]
    Cuda {
        /// The function, as exported.
        call: &'static str,
        /// What it returned.
        code: u32,
        /// The driver's name for it: `CUDA_ERROR_OUT_OF_MEMORY`.
        name: String,
        /// The driver's explanation.
        message: String,
        /// What was being done.
        what: String,
    },
}

impl DriverError {
    /// Whether this process cannot use the GPU any more and has to be started again: a fault of a kernel, a lost device,
    /// an end of the MPS server. The driver then answers every further call with the same error.
    ///
    /// The codes are those of which cuda.h says that the process or the context is lost. `CUDA_ERROR_UNKNOWN` is among
    /// them: drivers answer with it after faults that have no code of their own.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Self::Cuda { code, .. } if FATAL.contains(code))
    }

    /// The driver's code, where the driver was asked.
    pub fn code(&self) -> Option<u32> {
        match self {
            Self::Cuda { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether device (or pinned) memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        self.code() == Some(OUT_OF_MEMORY)
    }

    pub(crate) fn symbol_missing(symbol: &'static str, found: CudaVersion, since: CudaVersion) -> Self {
        Self::SymbolMissing { symbol, found, since }
    }
}

const OUT_OF_MEMORY: u32 = 2;

/// After these, nothing works in the process: see [`DriverError::is_fatal`].
const FATAL: &[u32] = &[
    4,   // CUDA_ERROR_DEINITIALIZED: the driver is shutting down
    214, // CUDA_ERROR_ECC_UNCORRECTABLE
    220, // CUDA_ERROR_NVLINK_UNCORRECTABLE
    226, // CUDA_ERROR_CONTAINED
    700, // CUDA_ERROR_ILLEGAL_ADDRESS
    702, // CUDA_ERROR_LAUNCH_TIMEOUT
    709, // CUDA_ERROR_CONTEXT_IS_DESTROYED
    710, // CUDA_ERROR_ASSERT
    714, // CUDA_ERROR_HARDWARE_STACK_ERROR
    715, // CUDA_ERROR_ILLEGAL_INSTRUCTION
    716, // CUDA_ERROR_MISALIGNED_ADDRESS
    717, // CUDA_ERROR_INVALID_ADDRESS_SPACE
    718, // CUDA_ERROR_INVALID_PC
    719, // CUDA_ERROR_LAUNCH_FAILED
    721, // CUDA_ERROR_TENSOR_MEMORY_LEAK
    806, // CUDA_ERROR_MPS_RPC_FAILURE
    810, // CUDA_ERROR_MPS_CLIENT_TERMINATED
    911, // CUDA_ERROR_EXTERNAL_DEVICE
    999, // CUDA_ERROR_UNKNOWN
];

/// Refuses a range that does not lie inside `size` bytes, without overflow.
///
/// # Errors
/// [`DriverError::OutOfBounds`].
pub(crate) fn check_range(
    what: &'static str,
    offset: u64,
    length: u64,
    size: u64,
) -> Result<(), DriverError> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(DriverError::OutOfBounds { what, offset, length, size }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cuda(code: u32) -> DriverError {
        let text = String::new;
        DriverError::Cuda { call: "cuStreamSynchronize", code, name: text(), message: text(), what: text() }
    }

    #[test]
    fn faults_are_fatal_and_refusals_are_not() {
        for code in [700, 719, 716, 214, 709, 806, 810, 999] {
            assert!(cuda(code).is_fatal(), "{code}");
        }
        // Out of memory, invalid value, not ready, MPS server recovering, no device: another attempt may succeed.
        for code in [1, 2, 600, 807, 100, 201, 400, 701, 801, 900, 914, 915] {
            assert!(!cuda(code).is_fatal(), "{code}");
        }
        assert!(!DriverError::NoSuchDevice { ordinal: 1, count: 1 }.is_fatal());
        assert!(cuda(2).is_out_of_memory());
    }

    #[test]
    fn messages_say_what_where_and_what_would_be_right() {
        let error = DriverError::Cuda {
            call: "cuMemAlloc_v2",
            code: 2,
            name: "CUDA_ERROR_OUT_OF_MEMORY".into(),
            message: "out of memory".into(),
            what: "allocating 4GiB".into(),
        };
        let expect = "allocating 4GiB: cuMemAlloc_v2 returned CUDA_ERROR_OUT_OF_MEMORY (2): out of memory";
        assert_eq!(error.to_string(), expect);
        let error = DriverError::symbol_missing(
            "cuGreenCtxStreamCreate",
            CudaVersion::new(12, 4),
            CudaVersion::new(12, 5),
        );
        let expect = "the NVIDIA driver (CUDA 12.4) does not have cuGreenCtxStreamCreate; \
                      complete drivers have it from CUDA 12.5 on";
        assert_eq!(error.to_string(), expect);
    }

    proptest! {
        #[test]
        fn ranges_are_inside_or_refused(offset: u64, length: u64, size: u64) {
            let inside = u128::from(offset) + u128::from(length) <= u128::from(size);
            prop_assert_eq!(check_range("test", offset, length, size).is_ok(), inside);
        }
    }
}
