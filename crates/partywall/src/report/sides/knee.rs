//! What a neighbour adds to each launch, by how near it is to what its side can move.

use maud::html;

use super::{Row, View, Work};
use crate::report::svg::{Area, LINE, Picture, Scale, WIDTH, px, tick_label};

const AREA: Area = Area { left: 52.0, right: WIDTH - 10.0, top: 64.0, bottom: 304.0 };
const HEIGHT: f64 = AREA.bottom + 3.0 * LINE;

/// Neighbours by what they do, and how they are drawn.
const LOADS: [(&str, &str); 4] = [
    ("read", "w-mps"),
    ("read-evict-first", "w-partywall"),
    ("write-evict-first", "w-sides"),
    ("mixed-evict-first", "w-time-slicing"),
];

/// Of neighbours that were tried with several SMs or threads, with colors, beside the tenant of most threads. Nothing where there are none.
pub(super) fn figure(rows: &[Row]) -> Option<Picture> {
    let threads = rows.iter().map(|row| row.threads_per_sm).max()?;
    let rows: Vec<&Row> = rows
        .iter()
        .filter(|row| row.view == View::Colored && row.threads_per_sm == threads && row.work != Work::Long)
        .collect();
    let most = |load: &str| {
        rows.iter().filter(|row| row.load == load).map(|row| row.load_alone_gb_s).fold(0.0, f64::max)
    };
    let part = |row: &Row| 100.0 * row.load_alone_gb_s / most(&row.load);
    let added = |row: &Row| row.added_us_per_launch;
    let highest = rows.iter().filter_map(|row| added(row)).reduce(f64::max)?;
    let x = Scale::linear((0.0, 104.0), (AREA.left, AREA.right));
    let y = Scale::linear((-0.3, highest * 1.05), (AREA.bottom, AREA.top));
    let ticks: Vec<(f64, String)> =
        y.ticks().into_iter().map(|tick| (y.at(tick), tick_label(tick))).collect();
    let content = html! {
        (AREA.y_axis(&ticks, "us that each launch takes longer, median"))
        (AREA.x_axis(&x, "what the neighbour moves alone, % of the most that it can move on its side"))
        @for (place, (load, class)) in LOADS.into_iter().enumerate() {
            @let left = AREA.left + 4.0 + 150.0 * place as f64;
            circle class={ "dot " (class) } cx=(px(left)) cy="28" r="5" {}
            text class="label" x=(px(left + 10.0)) y="32" text-anchor="start" { (load) }
        }
        circle class="dot w-exclusive" cx=(px(AREA.left + 4.0)) cy="46" r="5" {}
        text class="label" x=(px(AREA.left + 14.0)) y="50" text-anchor="start" { "launched one by one" }
        circle class="ring w-exclusive" cx=(px(AREA.left + 184.0)) cy="46" r="4" {}
        text class="label" x=(px(AREA.left + 194.0)) y="50" text-anchor="start" { "as CUDA graphs" }
        @for row in &rows {
            @let class = LOADS.iter().find(|(load, _)| *load == row.load).map_or("w-exclusive", |(_, class)| class);
            @if let Some(added) = added(row) {
                @let (kind, radius) = if row.work == Work::Graph { ("ring", "4") } else { ("dot", "5") };
                circle class={ (kind) " " (class) } cx=(px(x.at(part(row)))) cy=(px(y.at(added))) r=(radius) {
                    title {
                        (row.load) " on " (row.load_sms) " SMs, " (row.load_threads_per_sm) " threads: "
                        (format!("{:.0} % of the most, {added:.2} us", part(row)))
                    }
                }
            }
        }
    };
    Some(Picture {
        id: "knee".to_owned(),
        height: HEIGHT,
        name: "What a neighbour adds to each launch, by how near it is to what its side can move",
        description: "A dot for each neighbour with some number of SMs and threads: across, its rate alone as a part of the most that any \
                      of them reached; upwards, how much longer each launch of the tenant's takes beside it. Dots rise steeply at the right edge only.",
        content,
    })
}
