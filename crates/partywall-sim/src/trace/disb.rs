//! DISB workloads (SJTU-IPADS/disb): one JSON object with the tasks of an experiment. The load types are those of its
//! load generator: `trace`, `continuous`, `periodic`, `poisson`; `dependent`, where a task starts when others end, is
//! refused, because a tenant's requests do not depend on other tenants here.
//!
//! The times of a task are sorted, as that generator does. Its `time`, how long it runs, and the newest-frame-only rule
//! by which it skips requests that are late are not taken over: how long to run and what to do with late requests is
//! the scenario's to say.

use std::collections::BTreeSet;
use std::io::{BufRead, Read};

use serde::Deserialize;

use super::{
    MAX_DISB_BYTES, MAX_REQUESTS, Millis, TaskLoad, Trace, TraceError, TraceRequest, TraceTask, json_error,
    whole_file,
};

const EXPECTED: &str = "a DISB workload such as \
    {\"tasks\": [{\"id\": \"camera\", \"load\": {\"type\": \"trace\", \"trace\": [0, 33, 66]}}]}";

#[derive(Deserialize)]
struct Workload {
    tasks: Vec<Task>,
}

#[derive(Deserialize)]
struct Task {
    id: String,
    load: CheckedLoad,
}

/// As written; checked by `TryFrom` so that serde_json adds the place to what is wrong.
#[derive(Deserialize)]
struct WrittenLoad {
    r#type: String,
    trace: Option<Vec<Millis>>,
    frequency: Option<f64>,
}

#[derive(Deserialize)]
#[serde(try_from = "WrittenLoad")]
struct CheckedLoad(TaskLoad);

impl TryFrom<WrittenLoad> for CheckedLoad {
    type Error = String;
    fn try_from(written: WrittenLoad) -> Result<Self, String> {
        let rate = || match written.frequency {
            Some(rate_per_s) if rate_per_s.is_finite() && rate_per_s > 0.0 => Ok(rate_per_s),
            Some(other) => Err(format!("`frequency` is {other}, not a number of requests a second above 0")),
            None => {
                Err(format!("a load of type `{}` needs `frequency`, in requests a second", written.r#type))
            }
        };
        let load = match &written.r#type[..] {
            "continuous" => TaskLoad::Closed,
            "periodic" => TaskLoad::Periodic { rate_per_s: rate()? },
            "poisson" => TaskLoad::Poisson { rate_per_s: rate()? },
            "trace" => {
                let mut times =
                    written.trace.ok_or("a load of type `trace` needs `trace`, a list of milliseconds")?;
                if times.is_empty() {
                    return Err("`trace` lists no times".to_owned());
                }
                times.sort_by_key(|time| time.0);
                let request = |time: &Millis| TraceRequest { at: time.0, input_tokens: 0, output_tokens: 0 };
                TaskLoad::Listed(times.iter().map(request).collect())
            }
            "dependent" => return Err("a load of type `dependent` cannot be replayed".to_owned()),
            other => {
                return Err(format!("`type` is `{other}`, not trace, continuous, periodic or poisson"));
            }
        };
        Ok(Self(load))
    }
}

pub(super) fn read(file: &str, reader: &mut dyn BufRead) -> Result<Trace, TraceError> {
    let mut bytes = Vec::new();
    if let Err(error) = reader.take(MAX_DISB_BYTES as u64 + 1).read_to_end(&mut bytes) {
        return Err(whole_file(file, format!("cannot read it: {error}"), "expected a readable file"));
    }
    if bytes.len() > MAX_DISB_BYTES {
        let expected = format!("expected at most {} MiB of DISB workload", MAX_DISB_BYTES >> 20);
        return Err(whole_file(file, "the file is too large", expected));
    }
    let workload: Workload =
        serde_json::from_slice(&bytes).map_err(|error| json_error(file, 1, &error, EXPECTED))?;
    check(workload).map_err(|(problem, expected)| whole_file(file, problem, expected))
}

/// What concerns more than one task.
fn check(workload: Workload) -> Result<Trace, (String, String)> {
    if workload.tasks.is_empty() {
        return Err(("`tasks` is empty".to_owned(), format!("expected {EXPECTED}")));
    }
    let (mut names, mut requests) = (BTreeSet::new(), 0);
    for task in &workload.tasks {
        if !names.insert(&task.id) {
            let problem = format!("two tasks have the id `{}`", task.id);
            return Err((problem, "expected ids that tell the tasks apart".to_owned()));
        }
        if let TaskLoad::Listed(times) = &task.load.0 {
            requests += times.len();
        }
    }
    if requests > MAX_REQUESTS {
        return Err((format!("the tasks list {requests} times"), format!("expected at most {MAX_REQUESTS}")));
    }
    let task = |task: Task| TraceTask { name: task.id, load: task.load.0 };
    Ok(Trace { tasks: workload.tasks.into_iter().map(task).collect() })
}

#[cfg(test)]
pub(super) const SAMPLE: &str = r#"{
  "time": 2,
  "tasks": [
    {"id": "camera", "load": {"type": "trace", "trace": [5, 40, 38, 70]}, "client": {"model_name": "x", "batch_size": 1}},
    {"id": "speech", "load": {"type": "poisson", "frequency": 2.5}},
    {"id": "lidar", "load": {"type": "periodic", "frequency": 10, "priority": 0}},
    {"id": "training", "load": {"type": "continuous"}}
  ]
}"#;

