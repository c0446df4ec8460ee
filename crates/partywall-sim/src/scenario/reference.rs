//! The one list of keys from which both the reference and the help behind errors come. A test holds it against the
//! keys that the reader knows.

use std::fmt::Write as _;

/// A key of a scenario file.
pub(super) struct Key {
    /// The table it stands in; empty for the top level.
    pub(super) table: &'static str,
    /// Its name.
    pub(super) key: &'static str,
    /// How it is written.
    pub(super) example: &'static str,
    /// What holds where it is not written; empty where it must be.
    pub(super) default: &'static str,
    /// What it means.
    pub(super) meaning: &'static str,
}

const fn key(
    table: &'static str,
    key: &'static str,
    example: &'static str,
    default: &'static str,
    meaning: &'static str,
) -> Key {
    Key { table, key, example, default, meaning }
}

pub(super) const KEYS: &[Key] = &[
    key("", "name", "name = \"packing\"", "", "a short name"),
    key("", "description", "description = \"what it shows\"", "nothing", "printed above the results"),
    key(
        "",
        "gpu",
        "gpu = \"h200\" or gpu = [\"orin-nano\", \"agx-orin\"]",
        "",
        "ids of the catalogue; each variant runs on each of them",
    ),
    key("", "seed", "seed = 1", "1", "of everything random: same seed, same report"),
    key("", "duration", "duration = \"5s\"", "", "virtual time measured, after the warm-up; at most 1h"),
    key("", "warmup", "warmup = \"100ms\"", "100ms", "virtual time before that; at most 1h"),
    key(
        "",
        "objective",
        "objective = \"5ms\" or objective = \"2x\"",
        "none",
        "longest good response of latency-sensitive tenants that do not say their own: a time, or a multiple of the \
         median service time alone on the whole GPU",
    ),
    key("", "tenant", "a table [[tenant]] for each tenant", "", "the tenants, at most 48"),
    key("", "fault", "a table [[fault]] for each fault", "none", "fatal GPU faults to inject"),
    key("", "variant", "a table [[variant]] for each wall to try", "", "the walls to try, at most 64"),
    key("", "ims", "a table [ims]", "not measured", "maximum stable rates, and timeouts beside rising load"),
    key(
        "",
        "sweep",
        "a table [sweep]",
        "no sweep",
        "networks for the two tenants whose program is \"sweep\"",
    ),
    key("tenant", "name", "name = \"detector\"", "", "once per file"),
    key(
        "tenant",
        "class",
        "class = \"latency-sensitive\" or class = \"best-effort\"",
        "",
        "what it cares about",
    ),
    key(
        "tenant",
        "program",
        "program = \"resnet50\"",
        "",
        "what a request runs: a recorded network by its model; `stream` (device copies of 1 GiB), `gemm` (products of \
         8192 x 8192), `host-copy` (nothing but a copy to the device), or `sweep`",
    ),
    key(
        "tenant",
        "batch",
        "batch = 8, one of 1, 8 and 32",
        "1",
        "inputs per request; for networks and `sweep`",
    ),
    key("tenant", "bytes", "bytes = \"512MiB\"", "", "size of one copy; for `host-copy`, and required there"),
    key("tenant", "input", "input = \"600KB\"", "nothing", "copied to the device before each request"),
    key("tenant", "output", "output = \"4KB\"", "nothing", "copied back after each request"),
    key(
        "tenant",
        "load",
        "load = { kind = \"poisson\", rate_per_s = 100 }",
        "",
        "how requests come: `poisson` and `periodic` (rate_per_s), `bursty` (rate_per_s, burst_factor, burst, calm), \
         `closed` (pause, depth, host), `replay` (trace = { format, path, task }, repeat, speed), `fitted` (like, rate_scale)",
    ),
    key(
        "tenant",
        "objective",
        "objective = \"5ms\" or objective = \"2x\"",
        "the scenario's, for latency-sensitive tenants",
        "longest good response",
    ),
    key(
        "tenant",
        "share",
        "share.percent = 50 or share.sms = 64",
        "the wall's",
        "SMs it asks for; `time-slicing`, `mps`, `mig` and `sides` decide themselves",
    ),
    key(
        "fault",
        "tenant",
        "tenant = \"detector\"",
        "",
        "whose fault it is; who else dies is the wall's doing",
    ),
    key("fault", "at", "at = \"1s\"", "", "when, from the start of the run, warm-up included"),
    key("fault", "restart", "restart = \"1s\"", "1s", "how long those it ends take to come back"),
    key("variant", "name", "name = \"mps\"", "", "once per file"),
    key("variant", "wall", "wall = \"green-contexts\"", "", "the id of a wall"),
    key(
        "variant",
        "setting",
        "setting = \"time-slicing decided\"",
        "mps decided",
        "how the wall partywall is set, as for `partywall measure`: what stands below it, then whether and how launches are decided about",
    ),
    key(
        "variant",
        "copies",
        "copies = \"fifo\" or copies = \"fair\"",
        "fifo",
        "copies between host and device: whole ones in the order they come, or packets, fairly by class",
    ),
    key(
        "variant",
        "gpu",
        "gpu = \"h200\"",
        "all of the scenario",
        "the GPUs it runs on, of those of the scenario",
    ),
    key(
        "variant",
        "share",
        "share = { detector = { percent = 50 } }",
        "the tenants' own",
        "SMs by tenant, instead of what the tenants ask for",
    ),
    key(
        "ims",
        "tenants",
        "tenants = [\"detector\"]",
        "",
        "the tenants under test; the others are their co-runners",
    ),
    key("ims", "requests", "requests = 1000", "1000", "inferences of one run"),
    key(
        "ims",
        "step",
        "step = 0.02",
        "0.02",
        "by how much the rate is raised at a time, a fraction from 0.001 to 1",
    ),
    key(
        "ims",
        "margin",
        "margin = 0.05",
        "0",
        "how far below their maximum stable rate the tenants run in the test, a fraction from 0 to 0.9: simulated times do \
         not vary as real ones do, so without it the least disturbance makes every inference late",
    ),
    key(
        "ims",
        "loads",
        "loads = [0.0, 0.5, 1.0]",
        "0, 0.25, 0.5, 0.75, 1",
        "loads of the co-runners, as fractions (0 to 2) of their own rate in the test",
    ),
    key("sweep", "ls", "ls = [\"resnet50\", \"bert_base\"]", "", "models for the latency-sensitive tenant"),
    key("sweep", "be", "be = [\"resnet152\"]", "", "models for the best-effort tenant"),
];

