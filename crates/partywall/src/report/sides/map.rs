//! On which side everything is: groups of SMs, pages, and the slices of the L2 along a page.

use maud::{Markup, html};

use super::Sides;
use crate::report::svg::{Area, LINE, Picture, Scale, WIDTH, px, tick_label};

const LEFT: f64 = 4.0;
/// Heights of a row of cells, and of a row with its heading.
const CELL: f64 = 20.0;
const ROW: f64 = CELL + LINE + 19.0;
/// Where the first row begins, below the legend.
const TOP: f64 = 30.0;

/// Pages that are shown.
const PAGES: usize = 132;
/// KiB of a page whose slices are shown.
const KIB: usize = 96;
const PLOT: f64 = 190.0;

/// Nothing without groups or pages.
pub(super) fn figure(sides: &Sides, slices: &[u8]) -> Option<Picture> {
    if sides.groups.is_empty() || sides.pages.is_empty() {
        return None;
    }
    let sms = format!(
        "SMs: the {} smallest groups that Green Contexts are made of, {} SMs each",
        sides.groups.len(),
        sides.sms_per_group
    );
    let shown = sides.pages.len().min(PAGES);
    let pages =
        format!("pages of 2 MiB: the side of the first byte, of the first {shown} of {}", sides.pages.len());
    let slices = slices.chunks_exact(2).take(KIB).map(|kib| [kib[0], kib[1]]).collect::<Vec<_>>();
    let plot = TOP + 2.0 * ROW;
    let content = html! {
        (legend())
        (cells(&sides.groups, TOP, &sms))
        (cells(&sides.pages[..shown], TOP + ROW, &pages))
        @if !slices.is_empty() { (along(&slices, sides.granularity_bytes, plot)) }
    };
    Some(Picture {
        id: "map".to_owned(),
        height: if slices.is_empty() { plot } else { plot + PLOT + 4.0 * LINE },
        name: "On which side SMs, pages and L2 slices are",
        description: "A row of squares for the groups of SMs and one for pages, each in the color of its side. Below, the slice of the L2 \
                      of each 256 bytes along a page: for as long as a stretch, all are of one side.",
        content,
    })
}

fn legend() -> Markup {
    html! {
        @for (x, class, name) in [(LEFT, "t-ls", "first side: that of the first group"), (LEFT + 250.0, "t-be", "second side")] {
            rect class={ "sm " (class) } x=(px(x)) y="4" width="12" height="12" {}
            text class="label" x=(px(x + 18.0)) y="14" text-anchor="start" { (name) }
        }
    }
}

/// A row of `0` and `1`.
fn cells(line: &str, top: f64, heading: &str) -> Markup {
    let width = (WIDTH - 2.0 * LEFT) / line.len() as f64;
    html! {
        text class="axis" x=(px(LEFT)) y=(px(top + LINE - 3.0)) text-anchor="start" { (heading) }
        @for (place, side) in line.chars().enumerate() {
            rect class={ "sm " (if side == '0' { "t-ls" } else { "t-be" }) } x=(px(LEFT + place as f64 * width)) y=(px(top + LINE + 2.0))
                width=(px((width * 0.9).max(0.5))) height=(px(CELL)) { title { (place) } }
        }
    }
}

/// The slices along a page: of each KiB the first 256 B and the next.
fn along(slices: &[[u8; 2]], granularity: u32, top: f64) -> Markup {
    let area =
        Area { left: 34.0, right: WIDTH - LEFT, top: top + 2.0 * LINE, bottom: top + 2.0 * LINE + PLOT };
    let most = slices.iter().flatten().max().copied().unwrap_or_default();
    // Those of one side come before those of the other.
    let half = f64::midpoint(f64::from(most), 0.0);
    let x = Scale::linear((0.0, slices.len() as f64), (area.left, area.right));
    let y = Scale::linear((-1.0, f64::from(most) + 1.0), (area.bottom, area.top));
    let stretch = f64::from(granularity) / 1024.0;
    html! {
        text class="axis" x=(px(LEFT)) y=(px(top + LINE - 3.0)) text-anchor="start" {
            "the L2 slice of each 256 B along a page, in two colors by side; which of them is the first side was not recorded"
        }
        @for tick in y.ticks().into_iter().filter(|tick| *tick >= 0.0) {
            text class="tick" x=(px(area.left - 6.0)) y=(px(y.at(tick) + 4.0)) text-anchor="end" { (tick_label(tick)) }
        }
        @for number in 0..=(slices.len() as f64 / stretch) as u32 {
            @let at = f64::from(number) * stretch;
            line class="grid" x1=(px(x.at(at))) x2=(px(x.at(at))) y1=(px(area.top)) y2=(px(area.bottom)) {}
            @if number % 4 == 0 {
                text class="tick" x=(px(x.at(at))) y=(px(area.bottom + LINE)) text-anchor=(if at >= slices.len() as f64 { "end" } else { "middle" }) {
                    (tick_label(at))
                }
            }
        }
        line class="solo" x1=(px(area.left)) x2=(px(area.right)) y1=(px(y.at(half))) y2=(px(y.at(half))) {}
        @for (kib, pair) in slices.iter().enumerate() {
            @for (place, slice) in pair.iter().enumerate() {
                circle class={ "sm " (if f64::from(*slice) < half { "t-0" } else { "t-1" }) }
                    cx=(px(x.at(kib as f64 + 0.25 + 0.5 * place as f64))) cy=(px(y.at(f64::from(*slice)))) r="2" {}
            }
        }
        text class="axis" x=(px(f64::midpoint(area.left, area.right))) y=(px(area.bottom + 2.2 * LINE)) text-anchor="middle" {
            "offset in the page, KiB; lines where stretches of " (stretch) " KiB begin"
        }
    }
}
