//! The wall of a node: what stands between its tenants besides memory and copies, and what each of them is told of it.
//!
//! | wall | what it takes | what a tenant gets |
//! |---|---|---|
//! | `auto` | nothing | its environment as it is |
//! | `time-slicing` | nothing | an empty pipe directory, so that no MPS daemon is met by accident |
//! | `mps` | an MPS daemon | its pipe directory |
//! | `mps-percentage` | an MPS daemon | also a cap on its SMs |
//! | `green-contexts` | an MPS daemon, the GPU's groups of SMs | a set of groups of its own, in the page of each of its processes |
//! | `partywall` | an MPS daemon, the groups where there are any | a set of groups if it has a share, otherwise all SMs; best-effort processes are clients of low priority |
//!
//! The daemon has a keeper, as tenants have shepherds: it outlives a node that dies, and the next node of the folder takes it over.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use partywall_core::config::WallChoice;
use partywall_core::sm_sets::{Line, SmSet, SmSets};
use partywall_core::tenant::{Class, Share, TenantId};
use partywall_core::units::{Nanos, SmCount};
use partywall_core::wall::Wall;
use partywall_driver::mps::{Contact, LOG_DIRECTORY, PIPE_DIRECTORY};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::folder::Folder;
use crate::proof::MpsPlace;

pub mod keeper;
mod mps;
pub(crate) mod server_log;

use mps::Mps;

/// Caps the SMs of an MPS client, in per cent.
const PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

/// Whose blocks an MPS server prefers: 0 normal, 1 below. A hint, by the documentation of MPS.
const PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";

/// Which GPUs a process sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The walls that a node can build.
pub const BUILT: [Wall; 5] =
    [Wall::TimeSlicing, Wall::Mps, Wall::MpsPercentage, Wall::GreenContexts, Wall::Partywall];

const PARTYWALL: WallChoice = WallChoice::Fixed(Wall::Partywall);

/// A daemon that stayed up for this long worked: what ended it was something else.
const STEADY: Nanos = Nanos::from_secs(5);

/// What became of a wall whose daemon has ended.
#[derive(Debug)]
pub(crate) struct Fall {
    /// What has happened.
    pub(crate) why: String,
    /// Whether it stands again, for processes that start from now on.
    pub(crate) rebuilt: bool,
}

/// Whether a node can build this.
///
/// # Errors
/// [`Error::Refused`], which says what it can.
pub fn check_built(choice: WallChoice) -> Result<(), Error> {
    match choice {
        WallChoice::Fixed(wall) if !BUILT.contains(&wall) => Err(Error::Refused(format!(
            "the wall `{wall}` cannot be built around programs; choose auto, {}",
            BUILT.map(Wall::id).join(", ")
        ))),
        _ => Ok(()),
    }
}

/// Whether a share of the SMs is kept behind this wall.
pub fn keeps_shares(choice: WallChoice) -> bool {
    matches!(choice, WallChoice::Fixed(Wall::MpsPercentage | Wall::GreenContexts | Wall::Partywall))
}

/// Whether launches are decided about behind this wall unless somebody says otherwise.
pub fn decides_launches(choice: WallChoice) -> bool {
    choice == PARTYWALL
}

fn needs_mps(choice: WallChoice) -> bool {
    matches!(choice, WallChoice::Fixed(Wall::Mps | Wall::MpsPercentage | Wall::GreenContexts))
        || choice == PARTYWALL
}

/// What is known of the GPU, by a process that was asked for it and has ended: a node has no context of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Its UUID, where that tells it from others.
    pub uuid: Option<String>,
    /// Its SMs.
    pub sms: u32,
    /// Its SMs as groups, or why there are none.
    pub line: Result<Line, String>,
}

/// What a wall is built from.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    pub(crate) folder: &'a Folder,
    /// The program that knows `mps-keeper` and `device`.
    pub(crate) exe: &'a Path,
    /// The MPS control program, if there is one.
    pub(crate) control: Option<&'a Path>,
    pub(crate) boot: &'a str,
    /// Whether tenants are there, behind this wall already.
    pub(crate) busy: bool,
    /// What the node that put them there found the GPU to be.
    pub(crate) device: Option<Device>,
}

