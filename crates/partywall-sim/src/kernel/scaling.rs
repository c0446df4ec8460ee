//! What a recorded curve of latency over SMs says about the width of a network's kernels.
//!
//! The rule takes a kernel's width from its threads: so many keep an SM busy. That is right on average and wrong for
//! kernels that keep an SM busy with few threads (matrix products on tensor cores) or that need more of them than the
//! average. Which of the two a network has more of shows in how its latency grows as SMs are taken away. Two factors
//! per network, one for its math kernels and one for those that move data, stretch the widths until the latencies at
//! the recorded SM counts come out as well as they can. The curve fixes how wide kernels are *on the whole* and no
//! single kernel, so there are no more than two; what it does not fix (a kind that hardly occurs) stays with the rule.
//!
//! Latencies count relative to the whole GPU measured in the same way: what confines a network to some SMs may cost
//! something per launch, which is no property of its kernels.

use super::{Kernel, smooth};
use crate::profile::OnSms;

/// Widths are off by less than this factor: 900 threads an SM against the 128 of a persistent matrix product, or all
/// 2 048.
const FACTOR_MAX: f64 = 8.0;
/// What a factor (log) weighs beside errors (log) of latencies, as squares: a factor of two as much as latencies that
/// are off by 3 %, which is about how well they repeat. A factor that changes nothing stays at 1.
const PRIOR: f64 = 0.002;
/// Steps of the search, as logarithms: from a factor of two down to one per cent.
const FIRST_STEP: f64 = 0.7;
const LAST_STEP: f64 = 0.01;
/// A remainder beyond this is no property of a network, but a damaged recording.
const REMAINDER_MAX: f64 = 1.5;

/// Factors on the widths that the rule gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Widths {
    /// Of kernels that compute.
    pub math: f64,
    /// Of kernels that move data.
    pub memory: f64,
    /// Largest relative error that remains in the recorded latencies; 0 without a curve.
    pub worst: f64,
}

impl Widths {
    /// The rule as it is.
    pub const RULE: Self = Self { math: 1.0, memory: 1.0, worst: 0.0 };

    /// The factors that fit `curve` best, for `kernels` as the rule gives them on a GPU of `whole` SMs. The rule as it is
    /// where the curve has no two different SM counts.
    pub fn fit(kernels: &[Kernel], curve: &[OnSms], whole: f64) -> (Self, Remainder) {
        let Some(curve) = Curve::of(kernels, curve, whole) else {
            return (Self::RULE, Remainder::default());
        };
        let bound = FACTOR_MAX.ln();
        let mut best = [0.0, 0.0];
        let mut loss = curve.loss(best);
        let mut step = FIRST_STEP;
        while step > LAST_STEP {
            let mut improved = false;
            for (kind, by) in [(0, step), (0, -step), (1, step), (1, -step)] {
                let mut trial = best;
                trial[kind] = f64::clamp(trial[kind] + by, -bound, bound);
                let found = curve.loss(trial);
                if found < loss {
                    (best, loss, improved) = (trial, found, true);
                }
            }
            if !improved {
                step /= 2.0;
            }
        }
        let worst = curve.errors(best).map(|error| (error.exp() - 1.0).abs()).fold(0.0, f64::max);
        (Self { math: best[0].exp(), memory: best[1].exp(), worst }, curve.remainder(best))
    }

    /// The factor of a kernel.
    pub fn of(&self, math: bool) -> f64 {
        if math { self.math } else { self.memory }
    }
}

/// What no widths explain of a recorded curve: factors on the scaling part of a network's kernels, by SM count. At 66 SMs
/// networks took up to a tenth longer than with any widths, because a matrix product of 96 blocks then needs two waves.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Remainder {
    /// SMs, ascending, and the factor there.
    points: Vec<(f64, f64)>,
}

