//! What the figures share: scales, ticks, axes, and text that must not collide or leave the picture.
//!
//! Everything is placed in absolute coordinates, no transforms, so that a test can hold each one against the viewBox.

use maud::{Markup, PreEscaped, html};

/// What figures look like. It holds no character that HTML or XML would read differently.
pub(super) const STYLE: &str = include_str!("figure.css");

/// Width of every figure, in units of its viewBox.
pub(super) const WIDTH: f64 = 760.0;
/// Height of a line of text.
pub(super) const LINE: f64 = 15.0;
/// Ticks of an axis at most.
const TICKS_MAX: usize = 10;

/// Maps values to coordinates. Values beyond the ends land on the ends, so nothing leaves the picture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    domain: (f64, f64),
    range: (f64, f64),
    log: bool,
}

impl Scale {
    /// Even steps; a domain without extent is widened upwards.
    pub(super) fn linear(domain: (f64, f64), range: (f64, f64)) -> Self {
        let (low, high) = (finite_or(domain.0, 0.0), finite_or(domain.1, 1.0));
        Self { domain: (low, if high > low { high } else { low + 1.0 }), range, log: false }
    }

    /// Even steps per factor, for the `values` above zero; they end a little inside.
    pub(super) fn log(values: impl Iterator<Item = f64>, range: (f64, f64)) -> Self {
        let usable = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = usable.fold((f64::INFINITY, 0.0), |(low, high), v| (v.min(low), v.max(high)));
        let (low, high) = if high > 0.0 { (low.log10(), high.log10()) } else { (0.0, 1.0) };
        let margin = ((high - low) * 0.04).max(0.02);
        Self { domain: (low - margin, high + margin), range, log: true }
    }

    /// Where `value` lies.
    pub(super) fn at(&self, value: f64) -> f64 {
        let value = if self.log { value.log10() } else { value };
        let part = ((value - self.domain.0) / (self.domain.1 - self.domain.0)).clamp(0.0, 1.0);
        let part = finite_or(part, 0.0);
        self.range.0 + part * (self.range.1 - self.range.0)
    }

    /// Round values between the ends.
    pub(super) fn ticks(&self) -> Vec<f64> {
        if self.log { self.log_ticks() } else { linear_ticks(self.domain, 6.0) }
    }

    fn log_ticks(&self) -> Vec<f64> {
        let (low, high) = self.domain;
        let decades = |step: i32, digits: &[f64]| -> Vec<f64> {
            let first = (low.floor() as i32).div_euclid(step) * step;
            (first..=high.ceil() as i32)
                .step_by(step as usize)
                .flat_map(|decade| digits.iter().map(move |digit| digit * 10f64.powi(decade)))
                .filter(|tick| (low..=high).contains(&tick.log10()))
                .collect()
        };
        let coarse = (((high - low) / TICKS_MAX as f64).ceil() as i32).max(1);
        let choices: [(i32, &[f64]); 4] =
            [(1, &[1.0, 2.0, 5.0]), (1, &[1.0, 3.0]), (1, &[1.0]), (coarse, &[1.0])];
        let ticks = choices
            .iter()
            .map(|(step, digits)| decades(*step, digits))
            .find(|ticks| ticks.len() <= TICKS_MAX)
            .unwrap_or_default();
        if ticks.len() >= 3 || high - low > 1.5 {
            return ticks;
        }
        linear_ticks((10f64.powf(low), 10f64.powf(high)), 8.0)
    }
}

fn linear_ticks((low, high): (f64, f64), wanted: f64) -> Vec<f64> {
    let rough = (high - low) / wanted;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= rough);
    let Some(step) = step.filter(|step| step.is_finite() && *step > 0.0) else {
        return vec![low];
    };
    let first = (low / step).ceil();
    // The slack lets 0.3 be a tick of 0..0.3 although 3 * 0.1 is a little more.
    let last = (high / step + 1e-9).floor();
    (0..TICKS_MAX).map(|i| first + i as f64).take_while(|n| *n <= last).map(|n| n * step).collect()
}

fn finite_or(value: f64, otherwise: f64) -> f64 {
    if value.is_finite() { value } else { otherwise }
}

/// A coordinate: a tenth of a unit is finer than any screen shows.
pub(super) fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// A tick: no more decimals than it needs.
pub(super) fn tick_label(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e6).contains(&value.abs()) {
        return format!("{value:.1e}").replace(".0e", "e");
    }
    // Ticks are round numbers that sums of steps miss by a few ulps.
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Width of `text` in the 12-unit type that figures use, estimated for a wide face.
pub(super) fn text_width(text: &str) -> f64 {
    text.chars().map(character_width).sum()
}

