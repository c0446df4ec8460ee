//! A tenant that is confined to some SMs, as its program sees it, and where its kernels run.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::cuda::{Cuda, Handle, ok};

/// The groups that the test's node says, as `FIRST COUNT`; empty: the tenant is not confined.
pub(crate) const GROUPS: &str = "PARTYWALL_TEST_GROUPS";

const SMS_PER_GROUP: u32 = 2;
/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const SM_COUNT: u32 = 16;
/// `CU_DEV_RESOURCE_TYPE_SM`, the size of `CUdevResource`, and the word of it that is the number of SMs.
const SM_RESOURCE: u32 = 1;
const RESOURCE_WORDS: usize = 36;
const SM_WORD: usize = 24;
const ALL_SMS: u32 = 132;
const NOT_SUPPORTED: u32 = 801;
const LEGACY: Handle = std::ptr::without_provenance_mut(1);
const NON_BLOCKING: u32 = 1;
const CAPTURE_THREAD: u32 = 1;

const PTX: &str = concat!(include_str!("../../../../kernels/ptx/placement.ptx"), "\0");

/// Counts on which SMs blocks ran.
struct Placement<'a> {
    cuda: &'a Cuda,
    kernel: Handle,
    counts: u64,
}

// SAFETY: handles of the driver, which may be used in any thread.
unsafe impl Sync for Placement<'_> {}

impl<'a> Placement<'a> {
    fn new(cuda: &'a Cuda) -> Self {
        let (mut module, mut kernel, mut counts) = (null_mut(), null_mut(), 0);
        // SAFETY: documented use.
        unsafe {
            ok((cuda.cuModuleLoadData)(&raw mut module, PTX.as_ptr().cast()));
            ok((cuda.cuModuleGetFunction)(&raw mut kernel, module, c"count_by_sm".as_ptr()));
            ok((cuda.cuMemAlloc_v2)(&raw mut counts, ALL_SMS as usize * 4));
        }
        let placement = Self { cuda, kernel, counts };
        placement.clear();
        placement
    }

    fn clear(&self) {
        // SAFETY: documented use.
        unsafe { ok((self.cuda.cuMemsetD32_v2)(self.counts, 0, ALL_SMS as usize)) };
    }

    /// Two blocks for each SM of the device.
    fn launch(&self, stream: Handle) {
        let (mut counts, mut ids, mut stay) = (self.counts, ALL_SMS, 1000_u64);
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut counts).cast(), (&raw mut ids).cast(), (&raw mut stay).cast()];
        let (kernel, arguments) = (self.kernel, arguments.as_mut_ptr());
        // SAFETY: documented use; the driver has read the arguments when it returns.
        ok(unsafe {
            (self.cuda.cuLaunchKernel)(kernel, 2 * ALL_SMS, 1, 1, 32, 1, 1, 0, stream, arguments, null_mut())
        });
    }

    /// The first and the last SM that had blocks, and the number of those that had, after the context was waited for.
    fn taken(&self) -> (u32, u32, u32) {
        let mut counts = [0_u32; ALL_SMS as usize];
        // SAFETY: documented use.
        unsafe {
            ok((self.cuda.cuCtxSynchronize)());
            ok((self.cuda.cuMemcpyDtoH_v2)(counts.as_mut_ptr().cast(), self.counts, size_of_val(&counts)));
        }
        assert_eq!(counts.iter().sum::<u32>(), 2 * ALL_SMS, "all blocks ran, and the wait was long enough");
        self.clear();
        let taken: Vec<u32> = (0..ALL_SMS).filter(|&sm| counts[sm as usize] > 0).collect();
        (taken[0], *taken.last().unwrap(), taken.len() as u32)
    }
}

/// What a runtime does: the primary context, made current.
fn primary(cuda: &Cuda) -> Handle {
    let (mut primary, mut current) = (null_mut(), null_mut());
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuDevicePrimaryCtxRetain)(&raw mut primary, 0));
        ok((cuda.cuCtxSetCurrent)(primary));
        ok((cuda.cuCtxGetCurrent)(&raw mut current));
    }
    assert_eq!(current, primary, "the program knows one context");
    primary
}