#[cfg(test)]
mod tests {
    use super::super::TraceFormat::Disb;
    use super::super::tests;
    use super::*;

    #[test]
    fn all_load_types() {
        let trace = tests::read(Disb, SAMPLE.as_bytes()).unwrap();
        let names: Vec<_> = trace.tasks.iter().map(|task| &task.name[..]).collect();
        assert_eq!(names, ["camera", "speech", "lidar", "training"]);
        let TaskLoad::Listed(requests) = &trace.tasks[0].load else { panic!("{trace:?}") };
        assert_eq!(requests.iter().map(|r| r.at.0 / 1_000_000).collect::<Vec<_>>(), [5, 38, 40, 70]);
        assert_eq!(trace.tasks[1].load, TaskLoad::Poisson { rate_per_s: 2.5 });
        assert_eq!(trace.tasks[2].load, TaskLoad::Periodic { rate_per_s: 10.0 });
        assert_eq!(trace.task(Some("training")).map(|task| &task.load), Some(&TaskLoad::Closed));
        assert_eq!(trace.task(None), None);
    }

    #[test]
    fn errors_point_at_the_place() {
        let check = |load: &str, expected: &str| {
            let text = format!("{{\"tasks\": [\n{{\"id\": \"a\", \"load\":\n{load}}}]}}");
            let message = tests::read(Disb, text.as_bytes()).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
            assert!(message.contains("; expected a DISB workload such as {"), "{message}");
        };
        check(r#"{"type": "trace", "trace": [1, -2]}"#, "t:3:33: invalid value: integer `-2`");
        check(
            r#"{"type": "trace", "trace": [1, 18446744073709]}"#,
            "t:3:46: the time 18446744073709 ms is later",
        );
        check(r#"{"type": "trace", "trace": []}"#, "t:3:31: `trace` lists no times");
        check(r#"{"type": "trace"}"#, "t:3:18: a load of type `trace` needs `trace`");
        check(r#"{"type": "poisson"}"#, "t:3:20: a load of type `poisson` needs `frequency`");
        check(r#"{"type": "periodic", "frequency": 0}"#, "t:3:37: `frequency` is 0, not a number");
        check(r#"{"type": "dependent"}"#, "t:3:22: a load of type `dependent` cannot");
        check(r#"{"type": "bursts"}"#, "t:3:19: `type` is `bursts`, not trace");
    }

    #[test]
    fn tasks_are_told_apart() {
        let twice = r#"{"tasks": [{"id": "a", "load": {"type": "continuous"}}, {"id": "a", "load": {"type": "continuous"}}]}"#;
        let message = tests::read(Disb, twice.as_bytes()).unwrap_err();
        assert_eq!(message, "t: two tasks have the id `a`; expected ids that tell the tasks apart");
        assert!(tests::read(Disb, b"{\"tasks\": []}").unwrap_err().starts_with("t: `tasks` is empty; "));
    }
}
