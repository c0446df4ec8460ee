//! Tenants that copy at the same time, on a simulated GPU: what small copies wait for, who gets how much of the link,
//! and that what arrives is what was sent. The link is slowed down to 0.5 GB/s, so that what the machine of the test
//! takes for a wake-up is small against a packet.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use partywall_core::config::Restart;
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::{Bytes, Nanos};
use partywall_driver::soft::find_library;
use partywall_node::environment::Wall;
use partywall_node::registry::{Options, Registry};
use partywall_node::tenant::{TenantService as _, TenantSpec, Token};
use serde_json::{Value, json};

use crate::Scratch;
use crate::simulated::own_gpu;

/// A machine with a simulated GPU of its own behind a slow link.
struct Machine {
    scratch: Scratch,
    environment: BTreeMap<String, String>,
}

impl Machine {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let environment = own_gpu(&scratch.0, 0.5);
        Self { scratch, environment }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command.args(arguments).envs(&self.environment).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    fn plain(&self, what: &str) -> Tenant {
        Tenant::start(self.command(&["tenant", what]))
    }

    fn node(&self) -> Node<'_> {
        let options = Options::new(Bytes::from_gib(140), Err("not in this test".to_owned()));
        let socket = self.scratch.0.join("tenants.sock");
        let registry = Registry::start(&socket, options).unwrap();
        let shim = find_library("partywall_shim", Path::new(env!("CARGO_BIN_EXE_partywall"))).unwrap();
        Node { machine: self, wall: Wall::new(&shim, socket).unwrap(), registry, tenants: 0 }
    }
}

/// What serves tenants' processes, in the process of the test.
struct Node<'a> {
    machine: &'a Machine,
    wall: Wall,
    registry: Registry,
    tenants: u32,
}

impl Node<'_> {
    fn tenant(&mut self, name: &str, class: Class, weight: u32, what: &str) -> Tenant {
        self.tenants += 1;
        let token = Token::from_bytes([self.tenants as u8; 16]);
        let command = self.machine.command(&["tenant", what]);
        let spec = TenantSpec {
            id: TenantId(self.tenants),
            name: name.to_owned(),
            class,
            memory: None,
            weight,
            command: vec!["partywall".to_owned()],
            env: BTreeMap::new(),
            restart: Restart::Never,
            token,
        };
        self.registry.add_tenant(&spec).unwrap();
        let mut command = command;
        command.envs(self.wall.variables(&token, None));
        Tenant::start(command)
    }
}

/// A built-in tenant, spoken to as docs/tenants.md says.
struct Tenant {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Tenant {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut tenant = Self { child, input, output };
        assert!(tenant.hear()["ready"].is_object());
        tenant
    }

    fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let said = serde_json::from_str::<Value>(&line);
        assert!(said.is_ok(), "`{line}`: {said:?}");
        let said = said.unwrap();
        assert!(said.get("failed").is_none(), "{said}");
        said
    }

    fn tell(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    fn begin(&mut self, pause_ns: u64) {
        let load = json!({ "closed": { "pause_ns": pause_ns, "depth": 1 } });
        self.tell(&json!({ "run": { "run": 1, "load": load, "begin": 0, "requests_max": 100_000 } }));
    }

    /// Its requests as beginnings and ends. It has checked what arrived.
    fn end(mut self) -> Vec<(u64, u64)> {
        self.tell(&json!({ "stop": { "run": 1 } }));
        let mut requests = Vec::new();
        loop {
            let said = self.hear();
            if let Some(request) = said.get("request") {
                requests.push((request["start"].as_u64().unwrap(), request["end"].as_u64().unwrap()));
            } else if let Some(done) = said.get("done") {
                assert_eq!(done["check"], "ok");
                break;
            }
        }
        self.tell(&json!({ "exit": {} }));
        assert!(self.child.wait().unwrap().success());
        requests
    }
}

/// Lets tenants copy beside each other for a while. Their requests, in the same order.
fn beside(tenants: Vec<(Tenant, u64)>, time: Duration) -> Vec<Vec<(u64, u64)>> {
    let mut tenants = tenants;
    for (tenant, pause_ns) in &mut tenants {
        tenant.begin(*pause_ns);
    }
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    tenants.into_iter().map(|(tenant, _)| tenant.end()).collect()
}

