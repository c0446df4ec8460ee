//! What types cannot say about a configuration: each rule with the place where it is broken and what would be right.

use partywall_core::config::is_tenant_name;
use partywall_core::diagnostic::{Diagnostic, Findings, Step, quoted};
use partywall_core::units::{Bytes, Nanos};
use partywall_routing::policy::NAMES;

use super::{Config, MAX_REPLICAS, Replica, sixteen};
use crate::target::Target;

/// Characters of a model's name.
const MAX_MODEL_CHARS: usize = 256;

/// Smallest buffer for a request's head that the HTTP reader takes.
const MIN_HEAD: Bytes = Bytes::from_kib(8);

/// The first list where a table belongs.
pub(super) fn list_for_table(text: &str, file: &str) -> Option<Diagnostic> {
    let findings = Findings::new(text, file, example)?;
    let tables =
        ["listen", "admin", "routing", "keys", "limits", "timeouts", "retry", "breaker", "health", "log"];
    findings.list_for_table(tables.map(|name| (name, vec![Step::Key(name)])))
}

/// How a key is written right.
pub(super) fn example(key: &str) -> Option<&'static str> {
    Some(match key {
        "address" => "address = \"127.0.0.1:8000\"",
        "workers" => "workers = 2, from 1 to 256",
        "cert" => "cert = \"cert.pem\"",
        "key" => "key = \"key.pem\"",
        "policy" => "policy = \"partywall\"",
        "class" => "class = \"latency-sensitive\" or class = \"best-effort\"",
        "file" => "file = \"keys.txt\"",
        "body" => "body = \"32MiB\" among the limits, body = \"1min\" among the timeouts",
        "head" => "head = \"64KiB\" among the limits, head = \"30s\" among the timeouts",
        "model" => "a table [[model]] for each model",
        "replica" => "a table [[replica]] for each replica",
        "proxy" => "a table [[proxy]] for each prefix",
        "name" => "name = \"llama-a\"",
        "url" => "url = \"http://10.0.0.5:8000\"",
        "alias-of" => "alias-of = \"llama-3.1-8b\"",
        "models" => "models = [\"llama-3.1-8b\"]",
        "prefix" => "prefix = \"/vision/\"",
        "endpoint" => "endpoint = \"tcp://10.0.0.5:5557\"",
        "replay" => "replay = \"tcp://10.0.0.5:5558\"",
        "ranks" => "ranks = 1",
        "kv-events" => "kv-events = { endpoint = \"tcp://10.0.0.5:5557\" }, or a list of such tables",
        "adapter-ids" => "adapter-ids = { french = 1 }",
        "node" => "node = \"http://127.0.0.1:9400\"",
        "statuses" => "statuses = [503]",
        "times" => "times = 2, at most 10",
        "block-tokens" => "block-tokens = 16, from 1 to 4096",
        "headers" => "headers = 100, from 1 to 1000",
        "connections" => "connections = 10000",
        "requests" => "requests = 8192",
        "prefill-tokens-per-s" => "prefill-tokens-per-s = 8000",
        "path" | "health-path" => "path = \"/health\"",
        "listen" | "admin" | "routing" | "keys" | "limits" | "timeouts" | "retry" | "breaker" | "health"
        | "log" => "a table with this name in brackets",
        _ => return None,
    })
}

/// What is wrong with `config`, which was read from `text`.
pub(super) fn check(config: &Config, text: &str, file: &str) -> Vec<Diagnostic> {
    // It was read, so it is TOML.
    let Some(mut found) = Findings::new(text, file, example) else { return Vec::new() };
    listeners(config, &mut found);
    bounds(config, &mut found);
    models(config, &mut found);
    replicas(config, &mut found);
    proxies(config, &mut found);
    found.into_diagnostics()
}

fn listeners(config: &Config, found: &mut Findings<'_>) {
    let listen = Step::Key("listen");
    if config.listen.cert.is_some() != config.listen.key.is_some() {
        found.report_value(&[listen], "TLS needs both a certificate and its key");
    }
    if config.listen.workers.is_some_and(|workers| !(1..=256).contains(&workers)) {
        found.report_value(&[listen, Step::Key("workers")], "this is no number of threads");
    }
    if !config.admin.address.ip().is_loopback() && config.admin.token_file.is_none() {
        let span = found.places().value(&[Step::Key("admin"), Step::Key("address")]);
        let help = "write token-file = \"admin.token\", or an address such as 127.0.0.1:8001";
        found.report(span, "everybody who reaches this address could change the gateway", help);
    }
}

