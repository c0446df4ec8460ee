//! `partywall measure`: the machine, the plan and the method together; and two results against each other.

mod text;

use std::path::{Path, PathBuf};

use partywall_core::catalogue::Catalogue;
use partywall_core::soft_gpu::is_simulated;
use partywall_core::units::Nanos;
use partywall_driver::availability::{self, Availability};
use partywall_driver::nvml::Nvml;
use partywall_driver::survey::{CudaSide, Gpu, Survey};
use partywall_measure::clock;
use partywall_measure::compare::compare;
use partywall_measure::gpu::{GpuMachine, Rehearsal};
use partywall_measure::leftovers;
use partywall_measure::lock::{Lock, LockError};
use partywall_measure::merge::merge;
use partywall_measure::method::{self, Limits, Measured, Progress};
use partywall_measure::node::Preload;
use partywall_measure::plan::{EXAMPLE, Plan, Size, built_in};
use partywall_measure::record::{Environment, FORMAT, HostRecord, Record, Settings};
use partywall_measure::rows::{Results, results};
use partywall_measure::stage::{Bench, Launcher, Machine};
use partywall_measure::summary::summary;
use partywall_measure::tenant::{Processes, interruptions};

use crate::cli::{CompareArguments, MeasureArguments, MeasureCommand, MergeArguments, ShowArguments};
use crate::error::Failure;
use crate::{doctor, measured, output, progress, tenants};

/// SMs of a rehearsal, and how they can be cut: an H200's.
const REHEARSED_SMS: (u32, u32) = (132, 2);

pub(crate) fn run(arguments: &MeasureArguments) -> Result<(), Failure> {
    match &arguments.command {
        Some(MeasureCommand::Compare(arguments)) => against(arguments),
        Some(MeasureCommand::Merge(arguments)) => together(arguments),
        Some(MeasureCommand::Show(arguments)) => show(arguments),
        None if arguments.plan_example => output::print(EXAMPLE),
        None => measure(arguments),
    }
}

fn measure(arguments: &MeasureArguments) -> Result<(), Failure> {
    if arguments.time_limit == Some(Nanos::ZERO) {
        return Err(Failure::input(
            "--time-limit 0s leaves no time to measure anything; give a time such as 30min, or none for all of the plan",
        ));
    }
    let temporary = std::env::temp_dir();
    let found = if arguments.pretend { None } else { Some(look()?) };
    let cut = found.as_ref().map_or(REHEARSED_SMS, |(_, gpu, _)| {
        let sms = gpu.sms.unwrap_or(REHEARSED_SMS.0);
        (sms, gpu.green_contexts.as_ref().map_or(1, |granularity| granularity.sms_per_group))
    });
    let mut plan = plan(arguments, cut)?;
    let former = arguments.go_on.as_deref().map(read).transpose()?;
    if let Some(former) = &former {
        plan.go_on(former).map_err(Failure::input)?;
    }
    let name = file_name(arguments, &plan)?;
    let folder = folder(arguments, found.as_ref().map(|(_, gpu, _)| gpu));
    // Before anything is started: a measurement of hours should not end because its file cannot be written.
    if let Some(folder) = &folder {
        let write = |error| Failure::Write { path: folder.clone(), error };
        std::fs::create_dir_all(folder).map_err(write)?;
    }
    let interrupted = interruptions().map_err(Failure::internal)?;
    let lock = Lock::take(&temporary).map_err(busy)?;
    leftovers::remove(&lock);
    let scratch = |error| Failure::Write { path: temporary.clone(), error };
    let (mut machine, environment): (Box<dyn Machine>, Environment) = match found {
        Some((survey, gpu, device)) => {
            let machine = GpuMachine::new(survey, gpu, device, preload(), &temporary).map_err(scratch)?;
            let environment = machine.environment();
            (Box::new(machine), environment)
        }
        None => {
            let host = HostRecord { cores: progress::cores(), ..HostRecord::default() };
            (Box::new(Rehearsal::new(&temporary).map_err(scratch)?), Environment { gpu: None, host })
        }
    };
    let program = std::env::current_exe().map_err(Failure::internal)?.display().to_string();
    let launcher = Launcher { program, pretended: arguments.pretend };
    let mut channel = Processes::new(interrupted);
    let mut bench =
        Bench { plan: &plan, launcher: &launcher, machine: machine.as_mut(), channel: &mut channel };
    let started = clock::rfc3339(clock::unix_seconds());
    let bar = progress::bar(1, "starting");
    let mut lines = progress::Lines::for_logs();
    let limits = Limits { time: arguments.time_limit, ims: arguments.ims };
    let measurement = method::measure(&mut bench, limits, &mut |at: Progress| {
        bar.set_length(at.total as u64);
        bar.set_position(at.done as u64);
        let left = at.left.map_or_else(String::new, |left| format!(", about {:.0} s left", left.as_secs()));
        if let Some(lines) = &mut lines {
            lines.say(clock::now(), &format!("[{}/{}] {}{left}", at.done, at.total, at.what));
        }
        bar.set_message(format!("{}{left}", at.what));
    });
    bar.finish_and_clear();
    let found = measurement.map_err(|_| Failure::Interrupted)?;
    let record = record(arguments, &plan, name, started, environment, found);
    // What was started has ended; the rest is arithmetic and files.
    drop((channel, machine, lock));
    let record = match former {
        // Not lost if the two do not fit: then both are there.
        Some(former) => match merge(&[former, record.clone()], &record.name, &record.command) {
            Ok(both) => both,
            Err(error) => {
                let kept = Record { name: format!("{}-rest", record.name), ..record };
                write(&kept, folder.as_deref())?;
                return Err(Failure::input(error));
            }
        },
        None => record,
    };
    finish(&record, folder.as_deref(), arguments.json)
}

