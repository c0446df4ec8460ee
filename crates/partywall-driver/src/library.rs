//! The driver's library, loaded while the program runs: neither building nor starting needs CUDA.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use crate::device::Device;
use crate::error::DriverError;
use crate::sys::{Api, CUresult};

/// The library that every NVIDIA driver installs, also under WSL and in containers.
pub const LIBRARY: &str = "libcuda.so.1";

/// A version of CUDA, as drivers and toolkits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(u32);

impl CudaVersion {
    /// The oldest whose driver will do.
    pub const OLDEST: Self = Self::new(12, 4);

    /// `new(12, 4)` is CUDA 12.4.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self(major * 1000 + minor * 10)
    }

    /// From the number that drivers use: 12040 is 12.4. What is negative becomes 0.0.
    pub fn from_number(number: i32) -> Self {
        Self(u32::try_from(number).unwrap_or(0))
    }

    /// The part before the dot.
    pub fn major(self) -> u32 {
        self.0 / 1000
    }

    /// The part behind the dot.
    pub fn minor(self) -> u32 {
        self.0 % 1000 / 10
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// The CUDA driver, loaded and initialised. Cheap to clone.
#[derive(Clone)]
pub struct Cuda {
    pub(crate) api: Arc<Api>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("version", &self.api.version).finish_non_exhaustive()
    }
}

impl Cuda {
    /// Loads `libcuda.so.1` and initialises it. From here on the driver has read `CUDA_VISIBLE_DEVICES` and the MPS
    /// variables of this process, and fork is no longer safe.
    ///
    /// # Errors
    /// [`DriverError::LibraryMissing`] without a driver, [`DriverError::TooOld`] before CUDA 12.4,
    /// [`DriverError::SymbolMissing`] where a basic function is missing, and [`DriverError::Cuda`] with what `cuInit`
    /// returned (100, `CUDA_ERROR_NO_DEVICE`, where there is a driver and no GPU).
    pub fn load() -> Result<Self, DriverError> {
        // SAFETY: this is the name under which NVIDIA's driver installs its library, and a program that asks the
        // dynamic loader for it relies on the machine having put nothing else there, as every CUDA program does.
        unsafe { Self::load_from(Path::new(LIBRARY)) }
    }

    /// As [`Cuda::load`], from another file: a stand-in, or a driver in an unusual place.
    ///
    /// # Errors
    /// As [`Cuda::load`].
    ///
    /// # Safety
    /// The library must be a CUDA driver: every function it exports under the name of a function of the driver API
    /// must behave as documented by NVIDIA for that name. Its initialisers run in this process.
    pub unsafe fn load_from(path: &Path) -> Result<Self, DriverError> {
        // SAFETY: by this function's contract the library and its initialisers are the CUDA driver's.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| {
            DriverError::LibraryMissing { library: path.display().to_string(), message: error.to_string() }
        })?;
        // The driver starts threads and registers exit handlers; unloading it would leave them without code. So it
        // stays for the life of the process, which is also what keeps the table of functions valid.
        let library: &'static libloading::Library = Box::leak(Box::new(library));
        let version = version_of(library)?;
        if version < CudaVersion::OLDEST {
            return Err(DriverError::TooOld { found: version, needed: CudaVersion::OLDEST });
        }
        // SAFETY: by this function's contract; the library was leaked, so it stays loaded.
        let api = unsafe { Api::resolve(library, version)? };
        // SAFETY: `cuInit` takes no pointers; 0 is the only flag there is.
        let code = unsafe { (api.cuInit)(0) };
        api.check(code, "cuInit", || "initialising the CUDA driver".into())?;
        Ok(Self { api: Arc::new(api) })
    }

    /// The newest CUDA that the driver supports.
    pub fn driver_version(&self) -> CudaVersion {
        self.api.version
    }

    /// How many devices this process may use; `CUDA_VISIBLE_DEVICES` decides.
    ///
    /// # Errors
    /// What `cuDeviceGetCount` returned.
    pub fn device_count(&self) -> Result<u32, DriverError> {
        let mut count: c_int = 0;
        // SAFETY: `count` is a valid place for the answer.
        let code = unsafe { (self.api.cuDeviceGetCount)(&mut count) };
        self.api.check(code, "cuDeviceGetCount", || "counting the devices".into())?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// A device, counted from 0 as `CUDA_VISIBLE_DEVICES` orders them.
    ///
    /// # Errors
    /// [`DriverError::NoSuchDevice`], or what the driver returned.
    pub fn device(&self, ordinal: u32) -> Result<Device, DriverError> {
        let count = self.device_count()?;
        if ordinal >= count {
            return Err(DriverError::NoSuchDevice { ordinal, count });
        }
        let mut raw = 0;
        // SAFETY: `raw` is a valid place for the answer. The cast keeps the value, which is below an `int` count.
        let code = unsafe { (self.api.cuDeviceGet)(&mut raw, ordinal as c_int) };
        self.api.check(code, "cuDeviceGet", || format!("opening device {ordinal}"))?;
        Ok(Device { cuda: self.clone(), ordinal, raw })
    }
}

