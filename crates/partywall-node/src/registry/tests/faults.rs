//! Tenants that die, and that do what they should not.

use std::io::{BufRead, BufReader, Write};

use super::*;

/// Where a child finds what it needs: socket, token, and what it asks for at once.
const CHILD: &str = "PARTYWALL_TEST_CHILD";

/// Not a test: a tenant's process, which another test starts. It asks for memory, says that it uses half, and then does what it reads.
#[test]
#[ignore = "is what other tests start"]
fn child() {
    #[expect(clippy::disallowed_methods, reason = "how the test that started this process talks to it")]
    let Ok(given) = std::env::var(CHILD) else { return };
    let mut given = given.split(' ');
    let mut next = || given.next().unwrap();
    let socket = PathBuf::from(next());
    let token: Token = next().parse().unwrap();
    let mib: u64 = next().parse().unwrap();
    let mut shim = Shim::join(&socket, token, VERSION, 0).unwrap();
    let (lease, _) = shim.ask(mib, mib);
    shim.uses(lease / 2);
    println!("lease {lease}");
    for line in std::io::stdin().lines() {
        match line.unwrap().as_str() {
            "leave" => shim.socket = Socket::connect(&socket).unwrap(),
            "come back" => drop(Shim::join(&socket, token, VERSION, 0).unwrap()),
            _ => return,
        }
        println!("done");
    }
}

struct Process {
    child: Child,
    says: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(socket: &Path, token: Token, mib: u64) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "registry::tests::faults::child", "--ignored", "--nocapture"]);
        command.env(CHILD, format!("{} {token} {mib}", socket.display()));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self { child, says };
        process.hears(&format!("lease {mib}"));
        process
    }

    fn hears(&mut self, expected: &str) {
        let mut line = String::new();
        // What the test harness says stands before it.
        while !line.trim_end().ends_with(expected) {
            line.clear();
            assert_ne!(self.says.read_line(&mut line).unwrap(), 0, "the child has ended");
        }
    }

    fn does(&mut self, what: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.hears("done");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn what_a_killed_process_held_goes_to_who_waits() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    let mut shim = bench.join(token);
    let other = Process::start(&bench.socket(), token, 1000);
    assert_eq!(bench.view(1).memory.leased_bytes, Bytes::from_mib(1000));
    assert_eq!(shim.ask(501, 501), (0, false), "the other uses half");
    shim.send(&ToNode::Ask { need_bytes: 400 * MIB, want_bytes: 400 * MIB });
    wait("the question", || {
        let shared = &bench.registry.as_ref().unwrap().shared;
        shared.lock().leases.deadline().is_some()
    });
    other.kill();
    assert_eq!(shim.answer(), (400, true));
    wait("the end", || bench.view(1).processes.len() == 1);
    assert_eq!(bench.view(1).memory.leased_bytes, Bytes::from_mib(400));
}

#[test]
fn who_hangs_up_is_counted_until_it_ends_or_comes_back() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    let mut one = Process::start(&bench.socket(), token, 300);
    let mut other = Process::start(&bench.socket(), token, 200);
    one.does("leave");
    other.does("leave");
    wait("them to have left", || bench.view(1).processes.iter().all(|process| !process.connected));
    assert_eq!(bench.view(1).memory.leased_bytes, Bytes::from_mib(500));
    one.does("come back");
    wait("the old self to be gone", || bench.view(1).memory.leased_bytes == Bytes::from_mib(200));
    other.kill();
    wait("the other to have ended", || bench.view(1).memory.leased_bytes == Bytes::ZERO);
    one.kill();
    wait("all to be gone", || bench.view(1).processes.is_empty());
}

#[test]
fn rubbish_ends_a_connection_and_harms_nobody_else() {
    let mut bench = Bench::new();
    let (token, other) = (bench.tenant(1, 1000), bench.tenant(2, 1000));
    let mut neighbour = bench.join(other);
    let frames: [Vec<u8>; 5] = [
        vec![0xff; 1024],
        vec![1],
        ToNode::Hello { version: VERSION, token: token.bytes(), held_bytes: 0 }.encode(),
        [&5u32.to_le_bytes()[..], &2u32.to_le_bytes(), &[0xff, 0xfe]].concat(),
        vec![0; 1025],
    ];
    for rubbish in frames {
        let shim = bench.join(token);
        shim.socket.send(&rubbish, &[]).unwrap();
        wait("the end of the connection", || shim.is_cut_off());
        assert_eq!(shim.page.node.copies_decided.load(Ordering::Relaxed), 0);
        assert_eq!(neighbour.ask(0, 0), (0, true));
    }
    assert_eq!(bench.view(1).reasons, ["a process sent frames that make no sense"]);
    assert_eq!(bench.view(2).reasons, [""; 0]);
}

