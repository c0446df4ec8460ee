//! NVML as programs use it: the shared object from a driver folder, through a wrapper that was made from NVIDIA's header.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{Clock, ComputeMode, PcieUtilCounter, TemperatureSensor};
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use partywall_core::catalogue::Catalogue;
use partywall_core::soft_gpu::{FILE, SoftGpu};
use tempfile::TempDir;

/// The shared object that cargo built for this test, which lies beside it.
fn library() -> PathBuf {
    let file = std::env::current_exe().unwrap().with_file_name("libpartywall_softgpu.so");
    assert!(file.is_file(), "{} is not there", file.display());
    file
}

/// A driver folder for a model, and NVML loaded from it. One library in a process has one folder, so the test that comes
/// first decides which, and the others run beside it on the same device.
fn loaded() -> (&'static Path, Nvml) {
    static FOLDER: std::sync::OnceLock<TempDir> = std::sync::OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
        let figures = serde_json::to_string(&SoftGpu::new(gpu, "NVIDIA H200")).unwrap();
        std::fs::write(folder.path().join(FILE), figures).unwrap();
        symlink(library(), folder.path().join("libnvidia-ml.so.1")).unwrap();
        folder
    });
    let nvml = Nvml::builder().lib_path(folder.path().join("libnvidia-ml.so.1").as_os_str()).init().unwrap();
    (folder.path(), nvml)
}

#[test]
fn it_says_what_the_device_is() {
    let (_, nvml) = loaded();
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.159.04");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.159.04");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13000);
    assert_eq!(nvml.device_count().unwrap(), 1);
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA H200 (simulated)");
    assert_eq!(device.architecture().unwrap().to_string(), "Hopper");
    assert_eq!(device.cuda_compute_capability().map(|it| (it.major, it.minor)).unwrap(), (9, 0));
    assert_eq!(device.num_cores().unwrap(), 132 * 128);
    assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
    assert_eq!(device.mig_mode().map(|mode| (mode.current, mode.pending)).unwrap(), (0, 0));
    assert_eq!(device.enforced_power_limit().unwrap(), 700_000);
    assert_eq!(device.max_clock_info(Clock::SM).unwrap(), 1980);
    assert!(matches!(device.max_clock_info(Clock::Memory), Err(NvmlError::NotSupported)));
    assert_eq!((device.max_pcie_link_gen().unwrap(), device.current_pcie_link_width().unwrap()), (5, 16));
    let pci = device.pci_info().unwrap();
    assert_eq!((pci.bus_id.as_str(), pci.bus), ("00000000:1b:00.0", 0x1b));
    assert_eq!(nvml.device_by_uuid(device.uuid().unwrap()).unwrap().index().unwrap(), 0);
    assert_eq!(nvml.device_by_pci_bus_id("0000:1b:00.0").unwrap().index().unwrap(), 0);
}

#[test]
fn it_says_how_the_device_is_used() {
    let (_, nvml) = loaded();
    let device = nvml.device_by_index(0).unwrap();
    let memory = device.memory_info().unwrap();
    assert_eq!((memory.used, memory.free), (0, memory.total));
    assert_eq!(memory.total >> 30, 140);
    assert!(device.bar1_memory_info().unwrap().total >= memory.total);
    assert!(device.running_compute_processes().unwrap().is_empty());
    assert!(device.running_graphics_processes().unwrap().is_empty());
    assert_eq!(device.utilization_rates().map(|rates| (rates.gpu, rates.memory)).unwrap(), (0, 0));
    assert_eq!(device.power_usage().unwrap(), 120_000);
    assert_eq!(device.clock_info(Clock::SM).unwrap(), 345);
    assert_eq!(device.current_throttle_reasons().unwrap().bits(), 1);
    assert_eq!(device.pcie_throughput(PcieUtilCounter::Send).unwrap(), 0);
    assert!((20..90).contains(&device.temperature(TemperatureSensor::Gpu).unwrap()));
    let before = device.total_energy_consumption().unwrap();
    assert!(before > 0 && device.total_energy_consumption().unwrap() >= before);
    assert!(device.gpm_support().unwrap());
    let own = nvml.sys_process_name(std::process::id(), 1024).unwrap();
    assert!(own.contains("nvml"), "{own}");
    assert!(nvml.sys_process_name(std::process::id(), 8).unwrap().len() < 8);
}

