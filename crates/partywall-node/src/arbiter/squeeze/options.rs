//! How launches are decided about: what is asked for, and what of it can be changed while tenants run.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use partywall_core::duty_cycle::WHOLE_PERCENT;
use partywall_core::tenant::{Class, Share};
use partywall_core::units::Nanos;
use partywall_shim_api::page::CHUNKS;
use serde::Serialize;

use super::super::{OptionsError, value};

/// The shortest time slice. Two processes at work with it made no progress on an H200 (driver 580), because a change of hands takes more: so one
/// at a time computes. For requests 25 us were no better.
pub const SLICE_MIN: Nanos = Nanos::from_micros(50);

/// The shortest where several best-effort processes may have work on the device at the same time.
pub const SHARED_SLICE: Nanos = Nanos::from_millis(1);

/// How long one best-effort process computes while others wait, unless the options say otherwise. A change costs some 0.3 ms (0.2 ms are what an
/// H200 takes to change hands in the middle of a kernel, 0.1 ms is how long a launch that waits may take to notice): below one percent.
pub const TURN: Nanos = Nanos::from_millis(40);

/// The shortest and the longest turn: a change of hands must be little of it, and a launch waits for the turns of all others.
pub const TURN_MIN: Nanos = Nanos::from_millis(1);
/// See [`TURN_MIN`].
pub const TURN_MAX: Nanos = Nanos::from_millis(1_000);

/// The longest.
pub const SLICE_MAX: Nanos = Nanos::from_millis(1_000);

/// For what share of the time best-effort tenants have work on the device beside requests where promises allow no more, in percent.
pub const DUTY_PERCENT: u32 = 50;

/// The time slice of latency-sensitive processes where best-effort ones have a short one: a request is not interrupted.
pub const LS_SLICE: Nanos = Nanos::from_millis(20);

/// Whether launches are decided about, and how, as in `chunks=2,chunk=100us,launches=16,release=50us,squeezed=16sms,duty=50%,slice=200us,turn=40ms,fixed`, each part optional, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchOptions {
    /// Whether they are at all; otherwise they go straight to the driver, and are counted.
    pub decided: bool,
    /// Chunks of a best-effort process on the device at a time: two, so that the device finds the next one there.
    pub chunks: u32,
    /// How long the device is to be busy with a chunk. Zero: only the number of launches bounds it.
    pub chunk: Nanos,
    /// Launches in a chunk at most. A mark behind each costs the device some microseconds.
    pub launches: u32,
    /// How long latency-sensitive tenants must have been idle before best-effort ones go on.
    pub release: Nanos,
    /// The SMs that are left to best-effort tenants instead of being held, unless they say otherwise themselves.
    pub squeezed: Option<Share>,
    /// Best-effort tenants that have no squeezed set are not held for requests, and all have work on the device for this share of the time at
    /// most while there are any. In percent; `None`: they are held or squeezed.
    pub duty_percent: Option<u32>,
    /// The time slice of best-effort processes, where processes take turns: how long one keeps the device while others wait. `None`: as
    /// the driver has it, 2 ms.
    pub slice: Option<Nanos>,
    /// How long one best-effort process computes while others wait, where they do so by turns ([`LaunchOptions::takes_turns`]).
    pub turn: Nanos,
    /// Whether best-effort tenants are given more or less room ([`Setting`]) as promises allow; otherwise what is said here stays.
    pub steered: bool,
}

/// What can be changed while tenants run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Whether best-effort tenants hold while latency-sensitive ones are active.
    pub hold: bool,
    /// Whether those of them that have a squeezed set go on there instead.
    pub squeezed: bool,
    /// For what share of the time those that are not held have work on the device meanwhile, at most, in percent.
    pub duty_percent: u32,
    /// How long the device is to be busy with a chunk.
    #[serde(rename = "chunk_ns")]
    pub chunk: Nanos,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = match (self.hold, self.squeezed) {
            (true, true) => "squeezed for requests",
            (true, false) => "held for requests",
            (false, _) => "not held",
        };
        let held = match self.duty_percent {
            WHOLE_PERCENT => held.to_owned(),
            percent => format!("{held}, at work for {percent} % of the time beside them"),
        };
        match self.chunk {
            Nanos::ZERO => write!(f, "{held}, chunks of any length"),
            chunk => write!(f, "{held}, chunks of {} us", chunk.0 / 1_000),
        }
    }
}

impl LaunchOptions {
    /// What [`Default`] gives, for constants.
    pub const DEFAULT: Self = Self {
        decided: false,
        chunks: 2,
        chunk: Nanos::from_micros(100),
        launches: 16,
        release: Nanos::from_micros(50),
        squeezed: None,
        duty_percent: None,
        slice: None,
        turn: TURN,
        steered: true,
    };

    /// Whether one best-effort process at a time computes: slices are so short that two would only change hands, and who launches can be
    /// held.
    pub fn takes_turns(&self) -> bool {
        self.decided && self.slice.is_some_and(|slice| slice < SHARED_SLICE)
    }

