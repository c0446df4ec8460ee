//! The report for people: a line of facts each, aligned, one block per GPU, then the walls.

use partywall_driver::availability::Availability;
use partywall_driver::nvml::Gpm;
use partywall_driver::survey::{ForeignDaemon, Gpu, Mig, Survey};

use super::Report;

/// Columns of the text: what fits a terminal that nobody has resized much.
const WIDTH: usize = 100;
/// Columns before the facts.
const INDENT: usize = 18;

pub(super) fn render(report: &Report) -> String {
    let survey = &report.survey;
    let mut page = Page::default();
    if let Some(Availability::Missing { why, what_would_help }) = &report.absent {
        page.line("GPU", &format!("none: {why}"));
        page.line("what would help", what_would_help);
        page.line("without one", "`partywall demo` shows every wall on a simulated GPU, in seconds; `--gpu sim:h200` runs programs on one");
        host(&mut page, survey);
        return page.0;
    }
    if report.simulated {
        page.line(
            "SIMULATED",
            "programs run on this GPU and get right results; times are modelled, not measured",
        );
    }
    driver(&mut page, survey);
    host(&mut page, survey);
    for one in &survey.gpus {
        gpu(&mut page, one);
    }
    mps(&mut page, survey);
    page.heading("Walls");
    for wall in &report.walls {
        match &wall.availability {
            Availability::Available { note: None } => page.line(wall.id.id(), "available"),
            Availability::Available { note: Some(note) } => {
                page.line(wall.id.id(), &format!("available: {note}"));
            }
            Availability::Missing { why, what_would_help } => {
                page.line(wall.id.id(), &format!("not available: {why}"));
                page.line("", &format!("-> {what_would_help}"));
            }
        }
    }
    for gpu in report.checks.iter().flatten() {
        page.heading(&format!("Checks on CUDA device {}", gpu.device));
        for check in &gpu.checks {
            page.line(if check.passed { "ok" } else { "FAILED" }, &format!("{}: {}", check.name, check.saw));
        }
        if let Some(error) = &gpu.error {
            page.line("FAILED", error);
        }
    }
    page.0
}

/// Lines of a name and a text, wrapped under the text.
#[derive(Default)]
struct Page(String);

impl Page {
    fn heading(&mut self, text: &str) {
        self.0 += &format!("\n{text}\n");
    }

    fn line(&mut self, name: &str, text: &str) {
        let mut line = format!("  {name:<width$}", width = INDENT - 2);
        let mut empty = true;
        for word in text.split_whitespace() {
            if !empty && line.chars().count() + 1 + word.chars().count() > WIDTH {
                self.0 += &format!("{line}\n");
                line = " ".repeat(INDENT);
                empty = true;
            }
            let space = if empty { "" } else { " " };
            line += &format!("{space}{word}");
            empty = false;
        }
        self.0 += &format!("{}\n", line.trim_end());
    }
}

fn driver(page: &mut Page, survey: &Survey) {
    let driver = &survey.driver;
    let version =
        driver.version.as_ref().map_or("of unknown version".to_owned(), |version| version.to_string());
    let cuda = driver.cuda.map_or(String::new(), |cuda| format!(", CUDA {cuda}"));
    page.line("driver", &format!("{version}{cuda}"));
    if let Some(problem) = &driver.nvml_problem {
        page.line("NVML", problem);
    }
    if let Some(problem) = &driver.cuda_problem {
        page.line("CUDA", &problem.why);
    }
}

