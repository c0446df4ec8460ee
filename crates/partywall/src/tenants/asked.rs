//! `partywall ps`, `stop`, `restart`, `logs` and `coverage`: what is asked of a node that runs.

use std::io::Write as _;
use std::os::fd::AsFd as _;

use comfy_table::{CellAlignment, Table, presets};
use partywall_core::faults::Evidence;
use partywall_core::units::Nanos;
use partywall_node::client::Client;
use partywall_node::control::{Reply, Request, TenantReport};
use partywall_node::error::Error;
use partywall_node::folder::TenantFolder;
use partywall_node::log::Follower;
use partywall_node::walls::keeps_shares;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{folder, promise};
use crate::cli::tenants::{CoverageArguments, LogsArguments, PsArguments, RestartArguments, StopArguments};
use crate::error::Failure;
use crate::output;

/// Characters of a command that are shown.
const COMMAND_CHARS: usize = 40;

/// Read from a log at a time.
const READ_BYTES: u64 = 1 << 20;

/// How often a log is looked at.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// `partywall ps`.
pub(crate) fn ps(arguments: &PsArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&folder(&arguments.node)?)?;
    let tenants = match client.ask(&Request::Ps)? {
        Reply::Tenants { tenants } => tenants,
        reply => return Err(client.unexpected(&reply).into()),
    };
    let text = if arguments.json { output::json(&tenants)? } else { table(&tenants) };
    output::print(&text)
}

fn table(tenants: &[TenantReport]) -> String {
    if tenants.is_empty() {
        return "no tenants\n".to_owned();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "name", "class", "state", "pid", "memory", "of", "weight", "restarts", "wall", "covered", "promise",
        "command",
    ]);
    for column in [3, 4, 5, 6, 7] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    for tenant in tenants {
        table.add_row([
            tenant.name.clone(),
            tenant.class.short().to_owned(),
            state(tenant),
            tenant.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            tenant.facts.memory_used.to_string(),
            tenant.memory.map_or("no limit".to_owned(), |memory| memory.to_string()),
            tenant.weight.to_string(),
            tenant.restarts.to_string(),
            walled(tenant),
            covered(tenant),
            promise::cell(tenant),
            clipped(&tenant.command.join(" ")),
        ]);
    }
    let reasons = tenants.iter().flat_map(|tenant| {
        let name = &tenant.name;
        tenant.facts.reasons.iter().map(move |reason| format!("{name}: not guaranteed: {reason}"))
    });
    let lost = tenants.iter().filter(|tenant| tenant.log_bytes_lost > 0).map(|tenant| {
        format!("{}: {} bytes of its log could not be written", tenant.name, tenant.log_bytes_lost)
    });
    let promises = tenants.iter().flat_map(promise::notes);
    let ended =
        tenants.iter().filter_map(|tenant| Some(format!("{}: {}", tenant.name, tenant.note.as_ref()?)));
    let notes: Vec<String> =
        reasons.chain(promises).chain(lost).chain(ended).chain(last_fault(tenants)).collect();
    let notes = if notes.is_empty() { String::new() } else { format!("\n{}\n", notes.join("\n")) };
    format!("{table}\n{notes}")
}

/// The last fault of the GPU behind an MPS daemon, in a line.
fn last_fault(tenants: &[TenantReport]) -> Option<String> {
    let fault =
        tenants.iter().filter_map(|tenant| tenant.last_fault.as_ref()).max_by_key(|fault| fault.number)?;
    let whose = match (&fault.culprit, fault.evidence) {
        (Some(name), Some(evidence)) => format!("by {name}: {evidence}"),
        (_, Some(evidence)) => format!("nobody knows by whom: {evidence}"),
        (_, None) => "it is being found out by whom".to_owned(),
    };
    let then = match fault.recover_ns {
        _ if fault.evidence == Some(Evidence::Contained) => String::new(),
        Some(time) => format!("; recovered in {:.1} s", Nanos(time).as_secs()),
        None => "; not recovered yet".to_owned(),
    };
    Some(format!("last fault of the GPU {} ago, {whose}{then}", rounded(Nanos(fault.ago_ns))))
}

fn state(tenant: &TenantReport) -> String {
    let mut text = tenant.activity.name().to_owned();
    if let Some(time) = tenant.running_for_ns.map(Nanos) {
        text += &format!(" for {}", rounded(time));
    }
    if let Some(time) = tenant.starts_in_ns.map(Nanos) {
        text += &format!(", starts in {}", rounded(time));
    }
    if let (Some(end), None) = (&tenant.end_text, tenant.running_for_ns) {
        text += &format!(" ({end})");
    }
    text
}

