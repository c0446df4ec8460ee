//! Nothing in a figure leaves its viewBox, however odd the data.

use partywall_core::units::{Nanos, SmCount};
use partywall_core::wall::Wall;
use partywall_sim::metrics::Percentiles;
use partywall_sim::metrics::Timeline;

use super::{Origin, Report, cell, report};

/// Average width of a character in the type of the figures, units of the viewBox; a little less than what labels
/// reserve.
const CHARACTER: f64 = 6.2;

fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let start = element.find(&format!(" {name}=\""))? + name.len() + 3;
    element[start..].split('"').next()
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

/// Every coordinate of the elements of `svg`, as (x or y, value, where).
fn coordinates(svg: &str) -> Vec<(char, f64, String)> {
    let mut found = Vec::new();
    for element in svg.split('<').filter(|element| !element.starts_with('/')) {
        let mut add = |axis: char, value: f64| found.push((axis, value, element.to_owned()));
        for (name, axis) in [("x", 'x'), ("x1", 'x'), ("x2", 'x'), ("y", 'y'), ("y1", 'y'), ("y2", 'y')] {
            if let Some(value) = attribute(element, name) {
                add(axis, number(value));
            }
        }
        if let (Some(cx), Some(cy), Some(r)) =
            (attribute(element, "cx"), attribute(element, "cy"), attribute(element, "r"))
        {
            let (cx, cy, r) = (number(cx), number(cy), number(r));
            for (axis, value) in [('x', cx - r), ('x', cx + r), ('y', cy - r), ('y', cy + r)] {
                add(axis, value);
            }
        }
        if let (Some(width), Some(height)) = (attribute(element, "width"), attribute(element, "height")) {
            assert!(number(width) >= 0.0 && number(height) >= 0.0, "{element}");
            add('x', number(attribute(element, "x").unwrap_or("0")) + number(width));
            add('y', number(attribute(element, "y").unwrap_or("0")) + number(height));
        }
        if let Some(anchor) = attribute(element, "text-anchor") {
            let x = number(attribute(element, "x").unwrap());
            let text = element.split('>').nth(1).unwrap();
            let width = text.chars().count() as f64 * CHARACTER;
            let left = x - width
                * match anchor {
                    "start" => 0.0,
                    "middle" => 0.5,
                    _ => 1.0,
                };
            add('x', left);
            add('x', left + width);
        }
        if let Some(path) = attribute(element, "d") {
            path_coordinates(path).into_iter().for_each(|(axis, value)| add(axis, value));
        }
    }
    found
}

fn path_coordinates(path: &str) -> Vec<(char, f64)> {
    let mut found = Vec::new();
    for command in path.split_inclusive(|c: char| c.is_ascii_alphabetic()).skip(1).zip(commands(path)) {
        let numbers = command.0.trim_end_matches(|c: char| c.is_ascii_alphabetic()).split_whitespace();
        let numbers: Vec<f64> = numbers.map(number).collect();
        match (command.1, numbers.as_slice()) {
            ('M' | 'L', [x, y]) => found.extend([('x', *x), ('y', *y)]),
            ('H', [x]) => found.push(('x', *x)),
            ('V', [y]) => found.push(('y', *y)),
            ('Z', []) => {}
            other => panic!("{other:?} in {path}"),
        }
    }
    found
}

fn commands(path: &str) -> impl Iterator<Item = char> {
    path.chars().filter(char::is_ascii_alphabetic)
}

pub(in crate::report) fn inside(svg: &str) {
    let view_box: Vec<f64> = attribute(svg, "viewBox").unwrap().split(' ').map(number).collect();
    let found = coordinates(svg);
    assert!(found.len() > 10, "{svg}");
    for (axis, value, element) in found {
        let end = if axis == 'x' { view_box[2] } else { view_box[3] };
        assert!(value.is_finite() && (0.0..=end).contains(&value), "{axis} {value} of {end}: {element}");
    }
}

/// Holds the coordinates of all figures against their viewBoxes; returns the number of figures.
pub(super) fn check(report: &Report) -> usize {
    let html = report.html();
    let svgs: Vec<&str> =
        html.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect();
    svgs.iter().for_each(|svg| inside(svg));
    for (_, file) in report.pictures() {
        inside(&file);
    }
    assert!(!report.table(100).is_empty());
    assert!(serde_json::from_str::<serde_json::Value>(&report.json()).is_ok());
    svgs.len()
}

/// A report whose cells are changed by `odd`.
fn with(odd: impl Fn(usize, &mut partywall_sim::experiment::CellResult)) -> Report {
    let mut report = report();
    let walls = Wall::ALL.into_iter().enumerate();
    report.sections[0].cells =
        walls.map(|(i, wall)| cell(wall, 1.0 + i as f64, 2.0 + i as f64).into()).collect();
    report.sections[0].cells.iter_mut().enumerate().for_each(|(i, cell)| odd(i, &mut cell.result));
    report
}

#[test]
fn ordinary_data() {
    assert_eq!(check(&report()), 3);
    assert_eq!(check(&with(|_, _| ())), 3);
}

