//! Plans as files.

use std::collections::BTreeMap;
use std::fmt;

use partywall_core::diagnostic::{Diagnostic, Findings, Step, quoted};
use partywall_core::tenant::{Class, Slo};
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;
use serde::Deserialize;

use super::{CELLS_MAX, Expect, Pair, Patience, Place, Plan, Pretend, Program, Ratio, Tenant};
use crate::load::Load;
use crate::record::{EvidenceRule, Processes};
use crate::synthetic::arguments::TenantSpec;

/// A commented plan. It is valid as it stands.
pub const EXAMPLE: &str = r#"# A plan for `partywall measure --plan FILE`.

rounds = 2                  # how often each cell is measured; its samples are pooled. Default: 3
warmup_s = 0.3              # tenants run beside each other so long before anything counts. Default: 0.3
seconds_max = 4.0           # longest window of a cell, over all rounds. Default: 9
requests_wanted = 6000      # a cell ends earlier after so many requests. Default: 6000
alone = true                # latency-sensitive tenants also alone behind each wall. Default: true
evidence = "recorded"       # samples beyond a percentile: "recorded" (50, default) or "shown" (10)

# The walls of pairs that name none themselves.
walls = [
  { wall = "time-slicing" },
  { wall = "mps" },
  { wall = "mps-percentage", setting = "50/50" },                   # percent of the SMs, latency-sensitive first
  { wall = "green-contexts", setting = "66/66" },                   # SMs
  { wall = "green-contexts", setting = "66/66", processes = "one" },
  { wall = "partywall", setting = "mps be=66sms chunks=2" },        # a node around programs as they are: docs/measure.md
]

[[tenant]]
name = "camera"
class = "latency-sensitive"
command = ["python3", "tenant.py", "resnet50"]    # a program that speaks the line protocol: docs/tenants.md
load = { closed = { pause = "200us" } }           # or { periodic = { period = "10ms" } }, { poisson = { rate_per_s = 80.0 } },
                                                  # { duty = 0.3 }: Poisson, of a rate that follows from the median solo
env = { OMP_NUM_THREADS = "1" }

[[tenant]]
name = "stream"
class = "best-effort"
built_in = "vram-read"      # one of Partywall's own
load = { closed = { depth = 4 } }                 # four units of work submitted, then waited for

[[pair]]                    # every victim of `ls` beside every antagonist of `be`, behind every wall
ls = ["camera"]             # default: all
be = ["stream"]             # default: all
priority = true             # before pairs that have it not
seconds_max = 8.0           # longest window of its cells, where it differs from that of the plan
together = false            # true: all of `ls` and all of `be` at the same time
"#;

/// Most rounds: more do not make medians better, and each has its warm-up.
const ROUNDS_MAX: u32 = 100;
/// Longest window of a cell, s.
const SECONDS_MAX: f64 = 3600.0;

/// Highest duty: beyond 1 nobody serves all requests, and how a wall does then can be of interest.
const DUTY_MAX: f64 = 2.0;
/// How a tenant with a duty runs while its median is found out: paced, as it will be.
const PACED: Load = Load::Closed { pause_ns: 1_000_000, depth: 1 };

/// Everything that is wrong with a plan, each once, in the order of the file; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    diagnostics: Vec<Diagnostic>,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.diagnostics.iter().map(ToString::to_string).collect();
        f.write_str(&shown.join("\n"))
    }
}

