use proptest::prelude::*;

use super::{Config, EXAMPLE};

const MODEL: &str = "[[model]]\nname = \"m\"\n";

fn wrong(text: &str) -> String {
    Config::parse(text, "gateway.toml").unwrap_err().to_string()
}

#[test]
fn the_example_is_right_and_survives_a_round_trip() {
    let config = Config::parse(EXAMPLE, "gateway.toml").unwrap();
    assert_eq!(config.replicas.len(), 2);
    let text = toml::to_string(&config).unwrap();
    assert_eq!(Config::parse(&text, "again.toml").unwrap(), config);
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let replica = |lines: &str| format!("{MODEL}[[replica]]\nname = \"a\"\n{lines}");
    let cases = [
        (String::new(), "gateway.toml:1:1: the key `model` is missing"),
        ("model = []\n".to_owned(), "there is no model"),
        (format!("[listn]\n{MODEL}"), "gateway.toml:1:2: unknown key `listn`"),
        (format!("[listn]\n{MODEL}"), "did you mean `listen`?"),
        (format!("[[listen]]\n{MODEL}"), "expected a table, found a list"),
        (format!("{MODEL}alias-of = \"n\"\n"), "gateway.toml:3:12: there is no model `n`"),
        (format!("{MODEL}alias-of = \"m\"\n"), "`m` is an alias itself"),
        (format!("{MODEL}{MODEL}"), "gateway.toml:4:8: a second model or adapter is named `m`"),
        (format!("[listen]\ncert = \"c\"\n{MODEL}"), "TLS needs both"),
        (format!("[admin]\naddress = \"0.0.0.0:1\"\n{MODEL}"), "gateway.toml:2:11: everybody who reaches"),
        (format!("[routing]\npolicy = \"best\"\n{MODEL}"), "gateway.toml:2:10: there is no policy `best`"),
        (format!("[limits]\nbody = \"0B\"\n{MODEL}"), "gateway.toml:2:8: no request fits"),
        (format!("[limits]\nbody = \"2GiB\"\n{MODEL}"), "all bodies together may be less than one"),
        (format!("[limits]\nhead = \"1KiB\"\n{MODEL}"), "may have 8KiB to 1MiB"),
        (format!("[timeouts]\nhead = \"0s\"\n{MODEL}"), "nothing is done in no time"),
        (format!("[timeouts]\nhead = \"5\"\n{MODEL}"), "has no unit"),
        (format!("[retry]\ntimes = 11\n{MODEL}"), "multiply every overload"),
        (format!("[retry]\nstatuses = [200]\n{MODEL}"), "only errors"),
        (replica("url = \"a\"\nmodels = [\"m\"]\n"), "gateway.toml:5:7: `a` "),
        (replica("url = \"http://a\"\nmodels = []\n"), "serves no model"),
        (replica("url = \"http://a\"\nmodels = [\"n\"]\n"), "there is no model `n`"),
        (
            replica("url = \"http://a\"\nmodels = [\"m\"]\nstreams = 0\n"),
            "gateway.toml:7:11: a replica generates",
        ),
        (
            replica("url = \"http://a\"\nmodels = [\"m\"]\nkv-events = { endpoint = \"x\" }\n"),
            "the endpoint `x` is no ZeroMQ address",
        ),
        (format!("{MODEL}[[proxy]]\nprefix = \"v\"\nmodel = \"m\"\n"), "`v` is no prefix"),
        (format!("{MODEL}[[proxy]]\nprefix = \"/v/\"\nmodel = \"n\"\n"), "there is no model `n`"),
    ];
    for (text, expected) in cases {
        let said = wrong(&text);
        assert!(said.contains(expected), "{text}\nsaid {said}\nnot {expected}");
    }
}

/// A replica of models `m` with an adapter `poet`, `n` and `m-batch`, which is `m`.
fn with_events(models: &str, events: &str) -> String {
    format!(
        "{MODEL}adapters = [\"poet\"]\n[[model]]\nname = \"n\"\n[[model]]\nname = \"big\"\nblock-tokens = 64\n\
         [[model]]\nname = \"m-batch\"\nalias-of = \"m\"\n\
         [[replica]]\nname = \"a\"\nurl = \"http://a\"\nmodels = [{models}]\nkv-events = {events}\n"
    )
}

