//! A node around tenants that are programs as they are: the wall `partywall`, and Green Contexts kept by the shim.
//!
//! The part of a node that serves tenants' processes runs within the measurement, with the settings of the plan; starting and ending
//! processes stays with the stage. So what stands between the programs is what ships, and nothing of it depends on how a node's
//! configuration names it.
//!
//! A tenant that is started again is a new tenant to the node: what it counts begins at zero.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use partywall_core::config::{Restart, WallChoice};
use partywall_core::tenant::{Baseline, TenantId};
use partywall_core::units::{Bytes, Nanos};
use partywall_core::wall::Wall;
use partywall_driver::mps::Contact;
use partywall_driver::nvml::Device;
use partywall_node::arbiter::CopyOptions;
use partywall_node::environment::Wall as Environment;
use partywall_node::facts::TenantView;
use partywall_node::registry::{ClientWatch, Options, Registry};
use partywall_node::tenant::{Place as TenantPlace, TenantService as _, TenantSpec, Token, default_weight};
use partywall_node::watch::NvmlWatch;
use serde_json::Value;
use tempfile::TempDir;

use crate::clock;
use crate::plan::{NodeSetting, Tenant};
use crate::record::NodeRecord;
use crate::stage::Node;

/// With what the names of nodes' directories begin.
pub const NODE_PREFIX: &str = "partywall-node-";

/// How long a tenant that is ready may take until the node knows its process: it has registered before it used the GPU, and the node
/// looks at a list of MPS clients four times a second.
const REGISTERED_WITHIN: Nanos = Nanos::from_secs(3);

/// How often we look.
const LOOK_EVERY: Nanos = Nanos::from_millis(10);

/// What of a tenant's facts is counted over a run: whole numbers that only grow.
const COUNTED: [&str; 7] = [
    "launches",
    "graph_launches",
    "squeezed_launches",
    "unsqueezed_launches",
    "resizes",
    "late_packets",
    "processes_refused",
];

/// What of a tenant's facts is so at a moment.
const STANDS: [&str; 3] = ["graphs_cut", "graphs_whole", "graphs_unsqueezed"];

/// What stands around programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preload {
    /// The shim, or why there is none.
    pub shim: Result<PathBuf, String>,
    /// What is preloaded into programs in any case: the value of LD_PRELOAD.
    pub others: Option<String>,
    /// The library that gives programs memory of a side, or why there is none. It is loaded by those that ask for it.
    pub side: Result<PathBuf, String>,
}

/// What a node needs of the machine.
pub struct Site<'a> {
    /// What is preloaded into tenants.
    pub preload: &'a Preload,
    /// NVML's view of the GPU, where it has one.
    pub device: Option<Device>,
    /// All memory of the GPU.
    pub memory: Bytes,
    /// Where its socket is made.
    pub temporary: &'a Path,
}

/// A node in this process. It ends when it is dropped.
pub struct OwnNode {
    registry: Registry,
    environment: Environment,
    preloaded: Option<String>,
    /// Whether processes have to be seen among the clients of an MPS daemon.
    needs_mps: bool,
    tenants: BTreeMap<String, TenantId>,
    next: u32,
    /// Holds the socket.
    _folder: TempDir,
}

impl OwnNode {
    /// A node that is set like this. `mps` is the daemon that its tenants are clients of.
    ///
    /// # Errors
    /// Why there is none, in a line.
    pub fn start(site: Site<'_>, setting: &NodeSetting, mps: Option<Contact>) -> Result<Self, String> {
        let line = |error: &dyn std::fmt::Display| error.to_string();
        let folder = tempfile::Builder::new().prefix(NODE_PREFIX).tempdir_in(site.temporary);
        let folder = folder.map_err(|error| line(&error))?;
        let socket = folder.path().join("tenants.sock");
        let shim = site.preload.shim.as_ref().map_err(Clone::clone)?;
        let environment = Environment::new(shim, socket.clone()).map_err(|error| line(&error))?;
        let watch = site
            .device
            .map(|device| -> Box<dyn partywall_node::watch::MemoryWatch> { Box::new(NvmlWatch(device)) });
        let wall = if setting.lower {
            Wall::Partywall
        } else if setting.mps {
            Wall::Mps
        } else {
            Wall::TimeSlicing
        };
        let needs_mps = mps.is_some();
        let clients = mps
            .map(|mps| -> ClientWatch { Box::new(move || mps.clients().map_err(|error| error.to_string())) });
        let options = Options {
            copies: CopyOptions { decided: setting.copies, ..CopyOptions::default() },
            launches: setting.launch_options()?,
            wall: WallChoice::Fixed(wall),
            clients,
            ..Options::new(site.memory, watch.ok_or_else(|| "NVML does not know the GPU".to_owned()))
        };
        let registry = Registry::start(&socket, options).map_err(|error| line(&error))?;
        let preloaded = site.preload.others.clone();
        Ok(Self {
            registry,
            environment,
            preloaded,
            needs_mps,
            tenants: BTreeMap::new(),
            next: 0,
            _folder: folder,
        })
    }

