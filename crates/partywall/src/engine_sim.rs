//! `partywall engine-sim`: a stand-in inference engine.

use std::io::Write as _;

use partywall_engine_sim::error::Error;
use partywall_engine_sim::events::wire::Shape;
use partywall_engine_sim::server::{self, Address};
use partywall_engine_sim::settings::{EventSettings, Settings};
use partywall_engine_sim::tokenizer;

use crate::cli::engine_sim::EngineSimArguments;
use crate::error::Failure;
use crate::output;

pub(crate) fn run(arguments: &EngineSimArguments) -> Result<(), Failure> {
    let ready = |addresses: &[Address]| {
        let lines = if arguments.json {
            serde_json::to_string(addresses).unwrap_or_default() + "\n"
        } else {
            addresses.iter().map(line).collect()
        };
        // Whoever started it may not care to read this; it serves all the same.
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    };
    if let Some(directory) = &arguments.tokenizer {
        let files =
            [("tokenizer.json", tokenizer::tokenizer()), ("tokenizer_config.json", tokenizer::config())];
        output::write_all(directory, &files.each_ref().map(|(name, text)| (*name, text.as_str())))?;
    }
    server::run(settings(arguments), ready).map_err(|error| match error {
        Error::Setting { .. } => Failure::input(error),
        Error::Listen { .. } | Error::Bind { .. } | Error::Runtime(_) | Error::Ended { .. } => {
            Failure::machine(error, None)
        }
    })?;
    // Nothing but faults ends an engine.
    Err(Failure::Exit { code: 1, message: Some("all replicas have died, as a fault asked for".to_owned()) })
}

fn settings(arguments: &EngineSimArguments) -> Settings {
    let events = arguments.kv_events.as_ref().map(|publish| EventSettings {
        publish: publish.clone(),
        replay: arguments.kv_replay.clone(),
        topic: arguments.kv_topic.clone(),
        kept: arguments.kv_kept as usize,
        shape: Shape {
            format: arguments.kv_format,
            encoding: arguments.kv_encoding,
            hashes: arguments.kv_hashes,
        },
    });
    let mut models = arguments.model.iter();
    let model = models.next();
    Settings {
        listen: arguments.listen,
        replicas: arguments.replicas,
        ranks: arguments.ranks,
        model: model.cloned().unwrap_or_default(),
        aliases: models.cloned().collect(),
        loras: arguments.lora.clone(),
        prefill_tokens_per_s: arguments.prefill_tokens_per_s,
        token_time: arguments.token_time,
        streams: arguments.streams,
        cache_tokens: arguments.cache_tokens,
        block_tokens: arguments.block_tokens,
        context_tokens: arguments.context_tokens,
        by_priority: arguments.by_priority,
        events,
        faults: arguments.fault.clone(),
        time_scale: arguments.time_scale,
        seed: arguments.seed,
    }
}

fn line(address: &Address) -> String {
    let Address { replica, http, ranks: _, kv_events, kv_replay } = address;
    let part = |what: &str, endpoint: &Option<String>| {
        endpoint.as_ref().map(|endpoint| format!(", {what} {endpoint}")).unwrap_or_default()
    };
    format!("replica {replica}: http://{http}{}{}\n", part("events", kv_events), part("replay", kv_replay))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn what_nobody_says_is_the_engine_of_the_comparisons() {
        let cli = Cli::try_parse_from(["partywall", "engine-sim"]).unwrap();
        let Command::EngineSim(arguments) = cli.command else { panic!("another command") };
        assert_eq!(settings(&arguments), Settings::default());
    }
}
