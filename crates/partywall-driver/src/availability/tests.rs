//! Made-up surveys, one case each for what a wall can lack.

use super::*;
use crate::mig::{Instance, MigMode};
use crate::nvml::{DriverVersion, Gpm, Pcie, Process};
use crate::survey::{CudaProblem, Driver, Host, Mig, Mps, Rights};

fn instance(profile: &str) -> Instance {
    Instance {
        uuid: format!("MIG-{profile}"),
        profile: profile.to_owned(),
        gpu_instance: 1,
        compute_instance: 0,
        sms: Some(60),
        memory_mib: None,
    }
}

fn h200(index: u32) -> Gpu {
    Gpu {
        index,
        name: "NVIDIA H200".to_owned(),
        id: Some("h200".to_owned()),
        uuid: None,
        architecture: Some("Hopper".to_owned()),
        compute_capability: Some((9, 0)),
        visible: Some(true),
        sms: Some(132),
        sides: Some(2),
        memory_mib: Some(143_771),
        memory_used_mib: Some(0),
        pcie: Pcie::default(),
        power_limit_w: Some(700.0),
        sm_clock_max_mhz: Some(1980),
        compute_mode: Some(ComputeMode::Default),
        persistence: Some(true),
        mig: Mig {
            mode: Some(MigMode { enabled: false, enabled_after_reset: false }),
            instances: Vec::new(),
            half: Some("3g.71gb".to_owned()),
        },
        green_contexts: None,
        gpm: Gpm::Readable,
        processes: Vec::new(),
        untold: Vec::new(),
    }
}

/// One H200 as it was measured: R580, MIG off, the control program there.
fn machine() -> Survey {
    Survey {
        driver: Driver {
            version: Some(DriverVersion::try_from("580.159.04".to_owned()).unwrap()),
            cuda: Some(CudaVersion::new(13, 0)),
            device_files: true,
            kernel_module: true,
            ..Driver::default()
        },
        gpus: vec![h200(0)],
        mps: Mps {
            control: Some(CONTROL.into()),
            control_cuda: Some(CudaVersion::new(13, 0)),
            daemon: ForeignDaemon::None,
        },
        rights: Rights { root: false, temporary_writable: true, counters_restricted: None },
        host: Host::default(),
    }
}

fn changed(change: impl FnOnce(&mut Survey)) -> Survey {
    let mut survey = machine();
    change(&mut survey);
    survey
}

/// The wall can be built, with a note that has `part` (or none, for "").
#[track_caller]
fn available(wall: Wall, survey: &Survey, part: &str) {
    match of(wall, survey) {
        Availability::Available { note } => {
            let note = note.unwrap_or_default();
            assert!(note.contains(part) && note.is_empty() == part.is_empty(), "{wall}: {note}");
        }
        missing => panic!("{wall}: {missing:?}"),
    }
}

/// The wall cannot be built: why has the one part, what would help the other.
#[track_caller]
fn missing(wall: Wall, survey: &Survey, because: &str, help: &str) {
    match of(wall, survey) {
        Availability::Missing { why, what_would_help } => {
            assert!(why.contains(because), "{wall}: {why}");
            assert!(what_would_help.contains(help), "{wall}: {what_would_help}");
        }
        available => panic!("{wall}: {available:?}"),
    }
}

#[test]
fn the_machine_that_was_measured() {
    let survey = machine();
    let shared = [Wall::TimeSlicing, Wall::Mps, Wall::MpsPercentage, Wall::Partywall];
    for wall in [Wall::Exclusive, Wall::StreamPriority].into_iter().chain(shared) {
        available(wall, &survey, "");
    }
    available(Wall::GreenContexts, &survey, "between processes under MPS");
    missing(Wall::MpsStatic, &survey, "this is R580", "R590");
    missing(Wall::Mig, &survey, "MIG is disabled", "`nvidia-smi mig -i 0 -cgi 3g.71gb,3g.71gb -C`");
    available(Wall::Sides, &survey, "around programs that take part");
}

#[test]
fn a_newer_driver_brings_partitions() {
    let newer = |control| {
        changed(|survey| {
            survey.driver.version = Some(DriverVersion::try_from("590.44".to_owned()).unwrap());
            survey.mps.control_cuda = control;
        })
    };
    available(Wall::MpsStatic, &newer(Some(CudaVersion::new(13, 1))), "does not measure it yet");
    available(Wall::MpsStatic, &newer(None), "does not measure it yet");
    missing(Wall::MpsStatic, &newer(Some(CudaVersion::new(13, 0))), "for 13.0", "control program");
    missing(Wall::MpsStatic, &changed(|survey| survey.driver.version = None), "does not tell", "R590");
}