/// Writes a record and its page into `folder`, and says what there is.
fn finish(record: &Record, folder: Option<&Path>, as_json: bool) -> Result<(), Failure> {
    let written = write(record, folder)?;
    if as_json {
        return output::print(&record.json().map_err(Failure::internal)?);
    }
    output::print(&text::measured(record))?;
    written.iter().try_for_each(|path| output::print(&format!("wrote {}", path.display())))
}

fn write(record: &Record, folder: Option<&Path>) -> Result<Vec<PathBuf>, Failure> {
    let json = record.json().map_err(Failure::internal)?;
    match folder {
        Some(folder) => {
            let (data, page) = (format!("{}.json", record.name), format!("{}.html", record.name));
            output::write_all(folder, &[(&data, &json), (&page, &measured::report(record).html())])
        }
        None => Ok(Vec::new()),
    }
}

/// What a measurement puts around programs, or has them load.
fn preload() -> Preload {
    let shim = tenants::shim().map_err(|failure| failure.to_string());
    let side = tenants::side_library().map_err(|failure| failure.to_string());
    let others =
        tenants::variable(partywall_node::environment::PRELOAD).and_then(|text| text.into_string().ok());
    Preload { shim, others, side }
}

/// The machine's first GPU that programs can use.
fn look() -> Result<(Survey, Gpu, Option<partywall_driver::nvml::Device>), Failure> {
    let catalogue = Catalogue::builtin().map_err(Failure::internal)?;
    let nvml = Nvml::load();
    let survey = Survey::take(&doctor::surroundings(), nvml.as_ref(), &CudaSide::look(), catalogue);
    let rehearse = "`partywall measure --pretend` rehearses without GPU, `partywall demo` simulates one";
    let missing = |why: &str, help: &str| {
        Failure::machine(format!("nothing to measure on: {why}"), Some(format!("{help}; {rehearse}")))
    };
    if let Some(Availability::Missing { why, what_would_help }) = availability::absence(&survey) {
        return Err(missing(&why, &what_would_help));
    }
    let usable =
        |gpu: &&Gpu| availability::on(partywall_core::wall::Wall::TimeSlicing, &survey, gpu).is_available();
    let Some(gpu) = survey.gpus.iter().find(usable).cloned() else {
        return Err(match availability::of(partywall_core::wall::Wall::TimeSlicing, &survey) {
            Availability::Missing { why, what_would_help } => missing(&why, &what_would_help),
            Availability::Available { .. } => missing("no GPU can be used", "see `partywall doctor`"),
        });
    };
    let device = nvml.ok().and_then(|nvml| nvml.device(gpu.index).ok());
    Ok((survey, gpu, device))
}

