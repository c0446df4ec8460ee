//! What a report says, in sentences made from its numbers.

use partywall_core::wall::Wall;
use partywall_sim::validate::WallError;

use super::{Report, Section, Shown, number};

/// Largest slowdown that counts as keeping the tail.
const KEPT_TAIL: f64 = 1.1;
/// Smallest slowdown that is worth warning of.
const FELT: f64 = 1.5;

impl Report {
    /// `NVIDIA H200 (h200), seed 7`.
    pub(super) fn what(&self) -> String {
        format!("{} ({}), seed {}", self.gpu_name, self.gpu_id, self.seed)
    }

    /// Both as a sentence.
    pub(super) fn provenance(&self) -> String {
        format!("{}: {}.", self.origin.how(), self.what())
    }

    /// What to take from a section.
    pub(super) fn summary(&self, section: &Section) -> String {
        let cells = self.shown(section);
        let Some(ls) = cells.iter().find_map(|shown| shown.ls) else {
            return "No wall fits this GPU and these tenants.".to_owned();
        };
        let neighbour = section
            .be
            .and_then(|be| cells.iter().find_map(|shown| Some(shown.cell.tenants.get(be)?.name.as_str())))
            .unwrap_or("others");
        let mut sentences = vec![match ls.solo.p99_ms {
            Some(p99) => format!(
                "{} alone on the GPU answers 99 of 100 requests within {} ms of starting on them.",
                ls.name,
                number::significant(p99)
            ),
            None => format!("{} made too few requests for a p99 of its own.", ls.name),
        }];
        let shared: Vec<&Shown<'_>> =
            cells.iter().filter(|shown| shown.cell.wall != Wall::Exclusive).collect();
        sentences.extend(best(&shared, neighbour));
        sentences.extend(worst(&shared));
        sentences.extend(saturated(&shared));
        sentences.join(" ")
    }

    /// One line per wall that the model was held against.
    pub(super) fn error_lines(&self) -> Vec<[String; 5]> {
        let line = |error: &WallError| {
            [
                error.wall.to_string(),
                error.n.to_string(),
                number::fraction(error.median_error_p50),
                number::fraction(error.p90_error_p50),
                error.median_error_p99.map_or("-".to_owned(), number::fraction),
            ]
        };
        self.errors.iter().map(line).collect()
    }

    /// Which walls were not held against measurements; `None` if all were.
    pub(super) fn not_validated_line(&self) -> Option<String> {
        let walls = self.not_validated();
        let ids: Vec<&str> = walls.iter().map(|wall| wall.id()).collect();
        (!walls.is_empty()).then(|| format!("Not validated, for lack of measured pairs: {}.", ids.join(", ")))
    }
}

/// What slowdown a wall costs and what BE keeps behind it, where both are known.
fn known<'a>(shown: &'a Shown<'_>) -> Option<(&'a Shown<'a>, f64, f64)> {
    Some((shown, shown.row.slowdown_p99?, shown.row.be_kept?))
}

fn best(shared: &[&Shown<'_>], neighbour: &str) -> Option<String> {
    let good = |(_, slowdown, kept): &(&Shown<'_>, f64, f64)| *slowdown <= KEPT_TAIL && *kept > 0.0;
    let known = || shared.iter().filter_map(|shown| known(shown));
    let told = |(shown, slowdown, kept): (&Shown<'_>, f64, f64)| {
        let (slowdown, kept) = (number::ratio(slowdown), number::fraction(kept));
        format!("{}: slowdown {slowdown}, {neighbour} keeps {kept} of its rate alone", shown.in_words())
    };
    let limit = number::ratio(KEPT_TAIL);
    if let Some(best) = known().filter(good).max_by(|a, b| a.2.total_cmp(&b.2)) {
        let n = known().filter(good).count();
        let verb = if n == 1 { "keeps" } else { "keep" };
        let which = if n == 1 { "it is" } else { "most work beside it is done behind" };
        let walls = shared.len();
        return Some(format!(
            "Of {walls} shared walls {n} {verb} that p99 within {limit} times; {which} {}.",
            told(best)
        ));
    }
    let nearest = known().min_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(format!("No shared wall keeps that p99 within {limit} times; nearest is {}.", told(nearest)))
}

fn worst(shared: &[&Shown<'_>]) -> Option<String> {
    // What had too few requests for a tail is slow above all.
    let slowed = shared.iter().filter_map(|shown| Some((shown, shown.row.best_known_slowdown()?)));
    let (shown, _) = slowed.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, slowdown)| *slowdown >= FELT)?;
    Some(format!("The largest slowdown is {}, behind {}.", shown.slowdown(), shown.in_words()))
}

fn saturated(shared: &[&Shown<'_>]) -> Option<String> {
    let walls: Vec<String> =
        shared.iter().filter(|shown| shown.row.saturated).map(|shown| shown.in_words()).collect();
    (!walls.is_empty()).then(|| format!("The requests could not all be served behind {}.", walls.join(", ")))
}
