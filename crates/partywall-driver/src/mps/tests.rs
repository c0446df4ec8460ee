//! The daemon against a stand-in for the control program: a shell script that does what the real one does, or one of
//! the things that can go wrong.

use super::*;
use std::io::{BufRead as _, Write as _};
use tempfile::TempDir;

/// `-f` is a daemon that lives until `quit`; otherwise a command is read and answered from files of the pipe directory.
const STAND_IN: &str = r#"#!/bin/sh
mode=MODE
pipe=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -v ]; then echo 'CUDA MPS Control binary version: 13000'; exit; fi
if [ "$1" = -f ]; then
    [ $mode = dies ] && { echo 'no GPU here' >&2; exit 3; }
    [ $mode = silent ] && exec sleep 600
    echo 100.0 > "$pipe/percentage"
    if [ $mode = hangs ]; then setsid sleep 600 & echo $! > "$pipe/server"; fi
    echo up > "$pipe/control"
    while [ ! -e "$pipe/quit" ]; do sleep 0.01; done
    rm "$pipe/control"
    exit
fi
read -r command argument
[ -e "$pipe/control" ] || { echo 'Cannot find MPS control daemon process'; exit 1; }
case $command in
    quit) [ $mode = hangs ] && exec sleep 600; touch "$pipe/quit";;
    get_server_list) if [ -e "$pipe/servers" ]; then cat "$pipe/servers"; fi;;
    get_client_list) cat "$pipe/clients.$argument";;
    get_default_active_thread_percentage) cat "$pipe/percentage";;
    set_default_active_thread_percentage) [ $mode = deaf ] || echo "$argument.0" > "$pipe/percentage";;
    environment) env;;
    *) echo "Unknown command $command"; exit 2;;
esac
"#;

struct StandIn {
    folder: TempDir,
    options: MpsOptions,
}

impl StandIn {
    fn new(mode: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join(CONTROL);
        // Written by another process: a program that this one holds open for writing while a test beside it forks
        // cannot be run.
        let mut writer = Command::new("sh")
            .args(["-c", "cat > \"$1\" && chmod +x \"$1\"", "sh"])
            .arg(&control)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        writer.stdin.take().unwrap().write_all(STAND_IN.replace("MODE", mode).as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
        let options = MpsOptions::new(control, folder.path());
        Self { folder, options }
    }

    /// What is left in the folder besides the program.
    fn left(&self) -> Vec<OsString> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        entries.filter(|name| name != CONTROL).collect()
    }
}

fn alive(pid: u32) -> bool {
    // A process that nobody waited for has a state of Z behind its name.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn gone(pid: u32) -> bool {
    wait_for(Duration::from_secs(20), || (!alive(pid)).then_some(())).is_some()
}

#[test]
fn a_daemon_is_started_asked_and_stopped_without_a_trace() {
    let stand_in = StandIn::new("works");
    let mut daemon = MpsDaemon::start(&stand_in.options).unwrap();
    assert!(daemon.ended().is_none());
    assert!(daemon.server_list().unwrap().is_empty());
    assert!(!daemon.is_client(4711).unwrap());
    let pipe = daemon.pipe_directory();
    std::fs::write(pipe.join("servers"), "27\n28\n").unwrap();
    std::fs::write(pipe.join("clients.27"), "").unwrap();
    std::fs::write(pipe.join("clients.28"), "4710\n4711\n").unwrap();
    assert_eq!(daemon.server_list().unwrap(), [27, 28]);
    assert_eq!(daemon.client_list(28).unwrap(), [4710, 4711]);
    assert!(daemon.is_client(4711).unwrap() && !daemon.is_client(4712).unwrap());
    assert_eq!(daemon.environment()[0], (PIPE_DIRECTORY, pipe.into_os_string()));
    daemon.set_default_active_thread_percentage(50).unwrap();
    assert_eq!(daemon.ask("get_default_active_thread_percentage").unwrap(), "50.0\n");
    let pid = daemon.pid();
    assert_eq!(daemon.stop().unwrap(), Stopped::Cleanly);
    assert!(!alive(pid));
    assert_eq!(stand_in.left(), Vec::<OsString>::new());
}

#[test]
fn a_terminal_does_not_reach_it() {
    let stand_in = StandIn::new("works");
    let daemon = MpsDaemon::start(&stand_in.options).unwrap();
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed());
    // A terminal signals the processes of its own session; this one leads another.
    assert_eq!(rustix::process::getsid(pid).ok(), pid);
}

