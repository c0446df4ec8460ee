//! Driver folders, and the stand-in for the control program of MPS as the MPS module uses it.

use super::*;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use partywall_core::catalogue::Catalogue;
use proptest::prelude::*;
use tempfile::TempDir;

use crate::clock::wait_for;
use crate::library::CudaVersion;
use crate::mps::{MpsDaemon, MpsError, MpsOptions, ServerStatus, Stopped, control_version, find_control};

/// A folder with something under the library's name, and a driver folder that leads to it.
fn made(id: &str) -> (TempDir, SoftDriver) {
    let scratch = tempfile::tempdir().unwrap();
    let library = scratch.path().join("libpartywall_softgpu.so");
    fs::write(&library, "no library").unwrap();
    let gpu = Catalogue::builtin().unwrap().get(id).unwrap();
    let driver = SoftDriver::make(gpu, &library, scratch.path()).unwrap();
    (scratch, driver)
}

#[test]
fn a_folder_has_what_a_driver_installs() {
    let (scratch, driver) = made("h200");
    let library = fs::canonicalize(scratch.path().join("libpartywall_softgpu.so")).unwrap();
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        assert_eq!(fs::read_link(driver.folder().join(name)).unwrap(), library);
    }
    let device: SoftGpu =
        serde_json::from_str(&fs::read_to_string(driver.folder().join(FILE)).unwrap()).unwrap();
    assert_eq!((device.name.as_str(), device.gpu.id.as_str()), ("NVIDIA H200 (simulated)", "h200"));
    assert_eq!(find_control(Some(driver.folder().as_os_str())), Some(driver.folder().join(CONTROL)));
    assert_eq!(fs::metadata(driver.folder()).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn what_a_program_finds_is_in_the_first_folder_with_the_library() {
    let (scratch, driver) = made("h200");
    let (_other, l4) = made("l4");
    let real = scratch.path().join("real");
    let empty = scratch.path().join("empty");
    for folder in [&real, &empty] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(real.join(library::LIBRARY), "a driver").unwrap();
    let find = |folders: &[&Path]| {
        let path = std::env::join_paths(folders).unwrap();
        found(|name| (name == LIBRARY_PATH).then(|| path.clone()))
    };
    assert_eq!(found(|_| None), None);
    assert_eq!(find(&[&empty]), None);
    assert_eq!(find(&[&empty, driver.folder(), l4.folder(), &real]).as_deref(), Some("h200"));
    assert_eq!(find(&[&real, driver.folder()]), None);
}

#[test]
fn making_it_again_changes_what_is_out_of_date_and_nothing_else() {
    let (scratch, driver) = made("l4");
    let about = |name: &str| fs::symlink_metadata(driver.folder().join(name)).unwrap().ino();
    let names = [FILE, CONTROL, "libcuda.so.1"];
    let before = names.map(about);
    fs::write(driver.folder().join("device"), "state").unwrap();
    let gpu = Catalogue::builtin().unwrap().get("l4").unwrap();
    let library = scratch.path().join("libpartywall_softgpu.so");
    assert_eq!(SoftDriver::make(gpu, &library, scratch.path()).unwrap(), driver);
    assert_eq!(names.map(about), before);
    let other = scratch.path().join("other.so");
    fs::write(&other, "").unwrap();
    fs::write(driver.folder().join(FILE), "{").unwrap();
    SoftDriver::make(gpu, &other, scratch.path()).unwrap();
    assert!(fs::read_link(driver.folder().join("libcuda.so.1")).unwrap().ends_with("other.so"));
    assert!(fs::read_to_string(driver.folder().join(FILE)).unwrap().contains("NVIDIA L4 (simulated)"));
    assert_eq!(fs::read_to_string(driver.folder().join("device")).unwrap(), "state");
    // Nothing is left of what was made beside its place.
    assert_eq!(fs::read_dir(driver.folder()).unwrap().count(), 5);
}

#[test]
fn a_folder_that_others_can_reach_is_refused() {
    let (scratch, driver) = made("l4");
    let gpu = Catalogue::builtin().unwrap().get("l4").unwrap();
    let library = scratch.path().join("libpartywall_softgpu.so");
    fs::set_permissions(driver.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let error = SoftDriver::make(gpu, &library, scratch.path()).unwrap_err();
    assert!(matches!(&error, SoftError::NotOurs { path } if path == driver.folder()), "{error}");
    fs::remove_dir_all(driver.folder()).unwrap();
    symlink(scratch.path(), driver.folder()).unwrap();
    assert!(matches!(SoftDriver::make(gpu, &library, scratch.path()), Err(SoftError::NotOurs { .. })));
    let nowhere = scratch.path().join("nowhere");
    let error = SoftDriver::make(gpu, &library, &nowhere).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn the_library_is_found_where_cargo_and_packages_put_it() {
    let scratch = tempfile::tempdir().unwrap();
    let file = "libpartywall_softgpu.so";
    let at = |path: &str| scratch.path().join(path);
    for folder in ["target/deps", "target/examples", "usr/bin", "usr/lib/partywall", "flat"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    let error = find_library(LIBRARY, &at("usr/bin/partywall")).unwrap_err().to_string();
    for part in [file, "usr/bin/deps", "usr/lib/partywall", "cargo build"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    for place in ["target/deps", "usr/lib/partywall", "flat"] {
        fs::write(at(place).join(file), "").unwrap();
    }
    let cases = [
        ("target/partywall", "target/deps"),
        ("target/deps/it-0123", "target/deps"),
        ("target/examples/one", "target/deps"),
        ("usr/bin/partywall", "usr/lib/partywall"),
        ("flat/partywall", "flat"),
    ];
    for (exe, folder) in cases {
        assert_eq!(find_library(LIBRARY, &at(exe)).unwrap(), at(folder).join(file), "{exe}");
    }
    fs::write(at("target").join(file), "older").unwrap();
    assert_eq!(find_library(LIBRARY, &at("target/partywall")).unwrap(), at("target/deps").join(file));
}

#[test]
fn the_environment_puts_the_folder_first_and_says_so() {
    let (_scratch, driver) = made("h200");
    let (_other_scratch, other) = made("h200");
    let had = |name: &str| (name == "PATH").then(|| OsString::from("/usr/bin:/bin"));
    assert!(!driver.is_in_force(had));
    let set = driver.environment(had);
    let value = |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone());
    let folder = driver.folder().display().to_string();
    assert_eq!(value("LD_LIBRARY_PATH").unwrap(), OsString::from(&folder));
    assert_eq!(value("PATH").unwrap(), OsString::from(format!("{folder}:/usr/bin:/bin")));
    assert!(driver.is_in_force(value) && !other.is_in_force(value));
    let lost = |name: &str| if name == "LD_LIBRARY_PATH" { None } else { value(name) };
    assert!(!driver.is_in_force(lost), "the loader would not find the folder");
}

/// The control program, in a file that this process never held open for writing: a test beside this one that forks
/// would keep it from being run.
fn control(driver: &SoftDriver) -> MpsOptions {
    let path = driver.folder().join(CONTROL);
    let script = "cp \"$1\" \"$1.copy\" && mv \"$1.copy\" \"$1\"";
    assert!(Command::new("sh").args(["-c", script, "sh"]).arg(&path).status().unwrap().success());
    MpsOptions::new(path, driver.folder())
}

/// A process that is registered as a client, as the simulated driver does it.
struct Client(Child);

impl Client {
    fn new(daemon: &MpsDaemon) -> Self {
        let child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let started = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().to_owned();
        fs::write(daemon.pipe_directory().join("clients").join(child.id().to_string()), started).unwrap();
        Self(child)
    }
    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn the_control_program_serves_the_mps_module() {
    let (_scratch, driver) = made("h200");
    let options = control(&driver);
    let version = control_version(&options.control, &options.temporary, Duration::from_secs(20));
    assert_eq!(version, Some(CudaVersion::new(13, 0)));
    let mut daemon = MpsDaemon::start(&options).unwrap();
    assert!(daemon.ended().is_none());
    assert!(daemon.server_list().unwrap().is_empty());
    let client = Client::new(&daemon);
    let server = daemon.server_list().unwrap()[0];
    assert_eq!(daemon.client_list(server).unwrap(), [client.pid()]);
    assert!(daemon.is_client(client.pid()).unwrap() && !daemon.is_client(1).unwrap());
    // A process id that was given to another process since is no client.
    fs::write(daemon.pipe_directory().join("clients").join(std::process::id().to_string()), "1\n").unwrap();
    assert_eq!(daemon.client_list(server).unwrap(), [client.pid()]);
    let contact = daemon.contact().within(Duration::from_secs(19));
    assert_eq!(contact.server_status(server).unwrap(), ServerStatus::Active);
    assert!(contact.server_status(1).is_err());
    let (clients, faulted) =
        (daemon.pipe_directory().join("clients"), daemon.pipe_directory().join("faulted"));
    fs::copy(clients.join(client.pid().to_string()), faulted.join(client.pid().to_string())).unwrap();
    assert_eq!(contact.server_status(server).unwrap(), ServerStatus::Fault, "until it has ended");
    drop(client);
    assert_eq!(contact.server_status(server).unwrap(), ServerStatus::Active);
    assert!(daemon.client_list(server).unwrap().is_empty());
    assert_eq!(daemon.server_list().unwrap(), [server], "a server stays without clients");
    daemon.set_default_active_thread_percentage(50).unwrap();
    assert_eq!(fs::read_to_string(daemon.pipe_directory().join("percentage")).unwrap(), "50.0\n");
    assert_eq!(
        daemon.ask("ps\nget_server_status 1").map_err(|error| error.to_string().contains("1 not found")),
        Err(true)
    );
    assert_eq!(daemon.stop().unwrap(), Stopped::Cleanly);
}

#[test]
fn quit_waits_for_clients_unless_told_otherwise() {
    let (_scratch, driver) = made("h200");
    let mut options = control(&driver);
    options.answer_limit = Duration::from_millis(300);
    let mut daemon = MpsDaemon::start(&options).unwrap();
    let _client = Client::new(&daemon);
    assert!(matches!(daemon.ask("quit"), Err(MpsError::NoAnswer { .. })));
    assert!(daemon.ended().is_none());
    daemon.ask("quit -t 0").unwrap();
    assert!(wait_for(Duration::from_secs(20), || daemon.ended()).is_some());
    assert!(matches!(daemon.ask("get_server_list"), Err(MpsError::NoDaemon { .. })));
}

#[test]
fn a_daemon_that_was_killed_is_not_taken_for_one_that_lives() {
    let (_scratch, driver) = made("h200");
    let options = control(&driver);
    let mut daemon = MpsDaemon::start(&options).unwrap();
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(wait_for(Duration::from_secs(20), || daemon.ended()).is_some());
    assert!(matches!(daemon.ask("get_server_list"), Err(MpsError::NoDaemon { .. })));
    let again = Command::new(&options.control)
        .arg("-d")
        .envs(daemon.environment())
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(again.success());
    assert_eq!(daemon.ask("get_default_active_thread_percentage").unwrap(), "100.0\n");
    let second = Command::new(&options.control).arg("-f").envs(daemon.environment()).output().unwrap();
    assert!(!second.status.success() && String::from_utf8_lossy(&second.stderr).contains("already running"));
    daemon.ask("quit").unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_line_is_answered(line in "(set_default_active_thread_percentage|quit -t|get_client_list|[a-z_]{0,8}) ?[-0-9.a*/'\"$(;]{0,8}") {
        let (_scratch, driver) = made("h200");
        let pipe = driver.folder().join("pipe");
        fs::create_dir(&pipe).unwrap();
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let started = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap();
        fs::write(pipe.join("soft-mps"), format!("{} {started}", std::process::id())).unwrap();
        fs::write(pipe.join("percentage"), "100.0\n").unwrap();
        // Not a FIFO, so that whoever tells the daemon to end does not wait for it.
        let mut child = Command::new("sh").arg(driver.folder().join(CONTROL)).env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
            .stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        use std::io::Write as _;
        child.stdin.take().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        prop_assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let percentage: f64 = fs::read_to_string(pipe.join("percentage")).unwrap().trim().parse().unwrap();
        prop_assert!((0.0..=100.0).contains(&percentage), "{line}: {percentage}");
    }
}