fn host(page: &mut Page, survey: &Survey) {
    let host = &survey.host;
    let mut facts = Vec::new();
    facts.extend(host.cores.map(|cores| format!("{cores} cores")));
    facts.extend(host.memory_mib.map(|mib| format!("{} GiB", gib(mib))));
    facts.extend(host.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    facts.extend(host.container.as_ref().map(|kind| format!("in a container ({kind})")));
    facts.push(if survey.rights.root { "root" } else { "not root" }.to_owned());
    page.line("host", &facts.join(", "));
    if !survey.rights.temporary_writable {
        page.line("", "the directory for temporary files cannot be written to");
    }
}

fn gpu(page: &mut Page, gpu: &Gpu) {
    let known =
        gpu.id.as_ref().map_or(", not in the catalogue".to_owned(), |id| format!(", {id} in the catalogue"));
    page.heading(&format!("GPU {}: {}{known}", gpu.index, gpu.name));
    let mut chip = Vec::new();
    chip.extend(gpu.sms.map(|sms| format!("{sms} SMs")));
    chip.extend(gpu.architecture.clone());
    chip.extend(gpu.compute_capability.map(|(major, minor)| format!("compute capability {major}.{minor}")));
    page.line("chip", &or_unknown(&chip));
    let used = gpu.memory_used_mib.map_or(String::new(), |mib| format!(", {} GiB in use", gib(mib)));
    page.line(
        "memory",
        &gpu.memory_mib.map_or("unknown".to_owned(), |mib| format!("{} GiB{used}", gib(mib))),
    );
    page.line("PCIe", &gpu.pcie.to_string());
    let mut limits = Vec::new();
    limits.extend(gpu.power_limit_w.map(|watts| format!("{watts:.0} W")));
    limits.extend(gpu.sm_clock_max_mhz.map(|mhz| format!("{mhz} MHz")));
    page.line("at most", &or_unknown(&limits));
    let mut mode = Vec::new();
    mode.extend(gpu.compute_mode.map(|mode| mode.to_string()));
    mode.extend(gpu.persistence.map(|on| format!("persistence {}", if on { "on" } else { "off" })));
    page.line("compute mode", &or_unknown(&mode));
    page.line("MIG", &mig(&gpu.mig));
    for instance in &gpu.mig.instances {
        let sms = instance.sms.map_or(String::new(), |sms| format!(", {sms} SMs"));
        page.line("", &format!("{}{sms}, {}", instance.profile, instance.uuid));
    }
    if let Some(green) = gpu.green_contexts {
        let finest =
            format!("{} groups of {} if co-scheduling is ignored", green.groups, green.sms_per_group);
        page.line(
            "green contexts",
            &format!("{} SMs or more, in steps of {}; {finest}", green.min, green.step),
        );
    }
    page.line(
        "GPM counters",
        &match &gpu.gpm {
            Gpm::Readable => "readable".to_owned(),
            Gpm::NotSupported => "none before Hopper".to_owned(),
            Gpm::Denied { why } => why.clone(),
        },
    );
    for process in &gpu.processes {
        let name = process.name.as_deref().unwrap_or("a process");
        let memory = process.memory.map_or(String::new(), |bytes| format!(", {} GiB", gib(bytes.0 >> 20)));
        page.line("in use by", &format!("{name} (process {}{memory})", process.pid));
    }
    for untold in &gpu.untold {
        page.line("not told", untold);
    }
}

fn mig(mig: &Mig) -> String {
    match (mig.mode, mig.instances.len()) {
        (None, _) => "this GPU has none".to_owned(),
        (Some(mode), _) if !mode.enabled && mode.enabled_after_reset => {
            "disabled until the next reset".to_owned()
        }
        (Some(mode), _) if !mode.enabled => "disabled".to_owned(),
        (Some(_), 0) => "enabled, no instances".to_owned(),
        (Some(_), count) => format!("enabled, {count} instance{}", if count == 1 { "" } else { "s" }),
    }
}

fn mps(page: &mut Page, survey: &Survey) {
    page.heading("MPS");
    let control = match (&survey.mps.control, survey.mps.control_cuda) {
        (None, _) => "not on the PATH".to_owned(),
        (Some(path), None) => path.display().to_string(),
        (Some(path), Some(cuda)) => format!("{}, for CUDA {cuda}", path.display()),
    };
    page.line("control program", &control);
    page.line(
        "daemon",
        &match &survey.mps.daemon {
            ForeignDaemon::None => "none runs".to_owned(),
            ForeignDaemon::Running { servers: 0 } => "one runs, without servers".to_owned(),
            ForeignDaemon::Running { servers: 1 } => "one runs, with one server".to_owned(),
            ForeignDaemon::Running { servers } => format!("one runs, with {servers} servers"),
            ForeignDaemon::Unclear { why } => format!("unclear: {why}"),
        },
    );
}

fn or_unknown(facts: &[String]) -> String {
    if facts.is_empty() { "unknown".to_owned() } else { facts.join(", ") }
}

/// MiB as GiB with one decimal.
fn gib(mib: u64) -> String {
    format!("{:.1}", mib as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survey(gpus: serde_json::Value) -> Survey {
        let json = serde_json::json!({
            "driver": {
                "version": "580.159.04", "cuda": "13.0", "nvml_problem": null, "cuda_problem": null,
                "kernel_module": true, "device_files": true
            },
            "gpus": gpus,
            "mps": { "control": "nvidia-cuda-mps-control", "control_cuda": "13.0", "daemon": { "state": "none" } },
            "rights": { "root": true, "temporary_writable": true, "counters_restricted": null },
            "host": {
                "cores": 16, "memory_mib": 131072, "kernel": "6.8.0", "container": "docker", "mig_slice": false
            }
        });
        serde_json::from_value(json).unwrap()
    }

    fn h200() -> serde_json::Value {
        serde_json::json!({
            "index": 0, "name": "NVIDIA H200", "id": "h200", "architecture": "Hopper",
            "compute_capability": [9, 0], "visible": true, "sms": 132, "sides": 2, "memory_mib": 143771,
            "memory_used_mib": 512,
            "pcie": { "generation": 1, "generation_max": 5, "width": 16, "width_max": 16 },
            "power_limit_w": 700.0, "sm_clock_max_mhz": 1980, "compute_mode": "default", "persistence": true,
            "mig": {
                "mode": { "enabled": false, "enabled_after_reset": false }, "instances": [], "half": "3g.71gb"
            },
            "green_contexts": { "min": 8, "step": 8, "groups": 66, "sms_per_group": 2 },
            "gpm": { "state": "readable" },
            "processes": [{ "pid": 42, "name": "trainer", "memory": "2GiB" }], "untold": []
        })
    }

    #[test]
    fn an_h200_reads_like_this() {
        let text = render(&Report::of(survey(serde_json::json!([h200()]))));
        let expected = "  driver          580.159.04, CUDA 13.0
  host            16 cores, 128.0 GiB, Linux 6.8.0, in a container (docker), root

GPU 0: NVIDIA H200, h200 in the catalogue
  chip            132 SMs, Hopper, compute capability 9.0
  memory          140.4 GiB, 0.5 GiB in use
  PCIe            gen 5 x16
  at most         700 W, 1980 MHz
  compute mode    default, persistence on
  MIG             disabled
  green contexts  8 SMs or more, in steps of 8; 66 groups of 2 if co-scheduling is ignored
  GPM counters    readable
  in use by       trainer (process 42, 2.0 GiB)

MPS
  control program nvidia-cuda-mps-control, for CUDA 13.0
  daemon          none runs

Walls
  exclusive       available: trainer (process 42) computes on it now
";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains("\n  mps-static      not available: needs driver R590 or later, this is R580\n")
        );
        assert!(text.contains("\n                  -> a driver from R590 on\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn without_a_gpu_there_is_a_reason_and_the_demo() {
        let mut survey = survey(serde_json::json!([]));
        survey.driver.nvml_problem = Some("cannot load libnvidia-ml.so.1".to_owned());
        let text = render(&Report::of(survey));
        for part in ["libnvidia-ml.so.1", "NVIDIA Container Toolkit", "partywall demo", "16 cores"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn instances_and_refusals_are_shown() {
        let mut gpu = h200();
        gpu["mig"]["mode"]["enabled"] = true.into();
        gpu["mig"]["instances"] = serde_json::json!([{
            "uuid": "MIG-1234", "profile": "3g.71gb", "gpu_instance": 1, "compute_instance": 0, "sms": 60,
            "memory_mib": null
        }]);
        gpu["gpm"] = serde_json::json!({ "state": "denied", "why": "GPM sample: not permitted; needs root" });
        gpu["untold"] = serde_json::json!(["power limit: the GPU fell off the bus"]);
        let text = render(&Report::of(survey(serde_json::json!([gpu]))));
        for part in ["enabled, 1 instance\n", "3g.71gb, 60 SMs, MIG-1234", "needs root", "fell off the bus"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn programs_get_the_same() {
        let report = Report::of(survey(serde_json::json!([h200()])));
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["absent"], serde_json::Value::Null);
        assert_eq!(json["gpus"][0]["green_contexts"]["groups"], 66);
        assert_eq!(json["walls"].as_array().unwrap().len(), 10);
        assert_eq!(json["walls"][5]["id"], "mps-static");
        assert_eq!(json["walls"][5]["state"], "not-available");
        assert!(json["walls"][5]["what_would_help"].as_str().unwrap().contains("R590"));
    }
}
