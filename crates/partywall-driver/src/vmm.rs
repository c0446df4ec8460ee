//! Virtual memory on the device: physical memory, address ranges, and which of the one is behind which of the other.
//!
//! Addresses, sizes and offsets are multiples of [`granularity`] (2 MiB on GPUs so far). A mapping always shows a
//! [`PhysicalMemory`] from its beginning; the driver has no other kind yet.
//!
//! Processes share physical memory by file descriptors: one makes it with [`PhysicalMemory::create_shared`] and
//! [exports](PhysicalMemory::export) it, the other [imports](PhysicalMemory::import) what it was sent.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;

use partywall_core::units::Bytes;

use crate::context::Context;
use crate::error::{DriverError, check_range};
use crate::memory::DeviceBuffer;
use crate::sys::{
    CU_MEM_ACCESS_FLAGS_PROT_READ, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CU_MEM_ALLOC_GRANULARITY_MINIMUM,
    CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, CU_MEM_LOCATION_TYPE_DEVICE,
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
};

/// How the device may access mapped memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads only; a write is a fault.
    Read,
    /// Reads and writes.
    ReadWrite,
}

/// The unit of physical memory and of mappings on the context's device.
///
/// # Errors
/// What the driver returned: 801, `CUDA_ERROR_NOT_SUPPORTED`, where the device has no virtual memory management.
pub fn granularity(context: &Context) -> Result<Bytes, DriverError> {
    let _entered = context.enter()?;
    let mut bytes = 0_usize;
    let prop = properties(context, 0);
    let call = context.api().cuMemGetAllocationGranularity;
    // SAFETY: `bytes` is a valid place for the answer, and `prop` lives until the call returns.
    let code = unsafe { call(&mut bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) };
    let what = || "asking for the granularity of physical memory".into();
    context.api().check(code, "cuMemGetAllocationGranularity", what)?;
    Ok(Bytes(bytes as u64))
}

/// Physical device memory. Mappings keep it.
#[derive(Clone)]
pub struct PhysicalMemory {
    shared: Arc<Physical>,
}

struct Physical {
    context: Context,
    raw: CUmemGenericAllocationHandle,
    size: Bytes,
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PhysicalMemory({})", self.shared.size)
    }
}

impl PhysicalMemory {
    /// Takes physical memory on the context's device.
    ///
    /// # Errors
    /// What the driver returned: 1, `CUDA_ERROR_INVALID_VALUE`, for a size that is no multiple of [`granularity`].
    pub fn create(context: &Context, size: Bytes) -> Result<Self, DriverError> {
        Self::create_with(context, size, 0)
    }

    /// The same, of a kind that other processes can be given.
    ///
    /// # Errors
    /// As there.
    pub fn create_shared(context: &Context, size: Bytes) -> Result<Self, DriverError> {
        Self::create_with(context, size, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    }

    fn create_with(context: &Context, size: Bytes, handle_types: u32) -> Result<Self, DriverError> {
        let _entered = context.enter()?;
        let prop = properties(context, handle_types);
        let mut raw = 0;
        // SAFETY: `raw` is a valid place for the answer, and `prop` lives until the call returns; 0 is the only flag.
        let code = unsafe { (context.api().cuMemCreate)(&mut raw, size.0 as usize, &prop, 0) };
        context.api().check(code, "cuMemCreate", || format!("taking {size} of physical device memory"))?;
        Ok(Self { shared: Arc::new(Physical { context: context.clone(), raw, size }) })
    }

    /// A file descriptor that stands for it, for sending to another process. It keeps the memory, as every copy of it does.
    ///
    /// # Errors
    /// What the driver returned: among it that the memory was not made by [`PhysicalMemory::create_shared`].
    pub fn export(&self) -> Result<OwnedFd, DriverError> {
        let context = &self.shared.context;
        let export = context.api().cuMemExportToShareableHandle()?;
        let _entered = context.enter()?;
        let mut file: i32 = -1;
        let place = (&raw mut file).cast::<c_void>();
        // SAFETY: for this kind of handle the answer is an `int`, for which `place` has room; the memory is alive, and 0 is the only flag.
        let code = unsafe { export(place, self.shared.raw, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) };
        let what = || format!("exporting {} of physical device memory", self.shared.size);
        context.api().check(code, "cuMemExportToShareableHandle", what)?;
        if file < 0 {
            return Err(DriverError::Invalid("the driver exported memory as no file descriptor".to_owned()));
        }
        // SAFETY: the driver just opened it for this caller, who owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    /// Memory that another process exported, of the size that it was made with. The file descriptor may be closed afterwards.
    ///
    /// # Errors
    /// What the driver returned. A size that is not the memory's is only noticed when it is mapped.
    pub fn import(context: &Context, file: impl AsFd, size: Bytes) -> Result<Self, DriverError> {
        let import = context.api().cuMemImportFromShareableHandle()?;
        let _entered = context.enter()?;
        let mut raw = 0;
        // The driver wants the number of the file as if it were a pointer.
        let number = std::ptr::without_provenance_mut(file.as_fd().as_raw_fd() as usize);
        // SAFETY: `raw` is a valid place for the answer, and the file is open until the call returns.
        let code = unsafe { import(&mut raw, number, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) };
        let what = || format!("importing {size} of physical device memory");
        context.api().check(code, "cuMemImportFromShareableHandle", what)?;
        Ok(Self { shared: Arc::new(Physical { context: context.clone(), raw, size }) })
    }

    /// Its size.
    pub fn size(&self) -> Bytes {
        self.shared.size
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: this is the only owner of the handle, and mappings own it too, so none is left.
        let _ = unsafe { (self.context.api().cuMemRelease)(self.raw) };
    }
}

/// A range of device addresses and what is mapped there.
///
/// Unmapping, also by dropping, while work uses the addresses makes the device fault: wait first.
pub struct AddressRange {
    context: Context,
    address: CUdeviceptr,
    size: Bytes,
    /// By offset.
    mapped: BTreeMap<u64, PhysicalMemory>,
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mappings = self.mapped.len();
        write!(f, "AddressRange({} at {:#x}, {mappings} mappings)", self.size, self.address)
    }
}

impl AddressRange {
    /// Reserves addresses. `alignment` is 0 or a power of two.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn reserve(context: &Context, size: Bytes, alignment: Bytes) -> Result<Self, DriverError> {
        let _entered = context.enter()?;
        let mut address = 0;
        let call = context.api().cuMemAddressReserve;
        // SAFETY: `address` is a valid place for the answer; no address is asked for, and 0 is the only flag.
        let code = unsafe { call(&mut address, size.0 as usize, alignment.0 as usize, 0, 0) };
        context
            .api()
            .check(code, "cuMemAddressReserve", || format!("reserving {size} of device addresses"))?;
        Ok(Self { context: context.clone(), address, size, mapped: BTreeMap::new() })
    }