fn bounds(config: &Config, found: &mut Findings<'_>) {
    let policy = &config.routing.policy;
    if !NAMES.contains(&policy.as_str()) {
        let span = found.places().value(&[Step::Key("routing"), Step::Key("policy")]);
        let help = format!("choose {}", NAMES.join(", "));
        found.report(span, format!("there is no policy {}", quoted(policy)), help);
    }
    let limit = |name| [Step::Key("limits"), Step::Key(name)];
    if config.limits.body == Bytes::ZERO {
        found.report_value(&limit("body"), "no request fits into nothing");
    }
    if config.limits.bodies < config.limits.body {
        let span = found.places().value(&[Step::Key("limits")]);
        found.report(
            span,
            "all bodies together may be less than one",
            "write a larger bodies, or a smaller body",
        );
    }
    if config.limits.head < MIN_HEAD || config.limits.head > Bytes::from_mib(1) {
        found.report_value(&limit("head"), "the head of a request may have 8KiB to 1MiB");
    }
    let numbers = [
        ("headers", config.limits.headers, 1000),
        ("connections", config.limits.connections, 1_000_000),
        ("requests", config.limits.requests, 1_000_000),
    ];
    for (name, value, most) in numbers {
        if !(1..=most).contains(&value) {
            found.report_value(&limit(name), format!("{value} is out of range"));
        }
    }
    let times = &config.timeouts;
    let times = [
        ("head", times.head),
        ("body", times.body),
        ("write", times.write),
        ("connect", times.connect),
        ("answer", times.answer),
        ("silence", times.silence),
    ];
    for (name, _) in times.into_iter().filter(|(_, time)| *time == Nanos::ZERO) {
        let path = [Step::Key("timeouts"), Step::Key(name)];
        let span = found.places().value(&path);
        found.report(span, "nothing is done in no time", "write a time such as \"30s\"");
    }
    for name in ["interval", "timeout"] {
        let time = if name == "interval" { config.health.interval } else { config.health.timeout };
        if time < Nanos::from_millis(1) {
            let span = found.places().value(&[Step::Key("health"), Step::Key(name)]);
            found.report(span, "replicas would be asked all the time", "write a time such as \"2s\"");
        }
    }
    if !config.health.path.is_empty() && !is_path(&config.health.path) {
        found.report_value(&[Step::Key("health"), Step::Key("path")], "this is no path");
    }
    if config.retry.times > 10 {
        found.report_value(
            &[Step::Key("retry"), Step::Key("times")],
            "so many retries would multiply every overload",
        );
    }
    if config.retry.statuses.iter().any(|status| !(400..=599).contains(status)) {
        found.report_value(
            &[Step::Key("retry"), Step::Key("statuses")],
            "only errors, 400 to 599, are tried again",
        );
    }
    for name in ["failures", "down-after", "up-after"] {
        let (table, value) = match name {
            "failures" => ("breaker", config.breaker.failures),
            "down-after" => ("health", config.health.down_after),
            _ => ("health", config.health.up_after),
        };
        if value == 0 {
            let span = found.places().value(&[Step::Key(table), Step::Key(name)]);
            found.report(span, "this counts from 1", "write 1 or more");
        }
    }
}

fn models(config: &Config, found: &mut Findings<'_>) {
    if config.models.is_empty() {
        found.report_value(&[Step::Key("model")], "there is no model");
    }
    let mut before: Vec<&str> = Vec::new();
    for (index, model) in config.models.iter().enumerate() {
        let at = [Step::Key("model"), Step::Index(index)];
        for name in std::iter::once(&model.name).chain(&model.adapters) {
            let key = if *name == model.name { "name" } else { "adapters" };
            let span = found.places().value(&[at[0], at[1], Step::Key(key)]);
            if name.is_empty() || name.len() > MAX_MODEL_CHARS || name.chars().any(char::is_control) {
                let help = format!("use 1 to {MAX_MODEL_CHARS} characters");
                found.report(span, format!("{} is no name of a model", quoted(name)), help);
            } else if before.contains(&name.as_str()) {
                let message = format!("a second model or adapter is named {}", quoted(name));
                found.report(span, message, "give each its own name");
            }
            before.push(name);
        }
        if !(1..=4096).contains(&model.block_tokens) {
            found.report_value(&[at[0], at[1], Step::Key("block-tokens")], "this is no size of a block");
        }
        if let Some(alias) = &model.alias_of {
            let known = config.models.iter().find(|other| other.name == *alias);
            let (message, help) = match known {
                None => (
                    format!("there is no model {}", quoted(alias)),
                    "write the name of one in a table [[model]]",
                ),
                Some(other) if other.alias_of.is_some() || other.name == model.name => {
                    (format!("{} is an alias itself", quoted(alias)), "name the model itself")
                }
                Some(_) if model.tokenizer.is_some() || model.block_tokens != sixteen() => {
                    ("an alias has the tokenizer and the blocks of its model".to_owned(), "write them there")
                }
                Some(_) => (String::new(), ""),
            };
            if !message.is_empty() {
                let span = found.places().value(&[at[0], at[1], Step::Key("alias-of")]);
                found.report(span, message, help);
            }
        }
        if model.chat_template.is_some() && model.tokenizer.is_none() {
            let span = found.places().value(&[at[0], at[1], Step::Key("chat-template")]);
            let help = "write tokenizer = \"tokenizer.json\" too";
            found.report(span, "a chat template without a tokenizer tells nothing", help);
        }
    }
}

