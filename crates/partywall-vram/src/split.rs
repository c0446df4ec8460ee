//! Whether numbers are of two kinds.

/// Numbers divided in two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Where the division is: halfway between the means.
    pub at: f64,
    /// The means of the lower ones and of the higher ones.
    pub means: [f64; 2],
    /// The distance between the means in deviations within the two, which are pooled. Two halves of one bell have 2.7, of one
    /// rectangle 3.5; kinds that do not overlap have 5 and more.
    pub separation: f64,
    /// How many are lower.
    pub lower: usize,
}

/// From this on numbers are taken for two kinds.
pub const TWO_KINDS: f64 = 5.0;

/// Divides numbers so that what they deviate from the means of their parts, squared, is least. `None` for fewer than two different ones.
pub fn split(numbers: &[f64]) -> Option<Split> {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    if first == last {
        return None;
    }
    let count = sorted.len() as f64;
    // Relative to the middle, or squares of large numbers swallow the deviations.
    let centre = sorted.iter().sum::<f64>() / count;
    let whole: f64 = sorted.iter().map(|number| number - centre).sum();
    let squares: f64 = sorted.iter().map(|number| (number - centre).powi(2)).sum();
    let mut best: Option<(f64, Split)> = None;
    let mut below = 0.0;
    for lower in 1..sorted.len() {
        below += sorted[lower - 1] - centre;
        if sorted[lower - 1] == sorted[lower] {
            continue;
        }
        let (few, many) = (lower as f64, count - lower as f64);
        let means = [below / few, (whole - below) / many];
        let within = (squares - few * means[0].powi(2) - many * means[1].powi(2)).max(0.0);
        if best.is_none_or(|(least, _)| within < least) {
            let deviation = (within / count).sqrt();
            let means = means.map(|mean| mean + centre);
            let separation = (means[1] - means[0]) / deviation;
            best = Some((within, Split { at: means.iter().sum::<f64>() / 2.0, means, separation, lower }));
        }
    }
    best.map(|(_, split)| split)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chance::Chance;

    #[test]
    fn one_bell_and_one_rectangle_are_one_kind_and_two_bells_are_two() {
        let mut chance = Chance::new(1);
        let bell: Vec<f64> = (0..2_000).map(|_| 320.0 + 20.0 * chance.normal()).collect();
        let rectangle: Vec<f64> = (0..2_000).map(|_| 320.0 + 20.0 * chance.unit()).collect();
        for one in [&bell, &rectangle] {
            assert!(split(one).unwrap().separation < 3.8, "{:?}", split(one));
        }
        let far = bell.iter().take(500).map(|number| number + 200.0);
        let both: Vec<f64> = bell.iter().copied().chain(far).collect();
        let found = split(&both).unwrap();
        assert!(found.separation > 8.0 && found.lower == 2_000, "{found:?}");
    }

    #[test]
    fn what_is_all_the_same_cannot_be_divided() {
        assert_eq!(split(&[]), None);
        assert_eq!(split(&[3.0]), None);
        assert_eq!(split(&[3.0, 3.0]), None);
        let two = split(&[3.0, 3.0, 4.0]).unwrap();
        assert_eq!((two.means, two.lower, two.at), ([3.0, 4.0], 2, 3.5));
        assert!(two.separation > 1e6, "{two:?}");
    }
}
