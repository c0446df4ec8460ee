//! What the best-effort tenant keeps against what the latency-sensitive one pays, one point per wall and setting. Settings of one
//! wall are joined by a line: what the wall can be set to. Beside a measured point, a ring shows what the model says.

use maud::{Markup, html};

use super::svg::{Area, LINE, Label, Picture, Scale, WIDTH, apart, labels, px, shortened, text_width};
use super::{Shown, number};

/// Room for the points; a column for saturated walls takes some of it at the right.
const AREA: Area = Area { left: 46.0, right: WIDTH - 10.0, top: 40.0, bottom: 316.0 };
const HEIGHT: f64 = 360.0;
/// Where saturated walls stand: a column of its own, because no slowdown can be given for them.
const COLUMN: f64 = 616.0;

/// The figure.
pub(super) fn tradeoff(id: String, cells: &[Shown<'_>]) -> Picture {
    // One axis means one thing: where the tail of any wall has too few requests, all stand by their medians.
    let tails =
        cells.iter().all(|shown| shown.row.slowdown_p99.is_some() || shown.row.slowdown_p50.is_none());
    let slowdown =
        |shown: &Shown<'_>| usable(if tails { shown.row.slowdown_p99 } else { shown.row.slowdown_p50 });
    let points: Vec<(&Shown<'_>, f64, f64)> = cells
        .iter()
        .filter_map(|shown| Some((shown, slowdown(shown)?, usable(shown.row.be_kept)?)))
        .filter(|(shown, slowdown, _)| *slowdown > 0.0 && !shown.row.saturated)
        .collect();
    let modelled: Vec<(usize, f64, f64)> = points
        .iter()
        .enumerate()
        .filter_map(|(at, (shown, ..))| {
            let model = shown.modelled?;
            let slowdown = usable(Some(if tails { model.slowdown_p99 } else { model.slowdown_p50 }))?;
            Some((at, slowdown.max(f64::MIN_POSITIVE), usable(model.kept)?))
        })
        .collect();
    let saturated: Vec<&Shown<'_>> = cells.iter().filter(|shown| shown.row.saturated).collect();
    let area = Area { right: if saturated.is_empty() { AREA.right } else { COLUMN - 16.0 }, ..AREA };
    // From 1 (as alone) to at least 2, so that small differences do not look like large ones.
    let x = Scale::log(
        points
            .iter()
            .map(|(_, slowdown, _)| *slowdown)
            .chain(modelled.iter().map(|one| one.1))
            .chain([1.0, 2.0]),
        (area.left, area.right),
    );
    let most =
        points.iter().map(|(_, _, kept)| *kept).chain(modelled.iter().map(|one| one.2)).fold(1.0, f64::max);
    let y = Scale::linear((0.0, most * 1.04), (area.bottom - 8.0, area.top));
    let ticks: Vec<(f64, String)> =
        y.ticks().into_iter().map(|tick| (y.at(tick), super::svg::tick_label(tick))).collect();
    let places: Vec<(f64, f64)> =
        points.iter().map(|(_, slowdown, kept)| (x.at(*slowdown), y.at(*kept))).collect();
    let (ideal_x, ideal_y) = (x.at(1.0), y.at(1.0));
    let texts: Vec<String> = points.iter().map(|(shown, ..)| shortened(&shown.marked(), 180.0)).collect();
    // The mark of the ideal is one more point that labels keep off, with a label of its own.
    let widths: Vec<f64> =
        [text_width("ideal")].into_iter().chain(texts.iter().map(|text| text_width(text))).collect();
    let all: Vec<(f64, f64)> = [(ideal_x, ideal_y)].into_iter().chain(places.iter().copied()).collect();
    let placed = labels(&all, &widths, area);
    let content = html! {
        (area.y_axis(&ticks, "fraction of its rate that the best-effort tenant keeps"))
        (area.x_axis(&x, if tails { "slowdown of the latency-sensitive p99 (log scale; 1 is as alone)" }
            else { "slowdown of the latency-sensitive median (log scale; 1 is as alone)" }))
        @for (class, line) in frontiers(&points, &places) { polyline class={ "frontier " (class) } points=(line) {} }
        @for (at, slowdown, kept) in &modelled {
            (ring(points[*at].0, places[*at], (x.at(*slowdown), y.at(*kept))))
        }
        circle class="ideal" cx=(px(ideal_x)) cy=(px(ideal_y)) r="7" { title { "as if each were alone" } }
        @if let Some(label) = placed.first() {
            text class="tick" x=(px(label.left)) y=(px(label.y + 4.0)) text-anchor="start" { "ideal" }
        }
        @for ((((shown, ..), place), text), label) in points.iter().zip(&places).zip(&texts).zip(placed.iter().skip(1)) {
            (point(shown, *place, text, *label))
        }
        (column(&saturated, &y))
        @let unknown = cells.len() - points.len() - saturated.len();
        @if unknown > 0 {
            text class="tick" x=(px(area.right - 6.0)) y=(px(area.bottom - 14.0)) text-anchor="end" {
                "not shown, for lack of requests or of a rate: " (unknown)
            }
        }
    };
    let name = "What the best-effort tenant keeps against what the latency-sensitive tenant pays";
    let description = "One point per wall and setting. Up is more best-effort work done, left is less slowdown; the ideal is the \
                       upper left corner. Settings of one wall are joined by a line. A ring is what the model says of the point \
                       that it is tied to. Walls behind which the load could not be served stand at the right.";
    Picture { id, height: HEIGHT, name, description, content }
}

/// For each wall with several settings, the class of its line and the points on it.
fn frontiers(points: &[(&Shown<'_>, f64, f64)], places: &[(f64, f64)]) -> Vec<(String, String)> {
    let mut by_wall: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for ((shown, ..), place) in points.iter().zip(places) {
        match by_wall.iter_mut().find(|(class, _)| *class == shown.class()) {
            Some((_, line)) => line.push(*place),
            None => by_wall.push((shown.class(), vec![*place])),
        }
    }
    by_wall.retain(|(_, line)| line.len() > 1);
    let drawn = |(class, mut line): (String, Vec<(f64, f64)>)| {
        line.sort_by(|one, other| one.0.total_cmp(&other.0));
        let line: Vec<String> = line.iter().map(|(x, y)| format!("{},{}", px(*x), px(*y))).collect();
        (class, line.join(" "))
    };
    by_wall.into_iter().map(drawn).collect()
}

/// What the model says, tied to what was measured.
fn ring(shown: &Shown<'_>, (from_x, from_y): (f64, f64), (x, y): (f64, f64)) -> Markup {
    html! {
        line class="tie" x1=(px(from_x)) y1=(px(from_y)) x2=(px(x)) y2=(px(y)) {}
        circle class={ "ring " (shown.class()) } cx=(px(x)) cy=(px(y)) r="5" { title { (shown.name) ", simulated" } }
    }
}

fn usable(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

fn point(shown: &Shown<'_>, (x, y): (f64, f64), text: &str, label: Label) -> Markup {
    // Text is tied to the side where its point is, because its width is only estimated.
    let (end, anchor) = if label.right < x { (label.right, "end") } else { (label.left, "start") };
    let leader = if label.right < x { end + 2.0 } else { end - 2.0 };
    html! {
        @if label.far {
            line class="leader" x1=(px(x)) y1=(px(y)) x2=(px(leader)) y2=(px(label.y)) {}
        }
        circle class={ "dot " (shown.class()) } cx=(px(x)) cy=(px(y)) r="5" { title { (tooltip(shown)) } }
        text class="label" x=(px(end)) y=(px(label.y + 4.0)) text-anchor=(anchor) { (text) }
    }
}

/// The saturated walls, each at the height of what BE keeps, moved apart.
fn column(saturated: &[&Shown<'_>], y: &Scale) -> Markup {
    let wanted: Vec<f64> =
        saturated.iter().map(|shown| y.at(usable(shown.row.be_kept).unwrap_or(0.0))).collect();
    let rows = apart(&wanted, LINE, (AREA.top + 8.0, AREA.bottom - 8.0));
    html! {
        @if !saturated.is_empty() {
            rect class="band" x=(px(COLUMN - 10.0)) y=(px(AREA.top - 18.0)) width=(px(WIDTH - COLUMN + 8.0))
                height=(px(AREA.bottom - AREA.top + 18.0)) {}
            text class="axis" x=(px(COLUMN - 4.0)) y=(px(AREA.top - 5.0)) text-anchor="start" { "saturated" }
        }
        @for ((shown, wanted), row) in saturated.iter().zip(&wanted).zip(rows) {
            line class="leader" x1=(px(COLUMN)) y1=(px(*wanted)) x2=(px(COLUMN + 10.0)) y2=(px(row)) {}
            circle class={ "dot " (shown.class()) } cx=(px(COLUMN)) cy=(px(*wanted)) r="5" { title { (tooltip(shown)) } }
            text class="label" x=(px(COLUMN + 12.0)) y=(px(row + 4.0)) text-anchor="start" {
                (shortened(&shown.marked(), WIDTH - COLUMN - 16.0))
            }
        }
    }
}

fn tooltip(shown: &Shown<'_>) -> String {
    let slowdown = shown.slowdown();
    let kept = number::or_none(shown.row.be_kept, number::fraction);
    let told = format!("{}: slowdown {slowdown}, best-effort keeps {kept}", shown.name);
    [told].into_iter().chain(shown.notes()).collect::<Vec<_>>().join(", ")
}
