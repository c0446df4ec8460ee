//! What atomic operations take from the side of their address and from the other.

use maud::html;

use super::Latencies;
use crate::report::svg::{Area, LINE, Picture, Scale, WIDTH, px, tick_label};

const AREA: Area = Area { left: 52.0, right: WIDTH - 10.0, top: 46.0, bottom: 246.0 };
const HEIGHT: f64 = AREA.bottom + 3.0 * LINE;

/// The part of the probes that is shown: the others are far off, and would leave no room.
const SHOWN: f64 = 0.999;

/// Nothing where one kind is missing.
pub(super) fn figure(latencies: &Latencies) -> Option<Picture> {
    let Latencies { bin_cycles, from_cycles, near, far, longer } = latencies;
    let kinds =
        [("t-ls", "from SMs on the side of the address", near), ("t-be", "from SMs on the other side", far)];
    let sum = |bins: &[u32]| bins.iter().map(|&count| u64::from(count)).sum::<u64>();
    let all = sum(near) + sum(far);
    if *bin_cycles == 0 || sum(near) == 0 || sum(far) == 0 {
        return None;
    }
    let bins = near.len().max(far.len());
    let at = |bins: &[u32], bin: usize| bins.get(bin).copied().unwrap_or_default();
    let mut below = 0;
    let last = (0..bins).find(|&bin| {
        below += u64::from(at(near, bin)) + u64::from(at(far, bin));
        below as f64 >= SHOWN * all as f64
    })?;
    let cycles = |bin: usize| f64::from(*from_cycles) + bin as f64 * f64::from(*bin_cycles);
    let most = near.iter().chain(far).max().copied().unwrap_or_default();
    let x = Scale::linear((cycles(0) - 12.0, cycles(last + 1) + 12.0), (AREA.left, AREA.right));
    let y = Scale::linear((0.0, f64::from(most) * 1.05), (AREA.bottom, AREA.top));
    let ticks: Vec<(f64, String)> =
        y.ticks().into_iter().map(|tick| (y.at(tick), tick_label(tick))).collect();
    let beyond = all - below + longer;
    let content = html! {
        (AREA.y_axis(&ticks, &format!("probes in each {bin_cycles} cycles")))
        (AREA.x_axis(&x, "cycles of the SM for an atomic operation, mean of a chain of 25"))
        @for (class, _, bins) in kinds {
            @for (bin, count) in bins.iter().enumerate().take(last + 1).filter(|(_, count)| **count > 0) {
                @let (left, right, top) = (x.at(cycles(bin)), x.at(cycles(bin + 1)), y.at(f64::from(*count)));
                rect class={ "sm over " (class) } x=(px(left)) y=(px(top)) width=(px(right - left)) height=(px(AREA.bottom - top)) {
                    title { (cycles(bin)) " to " (cycles(bin + 1)) " cycles: " (count) }
                }
            }
        }
        @for (place, (class, name, bins)) in kinds.into_iter().enumerate() {
            @let left = AREA.left + 4.0 + 340.0 * place as f64;
            rect class={ "sm over " (class) } x=(px(left)) y="24" width="12" height="12" {}
            text class="label" x=(px(left + 18.0)) y="34" text-anchor="start" { (name) ": " (sum(bins)) }
        }
        @if beyond > 0 {
            text class="tick" x=(px(AREA.right - 4.0)) y="14" text-anchor="end" { "longer, not shown: " (beyond) }
        }
    };
    Some(Picture {
        id: "latencies".to_owned(),
        height: HEIGHT,
        name: "Atomic operations from the near side and from the far side",
        description: "A histogram of what probes took in cycles: one kind from SMs on the side of the address, one from SMs on the other \
                      side. Where the two do not overlap, one probe tells the side.",
        content,
    })
}