fn plan(arguments: &MeasureArguments, (sms, step): (u32, u32)) -> Result<Plan, Failure> {
    let mut plan = match &arguments.plan {
        Some(path) => {
            let file = path.display().to_string();
            let name =
                path.file_stem().map_or_else(|| file.clone(), |stem| stem.to_string_lossy().into_owned());
            let hint = "`partywall measure --plan-example` prints one that is right";
            Plan::parse(&output::read_text(path)?, &file, &name)
                .map_err(|error| Failure::input_with_hint(error, hint))?
        }
        None => built_in(if arguments.quick { Size::Quick } else { Size::Full }, sms, step),
    };
    plan.restrict(&arguments.victims, &arguments.antagonists, &arguments.walls).map_err(Failure::input)?;
    if let Some(seconds) = arguments.seconds {
        if !(seconds > 0.0 && seconds <= 3600.0) {
            return Err(Failure::input(format!(
                "--seconds {seconds} is out of range; use more than 0 and at most 3600"
            )));
        }
        plan.time_max = Nanos::from_ms_f64(seconds * 1e3);
        plan.pairs.iter_mut().for_each(|pair| pair.time_max = None);
    }
    if let Some(requests) = arguments.requests {
        let most = partywall_measure::protocol::REQUESTS_MAX / 2;
        if !(1..=most).contains(&requests) {
            return Err(Failure::input(format!("--requests {requests} is out of range; use 1 to {most}")));
        }
        plan.requests_wanted = requests;
    }
    plan.rounds = arguments.rounds.unwrap_or(plan.rounds);
    plan.seed = arguments.seed.unwrap_or(plan.seed);
    Ok(plan)
}

fn file_name(arguments: &MeasureArguments, plan: &Plan) -> Result<String, Failure> {
    checked_name(arguments.name.as_ref().unwrap_or(&plan.name))
}

fn checked_name(name: &str) -> Result<String, Failure> {
    let allowed = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || name.len() > 100 || !name.chars().all(allowed) {
        let shown = partywall_core::diagnostic::quoted(name);
        return Err(Failure::input(format!("{shown} cannot name a result; use letters, digits and - _ .")));
    }
    Ok(name.to_owned())
}

/// Where the result goes: of a rehearsal nowhere unless it is said; of a simulated GPU never among those of real ones.
fn folder(arguments: &MeasureArguments, gpu: Option<&Gpu>) -> Option<PathBuf> {
    arguments.out.clone().or_else(|| {
        let gpu = gpu?;
        let origin = if is_simulated(&gpu.name) { "sim-" } else { "" };
        let id = gpu.id.as_deref().unwrap_or("unknown-gpu");
        Some(Path::new("results").join(format!("{origin}{id}")))
    })
}

fn busy(error: LockError) -> Failure {
    match error {
        LockError::Held { .. } => Failure::machine(error, None),
        LockError::File { path, error } => Failure::Write { path, error },
    }
}

fn record(
    arguments: &MeasureArguments,
    plan: &Plan,
    name: String,
    started: String,
    environment: Environment,
    measured: Measured,
) -> Record {
    let Results { tenants, cells, rows, facts } = results(plan, &measured);
    let summary = summary(&rows);
    let simulated = environment.gpu.as_ref().filter(|gpu| is_simulated(&gpu.name));
    let command = command(arguments, simulated.and_then(|gpu| gpu.id.as_deref()));
    Record {
        format: FORMAT.to_owned(),
        simulated: simulated.is_some(),
        pretended: arguments.pretend,
        name,
        command,
        started,
        took_s: measured.took.as_secs(),
        complete: measured.complete,
        environment,
        settings: Settings {
            plan: plan.name.clone(),
            seed: plan.seed,
            rounds: plan.rounds,
            warmup_s: plan.warmup.as_secs(),
            seconds_max: plan.time_max.as_secs(),
            requests_wanted: plan.requests_wanted,
            evidence: plan.evidence,
        },
        tenants,
        cells,
        rows,
        ims: measured.ims,
        facts,
        parts: Vec::new(),
        summary,
    }
}

