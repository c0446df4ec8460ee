//! A node with one tenant: it leases, recalls before it refuses, and takes back what processes had that ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use partywall_shim_api::VERSION;
use partywall_shim_api::frame::{ToNode, ToShim};
use partywall_shim_api::page::{Mapped, SmSet};
use partywall_shim_api::socket::{Listener, Socket};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::os::fd::AsFd;
use tempfile::TempDir;

/// What the tenant's processes show.
pub(crate) const TOKEN: &str = "000102030405060708090a0b0c0d0e0f";

/// How long a process may take to give back.
const RECALL: Duration = Duration::from_millis(500);

struct Shared {
    quota: u64,
    sms: Option<SmSet>,
    context: u64,
    stop: AtomicBool,
    leases: Mutex<BTreeMap<u64, (Arc<Socket>, u64)>>,
    changed: Condvar,
}

/// The node; it ends when dropped.
pub(crate) struct Node {
    shared: Arc<Shared>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
    _folder: TempDir,
}

impl Node {
    /// With a quota, and what a context is known to take, bytes.
    pub(crate) fn new(quota: u64, context: u64) -> Self {
        Self::start(quota, context, None)
    }

    /// With SMs for the tenant, and memory enough.
    pub(crate) fn confining(context: u64, sms: Option<SmSet>) -> Self {
        Self::start(8 << 30, context, sms)
    }

    fn start(quota: u64, context: u64, sms: Option<SmSet>) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("tenants.sock");
        let listener = Listener::bind(&path).unwrap();
        let shared = Arc::new(Shared {
            quota,
            sms,
            context,
            stop: AtomicBool::new(false),
            leases: Mutex::default(),
            changed: Condvar::new(),
        });
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&shared, &listener)
        });
        Self { shared, path, thread: Some(thread), _folder: folder }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// All leases together, bytes; of ended processes too as long as the node has not seen their ends.
    pub(crate) fn leased(&self) -> u64 {
        let leases = self.shared.leases.lock().unwrap();
        leases.values().map(|(_, lease)| lease).sum()
    }

    /// Waits until the node has seen the ends of all processes.
    pub(crate) fn wait_until_empty(&self) {
        let leases = self.shared.leases.lock().unwrap();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(leases, Duration::from_secs(20), |leases| !leases.is_empty());
        assert!(waited.unwrap().0.is_empty());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn accept(shared: &Arc<Shared>, listener: &Listener) {
    let mut threads = Vec::new();
    let limit = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !shared.stop.load(Ordering::Relaxed) {
        poll(&mut [PollFd::new(&listener.as_fd(), PollFlags::IN)], Some(&limit)).unwrap();
        if let Some(socket) = listener.accept().unwrap() {
            let (shared, number) = (Arc::clone(shared), threads.len() as u64);
            threads.push(std::thread::spawn(move || serve(&shared, number, socket)));
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn serve(shared: &Shared, number: u64, socket: Socket) {
    let hello = ToNode::decode(&socket.wait(5_000).unwrap().unwrap().bytes).unwrap();
    let ToNode::Hello { version: VERSION, held_bytes: 0, .. } = hello else { panic!("{hello:?}") };
    let (page, file) = Mapped::create(1, 0, 0, shared.sms).unwrap();
    page.node.quota_bytes.store(shared.quota, Ordering::Relaxed);
    page.node.context_bytes.store(shared.context, Ordering::Relaxed);
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    let socket = Arc::new(socket);
    let lease = {
        let mut leases = shared.leases.lock().unwrap();
        let lease = shared.context.min(free(shared, &leases));
        leases.insert(number, (Arc::clone(&socket), lease));
        lease
    };
    let welcome = ToShim::Welcome { version: VERSION, lease_bytes: lease };
    socket.send(&welcome.encode(), &[file.as_fd(), bell.as_fd()]).unwrap();
    while !shared.stop.load(Ordering::Relaxed) {
        let frame = match socket.wait(50) {
            Ok(Some(frame)) => ToNode::decode(&frame.bytes).unwrap(),
            Ok(None) => continue,
            Err(_) => break,
        };
        let answer = match frame {
            ToNode::Ask { need_bytes, want_bytes } => ask(shared, number, need_bytes, want_bytes),
            ToNode::Give { bytes } => {
                let mut leases = shared.leases.lock().unwrap();
                let lease = &mut leases.get_mut(&number).unwrap().1;
                *lease = lease.checked_sub(bytes).expect("no process gives back more than it has");
                ToShim::Lease { total_bytes: *lease, granted: true }
            }
            ToNode::Coverage { .. } | ToNode::Notice { .. } => continue,
            ToNode::Hello { .. } => panic!("a second hello"),
        };
        shared.changed.notify_all();
        if socket.send(&answer.encode(), &[]).is_err() {
            break;
        }
    }
    shared.leases.lock().unwrap().remove(&number);
    shared.changed.notify_all();
}

fn free(shared: &Shared, leases: &BTreeMap<u64, (Arc<Socket>, u64)>) -> u64 {
    shared.quota - leases.values().map(|(_, lease)| lease).sum::<u64>()
}

fn ask(shared: &Shared, number: u64, need: u64, want: u64) -> ToShim {
    let mut leases = shared.leases.lock().unwrap();
    if free(shared, &leases) < need {
        for (_, (socket, _)) in leases.iter().filter(|(other, _)| **other != number) {
            let _ = socket.send(&ToShim::Recall.encode(), &[]);
        }
        let others = leases.len() > 1;
        let wait = if others { RECALL } else { Duration::ZERO };
        let short = |leases: &mut BTreeMap<_, _>| free(shared, leases) < need;
        leases = shared.changed.wait_timeout_while(leases, wait, short).unwrap().0;
    }
    let free = free(shared, &leases);
    let granted = free >= need;
    let lease = &mut leases.get_mut(&number).unwrap().1;
    if granted {
        *lease += want.min(free);
    }
    ToShim::Lease { total_bytes: *lease, granted }
}
