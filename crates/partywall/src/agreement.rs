//! How far a recorded measurement agrees with ratios that were measured before: the summary that `results/` keeps.

use partywall_measure::plan::Plan;
use partywall_measure::record::{FactRecord, Record};
use serde::Serialize;

use crate::output;

/// What is written.
#[derive(Serialize)]
struct Agreement<'a> {
    simulated: bool,
    measured: &'a str,
    plan: &'a str,
    /// Rows that are held to their figure.
    held: usize,
    /// The largest absolute relative difference among them.
    worst_relative_difference: Option<f64>,
    worst_row: Option<&'a str>,
    /// All rows; `differs` is why one is not held to its figure.
    rows: &'a [FactRecord],
}

/// The agreement of a record with what its plan expects, as the plan says it today. Each is a file name and its text.
///
/// # Errors
/// When one of the two cannot be read, or they are not of the same rows.
pub fn recorded_agreement(record: (&str, &str), plan: (&str, &str)) -> Result<String, String> {
    let mut known = Record::parse(record.1, record.0).map_err(|error| error.to_string())?;
    let plan_read = Plan::parse(plan.1, plan.0, "facts").map_err(|error| error.to_string())?;
    let expected: Vec<_> =
        plan_read.pairs.iter().filter_map(|pair| Some((pair, pair.expect.as_ref()?))).collect();
    if expected.len() != known.facts.len() {
        let (rows, wanted) = (known.facts.len(), expected.len());
        return Err(format!("{} has {rows} rows and {} expects {wanted}; measure again", record.0, plan.0));
    }
    for (fact, (pair, expect)) in known.facts.iter_mut().zip(expected) {
        let name = |index: usize| &plan_read.tenants[index].name;
        let row = format!("{}: {} beside {}", pair.place, name(pair.ls), name(pair.be));
        if fact.row != row || fact.expected != expect.ratio {
            let message = format!("{} has the row `{}` where {} has `{row}`", record.0, fact.row, plan.0);
            return Err(message + "; measure again");
        }
        fact.differs.clone_from(&expect.differs);
    }
    let worst = known.worst_fact();
    let agreement = Agreement {
        simulated: false,
        measured: record.0,
        plan: plan.0,
        held: known.facts.iter().filter(|fact| fact.differs.is_none()).count(),
        worst_relative_difference: worst.and_then(|fact| fact.relative_difference).map(f64::abs),
        worst_row: worst.map(|fact| fact.row.as_str()),
        rows: &known.facts,
    };
    output::json(&agreement).map_err(|failure| failure.to_string())
}
