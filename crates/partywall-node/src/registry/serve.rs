//! The registry's thread.

use std::os::fd::AsFd as _;

use partywall_core::units::Nanos;
use partywall_shim_api::socket::Listener;
use rustix::event::{Timespec, epoll};

use super::Shared;
use super::promises::LOOK as LOOK_AT_REQUESTS;
use super::state::{CLIENTS, LISTENER, READING, State, TICK, WAKE};
use crate::clock;

/// Things that are dealt with before the lock is let go.
const EVENTS: usize = 64;

/// Processes let in at once.
const GUESTS: usize = 32;

/// Ticks between looks at everything that pages say.
const LOOK: u64 = 10;

pub(super) fn run(shared: &Shared, listener: &Listener) {
    let polls = shared.lock().polls();
    let name = epoll::EventData::new_u64(LISTENER);
    let mut listens = epoll::add(&polls, listener, name, epoll::EventFlags::IN).is_ok();
    let (mut next_tick, mut ticks) = (clock::now(), 0u64);
    let mut next_look = None;
    let mut events = Vec::with_capacity(EVENTS);
    loop {
        wait(shared, &polls, next_look.unwrap_or(next_tick).min(next_tick), &mut events);
        let now = clock::now();
        let mut state = shared.lock();
        if state.is_over() {
            return;
        }
        for event in events.drain(..) {
            match event.data.u64() {
                LISTENER => listens &= let_in(&mut state, listener, &polls, now),
                WAKE => state.woken(),
                READING => state.take_reading(now),
                CLIENTS => state.take_clients(now),
                name => state.happened(name, now),
            }
        }
        if now >= next_tick {
            ticks += 1;
            state.tick(now);
            if ticks % LOOK == 0 {
                state.look_at_pages();
            }
            listens = listens || epoll::add(&polls, listener, name, epoll::EventFlags::IN).is_ok();
            next_tick = now.saturating_add(TICK);
        }
        if next_look.is_some_and(|at| now >= at) {
            state.look_at_requests(now);
            next_look = None;
        }
        if next_look.is_none() && state.promises.is_watching() {
            next_look = Some(now.saturating_add(LOOK_AT_REQUESTS));
        }
        state.settle(now);
    }
}

fn wait(shared: &Shared, polls: &std::os::fd::OwnedFd, next: Nanos, events: &mut Vec<epoll::Event>) {
    let due = shared.lock().leases.deadline().map_or(next, |at| at.min(next));
    let left = due.saturating_sub(clock::now()).0;
    let limit = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
    // Interrupted: nothing has happened then.
    let _ = epoll::wait(polls.as_fd(), rustix::buffer::spare_capacity(events), Some(&limit));
}

/// Lets in who waits; `false` when that does not work now, and is to be tried again at the next tick.
fn let_in(state: &mut State, listener: &Listener, polls: &std::os::fd::OwnedFd, now: Nanos) -> bool {
    for _ in 0..GUESTS {
        match listener.accept() {
            Ok(Some(socket)) => state.accept(socket, now),
            Ok(None) => break,
            // No descriptors: whoever waits would wake us again at once, without end.
            Err(_) => return epoll::delete(polls, listener).is_err(),
        }
    }
    true
}
