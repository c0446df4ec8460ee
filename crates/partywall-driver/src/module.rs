//! Code for the device: modules, their kernels, and launches.

use std::ffi::{CString, c_uint, c_void};
use std::fmt;
use std::sync::Arc;

use crate::context::Context;
use crate::error::{DriverError, check_range};
use crate::in_flight::InFlight;
use crate::memory::{DeviceBuffer, PinnedBuffer};
use crate::stream::Stream;
use crate::sys::{
    Api, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
    CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CUfunction, CUmodule, CUresult,
};

/// Most arguments of a kernel. Launches put them on the stack.
pub const MAX_ARGS: usize = 32;
/// Room for what the PTX compiler complains about; the first errors matter.
const LOG_BYTES: usize = 8 * 1024;

/// Loaded code. Kernels taken from it keep it loaded.
#[derive(Clone)]
pub struct Module {
    shared: Arc<Code>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("raw", &self.shared.raw).finish_non_exhaustive()
    }
}

/// A kernel. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Function {
    module: Module,
    raw: CUfunction,
    name: Arc<str>,
    /// Sizes of the parameters, bytes, where the driver tells.
    parameters: Option<Arc<[usize]>>,
}

/// An argument of a kernel, by value as the kernel declares it.
#[derive(Debug, Clone, Copy)]
pub enum KernelArg<'a> {
    /// `int`
    I32(i32),
    /// `unsigned int`
    U32(u32),
    /// `unsigned long long`, or an address that the caller keeps valid
    U64(u64),
    /// `float`
    F32(f32),
    /// A pointer to the beginning of a buffer.
    Buffer(&'a DeviceBuffer),
    /// A pointer into a buffer, so many bytes from its beginning.
    BufferAt(&'a DeviceBuffer, u64),
    /// A pointer to the beginning of pinned memory.
    Pinned(&'a PinnedBuffer),
}

impl Module {
    pub(crate) fn load(context: &Context, ptx: &str) -> Result<Self, DriverError> {
        let image = CString::new(ptx).map_err(|error| {
            let at = error.nul_position();
            DriverError::Invalid(format!("PTX is text without zero bytes, and this has one at byte {at}"))
        })?;
        let _entered = context.enter()?;
        let mut log = [0_u8; LOG_BYTES];
        let mut options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        // The driver wants sizes as if they were pointers.
        let mut values: [*mut c_void; 2] =
            [log.as_mut_ptr().cast(), std::ptr::without_provenance_mut::<c_void>(LOG_BYTES)];
        let mut raw = CUmodule::NULL;
        // SAFETY: the image ends with a zero byte; options and values are arrays of the given length, the log has the
        // size that is told, and all of them live until the call returns.
        let code = unsafe {
            (context.api().cuModuleLoadDataEx)(
                &mut raw,
                image.as_ptr().cast(),
                options.len() as c_uint,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        };
        context.api().check(code, "cuModuleLoadDataEx", || loading(&log))?;
        let shared = Code { context: context.clone(), raw, in_flight: InFlight::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// A kernel by its name in the PTX. It is loaded onto the device now: a first launch that loads may have to wait for
    /// everything else on the device, and a neighbour's kernel may never end.
    ///
    /// # Errors
    /// What the driver returned: 500, `CUDA_ERROR_NOT_FOUND`, where there is no such kernel.
    pub fn function(&self, name: &str) -> Result<Function, DriverError> {
        let c_name = CString::new(name)
            .map_err(|_| DriverError::Invalid(format!("the kernel name {name:?} has a zero byte")))?;
        let context = &self.shared.context;
        let _entered = context.enter()?;
        let api = context.api();
        let mut raw = CUfunction::NULL;
        // SAFETY: `raw` is a valid place for the answer, the module is alive, and the name ends with a zero byte.
        let code = unsafe { (api.cuModuleGetFunction)(&mut raw, self.shared.raw, c_name.as_ptr()) };
        api.check(code, "cuModuleGetFunction", || format!("looking for the kernel `{name}`"))?;
        if let Ok(load) = api.cuFuncLoad() {
            // SAFETY: the function is alive, as its module is.
            let code = unsafe { load(raw) };
            api.check(code, "cuFuncLoad", || format!("loading the kernel `{name}`"))?;
        }
        let parameters = parameters(api, raw).map(Arc::from);
        Ok(Function { module: self.clone(), raw, name: name.into(), parameters })
    }
}

impl Function {
    /// Its name in the PTX.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn raw(&self) -> CUfunction {
        self.raw
    }

    /// How many blocks of so many threads and so much dynamic shared memory (bytes) fit on an SM at once.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn max_active_blocks(&self, block_threads: u32, shared_bytes: u32) -> Result<u32, DriverError> {
        let threads = i32::try_from(block_threads)
            .map_err(|_| DriverError::Invalid(format!("a block cannot have {block_threads} threads")))?;
        let mut blocks = 0;
        self.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            "asking for the occupancy of",
            |api, raw| {
                // SAFETY: the function is alive; `blocks` is a valid place for the answer.
                unsafe {
                    let ask = api.cuOccupancyMaxActiveBlocksPerMultiprocessor;
                    ask(&mut blocks, raw, threads, shared_bytes as usize)
                }
            },
        )?;
        Ok(u32::try_from(blocks).unwrap_or(0))
    }

    /// Lets launches ask for up to so much dynamic shared memory; more than 48 KiB needs this.
    ///
    /// # Errors
    /// What the driver returned: 1, `CUDA_ERROR_INVALID_VALUE`, for more than the device has.
    pub fn set_max_dynamic_shared(&self, bytes: u32) -> Result<(), DriverError> {
        let value = i32::try_from(bytes).map_err(|_| {
            DriverError::Invalid(format!("a block cannot have {bytes} bytes of shared memory"))
        })?;
        self.call("cuFuncSetAttribute", "setting the shared memory of", |api, raw| {
            // SAFETY: the function is alive; the driver checks the value.
            unsafe { (api.cuFuncSetAttribute)(raw, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, value) }
        })
    }

    /// Submits a launch of `grid` blocks of `block` threads, each block with so much dynamic shared memory (bytes).
    ///
    /// Number and sizes of the arguments are checked where the driver tells them (CUDA 12.4 and later). Pinned memory in
    /// `args` is not freed before the kernel is done, and while `stream` records a graph all memory in `args` is
    /// kept for the graph.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] for arguments that do not fit the kernel, [`DriverError::OutOfBounds`], or what the driver
    /// returned, for this launch or earlier work. A fault of this kernel shows in later calls.
    ///
    /// # Safety
    /// The kernel is code that no compiler checks. With these arguments it must stay inside the memory they point to, and
    /// that memory must be valid whenever the kernel runs: until it is done, and, while `stream` records a graph, for
    /// every launch of that graph. Number and types must be what the kernel declares, also where sizes agree. Two kernels that
    /// may run at once must not write where the other reads or writes, unless both are made for that.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        shared_bytes: u32,
        args: &[KernelArg<'_>],
    ) -> Result<(), DriverError> {
        self.check_args(args)?;
        let mut values = [0_u64; MAX_ARGS];
        let mut places = [std::ptr::null_mut::<c_void>(); MAX_ARGS];
        for ((value, place), arg) in values.iter_mut().zip(&mut places).zip(args) {
            *value = arg.bits()?;
            *place = std::ptr::from_mut(value).cast();
        }
        for arg in args {
            arg.hold(stream);
        }
        stream.hold_in_flight(&self.module.shared, &self.module.shared.in_flight);
        let submitted = stream.call("cuLaunchKernel", "launching a kernel", |api, queue| {
            // SAFETY: function and stream are alive. Each place points to a value that is at least as large as the kernel's
            // parameter (checked, or promised by the caller), and the driver copies them before it returns. What the kernel
            // does is the caller's promise.
            unsafe {
                (api.cuLaunchKernel)(
                    self.raw,
                    grid.0,
                    grid.1,
                    grid.2,
                    block.0,
                    block.1,
                    block.2,
                    shared_bytes,
                    queue,
                    places.as_mut_ptr(),
                    std::ptr::null_mut(),
                )
            }
        });
        submitted.map_err(|error| self.explain(error, grid, block, shared_bytes))
    }

    /// Refuses arguments that the kernel does not have.
    fn check_args(&self, args: &[KernelArg<'_>]) -> Result<(), DriverError> {
        let name = &self.name;
        if args.len() > MAX_ARGS {
            let count = args.len();
            return Err(DriverError::Invalid(format!(
                "the launch of `{name}` has {count} arguments; at most {MAX_ARGS} are possible"
            )));
        }
        let Some(parameters) = &self.parameters else { return Ok(()) };
        if parameters.len() != args.len() {
            let (wanted, given) = (parameters.len(), args.len());
            return Err(DriverError::Invalid(format!(
                "the kernel `{name}` takes {wanted} arguments and was given {given}"
            )));
        }
        for (index, (wanted, arg)) in parameters.iter().zip(args).enumerate() {
            if *wanted != arg.size() {
                let given = arg.size();
                return Err(DriverError::Invalid(format!(
                    "argument {index} (counted from 0) of the kernel `{name}` has {wanted} bytes, and {arg:?} has {given}"
                )));
            }
        }
        Ok(())
    }

    /// Puts into a launch's error what was launched.
    fn explain(
        &self,
        mut error: DriverError,
        grid: (u32, u32, u32),
        block: (u32, u32, u32),
        shared_bytes: u32,
    ) -> DriverError {
        if let DriverError::Cuda { what, .. } = &mut error {
            *what = format!(
                "launching the kernel `{}` with grid {grid:?}, block {block:?} and {shared_bytes} bytes of shared memory",
                self.name
            );
        }
        error
    }

    fn call(
        &self,
        call: &'static str,
        what: &'static str,
        ask: impl FnOnce(&Api, CUfunction) -> CUresult,
    ) -> Result<(), DriverError> {
        let context = &self.module.shared.context;
        let _entered = context.enter()?;
        let code = ask(context.api(), self.raw);
        context.api().check(code, call, || format!("{what} the kernel `{}`", self.name))
    }
}

impl KernelArg<'_> {
    /// Bytes the kernel gets.
    fn size(&self) -> usize {
        match self {
            Self::I32(_) | Self::U32(_) | Self::F32(_) => 4,
            Self::U64(_) | Self::Buffer(_) | Self::BufferAt(..) | Self::Pinned(_) => 8,
        }
    }

    /// The value in the first [`KernelArg::size`] bytes of a word.
    fn bits(&self) -> Result<u64, DriverError> {
        let four = |bytes: [u8; 4]| {
            let mut word = [0_u8; 8];
            word[..4].copy_from_slice(&bytes);
            u64::from_ne_bytes(word)
        };
        Ok(match self {
            Self::I32(value) => four(value.to_ne_bytes()),
            Self::U32(value) => four(value.to_ne_bytes()),
            Self::F32(value) => four(value.to_ne_bytes()),
            Self::U64(value) => *value,
            Self::Buffer(buffer) => buffer.address(),
            Self::BufferAt(buffer, offset) => {
                check_range("argument that points into a buffer", *offset, 0, buffer.len())?;
                buffer.address() + offset
            }
            Self::Pinned(buffer) => buffer.device_address(),
        })
    }

    fn hold(&self, stream: &Stream) {
        match self {
            Self::I32(_) | Self::U32(_) | Self::U64(_) | Self::F32(_) => {}
            Self::Buffer(buffer) | Self::BufferAt(buffer, _) => stream.hold(&buffer.shared()),
            Self::Pinned(buffer) => stream.hold_in_flight(&buffer.shared(), buffer.in_flight()),
        }
    }
}

/// What modules, their kernels and graphs that use them own together.
struct Code {
    context: Context,
    raw: CUmodule,
    in_flight: InFlight,
}

impl Drop for Code {
    fn drop(&mut self) {
        if !self.in_flight.settle() {
            return;
        }
        let Ok(_entered) = self.context.enter() else { return };
        // SAFETY: this is the only owner, its context is alive and current, and no kernel of it is running.
        let _ = unsafe { (self.context.api().cuModuleUnload)(self.raw) };
    }
}

/// Sizes of a kernel's parameters, in bytes; nothing where the driver cannot tell.
fn parameters(api: &Api, function: CUfunction) -> Option<Vec<usize>> {
    let ask = api.cuFuncGetParamInfo().ok()?;
    let mut sizes = Vec::new();
    // One more than can be launched, so that too many are noticed.
    while sizes.len() <= MAX_ARGS {
        let (mut offset, mut size) = (0_usize, 0_usize);
        // SAFETY: the function is alive, and both are valid places for the answer.
        match unsafe { ask(function, sizes.len(), &mut offset, &mut size) } {
            CUresult::SUCCESS => sizes.push(size),
            // There is no parameter of this number: the list is complete.
            CUresult::INVALID_VALUE => return Some(sizes),
            _ => return None,
        }
    }
    Some(sizes)
}

/// What was being done, with what the PTX compiler said.
fn loading(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    let said = String::from_utf8_lossy(&log[..end]);
    match said.trim() {
        "" => "loading a PTX module".into(),
        said => format!("loading a PTX module, of which the compiler said: {said}"),
    }
}
