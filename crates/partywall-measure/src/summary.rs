//! The figures of a record by names: what the ledger points at.
//!
//! A row stands wherever the plan has it, and in another place after records were merged; its name stays. It is
//! `<ls>.<be>.<wall>` where the wall was set in one way beside that tenant, and in any case
//! `<ls>.<be>.<wall>.<setting>`, the setting with everything but letters and digits as `-`: `resnet50-b1.gemm.mps-percentage.50-50`.
//! Who else was at work stands behind the best-effort tenant, joined by `+`.

use std::collections::BTreeMap;

use crate::record::{Figures, Processes, Row};

/// The figures of `rows` by name.
pub fn summary(rows: &[Row]) -> BTreeMap<String, Figures> {
    let mut all: BTreeMap<String, Figures> = BTreeMap::new();
    for row in rows {
        let short = short(row);
        if let Some(how) = slug(row) {
            all.insert(format!("{short}.{how}"), figures(row));
        }
        if rows.iter().filter(|other| self::short(other) == short).count() == 1 {
            all.insert(short, figures(row));
        }
    }
    all
}

fn figures(row: &Row) -> Figures {
    Figures {
        slowdown_p99: row.slowdown_p99,
        response_slowdown_p99: row.response_slowdown_p99,
        be_kept: row.be_kept,
        saturated: row.saturated,
    }
}

fn short(row: &Row) -> String {
    let beside: String = row.beside.iter().map(|name| format!("+{name}")).collect();
    format!("{}.{}{beside}.{}", row.ls, row.be, row.wall)
}

/// How the wall was set; `None` where there is nothing to set.
fn slug(row: &Row) -> Option<String> {
    let one = if row.processes == Processes::One { " one" } else { "" };
    let text = format!("{}{one}", row.setting).to_lowercase();
    let words: Vec<&str> =
        text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    (!words.is_empty()).then(|| words.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    #[test]
    fn a_row_has_a_short_name_while_its_wall_is_set_in_one_way() {
        let row = sample().rows[0].clone();
        let set = |setting: &str| Row { setting: setting.to_owned(), ..row.clone() };
        let names = |rows: &[Row]| summary(rows).into_keys().collect::<Vec<String>>();
        assert_eq!(names(&[set("64/68")]), ["a.b.green-contexts", "a.b.green-contexts.64-68-one"]);
        assert_eq!(
            names(&[set("64/68"), set("32/100")]),
            ["a.b.green-contexts.32-100-one", "a.b.green-contexts.64-68-one"]
        );
        let plain = Row { processes: Processes::Separate, beside: vec!["c".to_owned()], ..set("") };
        assert_eq!(names(&[plain]), ["a.b+c.green-contexts"]);
    }

    #[test]
    fn the_figures_are_those_of_the_row() {
        let row = sample().rows[0].clone();
        let found = summary(std::slice::from_ref(&row));
        let figures = found["a.b.green-contexts"];
        assert_eq!((figures.slowdown_p99, figures.be_kept), (row.slowdown_p99, row.be_kept));
        assert_eq!(figures.saturated, row.saturated);
    }
}
