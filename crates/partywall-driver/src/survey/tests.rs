//! Surveys of machines made of files.

use super::*;

struct Machine(tempfile::TempDir);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self(root)
    }

    fn surroundings(&self) -> Surroundings {
        let root = self.0.path().to_owned();
        Surroundings { temporary: root.clone(), root, ..Surroundings::default() }
    }

    fn survey(&self) -> Survey {
        survey(&self.surroundings())
    }
}

fn survey(surroundings: &Surroundings) -> Survey {
    let missing = Nvml::load_from("libpartywall-is-not-there.so.1").unwrap_err();
    Survey::take(surroundings, Err(&missing), &CudaSide::default(), Catalogue::builtin().unwrap())
}

#[test]
fn a_machine_without_a_gpu() {
    let machine = Machine::new(&[
        ("proc/meminfo", "MemTotal: 2097152 kB\n"),
        ("proc/sys/kernel/osrelease", "6.8.0\n"),
        ("proc/1/cgroup", "0::/init.scope\n"),
    ]);
    let survey = machine.survey();
    assert!(survey.gpus.is_empty());
    assert!(survey.driver.nvml_problem.as_deref().unwrap().contains("is-not-there"));
    assert!(!survey.driver.kernel_module && !survey.driver.device_files);
    assert_eq!((survey.host.memory_mib, survey.host.kernel.as_deref()), (Some(2048), Some("6.8.0")));
    assert_eq!((survey.host.container, survey.mps), (None, Mps::default()));
    assert!(survey.rights.temporary_writable);
}

#[test]
fn a_container_that_was_given_a_gpu_without_its_libraries() {
    let machine = Machine::new(&[
        ("dev/nvidia0", ""),
        (".dockerenv", ""),
        ("proc/driver/nvidia/version", "NVRM version"),
        ("proc/driver/nvidia/params", "RmProfilingAdminOnly: 1\n"),
    ]);
    let survey = machine.survey();
    assert!(survey.driver.kernel_module && survey.driver.device_files);
    assert_eq!(survey.host.container.as_deref(), Some("docker"));
    assert_eq!(survey.rights.counters_restricted, Some(true));
    let text = serde_json::to_string(&survey).unwrap();
    assert_eq!(serde_json::from_str::<Survey>(&text).unwrap(), survey);
}

#[test]
fn what_the_environment_says_counts() {
    let machine = Machine::new(&[("pipe/control", ""), ("tmp/nvidia-mps/log", "")]);
    let mut surroundings = machine.surroundings();
    // A directory with files and no program to ask with: the default one is looked at too.
    assert!(matches!(survey(&surroundings).mps.daemon, ForeignDaemon::Unclear { .. }));
    surroundings.mps_pipe_directory = Some(machine.0.path().join("elsewhere"));
    assert_eq!(survey(&surroundings).mps.daemon, ForeignDaemon::None);
    surroundings.mps_pipe_directory = Some(machine.0.path().join("pipe"));
    assert!(matches!(survey(&surroundings).mps.daemon, ForeignDaemon::Unclear { .. }));
    assert!(!survey(&surroundings).host.mig_slice);
    surroundings.nvidia_visible_devices = Some("MIG-1234".to_owned());
    assert!(survey(&surroundings).host.mig_slice);
    surroundings.kubernetes = true;
    surroundings.temporary = machine.0.path().join("nowhere");
    let survey = survey(&surroundings);
    assert_eq!(survey.host.container.as_deref(), Some("kubernetes"));
    assert!(!survey.rights.temporary_writable);
}

const GRANULARITY: Granularity = Granularity { min: 8, step: 8, groups: 66, sms_per_group: 2 };

fn cuda_device(first: u8, sms: u32) -> CudaDevice {
    CudaDevice {
        uuid: Uuid([first; 16]),
        name: "NVIDIA H200".to_owned(),
        sms,
        compute_capability: (9, 0),
        memory: Some(Bytes(143_771 << 20)),
        green_contexts: Some(GRANULARITY),
        untold: None,
    }
}

#[test]
fn facts_of_nvml_cuda_and_the_catalogue_come_together() {
    let facts = DeviceFacts {
        index: 1,
        name: Some("NVIDIA H200".to_owned()),
        uuid: Some(format!("GPU-{}", Uuid([0xbb; 16]))),
        memory: Some(Bytes(143_771 << 20)),
        ..DeviceFacts::default()
    };
    let catalogue = Catalogue::builtin().unwrap();
    // CUDA's order is not NVML's.
    let devices = vec![cuda_device(0xaa, 58), cuda_device(0xbb, 132)];
    let cuda = CudaSide { devices, ..CudaSide::default() };
    let gpu = Gpu::from_facts(facts.clone(), &cuda, catalogue);
    assert_eq!((gpu.sms, gpu.green_contexts, gpu.visible), (Some(132), Some(GRANULARITY), Some(true)));
    assert_eq!((gpu.id.as_deref(), gpu.sides, gpu.memory_mib), (Some("h200"), Some(2), Some(143_771)));
    assert_eq!(gpu.mig.half.as_deref(), Some("3g.71gb"));
    assert!(!serde_json::to_string(&gpu).unwrap().contains("bbbb"));
    let hidden = CudaSide { devices: vec![cuda_device(0xaa, 58)], ..CudaSide::default() };
    assert_eq!(Gpu::from_facts(facts.clone(), &hidden, catalogue).visible, Some(false));
    let unknown = DeviceFacts { name: Some("NVIDIA Other".to_owned()), ..facts };
    let gpu = Gpu::from_facts(unknown, &CudaSide::default(), catalogue);
    assert_eq!((gpu.id, gpu.sms, gpu.sides, gpu.visible), (None, None, None, None));
}

#[test]
fn a_gpu_that_cuda_alone_knows_is_a_gpu() {
    let machine = Machine::new(&[]);
    let mut silent = cuda_device(0xcc, 132);
    silent.green_contexts = None;
    silent.untold = Some("green contexts: not here".to_owned());
    let cuda = CudaSide { devices: vec![silent], ..CudaSide::default() };
    let missing = Nvml::load_from("libpartywall-is-not-there.so.1").unwrap_err();
    let survey = Survey::take(&machine.surroundings(), Err(&missing), &cuda, Catalogue::builtin().unwrap());
    let [gpu] = &survey.gpus[..] else { panic!("{survey:?}") };
    assert_eq!((gpu.name.as_str(), gpu.sms, gpu.visible), ("NVIDIA H200", Some(132), Some(true)));
    assert_eq!(gpu.untold, ["green contexts: not here"]);
    assert!(survey.driver.nvml_problem.is_some());
}
