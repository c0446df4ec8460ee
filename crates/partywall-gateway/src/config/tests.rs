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

#[test]
fn the_schema_knows_every_table() {
    let schema = Config::schema();
    for key in ["listen", "kv-events", "hedge-after", "block-tokens", "replica", "proxy"] {
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
