//! The copier's thread, and how long it looks away.
//!
//! With packets on the link it looks all the time, giving way to whoever else wants the processor: the next packet is
//! wanted within the 10 us that one takes. When nothing has happened for a while it naps, so that a stuck device
//! costs little. While copies wait for their turn in their streams it looks after pauses of [`PAUSE_NS`], which are
//! added to a copy that waits behind a kernel. While they wait for grants the node wakes it. With no copies at all it
//! sleeps for good.

use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering;
use std::thread::Builder;

use partywall_shim_api::page::Page;
use rustix::thread::futex;
use rustix::time::Timespec;

use super::copier::{Copier, Desk, View};
use super::turns::Outlook;
use crate::clock::now_ns;
use crate::say::say;
use crate::{node, process};

/// The shortest and the longest pause between two looks at copies whose turn in their streams has not come. A pause
/// is a small part, [`PAUSE_SHARE`], of the time for which nothing has happened: what it adds to a wait is small
/// against the wait.
const PAUSE_NS: (u64, u64) = (50_000, 5_000_000);

/// See [`PAUSE_NS`].
const PAUSE_SHARE: u64 = 256;

/// How long a nap is: shorter ones are not to be had from the kernel.
const NAP_NS: i64 = 20_000;

/// How often the thread asks whether the node is still connected.
const STANDING_NS: u64 = 10_000_000;

/// Stack of the thread: it does little.
const STACK_BYTES: usize = 256 << 10;

/// Lets some microseconds pass.
pub(super) fn nap() {
    // A signal may end it early, and nobody relies on its length.
    let _ = rustix::thread::nanosleep(&Timespec { tv_sec: 0, tv_nsec: NAP_NS });
}

/// Starts the thread, with every signal blocked: signals are for the program's own threads. False: there is none.
pub(super) fn start(desk: &'static Desk, spin_ns: u64, pause_ns: u64) -> bool {
    let mut all = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the first set, `pthread_sigmask` the second.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let thread = Builder::new().name("partywall-copy".to_owned()).stack_size(STACK_BYTES);
    let started = thread.spawn(move || serve(desk, spin_ns, pause_ns));
    // SAFETY: the set that the call above has written.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
    if let Err(error) = &started {
        say(&format!("no thread for copies, which are not in turns with those of others: {error}"));
    }
    started.is_ok()
}

fn serve(desk: &'static Desk, spin_ns: u64, pause_ns: u64) {
    let mut copier = Copier::new(pause_ns);
    let (mut connected, mut asked_at) = (false, 0);
    loop {
        let now = now_ns();
        if now.saturating_sub(asked_at) > STANDING_NS {
            (connected, asked_at) = (node::standing() == node::Standing::Registered, now);
        }
        let page = process::page();
        let grants = page.node.grants.load(Ordering::Acquire);
        let changes = desk.changes.load(Ordering::Acquire);
        let view = View { page, connected, ring: &node::ring };
        // Whatever is wrong with this library, the program must not wait for ever. What is half done in the copier is
        // not looked at again.
        let Ok(outlook) = catch_unwind(AssertUnwindSafe(|| copier.turn(now, desk, view))) else {
            give_up(desk, &mut copier)
        };
        let still = now.saturating_sub(copier.moved_at);
        let pause = (still / PAUSE_SHARE).clamp(PAUSE_NS.0, PAUSE_NS.1);
        match outlook {
            _ if still < spin_ns && outlook != Outlook::Idle => rustix::thread::sched_yield(),
            Outlook::Idle => sleep(desk, changes, None),
            Outlook::Arriving => sleep(desk, changes, Some(pause)),
            Outlook::Granting => page.wait_grants(grants, pause),
            Outlook::Flying => nap(),
        }
    }
}

/// After a defect of this library: copies go straight to the driver, and those that are in their streams go at once.
fn give_up(desk: &'static Desk, copier: &mut Copier) -> ! {
    super::switch_off();
    say("a defect in the library: copies are not in turns with those of others from here on");
    loop {
        let changes = desk.changes.load(Ordering::Acquire);
        copier.give_up(desk);
        sleep(desk, changes, None);
    }
}

/// Sleeps until a copy is announced after `changes` was read, or for a while.
fn sleep(desk: &Desk, changes: u32, limit_ns: Option<u64>) {
    desk.asleep.store(1, Ordering::Relaxed);
    Page::fence();
    let limit = limit_ns.map(|limit| Timespec { tv_sec: 0, tv_nsec: limit as i64 });
    // Woken, too late to sleep, or out of time: the caller looks in any case.
    let _ = futex::wait(&desk.changes, futex::Flags::PRIVATE, changes, limit.as_ref());
    desk.asleep.store(0, Ordering::Relaxed);
}
