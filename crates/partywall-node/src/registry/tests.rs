use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use partywall_core::tenant::{Baseline, Class, Slo};
use partywall_shim_api::frame::{Disposition, ToNode, ToShim};
use partywall_shim_api::page::Mapped;
use partywall_shim_api::socket::Socket;
use partywall_shim_api::{Error, VERSION};

use super::*;
use partywall_core::units::Nanos;

use crate::clock;
use crate::facts::TenantView;
use crate::tenant::Token;
use crate::watch::Reading;

mod attachment;
mod faults;
mod measured;
mod promises;

const MIB: u64 = 1 << 20;

/// A node without an arbiter of its own kind: a folder, a registry, and what the driver is made to show.
struct Bench {
    registry: Option<Registry>,
    folder: tempfile::TempDir,
    shows: Arc<Mutex<Result<Reading, String>>>,
    meanwhile: Meanwhile,
    context_estimate: Bytes,
    launches: LaunchOptions,
    news: Option<Sender<String>>,
}

/// Something that happens while the driver is asked.
type Meanwhile = Arc<Mutex<Option<Box<dyn FnMut() + Send>>>>;

struct FakeWatch(Arc<Mutex<Result<Reading, String>>>, Meanwhile);

impl MemoryWatch for FakeWatch {
    fn read(&mut self) -> Result<Reading, String> {
        if let Some(happens) = &mut *self.1.lock().unwrap() {
            happens();
        }
        self.0.lock().unwrap().clone()
    }
}

impl Bench {
    /// A GPU of 10 GiB, contexts of no size until one is measured.
    fn new() -> Self {
        Self::with_contexts(Bytes::ZERO)
    }

    fn with_contexts(context_estimate: Bytes) -> Self {
        let mut bench = Self {
            registry: None,
            folder: tempfile::tempdir().unwrap(),
            shows: Arc::new(Mutex::new(Err("nothing to show".to_owned()))),
            meanwhile: Meanwhile::default(),
            context_estimate,
            launches: LaunchOptions::default(),
            news: None,
        };
        bench.start();
        bench
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("tenants.sock")
    }

    fn start(&mut self) {
        let watch: Box<dyn MemoryWatch> =
            Box::new(FakeWatch(Arc::clone(&self.shows), Arc::clone(&self.meanwhile)));
        let options = Options {
            reserve: Bytes::ZERO,
            context_estimate: self.context_estimate,
            launches: self.launches,
            news: self.news.clone(),
            ..Options::new(Bytes::from_gib(10), Ok(watch))
        };
        let _ = std::fs::remove_file(self.socket());
        self.registry = Some(Registry::start(&self.socket(), options).unwrap());
    }

    fn stop(&mut self) {
        self.registry = None;
    }

    fn registry(&mut self) -> &mut Registry {
        self.registry.as_mut().unwrap()
    }

    fn tenant(&mut self, id: u32, limit_mib: u64) -> Token {
        let spec = spec(id, Some(Bytes::from_mib(limit_mib)));
        self.registry().add_tenant(&spec).unwrap();
        spec.token
    }

    fn view(&self, id: u32) -> TenantView {
        let tenants = self.registry.as_ref().unwrap().reader().view().tenants;
        tenants.into_iter().find(|tenant| tenant.id == TenantId(id)).unwrap()
    }

    fn join(&self, token: Token) -> Shim {
        Shim::join(&self.socket(), token, VERSION, 0).unwrap()
    }
}

fn spec(id: u32, memory: Option<Bytes>) -> TenantSpec {
    let mut token = [7; 16];
    token[0] = id as u8;
    TenantSpec {
        id: TenantId(id),
        name: format!("tenant-{id}"),
        class: if id.is_multiple_of(2) { Class::LatencySensitive } else { Class::BestEffort },
        memory,
        weight: 1 + id % 1024,
        command: vec!["true".to_owned()],
        env: BTreeMap::new(),
        restart: partywall_core::config::Restart::Never,
        slo: Slo::default(),
        baseline: Baseline::default(),
        share: None,
        sms: None,
        squeezed: None,
        squeezed_sms: None,
        token: Token::from_bytes(token),
    }
}

