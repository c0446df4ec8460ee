//! What this process has on the device.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use crate::context::{self, Context, Kind, SmSet};
use crate::device::fault::Faults;
use crate::device::{Device, DeviceError, mps};
use crate::environment;
use crate::error::Code;
use crate::memory::Memory;
use crate::memory::pool::Pool;
use crate::objects::Objects;
use crate::slices;

/// Everything of a process that called `cuInit`.
pub(crate) struct Process {
    pub(crate) device: &'static Device,
    pub(crate) memory: Memory,
    pub(crate) objects: Objects,
    pub(crate) mps: Option<mps::Client>,
    /// The pool of `cuMemAllocAsync`: the default one and the one set in its place.
    pub(crate) default_pool: u64,
    pub(crate) current_pool: AtomicU64,
    faults: Faults,
    launches: AtomicU64,
    allocations: AtomicU64,
    primary: Mutex<Primary>,
}

#[derive(Default)]
struct Primary {
    context: Option<Arc<Context>>,
    retained: u32,
    flags: u32,
}

/// A fault that the environment asked for.
pub(crate) enum Injected {
    IllegalAccess,
    Assert,
    Hang,
    DeviceLost,
}

static STATE: AtomicPtr<Process> = AtomicPtr::new(std::ptr::null_mut());
/// In a child of a process that had called `cuInit`: the driver does not work there, and neither does the real one.
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn forget_in_child() {
    if !STATE.swap(std::ptr::null_mut(), Ordering::AcqRel).is_null() {
        FORKED.store(true, Ordering::Release);
    }
}

/// The process's state.
///
/// # Errors
/// `cuInit` was not called, or was called before a fork.
pub(crate) fn get() -> Result<&'static Process, Code> {
    // SAFETY: a pointer in here came from a leaked box.
    unsafe { STATE.load(Ordering::Acquire).as_ref() }.ok_or(Code::NOT_INITIALIZED)
}

/// What `cuInit` does.
pub(crate) fn init() -> Result<(), Code> {
    static STARTING: Mutex<()> = Mutex::new(());
    if FORKED.load(Ordering::Acquire) {
        return Err(Code::NOT_INITIALIZED);
    }
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Ok(process) = get() {
        return process.check();
    }
    let device = Device::of_this_process().map_err(|error| say(&error, Code::NO_DEVICE))?;
    if device.is_lost() {
        return Err(say(&DeviceError::Lost, Code::NO_DEVICE));
    }
    if !visible(environment::text(environment::VISIBLE_DEVICES).as_deref(), &device.figures().uuid) {
        return Err(Code::NO_DEVICE);
    }
    let faults = environment::text(environment::FAULT).unwrap_or_default();
    let faults = faults
        .parse()
        .map_err(|error| say(&format!("{}: {error}", environment::FAULT), Code::INVALID_VALUE))?;
    let process: &'static Process = Box::leak(Box::new(Process::new(device, faults)?));
    static AT_FORK: Once = Once::new();
    AT_FORK.call_once(|| {
        // SAFETY: the handler only changes two atomics.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(forget_in_child)) };
    });
    STATE.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
    Ok(())
}

/// Says on standard error what a code cannot; the code.
#[expect(
    clippy::print_stderr,
    reason = "a library in somebody's process has no other place to say what is wrong"
)]
pub(crate) fn say(what: &dyn std::fmt::Display, code: Code) -> Code {
    eprintln!("softgpu: {what}");
    code
}

/// Whether `CUDA_VISIBLE_DEVICES` lets a program see the only device.
fn visible(variable: Option<&str>, uuid: &str) -> bool {
    let Some(variable) = variable else { return true };
    let first = variable.split(',').next().unwrap_or_default().trim();
    first == "0" || (first.len() > "GPU-".len() && first.starts_with("GPU-") && uuid.starts_with(first))
}

impl Process {
    fn new(device: &'static Device, faults: Faults) -> Result<Self, Code> {
        let memory = Memory::new(device)?;
        let objects = Objects::default();
        let pool = objects.pools.add(Arc::new(Pool::new(0, 0, memory.arena, device)));
        Ok(Self {
            device,
            memory,
            objects,
            mps: mps::client(),
            default_pool: pool,
            current_pool: AtomicU64::new(pool),
            faults,
            launches: AtomicU64::new(0),
            allocations: AtomicU64::new(0),
            primary: Mutex::default(),
        })
    }

