//! Tenants in processes of their own on a simulated GPU, and a node in the process of the test.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use partywall_core::config::Restart;
use partywall_core::sm_sets::SmSet;
use partywall_core::tenant::{Baseline, Class, Slo, TenantId};
use partywall_core::units::Bytes;
use partywall_driver::soft::find_library;
use partywall_node::arbiter::squeeze::LaunchOptions;
use partywall_node::environment::Wall;
use partywall_node::facts::{TenantView, TurnsView};
use partywall_node::registry::{Options, Registry};
use partywall_node::tenant::{Place, TenantService as _, TenantSpec, Token};
use serde_json::{Value, json};

use crate::Scratch;
use crate::simulated::own_gpu;

/// A machine with a simulated GPU of its own behind a slow link.
pub(crate) struct Machine {
    scratch: Scratch,
    environment: BTreeMap<String, String>,
}

impl Machine {
    pub(crate) fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let environment = own_gpu(&scratch.0, 0.5);
        Self { scratch, environment }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command.args(arguments).envs(&self.environment).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    pub(crate) fn plain(&self, what: &str) -> Tenant {
        Tenant::start(self.command(&["tenant", what]))
    }

    pub(crate) fn node(&self) -> Node<'_> {
        self.deciding(LaunchOptions::default())
    }

    /// A node that decides about launches.
    pub(crate) fn deciding(&self, launches: LaunchOptions) -> Node<'_> {
        let usual = Options::new(Bytes::from_gib(140), Err("not in this test".to_owned()));
        let options = Options { launches, ..usual };
        let socket = self.scratch.0.join("tenants.sock");
        let registry = Registry::start(&socket, options).unwrap();
        let shim = find_library("partywall_shim", Path::new(env!("CARGO_BIN_EXE_partywall"))).unwrap();
        Node { machine: self, wall: Wall::new(&shim, socket).unwrap(), registry, tenants: 0 }
    }
}

/// What serves tenants' processes, in the process of the test.
pub(crate) struct Node<'a> {
    machine: &'a Machine,
    wall: Wall,
    registry: Registry,
    tenants: u32,
}

impl Node<'_> {
    /// What the node says of a tenant.
    pub(crate) fn view(&self, id: TenantId) -> TenantView {
        let view = self.registry.reader().view();
        view.tenants.into_iter().find(|tenant| tenant.id == id).unwrap()
    }

    /// How best-effort processes compute one at a time.
    pub(crate) fn turns(&self) -> Option<TurnsView> {
        self.registry.reader().view().turns
    }

    pub(crate) fn tenant(&mut self, name: &str, class: Class, weight: u32, what: &str) -> Tenant {
        self.confined(name, class, weight, None, what)
    }

    /// A latency-sensitive tenant that was promised something.
    pub(crate) fn promised(&mut self, name: &str, slo: Slo, what: &str) -> Tenant {
        self.start((name, Class::LatencySensitive, 8), Place::default(), slo, what)
    }

    /// A tenant that is confined to some SMs.
    pub(crate) fn confined(
        &mut self,
        name: &str,
        class: Class,
        weight: u32,
        sms: Option<SmSet>,
        what: &str,
    ) -> Tenant {
        self.start((name, class, weight), Place { sms, squeezed: None }, Slo::default(), what)
    }

    /// A best-effort tenant that is squeezed onto some SMs instead of being held.
    pub(crate) fn squeezed(&mut self, name: &str, set: SmSet, what: &str) -> Tenant {
        let place = Place { sms: None, squeezed: Some(set) };
        self.start((name, Class::BestEffort, 1), place, Slo::default(), what)
    }

    fn start(
        &mut self,
        (name, class, weight): (&str, Class, u32),
        place: Place,
        slo: Slo,
        what: &str,
    ) -> Tenant {
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
            slo,
            baseline: Baseline::default(),
            share: None,
            sms: None,
            squeezed: None,
            squeezed_sms: None,
            token,
        }
        .placed(place);
        self.registry.add_tenant(&spec).unwrap();
        let mut command = command;
        command.envs(self.wall.variables(&token, None));
        Tenant::start(command)
    }
}

/// A built-in tenant, spoken to as docs/tenants.md says.
pub(crate) struct Tenant {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// What it says of itself.
    pub(crate) about: Value,
}

impl Tenant {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut tenant = Self { child, input, output, about: Value::Null };
        tenant.about = tenant.hear()["ready"]["about"].take();
        assert!(tenant.about.is_object());
        tenant
    }

    pub(crate) fn hear(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let said = serde_json::from_str::<Value>(&line);
        assert!(said.is_ok(), "`{line}`: {said:?}");
        let said = said.unwrap();
        assert!(said.get("failed").is_none(), "{said}");
        said
    }

    pub(crate) fn tell(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    pub(crate) fn begin(&mut self, pause_ns: u64) {
        let load = json!({ "closed": { "pause_ns": pause_ns, "depth": 1 } });
        self.tell(&json!({ "run": { "run": 1, "load": load, "begin": 0, "requests_max": 100_000 } }));
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Its requests as beginnings and ends. It has checked what arrived.
    pub(crate) fn end(mut self) -> Vec<(u64, u64)> {
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
pub(crate) fn beside(tenants: Vec<(Tenant, u64)>, time: Duration) -> Vec<Vec<(u64, u64)>> {
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

pub(crate) fn quantile_ms(requests: &[(u64, u64)], share: f64) -> f64 {
    let mut times: Vec<u64> = requests.iter().map(|(start, end)| end - start).collect();
    times.sort_unstable();
    assert!(times.len() >= 10, "only {} requests", times.len());
    times[(times.len() as f64 * share) as usize] as f64 / 1e6
}

/// Requests a second within what all of them have in common.
pub(crate) fn rates(all: &[Vec<(u64, u64)>]) -> Vec<f64> {
    let begin = all.iter().map(|requests| requests.first().unwrap().1).max().unwrap();
    let end = all.iter().map(|requests| requests.last().unwrap().0).min().unwrap();
    let share =
        |&(from, to): &(u64, u64)| to.min(end).saturating_sub(from.max(begin)) as f64 / (to - from) as f64;
    let seconds = end.saturating_sub(begin) as f64 / 1e9;
    all.iter().map(|requests| requests.iter().map(share).sum::<f64>() / seconds).collect()
}
