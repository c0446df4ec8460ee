//! The command line that measures the same again.

use clap::{Args as _, Command, FromArgMatches as _, ValueEnum};

use crate::cli::vram::InterfereArguments;

/// What was asked for where it is not what is done anyway. Which GPU of the machine it was is nobody else's.
pub(super) fn command(arguments: &InterfereArguments) -> String {
    let mut words = vec!["partywall vram interfere".to_owned()];
    words.extend(arguments.look.gpu.gpu.as_ref().map(|gpu| format!("--gpu sim:{}", gpu.0)));
    let matches = InterfereArguments::augment_args(Command::new("interfere")).get_matches_from(["interfere"]);
    let defaults = InterfereArguments::from_arg_matches(&matches).map(|defaults| options(&defaults));
    let defaults = defaults.unwrap_or_default();
    let changed = options(arguments).into_iter().filter(|option| !defaults.contains(option));
    words.extend(changed.map(|(name, value)| format!("--{name} {value}")));
    words.push("--json".to_owned());
    words.join(" ")
}

/// What a value is called on the command line.
pub(super) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn options(arguments: &InterfereArguments) -> Vec<(&'static str, String)> {
    let InterfereArguments {
        look,
        work,
        loads,
        threads,
        load_threads,
        requests,
        launches,
        launch_data,
        code_places,
        pages,
        data,
        load_data,
    } = arguments;
    let numbers = |list: &[u32]| list.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    vec![
        ("work", work.iter().map(name).collect::<Vec<_>>().join(",")),
        ("loads", loads.iter().map(name).collect::<Vec<_>>().join(",")),
        ("threads", numbers(threads)),
        ("load-threads", numbers(load_threads)),
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: InterfereArguments,
    }

    #[test]
    fn only_what_is_not_done_anyway_is_said() {
        let said = |words: &[&str]| {
            let line = Line::parse_from([&["interfere"], words].concat());
            command(&line.arguments)
        };
        assert_eq!(said(&[]), "partywall vram interfere --json");
        assert_eq!(said(&["--json", "--fresh", "--device", "1"]), "partywall vram interfere --json");
        let words = ["--work", "long,graph", "--threads", "64", "--pages", "paired", "--launch-data", "0B"];
        let words = [&words[..], &["--gpu", "sim:h200", "--load-threads", "128,1024"]].concat();
        assert_eq!(
            said(&words),
            "partywall vram interfere --gpu sim:h200 --work long,graph --threads 64 --load-threads 128,1024 --launch-data 0B --pages \
             paired --json"
        );
    }
}
