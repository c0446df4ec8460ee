//! The machine around the GPUs: container or not, rights, cores, memory.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Surroundings;

/// What this user may do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Rights {
    /// Whether it is root. Compute mode, MIG and clocks are root's; in a container, root may lack them all the same.
    pub root: bool,
    /// Whether a private directory can be made, which MPS needs.
    pub temporary_writable: bool,
    /// Whether the driver keeps performance counters to administrators, where it says.
    pub counters_restricted: Option<bool>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Host {
    /// Cores that this process may use.
    pub cores: Option<usize>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Which kind of container this runs in; `None` where nothing says that it does.
    pub container: Option<String>,
    /// Whether this process was given a MIG instance rather than a GPU.
    pub mig_slice: bool,
}

impl Rights {
    pub(super) fn look(surroundings: &Surroundings) -> Self {
        let parameters = read(&surroundings.root, "proc/driver/nvidia/params");
        Self {
            root: rustix::process::geteuid().is_root(),
            temporary_writable: tempfile::tempdir_in(&surroundings.temporary).is_ok(),
            counters_restricted: parameters.as_deref().and_then(counters_restricted),
        }
    }
}

impl Host {
    pub(super) fn look(surroundings: &Surroundings) -> Self {
        let root = &surroundings.root;
        let hints = Hints {
            kubernetes: surroundings.kubernetes,
            docker: root.join(".dockerenv").exists(),
            podman: root.join("run/.containerenv").exists(),
            cgroup: read(root, "proc/1/cgroup").unwrap_or_default(),
        };
        let devices = [&surroundings.cuda_visible_devices, &surroundings.nvidia_visible_devices];
        Self {
            cores: std::thread::available_parallelism().ok().map(usize::from),
            memory_mib: read(root, "proc/meminfo").as_deref().and_then(memory_mib),
            kernel: read(root, "proc/sys/kernel/osrelease").map(|release| release.trim().to_owned()),
            container: container(&hints).map(str::to_owned),
            mig_slice: devices.into_iter().flatten().any(|devices| devices.trim().starts_with("MIG-")),
        }
    }
}

/// Whether GPUs show as device files: `nvidia0` and so on, or the files of a Jetson module.
pub(super) fn device_files(root: &Path) -> bool {
    let entries = std::fs::read_dir(root.join("dev")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| is_gpu(&name))
}

fn is_gpu(name: &str) -> bool {
    let number = name
        .strip_prefix("nvidia")
        .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|character| character.is_ascii_digit()));
    number || name == "nvhost-gpu" || name == "nvgpu"
}

/// What hints at a container.
#[derive(Debug, Default)]
struct Hints {
    kubernetes: bool,
    docker: bool,
    podman: bool,
    /// The control groups of process 1.
    cgroup: String,
}

fn container(hints: &Hints) -> Option<&'static str> {
    const WORDS: [(&str, &str); 7] = [
        ("kubepods", "kubernetes"),
        ("docker", "docker"),
        ("libpod", "podman"),
        ("crio", "cri-o"),
        ("containerd", "containerd"),
        ("lxc", "lxc"),
        ("machine.slice", "systemd-nspawn"),
    ];
    let word = || WORDS.iter().find(|(word, _)| hints.cgroup.contains(word)).map(|(_, name)| *name);
    // A machine's own process 1 is in `/init.scope` or, with the older hierarchy, in several groups; in a container with
    // a cgroup namespace it is in the root.
    let rooted = || (hints.cgroup.trim() == "0::/").then_some("of some kind");
    match hints {
        Hints { kubernetes: true, .. } => Some("kubernetes"),
        Hints { podman: true, .. } => Some("podman"),
        Hints { docker: true, .. } => Some("docker"),
        _ => word().or_else(rooted),
    }
}

/// `MemTotal:  131890336 kB`, in MiB.
fn memory_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib >> 10)
}

/// `RmProfilingAdminOnly: 1`.
fn counters_restricted(parameters: &str) -> Option<bool> {
    let value = parameters.lines().find_map(|line| line.strip_prefix("RmProfilingAdminOnly:"))?;
    match value.trim() {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn read(root: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(root.join(file)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn containers_by_what_hints_at_them() {
        let cgroup = |text: &str| Hints { cgroup: text.to_owned(), ..Hints::default() };
        let cases = [
            (Hints::default(), None),
            (cgroup("0::/init.scope\n"), None),
            (cgroup("0::/\n"), Some("of some kind")),
            (cgroup("12:cpu:/docker/0123\n"), Some("docker")),
            (cgroup("1:name=systemd:/kubepods/besteffort/pod1/0123\n"), Some("kubernetes")),
            (cgroup("0::/machine.slice/libpod-0123.scope\n"), Some("podman")),
            (Hints { docker: true, ..cgroup("0::/\n") }, Some("docker")),
            (Hints { docker: true, kubernetes: true, ..Hints::default() }, Some("kubernetes")),
        ];
        for (hints, expected) in cases {
            assert_eq!(container(&hints), expected, "{hints:?}");
        }
    }

    #[test]
    fn what_files_say() {
        assert_eq!(memory_mib("MemFree: 1 kB\nMemTotal:       131890336 kB\n"), Some(128_799));
        assert_eq!(counters_restricted("Foo: 1\nRmProfilingAdminOnly: 1\n"), Some(true));
        assert_eq!(counters_restricted("RmProfilingAdminOnly: 0\n"), Some(false));
        assert_eq!(counters_restricted(""), None);
        for (name, gpu) in [("nvidia0", true), ("nvidia12", true), ("nvidiactl", false), ("nvidia", false)] {
            assert_eq!(is_gpu(name), gpu, "{name}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_file_can_be_read(text in "\\PC{0,30}|MemTotal: {0,2}[0-9]{0,22} ?k?B?\n|RmProfilingAdminOnly:.{0,3}") {
            // Numbers beyond 64 bits and missing units are no memory at all, and never a panic.
            prop_assert!(memory_mib(&text).is_none() || text.contains("kB"));
            prop_assert!(counters_restricted(&text).is_none() || text.contains(['0', '1']));
        }
    }
}