#[test]
fn one_cell_and_none() {
    let mut report = report();
    report.sections[0].cells.truncate(1);
    assert_eq!(check(&report), 3);
    report.sections[0].cells.clear();
    assert_eq!(check(&report), 0);
    assert!(report.html().contains("No wall fits"));
}

#[test]
fn a_wall_twice() {
    let mut report = with(|_, _| ());
    let fair = report.sections[0].cells.clone();
    report.sections[0].cells.extend(fair.into_iter().map(|mut cell| {
        cell.result.copies = "copy-fair";
        cell
    }));
    check(&report);
    assert!(report.html().contains("green-contexts fair") && report.html().contains("green-contexts fifo"));
}

#[test]
fn all_saturated() {
    let report = with(|_, cell| {
        cell.tenants[0].saturated = true;
        cell.tenants[0].slowdown_p99 = None;
    });
    assert_eq!(check(&report), 3);
    assert_eq!(report.table(100).matches("saturated:").count(), Wall::ALL.len());
}

#[test]
fn nothing_known() {
    check(&with(|_, cell| {
        for tenant in &mut cell.tenants {
            tenant.cdf.clear();
            (tenant.service, tenant.solo) = (Percentiles::default(), Percentiles::default());
            (tenant.slowdown_p99, tenant.kept) = (None, None);
        }
        cell.timeline = None;
    }));
    check(&with(|_, cell| cell.tenants.clear()));
}

#[test]
fn all_points_in_one_place() {
    check(&with(|_, cell| {
        cell.tenants[0].slowdown_p99 = Some(1.0);
        cell.tenants[1].kept = Some(1.0);
        cell.tenants[0].cdf = vec![(1.0, 0.5); 60];
    }));
}

#[test]
fn huge_and_impossible_numbers() {
    let odd = [1e300, f64::INFINITY, f64::NAN, -1.0, 0.0, 1e-300, 1e9, 5e-324, f64::MAX, 1.0];
    check(&with(|i, cell| {
        cell.tenants[0].slowdown_p99 = Some(odd[i]);
        cell.tenants[1].kept = Some(odd[odd.len() - 1 - i]);
        cell.tenants[0].cdf = odd.iter().zip(odd.iter().rev()).map(|(a, b)| (*a, *b)).collect();
        cell.tenants[0].solo.p99_ms = Some(odd[i]);
        cell.tenants[0].service.p99_ms = Some(odd[i]);
        let strip = Timeline { from: Nanos(5), bin: Nanos(1), sms: vec![odd.to_vec(), odd.to_vec()] };
        cell.timeline = Some(strip);
    }));
}

#[test]
fn odd_timelines() {
    let strips: [(u64, Vec<Vec<f64>>); 10] = [
        (0, vec![vec![1.0], vec![1.0]]),
        (1, vec![]),
        (1, vec![vec![], vec![]]),
        (1, vec![vec![1.0; 10_000], vec![500.0; 10_000]]),
        (1, vec![vec![1.0], vec![1.0, 2.0, 3.0]]),
        (u64::MAX / 4, vec![vec![66.0; 3]; 2]),
        (1_000, vec![vec![132.0; 9]; 12]),
        (1_000, vec![vec![0.0; 9]; 2]),
        (1_000_000, vec![vec![0.5, 0.0, 0.5]; 2]),
        (1_000_000, vec![vec![66.0, 66.0]; 1]),
    ];
    let mut report = with(|i, cell| {
        let (bin, sms) = strips[i].clone();
        cell.timeline = Some(Timeline { from: Nanos::ZERO, bin: Nanos(bin), sms });
    });
    check(&report);
    report.sms = SmCount(0);
    check(&report);
}

#[test]
fn long_names() {
    check(&with(|_, cell| {
        let more: Vec<_> = (0..7).map(|_| cell.tenants[1].clone()).collect();
        cell.tenants.extend(more);
        for tenant in &mut cell.tenants {
            tenant.name = "a tenant with a name that is longer than any figure is wide ".repeat(5);
            tenant.placed = "some place that takes long to describe ".repeat(5);
        }
    }));
}

#[test]
fn many_pairs_have_an_overview() {
    let mut report = report();
    report.origin = Origin::Measured;
    let section = report.sections[0].clone();
    report.sections = (0..4)
        .map(|i| {
            let mut section = section.clone();
            for cell in &mut section.cells {
                cell.result.tenants[0].name = format!("victim-{}", i / 2);
                cell.result.tenants[1].name = format!("antagonist-{i}");
                // Too few requests for a tail: the median stands in, marked.
                cell.result.tenants[0].slowdown_p99 = None;
            }
            section.cells[2].setting = "50/50".to_owned();
            section
        })
        .collect();
    // Three figures a section, without strips where nothing was recorded, and the overview.
    assert_eq!(check(&report), 4 * 3 + 1);
    let html = report.html();
    assert!(html.contains("victim-0 beside") && html.contains("antagonist-3"));
    let table = report.table(100);
    assert!(table.contains("victim-1") && table.contains("50/50") && table.contains("2.00*"), "{table}");
    assert!(table.contains("saturated"), "{table}");
}