    /// The time slice of processes of a class in microseconds; 0: as the driver has it. `share`: several best-effort processes may have
    /// work on the device at the same time.
    pub fn slice_us(&self, class: Class, share: bool) -> u32 {
        let slice = self.slice.map(|slice| match class {
            Class::BestEffort if share => slice.max(SHARED_SLICE),
            Class::BestEffort => slice,
            Class::LatencySensitive => LS_SLICE,
        });
        slice.and_then(|slice| u32::try_from(slice.0 / 1_000).ok()).unwrap_or(0)
    }

    /// What holds at first, and where nobody has a promise. `squeezes`: whether any tenant has a squeezed set.
    pub const fn setting(&self, squeezes: bool) -> Setting {
        let (hold, duty_percent) = match self.duty_percent {
            Some(percent) => (squeezes, percent),
            None => (true, WHOLE_PERCENT),
        };
        Setting { hold, squeezed: squeezes, duty_percent, chunk: self.chunk }
    }

    /// What can be steered to, the safest first: shorter chunks cost a neighbour's request less and the best-effort tenant more;
    /// not to hold at all may be right beside launches that take next to nothing from others.
    /// Between the two is to squeeze those that can be, and to let them work for a part of the time.
    pub fn settings(&self, squeezes: bool) -> Vec<Setting> {
        let chunk = self.chunk.0;
        let part = self.duty_percent.unwrap_or(DUTY_PERCENT);
        let held = [chunk / 4, chunk / 2, chunk, chunk.saturating_mul(4)].map(|chunk| (chunk, WHOLE_PERCENT));
        let others = [(chunk, part), (chunk, WHOLE_PERCENT), (chunk.saturating_mul(4), WHOLE_PERCENT)];
        let kinds = [(true, false, &held[..]), (true, true, &others), (false, false, &others)];
        let mut settings: Vec<Setting> = kinds
            .into_iter()
            .filter(|(_, squeezed, _)| squeezes || !squeezed)
            .flat_map(|(hold, squeezed, all)| {
                all.iter().map(move |&(chunk, duty_percent)| Setting {
                    hold,
                    squeezed,
                    duty_percent,
                    chunk: Nanos(chunk),
                })
            })
            .collect();
        settings.dedup();
        settings
    }
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl FromStr for LaunchOptions {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let mut options = Self { decided: true, ..Self::default() };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None if part == "off" => options.decided = false,
                Some(("chunks", count)) => options.chunks = value(part, count)?,
                Some(("chunk", time)) => options.chunk = value(part, time)?,
                Some(("launches", count)) => options.launches = value(part, count)?,
                Some(("release", time)) => options.release = value(part, time)?,
                Some(("slice", time)) => options.slice = Some(slice(part, time)?),
                Some(("turn", time)) => options.turn = turn(part, time)?,
                Some(("squeezed", share)) => options.squeezed = Some(squeezed(part, share)?),
                Some(("duty", percent)) => options.duty_percent = Some(duty(part, percent)?),
                None if part == "fixed" => options.steered = false,
                _ => return Err(OptionsError::Launches(part.to_owned())),
            }
        }
        let possible = 1..=CHUNKS as u32;
        if !possible.contains(&options.chunks) || options.launches == 0 {
            let reason = format!("chunks are 1 to {CHUNKS}, and launches at least 1");
            return Err(OptionsError::Value { part: text.to_owned(), reason });
        }
        if u32::try_from(options.chunk.0).is_err() {
            let reason = "a chunk is at most 4 s, and 0us for no bound".to_owned();
            return Err(OptionsError::Value { part: text.to_owned(), reason });
        }
        Ok(options)
    }
}

/// A part of the time.
fn duty(part: &str, text: &str) -> Result<u32, OptionsError> {
    let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
    number.filter(|percent| (1..WHOLE_PERCENT).contains(percent)).ok_or_else(|| OptionsError::Value {
        part: part.to_owned(),
        reason: "a part of the time is 1% to 99%".to_owned(),
    })
}

/// A time slice that a device can have.
fn slice(part: &str, text: &str) -> Result<Nanos, OptionsError> {
    time_within(part, text, SLICE_MIN..=SLICE_MAX, || {
        format!(
            "a time slice is {} us to {} ms: after a shorter one a process would have done nothing since it got the device",
            SLICE_MIN.0 / 1_000,
            SLICE_MAX.0 / 1_000_000
        )
    })
}

/// A turn that is worth its change.
fn turn(part: &str, text: &str) -> Result<Nanos, OptionsError> {
    time_within(part, text, TURN_MIN..=TURN_MAX, || {
        format!(
            "a turn is {} to {} ms: a shorter one is mostly a change of hands, and others wait for a longer one",
            TURN_MIN.0 / 1_000_000,
            TURN_MAX.0 / 1_000_000
        )
    })
}

/// A time in a range, outside of which it is refused for a reason.
fn time_within(
    part: &str,
    text: &str,
    range: RangeInclusive<Nanos>,
    reason: impl FnOnce() -> String,
) -> Result<Nanos, OptionsError> {
    let time: Nanos = value(part, text)?;
    if range.contains(&time) {
        Ok(time)
    } else {
        Err(OptionsError::Value { part: part.to_owned(), reason: reason() })
    }
}

/// A share, of which a number alone is one of SMs.
fn squeezed(part: &str, text: &str) -> Result<Share, OptionsError> {
    let sms = text.parse::<u32>().map(|_| format!("{text}sms"));
    value(part, sms.as_deref().unwrap_or(text))
}