fn replicas(config: &Config, found: &mut Findings<'_>) {
    if config.replicas.len() > MAX_REPLICAS {
        let span = found.places().key(&[Step::Key("replica"), Step::Index(MAX_REPLICAS)]);
        found.report(span, "there are too many replicas", format!("a gateway takes {MAX_REPLICAS}"));
    }
    for (index, replica) in config.replicas.iter().enumerate() {
        let at = [Step::Key("replica"), Step::Index(index)];
        if let Some((key, message)) = replica_problem(replica, config) {
            found.report_value(&[at[0], at[1], Step::Key(key)], message);
        } else if config.replicas[..index].iter().any(|other| other.name == replica.name) {
            let span = found.places().value(&[at[0], at[1], Step::Key("name")]);
            let message = format!("a second replica is named {}", quoted(&replica.name));
            found.report(span, message, "give each replica its own name");
        }
    }
}

/// What is wrong with a replica, if anything is: of which key, and why.
pub fn replica_problem(replica: &Replica, config: &Config) -> Option<(&'static str, String)> {
    if !is_tenant_name(&replica.name) {
        return Some(("name", format!("{} is no name of a replica", quoted(&replica.name))));
    }
    if let Err(error) = Target::parse(&replica.url) {
        return Some(("url", error));
    }
    if replica.models.is_empty() {
        return Some(("models", "a replica that serves no model gets no request".to_owned()));
    }
    let unknown = |name: &&String| !config.models.iter().any(|model| model.name == **name);
    if let Some(name) = replica.models.iter().find(unknown) {
        return Some(("models", format!("there is no model {}", quoted(name))));
    }
    let rate = replica.prefill_tokens_per_s;
    if !(rate.is_finite() && (1.0..=1e9).contains(&rate)) {
        return Some(("prefill-tokens-per-s", format!("{rate} is no rate of a replica")));
    }
    if replica.streams == 0 || replica.streams > 1_000_000 {
        return Some(("streams", "a replica generates for 1 to 1000000 requests".to_owned()));
    }
    if replica.token_time > Nanos::from_secs(3600) {
        return Some(("token-time", "a token takes less than an hour".to_owned()));
    }
    if replica.cache_tokens > 1 << 40 {
        return Some(("cache-tokens", "no cache is that large".to_owned()));
    }
    let sizes = replica.models.iter().filter_map(|name| {
        let place = config.models.iter().position(|model| model.name == *name)?;
        Some(config.models[config.base(place)].block_tokens)
    });
    let (least, most) = sizes.fold((u32::MAX, 0), |(least, most), size| (least.min(size), most.max(size)));
    if least < most {
        let message = format!(
            "its models have blocks of {least} and of {most} tokens, and a replica has one size of block; describe it as a replica for each"
        );
        return Some(("models", message));
    }
    if let Some(problem) = replica.kv_events.problem(replica, config) {
        return Some(("kv-events", problem));
    }
    if let Some(gpu) = &replica.gpu
        && let Err(error) = Target::parse(&gpu.node)
    {
        return Some(("gpu", format!("of the node: {error}")));
    }
    let path = replica.health_path.as_ref().filter(|path| !path.is_empty());
    if let Some(path) = path.filter(|path| !is_path(path)) {
        return Some(("health-path", format!("{} is no path", quoted(path))));
    }
    None
}

fn proxies(config: &Config, found: &mut Findings<'_>) {
    for (index, proxy) in config.proxies.iter().enumerate() {
        let at = |key| [Step::Key("proxy"), Step::Index(index), Step::Key(key)];
        let fits = is_path(&proxy.prefix) && proxy.prefix.ends_with('/') && !proxy.prefix.contains("//");
        if !fits {
            found.report_value(&at("prefix"), format!("{} is no prefix", quoted(&proxy.prefix)));
        }
        if !config.models.iter().any(|model| model.name == proxy.model) {
            let span = found.places().value(&at("model"));
            let help = "write the name of one in a table [[model]]";
            found.report(span, format!("there is no model {}", quoted(&proxy.model)), help);
        }
    }
}

/// Whether `text` can stand as a path in a request.
fn is_path(text: &str) -> bool {
    text.starts_with('/')
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#\"<>\\^`{|}".contains(&byte))
}
