//! The library as programs use it, on a simulated GPU.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests may panic as tests do")]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr;

use libloading::{Library, Symbol};
use partywall_core::catalogue::Catalogue;
use partywall_core::soft_gpu::{FILE, SoftGpu};
use partywall_core::units::Bytes;
use partywall_driver::Cuda;
use partywall_shim_api::environment;
use partywall_vram::gpu::GpuProber;
use partywall_vram::sides::{Found, find};

type Malloc = unsafe extern "C" fn(isize, c_int, *mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut c_void);
type Write = unsafe extern "C" fn(u64, *const u8, usize) -> c_int;
type Read = unsafe extern "C" fn(u64, *mut u8, usize) -> c_int;
type Error = unsafe extern "C" fn(*mut u8, usize) -> usize;

/// Bytes that the arena is asked for: two pages.
const BYTES: u64 = 4 << 20;

/// Set where a test has started itself again, which is then the program.
const PROGRAM: &str = "PARTYWALL_SIDE_TEST";

/// A shared object that cargo builds beside the tests.
fn beside(name: &str) -> PathBuf {
    std::env::current_exe().unwrap().with_file_name(name)
}

/// A folder with a simulated H200.
fn driver(folder: &Path) {
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap().clone();
    let figures = serde_json::to_string(&SoftGpu::new(&gpu, "NVIDIA H200")).unwrap();
    std::fs::write(folder.join(FILE), figures).unwrap();
    std::os::unix::fs::symlink(beside("libpartywall_softgpu.so"), folder.join("libcuda.so.1")).unwrap();
}

/// Writes down where the sides of the simulated GPU are.
fn known(folder: &Path) -> PathBuf {
    // SAFETY: the library is the stand-in's, which behaves as documented for the driver API.
    let cuda = unsafe { Cuda::load_from(&folder.join("libcuda.so.1")) }.unwrap();
    let device = cuda.device(0).unwrap();
    let mut prober = GpuProber::new(&device, Bytes(64 << 20)).unwrap();
    let Found::Two(sides) = find(&mut prober, 500, 1).unwrap() else { panic!("an H200 has two sides") };
    let path = folder.join("known.json");
    std::fs::write(&path, serde_json::to_string(&sides.known).unwrap()).unwrap();
    path
}

/// Starts a test once more as a program with a simulated GPU, and this environment. What it wrote.
fn program(test: &str, folder: &Path, variables: &[(&str, &Path)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(PROGRAM, test);
    command.env("LD_LIBRARY_PATH", folder).env_remove(environment::SIDE).env_remove(environment::SIDE_KNOWN);
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said
}

#[expect(clippy::disallowed_methods, reason = "a test that has started itself again")]
fn is_program(test: &str) -> bool {
    std::env::var(PROGRAM).as_deref() == Ok(test)
}

/// The library's functions.
struct Side(Library);

impl Side {
    fn load() -> Self {
        // SAFETY: the library under test, which does nothing when it is loaded.
        Self(unsafe { Library::new(beside("libpartywall_side.so")) }.unwrap())
    }

    fn function<T>(&self, name: &str) -> Symbol<'_, T> {
        // SAFETY: the types are those of the functions of these names.
        unsafe { self.0.get(name.as_bytes()) }.unwrap()
    }

    fn begin(&self, bytes: u64) -> c_int {
        // SAFETY: it takes any number.
        unsafe { self.function::<unsafe extern "C" fn(u64) -> c_int>("partywall_side_begin")(bytes) }
    }

    fn arena(&self) -> Option<String> {
        // SAFETY: it takes nothing.
        let order =
            unsafe { self.function::<unsafe extern "C" fn() -> *const c_char>("partywall_side_arena")() };
        // SAFETY: null, or a text that stays.
        (!order.is_null()).then(|| unsafe { CStr::from_ptr(order) }.to_str().unwrap().to_owned())
    }

    fn malloc(&self, bytes: isize) -> u64 {
        // SAFETY: it takes any number.
        unsafe { self.function::<Malloc>("partywall_side_malloc")(bytes, 0, ptr::null_mut()) }.addr() as u64
    }

    fn free(&self, address: u64) {
        let address = ptr::without_provenance_mut(address as usize);
        // SAFETY: it looks whether it knows the address.
        unsafe { self.function::<Free>("partywall_side_free")(address, 0, 0, ptr::null_mut()) }
    }

    fn write(&self, to: u64, bytes: &[u8]) -> c_int {
        // SAFETY: so many bytes are there.
        unsafe { self.function::<Write>("partywall_side_write")(to, bytes.as_ptr(), bytes.len()) }
    }

    fn read(&self, from: u64, bytes: &mut [u8]) -> c_int {
        // SAFETY: there is room for so many.
        unsafe { self.function::<Read>("partywall_side_read")(from, bytes.as_mut_ptr(), bytes.len()) }
    }

    fn error(&self) -> String {
        let mut place = [1; 400];
        // SAFETY: there is so much room.
        let length =
            unsafe { self.function::<Error>("partywall_side_error")(place.as_mut_ptr(), place.len()) };
        assert_eq!(place[length], 0);
        String::from_utf8(place[..length].to_vec()).unwrap()
    }
}

