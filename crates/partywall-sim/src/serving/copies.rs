//! A load many times over, for fleets larger than the one that it was recorded on.

use partywall_core::units::Nanos;
use partywall_routing::prefix::PrefixHash;

use super::replay::LoadRequest;
use crate::chance::{Chance, mix};

/// Requests of all copies together: some 300 bytes each.
pub const MAX_COPIED: usize = 20_000_000;

/// The copies begin within this time, so that what comes in lots in one does not come in lots in all.
const SPREAD_S: f64 = 60.0;

/// There are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{requests} requests, {copies} times, are more than {MAX_COPIED}; take fewer copies or a shorter load"
)]
pub struct TooManyCopies {
    /// Of the load.
    pub requests: usize,
    /// How many times.
    pub copies: u32,
}

/// So many loads like `load` at the same time, the first of them `load` itself. The others begin up to a minute later, and share no block
/// with each other.
///
/// # Errors
/// There would be more than [`MAX_COPIED`] requests.
pub fn copied(load: Vec<LoadRequest>, copies: u32, seed: u64) -> Result<Vec<LoadRequest>, TooManyCopies> {
    let requests = load.len();
    if requests.saturating_mul(copies as usize) > MAX_COPIED {
        return Err(TooManyCopies { requests, copies });
    }
    let mut all = load;
    all.reserve_exact(requests * (copies as usize).saturating_sub(1));
    for copy in 1..u64::from(copies) {
        let later = Nanos((Chance::new(seed, copy).unit() * SPREAD_S * 1e9) as u64);
        let own = mix(seed ^ copy.rotate_left(32));
        for number in 0..requests {
            let LoadRequest { at, class, input_tokens, output_tokens, .. } = all[number];
            let prefixes = all[number].prefixes.iter().map(|block| PrefixHash(mix(block.0 ^ own))).collect();
            let at = at.saturating_add(later);
            all.push(LoadRequest { at, class, prefixes, input_tokens, output_tokens });
        }
    }
    // Stable, so that requests of the same time stay in their order.
    all.sort_by_key(|request| request.at);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use partywall_core::tenant::Class;

    use super::*;
    use crate::serving::generate::generate;

    #[test]
    fn copies_share_nothing_and_each_is_like_the_load() {
        let load = generate(Nanos::from_secs(60), 1, Class::LatencySensitive);
        assert_eq!(copied(load.clone(), 1, 7), Ok(load.clone()));
        let all = copied(load.clone(), 3, 7).unwrap();
        assert_eq!(all, copied(load.clone(), 3, 7).unwrap());
        assert!(all.is_sorted_by_key(|request| request.at));
        let blocks = |load: &[LoadRequest]| -> BTreeSet<PrefixHash> {
            load.iter().flat_map(|request| request.prefixes.iter().copied()).collect()
        };
        assert_eq!(blocks(&all).len(), 3 * blocks(&load).len());
        let tokens = |load: &[LoadRequest]| load.iter().map(|request| request.input_tokens).sum::<u64>();
        assert_eq!((all.len(), tokens(&all)), (3 * load.len(), 3 * tokens(&load)));
    }

    #[test]
    fn too_many_are_refused() {
        let load = generate(Nanos::from_secs(3600), 1, Class::LatencySensitive);
        let error = copied(load, 10_000, 1).unwrap_err().to_string();
        assert!(error.contains("10000 times, are more than 20000000; take fewer"), "{error}");
    }
}
