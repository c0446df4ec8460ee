//! A stage: the processes of a place, started once and kept for many cells, and what their wall needs around them.
//!
//! Which environment a tenant gets decides which wall it is behind, and the GPU says nothing when it is behind none. So
//! a pipe directory is always given (an empty one where MPS is not wanted: the machine's own daemon must not be met by
//! accident), and under MPS every tenant must be on the daemon's list of clients before it counts.

mod sets;

use std::collections::{BTreeMap, BTreeSet};

use partywall_core::tenant::Class;
use partywall_core::wall::Wall;
use partywall_driver::mps::Contact;
use partywall_node::tenant::Place as TenantPlace;

use crate::plan::{NodeSetting, Place, Plan, Pretend, Program, Setting, Tenant};
use crate::protocol::{FromTenant, Line, Ready, SM_GROUPS, ToTenant};
use crate::record::{CellError, ErrorKind, GpuSample, NodeRecord, Processes};
use crate::sides::{Sides, misplaced, not_taken};
use crate::tenant::{Channel, Heard, Launch, ProcessId};

use sets::squeezed;
pub use sets::{Split, sm_groups, sm_sets};

/// How often a tenant is started again on one stage after it went wrong there. A tenant that goes wrong in each cell
/// would otherwise cost the patience for it in each.
pub const RESTARTS_MAX: u32 = 2;

/// Whose blocks an MPS server prefers: 0 normal, 1 below; a hint, by the documentation of MPS.
const CLIENT_PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// Variables of ours that would put a tenant behind another wall than the one that is measured.
pub(crate) const UNSET: [&str; 13] = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    CLIENT_PRIORITY,
    "CUDA_DEVICE_MAX_CONNECTIONS",
    SM_GROUPS,
    partywall_shim_api::environment::SIDE,
    partywall_shim_api::environment::SIDE_KNOWN,
    partywall_shim_api::environment::SIDE_LIBRARY,
    // Of a node that this program itself is a tenant of.
    partywall_shim_api::environment::SOCKET,
    partywall_shim_api::environment::TOKEN,
];

/// The GPU and what belongs to it, as far as stages need it.
pub trait Machine {
    /// Why a place cannot be measured here, and what would make it so; `None` where it can.
    fn unavailable(&self, place: &Place) -> Option<String>;

    /// The value of `CUDA_VISIBLE_DEVICES` that selects the GPU; `None` leaves ours.
    fn visible(&self) -> Option<String>;

    /// The split of all SMs into the smallest groups; `None` where there are no Green Contexts.
    fn split(&self) -> Option<Split>;

    /// A directory without MPS daemon, for `CUDA_MPS_PIPE_DIRECTORY`.
    fn empty_directory(&self) -> String;

    /// Starts an MPS daemon of our own.
    ///
    /// # Errors
    /// Why it does not start.
    fn start_mps(&mut self) -> Result<Box<dyn Mps>, String>;

    /// Finds out where the sides are, by a process that has ended when this returns. Nothing else of ours is on the GPU meanwhile.
    ///
    /// # Errors
    /// Why they are not known.
    fn find_sides(&mut self, launcher: &Launcher) -> Result<Sides, String>;

    /// Starts a node that is set like this; `mps` is where the daemon is reached that its tenants are clients of.
    ///
    /// # Errors
    /// Why there is none.
    fn start_node(&mut self, setting: &NodeSetting, mps: Option<Contact>) -> Result<Box<dyn Node>, String>;

    /// Begins to sample power and clocks.
    fn start_sampling(&mut self);

    /// Ends it; `None` where nothing was sampled.
    fn stop_sampling(&mut self) -> Option<GpuSample>;
}

/// An MPS daemon of our own. Dropping it stops it.
pub trait Mps {
    /// What its clients need in their environment.
    fn environment(&self) -> Vec<(String, String)>;

    /// How others ask it; `None` of one that is not there.
    fn contact(&self) -> Option<Contact>;

    /// Whether a process is its client.
    ///
    /// # Errors
    /// Where it does not answer.
    fn is_client(&mut self, pid: u32) -> Result<bool, String>;

