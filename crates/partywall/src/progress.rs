//! Progress on standard error while something takes time, and work spread over the cores.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressStyle};
use partywall_core::units::Nanos;
use partywall_sim::parallel::in_order;

/// A bar of `steps`; hidden where standard error is no terminal.
pub(crate) fn bar(steps: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {pos}/{len} {elapsed}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> "));
    bar.set_message(what.to_owned());
    bar
}

/// For where standard error is no terminal, such as a log: a line now and then instead of a bar that moves.
pub(crate) struct Lines {
    said: Option<Nanos>,
}

impl Lines {
    /// At most one line in so long.
    const EVERY: Nanos = Nanos::from_secs(10);

    /// None where there is a terminal, which has the bar.
    pub(crate) fn for_logs() -> Option<Self> {
        (!std::io::stderr().is_terminal()).then_some(Self { said: None })
    }

    /// Says `line` if the last one is long enough ago.
    #[expect(clippy::print_stderr, reason = "progress goes to standard error")]
    pub(crate) fn say(&mut self, now: Nanos, line: &str) {
        if self.said.is_none_or(|said| now.saturating_sub(said) >= Self::EVERY) {
            self.said = Some(now);
            eprintln!("{line}");
        }
    }
}

/// A line about what begins now.
#[expect(clippy::print_stderr, reason = "progress goes to standard error")]
pub(crate) fn say(line: &str) {
    eprintln!("{line}");
}

/// `work` of every item on as many threads as there are cores, in the order of the items.
pub(crate) fn parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    in_order(items, cores(), work)
}

/// Cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Seconds since it was made.
#[expect(
    clippy::disallowed_methods,
    reason = "the edge of the process: how long something took is what is asked"
)]
pub(crate) fn stopwatch() -> impl FnMut() -> f64 {
    let start = std::time::Instant::now();
    move || start.elapsed().as_secs_f64()
}
