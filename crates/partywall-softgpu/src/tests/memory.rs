//! Allocating in every way, and what it costs.

use super::{
    allocate, alone, ask, begin, cuCtxSynchronize, cuMemFree_v2, cuMemGetInfo_v2, cuMemsetD32Async,
    cuStreamSynchronize, new_stream, read_u32,
};
use crate::abi::{AccessDescription, AllocationProperties, Location};

const MIB: usize = 1 << 20;

unsafe extern "C" {
    fn cuMemAllocAsync(place: *mut u64, bytes: usize, stream: u64) -> u32;
    fn cuMemFreeAsync(address: u64, stream: u64) -> u32;
    fn cuDeviceGetDefaultMemPool(place: *mut u64, device: i32) -> u32;
    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: *mut u64) -> u32;
    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, value: *mut u64) -> u32;
    fn cuMemPoolTrimTo(pool: u64, keep: usize) -> u32;
    fn cuMemCreate(place: *mut u64, bytes: usize, properties: *const AllocationProperties, flags: u64)
    -> u32;
    fn cuMemRelease(handle: u64) -> u32;
    fn cuMemAddressReserve(place: *mut u64, bytes: usize, alignment: usize, wanted: u64, flags: u64) -> u32;
    fn cuMemAddressFree(start: u64, bytes: usize) -> u32;
    fn cuMemMap(start: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> u32;
    fn cuMemUnmap(start: u64, bytes: usize) -> u32;
    fn cuMemSetAccess(start: u64, bytes: usize, list: *const AccessDescription, count: usize) -> u32;
    fn cuMemExportToShareableHandle(place: *mut i32, handle: u64, kind: u32, flags: u64) -> u32;
    fn cuMemImportFromShareableHandle(place: *mut u64, file: u64, kind: u32) -> u32;
    fn cuPointerGetAttribute(place: *mut u64, attribute: u32, address: u64) -> u32;
    fn cuMemAllocPitch_v2(
        place: *mut u64,
        pitch: *mut usize,
        width: usize,
        height: usize,
        element: u32,
    ) -> u32;
}

/// Bytes that are free, in MiB.
fn free_mib() -> usize {
    let mut total = 0;
    // SAFETY: both places are valid.
    ask(|free| unsafe { cuMemGetInfo_v2(free, &mut total) }).unwrap() / MIB
}

#[test]
fn allocations_take_pages_and_small_ones_share_them() {
    alone("memory::allocations_take_pages_and_small_ones_share_them", &[], || {
        begin();
        let before = free_mib();
        let small: Vec<u64> = (0..10).map(|_| allocate(100 << 10).unwrap()).collect();
        assert_eq!(before - free_mib(), 2);
        let large = allocate(3 * MIB).unwrap();
        assert_eq!(before - free_mib(), 6);
        assert!(small.iter().all(|address| address.is_multiple_of(512)) && large.is_multiple_of(512));
        let mut pitch = 0;
        // SAFETY: both places are valid.
        let rows = ask(|place| unsafe { cuMemAllocPitch_v2(place, &mut pitch, 1000, 4096, 4) }).unwrap();
        assert_eq!((pitch, before - free_mib()), (1024, 10));
        // SAFETY: each was allocated above and is freed once; freeing what is not there is refused.
        unsafe {
            assert!(small.iter().chain([&large, &rows]).all(|address| cuMemFree_v2(*address) == 0));
            assert_eq!((cuMemFree_v2(large), cuMemFree_v2(4096)), (1, 1));
        }
        assert_eq!(free_mib(), before);
        assert_eq!(allocate(0), Err(1));
        assert_eq!(allocate(usize::MAX), Err(2));
        assert_eq!(allocate((before + 1) * MIB), Err(2));
    });
}

