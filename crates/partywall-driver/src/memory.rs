//! Memory: on the device, and pinned on the host.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use partywall_core::units::Bytes;

use crate::context::Context;
use crate::error::{DriverError, check_range};
use crate::in_flight::InFlight;
use crate::sys::{CU_MEMHOSTALLOC_DEVICEMAP, CUdeviceptr};
use crate::vmm::AddressRange;

/// Device memory. The last handle frees it; graphs that use it are handles too.
///
/// Dropping it while work that uses it is in flight does not endanger this process: the driver waits in `cuMemFree` in
/// practice, which its documentation allows and does not promise; otherwise the device would fault.
pub struct DeviceBuffer {
    shared: Arc<DeviceMemory>,
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes at {:#x})", self.len(), self.address())
    }
}

impl DeviceBuffer {
    pub(crate) fn alloc(context: &Context, size: Bytes) -> Result<Self, DriverError> {
        refuse_empty(size, "device memory")?;
        let _entered = context.enter()?;
        let mut address: CUdeviceptr = 0;
        // SAFETY: `address` is a valid place for the answer; the context is current.
        let code = unsafe { (context.api().cuMemAlloc_v2)(&mut address, size.0 as usize) };
        context.api().check(code, "cuMemAlloc_v2", || format!("allocating {size} of device memory"))?;
        let backing = Backing::Allocated(context.clone());
        Ok(Self { shared: Arc::new(DeviceMemory { backing, address, length: size.0 }) })
    }

    /// Memory that the virtual memory calls put together.
    pub(crate) fn mapped(range: AddressRange) -> Self {
        let (address, length) = (range.address(), range.size().0);
        Self {
            shared: Arc::new(DeviceMemory { backing: Backing::Mapped { _range: range }, address, length }),
        }
    }

    /// Its size, bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "there is no empty device memory")]
    pub fn len(&self) -> u64 {
        self.shared.length
    }

    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.shared.address
    }

    pub(crate) fn shared(&self) -> Arc<DeviceMemory> {
        Arc::clone(&self.shared)
    }
}

/// What a [`DeviceBuffer`] and graphs that use it own together.
pub(crate) struct DeviceMemory {
    backing: Backing,
    address: CUdeviceptr,
    length: u64,
}

enum Backing {
    Allocated(Context),
    /// Unmaps and frees itself.
    Mapped {
        _range: AddressRange,
    },
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Backing::Allocated(context) = &self.backing else { return };
        let Ok(_entered) = context.enter() else { return };
        // SAFETY: this is the only owner of the allocation, and its context is alive and current. After a fault the call
        // fails, and the memory goes with the process.
        let _ = unsafe { (context.api().cuMemFree_v2)(self.address) };
    }
}

/// Pinned host memory: the device copies from and to it at full speed, and kernels can access it at
/// [`PinnedBuffer::device_address`].
///
/// The device may write while this process reads. So there are no references into it: it is read and written through calls
/// that copy, and a read while a copy is in flight gives any mixture of old and new bytes. Single aligned words
/// ([`PinnedBuffer::load_u32`]) are never torn. One thread at a time may use it, for which the compiler cares.
///
/// Dropping it waits for the streams it was used with. If a kernel there only ends when it finds a flag in this memory,
/// set the flag first. If the wait fails, the memory is not freed: the device might still write there.
pub struct PinnedBuffer {
    shared: Arc<PinnedMemory>,
    /// Two threads must not write at once.
    not_sync: PhantomData<std::cell::Cell<()>>,
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedBuffer({} bytes at {:#x})", self.len(), self.device_address())
    }
}

impl PinnedBuffer {
    pub(crate) fn alloc(context: &Context, size: Bytes) -> Result<Self, DriverError> {
        refuse_empty(size, "pinned memory")?;
        let _entered = context.enter()?;
        let api = context.api();
        let mut host = std::ptr::null_mut();
        // SAFETY: `host` is a valid place for the answer; the context is current.
        let code = unsafe { (api.cuMemHostAlloc)(&mut host, size.0 as usize, CU_MEMHOSTALLOC_DEVICEMAP) };
        api.check(code, "cuMemHostAlloc", || format!("allocating {size} of pinned host memory"))?;
        let Some(host) = NonNull::new(host.cast::<u8>()) else {
            return Err(DriverError::Invalid(format!(
                "the driver gave no address for {size} of pinned memory"
            )));
        };
        let mut memory = PinnedMemory {
            context: context.clone(),
            host,
            device: 0,
            length: size.0,
            in_flight: InFlight::default(),
        };
        // SAFETY: the driver just gave these bytes to this call alone.
        unsafe { host.as_ptr().write_bytes(0, size.0 as usize) };
        // SAFETY: the answer's place is valid, and the memory was allocated for being mapped; 0 is the only flag.
        let code = unsafe { (api.cuMemHostGetDevicePointer_v2)(&mut memory.device, host.as_ptr().cast(), 0) };
        api.check(code, "cuMemHostGetDevicePointer_v2", || {
            "asking where pinned memory is for the device".into()
        })?;
        Ok(Self { shared: Arc::new(memory), not_sync: PhantomData })
    }

    /// Its size, bytes; never 0.
    #[expect(clippy::len_without_is_empty, reason = "there is no empty pinned memory")]
    pub fn len(&self) -> u64 {
        self.shared.length
    }

