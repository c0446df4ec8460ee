//! The wall `sides` around programs that take part in it: whose SMs are whose, and what tells a program which side it is on.
//!
//! Where the sides are is found out by a process of its own, before anything else of a stage runs: it takes memory and the whole GPU, and nothing of it
//! is left when tenants start. A program confines itself to its SMs, as under Green Contexts, and takes memory of its side from a library that
//! it loads itself; the wall says where everything is.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use partywall_core::diagnostic::quoted;
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_shim_api::environment::{SIDE, SIDE_KNOWN, SIDE_LIBRARY};
use partywall_vram::sides::{Group, Known, Scale, Side};
use partywall_vram::sms;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::clock;
use crate::plan::{Place, Program, SideMemory, Tenant};
use crate::protocol::SM_GROUPS;
use crate::stage::{Launcher, Split, UNSET};

/// With what the names of directories begin that tell tenants of sides.
pub const SIDES_PREFIX: &str = "partywall-sides-";

/// The arguments of our own program that find the sides and print [`Looked`].
pub const LOOK: [&str; 2] = ["vram", "known"];

/// How long that may take: a second on an H200, where what was found before still holds, and a few where it does not.
const LOOK_PATIENCE: Nanos = Nanos::from_secs(120);

/// How often we look whether it has ended.
const LOOK_EVERY: Nanos = Nanos::from_millis(5);

/// Bits whose parity turns the side of pretended memory: an H200's.
const PRETENDED_MASK: u32 = 0xab000;

/// What `partywall vram known` prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Looked {
    /// The GPU's name.
    pub gpu: String,
    /// Whether it is a simulated one.
    pub simulated: bool,
    /// The smallest groups of SMs that there are.
    pub groups: u32,
    /// SMs of each.
    pub sms_per_group: u32,
    /// Groups on the first side and on the second, such as `0-1,4`.
    pub of_sides: [String; 2],
    /// Where the sides are: what tenants are told.
    pub known: Known,
}

impl Looked {
    /// What was found of a GPU.
    ///
    /// # Errors
    /// A side without SMs.
    pub fn new(gpu: String, simulated: bool, sms_per_group: u32, known: Known) -> Result<Self, String> {
        let of = |side| sms::groups(&known, side, None).map(|set| set.to_string());
        let of_sides = [of(Side::First), of(Side::Second)];
        let [first, second] = of_sides.map(|set| set.map_err(|error| error.to_string()));
        let groups = known.scale.groups.len() as u32;
        Ok(Self { gpu, simulated, groups, sms_per_group, of_sides: [first?, second?], known })
    }

    /// Of a GPU that is not there: groups of SMs are on one side and the other in turn.
    ///
    /// # Errors
    /// Fewer than two groups.
    pub fn pretended(Split { groups, sms_per_group }: Split) -> Result<Self, String> {
        let group = |number| Group { side: Side::second(number % 2 == 1), middle_cycles: 400.0 };
        let groups = (0..groups).map(group).collect();
        let scale = Scale { groups, far_cycles: 190.0, deviation_cycles: 10.0, separation: 19.0 };
        Self::new("none".to_owned(), false, sms_per_group, Known { mask: PRETENDED_MASK, scale })
    }
}

/// The sides of a GPU, and a directory that tells tenants of them. Dropping it removes the directory.
#[derive(Debug)]
pub struct Sides {
    of_sides: [String; 2],
    known: PathBuf,
    library: Option<PathBuf>,
    _folder: TempDir,
}

impl Sides {
    /// Writes what was found into a directory of its own in `temporary`. `library` is what gives programs memory of a side.
    ///
    /// # Errors
    /// It is not of a GPU with this split, or cannot be written.
    pub fn new(
        looked: &Looked,
        split: Option<Split>,
        library: Option<&Path>,
        temporary: &Path,
    ) -> Result<Self, String> {
        let split = split.ok_or("this GPU or driver has no Green Contexts")?;
        let Looked { groups, sms_per_group, of_sides, known, .. } = looked;
        if (split.groups, split.sms_per_group) != (*groups, *sms_per_group) {
            return Err(format!(
                "the sides are of {groups} groups of {sms_per_group} SMs, and the GPU has {} of {}",
                split.groups, split.sms_per_group
            ));
        }
        let folder = directory(temporary)?;
        let file = folder.path().join("known.json");
        let text = serde_json::to_string(known).map_err(|error| error.to_string())?;
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
        let library = library.map(Path::to_owned);
        Ok(Self { of_sides: of_sides.clone(), known: file, library, _folder: folder })
    }

