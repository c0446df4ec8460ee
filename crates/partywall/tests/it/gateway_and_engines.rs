//! The gateway in front of stand-in engines, all as programs: where requests go, what is survived, and that nothing is lost or comes twice.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Instant;

use partywall_engine_sim::tokens::{Domain, Words, fingerprint, of_chat, of_text};
use serde_json::{Value, json};

use crate::Scratch;
use crate::engine_sim::Engines;
use crate::http::{Answer, ask, metric, post};
use crate::patience::{LIMIT, until_or};

/// Tokens in a block of the engines' caches.
const BLOCK: u64 = 16;

/// Requests that an engine has answered whole.
const FINISHED: &str = "vllm:request_success_total{engine=\"0\",model_name=\"m\",finished_reason=\"stop\"}";

/// Engines and a gateway in front of them.
struct Site {
    engines: Engines,
    gateway: Child,
    /// What it says later; it may not find that nobody listens.
    _errors: BufReader<ChildStderr>,
    /// Where clients connect.
    clients: String,
    /// Where operators connect.
    operators: String,
    _scratch: Scratch,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.gateway.kill();
        let _ = self.gateway.wait();
    }
}

impl Site {
    /// So many engines, with more arguments for them and for the gateway's file.
    fn start(name: &str, replicas: usize, engine: &[&str], routing: &str) -> Self {
        let scratch = Scratch::new(&format!("gateway-and-engines-{name}"));
        let (folder, count) = (scratch.0.display().to_string(), replicas.to_string());
        let any = "tcp://127.0.0.1:0";
        let own = [
            "--replicas",
            &count,
            "--model",
            "m",
            "--tokenizer",
            &folder,
            "--kv-events",
            any,
            "--kv-replay",
            any,
        ];
        let engines = Engines::start(&[&own, engine].concat());
        let mut file = format!(
            "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n{routing}\n\
             [[model]]\nname = \"m\"\ntokenizer = \"tokenizer.json\"\n"
        );
        for (number, address) in engines.addresses.iter().enumerate() {
            let [http, events, replay] =
                ["http", "kv_events", "kv_replay"].map(|key| address[key].as_str().unwrap());
            let ranks = &address["ranks"];
            file += &format!(
                "[[replica]]\nname = \"r{number}\"\nurl = \"http://{http}\"\nmodels = [\"m\"]\n\
                 kv-events = {{ endpoint = \"{events}\", replay = \"{replay}\", ranks = {ranks} }}\n"
            );
        }
        let path = scratch.file("gateway.toml", &file);
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        let mut gateway = command.args(["gateway", &path]).stderr(Stdio::piped()).spawn().unwrap();
        let mut errors = BufReader::new(gateway.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        let addresses: Vec<&str> =
            line.split("http://").skip(1).filter_map(|rest| rest.split([' ', ';', '\n']).next()).collect();
        let [clients, operators] = addresses.as_slice() else { panic!("no addresses in {line:?}") };
        let (clients, operators) = ((*clients).to_owned(), (*operators).to_owned());
        Self { engines, gateway, _errors: errors, clients, operators, _scratch: scratch }
    }

    /// Sends a completion of so many tokens and waits for the answer.
    #[track_caller]
    fn complete(&self, prompt: &str, tokens: u32) -> Completed {
        self.ask(Form::Completion, prompt, tokens)
    }

    /// The same in another form.
    #[track_caller]
    fn ask(&self, form: Form, prompt: &str, tokens: u32) -> Completed {
        let (path, body) = form.request(prompt, tokens);
        let headers = [("content-type", "application/json")];
        let answer = ask(&self.clients, &format!("POST {path}"), &headers, &body.to_string()).unwrap();
        if answer.status != 200 {
            panic!("{}", answer.json());
        }
        let decision = Decision::read(answer.header("x-partywall-decision").unwrap());
        let answer = answer.json();
        assert_eq!(form.text(&answer), form.said(prompt, tokens));
        let cached_tokens = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        Completed { decision, cached_tokens }
    }

    /// Begins a stream.
    fn stream(&self, prompt: &str, tokens: u32) -> Answer {
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": true});
        ask(&self.clients, "POST /v1/completions", &[("content-type", "application/json")], &body.to_string())
            .unwrap()
    }

    /// The sum of a metric over all engines.
    fn engines(&self, name: &str) -> f64 {
        (0..self.engines.addresses.len()).map(|replica| metric(self.engines.http(replica), name)).sum()
    }

    /// Waits until the gateway has learned from events what a replica holds: a prompt that only that replica has seen, and not through the
    /// gateway, goes there and is found. `groups` counts the groups of prompts that were used for it.
    #[track_caller]
    fn learns(&self, form: Form, replica: usize, groups: &mut usize) -> Completed {
        let known = || metric(&self.operators, "partywall_gateway_known_blocks");
        let end = Instant::now() + LIMIT;
        loop {
            *groups += 1;
            let before = known();
            let (path, body) = form.request(&prompt(*groups, 0), 3);
            assert_eq!(post(self.engines.http(replica), path, &body).0, 200);
            until_or(|| known() != before, || format!("the gateway hears of replica {replica}"));
            let completed = self.ask(form, &prompt(*groups, 1), 3);
            let Completed { decision, cached_tokens } = &completed;
            if decision.replica == replica
                && *cached_tokens >= 192
                && decision.cached * BLOCK == *cached_tokens
            {
                return completed;
            }
            assert!(
                Instant::now() < end,
                "replica {replica} is not found: {decision:?}, {cached_tokens} tokens cached"
            );
        }
    }

    /// Waits until the gateway has heard all that the ranks of a replica have told.
    #[track_caller]
    fn up_to_date(&self, replica: usize, ranks: usize) {
        for rank in 0..ranks {
            let told = format!("partywall_engine_sim_event_number{{engine=\"{rank}\"");
            let heard = format!(
                "partywall_replica_kv_batches_total{{replica=\"r{replica}\",model=\"m\",rank=\"{rank}\"}}"
            );
            let both = || (metric(self.engines.http(replica), &told), metric(&self.operators, &heard));
            until_or(|| both().0 == both().1, || format!("rank {rank} is heard: {:?}", both()));
        }
    }

    /// Blocks that each rank of a replica holds, as the gateway knows.
    fn blocks(&self, replica: usize) -> Vec<u64> {
        let replicas = ask(&self.operators, "GET /api/v1/replicas", &[], "").unwrap().json();
        let feeds = replicas[replica]["kv_events"].as_array().unwrap();
        feeds.iter().map(|feed| feed["blocks"].as_u64().unwrap()).collect()
    }

    fn fault(&self, replica: usize, fault: &str) {
        let (status, answer) = post(self.engines.http(replica), "/fault", &json!({"fault": fault}));
        assert_eq!(status, 200, "{answer}");
    }
}

/// A completion that came whole, with the text that belongs to its prompt.
struct Completed {
    decision: Decision,
    cached_tokens: u64,
}

/// What the header `x-partywall-decision` says.
#[derive(Debug, PartialEq, Eq)]
struct Decision {
    replica: usize,
    /// Blocks of the prompt that the gateway took the replica to hold.
    cached: u64,
}

impl Decision {
    #[track_caller]
    fn read(header: &str) -> Self {
        let part = |name: &str| {
            let parts = header.split(';').filter_map(|part| part.trim().split_once('='));
            parts.into_iter().find_map(|(key, value)| (key == name).then_some(value))
        };
        let replica = part("replica").and_then(|name| name.strip_prefix('r')?.parse().ok());
        let cached = part("cached").and_then(|cached| cached.split('/').next()?.parse().ok());
        match (replica, cached) {
            (Some(replica), Some(cached)) => Self { replica, cached },
            _ => panic!("no replica r0, r1, .. or no cached=N/M in {header:?}"),
        }
    }
}

/// How something is asked.
#[derive(Debug, Clone, Copy)]
enum Form {
    Completion,
    Chat,
}

impl Form {
    fn request(self, prompt: &str, tokens: u32) -> (&'static str, Value) {
        match self {
            Self::Completion => {
                ("/v1/completions", json!({"model": "m", "prompt": prompt, "max_tokens": tokens}))
            }
            Self::Chat => {
                let messages =
                    json!([{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt}]);
                ("/v1/chat/completions", json!({"model": "m", "messages": messages, "max_tokens": tokens}))
            }
        }
    }