impl Api {
    /// Turns what a call returned into an error, if it is one. `what` says what was being done.
    pub(crate) fn check(
        &self,
        code: CUresult,
        call: &'static str,
        what: impl FnOnce() -> String,
    ) -> Result<(), DriverError> {
        if code == CUresult::SUCCESS { Ok(()) } else { Err(self.error(code, call, what())) }
    }

    /// The error that a call returned, with the driver's words for it.
    #[cold]
    pub(crate) fn error(&self, code: CUresult, call: &'static str, what: String) -> DriverError {
        let name = self.text(self.cuGetErrorName, code).unwrap_or_else(|| "an unknown error".into());
        let message = self.text(self.cuGetErrorString, code).unwrap_or_else(|| "no explanation".into());
        DriverError::Cuda { call, code: code.0, name, message, what }
    }

    fn text(
        &self,
        ask: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult,
        code: CUresult,
    ) -> Option<String> {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: `text` is a valid place for the answer; the driver answers INVALID_VALUE for codes it does not know.
        let answer = unsafe { ask(code, &mut text) };
        if answer != CUresult::SUCCESS || text.is_null() {
            return None;
        }
        // SAFETY: on success the driver gives a string that ends with a zero byte and is never freed.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

/// Asked before anything else is looked up, so that an old driver is called old and not incomplete.
fn version_of(library: &'static libloading::Library) -> Result<CudaVersion, DriverError> {
    const NAME: &str = "cuDriverGetVersion";
    type Call = unsafe extern "C" fn(*mut c_int) -> CUresult;
    // SAFETY: by the contract of `load_from` a symbol of this name is the driver's function, of this type.
    let call = unsafe { library.get::<Call>(b"cuDriverGetVersion\0") }
        .map_err(|_| DriverError::symbol_missing(NAME, CudaVersion(0), CudaVersion::OLDEST))?;
    let mut number: c_int = 0;
    // SAFETY: `number` is a valid place for the answer; this call is allowed before `cuInit`.
    let code = unsafe { call(&mut number) };
    if code == CUresult::SUCCESS {
        return Ok(CudaVersion::from_number(number));
    }
    Err(DriverError::Cuda {
        call: NAME,
        code: code.0,
        name: "an error".into(),
        message: "the driver does not know its own version".into(),
        what: "loading the CUDA driver".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_an_ordinary_error() {
        // SAFETY: there is no such file, so nothing is loaded.
        let error = unsafe { Cuda::load_from(Path::new("/nonexistent/libcuda.so.1")) }.unwrap_err();
        assert!(matches!(error, DriverError::LibraryMissing { .. }));
        let text = error.to_string();
        assert!(text.starts_with("no CUDA driver: /nonexistent/libcuda.so.1 cannot be loaded"), "{text}");
        assert!(text.ends_with("an NVIDIA driver for CUDA 12.4 or later is needed"), "{text}");
    }

    #[test]
    fn a_library_that_is_not_the_driver_is_refused() {
        // SAFETY: the C library is loaded already and exports none of the driver's names.
        let error = unsafe { Cuda::load_from(Path::new("libc.so.6")) }.unwrap_err();
        assert!(matches!(error, DriverError::SymbolMissing { symbol: "cuDriverGetVersion", .. }), "{error}");
    }

    #[test]
    fn versions_read_and_order_as_people_expect() {
        assert_eq!(CudaVersion::from_number(12040), CudaVersion::OLDEST);
        assert_eq!(CudaVersion::from_number(13000).to_string(), "13.0");
        assert_eq!(CudaVersion::from_number(-1).to_string(), "0.0");
        assert!(CudaVersion::new(12, 9) < CudaVersion::new(13, 0));
        assert!(CudaVersion::new(12, 10) > CudaVersion::new(12, 9));
    }
}