#[test]
fn rubbish_in_every_field_of_a_page_harms_nobody_else() {
    let mut bench = Bench::new();
    let (token, other) = (bench.tenant(1, 1000), bench.tenant(2, 1000));
    let mut neighbour = bench.join(other);
    let shim = bench.join(token);
    for value in [u64::MAX, 1 << 63, 0x5555_5555_5555_5555] {
        let (node, tenant) = (&shim.page.node, &shim.page.shim);
        for side in &tenant.copies {
            for field in [
                &side.ready,
                &side.started,
                &side.done,
                &side.copies,
                &side.wait_ns,
                &side.direct_bytes,
                &side.direct_copies,
            ] {
                field.store(value, Ordering::Relaxed);
            }
        }
        let fields = [
            &tenant.heartbeat_ns,
            &tenant.launches,
            &tenant.graph_launches,
            &tenant.held_ns,
            &tenant.busy_ns,
            &tenant.memory_bytes,
            &tenant.allocations,
            &tenant.refusals,
        ];
        // What is the node's as well: it never reads it back.
        let fields = fields.into_iter().chain([
            &node.quota_bytes,
            &node.heartbeat_ns,
            &node.granted[0],
            &node.context_bytes,
        ]);
        fields.chain(&tenant.memory_by_path).for_each(|field| field.store(value, Ordering::Relaxed));
        tenant.covered_unknown.store(value as u32, Ordering::Relaxed);
        tenant.copier_asleep.store(value as u32, Ordering::Relaxed);
        tenant.active.store(value as u32, Ordering::Relaxed);
        tenant.chunks.iter().for_each(|word| word.store(value as u32, Ordering::Relaxed));
        wait("the mark", || bench.view(1).guaranteed == Some(false));
        assert_eq!(neighbour.ask(0, 2), (neighbour.lease / MIB, true));
    }
    let view = bench.view(1);
    assert!(
        view.reasons.contains(&"a process wrote into its page what cannot be".to_owned()),
        "{:?}",
        view.reasons
    );
    assert_eq!((view.launches, view.host_to_device.bytes), (0, Bytes::ZERO));
    assert_eq!(bench.view(2).guaranteed, None);
    // Its copies are not waited for, and the neighbour's go.
    neighbour.page.shim.copies[0].ready.store(100, Ordering::Release);
    rustix::io::write(&neighbour._bell, &1u64.to_ne_bytes()).unwrap();
    wait("the neighbour's turn", || neighbour.page.node.granted[0].load(Ordering::Acquire) == 100);
}

#[test]
fn a_tenant_that_babbles_keeps_nobody_waiting() {
    let mut bench = Bench::new();
    let (token, other) = (bench.tenant(1, 1000), bench.tenant(2, 1000));
    let shim = bench.join(token);
    let mut neighbour = bench.join(other);
    let babbles = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let frame = ToNode::Notice { text: "la".to_owned() }.encode();
            while babbles.load(Ordering::Relaxed) {
                // The socket fills up: that is the point.
                if shim.socket.send(&frame, &[]).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        wait("it to be paused", || {
            let shared = &bench.registry.as_ref().unwrap().shared;
            shared.lock().connections.values().any(|connection| connection.paused)
        });
        for _ in 0..100 {
            assert_eq!(neighbour.ask(0, 0), (0, true));
        }
        babbles.store(false, Ordering::Relaxed);
    });
    assert_eq!(bench.view(1).notices, ["la"]);
    assert_eq!(bench.view(1).processes.len(), 1, "it is not thrown out for that");
}

#[test]
fn no_more_processes_than_a_tenant_may_have() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    let possible = bench.registry().shared.lock().max_connections as usize;
    let mut shims: Vec<Shim> = (0..possible.min(MAX_PROCESSES)).map(|_| bench.join(token)).collect();
    let text = Shim::join(&bench.socket(), token, VERSION, 0).err().unwrap();
    let expected =
        if possible > MAX_PROCESSES { "256 processes on the GPU already" } else { "no descriptors for more" };
    assert!(text.contains(expected), "{text}");
    assert_eq!(shims[0].ask(2, 2), (2, true));
}

#[test]
fn who_does_not_read_its_answers_is_let_go() {
    let mut bench = Bench::new();
    let token = bench.tenant(1, 1000);
    let shim = bench.join(token);
    let mut sibling = bench.join(token);
    let mut sent = 0;
    wait("it to be cut off", || {
        while sent < 100_000
            && shim.socket.send(&ToNode::Ask { need_bytes: 0, want_bytes: 0 }.encode(), &[]).is_ok()
        {
            sent += 1;
        }
        bench.view(1).processes.iter().any(|process| !process.connected)
    });
    assert_eq!(sibling.give(0), (0, true));
}