fn stream(cuda: &Cuda, primary: Handle) -> Handle {
    let (mut stream, mut of) = (null_mut(), null_mut());
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuStreamCreate)(&raw mut stream, NON_BLOCKING));
        ok((cuda.cuStreamGetCtx)(stream, &raw mut of));
    }
    assert_eq!(of, primary);
    stream
}

/// The program.
pub(crate) fn run() {
    let groups = std::env::var(GROUPS).unwrap();
    let set = groups.split_once(' ').map(|(first, count)| [first, count].map(|text| text.parse().unwrap()));
    let [first, count] =
        set.unwrap_or([0, ALL_SMS / SMS_PER_GROUP]).map(|groups: u32| groups * SMS_PER_GROUP);
    let expected = (first, first + count - 1, count);
    let cuda = Cuda::open("libcuda.so.1");
    // SAFETY: documented use.
    unsafe { ok((cuda.cuInit)(0)) };
    let sms = |cuda: &Cuda| {
        let mut sms = 0;
        // SAFETY: documented use.
        unsafe { ok((cuda.cuDeviceGetAttribute)(&raw mut sms, SM_COUNT, 0)) };
        sms as u32
    };
    assert_eq!(sms(&cuda), ALL_SMS, "the device's");
    for _ in 0..2 {
        let context = primary(&cuda);
        let mut resource = [0_u32; RESOURCE_WORDS];
        // SAFETY: room for the answer.
        unsafe { ok((cuda.cuCtxGetDevResource)(context, resource.as_mut_ptr().cast(), SM_RESOURCE)) };
        assert_eq!(resource[SM_WORD], count);
        everywhere(&cuda, context, expected);
        // SAFETY: documented use; nothing of the context is used any more.
        unsafe { ok((cuda.cuDevicePrimaryCtxReset_v2)(0)) };
    }
    let (mut own, mut current) = (null_mut(), null_mut());
    // SAFETY: documented use.
    let refused = unsafe { (cuda.cuCtxCreate_v2)(&raw mut own, 0, 0) };
    assert_eq!(refused, if set.is_some() { NOT_SUPPORTED } else { 0 });
    // SAFETY: documented use.
    unsafe { ok((cuda.cuCtxGetCurrent)(&raw mut current)) };
    assert_eq!(current == own, set.is_none());
}

/// Default streams, streams of its own, another thread, a graph.
fn everywhere(cuda: &Cuda, context: Handle, expected: (u32, u32, u32)) {
    let placement = Placement::new(cuda);
    let own = stream(cuda, context);
    for stream in [null_mut(), LEGACY, own] {
        placement.launch(stream);
        assert_eq!(placement.taken(), expected);
    }
    std::thread::scope(|scope| {
        let thread = || {
            let _ = primary(cuda);
            placement.launch(null_mut());
            placement.taken()
        };
        assert_eq!(scope.spawn(thread).join().unwrap(), expected);
    });
    let (mut graph, mut ready, mut popped) = (null_mut(), null_mut(), null_mut());
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuStreamBeginCapture_v2)(own, CAPTURE_THREAD));
        placement.launch(own);
        ok((cuda.cuStreamEndCapture)(own, &raw mut graph));
        ok((cuda.cuGraphInstantiateWithFlags)(&raw mut ready, graph, 0));
        ok((cuda.cuGraphLaunch)(ready, own));
    }
    assert_eq!(placement.taken(), expected);
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuCtxPushCurrent_v2)(context));
        placement.launch(null_mut());
        assert_eq!(placement.taken(), expected);
        ok((cuda.cuCtxPopCurrent_v2)(&raw mut popped));
    }
    assert_eq!(popped, context);
}

/// The node says what is not so.
pub(crate) fn cannot_be_had() {
    let cuda = Cuda::open("libcuda.so.1");
    let mut context = null_mut();
    // SAFETY: documented use.
    unsafe {
        ok((cuda.cuInit)(0));
        assert_ne!((cuda.cuDevicePrimaryCtxRetain)(&raw mut context, 0), 0);
        assert_ne!((cuda.cuDevicePrimaryCtxRetain)(&raw mut context, 0), 0, "nor at the second time");
    }
}