/// How a key is written right, for messages.
pub(super) fn example(key: &str) -> Option<&'static str> {
    let listed = KEYS.iter().find(|known| known.key == key).map(|known| known.example);
    listed.or(match key {
        "kind" => Some("kind = \"poisson\", or another kind of load"),
        "rate_per_s" => Some("rate_per_s = 100"),
        "burst_factor" => Some("burst_factor = 10"),
        "burst" => Some("burst = \"20ms\""),
        "calm" => Some("calm = \"200ms\""),
        "trace" => Some("trace = { format = \"azure-llm\", path = \"trace.csv\" }"),
        "format" => Some("format = \"disb\", \"azure-llm\" or \"mooncake\""),
        "path" => Some("path = \"trace.csv\""),
        "sms" => Some("share.sms = 64"),
        "percent" => Some("share.percent = 50, from 1 to 100"),
        _ => None,
    })
}

/// The format of scenario files as Markdown: one table of keys per TOML table.
pub fn reference() -> String {
    let mut text = String::from(
        "# Scenario files\n\nWhat `partywall sim run SCENARIO.toml` reads. Times are written \"250us\", \"5ms\", \"2s\"; sizes \
         \"600KB\", \"12MiB\".\n",
    );
    let mut table = None;
    for key in KEYS {
        if table != Some(key.table) {
            table = Some(key.table);
            let title = match key.table {
                "" => "At the top".to_owned(),
                "ims" | "sweep" => format!("`[{}]`", key.table),
                list => format!("`[[{list}]]`"),
            };
            let _ =
                write!(text, "\n## {title}\n\n| key | written | default | meaning |\n|---|---|---|---|\n");
        }
        let default = if key.default.is_empty() { "required" } else { key.default };
        let _ = writeln!(text, "| `{}` | `{}` | {default} | {} |", key.key, key.example, key.meaning);
    }
    text
}