/// What those who serve tenants' processes need to know of the wall.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Which it is.
    pub choice: WallChoice,
    /// The daemon whose clients tenants' processes have to be.
    pub mps: Option<Contact>,
}

/// A wall that stands.
#[derive(Debug)]
pub(crate) struct Walls {
    choice: WallChoice,
    empty: PathBuf,
    mps: Option<Mps>,
    /// Why it does not stand any more.
    broken: Option<String>,
    device: Option<Device>,
    sets: Option<SmSets>,
}

/// The wall that a node has: the one that was asked for, or that of the tenants which are there. `kept` is the latter, and `busy`
/// whether there are any.
pub(crate) fn choose(asked: Option<WallChoice>, kept: WallChoice, busy: bool) -> Result<WallChoice, Error> {
    let choice = asked.unwrap_or(if busy { kept } else { WallChoice::Auto });
    check_built(choice)?;
    if busy && choice != kept {
        return Err(Error::Refused(format!(
            "tenants of this folder run behind the wall `{kept}`, so `{choice}` cannot be built; stop them first (`partywall node` \
             without --wall takes them over as they are)"
        )));
    }
    Ok(choice)
}

impl Walls {
    /// Builds it. What a node of the folder has built before is taken over, or removed where it is of no use.
    pub(crate) fn build(choice: WallChoice, site: &Site<'_>) -> Result<Self, Error> {
        let empty = site.folder.no_mps();
        if choice == WallChoice::Fixed(Wall::TimeSlicing) || needs_mps(choice) {
            crate::folder::private_folder(&empty)?;
        }
        let mut found = Mps::find(site.folder, site.boot, site.control);
        let mut walls = Self { choice, empty, mps: None, broken: None, device: None, sets: None };
        if let Some(mps) = found.take_if(|_| !site.busy || !needs_mps(choice)) {
            mps.stop();
        }
        if !needs_mps(choice) {
            return Ok(walls);
        }
        let Some(control) = site.control else {
            return Err(Error::Wall {
                wall: choice,
                why: "there is no nvidia-cuda-mps-control on the PATH; it comes with the NVIDIA driver"
                    .to_owned(),
            });
        };
        // Where the daemon alone may use the GPU, nobody beside it could look.
        let device = match &site.device {
            Some(device) if site.busy => device.clone(),
            _ => ask_device(site.exe, &walls.empty, choice)?,
        };
        if choice == WallChoice::Fixed(Wall::GreenContexts) {
            let line = device.line.clone().map_err(|why| Error::Wall { wall: choice, why })?;
            walls.sets = Some(SmSets::new(line));
        }
        if choice == PARTYWALL {
            walls.sets = device.line.clone().ok().map(SmSets::new);
        }
        walls.mps = Some(match found {
            Some(mps) => mps,
            None => Mps::start(site, control, device.uuid.as_deref(), choice)?,
        });
        walls.device = Some(device);
        Ok(walls)
    }

    pub(crate) fn choice(&self) -> WallChoice {
        self.choice
    }

    /// What the GPU is, where the wall depends on it.
    pub(crate) fn device(&self) -> Option<Device> {
        self.device.clone()
    }

    pub(crate) fn standing(&self) -> Standing {
        Standing { choice: self.choice, mps: self.mps.as_ref().map(|mps| mps.contact().clone()) }
    }

    /// Where its MPS daemon is, for others who ask it.
    pub(crate) fn mps_place(&self) -> Option<MpsPlace> {
        self.mps.as_ref().map(Mps::place)
    }

