//! What a node that is started again needs to go on: `state.json`.
//!
//! It says what should be: which tenants there are, whether they should run, and how often they failed. What is, the
//! shepherds say (`shepherd.json` of each tenant). A node writes it before it acts, so that a node that dies between the
//! two leaves nothing that the next one does not know of.

use std::fs;
use std::path::{Path, PathBuf};

use partywall_core::config::WallChoice;
use partywall_core::restart::BackOff;
use partywall_core::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::folder::write_whole;
use crate::process::Identity;
use crate::shepherd::status::End;
use crate::tenant::TenantSpec;
use crate::walls::Device;

/// Version of the file; another one is not read.
const VERSION: u32 = 1;

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Which version of the file this is.
    version: u32,
    /// The boot that processes and times in it belong to.
    pub boot: String,
    /// The number of the next tenant.
    pub next_id: u32,
    /// What the tenants run behind. Files of before there were walls do not say.
    #[serde(default)]
    pub wall: WallChoice,
    /// What the GPU is, where the wall depends on it.
    #[serde(default)]
    pub device: Option<Device>,
    /// The tenants, in the order in which they came.
    pub tenants: Vec<Kept>,
}

/// What is kept of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// What it is.
    pub spec: TenantSpec,
    /// Whether its shepherd is a `partywall run`, which started it and ends with it.
    pub attended: bool,
    /// Whether it should run.
    pub wanted: bool,
    /// Between SIGTERM and SIGKILL.
    pub grace: Nanos,
    /// Its last run, from 1; 0 before the first.
    pub run: u32,
    /// When that started, in the clock of the boot.
    pub started: Nanos,
    /// Its shepherd, as far as the node got to know it.
    pub shepherd: Option<Identity>,
    /// Starts after the first that followed an ending by themselves.
    pub restarts: u32,
    /// What the decider on restarts remembers.
    pub back_off: BackOff,
    /// How its last run ended; `None` while it has not.
    pub end: Option<End>,
    /// Faults of the GPU that it caused.
    #[serde(default)]
    pub faults: u32,
    /// Whether it is kept out because of them, until somebody asks for it.
    #[serde(default)]
    pub kept_out: bool,
    /// Why it ended, where that was not of its own doing, or why it is left.
    #[serde(default)]
    pub note: Option<String>,
}

impl State {
    /// Of a node during `boot` that keeps these tenants behind this wall.
    pub(crate) fn new(boot: String, next_id: u32, wall: WallChoice, tenants: Vec<Kept>) -> Self {
        Self { version: VERSION, boot, next_id, wall, device: None, tenants }
    }

    /// Reads the file at `path`; `None` if there is none.
    ///
    /// # Errors
    /// When it cannot be read, or another version of this program wrote it.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, Error> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(Error::file("read", path))?,
        };
        let state: Self =
            serde_json::from_slice(&text).map_err(|error| Error::file("read", path)(error.into()))?;
        if state.version != VERSION {
            let version = state.version;
            let text = format!("it has version {version}, and this program knows {VERSION}");
            return Err(Error::file("read", path)(std::io::Error::other(text)));
        }
        Ok(Some(state))
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// When the disk does not take it; the file is then as it was.
    pub(crate) fn write(&self, path: &Path) -> Result<(), Error> {
        let text =
            serde_json::to_vec_pretty(self).map_err(|error| Error::file("write", path)(error.into()))?;
        write_whole(path, &text)
    }

    /// Puts a file that cannot be read aside, for people to look at; says where it is.
    ///
    /// # Errors
    /// When it cannot be moved.
    pub(crate) fn put_aside(path: &Path) -> Result<PathBuf, Error> {
        let aside = path.with_extension("json.unreadable");
        fs::rename(path, &aside).map_err(Error::file("move", path))?;
        Ok(aside)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use partywall_core::config::Restart;
    use partywall_core::sm_sets::{Line, SmSet};
    use partywall_core::tenant::{Baseline, Class, Share, Slo, TenantId};
    use partywall_core::units::Bytes;
    use partywall_core::wall::Wall;
    use proptest::prelude::*;

    use super::*;
    use crate::tenant::Token;

    fn state() -> State {
        let spec = TenantSpec {
            id: TenantId(4),
            name: "a".to_owned(),
            class: Class::BestEffort,
            memory: Some(Bytes::from_gib(1)),
            weight: 1,
            command: vec!["sleep".to_owned(), "1".to_owned()],
            env: BTreeMap::new(),
            restart: Restart::Always,
            slo: Slo::default(),
            baseline: Baseline::default(),
            share: Some(Share::Percent(60)),
            sms: Some(SmSet { first: 27, groups: 39, sms_per_group: 2 }),
            squeezed: Some(Share::Percent(10)),
            squeezed_sms: Some(SmSet { first: 60, groups: 6, sms_per_group: 2 }),
            token: Token::from_bytes([7; 16]),
        };
        let kept = Kept {
            spec,
            attended: false,
            wanted: true,
            grace: Nanos::from_secs(10),
            run: 3,
            started: Nanos(17),
            shepherd: Some(Identity { pid: 5, start_ticks: 6 }),
            restarts: 2,
            back_off: BackOff::new(),
            end: Some(End::NotStarted { code: 127, error: "no".to_owned() }),
            faults: 2,
            kept_out: true,
            note: Some("it did it again".to_owned()),
        };
        let wall = WallChoice::Fixed(Wall::GreenContexts);
        let line = Ok(Line { groups: 66, sms_per_group: 2 });
        let device = Some(Device { uuid: Some("GPU-0".to_owned()), sms: 132, line });
        State { device, ..State::new("boot".to_owned(), 5, wall, vec![kept]) }
    }

    #[test]
    fn what_is_written_is_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("state.json");
        assert_eq!(State::read(&path).unwrap(), None);
        state().write(&path).unwrap();
        assert_eq!(State::read(&path).unwrap(), Some(state()));
        State { version: 9, ..state() }.write(&path).unwrap();
        let error = State::read(&path).unwrap_err().to_string();
        assert!(error.contains("version 9") && error.contains("knows 1"), "{error}");
        let aside = State::put_aside(&path).unwrap();
        assert!(aside.exists() && !path.exists());
    }

    #[test]
    fn a_file_of_before_there_were_walls_is_read() {
        let mut old = serde_json::to_value(state()).unwrap();
        for (at, names) in [
            ("", &["wall", "device"][..]),
            ("/tenants/0/spec", &["share", "sms"]),
            ("/tenants/0", &["faults", "kept_out", "note"]),
        ] {
            let object = old.pointer_mut(at).unwrap().as_object_mut().unwrap();
            names.iter().for_each(|name| assert!(object.remove(*name).is_some(), "{name}"));
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), old.to_string()).unwrap();
        let read = State::read(file.path()).unwrap().unwrap();
        assert_eq!((read.wall, read.device), (WallChoice::Auto, None));
        assert_eq!((read.tenants[0].spec.share, read.tenants[0].spec.sms), (None, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rubbish_is_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0usize..500) {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), bytes).unwrap();
            prop_assert!(State::read(file.path()).is_err());
            let good = serde_json::to_vec(&state()).unwrap();
            fs::write(file.path(), &good[..cut.min(good.len() - 1)]).unwrap();
            prop_assert!(State::read(file.path()).is_err());
        }
    }
}
