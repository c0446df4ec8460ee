//! Who drew on how many SMs when: one strip per wall, all over the same time.

use maud::{Markup, html};
use partywall_core::units::SmCount;
use partywall_sim::experiment::TenantResult;
use partywall_sim::metrics::Timeline;

use super::svg::{Area, LINE, Picture, Scale, WIDTH, px, shortened, text_width};
use super::{Section, Shown};

const LEFT: f64 = 34.0;
const RIGHT: f64 = WIDTH - 20.0;
/// Height of the steps of a strip, and with its heading.
const STRIP: f64 = 48.0;
const PITCH: f64 = STRIP + 30.0;
/// Bins drawn of a strip at most, one for each unit of width; neighbours are averaged beyond that.
const BINS_MAX: usize = 700;
/// Colours that tenants take turns with.
const COLOURS: usize = 8;

/// The figure; `None` where no timeline was recorded.
pub(super) fn strips(id: String, section: &Section, cells: &[Shown<'_>], sms: SmCount) -> Option<Picture> {
    let recorded: Vec<(&Shown<'_>, &Timeline)> = cells
        .iter()
        .filter_map(|shown| Some((shown, shown.cell.timeline.as_ref()?)))
        .filter(|(_, strip)| strip.sms.iter().any(|bins| !bins.is_empty()))
        .collect();
    let tenants = &recorded.first()?.0.cell.tenants;
    let longest = recorded.iter().map(|(_, strip)| duration_ms(strip)).fold(0.0, f64::max);
    let x = Scale::linear((0.0, longest), (LEFT, RIGHT));
    let legend = legend(section, tenants);
    let top = legend.1 + 16.0;
    let areas = (0..recorded.len()).map(|i| {
        let top = top + PITCH * i as f64 + LINE;
        Area { left: LEFT, right: RIGHT, top, bottom: top + STRIP }
    });
    let bottom = top + PITCH * recorded.len() as f64;
    let content = html! {
        (legend.0)
        @for ((shown, timeline), area) in recorded.iter().zip(areas) {
            (strip(section, shown, timeline, area, &x, sms))
        }
        @for tick in x.ticks() {
            @let at = px(x.at(tick));
            text class="tick" x=(at) y=(px(bottom + 2.0)) text-anchor="middle" { (super::svg::tick_label(tick)) }
        }
        text class="axis" x=(px(f64::midpoint(LEFT, RIGHT))) y=(px(bottom + 2.0 + 1.3 * LINE)) text-anchor="middle" {
            "ms since the beginning of the window"
        }
    };
    let name = "SMs that each tenant drew on over time, behind each wall";
    let description = "Stacked steps: the latency-sensitive tenant at the bottom, the others above it, idle SMs left \
                       empty. All strips show the same window of time and the same arrivals.";
    Some(Picture { id, height: bottom + 2.0 * LINE + 4.0, name, description, content })
}

fn duration_ms(strip: &Timeline) -> f64 {
    strip.sms.iter().map(Vec::len).max().unwrap_or(0) as f64 * strip.bin.as_ms()
}

fn strip(
    section: &Section,
    shown: &Shown<'_>,
    timeline: &Timeline,
    area: Area,
    x: &Scale,
    sms: SmCount,
) -> Markup {
    let y = Scale::linear((0.0, f64::from(sms.0)), (area.bottom, area.top));
    let right = x.at(duration_ms(timeline));
    let layers = stacked(section.ls, timeline, sms);
    let title = |tenant: usize| {
        let result = shown.cell.tenants.get(tenant);
        result
            .map(|t| format!("{}: {:.1} of {} SMs on average", t.name, t.sms_mean, sms.0))
            .unwrap_or_default()
    };
    let mut heading = shown.marked();
    let placed =
        shown.cell.tenants.iter().map(|tenant| format!("{} {}", tenant.class.short(), tenant.placed));
    for part in placed {
        heading.push_str(" · ");
        heading.push_str(&part);
    }
    html! {
        text class="label" x=(px(LEFT)) y=(px(area.top - 5.0)) text-anchor="start" {
            (shortened(&heading, RIGHT - LEFT))
        }
        rect class="idle" x=(px(LEFT)) y=(px(area.top)) width=(px(RIGHT - LEFT)) height=(px(STRIP)) {}
        @for layer in &layers {
            path class=(colour(section, layer.tenant)) d=(steps(layer, (x.at(0.0), right), &y)) {
                title { (title(layer.tenant)) }
            }
        }
        @for tick in x.ticks() {
            @let at = px(x.at(tick));
            line class="grid over" x1=(at) x2=(at) y1=(px(area.top)) y2=(px(area.bottom)) {}
        }
        text class="tick" x=(px(LEFT - 5.0)) y=(px(area.top + 9.0)) text-anchor="end" { (sms.0) }
        text class="tick" x=(px(LEFT - 5.0)) y=(px(area.bottom)) text-anchor="end" { "0" }
    }
}

/// One tenant's band of a strip: between which numbers of SMs, per bin.
struct Layer {
    tenant: usize,
    bands: Vec<(f64, f64)>,
}

/// The tenants on top of each other, the LS one first; never beyond the SMs there are.
fn stacked(ls: usize, timeline: &Timeline, sms: SmCount) -> Vec<Layer> {
    let bins = timeline.sms.iter().map(Vec::len).max().unwrap_or(0);
    let per = bins.div_ceil(BINS_MAX).max(1);
    let mut order: Vec<usize> = (0..timeline.sms.len()).collect();
    order.sort_by_key(|tenant| (*tenant != ls, *tenant));
    let mut below = vec![0.0; bins.div_ceil(per)];
    let layer = |tenant: usize| {
        let averages =
            timeline.sms[tenant].chunks(per).map(|bins| bins.iter().sum::<f64>() / bins.len() as f64);
        let bands = below.iter_mut().zip(averages).map(|(below, sms_drawn)| {
            let low = *below;
            *below = (low + sms_drawn.max(0.0)).min(f64::from(sms.0));
            (low, *below)
        });
        Layer { tenant, bands: bands.collect() }
    };
    order.into_iter().map(layer).collect()
}

/// The outline of a band: its upper steps to the right, its lower steps back, equal neighbours as one step. Where
/// nothing is drawn on for a while, the outline is interrupted, so that no hairline is left.
fn steps(layer: &Layer, (left, right): (f64, f64), y: &Scale) -> String {
    let n = layer.bands.len().max(1) as f64;
    let x = |bin: usize| px(left + (right - left) * bin as f64 / n);
    let mut path = String::new();
    let drawn = |band: &(f64, f64)| px(y.at(band.0)) != px(y.at(band.1));
    let mut bin = 0;
    while bin < layer.bands.len() {
        let run = layer.bands[bin..].iter().take_while(|band| drawn(band)).count();
        if run > 0 {
            let bands = &layer.bands[bin..bin + run];
            path.push_str(&format!("M{} {}", x(bin), px(y.at(bands[0].0))));
            for (i, band) in bands.iter().enumerate() {
                if i == 0 || px(y.at(bands[i - 1].1)) != px(y.at(band.1)) {
                    path.push_str(&format!("H{}V{}", x(bin + i), px(y.at(band.1))));
                }
            }
            path.push_str(&format!("H{}", x(bin + run)));
            for (i, band) in bands.iter().enumerate().rev() {
                if i + 1 == run || px(y.at(bands[i + 1].0)) != px(y.at(band.0)) {
                    path.push_str(&format!("H{}V{}", x(bin + i + 1), px(y.at(band.0))));
                }
            }
            path.push('Z');
        }
        bin += run.max(1);
    }
    path
}

fn colour(section: &Section, tenant: usize) -> String {
    if tenant == section.ls {
        return "sm t-ls".to_owned();
    }
    if Some(tenant) == section.be {
        return "sm t-be".to_owned();
    }
    format!("sm t-{}", tenant % COLOURS)
}

/// Swatches with names, in as many lines as they need, and the height they take.
fn legend(section: &Section, tenants: &[TenantResult]) -> (Markup, f64) {
    let (mut x, mut y) = (LEFT, 16.0);
    let mut order: Vec<usize> = (0..tenants.len()).collect();
    order.sort_by_key(|tenant| (*tenant != section.ls, *tenant));
    let mut entries = Vec::new();
    let named = |tenant: usize| {
        let TenantResult { name, class, .. } = &tenants[tenant];
        (format!("{} ({})", shortened(name, 250.0), class.short()), colour(section, tenant))
    };
    let idle = ("idle".to_owned(), "idle".to_owned());
    for (text, class) in order.into_iter().map(named).chain([idle]) {
        let width = 18.0 + text_width(&text) + 16.0;
        if x + width > RIGHT && x > LEFT {
            (x, y) = (LEFT, y + 1.3 * LINE);
        }
        entries.push((x, y, text, class));
        x += width;
    }
    let markup = html! {
        @for (x, y, text, class) in &entries {
            rect class=(class) x=(px(*x)) y=(px(y - 10.0)) width="12" height="12" {}
            text class="label" x=(px(x + 18.0)) y=(px(*y)) text-anchor="start" { (text) }
        }
    };
    (markup, y)
}
