//! Progress on standard error while something takes time, and work spread over the cores.

use indicatif::{ProgressBar, ProgressStyle};
use partywall_sim::parallel::in_order;

/// A bar of `steps`; hidden where standard error is no terminal.
pub(crate) fn bar(steps: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {pos}/{len} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_message(what.to_owned());
    bar
}

/// `work` of every item on as many threads as there are cores, in the order of the items.
pub(crate) fn parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    in_order(items, cores(), work)
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