#[test]
fn compute_modes_keep_processes_out() {
    let mode = |mode, processes: &[u32]| {
        changed(|survey| {
            survey.gpus[0].compute_mode = Some(mode);
            survey.gpus[0].processes = processes
                .iter()
                .map(|&pid| Process { pid, name: Some("trainer".to_owned()), memory: None })
                .collect();
        })
    };
    let free = mode(ComputeMode::ExclusiveProcess, &[]);
    missing(Wall::TimeSlicing, &free, "a second process is refused", "nvidia-smi -i 0 -c DEFAULT");
    for wall in [Wall::Exclusive, Wall::StreamPriority, Wall::Mps, Wall::MpsPercentage] {
        available(wall, &free, "");
    }
    let held = mode(ComputeMode::ExclusiveProcess, &[42, 43]);
    for wall in [Wall::Exclusive, Wall::StreamPriority, Wall::Mps, Wall::GreenContexts] {
        missing(wall, &held, "trainer (process 42) and 1 more holds the GPU", "end that process");
    }
    let prohibited = mode(ComputeMode::Prohibited, &[]);
    for wall in [Wall::Exclusive, Wall::TimeSlicing, Wall::Mps, Wall::MpsStatic, Wall::GreenContexts] {
        missing(wall, &prohibited, "prohibited", "-c DEFAULT");
    }
    available(
        Wall::TimeSlicing,
        &mode(ComputeMode::Default, &[42]),
        "trainer (process 42) computes on it now",
    );
}

#[test]
fn what_mps_needs() {
    let without = changed(|survey| survey.mps.control = None);
    for wall in [Wall::Mps, Wall::MpsPercentage] {
        missing(wall, &without, "nvidia-cuda-mps-control is not on the PATH", "driver");
    }
    available(
        Wall::GreenContexts,
        &without,
        "in one process only; between processes it needs MPS, but nvidia-cuda",
    );
    let contained = changed(|survey| {
        survey.mps.control = None;
        survey.host.container = Some("docker".to_owned());
    });
    missing(Wall::Mps, &contained, "not on the PATH", "into the container");
    let full = changed(|survey| survey.rights.temporary_writable = false);
    missing(Wall::Mps, &full, "no private directory", "TMPDIR");
    let running = changed(|survey| survey.mps.daemon = ForeignDaemon::Running { servers: 1 });
    available(Wall::Mps, &running, "is left alone");
    let unclear = changed(|survey| {
        survey.mps.daemon = ForeignDaemon::Unclear { why: "it hangs".to_owned() };
    });
    available(Wall::MpsPercentage, &unclear, "it hangs");
    let pascal = changed(|survey| survey.gpus[0].compute_capability = Some((6, 1)));
    missing(Wall::MpsPercentage, &pascal, "this GPU has 6.1", "Volta");
    missing(Wall::MpsStatic, &pascal, "needs compute capability 8.0", "Ampere");
    available(Wall::Mps, &pascal, "");
}

#[test]
fn what_green_contexts_need() {
    let old = changed(|survey| survey.driver.cuda = Some(CudaVersion::new(12, 2)));
    missing(Wall::GreenContexts, &old, "this driver has 12.2", "R550");
    missing(Wall::GreenContexts, &changed(|survey| survey.driver.cuda = None), "does not tell", "R550");
}

#[test]
fn mig_in_its_states() {
    let state = |mode: Option<(bool, bool)>, profiles: &[&str], slice| {
        changed(|survey| {
            let mode = mode.map(|(enabled, after)| MigMode { enabled, enabled_after_reset: after });
            survey.gpus[0].mig.mode = mode;
            survey.gpus[0].mig.instances = profiles.iter().map(|profile| instance(profile)).collect();
            survey.host.mig_slice = slice;
        })
    };
    missing(Wall::Mig, &state(None, &[], false), "has no MIG", "H100");
    missing(Wall::Mig, &state(Some((false, true)), &[], false), "by the next reset", "-mig 1");
    let empty = state(Some((true, true)), &[], false);
    for wall in [Wall::Mig, Wall::Exclusive, Wall::TimeSlicing, Wall::Mps] {
        missing(wall, &empty, "no instance exists", "partywall never does");
    }
    missing(Wall::Mig, &state(Some((true, true)), &["7g.141gb"], false), "two tenants need two", "-cgi");
    let two = state(Some((true, true)), &["3g.71gb", "3g.71gb"], false);
    available(Wall::Mig, &two, "instances: 3g.71gb, 3g.71gb");
    available(Wall::Mps, &two, "inside one MIG instance");
    let slice = state(Some((true, true)), &["3g.71gb"], true);
    missing(Wall::Mig, &slice, "given one MIG instance", "visible");
    available(Wall::GreenContexts, &slice, "inside one MIG instance; in one process");
}

