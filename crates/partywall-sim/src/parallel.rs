//! Independent runs spread over threads: how many there are changes nothing but the time.

use std::sync::atomic::{AtomicUsize, Ordering};

/// `work` of each item, on at most `threads` threads; results in the order of the items.
pub fn in_order<T: Sync, R: Send>(items: &[T], threads: usize, work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return done };
            done.push((index, work(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads.clamp(1, items.len().max(1))).map(|_| scope.spawn(take)).collect();
        let mut done = take();
        for helper in helpers {
            match helper.join() {
                Ok(theirs) => done.extend(theirs),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        let doubled: Vec<u64> = items.iter().map(|item| item * 2).collect();
        for threads in [0, 1, 3, 200] {
            assert_eq!(in_order(&items, threads, |item| item * 2), doubled, "{threads}");
        }
        assert!(in_order(&[] as &[u64], 2, |item| *item).is_empty());
    }
}
