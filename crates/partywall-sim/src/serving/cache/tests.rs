use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn names(of: &[u64]) -> Vec<PrefixHash> {
    of.iter().map(|name| PrefixHash(*name)).collect()
}

/// A prompt is computed and ends; gives what had to go for it.
fn serve(cache: &mut BlockCache, prompt: &[u64]) -> Vec<u64> {
    let (prompt, mut removed) = (names(prompt), Vec::new());
    let found = cache.matched(&prompt);
    assert!(cache.reserve(&prompt[..found], (prompt.len() - found) as u64, &mut removed));
    let mut stored = Vec::new();
    cache.name(&prompt[found..], &mut stored);
    assert_eq!(stored, prompt[found..]);
    cache.release(&prompt, 0);
    removed.into_iter().map(|name| name.0).collect()
}

#[test]
fn what_was_used_longest_ago_goes_first_ends_before_beginnings() {
    let mut cache = BlockCache::new(5);
    assert!(serve(&mut cache, &[1, 2, 3]).is_empty());
    assert!(serve(&mut cache, &[10, 11]).is_empty());
    // The first prompt is used again: the second is the oldest now.
    assert!(serve(&mut cache, &[1, 2, 3]).is_empty());
    assert_eq!(serve(&mut cache, &[20]), [11]);
    assert_eq!(serve(&mut cache, &[21, 22]), [10, 3]);
    assert_eq!(cache.matched(&names(&[1, 2, 3])), 2);
    assert_eq!((cache.held(), cache.pinned()), (5, 0));
}

#[test]
fn what_is_in_use_stays() {
    let mut cache = BlockCache::new(4);
    let mut removed = Vec::new();
    serve(&mut cache, &[1, 2]);
    assert!(cache.reserve(&names(&[1, 2]), 1, &mut removed));
    // One is free, and none may go.
    assert!(!cache.reserve(&[], 2, &mut removed));
    assert!(cache.reserve(&[], 1, &mut removed));
    assert_eq!((removed.len(), cache.pinned()), (0, 4));
    cache.release(&[], 1);
    cache.release(&names(&[1, 2]), 1);
    assert!(cache.reserve(&[], 3, &mut removed));
    assert_eq!(removed, names(&[2]));
}

#[test]
fn a_block_that_two_use_is_idle_when_both_have_ended() {
    let mut cache = BlockCache::new(2);
    let mut removed = Vec::new();
    serve(&mut cache, &[1]);
    assert!(cache.reserve(&names(&[1]), 0, &mut removed) && cache.reserve(&names(&[1]), 0, &mut removed));
    cache.release(&names(&[1]), 0);
    assert_eq!(cache.pinned(), 1);
    cache.release(&names(&[1]), 0);
    assert_eq!(cache.pinned(), 0);
    cache.clear(&mut removed);
    assert_eq!((removed, cache.held()), (names(&[1]), 0));
}

/// A prompt of the tree in which block `n` of branch `b` is shared by all prompts that agree in `b` up to there.
fn prompt(branch: u64, length: u64) -> Vec<PrefixHash> {
    (0..length).map(|depth| PrefixHash((branch >> (2 * (7 - depth.min(7)))) * 100 + depth)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_held_is_bounded_and_of_every_prompt_an_unbroken_beginning(
        requests in prop::collection::vec((0_u64..1 << 16, 1_u64..12, 0_u64..5, any::<bool>()), 1..150),
    ) {
        let mut cache = BlockCache::new(30);
        let mut running: Vec<(Vec<PrefixHash>, u64)> = Vec::new();
        let (mut told, mut prompts) = (BTreeSet::new(), Vec::new());
        for (branch, length, more, ends) in requests {
            let prompt = prompt(branch, length);
            let found = cache.matched(&prompt);
            let (mut removed, mut stored) = (Vec::new(), Vec::new());
            let needed = prompt.len() as u64 - found as u64 + more;
            let used: BTreeSet<_> = running.iter().flat_map(|(prompt, _)| prompt).copied().collect();
            let woken = prompt[..found].iter().filter(|name| !used.contains(name)).count() as u64;
            if cache.reserve(&prompt[..found], needed, &mut removed) {
                cache.name(&prompt[found..], &mut stored);
                running.push((prompt.clone(), more));
                prompts.push(prompt);
            } else {
                prop_assert!(removed.is_empty() && cache.pinned() + woken + needed > 30);
            }
            for name in removed {
                prop_assert!(told.remove(&name));
            }
            for name in stored {
                prop_assert!(told.insert(name));
            }
            if ends && !running.is_empty() {
                let (prompt, more) = running.remove(0);
                cache.release(&prompt, more);
            }
            prop_assert!(cache.held() <= 30 && cache.pinned() <= cache.held());
            prop_assert_eq!(cache.names().collect::<BTreeSet<_>>(), told.clone());
            for (prompt, _) in &running {
                prop_assert_eq!(cache.matched(prompt), prompt.len(), "in use and gone");
            }
            for prompt in &prompts {
                let matched = cache.matched(prompt);
                prop_assert!(prompt[matched..].iter().all(|name| !told.contains(name)), "a gap");
            }
        }
        for (prompt, more) in running {
            cache.release(&prompt, more);
        }
        prop_assert_eq!(cache.pinned(), 0);
    }
}