    /// What becomes readable when a part of it ends.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mps.as_ref().map(Mps::fd)
    }

    /// That has happened: another daemon takes its place, for processes that start from now on. One that did not even stay up
    /// for [`STEADY`] is not replaced.
    pub(crate) fn fell(&mut self, site: &Site<'_>, now: Nanos) -> Fall {
        let steady = self.mps.take().is_some_and(|mps| now.saturating_sub(mps.reap()) >= STEADY);
        let uuid = self.device.as_ref().and_then(|device| device.uuid.as_deref());
        let another =
            site.control.filter(|_| steady).map(|control| Mps::start(site, control, uuid, self.choice));
        let why = "the node's MPS daemon has ended".to_owned();
        let why = match another {
            Some(Ok(mps)) => {
                self.mps = Some(mps);
                return Fall { why, rebuilt: true };
            }
            Some(Err(error)) => format!("{why}, and another one does not start: {error}"),
            None => why,
        };
        self.broken = Some(why.clone());
        Fall { why, rebuilt: false }
    }

    /// Whether a tenant can be put behind it; `name` is for the message.
    ///
    /// # Errors
    /// [`Error::Refused`] where not.
    pub(crate) fn check(&self, name: &str, share: Option<Share>) -> Result<(), Error> {
        let refused = |text: String| Err(Error::Refused(format!("{name}: {text}")));
        if let Some(why) = &self.broken {
            let text = format!(
                "{why}, so the wall `{}` does not stand; stop all tenants and start the node again",
                self.choice
            );
            return refused(text);
        }
        match (self.choice, share) {
            (WallChoice::Fixed(Wall::GreenContexts), None) => {
                refused("behind the wall `green-contexts` a tenant needs a share of the SMs, such as share.percent = 60 or --share 60%".to_owned())
            }
            (PARTYWALL, Some(_)) if self.sets.is_none() => {
                let why = self.device.as_ref().and_then(|device| device.line.as_ref().err());
                let why = why.map_or("the GPU was not looked at", String::as_str);
                refused(format!("a share of the SMs cannot be kept here: {why}"))
            }
            (WallChoice::Fixed(Wall::MpsPercentage), Some(share)) => match self.percentage(share) {
                Ok(_) => Ok(()),
                Err(text) => refused(text),
            },
            _ => Ok(()),
        }
    }

    /// The least percentage that gives a share; MPS rounds SMs down.
    fn percentage(&self, share: Share) -> Result<u32, String> {
        let whole = self.device.as_ref().map_or(0, |device| device.sms);
        match share {
            Share::Percent(percent) => Ok(u32::from(percent)),
            Share::Sms(SmCount(sms)) if sms > whole => {
                Err(format!("{sms} SMs were asked for, and the GPU has {whole}"))
            }
            Share::Sms(SmCount(sms)) => Ok((sms * 100).div_ceil(whole.max(1)).max(1)),
        }
    }

    /// Gives a tenant its place.
    ///
    /// # Errors
    /// [`Error::Refused`] where there is none.
    pub(crate) fn place(
        &mut self,
        (id, name): (TenantId, &str),
        class: Class,
        share: Option<Share>,
    ) -> Result<Option<SmSet>, Error> {
        self.check(name, share)?;
        match (&mut self.sets, share) {
            (Some(sets), Some(share)) => {
                let placed = sets.place(id, class, share);
                placed.map(Some).map_err(|error| Error::Refused(format!("{name}: {error}")))
            }
            _ => Ok(None),
        }
    }

    /// The SMs that are left to a tenant while it is squeezed, of those that it has.
    ///
    /// # Errors
    /// [`Error::Refused`] where it has fewer, or the wall has no sets.
    pub(crate) fn squeezed(
        &self,
        name: &str,
        sms: Option<SmSet>,
        share: Option<Share>,
    ) -> Result<Option<SmSet>, Error> {
        let Some(share) = share else { return Ok(None) };
        let refused = |text: String| Error::Refused(format!("{name}: {text}"));
        let Some(sets) = &self.sets else {
            let why = match self.device.as_ref().map(|device| &device.line) {
                Some(Err(why)) => why.clone(),
                _ => format!("behind the wall `{}` nobody is squeezed", self.choice),
            };
            return Err(refused(format!("it cannot be squeezed: {why}")));
        };
        sets.line().squeezed(sms, share).map(Some).map_err(|error| refused(format!("squeezed: {error}")))
    }

    /// Takes over the place of a tenant that is there already.
    ///
    /// # Errors
    /// [`Error::Refused`] where it is of another GPU.
    pub(crate) fn restore(&mut self, (id, name): (TenantId, &str), set: SmSet) -> Result<(), Error> {
        let Some(sets) = &mut self.sets else { return Ok(()) };
        sets.restore(id, set)
            .map_err(|error| Error::Refused(format!("{name} runs, and its {error}; stop it first")))
    }

    /// The tenant needs its place no more.
    pub(crate) fn free(&mut self, id: TenantId) {
        if let Some(sets) = &mut self.sets {
            sets.free(id);
        }
    }

    /// What a tenant's environment needs.
    pub(crate) fn variables(&self, class: Class, share: Option<Share>) -> BTreeMap<String, String> {
        let text = |path: &Path| path.display().to_string();
        let mut variables = BTreeMap::new();
        let mut set = |name: &str, value: String| drop(variables.insert(name.to_owned(), value));
        if self.choice == WallChoice::Fixed(Wall::TimeSlicing) {
            set(PIPE_DIRECTORY, text(&self.empty));
            set(LOG_DIRECTORY, text(&self.empty));
        }
        let Some(mps) = &self.mps else { return variables };
        for (name, value) in mps.contact().environment() {
            set(name, text(Path::new(&value)));
        }
        if let Some(uuid) = self.device.as_ref().and_then(|device| device.uuid.clone()) {
            set(VISIBLE, uuid);
        }
        let capped = self.choice == WallChoice::Fixed(Wall::MpsPercentage);
        let percent = share.filter(|_| capped).and_then(|share| self.percentage(share).ok()).unwrap_or(100);
        // Always, because one of whoever started the tenant would count.
        set(PERCENTAGE, percent.to_string());
        if self.choice == PARTYWALL {
            set(PRIORITY, u32::from(class == Class::BestEffort).to_string());
        }
        variables
    }

    /// Takes it down; tenants have ended.
    pub(crate) fn stop(&mut self) {
        if let Some(mps) = self.mps.take() {
            mps.stop();
        }
    }
}