    /// Stops it, after its clients have ended.
    ///
    /// # Errors
    /// Where something is left of it.
    fn stop(self: Box<Self>) -> Result<(), String>;
}

/// A node around tenants. Dropping it ends it.
pub trait Node {
    /// Takes in a tenant, in place of an earlier one of its name. What its processes need in their environment.
    ///
    /// # Errors
    /// Why it cannot be served.
    fn admit(&mut self, tenant: &Tenant, place: TenantPlace) -> Result<BTreeMap<String, String>, String>;

    /// Whether a tenant's process, which has used the GPU, is behind the node's wall.
    ///
    /// # Errors
    /// Why not.
    fn stands_around(&mut self, name: &str, pid: u32) -> Result<(), String>;

    /// What it knows of its tenants; what is counted, since each was taken in, and the longest of anything since the last call of
    /// [`Node::begins`].
    fn facts(&mut self) -> Vec<NodeRecord>;

    /// A round begins: what took longest until now was another one's, or a program's that had just started.
    fn begins(&mut self);
}

/// How tenants are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// The program that has the subcommand `tenant`: our own.
    pub program: String,
    /// Whether tenants are pretended.
    pub pretended: bool,
}

/// What the method works with.
pub struct Bench<'a> {
    /// What to measure.
    pub plan: &'a Plan,
    /// How tenants are started.
    pub launcher: &'a Launcher,
    /// The GPU.
    pub machine: &'a mut dyn Machine,
    /// The way to tenants.
    pub channel: &'a mut dyn Channel,
}

impl Bench<'_> {
    /// Why a tenant cannot be behind a wall, whatever the machine.
    pub fn misplaced(&self, place: &Place, tenant: usize) -> Option<String> {
        misplaced(place, &self.plan.tenants[tenant], self.launcher)
    }
}

/// Why a cell, or all, ends here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Whoever started us wants us to stop.
    Interrupted,
    /// The cell cannot be measured.
    Cell(CellError),
}

/// Processes behind one wall.
pub struct Stage {
    /// Where.
    pub place: Place,
    hosts: Vec<Host>,
    mps: Option<Box<dyn Mps>>,
    node: Option<Box<dyn Node>>,
    sides: Option<Sides>,
    /// Why the sides were not found, each time.
    not_found: Vec<String>,
    /// What tenants said when they were ready.
    pub ready: BTreeMap<usize, Ready>,
}

/// A process to be, or that is, with the tenants that it hosts.
struct Host {
    members: Vec<usize>,
    process: Option<ProcessId>,
    failures: u32,
    last: Option<CellError>,
}

impl Stage {
    /// For these tenants; nothing is started yet.
    pub fn new(place: Place, members: &[usize]) -> Self {
        let host =
            |members: &[usize]| Host { members: members.to_vec(), process: None, failures: 0, last: None };
        let hosts = match place.processes {
            Processes::One => vec![host(members)],
            Processes::Separate => members.iter().map(|&member| host(&[member])).collect(),
        };
        Self {
            place,
            hosts,
            mps: None,
            node: None,
            sides: None,
            not_found: Vec::new(),
            ready: BTreeMap::new(),
        }
    }

    /// Starts those of `wanted` that do not run, together, and waits until they are ready.
    ///
    /// # Errors
    /// The first thing that went wrong; other tenants may run nevertheless, unless a fault of one is a fault of all.
    pub fn bring_up(&mut self, bench: &mut Bench<'_>, wanted: &[usize]) -> Result<(), Stop> {
        let down: Vec<usize> = (0..self.hosts.len())
            .filter(|&at| self.hosts[at].process.is_none())
            .filter(|&at| self.hosts[at].members.iter().any(|member| wanted.contains(member)))
            .collect();
        if down.is_empty() {
            return Ok(());
        }
        // Before there is an MPS server, beside which another process would have to take turns.
        self.find_sides(bench)?;
        self.start_mps(bench)?;
        self.start_node(bench)?;
        let mut first = None;
        for some in down.chunks(if self.place.starts_in_turn() { 1 } else { down.len() }) {
            for &at in some {
                if let Err(error) = self.launch(bench, at) {
                    self.hosts[at].failures += 1;
                    first.get_or_insert(error);
                }
            }
            if let Some(error) = self.await_ready(bench, some)? {
                first.get_or_insert(error);
            }
            if first.is_some() && self.place.shares_faults() {
                break;
            }
        }
        for &at in &down {
            if let Some(error) = self
                .not_attached(at)
                .or_else(|| self.not_behind(bench.plan, at))
                .or_else(|| self.not_on_side(bench, at))
            {
                self.fail(bench, at, &error);
                first.get_or_insert(error);
            }
        }
        if first.is_some() && self.place.shares_faults() {
            // As in `failed`. An MPS server that had a fault takes no new client while an old one is left.
            self.end(bench);
        }
        first.map_or(Ok(()), |error| Err(Stop::Cell(error)))
    }

