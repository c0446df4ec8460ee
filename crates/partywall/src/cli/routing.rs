//! What can be said to the commands about routing.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use partywall_sim::serving::comparison::OFFERED;

/// Engines at most: a replay of an hour takes seconds with so many.
const ENGINES_MAX: u32 = 10_000;

/// `partywall sim route`.
#[derive(Debug, Args)]
pub struct RouteArguments {
    /// The load: a trace in Mooncake's format, one JSON object per line with the blocks of its prompt.
    #[arg(long, value_name = "FILE", conflicts_with = "generate", required_unless_present = "generate")]
    pub trace: Option<PathBuf>,
    /// A load with the statistics of Mooncake's conversation trace instead.
    #[arg(long)]
    pub generate: bool,
    /// How long the generated load is, in minutes.
    #[arg(long, value_name = "MINUTES", default_value_t = 59, requires = "generate", value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub minutes: u32,
    /// How much faster than recorded the load comes.
    #[arg(long, value_name = "FACTORS", value_delimiter = ',', default_value = "1,1.5,2")]
    pub rate: Vec<f64>,
    /// Tokens of each engine's cache.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "1M,3M")]
    pub cache: Vec<Tokens>,
    /// The policies, by name; all; or ablations: the default one, and without one of its parts each.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "all")]
    pub policy: Vec<String>,
    /// Engines, all alike.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=i64::from(ENGINES_MAX)))]
    pub engines: u32,
    /// So many loads at the same time, each with prompts of its own: for larger fleets.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub copies: u32,
    /// Also at the recorded rate with best-effort requests beside the load: long prompts that nothing else shares.
    #[arg(long)]
    pub mixed: bool,
    /// How many of these, as a multiple of what could still be computed.
    #[arg(long, value_name = "FACTOR", default_value_t = OFFERED, requires = "mixed")]
    pub offered: f64,
    /// Answers come whole, not as streams: a router hears of a first token when all of the answer is there.
    #[arg(long)]
    pub whole: bool,
    /// Seed of the best-effort requests and of a generated load; the same seed gives the same bytes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print results as JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Also write report.html, with figures, and report.json into this folder.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// A number of tokens, which users write as `3M` or `500k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens(pub u64);

impl FromStr for Tokens {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, factor) = match text.strip_suffix(['M', 'm']) {
            Some(digits) => (digits, 1_000_000),
            None => text.strip_suffix(['K', 'k']).map_or((text, 1), |digits| (digits, 1_000)),
        };
        let tokens = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
        tokens
            .filter(|tokens| *tokens > 0)
            .map(Self)
            .ok_or_else(|| format!("`{text}` is no number of tokens; write one such as 1M or 500k"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_have_thousands_and_millions() {
        for (text, tokens) in [("3M", 3_000_000), ("500k", 500_000), ("1m", 1_000_000), ("4096", 4096)] {
            assert_eq!(text.parse(), Ok(Tokens(tokens)), "{text}");
        }
        for text in ["", "M", "0", "0k", "-1M", "1.5M", "99999999999999M", "1G"] {
            assert!(text.parse::<Tokens>().unwrap_err().contains("such as 1M"), "{text}");
        }
    }
}
