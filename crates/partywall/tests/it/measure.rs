//! `partywall measure --pretend`: real processes, no GPU.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::patience::until;
use crate::{Scratch, json, partywall, refused, text};

/// A victim and an antagonist that take 0.1 and 0.2 ms, and `more`.
fn plan(scratch: &Scratch, more: &str) -> String {
    let text = format!(
        r#"rounds = 2
warmup_s = 0.005
seconds_max = 0.04
requests_wanted = 100
evidence = "shown"
stop_s = 0.3
walls = [{{ wall = "time-slicing" }}]
[[tenant]]
name = "victim"
class = "latency-sensitive"
built_in = "matmul"
load = {{ closed = {{}} }}
pretend = {{ built_in = ["--service", "100us"] }}
[[tenant]]
name = "neighbour"
class = "best-effort"
built_in = "compute"
pretend = {{ built_in = ["--service", "200us", "--asleep"] }}
{more}
[[pair]]
"#
    );
    scratch.file("small.toml", &text)
}

/// A command whose temporary directory is in `scratch`, so that its lock is its own.
fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let temporary = scratch.0.join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command.arg("measure").args(arguments).env("TMPDIR", temporary).current_dir(&scratch.0);
    command
}

fn measure(scratch: &Scratch, arguments: &[&str]) -> Output {
    command(scratch, arguments).output().unwrap()
}