impl Remainder {
    /// The factor on `sms` SMs: between recorded points along a straight line, beyond them as at the nearest.
    pub fn at(&self, sms: f64) -> f64 {
        let above = self.points.iter().position(|(known, _)| *known >= sms).unwrap_or(self.points.len());
        match (above.checked_sub(1).map(|below| self.points[below]), self.points.get(above)) {
            (Some((from, low)), Some(&(to, high))) => low + (high - low) * (sms - from) / (to - from),
            (Some((_, factor)), None) | (None, Some(&(_, factor))) => factor,
            (None, None) => 1.0,
        }
    }
}

/// Kernels of one kind and width, which scale alike.
struct Alike {
    math: bool,
    width: f64,
    work_ns: f64,
}

struct Curve {
    alike: Vec<Alike>,
    /// What does not scale.
    launch_ns: f64,
    whole: f64,
    /// SMs of the reference, and SMs with the latency over that of the reference.
    reference: f64,
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn of(kernels: &[Kernel], curve: &[OnSms], whole: f64) -> Option<Self> {
        let reference = curve.iter().max_by_key(|point| point.sms)?;
        let points: Vec<(f64, f64)> = curve
            .iter()
            .filter(|point| point.sms < reference.sms)
            .map(|point| (f64::from(point.sms), point.p50_ms / reference.p50_ms))
            .collect();
        if points.is_empty() {
            return None;
        }
        let mut alike: Vec<Alike> = Vec::new();
        for kernel in kernels {
            match alike.iter_mut().find(|known| (known.math, known.width) == (kernel.math, kernel.width)) {
                Some(known) => known.work_ns += kernel.work_ns,
                None => alike.push(Alike { math: kernel.math, width: kernel.width, work_ns: kernel.work_ns }),
            }
        }
        let launch_ns = kernels.iter().map(|kernel| kernel.gap_ns + kernel.launch_ns).sum();
        Some(Self { alike, launch_ns, whole, reference: f64::from(reference.sms), points })
    }

    fn loss(&self, factors: [f64; 2]) -> f64 {
        let squares: f64 = self.errors(factors).map(|error| error * error).sum();
        squares / self.points.len() as f64 + PRIOR * factors.iter().map(|factor| factor * factor).sum::<f64>()
    }

    /// Of each point: logarithm of the estimated over the recorded latency, each relative to the reference.
    fn errors(&self, factors: [f64; 2]) -> impl Iterator<Item = f64> {
        let reference = self.latency(factors, self.reference);
        self.points
            .iter()
            .map(move |(sms, recorded)| (self.latency(factors, *sms) / reference / recorded).ln())
    }

    /// What the work must be multiplied by at each point for its latency to come out as recorded.
    fn remainder(&self, factors: [f64; 2]) -> Remainder {
        let reference = self.latency(factors, self.reference);
        let factor = |&(sms, recorded): &(f64, f64)| {
            let work = self.latency(factors, sms) - self.launch_ns;
            (sms, ((recorded * reference - self.launch_ns) / work).clamp(1.0 / REMAINDER_MAX, REMAINDER_MAX))
        };
        let mut points: Vec<(f64, f64)> = self.points.iter().map(factor).collect();
        points.push((self.reference, 1.0));
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        Remainder { points }
    }