#[test]
fn sides_by_what_the_catalogue_knows() {
    let sides = |sides| changed(|survey| survey.gpus[0].sides = sides);
    missing(Wall::Sides, &sides(Some(1)), "one side", "H200");
    missing(Wall::Sides, &sides(None), "not known", "partywall vram map");
    let without = changed(|survey| survey.mps.control = None);
    missing(Wall::Sides, &without, "nvidia-cuda-mps-control is not on the PATH", "driver");
    let old = changed(|survey| survey.driver.cuda = Some(CudaVersion::new(12, 2)));
    missing(Wall::Sides, &old, "this driver has 12.2", "R550");
}

#[test]
fn without_cuda_nothing_runs() {
    let broken = |library_missing, container: Option<&str>| {
        changed(|survey| {
            let why = "libcuda.so.1 it is".to_owned();
            survey.driver.cuda_problem = Some(CudaProblem { why, library_missing });
            survey.host.container = container.map(str::to_owned);
        })
    };
    for wall in [Wall::Exclusive, Wall::StreamPriority, Wall::TimeSlicing, Wall::Mps, Wall::GreenContexts] {
        missing(wall, &broken(true, None), "libcuda.so.1 it is", "install the CUDA part");
        missing(wall, &broken(true, Some("docker")), "libcuda", "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
        missing(wall, &broken(false, Some("docker")), "libcuda", "a driver that works");
        let hidden = changed(|survey| survey.gpus[0].visible = Some(false));
        missing(wall, &hidden, "does not list", "CUDA_VISIBLE_DEVICES");
    }
}

#[test]
fn gpus_that_differ_are_told_apart() {
    let two = changed(|survey| {
        let mut second = h200(1);
        second.compute_mode = Some(ComputeMode::ExclusiveProcess);
        survey.gpus.push(second);
    });
    available(Wall::TimeSlicing, &two, "only on GPU 0");
    available(Wall::Mps, &two, "");
    missing(Wall::Mig, &two, "MIG is disabled", "-i 0");
}

#[test]
fn a_machine_without_gpus_says_what_is_missing() {
    let none = |device_files, kernel_module, container: Option<&str>, problem: Option<&str>| {
        changed(|survey| {
            survey.gpus.clear();
            survey.driver = Driver {
                device_files,
                kernel_module,
                nvml_problem: problem.map(str::to_owned),
                ..Driver::default()
            };
            survey.host.container = container.map(str::to_owned);
        })
    };
    let lib = Some("cannot load libnvidia-ml.so.1");
    let cases = [
        (none(false, false, None, lib), "no NVIDIA GPU or driver: cannot load libnvidia-ml.so.1", "driver"),
        (none(true, true, Some("docker"), lib), "libraries are not", "NVIDIA Container Toolkit"),
        (none(false, true, Some("docker"), lib), "given no GPU", "--gpus all"),
        (none(true, true, None, lib), "libraries cannot be used", "same driver version"),
        (none(false, true, None, None), "shows no GPU", "nvidia-smi"),
        (none(false, true, Some("kubernetes"), None), "shows no GPU", "nvidia.com/gpu"),
    ];
    for (survey, because, help) in cases {
        for wall in Wall::ALL {
            missing(wall, &survey, because, help);
        }
    }
    assert_eq!(absence(&machine()), None);
}

#[test]
fn programs_read_the_same() {
    let text = serde_json::to_string(&of(Wall::MpsStatic, &machine())).unwrap();
    assert!(text.starts_with("{\"state\":\"not-available\",\"why\":"), "{text}");
    let text = serde_json::to_string(&of(Wall::Mps, &machine())).unwrap();
    assert_eq!(text, "{\"state\":\"available\",\"note\":null}");
}
