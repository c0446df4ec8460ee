//! Power, clock and throttling of a GPU while something is measured on it.
//!
//! A thread reads every 20 to 100 ms between start and stop and sums up. What it reads from is a [`Source`]: NVML, or
//! a made-up one. What the whole stretch has in common (GPM: how busy SMs and memory were) is read at its two ends.
//!
//! NVML averages power over some time of its own (25 ms to 1 s, by generation), so stretches much shorter than a
//! second tell of what came before them too.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::nvml::{Device, GpmMark, GpmRates, NvmlError, ThrottleReason};

/// Shortest time between readings: below it the driver answers with the same numbers, and asking costs a core.
pub const PERIOD_MIN: Duration = Duration::from_millis(20);
/// Longest: beyond it, short throttling goes unseen.
pub const PERIOD_MAX: Duration = Duration::from_millis(100);

/// One reading. What the GPU does not tell is `None`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// Power, W.
    pub power_w: Option<f64>,
    /// SM clock, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Why the clock is not higher.
    pub throttle: Vec<ThrottleReason>,
}

/// What is sampled.
pub trait Source: Send {
    /// Called once, before the first reading.
    fn begin(&mut self) {}
    /// Reads now.
    ///
    /// # Errors
    /// When the GPU does not answer; the sampler notes it and goes on.
    fn read(&mut self) -> Result<Reading, NvmlError>;
    /// Called once, after the last reading; what the stretch as a whole was like.
    fn end(&mut self) -> Option<GpmRates> {
        None
    }
}

/// What a stretch was like. Means are of the readings that had the figure.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Summary {
    /// Readings that succeeded.
    pub samples: u32,
    /// Mean power, W.
    pub power_w_mean: Option<f64>,
    /// Highest power, W.
    pub power_w_max: Option<f64>,
    /// Mean SM clock, MHz.
    pub sm_clock_mhz_mean: Option<f64>,
    /// Lowest SM clock, MHz.
    pub sm_clock_mhz_min: Option<u32>,
    /// Every reason that was seen and that counts ([`ThrottleReason::counts`]).
    pub throttled: BTreeSet<ThrottleReason>,
    /// How busy SMs, memory and link were, where GPM can be read.
    pub rates: Option<GpmRates>,
    /// Readings that failed, and why the last of them did.
    pub failed: Option<(u32, String)>,
}

/// Sums readings up as they come.
#[derive(Debug, Default)]
struct Tally {
    summary: Summary,
    power: (f64, u32),
    clock: (f64, u32),
}

impl Tally {
    fn add(&mut self, reading: Result<Reading, NvmlError>) {
        let summary = &mut self.summary;
        let reading = match reading {
            Ok(reading) => reading,
            Err(error) => {
                let failures = summary.failed.as_ref().map_or(0, |(failures, _)| *failures);
                summary.failed = Some((failures + 1, error.to_string()));
                return;
            }
        };
        summary.samples += 1;
        if let Some(power) = reading.power_w {
            self.power = (self.power.0 + power, self.power.1 + 1);
            summary.power_w_max = Some(summary.power_w_max.map_or(power, |most| most.max(power)));
        }
        if let Some(clock) = reading.sm_clock_mhz {
            self.clock = (self.clock.0 + f64::from(clock), self.clock.1 + 1);
            summary.sm_clock_mhz_min = Some(summary.sm_clock_mhz_min.map_or(clock, |least| least.min(clock)));
        }
        summary.throttled.extend(reading.throttle.into_iter().filter(|reason| reason.counts()));
    }

    fn finish(self, rates: Option<GpmRates>) -> Summary {
        let mean = |(sum, count): (f64, u32)| (count > 0).then(|| sum / f64::from(count));
        Summary { power_w_mean: mean(self.power), sm_clock_mhz_mean: mean(self.clock), rates, ..self.summary }
    }
}

/// A sampling thread. Dropping it stops it and forgets what it saw.
#[derive(Debug)]
pub struct Sampler {
    stop: mpsc::Sender<()>,
    thread: Option<JoinHandle<Summary>>,
}