    /// The error that every call returns once a fault has ended the contexts.
    pub(crate) fn check(&self) -> Result<(), Code> {
        if self.device.is_lost() {
            return Err(Code::DEVICE_UNAVAILABLE);
        }
        match self.device.fault() {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// Ends the contexts with an error.
    pub(crate) fn raise(&self, code: Code) {
        // What the other clients of an MPS daemon get is not documented, only that it does not say whose fault it was. An assertion
        // is found in memory of the process itself, so nobody else can be told of one; of anything else all are told the same
        // here.
        let others = match code {
            Code::ASSERT if self.faults.assert_for_all_at_launch.is_none() => None,
            Code::ASSERT => Some(Code::LAUNCH_FAILED.0),
            _ => Some(code.0),
        };
        if self.mps.is_some() && others.is_some() {
            mps::clients_have_faulted();
        }
        // Where the lock cannot be taken, the folder is gone, and with it everybody else.
        let _ = self.device.raise(code.0, others);
    }

    /// Whose turns its kernels take.
    pub(crate) fn group(&self) -> u64 {
        self.mps.map_or(u64::from(std::process::id()), |client| client.group)
    }

    /// All SMs of the device, or those that MPS leaves to this process.
    pub(crate) fn sms(&self) -> SmSet {
        let all = self.device.figures().gpu.sms.value;
        let share = self.mps.map_or(1.0, |client| client.sm_share);
        // Whole TPCs of two SMs, rounded up.
        let count = ((f64::from(all) * share / 2.0).ceil() as u32 * 2).clamp(2.min(all), all);
        SmSet::of(0..count)
    }

    /// The fault that this launch shall have.
    pub(crate) fn inject_at_launch(&self) -> Option<Injected> {
        let number = self.launches.fetch_add(1, Relaxed) + 1;
        if self.faults.illegal_access_at_launch == Some(number) {
            Some(Injected::IllegalAccess)
        } else if [self.faults.assert_at_launch, self.faults.assert_for_all_at_launch].contains(&Some(number))
        {
            Some(Injected::Assert)
        } else if self.faults.hang_at_launch == Some(number) {
            Some(Injected::Hang)
        } else if self.faults.device_lost_after.is_some_and(|after| number > after) {
            Some(Injected::DeviceLost)
        } else {
            None
        }
    }

    /// The SM at which the groups of a split begin.
    pub(crate) fn split_from(&self) -> u64 {
        self.faults.split_from.unwrap_or(0)
    }

    /// The SMs that a green context over `sms` gets.
    pub(crate) fn green_sms(&self, sms: SmSet) -> SmSet {
        let more = usize::try_from(self.faults.green_more.unwrap_or(0)).unwrap_or(usize::MAX);
        let others = self.sms().iter().filter(|sm| !sms.iter().any(|own| own == *sm)).take(more);
        sms.union(SmSet::of(others))
    }

    /// Refuses an allocation where the environment asked for that.
    pub(crate) fn inject_at_allocation(&self) -> Result<(), Code> {
        let number = self.allocations.fetch_add(1, Relaxed) + 1;
        if self.faults.oom_after.is_some_and(|after| number > after) {
            Err(Code::OUT_OF_MEMORY)
        } else {
            Ok(())
        }
    }

    /// The context that is current on this thread.
    pub(crate) fn current(&self) -> Result<Arc<Context>, Code> {
        self.check()?;
        match context::current() {
            0 => Err(Code::INVALID_CONTEXT),
            handle => self.objects.contexts.get(handle).map_err(|_| Code::CONTEXT_IS_DESTROYED),
        }
    }

    /// The context of a handle; the current one for 0.
    pub(crate) fn context(&self, handle: u64) -> Result<Arc<Context>, Code> {
        self.check()?;
        if handle == 0 {
            self.current()
        } else {
            self.objects.contexts.get(handle).map_err(|_| Code::INVALID_CONTEXT)
        }
    }

    /// A new context that takes memory of the device.
    pub(crate) fn make_context(
        &self,
        kind: Kind,
        flags: u32,
        affinity: Option<u32>,
    ) -> Result<Arc<Context>, Code> {
        self.device
            .add_context(self.mps.map_or(0, |client| client.group))
            .map_err(|error| code_of(&error))?;
        if self.mps.is_none() {
            slices::ask(self.device);
        }
        let sms = match affinity {
            Some(count) => SmSet::of(self.sms().iter().take(count as usize)),
            None => self.sms(),
        };
        let context = Context::new(kind, sms, flags, affinity);
        self.objects.contexts.put(context.handle, Arc::clone(&context));
        Ok(context)
    }

    /// Ends a context that took memory: waits for its streams and frees what it allocated.
    pub(crate) fn end_context(&self, context: &Context) {
        // After a fault there is nothing to wait for.
        let _ = self.synchronize(context);
        for stream in context.place.streams() {
            stream.close();
            let _ = self.objects.streams.remove(stream.handle);
        }
        let _ = self.objects.contexts.remove(context.handle);
        self.memory.free_of_context(context.handle);
        let _ = self.device.remove_context();
    }

    /// Takes the primary context, made by the first who does.
    pub(crate) fn retain_primary(&self) -> Result<Arc<Context>, Code> {
        self.check()?;
        let mut primary = self.primary();
        let context = match &primary.context {
            Some(context) => Arc::clone(context),
            None => {
                let context = self.make_context(Kind::Primary, primary.flags, None)?;
                primary.context = Some(Arc::clone(&context));
                context
            }
        };
        primary.retained += 1;
        Ok(context)
    }

    /// Gives the primary context back; with `reset`, whoever else has it.
    pub(crate) fn release_primary(&self, reset: bool) -> Result<(), Code> {
        let mut primary = self.primary();
        if !reset {
            primary.retained = primary.retained.checked_sub(1).ok_or(Code::INVALID_CONTEXT)?;
        }
        if (primary.retained == 0 || reset)
            && let Some(context) = primary.context.take()
        {
            self.end_context(&context);
        }
        Ok(())
    }

    /// The primary context, where there is one.
    pub(crate) fn primary_context(&self) -> Option<Arc<Context>> {
        self.primary().context.clone()
    }

    /// The flags that the primary context has, or will have.
    pub(crate) fn primary_flags(&self) -> u32 {
        self.primary().flags
    }

    pub(crate) fn set_primary_flags(&self, flags: u32) {
        self.primary().flags = flags;
    }

    /// Waits for a context: a green one for itself, any other also for the green ones.
    pub(crate) fn synchronize(&self, context: &Context) -> Result<(), Code> {
        let mut streams = context.place.streams();
        if context.kind == Kind::Primary {
            let green = self.objects.contexts.all().into_iter().filter(|other| other.kind == Kind::Green);
            streams.extend(green.flat_map(|other| other.place.streams()));
        }
        for stream in streams {
            stream.synchronize(self)?;
        }
        self.settle_pools();
        self.check()
    }

    /// Waits for everything that any stream has, as freeing does.
    pub(crate) fn quiesce(&self) -> Result<(), Code> {
        for context in self.objects.contexts.all() {
            for stream in context.place.streams() {
                if stream.capture().is_none() {
                    stream.synchronize(self)?;
                }
            }
        }
        self.check()
    }

    /// Gives back what pools hold beyond their thresholds, as waits of the host do.
    pub(crate) fn settle_pools(&self) {
        for pool in self.objects.pools.all() {
            pool.settle();
        }
    }

    fn primary(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the driver returns for what went wrong with the shared state.
pub(crate) fn code_of(error: &DeviceError) -> Code {
    match error {
        DeviceError::OutOfMemory | DeviceError::TooManyProcesses => Code::OUT_OF_MEMORY,
        DeviceError::MpsRecovering => Code::MPS_SERVER_NOT_READY,
        DeviceError::Lost => Code::DEVICE_UNAVAILABLE,
        DeviceError::Folder(_) | DeviceError::File { .. } | DeviceError::Foreign { .. } => {
            Code::OPERATING_SYSTEM
        }
    }
}

impl From<DeviceError> for Code {
    fn from(error: DeviceError) -> Self {
        code_of(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_are_indices_and_uuids() {
        let uuid = "GPU-01234567-89ab";
        for (variable, expect) in [
            (None, true),
            (Some("0"), true),
            (Some("0,1"), true),
            (Some("GPU-01234567-89ab"), true),
            (Some("GPU-0123"), true),
            (Some(""), false),
            (Some("-1"), false),
            (Some("1"), false),
            (Some("GPU-"), false),
            (Some("GPU-99"), false),
        ] {
            assert_eq!(visible(variable, uuid), expect, "{variable:?}");
        }
    }
}