#[test]
fn events_belong_to_a_model() {
    let cases = [
        ("\"m\"", "{ endpoint = \"ipc://a\" }"),
        ("\"m\", \"m-batch\"", "{ endpoint = \"ipc://a\", adapter-ids = { poet = 1 } }"),
        (
            "\"m\", \"n\"",
            "[{ endpoint = \"ipc://a\", model = \"m\" }, { endpoint = \"ipc://b\", model = \"n\" }]",
        ),
        ("\"m\", \"n\"", "{ endpoint = \"ipc://a\", model = \"poet\" }"),
        ("\"m\"", "[{ endpoint = \"ipc://a\", topic = \"x\" }, { endpoint = \"ipc://a\", topic = \"y\" }]"),
        ("\"m\"", "[]"),
    ];
    for (models, events) in cases {
        let config = Config::parse(&with_events(models, events), "gateway.toml");
        let config = config.unwrap_or_else(|error| panic!("{error}"));
        let text = toml::to_string(&config).unwrap();
        assert_eq!(Config::parse(&text, "again.toml").unwrap(), config, "{text}");
    }
    let cases = [
        ("\"m\", \"n\"", "{ endpoint = \"ipc://a\" }", "the replica serves `m`, `n`, and events do not say"),
        ("\"m\"", "{ endpoint = \"ipc://a\", model = \"n\" }", "the replica does not serve the model `n`"),
        (
            "\"n\"",
            "{ endpoint = \"ipc://a\", model = \"poet\" }",
            "the replica does not serve the model `poet`",
        ),
        (
            "\"n\"",
            "{ endpoint = \"ipc://a\", adapter-ids = { poet = 1 } }",
            "no model of the replica has the adapter",
        ),
        (
            "\"m\"",
            "[{ endpoint = \"ipc://a\" }, { endpoint = \"ipc://a\", topic = \"x\" }]",
            "`ipc://a` stands there twice",
        ),
        ("\"m\"", "{ endpoint = \"tcp://a:1\", ranks = 1025 }", "1025 is no number of ranks"),
        (
            "\"m\"",
            "[{ endpoint = \"tcp://a:1\", ranks = 600 }, { endpoint = \"tcp://b:1\", ranks = 600 }]",
            "1200 ranks are more than a replica may have",
        ),
        ("\"m\", \"big\"", "[]", "its models have blocks of 16 and of 64 tokens"),
        ("\"m\"", "3", "a table, or a list of tables"),
        ("\"m\"", "{ endpoint = \"ipc://a\", rank = 3 }", "unknown key `rank`"),
    ];
    for (models, events, expected) in cases {
        let said = wrong(&with_events(models, events));
        assert!(
            said.contains(expected) && said.contains("gateway.toml:"),
            "{events}\nsaid {said}\nnot {expected}"
        );
    }
}

#[test]
fn the_schema_knows_every_table() {
    let schema = Config::schema();
    for key in ["listen", "kv-events", "hedge-after", "block-tokens", "replica", "proxy", "adapter-ids"] {
        assert!(schema.contains(&format!("\"{key}\"")), "{key}");
    }
}

proptest! {
    #[test]
    fn no_text_ends_the_program(text in "\\PC{0,200}") {
        let _ = Config::parse(&text, "gateway.toml");
    }

    #[test]
    fn no_change_of_the_example_ends_the_program(at in 0..EXAMPLE.len(), with in "[\\PC\n]{0,4}", cut in 0usize..40) {
        let cut = (at + cut).min(EXAMPLE.len());
        let (Some(before), Some(after)) = (EXAMPLE.get(..at), EXAMPLE.get(cut..)) else { return Ok(()) };
        let _ = Config::parse(&format!("{before}{with}{after}"), "gateway.toml");
    }
}