pub(crate) fn entries(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[track_caller]
fn nothing_left(scratch: &Scratch) {
    assert_eq!(entries(&scratch.0.join("tmp")), Vec::<String>::new());
}

/// Processes that have `word` in their command line.
pub(crate) fn processes_with(word: &str) -> usize {
    let all =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    all.filter(|line| String::from_utf8_lossy(line).contains(word)).count()
}

#[test]
fn a_rehearsal_goes_all_the_way() {
    let scratch = Scratch::new("measure");
    let walls = r#"walls = [{ wall = "time-slicing" }, { wall = "mps-percentage", setting = "50/50" }, { wall = "green-contexts", setting = "64/68", processes = "one" }]"#;
    let file = plan(&scratch, "");
    let wider = fs::read_to_string(&file).unwrap().replace(r#"walls = [{ wall = "time-slicing" }]"#, walls);
    fs::write(&file, wider).unwrap();
    // Of one that was killed: it goes as well.
    fs::create_dir_all(scratch.0.join("tmp/partywall-mps-killed/pipe")).unwrap();
    let output =
        measure(&scratch, &["--pretend", "--plan", &file, "--out", "out", "--name", "first", "--json"]);
    let record = json(&output);
    assert_eq!(record["format"], "partywall-measure-1");
    assert_eq!(
        (&record["pretended"], &record["complete"], &record["simulated"]),
        (&true.into(), &true.into(), &false.into())
    );
    assert_eq!(record["environment"]["gpu"], serde_json::Value::Null);
    let rows = record["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(row["error"], serde_json::Value::Null, "{row}");
        assert!(row["slowdown_p50"].as_f64().unwrap() > 0.0 && row["be_kept"].is_f64(), "{row}");
    }
    // Two solo, two alone, three together; the machine's folders are in none of it.
    assert_eq!(record["cells"].as_array().unwrap().len(), 7);
    assert!(!text(&output.stdout).contains(&scratch.0.display().to_string()));
    assert_eq!(fs::read(scratch.0.join("out/first.json")).unwrap(), output.stdout);
    assert_eq!(entries(&scratch.0.join("out")), ["first.html", "first.json"]);
    nothing_left(&scratch);

    let shown = text(&measure(&scratch, &["--pretend", "--plan", &file]).stdout);
    assert!(shown.contains("victim beside neighbour") && shown.contains("mps-percentage"), "{shown}");
    let first = scratch.0.join("out/first.json").display().to_string();
    let compared = text(&partywall(&["measure", "compare", &first, &first]).stdout);
    assert!(
        compared.contains("are the same") && compared.contains("green-contexts 64/68 (one)"),
        "{compared}"
    );
    let compared = json(&partywall(&["measure", "compare", &first, &first, "--json"]));
    assert_eq!(compared["rows"][0]["ratio_p50"], 1.0);
}

#[test]
fn a_tenant_that_goes_wrong_ends_its_cells_only() {
    let scratch = Scratch::new("measure-faults");
    let bad = |name: &str, options: &str| {
        format!(
            "[[tenant]]\nname = \"{name}\"\nclass = \"best-effort\"\nbuilt_in = \"l2\"\npretend = {options}\n"
        )
    };
    let more = [
        bad("dies", r#"{ built_in = ["--fault", "die@3"] }"#),
        bad("hangs", r#"{ built_in = ["--fault", "hang@3"] }"#),
        bad("raves", r#"{ built_in = ["--fault", "rubbish@3"] }"#),
        bad("errs", r#"{ built_in = ["--wrong-result"] }"#),
        bad("talks", r#"{ command = ["sh", "-c", "echo loading weights; sleep 60"] }"#),
        bad("absent", r#"{ command = ["no-such-program-anywhere"] }"#),
    ];
    let file = plan(&scratch, &more.concat());
    let record = json(&measure(&scratch, &["--pretend", "--plan", &file, "--json"]));
    let row =
        |be: &str| record["rows"].as_array().unwrap().iter().find(|row| row["be"] == be).unwrap().clone();
    let error = |be: &str| {
        (row(be)["error"]["kind"].clone(), row(be)["error"]["message"].as_str().unwrap().to_owned())
    };
    let expected = [
        ("dies", "died", "was ended by signal 9"),
        ("hangs", "hung", "did not end its run within 300ms"),
        ("raves", "rubbish", "not a line of the protocol: `this line is not of the protocol"),
        ("errs", "wrong-result", "errs: "),
        ("talks", "rubbish", "`loading weights`"),
        ("absent", "died", "`no-such-program-anywhere`"),
    ];
    for (be, kind, part) in expected {
        let (found, message) = error(be);
        assert_eq!(found, kind, "{be}: {message}");
        assert!(message.contains(part), "{be}: {message}");
    }
    assert_eq!(row("neighbour")["error"], serde_json::Value::Null);
    assert_eq!(record["complete"], true);
    nothing_left(&scratch);
}

/// A measurement of hours, with tenants that have `word` in their command lines; returns when they are there.
fn endless(scratch: &Scratch, word: &str) -> Child {
    let file = plan(scratch, "");
    let renamed = fs::read_to_string(&file).unwrap().replace("victim", word);
    fs::write(&file, renamed).unwrap();
    let arguments =
        ["--pretend", "--plan", &file, "--seconds", "3600", "--requests", "500000", "--out", "out"];
    let mut command = command(scratch, &arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("the tenants are there", || processes_with(word) >= 1);
    child
}

pub(crate) fn interrupt(child: &Child) {
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
}

#[test]
fn a_second_measurement_is_refused_and_ctrl_c_leaves_nothing() {
    let scratch = Scratch::new("measure-two");
    let word = format!("marked-{}", std::process::id());
    let first = endless(&scratch, &word);
    let other = Scratch::new("measure-other");
    let file = plan(&other, "");
    let second = measure(&scratch, &["--pretend", "--plan", &file]);
    let message = text(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{message}");
    assert!(message.contains("another `partywall measure` is at work"), "{message}");
    assert!(message.contains(&format!("process {}", first.id())), "{message}");
    interrupt(&first);
    let ended = first.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("nothing was written"));
    assert_eq!(text(&ended.stdout), "");
    assert_eq!(processes_with(&word), 0, "tenants are left");
    assert_eq!(entries(&scratch.0.join("out")), Vec::<String>::new());
    nothing_left(&scratch);
}

#[test]
fn tenants_do_not_outlive_a_killed_measurement() {
    let scratch = Scratch::new("measure-killed");
    let word = format!("orphan-{}", std::process::id());
    let mut first = endless(&scratch, &word);
    first.kill().unwrap();
    first.wait().unwrap();
    until("the tenants have ended", || processes_with(&word) == 0);
    // The lock was the process's.
    let file = plan(&scratch, "");
    assert!(measure(&scratch, &["--pretend", "--plan", &file]).status.success());
}

#[test]
fn a_time_limit_leaves_a_result_that_says_so() {
    let scratch = Scratch::new("measure-limit");
    let file = plan(&scratch, "");
    let record = json(&measure(&scratch, &["--pretend", "--plan", &file, "--time-limit", "1ms", "--json"]));
    assert_eq!(record["complete"], false);
    assert_eq!(record["rows"][0]["error"]["kind"], "skipped");
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_starts() {
    let scratch = Scratch::new("measure-refused");
    let file = scratch.file("wrong.toml", "walls = [{ wall = \"mpz\" }]\n");
    refused(
        &["measure", "--pretend", "--plan", &file],
        &["wrong.toml:1:19", "did you mean `mps`?", "--plan-example"],
    );
    refused(&["measure", "--pretend", "--victims", "resnet"], &["no victim `resnet`", "tiny-kernels"]);
    refused(&["measure", "--pretend", "--walls", "mig"], &["does not have the wall `mig`", "--plan FILE"]);
    refused(
        &["measure", "--pretend", "--walls", "foo"],
        &["`foo` is no wall; choose one of time-slicing, mps, "],
    );
    refused(
        &["measure", "--pretend", "--walls", "mps,mps-static"],
        &["`mps-static` cannot be measured", "choose one of time"],
    );
    refused(&["measure", "--pretend", "--seconds", "0"], &["--seconds 0 is out of range"]);
    refused(&["measure", "--pretend", "--time-limit", "0s"], &["--time-limit 0s", "such as 30min"]);
    refused(&["measure", "--pretend", "--time-limit", "5"], &["`5` has no unit"]);
    refused(&["measure", "--pretend", "--requests", "0"], &["--requests 0 is out of range"]);
    refused(&["measure", "--pretend", "--name", "../x"], &["`../x` cannot name a result"]);
    let other = scratch.file("other.json", "{\"format\": \"partywall-measure-0\"}");
    refused(&["measure", "compare", &other, &other], &["other.json:1:13", "partywall-measure-1"]);
    let example = text(&partywall(&["measure", "--plan-example"]).stdout);
    let file = scratch.file("example.toml", &example);
    // It has a command that is not here; the plan itself is right.
    refused(&["measure", "--pretend", "--plan", &file, "--victims", "nobody"], &["it has camera"]);
}

#[test]
fn without_gpu_it_says_what_is_missing() {
    if Path::new("/dev/nvidiactl").exists() {
        return;
    }
    let scratch = Scratch::new("measure-no-gpu");
    let output = measure(&scratch, &["--quick"]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.contains("nothing to measure on")
            && message.contains("--pretend")
            && message.contains("demo"),
        "{message}"
    );
    nothing_left(&scratch);
}

#[test]
fn sides_are_rehearsed_and_shown() {
    let scratch = Scratch::new("measure-sides");
    let file = format!("{}/sides.toml", crate::recorded("workloads/plans"));
    let arguments =
        ["--pretend", "--plan", &file, "--seconds", "0.05", "--requests", "30", "--out", "out", "--json"];
    let record = json(&measure(&scratch, &arguments));
    let rows = record["rows"].as_array().unwrap();
    // Two networks beside two neighbours, with memory of a side and with memory as it is.
    assert_eq!(rows.len(), 8);
    for row in rows {
        assert_eq!((&row["wall"], &row["error"]), (&"sides".into(), &serde_json::Value::Null), "{row}");
        assert!(row["be_kept"].is_f64() && row["be_kept_of_part"].is_f64(), "{row}");
    }
    let count = |kind: &str, setting: &str| {
        let of = |cell: &&serde_json::Value| cell["kind"] == kind && cell["setting"] == setting;
        record["cells"].as_array().unwrap().iter().filter(of).count()
    };
    // All of them also alone on their side, with either.
    assert_eq!((count("alone", "private"), count("alone", "plain"), count("solo", "")), (4, 4, 4));
    let names: Vec<&String> = record["summary"].as_object().unwrap().keys().collect();
    assert!(names.iter().any(|name| *name == "gpt-b1.mixer.sides.private"), "{names:?}");
    let written = scratch.0.join("out/sides.json").display().to_string();
    let shown =
        partywall(&["measure", "show", &written, "--out", &scratch.0.join("page").display().to_string()]);
    assert!(text(&shown.stdout).contains("sides private"), "{}", text(&shown.stderr));
    let page = fs::read_to_string(scratch.0.join("page/sides.html")).unwrap();
    assert!(page.contains("sides") && page.contains("plain"), "the page lacks the wall");
    let again = partywall(&["measure", "compare", &written, &written]);
    assert!(text(&again.stdout).contains("are the same"), "{}", text(&again.stderr));
    nothing_left(&scratch);
}

/// The plans of the repository are right, and their built-in tenants exist.
#[test]
fn the_plans_of_the_repository_can_be_rehearsed() {
    let folder = crate::recorded("workloads/plans");
    let plans = entries(Path::new(&folder));
    assert!(plans.len() >= 2, "{plans:?}");
    for plan in plans {
        let scratch = Scratch::new(&format!("measure-plan-{plan}"));
        let file = format!("{folder}/{plan}");
        let record =
            json(&measure(&scratch, &["--pretend", "--plan", &file, "--time-limit", "1ms", "--json"]));
        assert!(!record["rows"].as_array().unwrap().is_empty(), "{plan}");
        for tenant in record["tenants"].as_array().unwrap().iter().filter(|one| one["program"] == "built-in")
        {
            let name = tenant["command"][0].as_str().unwrap();
            let class = if tenant["class"] == "best-effort" { "be" } else { "ls" };
            let (name, size) =
                name.split_once(',').map_or((name, String::new()), |(n, s)| (n, format!(",{s}")));
            // With a second one of the same name, arguments are refused after each was understood.
            let spec = format!("{name}:{class}{size}");
            refused(&["tenant", &spec, &spec], &["two tenants are called"]);
        }
    }
}
