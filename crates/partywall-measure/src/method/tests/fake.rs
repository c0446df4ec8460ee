//! Tenants in memory, and a machine without GPU.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::rc::Rc;

use partywall_core::units::Nanos;
use partywall_driver::mps::Contact;
use partywall_node::tenant::Place as TenantPlace;

use crate::load::Schedule;
use crate::plan::{self, NodeSetting, Place, Plan};
use crate::protocol::{CHECK_OK, Done, Failed, FromTenant, Line, PROTOCOL, Ready, Request, Run, ToTenant};
use crate::record::{CellError, ErrorKind, GpuSample, NodeRecord};
use crate::sides::{Looked, Sides};
use crate::stage::{Bench, Launcher, Machine, Mps, Node, Split};
use crate::tenant::{Channel, Heard, Launch, ProcessId};

/// A plan with four tenants, in a text with at least `walls`.
pub(super) fn plan(text: &str) -> Plan {
    let (text, slow) = match text.strip_prefix("slow_load = \"periodic\"\n") {
        Some(text) => (text, "load = { periodic = { period = \"1ms\" } }"),
        None => match text.strip_prefix("slow_load = \"duty\"\n") {
            Some(text) => (text, "load = { duty = 0.3 }"),
            None => (text, "load = { closed = { pause = \"100us\" } }"),
        },
    };
    let (walls, pairs) = text.split_once("[[pair]]").map_or((text, ""), |(walls, pair)| (walls, pair));
    let pairs = if pairs.is_empty() { String::new() } else { format!("[[pair]]{pairs}") };
    let text = format!(
        r#"
rounds = 2
warmup_s = 0.02
seconds_max = 1.0
requests_wanted = 1000
evidence = "shown"
{walls}
[[tenant]]
name = "fast"
class = "latency-sensitive"
built_in = "matmul"
load = {{ closed = {{ }} }}
[[tenant]]
name = "slow"
class = "latency-sensitive"
built_in = "network"
{slow}
[[tenant]]
name = "stream"
class = "best-effort"
built_in = "vram-read"
[[tenant]]
name = "gemm"
class = "best-effort"
built_in = "compute"
[[pair]]
{pairs}
"#
    );
    Plan::parse(&text, "plan.toml", "test").unwrap_or_else(|error| panic!("{error}"))
}

/// What a tenant is like.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Behaviour {
    pub(super) alone_us: u64,
    pub(super) beside_us: u64,
    /// What goes wrong, in which run of each process; 0 is before it is ready.
    pub(super) fault: Option<(Fault, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    Die,
    Hang,
    Rubbish,
    Fail,
    Wrong,
    /// It says nothing of the side that it was told; in any run.
    Elsewhere,
}

struct Tenant {
    process: ProcessId,
    /// Whether its process has others.
    tagged: bool,
    name: String,
    behaviour: Behaviour,
    runs: u64,
    run: Option<Run>,
    /// Whether another one has been at work during its run.
    beside: bool,
    hangs: bool,
}

/// The channel.
#[derive(Default)]
pub(super) struct Fake {
    now: u64,
    next: u64,
    behaviours: BTreeMap<String, Behaviour>,
    tenants: Vec<Tenant>,
    heard: VecDeque<Heard>,
    launched: Vec<Launch>,
    interrupt: Option<u64>,
}

impl Fake {
    pub(super) fn new(different: &[(&str, Behaviour)]) -> Self {
        let behaviour = |alone_us, beside_us| Behaviour { alone_us, beside_us, fault: None };
        let usual = [
            ("fast", behaviour(200, 600)),
            ("slow", behaviour(500, 1_500)),
            ("stream", behaviour(2_000, 4_000)),
            ("gemm", behaviour(2_000, 4_000)),
        ];
        let all = usual.iter().chain(different).map(|(name, behaviour)| ((*name).to_owned(), *behaviour));
        Self { behaviours: all.collect(), ..Self::default() }
    }

    pub(super) fn alive(&self) -> Vec<ProcessId> {
        self.tenants.iter().map(|tenant| tenant.process).collect()
    }