    /// Its address as kernels see it.
    pub fn device_address(&self) -> u64 {
        self.shared.device
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`].
    pub fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), DriverError> {
        check_range("read of pinned memory", offset, to.len() as u64, self.len())?;
        let mut at = offset as usize;
        let mut rest = to;
        while !rest.is_empty() {
            let whole_word = at.is_multiple_of(WORD) && rest.len() >= WORD;
            let step = if whole_word { WORD } else { 1 };
            let (now, later) = rest.split_at_mut(step);
            // SAFETY: `at .. at + step` is inside the allocation by the check above, and the allocation begins on a page,
            // so `at` is aligned where a word is read. Reads are volatile because the device may be writing; any bytes
            // are a valid value.
            unsafe {
                let place = self.host_address().add(at);
                if whole_word {
                    now.copy_from_slice(&place.cast::<u64>().read_volatile().to_ne_bytes());
                } else {
                    now[0] = place.read_volatile();
                }
            }
            (at, rest) = (at + step, later);
        }
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), DriverError> {
        check_range("write to pinned memory", offset, from.len() as u64, self.len())?;
        let mut at = offset as usize;
        let mut rest = from;
        while let Some(first) = rest.first() {
            let word = rest.first_chunk::<WORD>().filter(|_| at.is_multiple_of(WORD));
            // SAFETY: as in `read`; writes are volatile because the device may be reading, and no other thread has access.
            unsafe {
                let place = self.host_address().add(at);
                match word {
                    Some(word) => place.cast::<u64>().write_volatile(u64::from_ne_bytes(*word)),
                    None => place.write_volatile(*first),
                }
            }
            let step = if word.is_some() { WORD } else { 1 };
            (at, rest) = (at + step, &rest[step..]);
        }
        Ok(())
    }

    /// The 32-bit word at `offset`, which is a multiple of 4. What the device wrote before it (with a system-wide fence) is
    /// visible afterwards.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or [`DriverError::Invalid`] for an offset between words; so for the following.
    pub fn load_u32(&self, offset: u64) -> Result<u32, DriverError> {
        let place = self.word(offset, 4)?;
        // SAFETY: inside the allocation and aligned, by `word`; no reference but atomic ones is ever made to it.
        Ok(unsafe { AtomicU32::from_ptr(place.cast()) }.load(Ordering::Acquire))
    }

    /// Writes a 32-bit word, for the device to find. What was written here before is visible to the device with it.
    ///
    /// # Errors
    /// As [`PinnedBuffer::load_u32`].
    pub fn store_u32(&self, offset: u64, value: u32) -> Result<(), DriverError> {
        let place = self.word(offset, 4)?;
        // SAFETY: as in `load_u32`.
        unsafe { AtomicU32::from_ptr(place.cast()) }.store(value, Ordering::Release);
        Ok(())
    }

    /// As [`PinnedBuffer::load_u32`], for 64 bits and a multiple of 8.
    ///
    /// # Errors
    /// As [`PinnedBuffer::load_u32`].
    pub fn load_u64(&self, offset: u64) -> Result<u64, DriverError> {
        let place = self.word(offset, 8)?;
        // SAFETY: as in `load_u32`.
        Ok(unsafe { AtomicU64::from_ptr(place.cast()) }.load(Ordering::Acquire))
    }

    /// As [`PinnedBuffer::store_u32`], for 64 bits and a multiple of 8.
    ///
    /// # Errors
    /// As [`PinnedBuffer::load_u32`].
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), DriverError> {
        let place = self.word(offset, 8)?;
        // SAFETY: as in `load_u32`.
        unsafe { AtomicU64::from_ptr(place.cast()) }.store(value, Ordering::Release);
        Ok(())
    }

    pub(crate) fn host_address(&self) -> *mut u8 {
        self.shared.host.as_ptr()
    }

    pub(crate) fn shared(&self) -> Arc<PinnedMemory> {
        Arc::clone(&self.shared)
    }

    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.shared.in_flight
    }

    /// The place of an aligned word.
    fn word(&self, offset: u64, size: u64) -> Result<*mut u8, DriverError> {
        check_range("word of pinned memory", offset, size, self.len())?;
        if !offset.is_multiple_of(size) {
            return Err(DriverError::Invalid(format!(
                "a word of {size} bytes in pinned memory begins at a multiple of {size}, not at {offset}"
            )));
        }
        // SAFETY: inside the allocation, by the check above.
        Ok(unsafe { self.host_address().add(offset as usize) })
    }
}

/// What a [`PinnedBuffer`] and graphs that use it own together.
pub(crate) struct PinnedMemory {
    context: Context,
    host: NonNull<u8>,
    device: CUdeviceptr,
    length: u64,
    in_flight: InFlight,
}

// SAFETY: the pointer is to memory that belongs to this value alone and to no thread; it is only followed by
// `PinnedBuffer`, of which there is one, which is not `Sync`. Graphs that share this value never look inside.
unsafe impl Send for PinnedMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for PinnedMemory {}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if !self.in_flight.settle() {
            return;
        }
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: this is the only owner, its context is alive and current, and all work that uses it is done.
        let _ = unsafe { (self.context.api().cuMemFreeHost)(self.host.as_ptr().cast()) };
    }
}

/// Bytes moved at once where alignment allows.
const WORD: usize = 8;

fn refuse_empty(size: Bytes, what: &str) -> Result<(), DriverError> {
    if size.0 == 0 {
        return Err(DriverError::Invalid(format!("an allocation of {what} needs at least 1 byte")));
    }
    Ok(())
}