/// The driver API of the same object, as far as it is about what NVML tells too.
struct Cuda(*mut libc::c_void);

impl Cuda {
    fn call<F: Copy>(&self, name: &str) -> F {
        assert_eq!(size_of::<F>(), size_of::<*mut libc::c_void>());
        let symbol = CString::new(name).unwrap();
        // SAFETY: a handle of dlopen that was not closed, and a string that ends with a zero byte.
        let address = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        assert!(!address.is_null(), "{name}");
        // SAFETY: callers name the function's type, which is a pointer that is not null.
        unsafe { std::mem::transmute_copy(&address) }
    }
}

fn cuda(folder: &Path) -> Cuda {
    let path = CString::new(folder.join("libnvidia-ml.so.1").as_os_str().as_bytes()).unwrap();
    // SAFETY: a string that ends with a zero byte; the library is loaded already, and its initialisers have run.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!handle.is_null());
    Cuda(handle)
}

#[test]
fn both_libraries_speak_of_one_device() {
    let (folder, nvml) = loaded();
    let cuda = cuda(folder);
    let device = nvml.device_by_index(0).unwrap();
    let mut text = [0_u8; 100];
    let mut total = 0_usize;
    type Text = unsafe extern "C" fn(*mut u8, i32, i32) -> u32;
    let said = |text: &[u8]| CStr::from_bytes_until_nul(text).unwrap().to_str().unwrap().to_owned();
    // SAFETY: the types are those of cuda.h, and the buffers are as long as the calls say.
    unsafe {
        assert_eq!(cuda.call::<unsafe extern "C" fn(u32) -> u32>("cuInit")(0), 0);
        assert_eq!(cuda.call::<Text>("cuDeviceGetName")(text.as_mut_ptr(), 100, 0), 0);
        assert_eq!(said(&text), device.name().unwrap());
        assert_eq!(cuda.call::<Text>("cuDeviceGetPCIBusId")(text.as_mut_ptr(), 100, 0), 0);
        assert_eq!(nvml.device_by_pci_bus_id(said(&text)).unwrap().index().unwrap(), 0);
        type Total = unsafe extern "C" fn(*mut usize, i32) -> u32;
        assert_eq!(cuda.call::<Total>("cuDeviceTotalMem_v2")(&mut total, 0), 0);
    }
    assert_eq!(device.memory_info().unwrap().total, total as u64);
}

#[test]
fn counters_are_read_twice() {
    let (_, nvml) = loaded();
    let device = nvml.device_by_index(0).unwrap();
    let (first, second) = (device.gpm_sample().unwrap(), device.gpm_sample().unwrap());
    let asked =
        [GpmMetricId::SmUtil, GpmMetricId::DramBwUtil, GpmMetricId::PcieRxPerSec, GpmMetricId::Fp64Util];
    let found = gpm_metrics_get(&nvml, &first, &second, &asked).unwrap();
    for metric in &found[..3] {
        assert_eq!(metric.as_ref().unwrap().value, 0.0);
    }
    assert!(matches!(found[3], Err(NvmlError::NotSupported)));
}

#[test]
fn what_is_not_there_is_not_there() {
    let (_, nvml) = loaded();
    assert!(matches!(nvml.device_by_index(1), Err(NvmlError::InvalidArg)));
    assert!(matches!(
        nvml.device_by_uuid("GPU-00000000-0000-0000-0000-000000000000"),
        Err(NvmlError::NotFound)
    ));
    assert!(matches!(nvml.device_by_pci_bus_id("0000:02:00.0"), Err(NvmlError::NotFound)));
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(device.fan_speed(0), Err(NvmlError::NotSupported)));
    assert!(matches!(device.serial(), Err(NvmlError::NotSupported)));
}

#[test]
fn every_function_of_the_api_is_exported() {
    let (folder, _nvml) = loaded();
    let library = cuda(folder);
    let list = include_str!("../../../partywall-shim-api/api/nvml.txt");
    let names: Vec<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    assert!(names.len() > 400);
    for name in names {
        library.call::<*mut libc::c_void>(name);
    }
}