    fn text(self, answer: &Value) -> &str {
        let place = match self {
            Self::Completion => "/choices/0/text",
            Self::Chat => "/choices/0/message/content",
        };
        answer.pointer(place).unwrap().as_str().unwrap()
    }

    /// What an engine says to it: numbered words, its own for every prompt.
    fn said(self, prompt: &str, tokens: u32) -> String {
        let asked = match self {
            Self::Completion => of_text(prompt),
            Self::Chat => of_chat([("system", SYSTEM), ("user", prompt)].into_iter()),
        };
        Words::new(fingerprint(1, &Domain::default(), &asked)).take(tokens)
    }
}

/// What all chats begin with.
const SYSTEM: &str = "Be brief.";

fn said(prompt: &str, tokens: u32) -> String {
    Form::Completion.said(prompt, tokens)
}

/// The text in the events of a stream, and what its last event is.
fn heard(text: &str) -> (String, String) {
    let events: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let values = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let words =
        values.filter_map(|value| value.pointer("/choices/0/text")?.as_str().map(str::to_owned)).collect();
    (words, events.last().copied().unwrap_or_default().to_owned())
}

/// A prompt of a group: groups differ from their first token on, prompts of one are alike for 200.
fn prompt(group: usize, number: usize) -> String {
    format!("{group:04}{}{number} and {}", "shared ".repeat(30), "own ".repeat(number % 7))
}

#[test]
fn requests_go_where_their_beginning_is_and_the_header_says_what_was_found() {
    let site = Site::start("cache", 3, &["--time-scale", "1000"], "");
    let (mut groups, mut asked) = (0, 0);
    for replica in [0, 1, 2, 1, 0] {
        site.learns(Form::Completion, replica, &mut groups);
        for number in 2..6 {
            let Completed { decision, cached_tokens } = site.complete(&prompt(groups, number), 5);
            assert_eq!(decision, Decision { replica, cached: cached_tokens / BLOCK }, "number {number}");
            assert!(cached_tokens >= 192, "{cached_tokens}");
            asked += 1;
        }
    }
    // Those, and two for each time that something was to be learned.
    assert_eq!(site.engines(FINISHED), f64::from(asked) + 2.0 * groups as f64);
}

/// The gateway counts a chat's tokens as the engine does, by the tokenizer and the template that the engine wrote.
#[test]
fn chats_are_found_by_what_the_engine_tells_of_their_tokens() {
    let site = Site::start("chats", 2, &["--time-scale", "1000"], "");
    let mut groups = 0;
    for replica in [1, 0, 1] {
        let Completed { cached_tokens, .. } = site.learns(Form::Chat, replica, &mut groups);
        assert!(cached_tokens > 192, "with what all chats begin with: {cached_tokens}");
    }
}

/// Engines behind one address publish at ports of their own, and what one of them drops another one still has.
#[test]
fn ranks_of_a_replica_tell_each_of_their_own_cache() {
    let site = Site::start("ranks", 2, &["--ranks", "2", "--cache-tokens", "8k"], "");
    let tell = |prompt: &str| {
        let (path, body) = Form::Completion.request(prompt, 1);
        assert_eq!(post(site.engines.http(1), path, &body).0, 200);
    };
    // A request goes to the rank that has fewest: a long answer keeps the first one busy, and all others go to the second.
    let body = json!({"model": "m", "prompt": prompt(1, 0), "max_tokens": 6_000, "stream": true});
    let headers = [("content-type", "application/json")];
    let mut busy = ask(site.engines.http(1), "POST /v1/completions", &headers, &body.to_string()).unwrap();
    busy.piece().unwrap().unwrap();
    tell(&prompt(2, 0));
    tell(&prompt(3, 0));
    site.up_to_date(1, 2);
    let of_one = prompt(1, 0).len() as u64 / BLOCK;
    assert_eq!((site.blocks(0), site.blocks(1)), (vec![0, 0], vec![of_one, 2 * of_one]));
    let found = |group: usize| {
        let Completed { decision, cached_tokens } = site.complete(&prompt(group, 1), 1);
        (decision, cached_tokens)
    };
    // What either holds is the replica's. Which of its ranks gets the request is the engine's own business.
    assert_eq!(found(2), (Decision { replica: 1, cached: 13 }, 13 * BLOCK));
    // The second rank drops what it had; the first one does not.
    for number in 0..4 {
        tell(&format!("{number} {}", "x".repeat(4_000)));
    }
    site.up_to_date(1, 2);
    assert_eq!(site.blocks(1)[0], of_one);
    assert_eq!(found(3).0.cached, 0);
    assert_eq!(found(1).0, Decision { replica: 1, cached: 13 });
}

#[test]
fn a_replica_that_dies_ends_its_streams_with_an_error_and_the_others_go_on() {
    let site = Site::start("dies", 2, &["--time-scale", "20"], "[health]\ninterval = \"50ms\"\n");
    let long = 20_000;
    let mut streams: Vec<(usize, String, Answer)> = Vec::new();
    for number in 0..6 {
        let asked = prompt(number, 0);
        let mut stream = site.stream(&asked, long);
        assert_eq!(stream.status, 200);
        let replica = Decision::read(stream.header("x-partywall-decision").unwrap()).replica;
        let first = stream.piece().unwrap().unwrap();
        streams.push((replica, first, stream));
    }
    // The answer may be lost with the connection.
    let _ = ask(site.engines.http(0), "POST /fault", &[], r#"{"fault": "die:0"}"#);
    let (mut died, mut lived) = (0, 0);
    for (number, (replica, first, mut stream)) in streams.into_iter().enumerate() {
        if replica == 0 {
            let (rest, _) = stream.text();
            let (words, last) = heard(&(first + &rest));
            assert!(
                said(&prompt(number, 0), long).starts_with(&words),
                "nothing is missing before the error"
            );
            let error: Value =
                serde_json::from_str(&last).unwrap_or_else(|_| panic!("the last event is {last:?}"));
            assert!(error["error"]["message"].is_string(), "{error}");
            died += 1;
        } else {
            // It still gets tokens; then the client leaves.
            stream.piece().unwrap().unwrap();
            lived += 1;
        }
    }
    assert!(died > 0 && lived > 0, "{died} streams died and {lived} went on");
    let running = |replica| metric(site.engines.http(replica), "vllm:num_requests_running");
    until_or(|| running(1) == 0.0, || "the replica hears that its clients have left".to_owned());
    for number in 0..10 {
        assert_eq!(site.complete(&prompt(number, 1), 5).decision.replica, 1);
    }
}

/// Whatever replicas do, every request ends once: whole, or with an error that says so, and the engines have counted the same.
#[test]
fn every_request_ends_once_and_the_counts_agree() {
    let site = Site::start("counts", 3, &["--time-scale", "200"], "");
    site.fault(0, "cut:9:0.3");
    site.fault(1, "error:0.3:503");
    site.fault(1, "slow:3");
    let tokens = 30;
    let one = |number: usize| {
        let asked = prompt(number % 10, number);
        if number.is_multiple_of(2) {
            let mut stream = site.stream(&asked, tokens);
            let (words, last) = heard(&stream.text().0);
            assert_eq!(stream.status, 200, "{last}");
            assert!(said(&asked, tokens).starts_with(&words), "{words:?}");
            let whole = last == "[DONE]";
            let error: Value = serde_json::from_str(&last).unwrap_or_default();
            assert!(if whole { words.len() == 30 } else { error["error"].is_object() }, "{words:?} {last:?}");
            whole
        } else {
            let (path, body) = Form::Completion.request(&asked, tokens);
            let (status, answer) = post(&site.clients, path, &body);
            let whole = status == 200;
            assert!(
                if whole {
                    answer["choices"][0]["text"] == said(&asked, tokens)
                } else {
                    answer["error"].is_object()
                },
                "{status}: {answer}"
            );
            whole
        }
    };
    let (threads, each) = (8, 20);
    let whole: usize = std::thread::scope(|scope| {
        let one = &one;
        let start = |thread: usize| {
            scope.spawn(move || (0..each).filter(|number| one(thread * each + number)).count())
        };
        let started: Vec<_> = (0..threads).map(start).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let all = threads * each;
    let aborted = FINISHED.replace("stop", "abort");
    assert_eq!(site.engines(FINISHED), whole as f64);
    assert_eq!(site.engines(&aborted), (all - whole) as f64, "each that was not whole was cut by its engine");
    assert!(whole > all / 2 && whole < all, "{whole} of {all} were whole");
}

#[test]
fn a_client_that_leaves_is_forgotten_by_the_engine() {
    let site = Site::start("leaves", 1, &["--time-scale", "20"], "");
    let mut stream = site.stream("someone who leaves", 100_000);
    stream.piece().unwrap().unwrap();
    drop(stream);
    let used =
        || site.engines("partywall_engine_sim_used_blocks") + site.engines("vllm:num_requests_running");
    until_or(|| used() == 0.0, || "stream and blocks are free".to_owned());
}

/// Whatever happens to events, requests are answered, each with what belongs to it; and once it is over the gateway knows again.
#[test]
fn wrong_events_are_survived_and_made_good() {
    for faults in [
        &["duplicate-events:0.5"][..],
        &["drop-events:0.3"],
        &["reorder-events:0.5"],
        &["gap:5"],
        &["restart"],
        &["lie:0.5"],
        &["restart", "drop-events:0.5", "gap:3"],
        &["no-replay", "drop-events:0.3"],
    ] {
        let site = Site::start(
            &faults.concat().replace([':', '.'], "-"),
            2,
            &["--time-scale", "1000", "--cache-tokens", "4k"],
            "",
        );
        for number in 0..10 {
            site.complete(&prompt(number % 3, number), 3);
        }
        for fault in faults {
            (0..2).for_each(|replica| site.fault(replica, fault));
        }
        for number in 10..40 {
            site.complete(&prompt(number % 5, number), 3);
        }
        assert_eq!(site.engines(FINISHED), 40.0, "{faults:?}: every request once");
        for replica in 0..2 {
            let _ = ask(site.engines.http(replica), "DELETE /fault", &[], "").unwrap().json();
            site.fault(replica, "restart");
        }
        // Groups that nobody has seen, because what was sent a moment ago is expected to be there, whatever events say.
        let mut groups = 100;
        for replica in [0, 1, 0, 1] {
            site.learns(Form::Completion, replica, &mut groups);
        }
    }
}

#[test]
fn a_replica_that_refuses_is_left_out_and_nobody_notices() {
    let site = Site::start("refuses", 2, &["--time-scale", "1000"], "");
    site.fault(0, "error:1:503");
    for number in 0..20 {
        assert_eq!(site.complete(&prompt(number, 0), 3).decision.replica, 1);
    }
}