    pub(super) fn launched(&self) -> &[Launch] {
        &self.launched
    }

    /// Interrupts after somebody has listened so many times.
    pub(super) fn interrupt_after(&mut self, listened: u64) {
        self.interrupt = Some(listened);
    }

    /// How often somebody has listened, where it would have interrupted after so many times.
    pub(super) fn heard_before(&self, after: u64) -> u64 {
        self.interrupt.map_or(0, |left| after - left)
    }

    fn remove(&mut self, process: ProcessId) {
        self.tenants.retain(|tenant| tenant.process != process);
        let of = |heard: &Heard| matches!(heard, Heard::Said(id, _) | Heard::Lost(id, _) if *id == process);
        self.heard.retain(|heard| !of(heard));
    }

    fn lose(&mut self, at: usize, kind: ErrorKind) {
        let (process, name) = (self.tenants[at].process, self.tenants[at].name.clone());
        self.remove(process);
        self.heard.push_back(Heard::Lost(process, CellError::new(kind, format!("{name} is gone"))));
    }

    fn tell(&mut self, at: usize, message: FromTenant) {
        let tenant = &self.tenants[at];
        let tag = tenant.tagged.then(|| tenant.name.clone());
        self.heard.push_back(Heard::Said(tenant.process, Line { tenant: tag, message }));
    }

    fn start(&mut self, at: usize, run: &Run) {
        let others =
            self.tenants.iter().enumerate().filter(|(other, tenant)| *other != at && tenant.run.is_some());
        let beside = others.count() > 0;
        for tenant in self.tenants.iter_mut().filter(|tenant| tenant.run.is_some()) {
            tenant.beside = true;
        }
        let tenant = &mut self.tenants[at];
        tenant.runs += 1;
        tenant.run = Some(run.clone());
        tenant.beside = beside;
        match tenant.behaviour.fault.filter(|(_, run)| *run == tenant.runs) {
            Some((Fault::Die, _)) => self.lose(at, ErrorKind::Died),
            Some((Fault::Rubbish, _)) => self.lose(at, ErrorKind::Rubbish),
            Some((Fault::Fail, _)) => {
                let message = "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned();
                self.tell(at, FromTenant::Failed(Failed { message }));
            }
            Some((Fault::Hang, _)) => tenant.hangs = true,
            Some((Fault::Wrong | Fault::Elsewhere, _)) | None => {}
        }
    }

    /// The requests of a tenant's run if it is stopped at `stop`.
    fn requests(&self, at: usize, stop: u64) -> Vec<Request> {
        let tenant = &self.tenants[at];
        let Some(run) = &tenant.run else { return Vec::new() };
        let unit = if tenant.beside { tenant.behaviour.beside_us } else { tenant.behaviour.alone_us };
        let service = unit * 1_000 * u64::from(run.load.depth());
        let mut schedule = Schedule::new(run.load, Nanos(run.begin));
        let (mut requests, mut returned) = (Vec::new(), None);
        while (requests.len() as u64) < run.requests_max {
            let scheduled = schedule.next(returned).0;
            let start = scheduled.max(returned.map_or(0, |at: Nanos| at.0));
            if start >= stop {
                break;
            }
            requests.push(Request { scheduled, start, end: start + service });
            returned = Some(Nanos(start + service));
        }
        requests
    }

    fn finish(&mut self, at: usize, stop: u64) {
        let requests = self.requests(at, stop);
        let tenant = &mut self.tenants[at];
        let Some(run) = tenant.run.take() else { return };
        let wrong = tenant.behaviour.fault == Some((Fault::Wrong, tenant.runs));
        let check = if wrong { "the sum is 1" } else { CHECK_OK }.to_owned();
        self.now = self.now.max(requests.last().map_or(stop, |last| last.end));
        let done = Done {
            run: run.run,
            requests: requests.len() as u64,
            check,
            checksum: None,
            host_gap_ns: Some(5_000),
        };
        for request in requests {
            self.tell(at, FromTenant::Request(request));
        }
        self.tell(at, FromTenant::Done(done));
    }
}