/// The command line that measures the same again, on the simulated GPU of this id where one was used.
fn command(arguments: &MeasureArguments, gpu: Option<&str>) -> String {
    let mut words = vec!["partywall measure".to_owned()];
    words.extend(gpu.map(|id| format!("--gpu sim:{id}")));
    let mut say =
        |name: &str, value: Option<String>| words.extend(value.map(|value| format!("--{name} {value}")));
    let list = |values: &[String]| (!values.is_empty()).then(|| values.join(","));
    let walls: Vec<String> = arguments.walls.iter().map(ToString::to_string).collect();
    // The folder that a file lies in on this machine is nobody else's.
    say("plan", arguments.plan.as_deref().map(bare));
    say("victims", list(&arguments.victims));
    say("antagonists", list(&arguments.antagonists));
    say("walls", list(&walls));
    say("seconds", arguments.seconds.map(|value| value.to_string()));
    say("requests", arguments.requests.map(|value| value.to_string()));
    say("rounds", arguments.rounds.map(|value| value.to_string()));
    say("seed", arguments.seed.map(|value| value.to_string()));
    say("continue", arguments.go_on.as_deref().map(bare));
    say("time-limit", arguments.time_limit.map(|value| value.to_string()));
    let flags = [("quick", arguments.quick), ("ims", arguments.ims), ("pretend", arguments.pretend)];
    words.extend(flags.iter().filter(|(_, given)| *given).map(|(name, _)| format!("--{name}")));
    words.join(" ")
}

/// The folder that a file lies in on this machine is nobody else's.
fn bare(path: &Path) -> String {
    let file = path.file_name().filter(|_| path.is_absolute()).map(Path::new);
    file.unwrap_or(path).display().to_string()
}

/// `partywall measure merge`.
fn together(arguments: &MergeArguments) -> Result<(), Failure> {
    let records = arguments.results.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
    let files: Vec<String> = arguments.results.iter().map(|path| bare(path)).collect();
    let name = checked_name(&arguments.name)?;
    let command = format!("partywall measure merge {} --name {name}", files.join(" "));
    let merged = merge(&records, &name, &command).map_err(Failure::input)?;
    finish(&merged, arguments.out.as_deref(), arguments.json)
}

fn read(path: &Path) -> Result<Record, Failure> {
    let file = path.display().to_string();
    Record::parse(&output::read_text(path)?, &file).map_err(Failure::input)
}

fn show(arguments: &ShowArguments) -> Result<(), Failure> {
    let record = read(&arguments.result)?;
    output::print(&text::measured(&record))?;
    let Some(folder) = &arguments.out else { return Ok(()) };
    let report = if arguments.simulate {
        let text = output::read_text(&arguments.result)?;
        let modelled = measured::modelled(&record, &text, &arguments.result.display().to_string())?;
        measured::report_beside(&record, &modelled)
    } else {
        measured::report(&record)
    };
    let mut files = vec![(format!("{}.html", record.name), report.html())];
    files.extend(report.overview().map(|picture| (format!("{}.svg", record.name), picture)));
    let files: Vec<(&str, &str)> = files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let written = output::write_all(folder, &files)?;
    written.iter().try_for_each(|path| output::print(&format!("wrote {}", path.display())))
}

/// The pictures that README and docs show of a recorded result: file name and SVG.
///
/// # Errors
/// When the record cannot be read.
pub fn recorded_pictures(text: &str, file: &str) -> Result<Vec<(String, String)>, String> {
    let record = Record::parse(text, file).map_err(|error| error.to_string())?;
    let report = measured::report(&record);
    let all = report.overview().map(|picture| (format!("{}.svg", record.name), picture));
    Ok(report.pictures().into_iter().chain(all).collect())
}

fn against(arguments: &CompareArguments) -> Result<(), Failure> {
    let found = compare(&read(&arguments.first)?, &read(&arguments.second)?);
    if arguments.json {
        output::print(&output::json(&found)?)
    } else {
        output::print(&text::compared(&found))
    }
}
