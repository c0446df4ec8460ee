//! Pages that are like one that was looked at before.

use super::Slice;

/// Pages that were looked at place by place, with the slices of their places.
#[derive(Debug, Default)]
pub(super) struct Whole(Vec<Vec<Slice>>);

impl Whole {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, page: Vec<Slice>) {
        self.0.push(page);
    }

    /// The page that has these slices at these places: one of those here with some bits of all places turned. `None` where there is none, and
    /// where it may be one or another.
    pub(super) fn like(&self, telling: &[(usize, Slice)]) -> Option<Vec<Slice>> {
        let mut found: Option<Vec<Slice>> = None;
        for page in &self.0 {
            let turns = (0..page.len())
                .filter(|turned| telling.iter().all(|&(place, slice)| page[place ^ turned] == slice));
            for turned in turns {
                let like: Vec<Slice> = (0..page.len()).map(|place| page[place ^ turned]).collect();
                if found.as_ref().is_some_and(|found| *found != like) {
                    return None;
                }
                found = Some(like);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(slices: &[u16]) -> Vec<Slice> {
        slices.iter().map(|&slice| Slice(slice)).collect()
    }

    #[test]
    fn a_page_is_told_by_some_of_its_places() {
        let mut whole = Whole::default();
        whole.push(page(&[0, 1, 2, 3, 4, 5, 6, 0]));
        whole.push(page(&[0, 1, 2, 3, 4, 5, 7, 7]));
        // The first one, with bit 1 turned.
        let told = whole.like(&[(0, Slice(2)), (4, Slice(6))]);
        assert_eq!(told, Some(page(&[2, 3, 0, 1, 6, 0, 4, 5])));
        assert_eq!(whole.like(&[(0, Slice(2)), (4, Slice(5))]), None, "like none");
        assert_eq!(whole.like(&[(0, Slice(1)), (1, Slice(0))]), None, "it may be either");
        assert_eq!(Whole::default().like(&[]), None);
        assert_eq!(whole.len(), 2);
    }
}