impl Channel for Fake {
    fn now(&self) -> Nanos {
        Nanos(self.now)
    }

    fn launch(&mut self, launch: &Launch) -> Result<ProcessId, CellError> {
        self.next += 1;
        let process = ProcessId(self.next);
        let names: Vec<&str> = launch.name.split(" and ").collect();
        for name in &names {
            let behaviour = self.behaviours[*name];
            let (name, tagged) = ((*name).to_owned(), names.len() > 1);
            let tenant =
                Tenant { process, tagged, name, behaviour, runs: 0, run: None, beside: false, hangs: false };
            self.tenants.push(tenant);
            let at = self.tenants.len() - 1;
            if behaviour.fault.is_some_and(|(_, run)| run == 0) {
                self.lose(at, ErrorKind::Died);
                break;
            }
            let is_elsewhere = behaviour.fault.is_some_and(|(fault, _)| fault == Fault::Elsewhere);
            let side = launch.set.get(partywall_shim_api::environment::SIDE).filter(|_| !is_elsewhere);
            let about = side.map(|side| ("side".to_owned(), side.clone())).into_iter().collect();
            self.tell(
                at,
                FromTenant::Ready(Ready {
                    protocol: PROTOCOL,
                    pid: 1,
                    unit: "image".to_owned(),
                    work: 1.0,
                    about,
                }),
            );
        }
        self.launched.push(launch.clone());
        Ok(process)
    }

    fn say(&mut self, process: ProcessId, line: &Line<ToTenant>) {
        let of = |tenant: &Tenant| {
            tenant.process == process && line.tenant.as_ref().is_none_or(|tag| *tag == tenant.name)
        };
        let Some(at) = self.tenants.iter().position(of) else { return };
        match &line.message {
            ToTenant::Run(run) => self.start(at, run),
            ToTenant::Stop(_) if !self.tenants[at].hangs => self.finish(at, self.now),
            _ => {}
        }
    }

    fn hear(&mut self, until: Nanos) -> Heard {
        if let Some(left) = &mut self.interrupt {
            if *left == 0 {
                return Heard::Interrupted;
            }
            *left -= 1;
        }
        if let Some(heard) = self.heard.pop_front() {
            return heard;
        }
        // Who ends by itself before `until`. Antagonists never do.
        let ends = (0..self.tenants.len()).filter(|&at| !self.tenants[at].hangs).filter_map(|at| {
            let run = self.tenants[at].run.as_ref().filter(|run| run.requests_max < 100_000)?;
            let requests = self.requests(at, until.0);
            let all = requests.len() as u64 == run.requests_max;
            requests.last().filter(|last| all && last.end <= until.0).map(|last| (last.end, at))
        });
        match ends.min() {
            Some((end, at)) => {
                self.now = self.now.max(end);
                self.finish(at, end);
                self.hear(until)
            }
            None => {
                self.now = self.now.max(until.0);
                Heard::Time
            }
        }
    }

    fn end(&mut self, processes: &[ProcessId]) {
        for process in processes {
            self.kill(*process);
        }
    }

    fn kill(&mut self, process: ProcessId) {
        self.remove(process);
    }
}

/// A machine with an MPS daemon, and 66 groups of 2 SMs.
#[derive(Default)]
pub(super) struct FakeMachine {
    /// Its daemon has no clients.
    pub(super) deaf: bool,
    pub(super) without_mps: bool,
    /// The sides are not found so often.
    pub(super) blind: usize,
    /// How often the sides were looked for.
    pub(super) looked: usize,
    /// Daemons that were started.
    pub(super) started: usize,
    pub(super) running: Rc<Cell<usize>>,
}

impl FakeMachine {
    pub(super) fn daemons(&self) -> usize {
        self.running.get()
    }
}