fn character_width(c: char) -> f64 {
    match c {
        'm' | 'w' | 'M' | 'W' => 11.5,
        'i' | 'l' | 'j' | 't' | 'f' | 'r' | '.' | ',' | ':' | '-' | ' ' => 4.6,
        _ => 7.5,
    }
}

/// `text` cut to `width`, with a sign that something is missing.
pub(super) fn shortened(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let mut left = width - character_width('…');
    let fits = |c: &char| {
        left -= character_width(*c);
        left >= 0.0
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

/// The area that data is drawn in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Area {
    /// Left edge.
    pub(super) left: f64,
    /// Right edge.
    pub(super) right: f64,
    /// Upper edge.
    pub(super) top: f64,
    /// Lower edge.
    pub(super) bottom: f64,
}

impl Area {
    /// Lines and numbers of a horizontal axis at the bottom, with its `title` below.
    pub(super) fn x_axis(&self, scale: &Scale, title: &str) -> Markup {
        html! {
            @for tick in scale.ticks() {
                @let x = px(scale.at(tick));
                line class="grid" x1=(x) x2=(x) y1=(px(self.top)) y2=(px(self.bottom)) {}
                text class="tick" x=(x) y=(px(self.bottom + LINE)) text-anchor="middle" { (tick_label(tick)) }
            }
            text class="axis" x=(px(f64::midpoint(self.left, self.right))) y=(px(self.bottom + 2.3 * LINE))
                text-anchor="middle" { (title) }
        }
    }

    /// Lines and texts of a vertical axis at the left, with its `title` in the upper left corner.
    pub(super) fn y_axis(&self, ticks: &[(f64, String)], title: &str) -> Markup {
        html! {
            @for (y, label) in ticks {
                line class="grid" x1=(px(self.left)) x2=(px(self.right)) y1=(px(*y)) y2=(px(*y)) {}
                text class="tick" x=(px(self.left - 6.0)) y=(px(y + 4.0)) text-anchor="end" { (label) }
            }
            text class="axis" x="2" y="14" text-anchor="start" { (title) }
        }
    }
}

/// A finished figure with a name and a description for those who cannot see it.
pub(super) struct Picture {
    /// Unique on its page.
    pub(super) id: String,
    /// Height; the width is [`WIDTH`].
    pub(super) height: f64,
    /// What it shows, in a line.
    pub(super) name: &'static str,
    /// How to read it.
    pub(super) description: &'static str,
    /// The elements.
    pub(super) content: Markup,
}

impl Picture {
    /// As a part of a page, which has the style.
    pub(super) fn inline(&self) -> Markup {
        let (name, description) = (format!("{}-name", self.id), format!("{}-description", self.id));
        html! {
            svg viewBox=(view_box(self.height)) role="img" aria-labelledby={ (name) " " (description) } {
                title id=(name) { (self.name) }
                desc id=(description) { (self.description) }
                (self.content)
            }
        }
    }

    /// As a file of its own, with `note` in its last line.
    pub(super) fn file(&self, note: &str) -> String {
        let height = self.height + 2.0 * LINE;
        let file = html! {
            // The namespace makes it an SVG file; nobody loads it.
            svg xmlns="http://www.w3.org/2000/svg" viewBox=(view_box(height)) width=(px(WIDTH)) height=(px(height))
                role="img" {
                title { (self.name) }
                desc { (self.description) }
                style { (PreEscaped(STYLE)) }
                rect class="page" x="0" y="0" width=(px(WIDTH)) height=(px(height)) {}
                (self.content)
                text class="axis" x="2" y=(px(height - 9.0)) text-anchor="start" { (shortened(note, WIDTH - 4.0)) }
            }
        };
        format!("{}\n", file.into_string())
    }
}

fn view_box(height: f64) -> String {
    format!("0 0 {} {}", px(WIDTH), px(height))
}

/// Moves `wanted` positions apart, at least `gap` between neighbours, as little as order allows, between `low` and
/// `high`; where there is no room for all, evenly between them. Returns them in the order given.
pub(super) fn apart(wanted: &[f64], gap: f64, (low, high): (f64, f64)) -> Vec<f64> {
    let n = wanted.len();
    let gap = if n > 1 { gap.min((high - low) / (n - 1) as f64) } else { gap };
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut placed = vec![low; n];
    let mut floor = low;
    for (rank, &index) in order.iter().enumerate() {
        let ceiling = high - gap * (n - 1 - rank) as f64;
        placed[index] = wanted[index].min(ceiling).max(floor);
        floor = placed[index] + gap;
    }
    placed
}

/// A label beside its point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Label {
    /// Left edge of the text.
    pub(super) left: f64,
    /// Right edge of the text.
    pub(super) right: f64,
    /// Middle of the text's height.
    pub(super) y: f64,
    /// Whether it is so far away that a line must connect it.
    pub(super) far: bool,
}