/// Looks until it is so; the time limit is for a test that fails.
fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = clock::now();
    // Nobody ever sends: this is how a test passes time.
    let (_never, nothing) = mpsc::channel::<()>();
    while !is_so() {
        assert!(clock::now().saturating_sub(start).as_secs() < 30.0, "waited in vain: {what}");
        let _ = nothing.recv_timeout(Duration::from_millis(5));
    }
}

/// What a shim does.
struct Shim {
    socket: Socket,
    page: Arc<Mapped>,
    _bell: OwnedFd,
    lease: u64,
}

impl Shim {
    /// The refusal's text if it is not let in.
    fn join(socket: &Path, token: Token, version: u32, held_bytes: u64) -> Result<Self, String> {
        let socket = loop {
            match Socket::connect(socket) {
                Ok(socket) => break socket,
                // The node's backlog is full, or it is just starting.
                Err(_) => std::thread::yield_now(),
            }
        };
        let hello = ToNode::Hello { version, token: token.bytes(), held_bytes };
        socket.send(&hello.encode(), &[]).unwrap();
        let received = socket.wait(20_000).unwrap().expect("an answer");
        match ToShim::decode(&received.bytes).unwrap() {
            ToShim::Welcome { version, lease_bytes } => {
                assert_eq!(version, VERSION);
                let [page, bell]: [OwnedFd; 2] = received.descriptors.try_into().unwrap();
                let page = Mapped::open(&page).unwrap();
                page.shim.memory_bytes.store(held_bytes, Ordering::Release);
                Ok(Self { socket, page: Arc::new(page), _bell: bell, lease: lease_bytes })
            }
            ToShim::Refused { text, .. } => Err(text),
            other => panic!("{other:?}"),
        }
    }

    fn send(&self, frame: &ToNode) {
        self.socket.send(&frame.encode(), &[]).unwrap();
    }

    fn next(&self) -> ToShim {
        ToShim::decode(&self.socket.wait(20_000).unwrap().expect("a frame").bytes).unwrap()
    }

    /// The lease after the answer that comes next, whatever else comes before it.
    fn answer(&mut self) -> (u64, bool) {
        loop {
            if let ToShim::Lease { total_bytes, granted } = self.next() {
                self.lease = total_bytes;
                return (total_bytes / MIB, granted);
            }
        }
    }

    fn ask(&mut self, need: u64, want: u64) -> (u64, bool) {
        self.send(&ToNode::Ask { need_bytes: need * MIB, want_bytes: want * MIB });
        self.answer()
    }

    fn give(&mut self, mib: u64) -> (u64, bool) {
        self.send(&ToNode::Give { bytes: mib * MIB });
        self.answer()
    }

    fn uses(&self, mib: u64) {
        self.page.shim.memory_bytes.store(mib * MIB, Ordering::Release);
    }

