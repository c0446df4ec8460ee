//! What can be said to `partywall node`, `run`, `up`, `ps`, `stop`, `restart` and `logs`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use partywall_core::config::{MAX_WEIGHT, WallChoice, is_tenant_name};
use partywall_core::tenant::{Class, Share, Slo};
use partywall_core::units::{Bytes, Nanos};
use partywall_driver::green::GroupSet;
use partywall_node::arbiter::CopyOptions;
use partywall_node::arbiter::squeeze::LaunchOptions;

use super::GpuChoice;

/// Which node.
#[derive(Debug, Clone, Default, Args)]
pub struct WhichNode {
    /// The node's folder. Default: what PARTYWALL_DIR says, else partywall in XDG_RUNTIME_DIR, else partywall-UID in the
    /// folder for temporary files.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// `partywall node`.
#[derive(Debug, Args)]
pub struct NodeArguments {
    /// The node.
    #[command(flatten)]
    pub node: WhichNode,
    /// The GPU.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// Where to answer HTTP: /metrics for Prometheus, and a JSON API. Every process of the machine can ask there, and
    /// nothing can be changed. Default: a free port; it is in the file `http` of the node's folder.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub http: SocketAddr,
    /// What stands between tenants: auto, time-slicing, mps, mps-percentage, green-contexts or partywall (docs/run.md). Default: what stands
    /// between the tenants that are there, else auto.
    #[arg(long, value_name = "WALL")]
    pub wall: Option<WallChoice>,
    /// How copies between host and device take turns, where the defaults do not fit: `off`, or parts of
    /// `packet=1536KiB,in-flight=2,direct-ls=16MiB,direct-be=64KiB,min-charge=64KiB` (docs/copies.md).
    #[arg(long, value_name = "PARTS")]
    pub copies: Option<CopyOptions>,
    /// Have best-effort tenants keep little on the device, and launch nothing while latency-sensitive ones are active: `off` or
    /// parts of `chunks=2,chunk=100us,launches=16,release=50us,squeezed=16sms,duty=50%,slice=200us,turn=40ms,fixed` (docs/run.md). Default: off, except behind the wall
    /// partywall.
    #[arg(long, value_name = "PARTS")]
    pub launches: Option<LaunchOptions>,
    /// End when standard input is closed: whoever started the node is gone.
    #[arg(long, hide = true)]
    pub until_closed: bool,
    /// End when somebody has stopped the last tenant.
    #[arg(long, hide = true, conflicts_with = "until_closed")]
    pub until_stopped: bool,
    /// Remove the folder at the end.
    #[arg(long, hide = true)]
    pub temporary: bool,
}

/// `partywall run`.
#[derive(Debug, Args)]
pub struct RunTenantArguments {
    /// The node.
    #[command(flatten)]
    pub node: WhichNode,
    /// The GPU.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// What it cares about: ls (latency-sensitive, keeps the tail latency that it has alone) or be (best-effort, takes
    /// what is left).
    #[arg(long, value_name = "ls|be", default_value = "be", value_parser = class)]
    pub class: Class,
    /// The GPU memory that all its processes together may hold, such as 12GiB. Default: no limit but the GPU's.
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub memory: Option<Bytes>,
    /// What stands between tenants: auto, time-slicing, mps, mps-percentage, green-contexts or partywall (docs/run.md). A node that runs must
    /// have this wall. Default: what it has, else auto.
    #[arg(long, value_name = "WALL")]
    pub wall: Option<WallChoice>,
    /// Its share of the SMs: 60% or 80sms. Kept behind mps-percentage and green-contexts.
    #[arg(long, value_name = "SHARE")]
    pub share: Option<Share>,
    /// The SMs that are left to it while a latency-sensitive tenant is at work, instead of being held: 16sms, or 12% of its own. For best-effort
    /// tenants behind green-contexts and partywall; not for all programs (docs/run.md).
    #[arg(long, value_name = "SHARE")]
    pub squeezed: Option<Share>,
    /// Promise that the p99 of its requests beside others is at most this many times what it is alone, for instance 1.2 (docs/guarantee.md).
    /// For latency-sensitive tenants, as are the next two.
    #[arg(long, value_name = "FACTOR", value_parser = slowdown)]
    pub slowdown: Option<f64>,
    /// Promise that 99 of 100 of its requests take this time at most, for instance 5ms.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub slo_p99: Option<Nanos>,
    /// The p99 of its requests alone, for instance 1.1ms. Default: it is measured, for which best-effort tenants stand back for some
    /// seconds where a slowdown was promised.
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub baseline_p99: Option<Nanos>,
    /// The weight of its copies over PCIe against other tenants', 1 to 1024. Default: by class.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_WEIGHT)))]
    pub pcie_weight: Option<u32>,
    /// What it is called. Default: a name that the node makes up.
    #[arg(long, value_name = "NAME", value_parser = name)]
    pub name: Option<String>,
    /// How long it has between SIGTERM and SIGKILL when it is stopped.
    #[arg(long, value_name = "TIME", default_value_t = partywall_node::shepherd::GRACE)]
    pub grace: Nanos,
    /// The program and its arguments, run as they are: no shell looks at them.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// `partywall up`.
#[derive(Debug, Args)]
pub struct UpArguments {
    /// The node.
    #[command(flatten)]
    pub node: WhichNode,
    /// The GPU.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// The tenants; `partywall config --example` prints such a file.
    #[arg(value_name = "partywall.toml")]
    pub file: PathBuf,
    /// Come back as soon as the tenants are started. `partywall logs`, `ps` and `stop` do the rest.
    #[arg(long)]
    pub detach: bool,
    /// How long a tenant has between SIGTERM and SIGKILL when it is stopped.
    #[arg(long, value_name = "TIME", default_value_t = partywall_node::shepherd::GRACE)]
    pub grace: Nanos,
}

/// `partywall ps`.
#[derive(Debug, Args)]
pub struct PsArguments {
    /// The node.
    #[command(flatten)]
    pub node: WhichNode,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `partywall stop`.
#[derive(Debug, Args)]
pub struct StopArguments {
    /// The node.
    #[command(flatten)]
    pub node: WhichNode,
    /// Which tenants.
    #[arg(value_name = "NAME", required_unless_present_any = ["all", "node_only"])]
    pub names: Vec<String>,
    /// All of them.
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// None of them: end the node and leave them running, for a node that is started later.
    #[arg(long, conflicts_with_all = ["names", "all"])]
    pub node_only: bool,
}

/// `partywall restart`.
#[derive(Debug, Args)]
pub struct RestartArguments {
    /// The node.
    #[command(flatten)]
    pub node: WhichNode,
    /// Which tenants.
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,
    /// All of them.
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
}

/// `partywall logs`.
#[derive(Debug, Args)]
pub struct LogsArguments {
    /// The node.
    #[command(flatten)]
    pub node: WhichNode,
    /// Which tenant.
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: String,
    /// Go on with what it writes, until it ends for good.
    #[arg(short, long)]
    pub follow: bool,
}

/// `partywall coverage`.
#[derive(Debug, Args)]
pub struct CoverageArguments {
    /// The node.
    #[command(flatten)]
    pub node: WhichNode,
    /// Which tenant.
    #[arg(value_name = "NAME", value_parser = name)]
    pub name: String,
    /// Print everything that is known of the tenant's processes, as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `partywall mps-keeper`.
#[derive(Debug, Args)]
pub struct KeeperArguments {
    /// The node's folder.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// The MPS control program.
    #[arg(long, value_name = "PROGRAM")]
    pub control: PathBuf,
    /// The GPU that the daemon serves. Default: all.
    #[arg(long, value_name = "UUID")]
    pub gpu_uuid: Option<String>,
}

/// What is found out on the GPU.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Find out whether SM sets are their owners' own, as JSON: what a node starts.
    Meet(MeetArguments),
}

/// `partywall device meet`.
#[derive(Debug, Args)]
#[group(required = true)]
pub struct MeetArguments {
    /// A file that says which sets, as JSON.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["probe", "groups", "patience"])]
    pub task: Option<PathBuf>,
    /// Be a process that fills so many SMs when it is told to on standard input.
    #[arg(long, value_name = "SMS")]
    pub probe: Option<u32>,
    /// The groups of SMs that it confines itself to, such as 0-31.
    #[arg(long, value_name = "GROUPS", requires = "probe")]
    pub groups: Option<GroupSet>,
    /// How long its blocks stay when nobody releases them. Default: as long as a proof needs.
    #[arg(long, value_name = "TIME", requires = "probe")]
    pub patience: Option<Nanos>,
}

/// `partywall shepherd`.
#[derive(Debug, Args)]
pub struct ShepherdArguments {
    /// The tenant's folder.
    #[arg(long, value_name = "DIR")]
    pub folder: PathBuf,
    /// Which run this is.
    #[arg(long, value_name = "N")]
    pub run: u32,
}

fn class(text: &str) -> Result<Class, String> {
    match text {
        "ls" | "latency-sensitive" => Ok(Class::LatencySensitive),
        "be" | "best-effort" => Ok(Class::BestEffort),
        _ => Err("write ls (latency-sensitive) or be (best-effort)".to_owned()),
    }
}

fn memory(text: &str) -> Result<Bytes, String> {
    match Bytes::from_str(text) {
        Ok(Bytes::ZERO) => {
            Err("a tenant without GPU memory cannot run; write a size such as 12GiB".to_owned())
        }
        bytes => bytes.map_err(|error| error.to_string()),
    }
}

fn time(text: &str) -> Result<Nanos, String> {
    match Nanos::from_str(text) {
        Ok(Nanos::ZERO) => Err("no request completes within no time; write a time such as 5ms".to_owned()),
        time => time.map_err(|error| error.to_string()),
    }
}

fn slowdown(text: &str) -> Result<f64, String> {
    let factor = text.parse().map_err(|_| format!("`{text}` is no factor; write one such as 1.2"))?;
    let problem = Slo { slowdown: Some(factor), p99: None }.problem();
    problem.map_or(Ok(factor), |(_, problem)| Err(format!("{problem}; write a factor such as 1.2")))
}

fn name(text: &str) -> Result<String, String> {
    let right = "use 1 to 63 lower-case letters, digits and hyphens, a letter or digit first and last";
    is_tenant_name(text).then(|| text.to_owned()).ok_or_else(|| right.to_owned())
}
