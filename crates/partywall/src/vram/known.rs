//! What was found out about this GPU before: where it is kept, and whether it still holds.

use std::path::PathBuf;

use partywall_driver::nvml::Nvml;
use partywall_driver::{Device, DriverError};
use partywall_vram::cache::{Cache, Key, Looked};
use partywall_vram::prober::Prober;
use partywall_vram::sides::{self, Found, SidesError, find_knowing};
use serde::Serialize;

use super::AGAIN;
use crate::error::Failure;
use crate::progress::say;
use crate::tenants::variable;

/// Below the user's folder for what can be found again.
const FOLDER: &str = "partywall";

/// What became of what was found before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum CacheUse {
    /// It was there, and fresh measurements agree with it.
    Used,
    /// There was none.
    Missing,
    /// It was not looked at, as was asked for.
    Ignored,
    /// It was there, and wrong or useless, and is gone.
    Discarded,
    /// There is no folder for it.
    Nowhere,
}

impl CacheUse {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Used => "mask and sides of SMs as found before, and checked",
            Self::Missing => "found for the first time",
            Self::Ignored => "found anew, as asked for",
            Self::Discarded => "found anew: what was found before was of no use",
            Self::Nowhere => "found anew: there is no folder to keep it in",
        }
    }
}

/// Where what is known of a GPU is kept.
pub(super) struct Kept(Option<(Cache, Key)>);

impl Kept {
    pub(super) fn of(device: &Device, groups: u16) -> Result<Self, Failure> {
        let driver = |error: DriverError| Failure::machine(error, None);
        let Some(folder) = folder() else { return Ok(Self(None)) };
        let uuid = device.uuid().map_err(driver)?.to_string();
        // Without NVML the driver is only known by its CUDA.
        let version = match Nvml::load().and_then(|nvml| nvml.driver_version()) {
            Ok(version) => version.to_string(),
            Err(_) => format!("cuda-{}", device.cuda().driver_version()),
        };
        let key = Key::new(&uuid, &device.name().map_err(driver)?, &version, groups);
        Ok(Self(Some((Cache::new(folder), key))))
    }

    /// Finds the sides, of which what is known already is not measured again.
    pub(super) fn find<P: Prober<Error = DriverError>>(
        &self,
        prober: &mut P,
        fresh: bool,
        checks: u32,
        seed: u64,
    ) -> Result<(Found, CacheUse), Failure> {
        let Some((cache, key)) = &self.0 else {
            return Ok((anew(prober, checks, seed)?, CacheUse::Nowhere));
        };
        let why = match cache.look(key) {
            _ if fresh => CacheUse::Ignored,
            Looked::Nothing => CacheUse::Missing,
            Looked::Known(known) => match find_knowing(prober, &known, usize::MAX, checks, seed) {
                Ok(sides) => return Ok((Found::Two(sides), CacheUse::Used)),
                Err(SidesError::Prober(error)) => return Err(driver_failure(error)),
                Err(error) => discard(cache, key, &error),
            },
            Looked::Useless(why) => discard(cache, key, &why),
        };
        let found = anew(prober, checks, seed)?;
        if let Found::Two(sides) = &found
            && let Err(error) = cache.keep(key, &sides.known)
        {
            say(&format!("what was found cannot be kept in {}: {error}", cache.path(key).display()));
        }
        Ok((found, why))
    }
}

fn discard(cache: &Cache, key: &Key, why: &dyn std::fmt::Display) -> CacheUse {
    say(&format!("{} is not used, and removed: {why}", cache.path(key).display()));
    cache.discard(key);
    CacheUse::Discarded
}

fn anew<P: Prober<Error = DriverError>>(prober: &mut P, checks: u32, seed: u64) -> Result<Found, Failure> {
    sides::find(prober, checks, seed).map_err(|error| match error {
        SidesError::Prober(error) => driver_failure(error),
        error => Failure::machine(error, Some(AGAIN.to_owned())),
    })
}

fn driver_failure(error: DriverError) -> Failure {
    Failure::machine(error, None)
}

/// Where XDG's specification says: a relative path counts as none.
fn folder() -> Option<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let given = variable("XDG_CACHE_HOME").map(PathBuf::from).filter(absolute);
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".cache")).filter(absolute);
    Some(given.or_else(home)?.join(FOLDER))
}
