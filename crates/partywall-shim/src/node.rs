//! The connection to the node, and the thread that listens to it.
//!
//! # Who does what
//!
//! One thread reads frames; whoever needs an answer sends its question and waits for that thread to have it. Locks here
//! are held for as long as a few stores or one frame takes, and never while the driver is called.
//!
//! # When the node is gone
//!
//! Whoever waits for an answer is told so at once or, if the node is silent, after [`ANSWER_LIMIT_MS`]. The thread tries
//! to register again until it can: first soon, then every two seconds. In the meantime the process goes on with the
//! page and the lease that it has. A process that never had one waits for its node for [`PATIENCE_MS`] at its first use of
//! CUDA, and gets no memory of the GPU until it is known: out of memory is an error that programs expect, and more than
//! the quota would be at the neighbours' cost.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use partywall_shim_api::frame::{ToNode, ToShim};
use partywall_shim_api::page::{Mapped, Page};
use partywall_shim_api::socket::{Received, Socket};
use partywall_shim_api::{Error, VERSION, environment};

use rustix::time::Timespec;

use crate::clock::now_ns;
use crate::coverage;
use crate::process::{page, set_page, variable};
use crate::say::say;
use crate::{launch, memory, slices};

/// How long a node may take to answer. It answers from memory, but with hundreds of processes that begin at once on two processors it
/// took more than two seconds to get to it, and a process that is not answered is out of memory. That a node is dead is known
/// at once; this is only reached when it hangs.
const ANSWER_LIMIT_MS: u32 = 10_000;
/// How often the thread shows that it is alive and sends what is new.
const BEAT_MS: u32 = 500;
/// The first pause before registering again; each is twice as long as the one before.
const FIRST_PAUSE_MS: u32 = 50;
/// The longest pause.
const LAST_PAUSE_MS: u32 = 2_000;
/// How long the first use of CUDA waits for a node that is not there: long enough for one that is being started again.
const PATIENCE_MS: u32 = 5_000;
/// Stack of the thread: it does little, and other people's processes may have many.
const STACK_BYTES: usize = 256 * 1024;

/// What areas do when the process has been registered, for the first time or again, with a new page: write what they have
/// to say into it.
const REGISTERED: &[fn(&'static Page)] = &[coverage::registered, memory::registered, launch::registered];
/// What areas do when the node wants memory back that is not used.
const RECALLED: &[fn()] = &[memory::recalled];

/// How this process stands with its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// There is no node: everything is passed through.
    Alone,
    /// The node knows it.
    Registered,
    /// There should be a node and it does not answer, or there was one: the last lease holds.
    Lost,
    /// The node does not want it.
    Refused,
}

/// A lease on memory, as the node last stated it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    /// All that this process may hold.
    pub(crate) total_bytes: u64,
    /// Whether the last question got at least what it needs.
    pub(crate) granted: bool,
}

/// A registration that holds.
struct Link {
    socket: Socket,
    bell: OwnedFd,
}

/// What the threads of a process share about its node.
struct Node {
    path: PathBuf,
    token: [u8; 16],
    state: Mutex<State>,
    /// Something in `state` has changed.
    changed: Condvar,
}

struct State {
    standing: Standing,
    link: Option<Arc<Link>>,
    lease: Lease,
    /// Questions sent on this link, and how many of them are answered: the node answers in the order of the questions.
    asked: u64,
    answered: u64,
    /// The questions, by their number, whose answers somebody waits for, and the answers that have come.
    awaited: BTreeMap<u64, Option<Lease>>,
}

/// Null until the process is registered with a node, or tries to be. What it points to is leaked: the thread uses it, and
/// a child after `fork` must not free what a thread of its parent held.
static NODE: AtomicPtr<Node> = AtomicPtr::new(ptr::null_mut());

/// The descriptors of the link that a child closes: the socket and the bell. -1 for none.
static DESCRIPTORS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

fn node() -> Option<&'static Node> {
    // SAFETY: null or leaked by `register`.
    unsafe { NODE.load(Ordering::Acquire).as_ref() }
}

/// A lock whose holder cannot have panicked halfway: everything under these locks is a store.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How this process stands with its node.
pub(crate) fn standing() -> Standing {
    node().map_or(Standing::Alone, |node| lock(&node.state).standing)
}

/// The lease as the node last stated it; `None` without a node.
pub(crate) fn lease() -> Option<Lease> {
    node().map(|node| lock(&node.state).lease)
}

/// Asks for memory and waits for the lease as it is then. `None` when no node answers.
pub(crate) fn ask(need_bytes: u64, want_bytes: u64) -> Option<Lease> {
    node()?.lease_after(&ToNode::Ask { need_bytes, want_bytes })
}

/// Says that less is enough; whether it was sent. Does not wait for the lease as it is then, which [`lease`] will tell: so
/// it may be called when the node recalls memory.
pub(crate) fn give(bytes: u64) -> bool {
    node().is_some_and(|node| node.question(&ToNode::Give { bytes }, false).is_some())
}