fn quantile_ms(requests: &[(u64, u64)], share: f64) -> f64 {
    let mut times: Vec<u64> = requests.iter().map(|(start, end)| end - start).collect();
    times.sort_unstable();
    assert!(times.len() >= 10, "only {} requests", times.len());
    times[(times.len() as f64 * share) as usize] as f64 / 1e6
}

/// Requests a second within what all of them have in common.
fn rates(all: &[Vec<(u64, u64)>]) -> Vec<f64> {
    let begin = all.iter().map(|requests| requests.first().unwrap().1).max().unwrap();
    let end = all.iter().map(|requests| requests.last().unwrap().0).min().unwrap();
    let share =
        |&(from, to): &(u64, u64)| to.min(end).saturating_sub(from.max(begin)) as f64 / (to - from) as f64;
    let seconds = end.saturating_sub(begin) as f64 / 1e9;
    all.iter().map(|requests| requests.iter().map(share).sum::<f64>() / seconds).collect()
}

const LARGE: &str = "copies-h2d,size=32MiB";
const SMALL: &str = "copy-h2d,size=64KiB";
const TIME: Duration = Duration::from_secs(3);

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;

#[test]
fn small_copies_wait_for_packets_and_not_for_copies() {
    let machine = Machine::new("copies-small");
    let alone = beside(vec![(machine.plain(LARGE), 0)], TIME);
    let without = beside(vec![(machine.plain(SMALL), 5_000_000), (machine.plain(LARGE), 0)], TIME);
    let mut node = machine.node();
    let small = node.tenant("small", LS, 8, SMALL);
    let large = node.tenant("large", BE, 1, LARGE);
    let with = beside(vec![(small, 5_000_000), (large, 0)], TIME);
    let view = node.registry.reader().view();
    let waited = &view.tenants[1].host_to_device;
    assert!(waited.copies > 0 && waited.wait_ns > Nanos::ZERO, "{waited:?}");
    assert_eq!(view.tenants[0].host_to_device.copies, 0, "small copies go straight to the driver");
    let (before, after) = (quantile_ms(&without[0], 0.9), quantile_ms(&with[0], 0.9));
    let kept = rates(&with)[1] / rates(&alone)[0];
    eprintln!("p90 {before} ms without, {after} ms with; {kept} of the large copies' rate is left");
    // 32 MiB take 67 ms, a packet of 512 KiB one. What is asked for leaves room for a machine that does other things
    // too.
    assert!(before > 30.0 && after < before / 8.0, "{before} ms without, {after} ms with");
    assert!(kept > 0.6, "{kept}");
}

#[test]
fn tenants_that_copy_all_the_time_share_by_weight() {
    let machine = Machine::new("copies-weights");
    let mut node = machine.node();
    let tenants = [1, 2, 4]
        .map(|weight| (node.tenant(&format!("weight-{weight}"), BE, weight, "copies-h2d,size=16MiB"), 0));
    let rates = rates(&beside(tenants.into(), 2 * TIME));
    eprintln!("copies a second at weights 1, 2, 4: {rates:?}");
    let sum: f64 = rates.iter().sum();
    for (rate, weight) in rates.iter().zip([1.0, 2.0, 4.0]) {
        let error = rate / sum / (weight / 7.0) - 1.0;
        assert!(error.abs() < 0.1, "weight {weight}: {error} off, {rates:?}");
    }
}

#[test]
fn copies_go_on_and_arrive_when_the_node_dies() {
    let machine = Machine::new("copies-node");
    let mut node = machine.node();
    let mut tenants = [
        (node.tenant("there", BE, 1, "copies-h2d,size=16MiB"), 0),
        (node.tenant("back", LS, 8, "copies-d2h,size=16MiB"), 0),
    ];
    for (tenant, pause_ns) in &mut tenants {
        tenant.begin(*pause_ns);
    }
    std::thread::sleep(Duration::from_millis(500));
    drop(node);
    let gone = Instant::now();
    std::thread::sleep(TIME);
    let requests = tenants.map(|(tenant, _)| tenant.end());
    assert!(gone.elapsed() < 3 * TIME, "somebody waited");
    for requests in requests {
        // 16 MiB take 34 ms.
        let last = requests.iter().rev().take(20).map(|(start, end)| end - start).max().unwrap();
        assert!(
            requests.len() > 30 && last < 500_000_000,
            "{} requests, the last took {last} ns",
            requests.len()
        );
    }
}
