//! Measurements on a simulated GPU in which something goes wrong.

use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use super::{command, on};
use crate::measure::{entries, interrupt, processes_with};
use crate::patience::until;
use crate::{Scratch, json, text};

/// A victim and what is beside it: a tenant that is well, one that faults the GPU before it is ready, and one that does in its
/// third request.
const FAULTY: &str = r#"
rounds = 1
warmup_s = 0.02
seconds_max = 0.3
requests_wanted = 100
evidence = "shown"
walls = [{ wall = "time-slicing" }, { wall = "mps" }]
[[tenant]]
name = "victim"
class = "latency-sensitive"
built_in = "tiny-kernels"
load = { closed = { pause = "0us" } }
[[tenant]]
name = "early"
class = "best-effort"
built_in = "copies-h2d,size=1MiB"
env = { PARTYWALL_SOFTGPU_FAULT = "illegal-access-at-launch=1" }
[[tenant]]
name = "late"
class = "best-effort"
built_in = "tiny-kernels"
env = { PARTYWALL_SOFTGPU_FAULT = "illegal-access-at-launch=300" }
[[tenant]]
name = "well"
class = "best-effort"
built_in = "copies-h2d,size=1MiB"
[[pair]]
"#;

#[test]
fn a_tenant_that_faults_the_gpu_ends_its_cells_only() {
    let scratch = Scratch::new("soft-faults");
    let file = scratch.file("faulty.toml", FAULTY);
    let record = json(&on(&scratch, &["--gpu", "sim:h200", "measure", "--plan", &file, "--json"]));
    assert_eq!((&record["complete"], &record["simulated"]), (&true.into(), &true.into()));
    let rows = record["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6);
    for row in rows {
        let (error, be) = (&row["error"], row["be"].as_str().unwrap());
        if be == "well" {
            assert_eq!(error, &Value::Null, "{row}");
            assert!(row["slowdown_p50"].is_f64() && row["be_kept"].is_f64(), "{row}");
        } else {
            assert_eq!(error["kind"], "gpu-fault", "{row}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{row}");
        }
    }
}

/// Copies without a wall for a moment and then behind an MPS daemon, twenty times.
const LONG: &str = r#"
rounds = 20
warmup_s = 0.02
seconds_max = 0.1
requests_wanted = 500000
evidence = "shown"
walls = [{ wall = "mps" }]
[[tenant]]
name = "NAME"
class = "latency-sensitive"
built_in = "copy-h2d,size=64KiB"
load = { closed = { pause = "1ms" } }
[[tenant]]
name = "neighbour"
class = "best-effort"
built_in = "copies-h2d,size=1MiB"
[[pair]]
"#;

/// Clients of the MPS daemons that have their folders in `temporary`.
fn clients(temporary: &Path) -> usize {
    let names = entries(temporary).into_iter().filter(|name| name.starts_with("partywall-mps-"));
    let folders = names.map(|name| temporary.join(name).join("pipe/clients"));
    folders.filter(|folder| folder.exists()).map(|folder| entries(&folder).len()).sum()
}

/// A measurement that does not outlive a test that fails.
struct Ended(Option<Child>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn ctrl_c_leaves_no_tenant_no_mps_daemon_and_no_folder() {
    let scratch = Scratch::new("soft-interrupt");
    let word = format!("interrupted-{}", std::process::id());
    let file = scratch.file("long.toml", &LONG.replace("NAME", &word));
    let arguments = ["--gpu", "sim:h200", "measure", "--plan", &file, "--out", "out"];
    let mut command = command(&scratch, &arguments);
    let mut measurement = Ended(Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()));
    let temporary = scratch.0.join("tmp");
    // By its path, which lies in the driver folder of this test.
    let daemon = temporary.join("partywall-soft").display().to_string();
    until("a tenant is a client of an MPS daemon", || {
        clients(&temporary) > 0 && processes_with(&daemon) > 0 && processes_with(&word) > 0
    });
    let child = measurement.0.as_mut().unwrap();
    interrupt(child);
    until("it has ended", || child.try_wait().unwrap().is_some());
    let ended = measurement.0.take().unwrap().wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("nothing was written"), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stdout), "");
    assert_eq!(processes_with(&word), 0, "tenants are left");
    assert_eq!(processes_with(&daemon), 0, "an MPS daemon is left");
    assert_eq!(entries(&scratch.0.join("out")), Vec::<String>::new());
    let left = entries(&temporary);
    // The simulated GPU itself stays for the next command.
    assert!(left.len() == 1 && left[0].starts_with("partywall-soft-"), "{left:?}");
}