/// Sends a frame that has no answer; whether it was sent.
pub(crate) fn tell(frame: &ToNode) -> bool {
    let link = node().and_then(|node| lock(&node.state).link.clone());
    link.is_some_and(|link| link.socket.send(&frame.encode(), &[]).is_ok())
}

/// Wakes the node, if it has said that it sleeps. For who has published something in the page.
pub(crate) fn ring() {
    Page::fence();
    if page().node.asleep.load(Ordering::Relaxed) == 0 {
        return;
    }
    if let Some(link) = node().and_then(|node| lock(&node.state).link.clone()) {
        // A full counter means that the node has been rung for already.
        let _ = rustix::io::write(&link.bell, &1_u64.to_ne_bytes());
    }
}

/// Registers with the node that the environment names, and starts the thread. Returns when the node has answered, or will
/// not.
pub(crate) fn register() {
    let Some(path) = variable(environment::SOCKET) else { return };
    let token = variable(environment::TOKEN).and_then(|text| token(text.as_bytes()));
    let Some(token) = token else {
        let (socket, token) = (environment::SOCKET, environment::TOKEN);
        say(&format!(
            "{socket} is set, but {token} is not 32 hexadecimal digits; no GPU memory for this process"
        ));
        return;
    };
    let state = State {
        standing: Standing::Lost,
        link: None,
        lease: Lease { total_bytes: 0, granted: false },
        asked: 0,
        answered: 0,
        awaited: BTreeMap::new(),
    };
    let node: &'static Node = Box::leak(Box::new(Node {
        path: path.into(),
        token,
        state: Mutex::new(state),
        changed: Condvar::new(),
    }));
    NODE.store(ptr::from_ref(node).cast_mut(), Ordering::Release);
    node.connect_patiently();
    if lock(&node.state).standing != Standing::Refused {
        spawn(node);
    }
}

/// In a child after `fork`: the parent's registration is not this process's.
pub(crate) fn forked() {
    for descriptor in &DESCRIPTORS {
        let descriptor = descriptor.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: the child's copy of a descriptor of the parent's link, whose owner is leaked with `NODE` below and
            // will not close it again.
            unsafe { libc::close(descriptor) };
        }
    }
    NODE.store(ptr::null_mut(), Ordering::Release);
}

/// 32 hexadecimal digits as 16 bytes.
fn token(text: &[u8]) -> Option<[u8; 16]> {
    let text = std::str::from_utf8(text).ok().filter(|text| text.len() == 32)?;
    let digits = text.bytes().all(|digit| digit.is_ascii_hexdigit());
    digits.then(|| u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)).flatten()
}

impl State {
    fn holds(&self, link: &Arc<Link>) -> bool {
        self.link.as_ref().is_some_and(|held| Arc::ptr_eq(held, link))
    }

    fn lose(&mut self) {
        self.link = None;
        self.standing = Standing::Lost;
        self.awaited.clear();
    }

    /// The node has answered the oldest question that it had not.
    fn answer(&mut self, lease: Lease) {
        self.lease = lease;
        if let Some(place) = self.awaited.get_mut(&self.answered) {
            *place = Some(lease);
        }
        self.answered += 1;
    }
}

impl Node {
    /// Connects, at once or within [`PATIENCE_MS`]; an answer that is under way by then is waited for.
    fn connect_patiently(&self) {
        let end_ns = now_ns() + u64::from(PATIENCE_MS) * 1_000_000;
        let (mut pause_ms, mut is_said) = (FIRST_PAUSE_MS, false);
        while let Err(error) = self.connect() {
            let place = self.path.display();
            if !is_said {
                say(&format!("no node at {place}: {error}; waiting for it"));
                is_said = true;
            }
            if now_ns() >= end_ns {
                say(&format!("no node at {place}: no GPU memory for this process until there is one"));
                return;
            }
            pause(pause_ms);
            pause_ms = (pause_ms * 2).min(PATIENCE_MS / 5);
        }
    }

    /// Connects, says who this is and takes what the node gives.
    fn connect(&self) -> Result<(), Error> {
        let socket = Socket::connect(&self.path)?;
        let held_bytes = page().shim.memory_bytes.load(Ordering::Relaxed);
        socket.send(&ToNode::Hello { version: VERSION, token: self.token, held_bytes }.encode(), &[])?;
        let answer = socket.wait(ANSWER_LIMIT_MS)?.ok_or(Error::Silent)?;
        match ToShim::decode(&answer.bytes).map_err(Error::Frame)? {
            ToShim::Welcome { lease_bytes, .. } => self.welcomed(socket, answer, lease_bytes),
            ToShim::Refused { version, text } => {
                say(&format!(
                    "the node (version {version}) refuses this process (version {VERSION}), which gets no GPU memory: {text}"
                ));
                lock(&self.state).standing = Standing::Refused;
                Ok(())
            }
            _ => Err(Error::Closed),
        }
    }