impl std::error::Error for PlanError {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanFile {
    #[serde(default = "one")]
    seed: u64,
    #[serde(default = "rounds")]
    rounds: u32,
    #[serde(default = "warmup_s")]
    warmup_s: f64,
    #[serde(default = "seconds_max")]
    seconds_max: f64,
    #[serde(default = "requests_wanted")]
    requests_wanted: u64,
    #[serde(default = "evidence")]
    evidence: EvidenceRule,
    #[serde(default = "yes")]
    alone: bool,
    ready_s: Option<f64>,
    stop_s: Option<f64>,
    #[serde(default)]
    walls: Vec<PlaceText>,
    #[serde(default)]
    tenant: Vec<TenantText>,
    #[serde(default)]
    pair: Vec<PairText>,
}

fn one() -> u64 {
    1
}
fn yes() -> bool {
    true
}
fn rounds() -> u32 {
    3
}
fn warmup_s() -> f64 {
    0.3
}
fn seconds_max() -> f64 {
    9.0
}
fn requests_wanted() -> u64 {
    6000
}
fn evidence() -> EvidenceRule {
    EvidenceRule::Recorded
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceText {
    wall: Wall,
    #[serde(default)]
    setting: String,
    processes: Option<Processes>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantText {
    name: String,
    class: Class,
    built_in: Option<String>,
    command: Option<Vec<String>>,
    load: Option<LoadText>,
    #[serde(default)]
    slo: Slo,
    #[serde(default)]
    env: BTreeMap<String, String>,
    pretend: Option<PretendText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum LoadText {
    Closed {
        #[serde(default)]
        pause: Nanos,
        #[serde(default = "depth")]
        depth: u32,
    },
    Periodic {
        period: Nanos,
    },
    Poisson {
        rate_per_s: f64,
    },
    Duty(f64),
}

fn depth() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum PretendText {
    /// Further arguments of the pretended tenant.
    BuiltIn(Vec<String>),
    /// A program of one's own.
    Command(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PairText {
    ls: Option<Vec<String>>,
    be: Option<Vec<String>>,
    walls: Option<Vec<PlaceText>>,
    #[serde(default)]
    priority: bool,
    seconds_max: Option<f64>,
    #[serde(default)]
    together: bool,
    expect: Option<ExpectText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectText {
    #[serde(default)]
    of: Ratio,
    ratio: f64,
    source: String,
    differs: Option<String>,
}

/// How a key is written right.
fn example(key: &str) -> Option<&'static str> {
    Some(match key {
        "seed" => "seed = 1",
        "rounds" => "rounds = 3, from 1 to 100",
        "warmup_s" => "warmup_s = 0.3, in seconds, up to 60",
        "seconds_max" => "seconds_max = 9.0, in seconds, above 0 and up to 3600",
        "requests_wanted" => "requests_wanted = 6000, from 1 to 500000",
        "alone" => "alone = false",
        "together" => "together = true",
        "duty" => "load = { duty = 0.3 }, above 0 and up to 2",
        "evidence" => "evidence = \"recorded\" or \"shown\"",
        "ready_s" => "ready_s = 180.0, in seconds",
        "stop_s" => "stop_s = 20.0, in seconds",
        "walls" => "walls = [{ wall = \"mps\" }, { wall = \"mps-percentage\", setting = \"50/50\" }]",
        "wall" => "wall = \"mps\"",
        "setting" => "setting = \"50/50\"",
        "processes" => "processes = \"one\" or \"separate\"",
        "tenant" => "a table [[tenant]] for each tenant",
        "pair" => "a table [[pair]] for each group of pairs",
        "name" => "name = \"camera\"",
        "class" => "class = \"latency-sensitive\" or class = \"best-effort\"",
        "built_in" => "built_in = \"vram-read\"",
        "command" => "command = [\"python3\", \"tenant.py\"]",
        "load" => "load = { closed = { pause = \"200us\", depth = 1 } }",
        "pause" => "pause = \"200us\"",
        "depth" => "depth = 1",
        "period" => "period = \"10ms\"",
        "rate_per_s" => "rate_per_s = 80.0",
        "slo" => "slo = { slowdown = 1.2 } or slo = { p99 = \"5ms\" }",
        "env" => "env = { NAME = \"value\" }",
        "pretend" => "pretend = { command = [\"python3\", \"tenant.py\", \"--fake\"] }",
        "ls" => "ls = [\"camera\"]",
        "be" => "be = [\"stream\"]",
        "priority" => "priority = true",
        "expect" => "expect = { ratio = 3.0, source = \"an earlier probe\" }",
        "ratio" => "ratio = 3.0",
        "source" => "source = \"where it comes from\"",
        _ => return None,
    })
}

impl Plan {
    /// Reads `text`, the contents of `file` (named in messages only). The plan is called `name`.
    ///
    /// # Errors
    /// What is not TOML, has an unknown or missing key or a value of the wrong kind, or makes no sense, with line and
    /// column.
    pub fn parse(text: &str, file: &str, name: &str) -> Result<Self, PlanError> {
        let read: PlanFile = toml::from_str(text).map_err(|error| PlanError {
            diagnostics: vec![Diagnostic::from_toml(text, file, &error, example)],
        })?;
        // It was read, so it is TOML.
        let Some(found) = Findings::new(text, file, example) else {
            return Err(PlanError { diagnostics: vec![Diagnostic::at(text, 0..0, file, "not TOML")] });
        };
        let mut reader = Reader { found, seed: read.seed };
        reader.numbers(&read);
        let tenants: Vec<Tenant> = read
            .tenant
            .iter()
            .enumerate()
            .filter_map(|(index, tenant)| reader.tenant(index, tenant))
            .collect();
        // With a tenant missing, indices are not those of the file.
        let complete = tenants.len() == read.tenant.len();
        reader.names(&read.tenant);
        let pairs = if complete { reader.pairs(&read, &tenants) } else { Vec::new() };
        let plan = Self {
            name: name.to_owned(),
            seed: read.seed,
            rounds: read.rounds,
            warmup: seconds(read.warmup_s),
            time_max: seconds(read.seconds_max),
            requests_wanted: read.requests_wanted,
            evidence: read.evidence,
            alone: read.alone,
            patience: Patience {
                ready: read.ready_s.map_or(Patience::default().ready, seconds),
                stop: read.stop_s.map_or(Patience::default().stop, seconds),
            },
            tenants,
            pairs,
            duties: BTreeMap::new(),
        };
        let diagnostics = reader.found.into_diagnostics();
        if diagnostics.is_empty() { Ok(plan) } else { Err(PlanError { diagnostics }) }
    }
}

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_ms_f64(seconds * 1e3)
}

struct Reader<'t> {
    found: Findings<'t>,
    seed: u64,
}

impl Reader<'_> {
    fn numbers(&mut self, read: &PlanFile) {
        let time = |value: f64, least: f64, most: f64| (least..=most).contains(&value);
        let checks = [
            ("rounds", (1..=ROUNDS_MAX).contains(&read.rounds)),
            ("warmup_s", time(read.warmup_s, 0.0, 60.0)),
            ("seconds_max", time(read.seconds_max, 1e-3, SECONDS_MAX)),
            // Half of what a run may have: the other half is its warm-up's.
            ("requests_wanted", (1..=crate::protocol::REQUESTS_MAX / 2).contains(&read.requests_wanted)),
            ("ready_s", read.ready_s.is_none_or(|value| time(value, 1e-3, SECONDS_MAX))),
            ("stop_s", read.stop_s.is_none_or(|value| time(value, 1e-3, SECONDS_MAX))),
        ];
        for (key, right) in checks {
            if !right {
                self.found.report_value(&[Step::Key(key)], format!("`{key}` is out of range"));
            }
        }
    }

    fn names(&mut self, tenants: &[TenantText]) {
        for (index, tenant) in tenants.iter().enumerate() {
            let path = [Step::Key("tenant"), Step::Index(index), Step::Key("name")];
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.@+".contains(c);
            if tenant.name.is_empty() || tenant.name.len() > 64 || !tenant.name.chars().all(allowed) {
                let message = format!("{} cannot name a tenant", quoted(&tenant.name));
                let help = "use 1 to 64 letters, digits and - _ . @ +";
                self.found.report(self.found.places().value(&path), message, help);
            } else if tenants[..index].iter().any(|other| other.name == tenant.name) {
                let message = format!("a second tenant is named {}", quoted(&tenant.name));
                let help = "give each tenant its own name";
                self.found.report(self.found.places().value(&path), message, help);
            }
        }
    }

    /// A tenant; `None` where something was reported.
    fn tenant(&mut self, index: usize, text: &TenantText) -> Option<Tenant> {
        let at = |key| [Step::Key("tenant"), Step::Index(index), Step::Key(key)];
        let whole = [Step::Key("tenant"), Step::Index(index)];
        let program = match (&text.built_in, &text.command) {
            (Some(name), None) => match name.parse::<TenantSpec>() {
                Ok(_) => Program::BuiltIn(name.clone()),
                Err(error) => {
                    self.found.report_value(&at("built_in"), error.to_string());
                    return None;
                }
            },
            (None, Some(command)) if command.first().is_some_and(|program| !program.is_empty()) => {
                Program::Command(command.clone())
            }
            (None, Some(_)) => {
                self.found.report_value(&at("command"), "the command is empty");
                return None;
            }
            _ => {
                let help = "write built_in = \"vram-read\" or command = [\"python3\", \"tenant.py\"]";
                let span = self.found.places().value(&whole);
                self.found.report(span, "a tenant has either a command or a built-in", help);
                return None;
            }
        };
        let (load, duty) = self.load(&at("load"), text)?;
        let pretend = match &text.pretend {
            None => Pretend::BuiltIn(Vec::new()),
            Some(PretendText::BuiltIn(arguments)) => Pretend::BuiltIn(arguments.clone()),
            Some(PretendText::Command(command)) if !command.is_empty() => Pretend::Command(command.clone()),
            Some(PretendText::Command(_)) => {
                self.found.report_value(&at("pretend"), "the command is empty");
                return None;
            }
        };
        if let Some((_, problem)) = text.slo.problem() {
            self.found.report_value(&at("slo"), problem);
            return None;
        }
        if text.slo.is_some() && text.class == Class::BestEffort {
            self.found.report_value(&at("slo"), "a promise is for latency-sensitive tenants");
            return None;
        }
        let (name, class, slo, env) = (text.name.clone(), text.class, text.slo, text.env.clone());
        Some(Tenant { name, class, program, load, duty, slo, env, pretend })
    }

    /// Its load, and its duty if it has one.
    fn load(&mut self, path: &[Step<'_>], text: &TenantText) -> Option<(Load, Option<f64>)> {
        let load = match (&text.load, text.class) {
            (None, Class::LatencySensitive) => Load::Closed { pause_ns: 200_000, depth: 1 },
            (None, Class::BestEffort) => Load::BACK_TO_BACK,
            (Some(LoadText::Closed { pause, depth }), _) => Load::Closed { pause_ns: pause.0, depth: *depth },
            (Some(LoadText::Periodic { period }), _) => Load::Periodic { period_ns: period.0 },
            (Some(LoadText::Poisson { rate_per_s }), _) => {
                Load::Poisson { rate_per_s: *rate_per_s, seed: self.seed }
            }
            (Some(LoadText::Duty(duty)), Class::LatencySensitive) if *duty > 0.0 && *duty <= DUTY_MAX => {
                return Some((PACED, Some(*duty)));
            }
            (Some(LoadText::Duty(duty)), Class::LatencySensitive) => {
                self.found.report_value(
                    path,
                    format!("a duty of {duty} is out of range; use above 0 and up to {DUTY_MAX}"),
                );
                return None;
            }
            (Some(LoadText::Duty(_)), Class::BestEffort) => {
                self.found.report_value(path, "a duty is for latency-sensitive tenants");
                return None;
            }
        };
        match load.check() {
            Ok(()) => Some((load, None)),
            Err(error) => {
                self.found.report_value(path, error.to_string());
                None
            }
        }
    }

    fn pairs(&mut self, read: &PlanFile, tenants: &[Tenant]) -> Vec<Pair> {
        let mut pairs = Vec::new();
        if tenants.is_empty() {
            self.found.report(0..0, "there is no tenant", "write a table [[tenant]] for each tenant");
        } else if read.pair.is_empty() {
            self.found.report(0..0, "there is no pair", "write a table [[pair]]; an empty one pairs all");
        }
        for (index, text) in read.pair.iter().enumerate() {
            let at = |key| [Step::Key("pair"), Step::Index(index), Step::Key(key)];
            let ls = self.members(&at("ls"), text.ls.as_deref(), tenants, Class::LatencySensitive);
            let be = self.members(&at("be"), text.be.as_deref(), tenants, Class::BestEffort);
            let (walls, path) = match &text.walls {
                Some(walls) => (walls, at("walls").to_vec()),
                None => (&read.walls, vec![Step::Key("walls")]),
            };
            if walls.is_empty() {
                let span = self.found.places().value(&path);
                self.found.report(
                    span,
                    "there is no wall for this pair",
                    "write walls = [{ wall = \"mps\" }]",
                );
            }
            let time_max = text.seconds_max.filter(|value| {
                let right = (1e-3..=SECONDS_MAX).contains(value);
                if !right {
                    self.found.report_value(&at("seconds_max"), "`seconds_max` is out of range");
                }
                right
            });
            let expect = text.expect.as_ref().map(|expect| self.expect(&at("expect"), expect));
            for (number, wall) in walls.iter().enumerate() {
                let place = match Place::parse(wall.wall, &wall.setting, wall.processes) {
                    Ok(place) => place,
                    Err(message) => {
                        let span = self.found.places().value(&[&path[..], &[Step::Index(number)]].concat());
                        let (message, help) = message.split_once("; ").unwrap_or((&message, ""));
                        self.found.report(span, message, help);
                        continue;
                    }
                };
                let pair = |ls: &[usize], be: &[usize]| {
                    let ((&first_ls, ls), (&first_be, be)) = (ls.split_first()?, be.split_first()?);
                    Some(Pair {
                        place: place.clone(),
                        ls: first_ls,
                        be: first_be,
                        beside: [ls, be].concat(),
                        priority: text.priority,
                        time_max: time_max.map(seconds),
                        expect: expect.clone(),
                    })
                };
                if text.together && place.processes == Processes::One {
                    let span = self.found.places().value(&at("together"));
                    let help = "use walls with a process for each tenant";
                    self.found.report(span, "more than two tenants cannot share a process", help);
                } else if text.together && place.wall == Wall::Sides && ls.len().max(be.len()) > 1 {
                    let span = self.found.places().value(&at("together"));
                    let help = "name one of each class, or leave `together` out";
                    self.found.report(span, "a side has one tenant at work at a time", help);
                } else if text.together {
                    pairs.extend(pair(&ls, &be));
                } else {
                    let all = ls.iter().flat_map(|&ls| be.iter().map(move |&be| (ls, be)));
                    pairs.extend(all.filter_map(|(ls, be)| pair(&[ls], &[be])));
                }
            }
            if pairs.len() > CELLS_MAX {
                let span = self.found.places().value(&at("ls"));
                self.found.report(span, format!("the plan has more than {CELLS_MAX} cells"), "name fewer");
                break;
            }
        }
        pairs
    }

    /// The tenants of `class` that are named, or all.
    fn members(
        &mut self,
        path: &[Step<'_>],
        names: Option<&[String]>,
        tenants: &[Tenant],
        class: Class,
    ) -> Vec<usize> {
        let of_class: Vec<usize> =
            (0..tenants.len()).filter(|&index| tenants[index].class == class).collect();
        let Some(names) = names else { return of_class };
        let known: Vec<&str> = of_class.iter().map(|&index| tenants[index].name.as_str()).collect();
        let mut members = Vec::new();
        for (number, name) in names.iter().enumerate() {
            match known.iter().position(|known| known == name) {
                Some(position) => members.push(of_class[position]),
                None => {
                    let message = format!("no {class} tenant is named {}", quoted(name));
                    let span = self.found.places().value(&[path, &[Step::Index(number)]].concat());
                    self.found.report(span, message, format!("there are: {}", known.join(", ")));
                }
            }
        }
        members
    }

    fn expect(&mut self, path: &[Step<'_>], text: &ExpectText) -> Expect {
        if !(text.ratio.is_finite() && text.ratio > 0.0) {
            self.found.report_value(path, "the ratio must be above zero");
        }
        Expect { of: text.of, ratio: text.ratio, source: text.source.clone(), differs: text.differs.clone() }
    }
}