impl Machine for FakeMachine {
    fn unavailable(&self, place: &Place) -> Option<String> {
        (self.without_mps && place.has_mps()).then(|| "there is no MPS here".to_owned())
    }
    fn visible(&self) -> Option<String> {
        None
    }
    fn split(&self) -> Option<Split> {
        Some(Split { groups: 66, sms_per_group: 2 })
    }
    fn empty_directory(&self) -> String {
        "empty".to_owned()
    }
    fn start_mps(&mut self) -> Result<Box<dyn Mps>, String> {
        self.started += 1;
        self.running.set(self.running.get() + 1);
        Ok(Box::new(Daemon { number: self.started, deaf: self.deaf, running: Rc::clone(&self.running) }))
    }
    fn find_sides(&mut self, _: &Launcher) -> Result<Sides, String> {
        assert_eq!(self.running.get(), 0, "an MPS daemon is there while the sides are looked for");
        self.looked += 1;
        if self.looked <= self.blind {
            return Err("too much noise".to_owned());
        }
        let looked = Looked::pretended(Split { groups: 66, sms_per_group: 2 })?;
        Sides::new(&looked, self.split(), Some(Path::new("/side.so")), &std::env::temp_dir())
    }
    fn start_node(&mut self, setting: &NodeSetting, _: Option<Contact>) -> Result<Box<dyn Node>, String> {
        Ok(Box::new(FakeNode { setting: setting.to_string(), deaf: self.deaf, held: 0, names: Vec::new() }))
    }
    fn start_sampling(&mut self) {}
    fn stop_sampling(&mut self) -> Option<GpuSample> {
        Some(GpuSample { power_w_mean: Some(300.0), ..GpuSample::default() })
    }
}

/// A node that says who came, and counts how often it was asked.
struct FakeNode {
    setting: String,
    deaf: bool,
    held: u64,
    names: Vec<String>,
}

impl Node for FakeNode {
    fn admit(
        &mut self,
        tenant: &plan::Tenant,
        TenantPlace { sms, squeezed }: TenantPlace,
    ) -> Result<BTreeMap<String, String>, String> {
        let plan::Tenant { name, class, .. } = tenant;
        self.names.push(name.clone());
        let sms = sms.map_or_else(|| "all".to_owned(), |set| set.to_string());
        let squeezed = squeezed.map_or_else(String::new, |set| format!(", squeezed {set}"));
        Ok([("NODE".to_owned(), format!("{}: {name} {class} {sms}{squeezed}", self.setting))].into())
    }
    fn stands_around(&mut self, name: &str, pid: u32) -> Result<(), String> {
        if self.deaf { Err(format!("process {pid} of {name} has not registered")) } else { Ok(()) }
    }
    fn begins(&mut self) {}

    fn facts(&mut self) -> Vec<NodeRecord> {
        self.held += 7;
        let fact = |name: &String| {
            let counted = [("held_ns".to_owned(), self.held)].into();
            let stood = [("graphs_cut".to_owned(), self.held)].into();
            NodeRecord { tenant: name.clone(), counted, stood, ..NodeRecord::default() }
        };
        self.names.iter().map(fact).collect()
    }
}

struct Daemon {
    number: usize,
    deaf: bool,
    running: Rc<Cell<usize>>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.running.set(self.running.get() - 1);
    }
}

impl Mps for Daemon {
    fn environment(&self) -> Vec<(String, String)> {
        vec![("CUDA_MPS_PIPE_DIRECTORY".to_owned(), format!("daemon-{}", self.number))]
    }
    fn contact(&self) -> Option<Contact> {
        None
    }
    fn is_client(&mut self, _: u32) -> Result<bool, String> {
        Ok(!self.deaf)
    }
    fn stop(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

/// What the method works with.
pub(super) fn bench<'a>(plan: &'a Plan, machine: &'a mut FakeMachine, channel: &'a mut Fake) -> Bench<'a> {
    static LAUNCHER: std::sync::LazyLock<Launcher> =
        std::sync::LazyLock::new(|| Launcher { program: "partywall".to_owned(), pretended: false });
    Bench { plan, launcher: &LAUNCHER, machine, channel }
}
