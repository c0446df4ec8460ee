//! Cumulative distributions of LS service time, one curve per wall.
//!
//! The height of a point is how many nines its fraction has, -log10(1 - fraction), so that p90, p99 and p99.9 are
//! evenly apart: what walls differ in is the tail, and an even axis would press it into its last line. A curve
//! ends where fewer requests lie beyond it than a percentile needs to be shown.

use maud::{Markup, html};
use partywall_core::measure::{Evidence, Percentile};
use partywall_sim::experiment::TenantResult;

use super::svg::{Area, LINE, Picture, Scale, WIDTH, apart, px, shortened};
use super::{Shown, number};

const FRACTIONS: [(f64, &str); 5] =
    [(0.0, "fastest"), (0.5, "p50"), (0.9, "p90"), (0.99, "p99"), (0.999, "p99.9")];
const AREA: Area = Area { left: 58.0, right: 510.0, top: 46.0, bottom: 306.0 };

/// The figure.
pub(super) fn cdf(id: String, cells: &[Shown<'_>]) -> Picture {
    let curves: Vec<Vec<(f64, f64)>> =
        cells.iter().map(|shown| shown.ls.map(supported).unwrap_or_default()).collect();
    let solo = cells.iter().find_map(|shown| shown.ls?.solo.p99_ms);
    let latencies = curves.iter().flatten().map(|(ms, _)| *ms).chain(solo);
    let x = Scale::log(latencies, (AREA.left, AREA.right));
    let y = |fraction: f64| {
        let nines = -(1.0 - fraction).max(1e-3).log10();
        AREA.bottom - (nines / 3.0).clamp(0.0, 1.0) * (AREA.bottom - AREA.top)
    };
    let ticks = FRACTIONS.map(|(fraction, label)| (y(fraction), label.to_owned()));
    let path = |curve: &[(f64, f64)]| {
        let point = |(i, (ms, fraction)): (usize, &(f64, f64))| {
            format!("{}{} {}", if i == 0 { "M" } else { "L" }, px(x.at(*ms)), px(y(*fraction)))
        };
        curve.iter().enumerate().map(point).collect::<String>()
    };
    let height = (AREA.bottom + 44.0).max(AREA.top + LINE * (cells.len() + 3) as f64);
    let content = html! {
        (AREA.y_axis(&ticks, "percentile of requests"))
        (AREA.x_axis(&x, "service time, ms (log scale)"))
        @if let Some(solo) = solo {
            line class="solo" x1=(px(x.at(solo))) x2=(px(x.at(solo))) y1=(px(AREA.top - 4.0)) y2=(px(AREA.bottom)) {
                title { "p99 alone on the whole GPU: " (number::significant(solo)) " ms" }
            }
            text class="tick" x=(px(x.at(solo).clamp(AREA.left + 26.0, AREA.right - 26.0))) y=(px(AREA.top - 9.0))
                text-anchor="middle" { "solo p99" }
        }
        @for (shown, curve) in cells.iter().zip(&curves) {
            @if curve.len() > 1 {
                path class={ "curve " (shown.class()) } d=(path(curve)) { title { (tooltip(shown)) } }
            }
        }
        (legend(cells, &curves))
    };
    let name = "Latency of the latency-sensitive tenant behind each wall";
    let description = "Cumulative distributions of service time. The further left a curve and the steeper its upper \
                       end, the less the neighbour is felt. The table above has the same percentiles.";
    Picture { id, height, name, description, content }
}

/// The points with enough requests beyond them.
fn supported(ls: &TenantResult) -> Vec<(f64, f64)> {
    let enough = |fraction: f64| {
        Percentile::from_ppm((fraction * 1e6).round() as u32)
            .is_some_and(|percentile| percentile.supported(ls.service.n, Evidence::Shown, ()).is_some())
    };
    let usable = |(ms, fraction): &(f64, f64)| ms.is_finite() && *ms > 0.0 && enough(*fraction);
    ls.cdf.iter().filter(|point| usable(point)).copied().collect()
}

fn tooltip(shown: &Shown<'_>) -> String {
    let p50 = number::or_none(shown.row.ls_p50_ms, number::significant);
    let p99 = number::or_none(shown.row.ls_p99_ms, number::significant);
    [format!("{}: p50 {p50} ms, p99 {p99} ms", shown.name)]
        .into_iter()
        .chain(shown.notes())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Walls by p99, in the order in which the upper ends of the curves lie from left to right.
fn legend(cells: &[Shown<'_>], curves: &[Vec<(f64, f64)>]) -> Markup {
    let p99 = |shown: &Shown<'_>| shown.row.ls_p99_ms.unwrap_or(f64::INFINITY);
    let mut order: Vec<(&Shown<'_>, bool)> =
        cells.iter().zip(curves).map(|(shown, curve)| (shown, curve.len() > 1)).collect();
    order.sort_by(|(a, _), (b, _)| a.row.saturated.cmp(&b.row.saturated).then(p99(a).total_cmp(&p99(b))));
    let value = |(shown, drawn): &(&Shown<'_>, bool)| match shown.row.ls_p99_ms {
        _ if shown.row.saturated => "saturated".to_owned(),
        Some(ms) => number::significant(ms),
        None if *drawn => number::NONE.to_owned(),
        None => "too few".to_owned(),
    };
    let left = AREA.right + 20.0;
    let first = AREA.top + LINE * 1.2;
    let wanted: Vec<f64> = (0..order.len()).map(|i| first + LINE * 1.15 * i as f64).collect();
    let last = AREA.top + LINE * (order.len() + 2) as f64;
    let rows = apart(&wanted, LINE, (first, last.max(AREA.bottom)));
    html! {
        text class="axis" x=(px(left)) y=(px(AREA.top)) text-anchor="start" { "wall" }
        text class="axis" x=(px(WIDTH - 4.0)) y=(px(AREA.top)) text-anchor="end" { "p99, ms" }
        @for (entry, y) in order.iter().zip(rows) {
            line class={ "curve " (entry.0.class()) } x1=(px(left)) x2=(px(left + 26.0)) y1=(px(y - 4.0)) y2=(px(y - 4.0)) {}
            text class="label" x=(px(left + 32.0)) y=(px(y)) text-anchor="start" {
                (shortened(&entry.0.marked(), 140.0))
            }
            text class="label" x=(px(WIDTH - 4.0)) y=(px(y)) text-anchor="end" { (value(entry)) }
        }
    }
}
