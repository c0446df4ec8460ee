use std::os::unix::fs::PermissionsExt as _;

use super::*;

const H200: Split = Split { groups: 66, sms_per_group: 2 };

/// Groups 0, 3 and 4 are on the first side.
fn looked() -> Looked {
    let group = |second| Group { side: Side::second(second), middle_cycles: 400.0 };
    let groups = [false, true, true, false, false, true].map(group).to_vec();
    let scale = Scale { groups, far_cycles: 190.0, deviation_cycles: 8.0, separation: 20.0 };
    Looked::new("GPU".to_owned(), false, 2, Known { mask: 0xab000, scale }).unwrap()
}

fn value<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
    variables.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
}

#[test]
fn tenants_are_told_their_sms_and_what_their_memory_is() {
    let temporary = tempfile::tempdir().unwrap();
    let split = Some(Split { groups: 6, sms_per_group: 2 });
    let library = Path::new("/x/libpartywall_side.so");
    let sides = Sides::new(&looked(), split, Some(library), temporary.path()).unwrap();
    let plain = sides.environment(Class::BestEffort, SideMemory::Plain);
    assert_eq!(plain, [(SM_GROUPS.to_owned(), "1-2,5".to_owned())]);
    let both = [Class::LatencySensitive, Class::BestEffort];
    let [first, second] = both.map(|class| sides.environment(class, SideMemory::Private));
    assert_eq!((value(&first, SM_GROUPS), value(&first, SIDE)), (Some("0,3-4"), Some("first")));
    assert_eq!((value(&second, SM_GROUPS), value(&second, SIDE)), (Some("1-2,5"), Some("second")));
    assert_eq!(value(&first, SIDE_LIBRARY), Some("/x/libpartywall_side.so"));
    let file = value(&first, SIDE_KNOWN).unwrap();
    assert_eq!(value(&second, SIDE_KNOWN), Some(file));
    let known: Known = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!(known, looked().known);
    drop(sides);
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
}

#[test]
fn sides_of_another_gpu_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let new = |split| Sides::new(&looked(), split, None, temporary.path()).unwrap_err();
    assert_eq!(new(Some(H200)), "the sides are of 6 groups of 2 SMs, and the GPU has 66 of 2");
    assert_eq!(new(None), "this GPU or driver has no Green Contexts");
}

#[test]
fn pretended_sides_could_have_been_measured() {
    let looked = Looked::pretended(H200).unwrap();
    assert!(looked.known.is_possible(66));
    assert_eq!((looked.groups, looked.of_sides[1].starts_with("1,3,5,")), (66, true));
    assert!(Looked::pretended(Split { groups: 1, sms_per_group: 2 }).is_err(), "a side without SMs");
}

/// What is found by a program that does this.
fn found_by(script: &str) -> Result<Looked, String> {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let found = look(&program.display().to_string(), Some("GPU-1".to_owned()), "empty", folder.path());
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "only the program is left");
    found.map_err(|error| error.replace(&folder.path().display().to_string(), ""))
}

#[test]
fn sides_are_found_by_a_process_that_is_not_under_mps() {
    let text = serde_json::to_string(&looked()).unwrap();
    let right = "[ \"$*\" = 'vram known' ] && [ $CUDA_VISIBLE_DEVICES$CUDA_MPS_PIPE_DIRECTORY = GPU-1empty ]";
    assert_eq!(found_by(&format!("{right} && echo '{text}'")), Ok(looked()));
    let said = "echo looking >&2; echo 'error: the GPU has one side' >&2; echo 'hint: none' >&2; exit 1";
    assert_eq!(found_by(said), Err("the GPU has one side".to_owned()));
    let silent = found_by("exit 3").unwrap_err();
    assert!(silent.ends_with("vram known`: exit status: 3"), "{silent}");
    let rubbish = found_by("echo mask").unwrap_err();
    assert!(rubbish.contains("said `mask"), "{rubbish}");
}