#[test]
fn rubbish_and_refusals_are_told_with_the_command() {
    let stand_in = StandIn::new("works");
    let daemon = MpsDaemon::start(&stand_in.options).unwrap();
    let message = daemon.ask("dance").unwrap_err().to_string();
    assert!(message.contains("`dance`") && message.contains("Unknown command"), "{message}");
    std::fs::write(daemon.pipe_directory().join("servers"), "Server is not ready").unwrap();
    let message = daemon.is_client(1).unwrap_err().to_string();
    assert!(message.contains("get_server_list") && message.contains("not ready"), "{message}");
    let deaf = StandIn::new("deaf");
    let daemon = MpsDaemon::start(&deaf.options).unwrap();
    let message = daemon.set_default_active_thread_percentage(50).unwrap_err().to_string();
    assert!(message.contains("100.0"), "{message}");
}

#[test]
fn a_daemon_that_ends_at_once_says_why() {
    let stand_in = StandIn::new("dies");
    let error = MpsDaemon::start(&stand_in.options).unwrap_err();
    assert!(matches!(error, MpsError::Died { .. }));
    assert!(error.to_string().contains("no GPU here"), "{error}");
    assert_eq!(stand_in.left(), Vec::<OsString>::new());
}

#[test]
fn a_daemon_that_keeps_silent_is_given_up_and_killed() {
    let mut stand_in = StandIn::new("silent");
    stand_in.options.start_limit = Duration::from_millis(300);
    stand_in.options.stop_limit = Duration::from_millis(100);
    let error = MpsDaemon::start(&stand_in.options).unwrap_err();
    assert!(matches!(error, MpsError::NotUp { .. }), "{error}");
    assert_eq!(stand_in.left(), Vec::<OsString>::new());
}

#[test]
fn a_daemon_that_does_not_quit_is_killed_with_its_servers() {
    let mut stand_in = StandIn::new("hangs");
    stand_in.options.stop_limit = Duration::from_millis(200);
    let daemon = MpsDaemon::start(&stand_in.options).unwrap();
    let server = std::fs::read_to_string(daemon.pipe_directory().join("server")).unwrap();
    let (pid, server) = (daemon.pid(), server.trim().parse().unwrap());
    assert!(alive(pid) && alive(server));
    assert_eq!(daemon.stop().unwrap(), Stopped::Killed);
    assert!(gone(pid) && gone(server));
    assert_eq!(stand_in.left(), Vec::<OsString>::new());
}

#[test]
fn a_directory_of_a_known_name_is_cleared_and_used_again() {
    let stand_in = StandIn::new("hangs");
    let directory = stand_in.folder.path().join("mps");
    let mut options = stand_in.options.clone();
    options.stop_limit = Duration::from_millis(100);
    let daemon = MpsDaemon::start_in(&options, &directory).unwrap();
    let contact = Contact::new(&options.control, &directory, options.answer_limit);
    assert_eq!(daemon.contact(), contact);
    assert_eq!(contact.ask("get_server_list").unwrap(), "");
    let server: u32 = std::fs::read_to_string(directory.join("pipe/server")).unwrap().trim().parse().unwrap();
    // As when its owner was killed: a server and the files are left.
    process::kill_group(&daemon.child);
    let pid = daemon.pid();
    std::mem::forget(daemon);
    assert!(gone(pid) && alive(server));
    std::fs::write(directory.join("pipe/servers"), "27").unwrap();
    let second = MpsDaemon::start_in(&options, &directory).unwrap();
    assert!(gone(server), "what was left was removed");
    assert!(contact.clients().unwrap().is_empty());
    drop(second);
    assert!(matches!(contact.clients(), Err(MpsError::Program { .. })), "its directory is gone");
    assert_eq!(stand_in.left(), Vec::<OsString>::new());
    let dies = StandIn::new("dies");
    let error = MpsDaemon::start_in(&dies.options, &dies.folder.path().join("mps")).unwrap_err();
    assert!(matches!(error, MpsError::Died { .. }), "{error}");
    assert_eq!(dies.left(), Vec::<OsString>::new());
}