/// Places a label of each `width` beside its point inside `area`, so that no two overlap and no label covers a point
/// as long as there is room.
pub(super) fn labels(points: &[(f64, f64)], widths: &[f64], area: Area) -> Vec<Label> {
    const OFFSET: f64 = 9.0;
    let mut boxes: Vec<[f64; 4]> = points.iter().map(|(x, y)| [x - 6.0, y - 6.0, x + 6.0, y + 6.0]).collect();
    let mut placed = Vec::new();
    for (&(x, y), &width) in points.iter().zip(widths) {
        let candidates = (0..24).flat_map(|step: i32| {
            // 0, 1 up, 1 down, 2 up, ... at the right and at the left; then above and below.
            let lines = f64::from(if step % 2 == 0 { step / 2 } else { -(step + 1) / 2 });
            let dy = lines * LINE;
            let centred = (step > 0).then_some((x - width / 2.0, dy));
            [Some((x + OFFSET, dy)), Some((x - OFFSET - width, dy)), centred].into_iter().flatten()
        });
        let fits = |&(left, dy): &(f64, f64)| {
            let rect = rectangle(left, y + dy, width);
            rect[0] >= area.left
                && rect[2] <= area.right
                && rect[1] >= area.top
                && rect[3] <= area.bottom
                && !boxes.iter().any(|other| overlap(other, &rect))
        };
        let clamped = (x + OFFSET).min(area.right - width).max(area.left);
        let (left, dy) = candidates.clone().find(fits).unwrap_or((clamped, 0.0));
        let middle = (y + dy).clamp(area.top + LINE / 2.0, area.bottom - LINE / 2.0);
        boxes.push(rectangle(left, middle, width));
        placed.push(Label { left, right: left + width, y: middle, far: dy.abs() > 1.5 * LINE });
    }
    placed
}

fn rectangle(left: f64, y: f64, width: f64) -> [f64; 4] {
    [left, y - LINE / 2.0, left + width, y + LINE / 2.0]
}

fn overlap(a: &[f64; 4], b: &[f64; 4]) -> bool {
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let log = |values: [f64; 2]| Scale::log(values.into_iter(), (0.0, 100.0)).ticks();
        assert_eq!(log([0.9, 60.0]), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(log([0.9, 9_000.0]), [1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4]);
        assert!(log([1.0, 1.1]).len() >= 2);
        assert!((2..=TICKS_MAX).contains(&log([1e-300, 1e300]).len()));
        assert_eq!(Scale::linear((0.0, 132.0), (0.0, 1.0)).ticks(), [0.0, 50.0, 100.0]);
        assert_eq!([0.1 + 0.2, 50.0, 1e-5, 1e8].map(tick_label), ["0.3", "50", "1e-5", "1e8"]);
    }

    #[test]
    fn scales_never_leave_their_range() {
        for scale in [
            Scale::log([2.0, 8.0].into_iter(), (10.0, 20.0)),
            Scale::log(std::iter::empty(), (10.0, 20.0)),
            Scale::linear((3.0, 3.0), (10.0, 20.0)),
            Scale::linear((f64::NAN, f64::INFINITY), (10.0, 20.0)),
        ] {
            for value in [-1.0, 0.0, 1e-320, 4.0, 1e308, f64::INFINITY, f64::NAN] {
                assert!((10.0..=20.0).contains(&scale.at(value)), "{scale:?} at {value}");
            }
        }
    }

    #[test]
    fn texts_are_moved_apart_and_stay_inside() {
        assert_eq!(apart(&[50.0, 50.0, 51.0], 10.0, (0.0, 100.0)), [50.0, 60.0, 70.0]);
        assert_eq!(apart(&[99.0, 98.0], 10.0, (0.0, 100.0)), [100.0, 90.0]);
        assert_eq!(apart(&[0.0; 3], 90.0, (0.0, 100.0)), [0.0, 50.0, 100.0]);
        let area = Area { left: 0.0, right: 300.0, top: 0.0, bottom: 200.0 };
        let points = [(20.0, 20.0); 6];
        let placed = labels(&points, &[80.0; 6], area);
        for (i, a) in placed.iter().enumerate() {
            let box_a = rectangle(a.left, a.y, 80.0);
            assert!(box_a[0] >= 0.0 && box_a[2] <= 300.0 && box_a[1] >= 0.0, "{a:?}");
            for b in &placed[i + 1..] {
                assert!(!overlap(&box_a, &rectangle(b.left, b.y, 80.0)), "{a:?} and {b:?}");
            }
        }
    }
}
