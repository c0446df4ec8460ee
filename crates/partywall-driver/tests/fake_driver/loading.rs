//! Finding the driver, its version, its functions and its devices.

use partywall_core::units::{Bytes, SmCount};
use partywall_driver::{CudaVersion, DriverError, Priority};

use crate::fake::{Fake, load};

#[test]
fn a_driver_is_initialised_and_says_its_version() {
    let fake = Fake::new();
    assert_eq!(fake.cuda.driver_version(), CudaVersion::new(13, 0));
    assert_eq!(fake.cuda.device_count().unwrap(), 1);
    let error = fake.cuda.device(1).unwrap_err();
    assert_eq!(error, DriverError::NoSuchDevice { ordinal: 1, count: 1 });
}

#[test]
fn an_old_driver_is_refused_with_its_version() {
    let error = load(&["VERSION=12030"]).map(|_| ()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the NVIDIA driver supports CUDA 12.3 at most; 12.4 or later is needed: update the driver"
    );
    assert!(load(&["VERSION=12040"]).is_ok());
}

#[test]
fn what_a_driver_lacks_fails_where_it_is_needed_and_nowhere_else() {
    let fake = load(&["WITHOUT_GREEN"]).unwrap();
    let device = fake.cuda.device(0).unwrap();
    let error = device.sm_split().unwrap_err();
    assert_eq!(
        error.to_string(),
        "the NVIDIA driver (CUDA 13.0) does not have cuDeviceGetDevResource; complete drivers have it from CUDA 12.4 on"
    );
    let context = device.primary().unwrap();
    assert!(matches!(context.affinity_sms(), Err(DriverError::SymbolMissing { .. })));
    assert!(context.stream(Priority::Normal).is_ok());
    // Without `cuFuncLoad` and `cuFuncGetParamInfo` kernels can still be had.
    assert!(context.module("text").unwrap().function("kernel").is_ok());
}

#[test]
fn a_device_says_what_it_is() {
    let device = Fake::new().cuda.device(0).unwrap();
    assert_eq!(device.name().unwrap(), "Fake 0");
    assert_eq!(device.pci_bus_id().unwrap(), "0000:1b:00.0");
    assert_eq!(device.uuid().unwrap().to_string(), "a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0");
    assert_eq!(device.sms().unwrap(), SmCount(132));
    assert_eq!(device.total_memory().unwrap(), Bytes(5 << 30));
    assert_eq!(device.compute_capability().unwrap(), (9, 0));
    assert_eq!(device.l2_bytes().unwrap(), Bytes(38));
    let context = device.primary().unwrap();
    assert_eq!(context.memory_info().unwrap(), (Bytes(3), Bytes(5)));
    assert_eq!(context.affinity_sms().unwrap(), SmCount(66));
}

#[test]
fn errors_carry_the_call_the_code_and_the_drivers_words() {
    let fake = Fake::new();
    let context = fake.context();
    fake.fail("cuMemAlloc_v2", 2);
    let error = context.alloc(Bytes(4 << 30)).unwrap_err();
    assert!(error.is_out_of_memory() && !error.is_fatal());
    assert_eq!(
        error.to_string(),
        "allocating 4GiB of device memory: cuMemAlloc_v2 returned CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
    );
    // A code that the driver cannot name, because it is newer than this program or nonsense.
    fake.fail("cuCtxSynchronize", 12345);
    let error = context.synchronize().unwrap_err();
    assert_eq!(
        error.to_string(),
        "waiting for the primary context: cuCtxSynchronize returned an unknown error (12345): no explanation"
    );
    fake.fail("cuCtxSynchronize", 700);
    assert!(context.synchronize().unwrap_err().is_fatal());
}