    /// Says something to a tenant.
    pub fn say(&self, bench: &mut Bench<'_>, tenant: usize, message: ToTenant) {
        let Some(host) = self.hosts.iter().find(|host| host.members.contains(&tenant)) else { return };
        if let Some(process) = host.process {
            let tag = (host.members.len() > 1).then(|| bench.plan.tenants[tenant].name.clone());
            bench.channel.say(process, &Line { tenant: tag, message });
        }
    }

    /// Whether a tenant's process runs.
    pub fn is_up(&self, tenant: usize) -> bool {
        self.hosts.iter().any(|host| host.members.contains(&tenant) && host.process.is_some())
    }

    /// Which tenant a line is from.
    ///
    /// # Errors
    /// A line without, or with a wrong, tenant's name.
    pub fn speaker(&self, plan: &Plan, process: ProcessId, tag: Option<&str>) -> Result<usize, CellError> {
        let members = self.hosted(process);
        let found = match (tag, members) {
            (None, [only]) => Some(*only),
            (None, _) => None,
            (Some(tag), _) => members.iter().copied().find(|&member| plan.tenants[member].name == tag),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = members.iter().map(|&member| plan.tenants[member].name.as_str()).collect();
            let message = format!("a line of {} does not say which tenant it is about", names.join(" and "));
            CellError::new(ErrorKind::Rubbish, message)
        })
    }

    /// The tenants of a process of this stage.
    pub fn hosted(&self, process: ProcessId) -> &[usize] {
        let host = self.hosts.iter().find(|host| host.process == Some(process));
        host.map_or(&[], |host| &host.members)
    }

    /// A tenant went wrong: ends its process, and, where a fault of one is a fault of all, the others'. They are started
    /// again when a cell needs them.
    pub fn failed(&mut self, bench: &mut Bench<'_>, tenant: usize, error: &CellError) {
        let Some(at) = self.hosts.iter().position(|host| host.members.contains(&tenant)) else { return };
        self.fail(bench, at, error);
        if self.place.shares_faults() {
            self.end(bench);
        }
    }

    /// Ends all processes, and the MPS daemon.
    pub fn end(&mut self, bench: &mut Bench<'_>) {
        let processes: Vec<ProcessId> =
            self.hosts.iter_mut().filter_map(|host| host.process.take()).collect();
        bench.channel.end(&processes);
        self.node = None;
        if let Some(mps) = self.mps.take() {
            // What is left of it does not change what was measured, and dropping it has tried again.
            let _ = mps.stop();
        }
    }

    fn fail(&mut self, bench: &mut Bench<'_>, at: usize, error: &CellError) {
        let host = &mut self.hosts[at];
        host.failures += 1;
        host.last = Some(error.clone());
        if let Some(process) = host.process.take() {
            bench.channel.kill(process);
        }
    }

    fn find_sides(&mut self, bench: &mut Bench<'_>) -> Result<(), Stop> {
        if self.place.side_memory().is_none() || self.sides.is_some() {
            return Ok(());
        }
        let error = |reason| Stop::Cell(CellError::new(ErrorKind::Skipped, format!("the sides: {reason}")));
        if let [.., last] = &self.not_found[..]
            && self.not_found.len() > RESTARTS_MAX as usize
        {
            return Err(error(format!("given up after {} failures; the last: {last}", self.not_found.len())));
        }
        match bench.machine.find_sides(bench.launcher) {
            Ok(sides) => {
                self.sides = Some(sides);
                Ok(())
            }
            Err(reason) => {
                self.not_found.push(reason.clone());
                // Ctrl-C ends who looks as well. Nobody runs who could say anything else.
                let now = bench.channel.now();
                let is_over = bench.channel.hear(now) == Heard::Interrupted;
                Err(if is_over { Stop::Interrupted } else { error(reason) })
            }
        }
    }

    fn start_mps(&mut self, bench: &mut Bench<'_>) -> Result<(), Stop> {
        if self.place.has_mps() && self.mps.is_none() {
            let started = bench.machine.start_mps();
            let error = |reason| CellError::new(ErrorKind::Died, format!("the MPS daemon: {reason}"));
            self.mps = Some(started.map_err(|reason| Stop::Cell(error(reason)))?);
        }
        Ok(())
    }

    fn start_node(&mut self, bench: &mut Bench<'_>) -> Result<(), Stop> {
        if let Some(setting) = self.place.node().filter(|_| self.node.is_none()) {
            let contact = self.mps.as_ref().and_then(|mps| mps.contact());
            let started = bench.machine.start_node(&setting, contact);
            let error = |reason| CellError::new(ErrorKind::Died, format!("the node: {reason}"));
            self.node = Some(started.map_err(|reason| Stop::Cell(error(reason)))?);
        }
        Ok(())
    }

    /// A round begins. What the node knows of its tenants then; nothing where there is none.
    pub fn begins(&mut self) -> Vec<NodeRecord> {
        if let Some(node) = &mut self.node {
            node.begins();
        }
        self.facts()
    }

    /// What the node knows of its tenants; nothing where there is none.
    pub fn facts(&mut self) -> Vec<NodeRecord> {
        self.node.as_mut().map(|node| node.facts()).unwrap_or_default()
    }

    fn launch(&mut self, bench: &mut Bench<'_>, at: usize) -> Result<(), CellError> {
        let host = &self.hosts[at];
        if let Some(last) = host.last.as_ref().filter(|_| host.failures > RESTARTS_MAX) {
            let message = format!("given up after {} failures; the last: {}", host.failures, last.message);
            return Err(CellError::new(last.kind, message));
        }
        let members = host.members.clone();
        let launch = self.launch_of(bench, &members);
        let launched = launch.map_err(|reason| CellError::new(ErrorKind::Skipped, reason));
        match launched.and_then(|launch| bench.channel.launch(&launch)) {
            Ok(process) => {
                self.hosts[at].process = Some(process);
                Ok(())
            }
            Err(error) => {
                self.hosts[at].last = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Waits until all tenants of the hosts that were started are ready; the first error, if there was one.
    fn await_ready(&mut self, bench: &mut Bench<'_>, started: &[usize]) -> Result<Option<CellError>, Stop> {
        let until = bench.channel.now().saturating_add(bench.plan.patience.ready);
        let mut awaited: BTreeSet<usize> = started
            .iter()
            .filter(|&&at| self.hosts[at].process.is_some())
            .flat_map(|&at| self.hosts[at].members.iter().copied())
            .collect();
        let mut first = None;
        while !awaited.is_empty() {
            let (tenant, error) = match bench.channel.hear(until) {
                Heard::Interrupted => return Err(Stop::Interrupted),
                Heard::Time => {
                    let Some(&tenant) = awaited.first() else { break };
                    let name = &bench.plan.tenants[tenant].name;
                    let message = format!("{name} was not ready after {}", bench.plan.patience.ready);
                    (tenant, CellError::new(ErrorKind::Hung, message))
                }
                Heard::Lost(process, error) => {
                    let Some(&tenant) = self.hosted(process).first() else { continue };
                    (tenant, error)
                }
                Heard::Said(process, line) => {
                    let Some(&member) = self.hosted(process).first() else { continue };
                    match (self.speaker(bench.plan, process, line.tenant.as_deref()), line.message) {
                        (Ok(tenant), FromTenant::Ready(ready)) => {
                            self.ready.insert(tenant, ready);
                            awaited.remove(&tenant);
                            continue;
                        }
                        (Ok(tenant), FromTenant::Failed(failed)) => {
                            let name = &bench.plan.tenants[tenant].name;
                            let message = format!("{name}: {}", failed.message);
                            (tenant, CellError::new(ErrorKind::GpuFault, message))
                        }
                        (Ok(tenant), _) => {
                            let name = &bench.plan.tenants[tenant].name;
                            let message = format!("{name} spoke of a run before it was ready");
                            (tenant, CellError::new(ErrorKind::Rubbish, message))
                        }
                        (Err(error), _) => (member, error),
                    }
                }
            };
            if let Some(at) = self.hosts.iter().position(|host| host.members.contains(&tenant)) {
                self.fail(bench, at, &error);
                let gone = &self.hosts[at].members;
                awaited.retain(|member| !gone.contains(member));
            }
            first.get_or_insert(error);
        }
        Ok(first)
    }

    /// Why a host's tenants are not clients of the daemon that they should be clients of.
    fn not_attached(&mut self, at: usize) -> Option<CellError> {
        self.hosts[at].process?;
        let mps = self.mps.as_mut()?;
        let pids =
            self.hosts[at].members.iter().filter_map(|member| self.ready.get(member)).map(|ready| ready.pid);
        for pid in pids.collect::<BTreeSet<u32>>() {
            let message = match mps.is_client(pid) {
                Ok(true) => continue,
                Ok(false) => format!(
                    "process {pid} is not a client of the MPS daemon: it would not be behind this wall"
                ),
                Err(reason) => {
                    format!("the MPS daemon does not say whether process {pid} is its client: {reason}")
                }
            };
            return Some(CellError::new(ErrorKind::Died, message));
        }
        None
    }

    /// Why a host's tenants are not behind the node that they should be behind.
    fn not_behind(&mut self, plan: &Plan, at: usize) -> Option<CellError> {
        self.hosts[at].process?;
        let node = self.node.as_mut()?;
        let known =
            self.hosts[at].members.iter().filter_map(|member| Some((*member, self.ready.get(member)?.pid)));
        let mut missing =
            known.filter_map(|(member, pid)| node.stands_around(&plan.tenants[member].name, pid).err());
        missing.next().map(|reason| CellError::new(ErrorKind::Died, reason))
    }

    /// Why a host's tenants do not have the memory that they should have: one that takes no notice would be measured as if it did.
    fn not_on_side(&self, bench: &Bench<'_>, at: usize) -> Option<CellError> {
        self.hosts[at].process.filter(|_| !bench.launcher.pretended)?;
        let members = self.hosts[at].members.iter();
        let mut missing = members.filter_map(|member| {
            let about = &self.ready.get(member)?.about;
            not_taken(&self.place, &bench.plan.tenants[*member], about)
        });
        missing.next().map(|reason| CellError::new(ErrorKind::Rubbish, reason))
    }

    fn launch_of(&mut self, bench: &Bench<'_>, members: &[usize]) -> Result<Launch, String> {
        let tenants: Vec<&Tenant> = members.iter().map(|&member| &bench.plan.tenants[member]).collect();
        let names: Vec<&str> = tenants.iter().map(|tenant| tenant.name.as_str()).collect();
        let mut set: BTreeMap<String, String> = BTreeMap::new();
        for tenant in &tenants {
            set.extend(tenant.env.clone());
        }
        if let Some(visible) = bench.machine.visible() {
            set.insert("CUDA_VISIBLE_DEVICES".to_owned(), visible);
        }
        match &self.mps {
            Some(mps) => set.extend(mps.environment()),
            None => {
                set.insert("CUDA_MPS_PIPE_DIRECTORY".to_owned(), bench.machine.empty_directory());
            }
        }
        if let [tenant] = tenants[..] {
            set.extend(self.part(bench, tenant.class)?);
            set.extend(self.around(bench, tenant)?);
        }
        let command = self.command(bench, &tenants)?;
        let unset = UNSET.map(str::to_owned).to_vec();
        Ok(Launch { name: names.join(" and "), command, unset, set, folder: None })
    }

    /// What puts a tenant with a process of its own into its part.
    fn part(&self, bench: &Bench<'_>, class: Class) -> Result<Vec<(String, String)>, String> {
        let ls = class == Class::LatencySensitive;
        let variable = |name: &str, value: String| vec![(name.to_owned(), value)];
        Ok(match &self.place.setting {
            // A node's tenants find it in their environment.
            Setting::None | Setting::ShimSms(..) | Setting::Node(_) => Vec::new(),
            Setting::Percent(of_ls, of_be) => {
                let percent = if ls { of_ls } else { of_be };
                variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string())
            }
            Setting::Instances(of_ls, of_be) => {
                variable("CUDA_VISIBLE_DEVICES", if ls { of_ls } else { of_be }.clone())
            }
            Setting::Sms(..) => {
                let [of_ls, of_be] = self.groups(bench)?;
                variable(SM_GROUPS, if ls { of_ls } else { of_be })
            }
            Setting::Side(memory) => {
                let sides = self.sides.as_ref().ok_or("the sides are not known")?;
                sides.environment(class, *memory)
            }
        })
    }

    /// What puts a tenant under the node, if there is one.
    fn around(&mut self, bench: &Bench<'_>, tenant: &Tenant) -> Result<BTreeMap<String, String>, String> {
        let (Some(node), Some(setting)) = (&mut self.node, self.place.node()) else {
            return Ok(BTreeMap::new());
        };
        let sets = match bench.machine.split() {
            Some(split) => sm_sets(&setting, split)?,
            None if setting.ls_sms.is_none() && setting.be_sms.is_none() => [None; 2],
            None => return Err("this GPU or driver has no Green Contexts".to_owned()),
        };
        let low = tenant.class == Class::BestEffort;
        let sms = sets[usize::from(low)];
        let squeezed = match setting.launch_options()?.squeezed.filter(|_| low) {
            Some(share) => Some(squeezed(share, sms, bench.machine.split())?),
            None => None,
        };
        let mut variables = node.admit(tenant, TenantPlace { sms, squeezed })?;
        if setting.lower {
            variables.insert(CLIENT_PRIORITY.to_owned(), u32::from(low).to_string());
        }
        Ok(variables)
    }

    fn groups(&self, bench: &Bench<'_>) -> Result<[String; 2], String> {
        let Setting::Sms(ls, be) = self.place.setting else { return Err("no SMs are set".to_owned()) };
        sm_groups(ls, be, bench.machine.split().ok_or("this GPU or driver has no Green Contexts")?)
    }

    fn command(&self, bench: &Bench<'_>, tenants: &[&Tenant]) -> Result<Vec<String>, String> {
        let launcher = bench.launcher;
        let alone = tenants.len() == 1;
        let mut command = vec![launcher.program.clone(), "tenant".to_owned()];
        let mut options = Vec::new();
        for tenant in tenants {
            let (program, further) = match (&tenant.pretend, &tenant.program) {
                (Pretend::Command(command), _) if launcher.pretended && alone => return Ok(command.clone()),
                (Pretend::BuiltIn(arguments), _) if launcher.pretended => ("pretend", arguments.clone()),
                (Pretend::Command(_), _) if launcher.pretended => ("pretend", Vec::new()),
                (_, Program::Command(command)) if alone => return Ok(command.clone()),
                (_, Program::Command(_)) => {
                    return Err(format!(
                        "{} is a program of its own and cannot share a process; use built-in tenants there",
                        tenant.name
                    ));
                }
                (_, Program::BuiltIn(name)) => (name.as_str(), Vec::new()),
            };
            let class = if tenant.class == Class::LatencySensitive { "ls" } else { "be" };
            let (program, sizes) =
                program.split_once(',').map_or((program, None), |(name, rest)| (name, Some(rest)));
            let sizes = sizes.map(|sizes| format!(",{sizes}")).unwrap_or_default();
            command.push(format!("{}={program}:{class}{sizes}", tenant.name));
            // Of a process, not of a tenant: those of the first, which is the one that is watched.
            if options.is_empty() {
                options = further;
            }
        }
        if !alone {
            match self.place.wall {
                Wall::GreenContexts => {
                    let groups = self.groups(bench)?;
                    let groups = groups.into_iter().flat_map(|groups| ["--sm-groups".to_owned(), groups]);
                    command.extend(groups);
                }
                _ => command.push("--stream-priority".to_owned()),
            }
        }
        command.extend(options);
        Ok(command)
    }
}
