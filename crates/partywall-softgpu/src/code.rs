//! Loaded code: modules and their kernels.

use std::ffi::CString;
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::Code;
use ptx::Kernel;

mod ptx;

/// Shared memory of a block without opting in, bytes: the same on all devices since Maxwell.
pub(crate) const SHARED_DEFAULT: u32 = 48 << 10;

/// A module: what was loaded at once.
pub(crate) struct Module {
    pub(crate) handle: u64,
    pub(crate) functions: Vec<Arc<Function>>,
    /// Variables: name, size, and the address once somebody asked for it.
    pub(crate) variables: Mutex<Vec<(String, u64, Option<u64>)>>,
}

/// A kernel of a module.
pub(crate) struct Function {
    pub(crate) handle: u64,
    pub(crate) module: Weak<Module>,
    pub(crate) kernel: Kernel,
    pub(crate) name: CString,
    /// Dynamic shared memory that a block may have, bytes.
    pub(crate) dynamic_max: AtomicI32,
    /// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`.
    pub(crate) carveout: AtomicI32,
}

impl Function {
    /// Most threads that a block may have.
    pub(crate) fn threads_max(&self) -> u32 {
        self.kernel.threads_max.unwrap_or(1024).min(1024)
    }

    /// Bytes that all parameters take together.
    pub(crate) fn parameter_bytes(&self) -> usize {
        self.kernel.parameters.last().map_or(0, |(offset, size)| offset + size)
    }

    /// Whether a block may have so much dynamic shared memory.
    pub(crate) fn allows_dynamic(&self, bytes: u32) -> bool {
        i64::from(bytes) <= i64::from(self.dynamic_max.load(Relaxed))
    }
}

/// Why an image cannot be loaded: what to return, and what to write into the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) Code, pub(crate) String);

/// A module made from an image in memory: PTX text. Compiled code and fatbins are refused.
pub(crate) fn load(image: &[u8]) -> Result<Arc<Module>, Refused> {
    const CUBIN: &[u8] = b"\x7fELF";
    const FATBIN: &[u8] = &0xba55_ed50_u32.to_le_bytes();
    const FATBIN_WRAPPER: &[u8] = &0x4662_43b1_u32.to_le_bytes();
    if [CUBIN, FATBIN, FATBIN_WRAPPER].iter().any(|magic| image.starts_with(magic)) {
        let why = "softgpu: compiled code cannot be run on a simulated GPU; load PTX text".to_owned();
        return Err(Refused(Code::NO_BINARY_FOR_GPU, why));
    }
    let text = String::from_utf8_lossy(image);
    let parsed = ptx::parse(&text).map_err(|why| Refused(Code::INVALID_PTX, format!("softgpu: {why}")))?;
    let handle = crate::objects::number();
    Ok(Arc::new_cyclic(|module| Module {
        handle,
        functions: parsed
            .kernels
            .into_iter()
            .map(|kernel| Arc::new(function(kernel, module.clone())))
            .collect(),
        variables: Mutex::new(parsed.variables.into_iter().map(|one| (one.name, one.bytes, None)).collect()),
    }))
}

fn function(kernel: Kernel, module: Weak<Module>) -> Function {
    Function {
        handle: crate::objects::number(),
        module,
        name: CString::new(kernel.name.as_str()).unwrap_or_default(),
        dynamic_max: AtomicI32::new(SHARED_DEFAULT.saturating_sub(kernel.shared) as i32),
        carveout: AtomicI32::new(-1),
        kernel,
    }
}

impl Module {
    /// The kernel of this name.
    pub(crate) fn function(&self, name: &str) -> Result<&Arc<Function>, Code> {
        self.functions.iter().find(|function| function.kernel.name == name).ok_or(Code::NOT_FOUND)
    }

    /// Address and size of a variable, whose memory `allocate` takes at the first time.
    pub(crate) fn variable(
        &self,
        name: &str,
        allocate: impl FnOnce(u64) -> Result<u64, Code>,
    ) -> Result<(u64, u64), Code> {
        let mut variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, bytes, address) =
            variables.iter_mut().find(|(known, ..)| known == name).ok_or(Code::NOT_FOUND)?;
        let at = match *address {
            Some(at) => at,
            None => *address.insert(allocate((*bytes).max(1))?),
        };
        Ok((at, *bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compiled_code_is_refused_with_a_clear_code() {
        let code = |image: &[u8]| load(image).map(|_| ()).unwrap_err().0;
        assert_eq!(code(b"\x7fELF\x02"), Code::NO_BINARY_FOR_GPU);
        assert_eq!(code(&0xba55_ed50_u32.to_le_bytes()), Code::NO_BINARY_FOR_GPU);
        assert_eq!(code(b"hello"), Code::INVALID_PTX);
        assert_eq!(code(b""), Code::INVALID_PTX);
    }

    #[test]
    fn functions_are_found_by_name() {
        let module = load(b".version 8.4\n.target sm_70\n.entry k(.param .u32 a) { }").unwrap();
        let function = module.function("k").unwrap();
        assert_eq!((function.parameter_bytes(), function.threads_max()), (4, 1024));
        assert!(function.allows_dynamic(SHARED_DEFAULT) && !function.allows_dynamic(SHARED_DEFAULT + 1));
        assert!(matches!(module.function("j"), Err(Code::NOT_FOUND)));
    }
}