/// For people: three digits of a nanosecond count are noise.
fn rounded(time: Nanos) -> String {
    let seconds = time.0 / 1_000_000_000;
    match seconds {
        0 => format!("{} ms", time.0 / 1_000_000),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

fn walled(tenant: &TenantReport) -> String {
    let wall = tenant.wall;
    match (tenant.sms, tenant.share) {
        (Some(set), _) => format!("{wall} ({set})"),
        (None, Some(share)) if keeps_shares(wall) => format!("{wall} ({share})"),
        (None, _) => wall.to_string(),
    }
}

fn covered(tenant: &TenantReport) -> String {
    match (tenant.facts.guaranteed, tenant.facts.unknown.len()) {
        (None, _) => "-".to_owned(),
        (Some(true), _) => "yes".to_owned(),
        (Some(false), 0) => "no".to_owned(),
        (Some(false), unknown) => format!("no, {unknown} unknown"),
    }
}

fn clipped(text: &str) -> String {
    let shown: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(COMMAND_CHARS).collect();
    if shown.len() < text.len() { shown + "..." } else { shown }
}

/// `partywall stop`.
pub(crate) fn stop(arguments: &StopArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&folder(&arguments.node)?)?;
    let request = if arguments.node_only {
        Request::Shutdown { keep_tenants: true }
    } else {
        Request::Stop { names: arguments.names.clone() }
    };
    let names = done(&mut client, &request)?;
    let text = match (arguments.node_only, names.is_empty()) {
        (true, true) => "the node has ended".to_owned(),
        (true, false) => format!("the node has ended; still running: {}", names.join(", ")),
        (false, true) => "there was nothing to stop".to_owned(),
        (false, false) => format!("stopped: {}", names.join(", ")),
    };
    output::print(&text)
}

/// `partywall restart`.
pub(crate) fn restart(arguments: &RestartArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&folder(&arguments.node)?)?;
    let names = done(&mut client, &Request::Restart { names: arguments.names.clone() })?;
    output::print(&format!("starting again: {}", names.join(", ")))
}

fn done(client: &mut Client, request: &Request) -> Result<Vec<String>, Failure> {
    match client.ask(request)? {
        Reply::Done { names } => Ok(names),
        reply => Err(client.unexpected(&reply).into()),
    }
}

/// `partywall logs`.
pub(crate) fn logs(arguments: &LogsArguments) -> Result<(), Failure> {
    let folder = folder(&arguments.node)?;
    let name = arguments.name.clone();
    let mut client = match Client::connect(&folder) {
        // What a tenant wrote is still there when its node is not.
        Err(Error::NoNode { .. }) if folder.tenant(&name).log().exists() => None,
        client => Some(client?),
    };
    let logs = match &mut client {
        None => folder.tenant(&name),
        Some(client) => match client.ask(&Request::Logs { name: name.clone() })? {
            Reply::Log { folder } => TenantFolder::at(&folder),
            reply => return Err(client.unexpected(&reply).into()),
        },
    };
    let mut follower = Follower::from_start(logs);
    show(&mut follower)?;
    let Some(client) = client.as_mut().filter(|_| arguments.follow) else { return Ok(()) };
    client.send(&Request::Wait { names: vec![name] })?;
    loop {
        let mut waiting = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
        // An interrupted wait is looked at like one that came to its end.
        let _ = poll(&mut waiting, Some(&LOOK_EVERY));
        // It has ended, or the node has: nothing more is to be expected either way.
        let over = !waiting[0].revents().is_empty();
        show(&mut follower)?;
        if over {
            return Ok(());
        }
    }
}

/// `partywall coverage`.
pub(crate) fn coverage(arguments: &CoverageArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&folder(&arguments.node)?)?;
    let facts = match client.ask(&Request::Coverage { name: arguments.name.clone() })? {
        Reply::Coverage { facts } => facts,
        reply => return Err(client.unexpected(&reply).into()),
    };
    if arguments.json {
        return output::print(&output::json(&facts.detail)?);
    }
    let mut text = match facts.guaranteed {
        None => "nothing is known yet: none of its processes has used the GPU\n".to_owned(),
        Some(true) => "guaranteed\n".to_owned(),
        Some(false) => "NOT GUARANTEED\n".to_owned(),
    };
    let list = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|line| Some(line.as_str()?.to_owned())).collect()
    };
    for reason in list(&facts.detail["reasons"]) {
        text += &format!("  {reason}\n");
    }
    for kind in ["unknown", "refused", "passed", "enforced"] {
        let names = list(&facts.detail["coverage"][kind]);
        if !names.is_empty() {
            text += &format!("\n{kind} ({}):\n  {}\n", names.len(), names.join("\n  "));
        }
    }
    output::print(&text)
}

/// Prints what there is to be read.
fn show(follower: &mut Follower) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let mut text = Vec::new();
    while follower.read(&mut text, READ_BYTES)? > 0 {
        out.write_all(&text)?;
        text.clear();
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        let shown = [5_000_000, 1_500_000_000, 119_000_000_000, 120_000_000_000, 7_200_000_000_000];
        assert_eq!(shown.map(|time| rounded(Nanos(time))), ["5 ms", "1 s", "119 s", "2 min", "2 h"]);
    }

    #[test]
    fn commands_are_clipped_and_cannot_move_the_cursor() {
        assert_eq!(clipped("echo \x1b[2J"), "echo  [2J");
        assert_eq!(clipped(&"x".repeat(50)), "x".repeat(40) + "...");
    }
}