impl Sampler {
    /// Starts; the first reading is taken at once. `period` is brought between [`PERIOD_MIN`] and [`PERIOD_MAX`].
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(mut source: impl Source + 'static, period: Duration) -> std::io::Result<Self> {
        let period = period.clamp(PERIOD_MIN, PERIOD_MAX);
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("gpu-sampler".to_owned()).spawn(move || {
            let mut tally = Tally::default();
            source.begin();
            tally.add(source.read());
            // Waiting for the word to stop is also the pause between readings.
            while stopped.recv_timeout(period) == Err(mpsc::RecvTimeoutError::Timeout) {
                tally.add(source.read());
            }
            tally.add(source.read());
            let rates = source.end();
            tally.finish(rates)
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Takes a last reading and sums up.
    pub fn stop(mut self) -> Summary {
        self.join().unwrap_or_default()
    }

    fn join(&mut self) -> Option<Summary> {
        // The thread may have ended already.
        let _ = self.stop.send(());
        self.thread.take()?.join().ok()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.join();
    }
}

/// A GPU, through NVML.
#[derive(Debug)]
pub struct GpuSource {
    device: Device,
    mark: Option<GpmMark>,
}

impl GpuSource {
    /// Samples this GPU.
    pub fn new(device: Device) -> Self {
        Self { device, mark: None }
    }
}

/// What a GPU does not have is no failure.
fn optional<T>(answer: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_not_supported() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Source for GpuSource {
    fn begin(&mut self) {
        self.mark = self.device.gpm_mark().ok();
    }

    fn read(&mut self) -> Result<Reading, NvmlError> {
        Ok(Reading {
            power_w: optional(self.device.power_w())?,
            sm_clock_mhz: optional(self.device.sm_clock_mhz())?,
            throttle: optional(self.device.throttle_reasons())?.unwrap_or_default(),
        })
    }

    fn end(&mut self) -> Option<GpmRates> {
        let first = self.mark.take()?;
        first.rates_until(self.device.gpm_mark().ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(power_w: f64, clock: u32, throttle: &[ThrottleReason]) -> Result<Reading, NvmlError> {
        Ok(Reading { power_w: Some(power_w), sm_clock_mhz: Some(clock), throttle: throttle.to_vec() })
    }

    fn lost() -> NvmlError {
        NvmlError::Call { what: "power", reason: "the GPU fell off the bus".to_owned() }
    }

    #[test]
    fn a_tally_keeps_means_extremes_and_reasons_that_count() {
        let mut tally = Tally::default();
        tally.add(reading(100.0, 1980, &[ThrottleReason::GpuIdle]));
        tally.add(Err(lost()));
        tally.add(reading(700.0, 1500, &[ThrottleReason::SwPowerCap, ThrottleReason::ApplicationsClocks]));
        tally.add(Ok(Reading { sm_clock_mhz: Some(1800), ..Reading::default() }));
        tally.add(Err(lost()));
        let summary = tally.finish(None);
        assert_eq!(summary.samples, 3);
        assert_eq!((summary.power_w_mean, summary.power_w_max), (Some(400.0), Some(700.0)));
        assert_eq!((summary.sm_clock_mhz_mean, summary.sm_clock_mhz_min), (Some(1760.0), Some(1500)));
        assert_eq!(summary.throttled, BTreeSet::from([ThrottleReason::SwPowerCap]));
        let (failures, why) = summary.failed.unwrap();
        assert_eq!(failures, 2);
        assert!(why.contains("fell off the bus"));
    }

    #[test]
    fn nothing_read_is_nothing_told() {
        assert_eq!(Tally::default().finish(None), Summary::default());
    }

    /// Counts up in power; tells of rates at the end only if it was begun.
    #[derive(Default)]
    struct MadeUp {
        begun: bool,
        readings: u32,
    }

    impl Source for MadeUp {
        fn begin(&mut self) {
            self.begun = true;
        }
        fn read(&mut self) -> Result<Reading, NvmlError> {
            self.readings += 1;
            reading(f64::from(self.readings), 1000, &[])
        }
        fn end(&mut self) -> Option<GpmRates> {
            self.begun.then(|| GpmRates { sm_busy: Some(0.5), ..GpmRates::default() })
        }
    }

    #[test]
    fn a_stretch_has_a_reading_at_each_end_however_short_it_is() {
        let sampler = Sampler::start(MadeUp::default(), Duration::from_secs(3600)).unwrap();
        let summary = sampler.stop();
        assert!(summary.samples >= 2, "{summary:?}");
        assert_eq!(summary.power_w_max, Some(f64::from(summary.samples)));
        assert_eq!(summary.rates.unwrap().sm_busy, Some(0.5));
        assert_eq!(summary.failed, None);
    }

    #[test]
    fn readings_go_on_between_the_ends() {
        let (sender, receiver) = mpsc::channel();
        struct Telling(mpsc::Sender<()>);
        impl Source for Telling {
            fn read(&mut self) -> Result<Reading, NvmlError> {
                // The test may be gone already.
                let _ = self.0.send(());
                Ok(Reading::default())
            }
        }
        let sampler = Sampler::start(Telling(sender), Duration::ZERO).unwrap();
        for _ in 0..4 {
            receiver.recv().unwrap();
        }
        assert!(sampler.stop().samples >= 5);
    }
}