    fn is_cut_off(&self) -> bool {
        loop {
            match self.socket.receive() {
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(Error::Closed) => return true,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn a_process_is_let_in_and_told_what_it_needs() {
    let mut bench = Bench::new();
    let token = bench.tenant(3, 1000);
    let mut shim = bench.join(token);
    let node = &shim.page.node;
    assert_eq!(shim.page.header.tenant.load(Ordering::Relaxed), 3);
    assert_eq!(shim.page.header.class.load(Ordering::Relaxed), 1);
    assert_eq!(node.quota_bytes.load(Ordering::Relaxed), 1000 * MIB);
    assert_eq!((node.weight.load(Ordering::Relaxed), node.copies_decided.load(Ordering::Relaxed)), (4, 1));
    assert_eq!(node.packet_bytes.load(Ordering::Relaxed), crate::arbiter::PACKET.0);
    assert_eq!(node.direct_max_bytes.each_ref().map(|one| one.load(Ordering::Relaxed)), [64 << 10; 2]);
    let first = node.heartbeat_ns.load(Ordering::Relaxed);
    wait("a heartbeat", || node.heartbeat_ns.load(Ordering::Relaxed) > first);
    assert_eq!(shim.ask(10, 64), (64, true));
    shim.uses(20);
    let other = bench.join(token);
    let seen = || other.page.node.others_used_bytes.load(Ordering::Relaxed);
    wait("the sibling's memory", || seen() == 20 * MIB);
    assert_eq!(other.page.node.tenant_used_bytes.load(Ordering::Relaxed), 20 * MIB);
    assert_eq!(shim.page.node.others_used_bytes.load(Ordering::Relaxed), 0);
    let facts = bench.registry().snapshot().remove(&TenantId(3)).unwrap();
    assert_eq!((facts.processes, facts.memory_used, facts.guaranteed), (2, Bytes::from_mib(20), None));
}

#[test]
fn who_does_not_belong_is_told_why() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    wait("the time of grace after the start", || {
        let view = bench.registry.as_ref().unwrap().reader().view();
        view.uptime_ns > Nanos::from_secs(2)
    });
    let cases = [
        (Token::from_bytes([9; 16]), VERSION, "no tenant has this token"),
        (token, VERSION + 1, "speaks version 9, the node version 8; start the tenant again"),
    ];
    for (token, version, says) in cases {
        let text = Shim::join(&bench.socket(), token, version, 0).err().unwrap();
        assert!(text.contains(says), "{text}");
    }
    // Whoever does not begin with a hello, or with one of another layout.
    for bytes in [ToNode::Give { bytes: 1 }.encode(), vec![1, 0, 0, 0, 4, 0, 0, 0, 9, 0, 0, 0], vec![1, 2, 3]]
    {
        let socket = Socket::connect(&bench.socket()).unwrap();
        socket.send(&bytes, &[]).unwrap();
        let received = socket.wait(20_000).unwrap().expect("an answer");
        assert!(matches!(ToShim::decode(&received.bytes), Ok(ToShim::Refused { .. })));
        assert!(matches!(socket.wait(20_000), Err(Error::Closed)));
    }
    assert_eq!(bench.view(1).processes_total, 0);
}

#[test]
fn a_tenant_that_makes_no_sense_is_not_taken() {
    let mut bench = Bench::new();
    bench.tenant(1, 1000);
    let cases = [
        (spec(2, Some(Bytes::ZERO)), "a memory limit of zero leaves no room"),
        (spec(2, Some(Bytes::from_gib(11))), "but tenants can have 10.0GiB"),
        (spec(1, None), "listed twice"),
    ];
    for (spec, says) in cases {
        let message = bench.registry().add_tenant(&spec).unwrap_err().to_string();
        assert!(message.contains(says), "{message}");
    }
    bench.registry().add_tenant(&spec(2, None)).unwrap();
    assert_eq!(bench.view(2).memory.quota_bytes, Bytes::from_mib(9 * 1024 + 24));
    assert!(!bench.view(2).memory.guaranteed);
}

#[test]
fn sixty_four_tenants_at_once() {
    let mut bench = Bench::new();
    let tokens: Vec<Token> = (0..64).map(|id| bench.tenant(id, 160)).collect();
    let message = bench.registry().add_tenant(&spec(64, None)).unwrap_err().to_string();
    assert!(message.contains("at most 64"), "{message}");
    let socket = bench.socket();
    let shims: Vec<Shim> = std::thread::scope(|scope| {
        let threads: Vec<_> = tokens
            .iter()
            .map(|&token| {
                let socket = &socket;
                scope.spawn(move || {
                    let mut shim = Shim::join(socket, token, VERSION, 0).unwrap();
                    for step in 1..=80 {
                        assert_eq!(shim.ask(2, 2), (2 * step, true));
                    }
                    assert_eq!(shim.ask(1, 1), (160, false));
                    shim.uses(160);
                    shim.page.shim.launches.store(5, Ordering::Relaxed);
                    let names = "cuLaunchKernel".to_owned();
                    shim.send(&ToNode::Coverage { disposition: Disposition::Enforced, names });
                    shim
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    wait("what they use", || (0..64).all(|id| bench.view(id).guaranteed == Some(true)));
    let view = bench.registry().reader().view();
    assert_eq!(view.memory_leased_bytes, Bytes::from_gib(10));
    for tenant in view.tenants {
        assert_eq!((tenant.launches, tenant.memory.used_bytes), (5, Bytes::from_mib(160)), "{}", tenant.name);
    }
    assert_eq!(shims.len(), 64);
}

#[test]
fn a_tenant_that_is_removed_leaves_nothing() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    let mut shim = bench.join(token);
    shim.ask(500, 500);
    bench.registry().remove_tenant(TenantId(1));
    assert!(shim.is_cut_off());
    assert_eq!(shim.page.node.copies_decided.load(Ordering::Relaxed), 0);
    assert_eq!(bench.registry().reader().view().memory_leased_bytes, Bytes::ZERO);
    // The number is another tenant's name now, and the old token nobody's.
    bench.tenant(1, 10 * 1024);
    assert_eq!(bench.join(token).ask(10_240, 10_240), (10_240, true));
}

#[test]
fn a_restarted_node_learns_what_is_held() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    let mut shim = bench.join(token);
    shim.ask(300, 300);
    shim.uses(290);
    let generation = shim.page.header.generation.load(Ordering::Relaxed);
    bench.stop();
    assert!(shim.is_cut_off());
    assert_eq!(shim.page.node.copies_decided.load(Ordering::Relaxed), 0);
    assert_eq!(shim.page.node.heartbeat_ns.load(Ordering::Relaxed), 0);
    bench.start();
    // It comes back before the node has read which tenants there are.
    let socket = bench.socket();
    let again = std::thread::spawn(move || Shim::join(&socket, token, VERSION, 290 * MIB));
    wait("the early guest", || {
        let shared = &bench.registry.as_ref().unwrap().shared;
        !shared.lock().connections.is_empty()
    });
    bench.tenant(1, 1000);
    let mut again = again.join().unwrap().unwrap();
    assert_ne!(again.page.header.generation.load(Ordering::Relaxed), generation);
    assert_eq!(again.lease, 290 * MIB);
    assert_eq!(bench.view(1).memory.leased_bytes, Bytes::from_mib(290));
    let mut other = bench.join(token);
    assert_eq!(other.ask(711, 711), (0, false));
    assert_eq!(other.ask(710, 710), (710, true));
    assert_eq!(again.ask(1, 1), (290, false));
}

#[test]
fn counts_of_a_run_stay_and_what_it_used_is_forgotten_with_the_next() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    *bench.shows.lock().unwrap() = Ok(Reading::new());
    let shim = bench.join(token);
    shim.page.shim.launches.store(40, Ordering::Relaxed);
    shim.page.shim.copies[1].direct_bytes.store(9, Ordering::Relaxed);
    shim.send(&ToNode::Coverage { disposition: Disposition::Unknown, names: "cuFoo cuBar_v2".to_owned() });
    shim.send(&ToNode::Notice { text: "two\nlines".to_owned() });
    wait("what it uses", || bench.view(1).reasons.len() == 2);
    let view = bench.view(1);
    assert_eq!(view.guaranteed, Some(false));
    assert_eq!(view.reasons, ["2 unknown entry points of the driver: cuBar_v2, cuFoo", "two lines"]);
    drop(shim);
    bench.registry().tenant_event(TenantId(1), TenantEvent::Ended { run: 1 });
    assert_eq!(bench.view(1).reasons.len(), 2);
    bench.registry().tenant_event(TenantId(1), TenantEvent::Started { run: 2 });
    let _next = bench.join(token);
    let view = bench.view(1);
    assert_eq!((view.guaranteed, view.restarts, view.launches), (None, 1, 40));
    assert_eq!((view.device_to_host.direct_bytes, view.processes_total), (Bytes(9), 2));
}