    fn view(&self, name: &str) -> Option<TenantView> {
        let id = self.tenants.get(name)?;
        self.registry.reader().view().tenants.into_iter().find(|tenant| tenant.id == *id)
    }

    /// What a process still lacks so that it is behind the wall.
    fn lacks(&self, name: &str, pid: u32) -> Option<String> {
        let Some(view) = self.view(name) else { return Some("is no tenant of the node".to_owned()) };
        let process = view.processes.iter().find(|process| process.pid == Some(pid) && process.connected);
        let Some(process) = process else { return Some("has not registered with the node".to_owned()) };
        let client = process.mps_client;
        (self.needs_mps && client == Some(false))
            .then(|| "is not a client of the MPS daemon of the node".to_owned())
    }
}

impl Node for OwnNode {
    fn admit(
        &mut self,
        tenant: &Tenant,
        TenantPlace { sms, squeezed }: TenantPlace,
    ) -> Result<BTreeMap<String, String>, String> {
        let (name, class) = (tenant.name.as_str(), tenant.class);
        if let Some(former) = self.tenants.remove(name) {
            self.registry.remove_tenant(former);
        }
        let token = Token::random().map_err(|error| format!("drawing a token: {error}"))?;
        self.next += 1;
        let spec = TenantSpec {
            id: TenantId(self.next),
            name: name.to_owned(),
            class,
            memory: None,
            weight: default_weight(class),
            command: vec![name.to_owned()],
            env: BTreeMap::new(),
            slo: tenant.slo,
            baseline: Baseline::default(),
            restart: Restart::Never,
            share: None,
            sms,
            squeezed: None,
            squeezed_sms: squeezed,
            token,
        };
        self.registry.add_tenant(&spec).map_err(|error| format!("{name}: {error}"))?;
        self.tenants.insert(name.to_owned(), spec.id);
        Ok(self.environment.variables(&token, self.preloaded.as_deref()))
    }

    fn stands_around(&mut self, name: &str, pid: u32) -> Result<(), String> {
        let until = clock::now().saturating_add(REGISTERED_WITHIN);
        while let Some(lacks) = self.lacks(name, pid) {
            if clock::now() >= until {
                return Err(format!("process {pid} of {name} {lacks}: it would not be behind this wall"));
            }
            clock::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn begins(&mut self) {
        self.registry.forget_resizes();
    }

    fn facts(&mut self) -> Vec<NodeRecord> {
        let node = self.registry.reader().view();
        let setting = node.launches.and_then(|launches| launches.setting).map(|setting| setting.to_string());
        let of = |id: &TenantId| node.tenants.iter().find(|tenant| tenant.id == *id);
        let with_setting = |view| NodeRecord { launches: setting.clone(), ..facts(view) };
        self.tenants.values().filter_map(of).map(with_setting).collect()
    }
}

fn facts(view: &TenantView) -> NodeRecord {
    // By name, so that a record says what the node counts, whatever that is in this version.
    let all = serde_json::to_value(view).unwrap_or(Value::Null);
    let named = |names: &[&str]| -> BTreeMap<String, u64> {
        names.iter().filter_map(|&name| Some((name.to_owned(), all.get(name)?.as_u64()?))).collect()
    };
    let mut counted = named(&COUNTED);
    counted.insert("held_ns".to_owned(), view.held_ns.0);
    counted.insert("busy_ns".to_owned(), view.busy_ns.0);
    counted.insert("memory_refusals".to_owned(), view.memory.refusals);
    // A time is written with its unit there.
    let mut stood = named(&STANDS);
    stood.insert("slice_ns".to_owned(), view.slice_ns.0);
    NodeRecord {
        tenant: view.name.clone(),
        sms: view.sms.map(|set| set.sms().0),
        counted,
        stood,
        guaranteed: view.guaranteed,
        reasons: view.reasons.clone(),
        launches: None,
        longest_resize_ms: view.longest_resize_ns.as_ms(),
        promise: view
            .promise
            .as_ref()
            .map(|promise| promise.status.clone())
            .filter(|status| status.promised.is_some()),
    }
}
