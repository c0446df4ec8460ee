//! The stand-in: building it, loading it, and reading what it wrote down.

use std::ffi::{CString, c_char, c_uint};
use std::process::Command;
use std::sync::OnceLock;

use partywall_driver::{Context, Cuda, DriverError};
use tempfile::TempDir;

/// Where the C source is.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_driver/libcuda.c");
/// Room for what one test does.
const RECORD_BYTES: usize = 1 << 16;

/// A driver of a test's own.
pub(crate) struct Fake {
    pub(crate) cuda: Cuda,
    library: libloading::Library,
}

/// Loads a stand-in built with some macros defined (`VERSION=12020`). Each is a file of its own, so that the loader does not
/// take one for the other; the file goes, what was loaded stays.
pub(crate) fn load(defines: &[&str]) -> Result<Fake, DriverError> {
    static PLAIN: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes =
        if defines.is_empty() { PLAIN.get_or_init(|| compile(&[])).clone() } else { compile(defines) };
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("libcuda.so.1");
    std::fs::write(&path, bytes).unwrap();
    // SAFETY: the file is the stand-in, whose functions do nothing but write down and have the driver's signatures.
    let (cuda, library) = unsafe { (Cuda::load_from(&path)?, libloading::Library::new(&path).unwrap()) };
    let fake = Fake { cuda, library };
    fake.take();
    Ok(fake)
}

fn compile(defines: &[&str]) -> Vec<u8> {
    let folder = TempDir::new().unwrap();
    let library = folder.path().join("libcuda.so.1");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-shared", "-fPIC", "-pthread", "-o"]).arg(&library).arg(SOURCE);
    compiler.args(defines.iter().map(|define| format!("-D{define}")));
    let output = compiler.output().expect("a C compiler called `cc`");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(&library).unwrap()
}

impl Fake {
    pub(crate) fn new() -> Self {
        load(&[]).unwrap()
    }

    /// The primary context; making it is not in the record.
    pub(crate) fn context(&self) -> Context {
        let context = self.cuda.device(0).unwrap().primary().unwrap();
        self.take();
        context
    }

    /// What was asked since the last time.
    pub(crate) fn take(&self) -> Vec<String> {
        let mut bytes = vec![0_u8; RECORD_BYTES];
        // SAFETY: the signature is that of the C source, and the room is what the vector has.
        let length = unsafe {
            let take = self
                .library
                .get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>(b"fake_take\0")
                .unwrap();
            take(bytes.as_mut_ptr().cast(), bytes.len())
        };
        std::str::from_utf8(&bytes[..length]).unwrap().lines().map(String::from).collect()
    }

    /// As [`Fake::take`], without making contexts current, which every call does.
    pub(crate) fn asked(&self) -> Vec<String> {
        let current =
            |line: &String| line.starts_with("cuCtxPushCurrent") || line.starts_with("cuCtxPopCurrent");
        self.take().into_iter().filter(|line| !current(line)).collect()
    }

    /// From now on calls of this name return the code; 0 lets them work again.
    pub(crate) fn fail(&self, call: &str, code: u32) {
        let call = CString::new(call).unwrap();
        // SAFETY: the signature is that of the C source; the name ends with a zero byte and is copied.
        unsafe {
            let fail =
                self.library.get::<unsafe extern "C" fn(*const c_char, c_uint)>(b"fake_fail\0").unwrap();
            fail(call.as_ptr(), code);
        }
    }
}
