use super::*;
use crate::protocol::Stop;

/// Longer than anything here takes; only a failing test waits for it.
const LONG: Nanos = Nanos::from_secs(20);

fn shell(script: &str) -> Launch {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    Launch { name: "it".to_owned(), command, ..Launch::default() }
}

fn start(script: &str) -> (Processes, ProcessId) {
    let mut processes = Processes::new(Arc::default());
    let id = processes.launch(&shell(script)).unwrap();
    (processes, id)
}

fn soon(processes: &Processes) -> Nanos {
    processes.now().saturating_add(LONG)
}

#[track_caller]
fn lost(script: &str, kind: ErrorKind, parts: &[&str]) {
    let (mut processes, id) = start(script);
    let until = soon(&processes);
    let heard = processes.hear(until);
    let Heard::Lost(who, error) = heard else { panic!("{heard:?}") };
    assert_eq!((who, error.kind), (id, kind), "{}", error.message);
    for part in parts {
        assert!(error.message.contains(part), "`{part}` is not in: {}", error.message);
    }
}

#[test]
fn a_child_is_heard_and_hears() {
    let script = r#"read line; case "$line" in *stop*) echo; echo '{"failed":{"message":"stopped"}}';; esac; read line"#;
    let (mut processes, id) = start(script);
    assert_eq!(processes.hear(Nanos::ZERO), Heard::Time);
    processes.say(id, &Line::of(ToTenant::Stop(Stop { run: 3 })));
    let until = soon(&processes);
    let heard = processes.hear(until);
    assert!(
        matches!(&heard, Heard::Said(who, Line { message: FromTenant::Failed(_), .. }) if *who == id),
        "{heard:?}"
    );
    // It reads one more line, gets `exit`, and ends.
    processes.end(&[id]);
    assert!(processes.alive.is_empty());
}

#[test]
fn what_became_of_a_child_is_said() {
    lost(
        "echo first >&2; echo out of memory >&2; exit 3",
        ErrorKind::Died,
        &["it ended with exit status 3", "`out of memory`"],
    );
    lost("kill -9 $$", ErrorKind::Died, &["was ended by signal 9"]);
    lost("echo loading...; sleep 60", ErrorKind::Rubbish, &["it: not a line of the protocol: `loading...`"]);
    let long = "head -c 100000 /dev/zero | tr '\\0' x; sleep 60";
    lost(long, ErrorKind::Rubbish, &["a line of more than 65536 bytes, beginning `xxx"]);
}

#[test]
fn what_cannot_be_started_is_named() {
    let mut processes = Processes::new(Arc::default());
    let launch =
        Launch { name: "it".to_owned(), command: vec!["no-such-program".to_owned()], ..Launch::default() };
    let error = processes.launch(&launch).unwrap_err();
    assert!(error.message.starts_with("it cannot be started: `no-such-program`"), "{}", error.message);
    assert!(processes.launch(&Launch::default()).is_err());
}

#[test]
fn the_environment_is_what_was_asked_for() {
    let mut launch =
        shell(r#"echo "{\"failed\":{\"message\":\"$A-${CARGO_MANIFEST_DIR-none}\"}}"; read line"#);
    launch.set.insert("A".to_owned(), "a".to_owned());
    // Cargo sets it for tests.
    launch.unset = ["A", "CARGO_MANIFEST_DIR"].map(str::to_owned).to_vec();
    let mut processes = Processes::new(Arc::default());
    processes.launch(&launch).unwrap();
    let until = soon(&processes);
    let heard = processes.hear(until);
    assert!(
        matches!(&heard, Heard::Said(_, Line { message: FromTenant::Failed(failed), .. }) if failed.message == "a-none"),
        "{heard:?}"
    );
}

#[test]
fn nothing_is_left_of_a_group_that_does_not_end() {
    // A grandchild with the same output, and a child that ignores what it is told.
    let (mut processes, id) = start("sleep 60 & echo '{\"failed\":{\"message\":\"'$!'\"}}'; exec sleep 60");
    let until = soon(&processes);
    let Heard::Said(_, Line { message: FromTenant::Failed(failed), .. }) = processes.hear(until) else {
        panic!()
    };
    let grandchild = Pid::from_raw(failed.message.parse().unwrap()).unwrap();
    let child = processes.alive[&id].group.unwrap();
    processes.kill(id);
    assert!(rustix::process::test_kill_process(child).is_err(), "reaped");
    let gone = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", grandchild.as_raw_nonzero()));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    let until = processes.now().saturating_add(LONG);
    while !gone() {
        assert!(processes.now() < until, "the grandchild lives");
        clock::sleep(Nanos::from_millis(1));
    }
}

#[test]
fn an_interruption_is_heard_at_once() {
    let interrupted = Arc::new(AtomicBool::new(false));
    let mut processes = Processes::new(Arc::clone(&interrupted));
    interrupted.store(true, Ordering::Relaxed);
    let until = soon(&processes);
    assert_eq!(processes.hear(until), Heard::Interrupted);
}
