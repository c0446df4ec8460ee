//! The command line that measures the same again.

use clap::{Args, Command, FromArgMatches, ValueEnum};

use crate::cli::SimulatedGpu;
use crate::cli::vram::{InterfereArguments, LookArguments, MapArguments};

/// What was asked for where it is not what is done anyway. Which GPU of the machine it was is nobody else's.
pub(super) trait Again: Args + FromArgMatches {
    const NAME: &'static str;

    fn look(&self) -> &LookArguments;

    /// What decides what is measured, by name.
    fn options(&self) -> Vec<(&'static str, String)>;

    /// The whole line, on the GPU that was asked for behind the command's name or, `before`, in front of it.
    fn command(&self, before: Option<&SimulatedGpu>) -> String {
        let mut words = vec![format!("partywall vram {}", Self::NAME)];
        words.extend(self.look().gpu.gpu.as_ref().or(before).map(|gpu| format!("--gpu sim:{}", gpu.0)));
        let matches = Self::augment_args(Command::new(Self::NAME)).get_matches_from([Self::NAME]);
        let defaults = Self::from_arg_matches(&matches).map(|defaults| defaults.options());
        let defaults = defaults.unwrap_or_default();
        let changed = self.options().into_iter().filter(|option| !defaults.contains(option));
        words.extend(changed.map(|(name, value)| format!("--{name} {value}")));
        words.extend(self.look().fresh.then(|| "--fresh".to_owned()));
        words.push("--json".to_owned());
        words.join(" ")
    }
}

impl Again for MapArguments {
    const NAME: &'static str = "map";

    fn look(&self) -> &LookArguments {
        &self.look
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let sizes = [("memory", self.memory), ("slices", self.slices)];
        let mut options: Vec<(&'static str, String)> =
            sizes.into_iter().filter_map(|(name, size)| Some((name, size?.to_string()))).collect();
        options.extend([("checks", self.checks.to_string()), ("seed", self.look.seed.to_string())]);
        options
    }
}

impl Again for InterfereArguments {
    const NAME: &'static str = "interfere";

    fn look(&self) -> &LookArguments {
        &self.look
    }

    fn options(&self) -> Vec<(&'static str, String)> {
        let Self {
            look,
            work,
            loads,
            threads,
            load_threads,
            load_sms,
            held,
            requests,
            launches,
            launch_data,
            code_places,
            pages,
            data,
            load_data,
        } = self;
        let numbers = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        vec![
            ("work", work.iter().map(name).collect::<Vec<_>>().join(",")),
            ("loads", loads.iter().map(name).collect::<Vec<_>>().join(",")),
            ("threads", numbers(threads)),
            ("load-threads", numbers(load_threads)),
            ("load-sms", numbers(load_sms)),
            ("held", held.map_or_else(String::new, |percent| percent.to_string())),
            ("requests", requests.to_string()),
            ("launches", launches.to_string()),
            ("launch-data", launch_data.to_string()),
            ("code-places", code_places.to_string()),
            ("pages", name(pages)),
            ("data", data.to_string()),
            ("load-data", load_data.to_string()),
            ("seed", look.seed.to_string()),
        ]
    }
}

/// What a value is called on the command line.
pub(super) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line<A: Args> {
        #[command(flatten)]
        arguments: A,
    }

    fn said<A: Again>(words: &str) -> String {
        Line::<A>::parse_from(["x"].into_iter().chain(words.split_whitespace())).arguments.command(None)
    }

    #[test]
    fn only_what_is_not_done_anyway_is_said() {
        assert_eq!(said::<InterfereArguments>("--json --device 1"), "partywall vram interfere --json");
        let words = "--gpu sim:h200 --work long,graph --threads 64 --load-threads 128,1024 --launch-data 0B --pages paired";
        let expected = format!("partywall vram interfere {words} --json");
        assert_eq!(said::<InterfereArguments>(words), expected);
        assert_eq!(said::<MapArguments>("--checks 100000"), "partywall vram map --json");
        let words = "--memory 1GiB --slices 64MiB --seed 3 --fresh";
        assert_eq!(said::<MapArguments>(words), format!("partywall vram map {words} --json"));
    }
}