#[test]
fn s1_s2_memory_is_allocated_written_read_and_given_back() {
    const NAME: &str = "s1_s2_memory_is_allocated_written_read_and_given_back";
    if !is_program(NAME) {
        let folder = tempfile::tempdir().unwrap();
        driver(folder.path());
        let known = known(folder.path());
        for side in ["first", "second"] {
            let said = program(
                NAME,
                folder.path(),
                &[(environment::SIDE, Path::new(side)), (environment::SIDE_KNOWN, &known)],
            );
            assert!(
                said.contains(&format!("parity={}", if side == "first" { "even" } else { "odd" })),
                "{said}"
            );
        }
        return;
    }
    let library = Side::load();
    assert_eq!(library.arena(), None);
    assert_eq!(library.begin(BYTES), 0, "{}", library.error());
    let order = library.arena().unwrap();
    println!("{order}");
    let number = |name: &str| {
        let value = order.split(',').find_map(|part| part.strip_prefix(name)).unwrap();
        u64::from_str_radix(value.strip_prefix("0x").unwrap(), 16).unwrap()
    };
    let (logical, length) = (number("logical="), number("length="));
    assert_eq!((logical, logical % (1 << 32)), (number("mapped="), 0), "as cheap to translate as can be");
    assert_eq!(length, BYTES);

    let (one, other) = (library.malloc(10_000), library.malloc(1_000_000));
    assert!(logical <= one && one + 10_000 <= other && other + 1_000_000 <= logical + length);
    assert_eq!(one % 512 + other % 512, 0);
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
    assert_eq!((library.write(other, &bytes), library.write(one, &[7; 10_000])), (0, 0));
    let mut back = vec![0; 500_001];
    assert_eq!(library.read(other + 499_999, &mut back), 0);
    assert!(back == bytes[499_999..]);
    assert_eq!(library.read(one, &mut back[..10_000]), 0);
    assert!(back[..10_000] == [7; 10_000]);

    assert_eq!(library.write(other, &vec![0; 1_000_001]), 1);
    assert!(library.error().contains("are not all of one allocation"), "{}", library.error());
    assert_eq!(library.malloc(BYTES as isize), 0);
    assert!(library.error().contains("do not fit"), "{}", library.error());
    assert_eq!(library.malloc(-1), 0);
    assert!(library.error().contains("one at least is expected"), "{}", library.error());
    library.free(one);
    library.free(other);
    let all = library.malloc(BYTES as isize);
    assert_eq!(all, logical, "all of it is free again");
    library.free(all + 512);
    assert!(library.error().contains("are not all of one allocation"), "{}", library.error());
    assert_eq!(library.begin(BYTES), 1);
    assert!(library.error().contains("has been called before"), "{}", library.error());
}

#[test]
fn s3_s4_what_is_wrong_is_said() {
    const NAME: &str = "s3_s4_what_is_wrong_is_said";
    if !is_program(NAME) {
        let folder = tempfile::tempdir().unwrap();
        driver(folder.path());
        let (missing, wrong) = (folder.path().join("missing"), folder.path().join("wrong"));
        std::fs::write(&wrong, "{\"mask\":1}").unwrap();
        let (side, known) = (environment::SIDE, environment::SIDE_KNOWN);
        let first = Path::new("first");
        for (variables, expected) in [
            (&[][..], "PARTYWALL_SIDE is not set; it should be `first` or `second`"),
            (&[(side, Path::new("left"))], "PARTYWALL_SIDE is `left`"),
            (&[(side, first)], "PARTYWALL_SIDE_KNOWN is not set"),
            (&[(side, first), (known, &missing)], "cannot be read: No such file"),
            (&[(side, first), (known, &wrong)], "does not say where the sides of a GPU are: missing field"),
        ] {
            let said = program(NAME, folder.path(), variables);
            assert!(said.contains(expected), "{said}");
        }
        return;
    }
    let library = Side::load();
    assert_eq!((library.malloc(1), library.write(1 << 32, &[1])), (0, 1));
    assert!(library.error().contains("has not been called"), "{}", library.error());
    assert_eq!(library.begin(BYTES), 1);
    println!("{}", library.error());
    assert_eq!(library.arena(), None);
}