    /// The first address.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Puts physical memory behind the addresses from `offset` on. It is not accessible before
    /// [`AddressRange::set_access`]. The same physical memory can be mapped in several places.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or what the driver returned, among it where something is mapped there already.
    pub fn map(&mut self, offset: u64, memory: &PhysicalMemory) -> Result<(), DriverError> {
        let size = memory.size().0;
        check_range("mapping into an address range", offset, size, self.size.0)?;
        let _entered = self.context.enter()?;
        let at = self.address + offset;
        // SAFETY: the addresses are inside this reservation, and the physical memory is alive; 0 is the only offset into it
        // that the driver takes, and the only flag.
        let code = unsafe { (self.context.api().cuMemMap)(at, size as usize, 0, memory.shared.raw, 0) };
        self.context.api().check(code, "cuMemMap", || format!("mapping {} at {at:#x}", memory.size()))?;
        self.mapped.insert(offset, memory.clone());
        Ok(())
    }

    /// Takes away what was mapped at `offset`, and gives it back.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] where no mapping begins at `offset`, or what the driver returned.
    pub fn unmap(&mut self, offset: u64) -> Result<PhysicalMemory, DriverError> {
        let Some(memory) = self.mapped.get(&offset) else {
            return Err(DriverError::Invalid(format!(
                "no mapping begins {offset} bytes into {self:?}, so none can be taken away"
            )));
        };
        let _entered = self.context.enter()?;
        let at = self.address + offset;
        // SAFETY: exactly this was mapped here by `map`.
        let code = unsafe { (self.context.api().cuMemUnmap)(at, memory.size().0 as usize) };
        self.context.api().check(code, "cuMemUnmap", || format!("unmapping {} at {at:#x}", memory.size()))?;
        let memory = memory.clone();
        self.mapped.remove(&offset);
        Ok(memory)
    }

    /// Lets the device access `length` bytes from `offset` on, all of which are mapped.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or what the driver returned.
    pub fn set_access(&mut self, offset: u64, length: u64, access: Access) -> Result<(), DriverError> {
        check_range("range to make accessible", offset, length, self.size.0)?;
        let _entered = self.context.enter()?;
        let flags = match access {
            Access::Read => CU_MEM_ACCESS_FLAGS_PROT_READ,
            Access::ReadWrite => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let desc = CUmemAccessDesc { location: location(&self.context), flags };
        let at = self.address + offset;
        // SAFETY: the addresses are inside this reservation; one description is given, and lives until the call returns.
        let code = unsafe { (self.context.api().cuMemSetAccess)(at, length as usize, &desc, 1) };
        let what = || format!("making {length} bytes at {at:#x} accessible");
        self.context.api().check(code, "cuMemSetAccess", what)
    }

    /// Makes the whole range readable and writable and turns it into a buffer, for copies and kernels.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] with the first address that has nothing behind it, or what the driver returned. The range
    /// is then dropped.
    pub fn into_buffer(mut self) -> Result<DeviceBuffer, DriverError> {
        let mut end = 0;
        for (offset, memory) in &self.mapped {
            if *offset != end {
                break;
            }
            end += memory.size().0;
        }
        if end != self.size.0 {
            return Err(DriverError::Invalid(format!(
                "{self:?} has nothing mapped {end} bytes from its beginning, so it cannot be used as a buffer"
            )));
        }
        self.set_access(0, end, Access::ReadWrite)?;
        Ok(DeviceBuffer::mapped(self))
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let Ok(_entered) = self.context.enter() else { return };
        let api = self.context.api();
        for (offset, memory) in std::mem::take(&mut self.mapped) {
            // SAFETY: exactly this was mapped here by `map`. After a fault the call fails, and all goes with the process.
            let _ = unsafe { (api.cuMemUnmap)(self.address + offset, memory.size().0 as usize) };
        }
        // SAFETY: exactly this was reserved by `reserve`, and nothing is mapped in it any more.
        let _ = unsafe { (api.cuMemAddressFree)(self.address, self.size.0 as usize) };
    }
}

fn location(context: &Context) -> CUmemLocation {
    // The documentation wants the ordinal; a `CUdevice` is that number.
    CUmemLocation { kind: CU_MEM_LOCATION_TYPE_DEVICE, id: context.device().raw }
}

fn properties(context: &Context, handle_types: u32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        kind: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handle_types,
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        compressionType: 0,
        gpuDirectRDMACapable: 0,
        usage: 0,
        reserved: [0; 4],
    }
}