    fn latency(&self, [math, memory]: [f64; 2], sms: f64) -> f64 {
        let (math, memory) = (math.exp(), memory.exp());
        let work = |alike: &Alike| {
            let width = alike.width * if alike.math { math } else { memory };
            alike.work_ns * smooth(width / sms) / smooth(width / self.whole)
        };
        self.launch_ns + self.alike.iter().map(work).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(math: bool, width: f64, work_us: f64) -> Kernel {
        Kernel {
            gap_ns: 100.0,
            launches: 1.0,
            exposed: 1.0,
            launch_ns: 800.0,
            work_ns: work_us * 1e3,
            width,
            room: width,
            traffic: 100.0,
            sensitivity: 0.9,
            math,
            activity: 0.8,
        }
    }

    /// The curve that kernels with widths `math` and `memory` times those of `kernels` would have.
    fn curve(kernels: &[Kernel], math: f64, memory: f64) -> Vec<OnSms> {
        let at = |sms: u32| {
            let ns = kernels.iter().map(|kernel| {
                let width = kernel.width * if kernel.math { math } else { memory };
                kernel.gap_ns
                    + kernel.launch_ns
                    + kernel.work_ns * super::super::stretch(width, f64::from(sms), 132.0)
            });
            OnSms { sms, p50_ms: 1.1 * ns.sum::<f64>() / 1e6 }
        };
        [132, 100, 66, 32, 16].map(at).to_vec()
    }

    #[test]
    fn factors_behind_a_curve_are_found() {
        // Matrix products on few SMs and elementwise kernels on many: kinds of like width could not be told apart.
        let widths =
            |i: u32| if i.is_multiple_of(2) { 10.0 + f64::from(i) } else { 100.0 + 4.0 * f64::from(i) };
        let kernels: Vec<Kernel> =
            (0..40_u32).map(|i| kernel(i.is_multiple_of(2), widths(i), 10.0)).collect();
        for (math, memory) in [(1.0, 1.0), (2.5, 1.0), (1.0, 0.4)] {
            let (found, _) = Widths::fit(&kernels, &curve(&kernels, math, memory), 132.0);
            assert!(found.worst < 0.03, "{math} {memory}: {found:?}");
            assert!((found.math / math).ln().abs() < 0.35, "{math} {memory}: {found:?}");
            assert!((found.memory / memory).ln().abs() < 0.35, "{math} {memory}: {found:?}");
        }
    }

    #[test]
    fn what_widths_cannot_explain_remains() {
        let kernels: Vec<Kernel> = (0..10).map(|_| kernel(true, 30.0, 10.0)).collect();
        // As fast on 104 SMs as on all, and slower by a fifth on 66: no width of smooth kernels does that.
        let curve = [(132, 1.0), (104, 1.0), (66, 1.2), (32, 1.2)].map(|(sms, p50_ms)| OnSms { sms, p50_ms });
        let (found, remainder) = Widths::fit(&kernels, &curve, 132.0);
        let curve_of = Curve::of(&kernels, &curve, 132.0).unwrap();
        let factors = [found.math.ln(), found.memory.ln()];
        for (sms, recorded) in [(66.0, 1.2), (32.0, 1.2), (104.0, 1.0), (132.0, 1.0)] {
            let work = curve_of.latency(factors, sms) - curve_of.launch_ns;
            let latency = (curve_of.launch_ns + work * remainder.at(sms)) / curve_of.latency(factors, 132.0);
            assert!((latency / recorded - 1.0).abs() < 0.01, "{latency} on {sms} SMs");
        }
        assert_eq!((remainder.at(8.0), remainder.at(200.0)), (remainder.at(32.0), 1.0));
        let between = remainder.at(85.0);
        let ends = [remainder.at(66.0), remainder.at(104.0)];
        assert!((between - (ends[0] + ends[1]) / 2.0).abs() < 1e-9, "{between} of {ends:?}");
        assert_eq!(Remainder::default().at(66.0), 1.0);
    }

    #[test]
    fn what_a_curve_does_not_say_stays_with_the_rule() {
        let math: Vec<Kernel> = (0..10).map(|_| kernel(true, 30.0, 10.0)).collect();
        let (found, _) = Widths::fit(&math, &curve(&math, 2.0, 1.0), 132.0);
        assert_eq!(found.memory, 1.0);
        assert!(found.math > 1.5, "{found:?}");
        for curve in [vec![], vec![OnSms { sms: 132, p50_ms: 1.0 }]] {
            assert_eq!(Widths::fit(&math, &curve, 132.0), (Widths::RULE, Remainder::default()));
        }
        // A recording that no width explains does not run away.
        let faster = [OnSms { sms: 132, p50_ms: 1.0 }, OnSms { sms: 16, p50_ms: 0.01 }];
        let (found, remainder) = Widths::fit(&math, &faster, 132.0);
        assert!((1.0 / FACTOR_MAX..=FACTOR_MAX).contains(&found.math) && found.worst > 1.0, "{found:?}");
        assert_eq!(remainder.at(16.0), 1.0 / REMAINDER_MAX);
    }
}