    /// What a tenant needs in its environment: latency-sensitive ones are on the first side, best-effort ones on the second.
    pub fn environment(&self, class: Class, memory: SideMemory) -> Vec<(String, String)> {
        let (number, name) = side_of(class);
        let mut variables = vec![(SM_GROUPS, self.of_sides[number].clone())];
        if memory == SideMemory::Private {
            variables.push((SIDE, name.to_owned()));
            variables.push((SIDE_KNOWN, self.known.display().to_string()));
            let library = self.library.as_ref().map(|library| (SIDE_LIBRARY, library.display().to_string()));
            variables.extend(library);
        }
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// The side of a class: its number, and what it is called.
const fn side_of(class: Class) -> (usize, &'static str) {
    match class {
        Class::LatencySensitive => (0, "first"),
        Class::BestEffort => (1, "second"),
    }
}

/// Under which name a tenant says on which side its memory is.
const ABOUT_SIDE: &str = "side";

/// Why a tenant that has said this about itself has no memory of its side, where it should have.
pub fn not_taken(place: &Place, tenant: &Tenant, about: &BTreeMap<String, String>) -> Option<String> {
    place.side_memory().filter(|memory| *memory == SideMemory::Private)?;
    let (_, expected) = side_of(tenant.class);
    let said = about.get(ABOUT_SIDE).map(String::as_str);
    (said != Some(expected)).then(|| {
        let said = said.map_or("nothing of a side".to_owned(), quoted);
        format!(
            "{} should have memory of the {expected} side, and says {said} in `about.{ABOUT_SIDE}`: it would not be behind this wall",
            tenant.name
        )
    })
}

/// Why a tenant cannot be behind the wall: what it would be measured with is not what the wall's name says.
pub fn misplaced(place: &Place, tenant: &Tenant, launcher: &Launcher) -> Option<String> {
    let built_in = matches!(tenant.program, Program::BuiltIn(_)) && !launcher.pretended;
    (built_in && place.side_memory() == Some(SideMemory::Private)).then(|| {
        format!(
            "{} is built in and has no memory of one side; it can be behind `{} {}`, or be a program that takes part",
            tenant.name,
            place.wall,
            SideMemory::Plain.id()
        )
    })
}

/// Has `program` find the sides, in a process without MPS on the GPU that `visible` selects. `empty` is a directory without MPS
/// daemon.
///
/// # Errors
/// Why there are none, in its words.
pub fn look(program: &str, visible: Option<String>, empty: &str, temporary: &Path) -> Result<Looked, String> {
    let folder = directory(temporary)?;
    let (said, words) = (folder.path().join("said"), folder.path().join("words"));
    let create = |path: &Path| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
    let mut command = Command::new(program);
    command.args(LOOK).stdin(Stdio::null()).stdout(create(&said)?).stderr(create(&words)?);
    for name in UNSET {
        command.env_remove(name);
    }
    command.env("CUDA_MPS_PIPE_DIRECTORY", empty);
    if let Some(visible) = visible {
        command.env("CUDA_VISIBLE_DEVICES", visible);
    }
    let shown = format!("`{program} {}`", LOOK.join(" "));
    let failed = |why: &dyn std::fmt::Display| format!("{shown}: {why}");
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let until = clock::now().saturating_add(LOOK_PATIENCE);
    let status = loop {
        match child.try_wait().map_err(|error| failed(&error))? {
            Some(status) => break status,
            None if clock::now() >= until => {
                // It ends, or has ended: there is nothing to be said about it.
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(&format!("has not ended within {LOOK_PATIENCE}")));
            }
            None => clock::sleep(LOOK_EVERY),
        }
    };
    let read = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if !status.success() {
        let words = read(&words).unwrap_or_default();
        let last = words.lines().map(str::trim).rfind(|line| line.starts_with("error:"));
        let last = last.or_else(|| words.lines().map(str::trim).rfind(|line| !line.is_empty()));
        return Err(
            last.map_or_else(|| failed(&status), |line| line.trim_start_matches("error: ").to_owned())
        );
    }
    let text = read(&said).map_err(|error| failed(&error))?;
    serde_json::from_str(&text).map_err(|error| failed(&format!("said {}: {error}", quoted(&text))))
}

fn directory(temporary: &Path) -> Result<TempDir, String> {
    let made = tempfile::Builder::new().prefix(SIDES_PREFIX).tempdir_in(temporary);
    made.map_err(|error| format!("a directory in {}: {error}", temporary.display()))
}

#[cfg(test)]
mod tests;
