//! What types cannot say about a scenario: each rule with the place it is broken at and what would be right.

use partywall_core::diagnostic::{Diagnostic, Findings, Step, nearest, position, quoted};
use partywall_core::tenant::{Class, Share};
use partywall_core::units::{Bytes, Nanos, SmCount};
use partywall_core::wall::Wall;

use super::reference::example;
use super::{
    ImsSpec, MAX_IMS_REQUESTS, MAX_TENANTS, MAX_TIME, MAX_VARIANTS, Objective, OneOrMore, ScenarioFile,
    SweepSpec, TenantSpec, VariantSpec,
};
use crate::layout::NodeText;
use crate::load::LoadError;
use crate::profile;

/// Characters of a name: it stands in table columns.
const MAX_NAME_CHARS: usize = 64;

/// Largest copy of one request: more than any GPU's memory.
const MAX_COPY: Bytes = Bytes::from_gib(1024);

/// Faults at most.
const MAX_FAULTS: usize = 1000;

/// Loads of an IMS test at most.
const MAX_LOADS: usize = 100;

/// Programs that are not networks.
pub(super) const PROGRAMS: [&str; 4] = ["stream", "gemm", "host-copy", "sweep"];

/// The recorded models.
pub(super) fn models() -> impl Iterator<Item = &'static str> {
    profile::recorded_models().into_iter().map(|(model, _)| model)
}

/// Whether `model` was recorded at this batch size; any model without one to ask for.
fn was_recorded(model: Option<&str>, batch: u32) -> bool {
    let asked = |known: &str| model.is_none_or(|model| model == known);
    profile::recorded_models().iter().any(|(known, batches)| asked(known) && batches.contains(&batch))
}

/// The first list where a table belongs, which the reader would take for the table's values in order.
pub(super) fn list_for_table(text: &str, file: &str) -> Option<Diagnostic> {
    let findings = Findings::new(text, file, example)?;
    let places = findings.places();
    let mut tables = vec![("ims", vec![Step::Key("ims")]), ("sweep", vec![Step::Key("sweep")])];
    for list in ["tenant", "fault", "variant"] {
        for index in 0..places.list_len(&[Step::Key(list)]) {
            let at = [Step::Key(list), Step::Index(index)];
            tables.push((list, at.to_vec()));
            for inner in ["load", "share"] {
                tables.push((inner, [&at[..], &[Step::Key(inner)]].concat()));
            }
            tables.push(("trace", [&at[..], &[Step::Key("load"), Step::Key("trace")]].concat()));
        }
    }
    findings.list_for_table(tables)
}

/// What is wrong with `scenario`, which was read from `text`, in the order of the file.
pub(super) fn check(scenario: &ScenarioFile, text: &str, file: &str) -> Vec<Diagnostic> {
    // It was read, so it is TOML.
    let Some(found) = Findings::new(text, file, example) else { return Vec::new() };
    let mut checker = Checker { found };
    checker.top(scenario);
    for (index, tenant) in scenario.tenants.iter().enumerate() {
        checker.tenant(index, tenant, scenario.sweep.is_some());
    }
    checker.names("tenant", scenario.tenants.iter().map(|tenant| &tenant.name[..]).collect());
    checker.names("variant", scenario.variants.iter().map(|variant| &variant.name[..]).collect());
    for (index, variant) in scenario.variants.iter().enumerate() {
        checker.variant(index, variant, scenario);
    }
    checker.faults(scenario);
    if let Some(ims) = &scenario.ims {
        checker.ims(ims, scenario);
    }
    if let Some(sweep) = &scenario.sweep {
        checker.sweep(sweep, scenario);
    }
    checker.found.into_diagnostics()
}

struct Checker<'t> {
    found: Findings<'t>,
}