    fn welcomed(&self, socket: Socket, answer: Received, lease_bytes: u64) -> Result<(), Error> {
        let mut descriptors = answer.descriptors.into_iter();
        let (Some(file), Some(bell)) = (descriptors.next(), descriptors.next()) else {
            return Err(Error::Closed);
        };
        let page: &'static Mapped = Box::leak(Box::new(Mapped::open(&file)?));
        let page: &'static Page = page;
        DESCRIPTORS[0].store(socket.as_fd().as_raw_fd(), Ordering::Relaxed);
        DESCRIPTORS[1].store(bell.as_raw_fd(), Ordering::Relaxed);
        set_page(page);
        let mut state = lock(&self.state);
        state.standing = Standing::Registered;
        state.link = Some(Arc::new(Link { socket, bell }));
        state.lease = Lease { total_bytes: lease_bytes, granted: true };
        (state.asked, state.answered) = (0, 0);
        drop(state);
        for area in REGISTERED {
            area(page);
        }
        Ok(())
    }

    /// Sends a question about memory; its number on the link, where there is one.
    fn question(&self, question: &ToNode, is_awaited: bool) -> Option<(Arc<Link>, u64)> {
        let mut state = lock(&self.state);
        let link = state.link.clone()?;
        // Under the lock, so that numbers are given in the order in which questions are sent. Sending does not block.
        link.socket.send(&question.encode(), &[]).ok()?;
        let number = state.asked;
        state.asked += 1;
        if is_awaited {
            state.awaited.insert(number, None);
        }
        Some((link, number))
    }

    /// Sends a question about memory and waits for its answer.
    fn lease_after(&self, question: &ToNode) -> Option<Lease> {
        let (link, number) = self.question(question, true)?;
        let limit = Duration::from_millis(u64::from(ANSWER_LIMIT_MS));
        let waiting =
            |state: &mut State| state.holds(&link) && matches!(state.awaited.get(&number), Some(None));
        let waited = self.changed.wait_timeout_while(lock(&self.state), limit, waiting);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.holds(&link) {
            return None;
        }
        let answer = state.awaited.remove(&number).flatten();
        if answer.is_none() {
            // The node hangs. Numbers would no longer match if it came back, so this link is over.
            state.lose();
            drop(state);
            self.changed.notify_all();
        }
        answer
    }

    /// The thread: listens until there is nothing more to listen to.
    fn serve(&self) {
        let mut pause_ms = FIRST_PAUSE_MS;
        loop {
            let link = lock(&self.state).link.clone();
            if let Some(link) = link {
                pause_ms = FIRST_PAUSE_MS;
                self.listen(&link);
                let mut state = lock(&self.state);
                if state.holds(&link) {
                    state.lose();
                }
                drop(state);
                self.changed.notify_all();
            } else {
                pause(pause_ms);
                pause_ms = (pause_ms * 2).min(LAST_PAUSE_MS);
                // Said once, when it was lost; that it is still gone is no news.
                let _ = self.connect();
                if lock(&self.state).standing == Standing::Refused {
                    return;
                }
            }
        }
    }

    /// Handles frames until the link is over.
    fn listen(&self, link: &Arc<Link>) {
        loop {
            page().shim.heartbeat_ns.store(now_ns(), Ordering::Relaxed);
            if !lock(&self.state).holds(link) {
                return;
            }
            match link.socket.wait(BEAT_MS) {
                Ok(Some(received)) => self.handle(&received.bytes),
                Ok(None) => coverage::send_new(),
                Err(_) => return,
            }
            slices::follow();
        }
    }

    fn handle(&self, bytes: &[u8]) {
        match ToShim::decode(bytes) {
            Ok(ToShim::Lease { total_bytes, granted }) => {
                lock(&self.state).answer(Lease { total_bytes, granted });
                self.changed.notify_all();
            }
            Ok(ToShim::Recall) => {
                for area in RECALLED {
                    area();
                }
            }
            Ok(ToShim::AskCoverage) => coverage::send_new(),
            Ok(ToShim::Welcome { .. } | ToShim::Refused { .. }) => {}
            Err(error) => say(&format!("the node sent {error}")),
        }
    }
}

/// Starts the thread, with every signal blocked: signals are for the program's own threads.
fn spawn(node: &'static Node) {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the first set, `pthread_sigmask` the second.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = thread::Builder::new().name("partywall".to_owned()).stack_size(STACK_BYTES);
    if let Err(error) = thread.spawn(|| node.serve()) {
        say(&format!("no thread to listen to the node: {error}"));
    }
    // SAFETY: the set that the call above has written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
}

fn pause(milliseconds: u32) {
    let time = Timespec {
        tv_sec: i64::from(milliseconds / 1000),
        tv_nsec: i64::from(milliseconds % 1000) * 1_000_000,
    };
    // A signal may end it early, where they are not blocked; then the next look comes sooner.
    let _ = rustix::thread::nanosleep(&time);
}