/// Has another process look at the GPU, outside of any MPS daemon.
fn ask_device(exe: &Path, empty: &Path, wall: WallChoice) -> Result<Device, Error> {
    let mut command = Command::new(exe);
    command.arg("device").env(PIPE_DIRECTORY, empty).env(LOG_DIRECTORY, empty);
    let failed = |why: String| Error::Wall { wall, why };
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(format!("cannot look at the GPU: {error}")))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(format!("cannot look at the GPU: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AUTO: WallChoice = WallChoice::Auto;
    const MPS: WallChoice = WallChoice::Fixed(Wall::Mps);

    fn walls(choice: WallChoice) -> Walls {
        let line = Line { groups: 66, sms_per_group: 2 };
        let device = Device { uuid: None, sms: 132, line: Ok(line) };
        Walls {
            choice,
            empty: PathBuf::from("empty"),
            mps: None,
            broken: None,
            device: Some(device),
            sets: [WallChoice::Fixed(Wall::GreenContexts), PARTYWALL]
                .contains(&choice)
                .then(|| SmSets::new(line)),
        }
    }

    #[test]
    fn the_wall_is_that_of_the_tenants_or_the_one_that_was_asked_for() {
        let chosen = |asked, kept, busy| choose(asked, kept, busy).map_err(|error| error.to_string());
        assert_eq!(chosen(None, MPS, false), Ok(AUTO));
        assert_eq!(chosen(None, MPS, true), Ok(MPS));
        assert_eq!(chosen(Some(MPS), AUTO, false), Ok(MPS));
        assert_eq!(chosen(Some(MPS), MPS, true), Ok(MPS));
        let refused = chosen(Some(MPS), AUTO, true).unwrap_err();
        assert!(refused.contains("run behind the wall `auto`, so `mps` cannot be built"), "{refused}");
        let refused = chosen(Some(WallChoice::Fixed(Wall::Mig)), AUTO, false).unwrap_err();
        assert!(refused.contains("`mig`") && refused.contains("mps-percentage, green-contexts"), "{refused}");
    }

    #[test]
    fn a_share_becomes_the_least_percentage_that_gives_it() {
        let walls = walls(WallChoice::Fixed(Wall::MpsPercentage));
        for sms in 1..=132 {
            let percent = walls.percentage(Share::Sms(SmCount(sms))).unwrap();
            let given = |percent: u32| 132 * percent / 100;
            assert!(given(percent) >= sms && percent <= 100, "{sms} SMs: {percent} per cent");
            assert!(percent == 1 || given(percent - 1) < sms, "{sms} SMs: {percent} per cent");
        }
        assert_eq!(walls.percentage(Share::Percent(60)), Ok(60));
        let refused = walls.check("a", Some(Share::Sms(SmCount(133)))).unwrap_err().to_string();
        assert_eq!(refused, "a: 133 SMs were asked for, and the GPU has 132");
        walls.check("a", None).unwrap();
    }

    #[test]
    fn sets_are_placed_taken_over_and_freed() {
        let mut walls = walls(WallChoice::Fixed(Wall::GreenContexts));
        let (ls, be) = (Class::LatencySensitive, Class::BestEffort);
        let percent = |percent| Some(Share::Percent(percent));
        let refused = walls.place((TenantId(1), "a"), ls, None).unwrap_err().to_string();
        assert!(refused.contains("a: behind the wall `green-contexts` a tenant needs a share"), "{refused}");
        let first = walls.place((TenantId(1), "a"), ls, percent(60)).unwrap().unwrap();
        let refused = walls.place((TenantId(2), "b"), be, percent(50)).unwrap_err().to_string();
        assert_eq!(refused, "b: 66 SMs side by side are not free; free are SMs 78-131");
        let stale = walls.restore((TenantId(3), "c"), first).unwrap_err().to_string();
        assert!(stale.contains("c runs, and its SMs 0-77 cannot be had"), "{stale}");
        walls.free(TenantId(1));
        walls.restore((TenantId(3), "c"), first).unwrap();
    }

    #[test]
    fn behind_partywall_a_share_is_kept_where_there_is_one() {
        let mut walls = walls(PARTYWALL);
        let place = |walls: &mut Walls, id, share| {
            walls.place((TenantId(id), "a"), Class::BestEffort, share).unwrap()
        };
        assert_eq!(place(&mut walls, 1, None), None);
        assert_eq!(place(&mut walls, 2, Some(Share::Percent(50))).unwrap().groups, 33);
        (walls.sets, walls.device) = (None, None);
        let refused = walls.check("a", Some(Share::Percent(50))).unwrap_err().to_string();
        assert_eq!(refused, "a: a share of the SMs cannot be kept here: the GPU was not looked at");
        walls.check("a", None).unwrap();
    }

    #[test]
    fn a_tenant_is_squeezed_within_what_it_has_where_there_are_sets() {
        let share = Some(Share::Sms(SmCount(16)));
        let set = SmSet { first: 20, groups: 10, sms_per_group: 2 };
        let own = Some(set);
        let sets = walls(PARTYWALL);
        assert_eq!(sets.squeezed("a", own, None).unwrap(), None);
        assert_eq!(sets.squeezed("a", own, share).unwrap().unwrap().to_string(), "SMs 44-59");
        assert_eq!(sets.squeezed("a", None, share).unwrap().unwrap().to_string(), "SMs 116-131");
        let refused = walls(MPS).squeezed("a", None, share).unwrap_err().to_string();
        assert_eq!(refused, "a: it cannot be squeezed: behind the wall `mps` nobody is squeezed");
        let small = Some(SmSet { groups: 4, ..set });
        let refused = sets.squeezed("a", small, share).unwrap_err().to_string();
        assert_eq!(refused, "a: squeezed: 16 SMs were asked for, and there are 8 SMs for it");
    }

    #[test]
    fn nothing_new_goes_behind_a_wall_that_fell() {
        let mut walls = walls(MPS);
        walls.check("a", None).unwrap();
        let folder = Folder::at(Path::new("folder")).unwrap();
        let exe = Path::new("partywall");
        let site = Site { folder: &folder, exe, control: None, boot: "", busy: true, device: None };
        assert!(!walls.fell(&site, Nanos::ZERO).rebuilt);
        let refused = walls.check("a", None).unwrap_err().to_string();
        assert!(refused.contains("the wall `mps` does not stand"), "{refused}");
    }

    #[test]
    fn time_slicing_keeps_tenants_from_other_daemons_and_auto_does_not() {
        assert_eq!(walls(AUTO).variables(Class::BestEffort, None), BTreeMap::new());
        let variables = walls(WallChoice::Fixed(Wall::TimeSlicing)).variables(Class::BestEffort, None);
        assert_eq!(variables[PIPE_DIRECTORY], "empty");
    }
}