#[test]
fn pools_keep_what_was_freed_until_a_wait() {
    alone("memory::pools_keep_what_was_freed_until_a_wait", &[], || {
        begin();
        let stream = new_stream(1);
        let before = free_mib();
        // SAFETY: places are valid here and below, and every address is freed once.
        let pool = ask(|place| unsafe { cuDeviceGetDefaultMemPool(place, 0) }).unwrap();
        // SAFETY: as above.
        let attribute = |number| ask(|place| unsafe { cuMemPoolGetAttribute(pool, number, place) }).unwrap();
        // SAFETY: as above.
        let take = || ask(|place| unsafe { cuMemAllocAsync(place, 10 * MIB, stream) }).unwrap();
        let address = take();
        assert_eq!((attribute(5), attribute(7)), (32 << 20, 10 << 20), "reserved and used");
        assert_eq!(before - free_mib(), 32);
        // SAFETY: as above.
        let owner = ask(|place| unsafe { cuPointerGetAttribute(place, 17, address) });
        assert_eq!(owner, Ok(pool));
        // SAFETY: as above.
        unsafe {
            assert_eq!((cuMemFreeAsync(address, stream), cuStreamSynchronize(stream)), (0, 0));
        }
        assert_eq!((attribute(5), attribute(7), free_mib()), (0, 0, before), "the threshold is 0");
        let mut threshold = u64::MAX;
        // SAFETY: as above.
        assert_eq!(unsafe { cuMemPoolSetAttribute(pool, 4, &mut threshold) }, 0);
        let address = take();
        // SAFETY: as above.
        unsafe {
            assert_eq!((cuMemFreeAsync(address, stream), cuCtxSynchronize()), (0, 0));
        }
        assert_eq!((attribute(5), before - free_mib()), (32 << 20, 32));
        // SAFETY: as above.
        assert_eq!(unsafe { cuMemPoolTrimTo(pool, 0) }, 0);
        assert_eq!(free_mib(), before);
    });
}

#[test]
fn physical_memory_is_counted_until_handle_and_mappings_are_gone() {
    alone("memory::physical_memory_is_counted_until_handle_and_mappings_are_gone", &[], || {
        begin();
        let before = free_mib();
        let location = Location { kind: 1, id: 0 };
        let properties = AllocationProperties { kind: 1, handle_types: 1, location, win32: 0, flags: [0; 8] };
        let (page, access) = (2 * MIB, AccessDescription { location, flags: 3 });
        // SAFETY: places are valid here and below; what is mapped, released and freed was made before.
        unsafe {
            let handle = ask(|place| cuMemCreate(place, page, &properties, 0)).unwrap();
            assert_eq!(ask(|place| cuMemCreate(place, 100, &properties, 0)), Err(1));
            let start = ask(|place| cuMemAddressReserve(place, 2 * page, 0, 0, 0)).unwrap();
            assert_eq!(cuMemMap(start, page, 0, handle, 0), 0);
            assert_eq!(cuMemMap(start, page, 0, handle, 0), 1, "something is mapped there");
            assert_eq!(cuMemsetD32Async(start, 7, 1, 0), 1, "no access yet");
            assert_eq!(cuMemSetAccess(start, page, &access, 1), 0);
            assert_eq!(cuMemsetD32Async(start, 7, 1, 0), 0);
            // The same memory a second time, by way of a file.
            let file = ask(|place| cuMemExportToShareableHandle(place, handle, 1, 0)).unwrap();
            let again = ask(|place| cuMemImportFromShareableHandle(place, file as u64, 1)).unwrap();
            assert_eq!(cuMemMap(start + page as u64, page, 0, again, 0), 0);
            assert_eq!(cuMemSetAccess(start, 2 * page, &access, 1), 0);
            assert_eq!(read_u32(start + page as u64), 7);
            assert_eq!((cuMemRelease(handle), cuMemRelease(again), cuMemRelease(again)), (0, 0, 1));
            assert_eq!(before - free_mib(), 2, "the mapping keeps it, and the import costs nothing");
            assert_eq!(cuMemAddressFree(start, 2 * page), 1, "something is mapped there");
            assert_eq!((cuMemUnmap(start, 2 * page), cuMemAddressFree(start, 2 * page)), (0, 0));
            assert_eq!(free_mib(), before);
            libc::close(file);
        }
    });
}