#[test]
fn a_daemon_that_died_is_missed() {
    let stand_in = StandIn::new("works");
    let mut daemon = MpsDaemon::start(&stand_in.options).unwrap();
    process::kill_group(&daemon.child);
    let error = wait_for(Duration::from_secs(20), || daemon.ended()).unwrap();
    assert!(matches!(error, MpsError::Died { .. }), "{error}");
    std::fs::remove_file(daemon.pipe_directory().join("control")).unwrap();
    assert!(matches!(daemon.ask("get_server_list"), Err(MpsError::NoDaemon { .. })));
    drop(daemon);
    assert_eq!(stand_in.left(), Vec::<OsString>::new());
}

#[test]
fn an_unanswered_command_ends_in_time() {
    let mut stand_in = StandIn::new("hangs");
    stand_in.options.answer_limit = Duration::from_millis(500);
    stand_in.options.stop_limit = Duration::from_millis(100);
    let daemon = MpsDaemon::start(&stand_in.options).unwrap();
    let error = daemon.ask("quit").unwrap_err();
    assert!(matches!(&error, MpsError::NoAnswer { command, .. } if command == "quit"), "{error}");
}

#[test]
fn what_limits_the_owner_does_not_limit_the_daemon() {
    let mut command = Command::new("true");
    set_environment(&mut command, Path::new("here"));
    let variable = |name: &str| command.get_envs().find(|(key, _)| *key == name).map(|(_, value)| value);
    assert_eq!(variable(PIPE_DIRECTORY), Some(Some(OsStr::new("here/pipe"))));
    assert_eq!(variable("CUDA_VISIBLE_DEVICES"), Some(None));
    assert_eq!(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), Some(None));
}

#[test]
fn what_cannot_work_is_refused_before_anything_starts() {
    let mut stand_in = StandIn::new("works");
    let long = stand_in.folder.path().join("x".repeat(90));
    std::fs::create_dir(&long).unwrap();
    stand_in.options.temporary = long;
    let error = MpsDaemon::start(&stand_in.options).unwrap_err();
    assert!(matches!(error, MpsError::PathTooLong { .. }), "{error}");
    stand_in.options.temporary = stand_in.folder.path().join("nowhere");
    assert!(matches!(MpsDaemon::start(&stand_in.options), Err(MpsError::Directory { .. })));
    stand_in.options.temporary = stand_in.folder.path().to_owned();
    stand_in.options.control = stand_in.folder.path().join("no-such-program");
    let error = MpsDaemon::start(&stand_in.options).unwrap_err();
    assert!(error.to_string().contains("no-such-program"), "{error}");
}

#[test]
fn the_program_is_found_and_tells_its_version() {
    let stand_in = StandIn::new("works");
    let path = std::env::join_paths([Path::new("/nowhere"), stand_in.folder.path()]).unwrap();
    let control = find_control(Some(&path)).unwrap();
    assert_eq!(control, stand_in.options.control);
    assert_eq!(find_control(None), None);
    assert_eq!(find_control(Some(OsStr::new("/nowhere"))), None);
    let version = control_version(&control, stand_in.folder.path(), Duration::from_secs(20));
    assert_eq!(version, Some(CudaVersion::new(13, 0)));
    let pipe = stand_in.folder.path();
    let nobody = foreign_servers(&control, pipe, pipe, Duration::from_secs(20));
    assert!(matches!(nobody, Err(MpsError::NoDaemon { .. })));
}

/// Not a test by itself: the owner that the next one kills. Reads the program's path, starts a daemon, says its process
/// id, and waits for ever.
#[test]
#[ignore = "run by the_daemon_dies_with_its_owner"]
fn owner() {
    let mut lines = std::io::stdin().lock().lines();
    let Some(Ok(control)) = lines.next() else { return };
    let temporary = Path::new(&control).parent().unwrap();
    let daemon = MpsDaemon::start(&MpsOptions::new(&control, temporary)).unwrap();
    println!("\ndaemon {}", daemon.pid());
    lines.next();
}

#[test]
fn the_daemon_dies_with_its_owner() {
    let stand_in = StandIn::new("works");
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "mps::tests::owner", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = owner.stdin.take().unwrap();
    writeln!(input, "{}", stand_in.options.control.display()).unwrap();
    let mut lines = std::io::BufReader::new(owner.stdout.take().unwrap()).lines();
    let said = lines.find_map(|line| Some(line.unwrap().strip_prefix("daemon ")?.to_owned()));
    let daemon: u32 = said.unwrap().parse().unwrap();
    assert!(alive(daemon));
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(gone(daemon));
}