impl Checker<'_> {
    /// About a word that is none of `known`.
    fn report_word(&mut self, path: &[Step<'_>], message: String, given: &str, known: &[&str]) {
        let list = known.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
        let help = match nearest(given, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? Known: {list}"),
            None => format!("known: {list}"),
        };
        self.found.report(self.found.places().value(path), message, help);
    }

    fn top(&mut self, scenario: &ScenarioFile) {
        if scenario.duration == Nanos::ZERO || scenario.duration > MAX_TIME {
            let message = format!("the duration {} is not above 0 and at most 1h", scenario.duration);
            self.found.report_value(&[Step::Key("duration")], message);
        }
        if scenario.warmup > MAX_TIME {
            let message = format!("the warm-up {} is more than 1h", scenario.warmup);
            self.found.report_value(&[Step::Key("warmup")], message);
        }
        self.objective(&[Step::Key("objective")], scenario.objective);
        self.gpus(&[Step::Key("gpu")], &scenario.gpu);
        for (list, count, most) in [
            ("tenant", scenario.tenants.len(), MAX_TENANTS),
            ("variant", scenario.variants.len(), MAX_VARIANTS),
        ] {
            if count == 0 {
                self.found.report_value(&[Step::Key(list)], format!("there is no {list}"));
            } else if count > most {
                let path = [Step::Key(list), Step::Index(most)];
                self.found
                    .report_value(&path, format!("there are {count} tables [[{list}]]; at most {most} work"));
            }
        }
    }

    fn gpus(&mut self, path: &[Step<'_>], gpus: &OneOrMore) {
        if gpus.0.is_empty() {
            self.found.report_value(path, "no GPU is named".to_owned());
        }
        for (index, id) in gpus.0.iter().enumerate() {
            if gpus.0[..index].contains(id) {
                let path = [path, &[Step::Index(index)]].concat();
                self.found.report_value(&path, format!("{} stands here a second time", quoted(id)));
            }
        }
    }

    fn objective(&mut self, path: &[Step<'_>], objective: Option<Objective>) {
        if objective == Some(Objective::Time(Nanos::ZERO)) {
            self.found.report_value(path, "no request completes within no time".to_owned());
        }
    }

    fn names(&mut self, list: &'static str, names: Vec<&str>) {
        for (index, name) in names.iter().enumerate() {
            let at = |index| [Step::Key(list), Step::Index(index), Step::Key("name")];
            if name.trim().is_empty() {
                self.found.report_value(&at(index), "the name is empty".to_owned());
            } else if name.chars().count() > MAX_NAME_CHARS || name.chars().any(char::is_control) {
                let message = format!("{} is no name", quoted(name));
                let help = format!("use at most {MAX_NAME_CHARS} characters, in one line");
                self.found.report(self.found.places().value(&at(index)), message, help);
            } else if let Some(first) = names[..index].iter().position(|other| other == name) {
                let there = position(self.found.text(), self.found.places().value(&at(first)).start);
                let message = format!("a second {list} is named {}; the first is at {there}", quoted(name));
                let help = format!("give each {list} its own name");
                self.found.report(self.found.places().value(&at(index)), message, help);
            }
        }
    }

    fn tenant(&mut self, index: usize, tenant: &TenantSpec, sweep: bool) {
        let at = |key| [Step::Key("tenant"), Step::Index(index), Step::Key(key)];
        let program = &tenant.program[..];
        let network = models().any(|model| model == program);
        if !network && !PROGRAMS.contains(&program) {
            let known: Vec<&str> = PROGRAMS.into_iter().chain(models()).collect();
            let message = format!("{} is no program", quoted(program));
            self.report_word(&at("program"), message, program, &known);
        }
        if program == "sweep" && !sweep {
            let help = "add a table [sweep] with ls and be, or name a program".to_owned();
            let span = self.found.places().value(&at("program"));
            self.found.report(span, "there is no [sweep] to take networks from".to_owned(), help);
        }
        match tenant.batch {
            Some(_) if !network && PROGRAMS[..3].contains(&program) => {
                let message = format!("{} has no batch", quoted(program));
                self.found.report(self.found.places().value(&at("batch")), message, "remove it".to_owned());
            }
            Some(batch) if !was_recorded(network.then_some(program), batch) => {
                self.found.report_value(&at("batch"), format!("batch {batch} was not recorded"));
            }
            _ => {}
        }
        match (program, tenant.bytes) {
            ("host-copy", None) => {
                let message = "`host-copy` needs the size of a copy".to_owned();
                let help = "write bytes = \"512MiB\"".to_owned();
                self.found.report(self.found.places().value(&at("program")), message, help);
            }
            ("host-copy", Some(bytes)) if bytes == Bytes::ZERO || bytes > MAX_COPY => {
                self.found
                    .report_value(&at("bytes"), format!("a copy of {bytes} is not above 0 and at most 1TiB"));
            }
            ("host-copy", _) | (_, None) => {}
            (_, Some(_)) => {
                let message = format!("{} has no size", quoted(program));
                let help = "remove it, or write program = \"host-copy\"".to_owned();
                self.found.report(self.found.places().value(&at("bytes")), message, help);
            }
        }
        for (key, bytes) in [("input", tenant.input), ("output", tenant.output)] {
            if bytes > MAX_COPY {
                self.found.report_value(&at(key), format!("a copy of {bytes} is more than 1TiB"));
            }
        }
        if program == "host-copy" && tenant.input > Bytes::ZERO {
            let help = "add it to bytes".to_owned();
            self.found.report(
                self.found.places().value(&at("input")),
                "`host-copy` is its own input".to_owned(),
                help,
            );
        }
        self.objective(&at("objective"), tenant.objective);
        self.share(&at("share"), tenant.share);
        if let Err(error) = tenant.load.validate() {
            self.load(&at("load"), &error);
        }
    }

    fn load(&mut self, path: &[Step<'_>], error: &LoadError) {
        match error {
            LoadError::OutOfRange { field, value, expected } => {
                let span = self.found.places().value(&[path, &[Step::Key(field)]].concat());
                self.found.report(span, format!("{} is {value}", quoted(field)), format!("write {expected}"));
            }
            other => self.found.report(self.found.places().value(path), other.to_string(), String::new()),
        }
    }

    fn share(&mut self, path: &[Step<'_>], share: Option<Share>) {
        match share {
            Some(Share::Sms(SmCount(0))) => {
                let path = [path, &[Step::Key("sms")]].concat();
                self.found.report_value(&path, "a tenant without SMs cannot run".to_owned());
            }
            Some(Share::Percent(percent)) if !(1..=100).contains(&percent) => {
                let path = [path, &[Step::Key("percent")]].concat();
                self.found.report_value(&path, format!("{percent} is no percentage of the SMs"));
            }
            _ => {}
        }
    }

    fn variant(&mut self, index: usize, variant: &VariantSpec, scenario: &ScenarioFile) {
        let at = [Step::Key("variant"), Step::Index(index)];
        for (tenant, share) in &variant.share {
            let path = [&at[..], &[Step::Key("share"), Step::Key(tenant)]].concat();
            self.tenant_name(&path, true, tenant, scenario);
            self.share(&path, Some(*share));
        }
        if let Some(setting) = &variant.setting {
            let path = [&at[..], &[Step::Key("setting")]].concat();
            let message = match setting.parse::<NodeText>() {
                _ if variant.wall != Wall::Partywall => Some(format!(
                    "the wall {} cannot be set; only `partywall` can",
                    quoted(variant.wall.id())
                )),
                Err(message) => Some(message),
                Ok(NodeText { ls: None, be: None, .. }) => None,
                Ok(_) => Some("SMs of a variant are its `share`".to_owned()),
            };
            if let Some(message) = message {
                self.found.report_value(&path, message);
            }
        }
        let Some(gpus) = &variant.gpu else { return };
        let path = [&at[..], &[Step::Key("gpu")]].concat();
        self.gpus(&path, gpus);
        for gpu in gpus.0.iter().filter(|gpu| !scenario.gpu.0.contains(gpu)) {
            let known: Vec<&str> = scenario.gpu.0.iter().map(|id| &id[..]).collect();
            let message = format!("{} is no GPU of this scenario", quoted(gpu));
            self.report_word(&path, message, gpu, &known);
        }
    }

    fn tenant_name(&mut self, path: &[Step<'_>], is_key: bool, name: &str, scenario: &ScenarioFile) {
        if scenario.tenants.iter().any(|tenant| tenant.name == name) {
            return;
        }
        let known: Vec<&str> = scenario.tenants.iter().map(|tenant| &tenant.name[..]).take(16).collect();
        let message = format!("no tenant is named {}", quoted(name));
        if is_key {
            let help = nearest(name, known.iter().copied()).map(|near| format!("did you mean `{near}`?"));
            self.found.report(self.found.places().key(path), message, help.unwrap_or_default());
        } else {
            self.report_word(path, message, name, &known);
        }
    }

    fn faults(&mut self, scenario: &ScenarioFile) {
        let end = scenario.warmup.saturating_add(scenario.duration);
        for (index, fault) in scenario.faults.iter().enumerate().take(MAX_FAULTS) {
            let at = |key| [Step::Key("fault"), Step::Index(index), Step::Key(key)];
            self.tenant_name(&at("tenant"), false, &fault.tenant, scenario);
            if fault.at >= end {
                let message = format!("the run is over at {end} (warm-up and duration)");
                self.found.report_value(&at("at"), message);
            }
            if fault.restart > MAX_TIME {
                self.found.report_value(&at("restart"), "a restart takes at most 1h".to_owned());
            }
        }
        if scenario.faults.len() > MAX_FAULTS {
            let path = [Step::Key("fault"), Step::Index(MAX_FAULTS)];
            self.found.report_value(&path, format!("more than {MAX_FAULTS} faults"));
        }
    }

    fn ims(&mut self, ims: &ImsSpec, scenario: &ScenarioFile) {
        let at = |key| [Step::Key("ims"), Step::Key(key)];
        if ims.tenants.is_empty() {
            self.found.report_value(&at("tenants"), "no tenant is named".to_owned());
        }
        for (index, name) in ims.tenants.iter().enumerate() {
            let path = [Step::Key("ims"), Step::Key("tenants"), Step::Index(index)];
            self.tenant_name(&path, false, name, scenario);
            if ims.tenants[..index].contains(name) {
                self.found.report_value(&path, format!("{} stands here a second time", quoted(name)));
            }
        }
        // Fewer than the worst five say nothing; see the algorithm.
        if !(5..=MAX_IMS_REQUESTS).contains(&ims.requests) {
            let message = format!("{} inferences are not from 5 to {MAX_IMS_REQUESTS}", ims.requests);
            self.found.report_value(&at("requests"), message);
        }
        if !(0.001..=1.0).contains(&ims.step) {
            self.found.report_value(&at("step"), format!("a step of {} is not from 0.001 to 1", ims.step));
        }
        if !(0.0..=0.9).contains(&ims.margin) {
            self.found
                .report_value(&at("margin"), format!("a margin of {} is not from 0 to 0.9", ims.margin));
        }
        if ims.loads.is_empty() || ims.loads.len() > MAX_LOADS {
            let message = format!("{} loads are not from 1 to {MAX_LOADS}", ims.loads.len());
            self.found.report_value(&at("loads"), message);
        }
        if let Some(index) = ims.loads.iter().position(|load| !(0.0..=2.0).contains(load)) {
            let path = [Step::Key("ims"), Step::Key("loads"), Step::Index(index)];
            self.found.report_value(&path, format!("a load of {} is not from 0 to 2", ims.loads[index]));
        }
        if scenario.sweep.is_some() {
            let message = "[ims] and [sweep] cannot stand in one file".to_owned();
            self.found.report(
                self.found.places().key(&[Step::Key("ims")]),
                message,
                "make two files of it".to_owned(),
            );
        }
    }

    fn sweep(&mut self, sweep: &SweepSpec, scenario: &ScenarioFile) {
        for (key, class, list) in
            [("ls", Class::LatencySensitive, &sweep.ls), ("be", Class::BestEffort, &sweep.be)]
        {
            let path = [Step::Key("sweep"), Step::Key(key)];
            if list.is_empty() {
                self.found.report_value(&path, "no network is named".to_owned());
            }
            for (index, model) in list.iter().enumerate() {
                let path = [Step::Key("sweep"), Step::Key(key), Step::Index(index)];
                if !models().any(|known| known == model) {
                    let known: Vec<&str> = models().collect();
                    let message = format!("{} is no recorded network", quoted(model));
                    self.report_word(&path, message, model, &known);
                } else if list[..index].contains(model) {
                    self.found.report_value(&path, format!("{} stands here a second time", quoted(model)));
                }
            }
            let of_class =
                scenario.tenants.iter().filter(|tenant| tenant.program == "sweep" && tenant.class == class);
            let count = of_class.count();
            if count != 1 {
                let message = format!("{count} {class} tenants have program = \"sweep\"");
                let help = format!("let one {class} tenant take the networks of `{key}`");
                self.found.report(self.found.places().key(&path), message, help);
            }
        }
    }
}
