//! What the gateway adds to a request: against a direct connection, in one run, in alternation.
//!
//! Client, gateway and a replica that does nothing run on one machine over loopback. Each round asks directly and through the gateway,
//! one after the other, at the same rate, in open loop: a request is due when it is due, and its time counts from then. What is added is the
//! difference of the two percentiles of a round; reported are the median over rounds, and the least and the greatest.
//!
//! - *plain*: a chat request of 1 KiB and an answer of 500 bytes.
//! - *stream*: 20 tokens, each of which carries when it was sent; its time is how long it was on its way.
//! - *full*: as many requests as there are connections, each sent when the last one is answered: requests a second, and a second of the time
//!   that the gateway's threads were on a core.
//!
//! Arguments: the file for the results, and `--quick` for a run that only shows that it works.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program that measures and prints, and may end with a panic"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use partywall_gateway::config::Config;
use partywall_gateway::gateway::Gateway;
use rustix::thread::clock_nanosleep_absolute;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::{Value, json};

const RATE: u64 = 5_000;
const CONNECTIONS: u64 = 32;
const STREAM_TOKENS: u64 = 20;
const STREAM_SPACE: Duration = Duration::from_millis(4);
const WORKERS: usize = 2;

struct Plan {
    rounds: usize,
    window: Duration,
}

/// The same clock for all threads, so that a token can carry when it was sent.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn sleep_until(nanos: u64) {
    let time = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
    while clock_nanosleep_absolute(ClockId::Monotonic, &time).is_err() {}
}

/// A replica that costs as little as possible: a thread for each connection.
fn replica() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::Builder::new().name("replica".to_owned()).spawn(move || serve(stream)).unwrap();
        }
    });
    address
}

fn serve(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let body = format!("{{\"choices\":[{{\"message\":{{\"content\":\"{}\"}}}}]}}", "x".repeat(460));
    let plain = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut buffer = Vec::new();
    loop {
        let request = request(&mut stream, &mut buffer)?;
        if !request.contains("\"stream\":true") {
            stream.write_all(plain.as_bytes()).ok()?;
            continue;
        }
        stream.write_all(head.as_bytes()).ok()?;
        let begun = now();
        for token in 0..STREAM_TOKENS {
            sleep_until(begun + token * STREAM_SPACE.as_nanos() as u64);
            let event =
                format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{:020}\"}}}}]}}\n\n", now());
            stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).ok()?;
        }
        stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").ok()?;
    }
}

/// Reads a request with its body.
fn request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<String> {
    let mut piece = [0; 16 << 10];
    loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let all = end + 4 + length.map_or(0, |length| length.parse().unwrap());
            if buffer.len() >= all {
                return Some(String::from_utf8_lossy(&buffer.drain(..all).collect::<Vec<u8>>()).into_owned());
            }
        }
        match stream.read(&mut piece).ok()? {
            0 => return None,
            count => buffer.extend_from_slice(&piece[..count]),
        }
    }
}

fn message(stream: bool) -> Vec<u8> {
    let stream = if stream { ",\"stream\":true" } else { "" };
    let body = format!(
        "{{\"model\":\"m\"{stream},\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}",
        "word ".repeat(190)
    );
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A connection of the client's.
struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, buffer: Vec::with_capacity(64 << 10) }
    }

    fn more(&mut self) {
        let mut piece = [0; 16 << 10];
        let count = self.stream.read(&mut piece).unwrap();
        assert!(count > 0, "the connection was closed");
        self.buffer.extend_from_slice(&piece[..count]);
    }

    /// A request and its answer of known length.
    fn ask(&mut self, message: &[u8]) {
        self.stream.write_all(message).unwrap();
        self.buffer.clear();
        let all = loop {
            self.more();
            if let Some(end) = self.buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffer[..end]).to_ascii_lowercase();
                assert!(head.starts_with("http/1.1 200"), "{head}");
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                break end + 4 + length.parse::<usize>().unwrap();
            }
        };
        while self.buffer.len() < all {
            self.more();
        }
    }

    /// A stream, with how long each of its tokens was on its way.
    fn stream(&mut self, message: &[u8], times: &mut Vec<u64>) {
        self.stream.write_all(message).unwrap();
        self.buffer.clear();
        let key = b"\"content\":\"";
        let mut read = 0;
        while !self.buffer[read..].windows(5).any(|window| window == b"0\r\n\r\n") {
            self.more();
            let come = now();
            while let Some(at) = self.buffer[read..].windows(key.len()).position(|window| window == key) {
                let start = read + at + key.len();
                let Some(digits) = self.buffer.get(start..start + 20) else { break };
                let sent: u64 = std::str::from_utf8(digits).unwrap().parse().unwrap();
                times.push(come.saturating_sub(sent));
                read = start + 20;
            }
        }
    }
}

/// Times of requests that are due at a rate, from when they were due.
fn plain(address: SocketAddr, window: Duration) -> Vec<u64> {
    let begin = now() + 20_000_000;
    let step = CONNECTIONS * 1_000_000_000 / RATE;
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|index| {
            std::thread::spawn(move || {
                let (mut connection, message) = (Connection::to(address), message(false));
                let mut times = Vec::new();
                let mut due = begin + index * step / CONNECTIONS;
                while due < begin + window.as_nanos() as u64 {
                    sleep_until(due);
                    connection.ask(&message);
                    times.push(now() - due);
                    due += step;
                }
                times
            })
        })
        .collect();
    threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
}

/// How long the tokens of streams were on their way, at about the same rate of tokens.
fn streamed(address: SocketAddr, window: Duration) -> Vec<u64> {
    let streams = RATE * STREAM_SPACE.as_nanos() as u64 / 1_000_000_000;
    let begin = now() + 20_000_000;
    let threads: Vec<_> = (0..streams)
        .map(|index| {
            std::thread::spawn(move || {
                let (mut connection, message) = (Connection::to(address), message(true));
                let mut times = Vec::new();
                sleep_until(begin + index * STREAM_SPACE.as_nanos() as u64 / streams);
                while now() < begin + window.as_nanos() as u64 {
                    connection.stream(&message, &mut times);
                }
                times
            })
        })
        .collect();
    threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
}

/// Requests a second with every connection busy.
fn full(address: SocketAddr, window: Duration) -> (f64, u64) {
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let begun = Instant::now();
    let threads: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (stop, count) = (Arc::clone(&stop), Arc::clone(&count));
            std::thread::spawn(move || {
                let (mut connection, message) = (Connection::to(address), message(false));
                while !stop.load(Ordering::Relaxed) {
                    connection.ask(&message);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    std::thread::sleep(window);
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let count = count.load(Ordering::Relaxed);
    (count as f64 / begun.elapsed().as_secs_f64(), count)
}

/// What the gateway's threads have had of the cores, in seconds.
#[derive(Clone, Copy)]
struct Cores {
    /// On one.
    ran: f64,
    /// Ready, and none was free.
    waited: f64,
    /// Of the first, by the ticks of the system: in the kernel, and all.
    kernel: f64,
    ticked: f64,
}

impl Cores {
    fn so_far() -> Self {
        let mut all = Self { ran: 0.0, waited: 0.0, kernel: 0.0, ticked: 0.0 };
        for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
            let numbers = |name: &str, skip: usize| -> Vec<f64> {
                let text = std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
                // Behind the name of the thread, which may hold anything.
                let rest = text.rsplit(')').next().unwrap_or_default().split_whitespace();
                rest.skip(skip).map(|number| number.parse().unwrap_or(0.0)).collect()
            };
            let comm = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if let (true, [ran, waited, ..], [user, kernel, ..]) =
                (comm.starts_with("gateway"), &numbers("schedstat", 0)[..], &numbers("stat", 11)[..])
            {
                all.ran += ran / 1e9;
                all.waited += waited / 1e9;
                all.kernel += kernel;
                all.ticked += user + kernel;
            }
        }
        all
    }

    fn since(self, before: Self) -> Self {
        Self {
            ran: self.ran - before.ran,
            waited: self.waited - before.waited,
            kernel: self.kernel - before.kernel,
            ticked: self.ticked - before.ticked,
        }
    }
}

fn percentile(times: &mut [u64], part: f64) -> f64 {
    times.sort_unstable();
    times[((times.len() - 1) as f64 * part).round() as usize] as f64 / 1e3
}

/// Median, least and greatest.
fn spread(values: &[f64]) -> Value {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let round = |value: f64| (value * 1e3).round() / 1e3;
    json!({ "median": round(values[values.len() / 2]), "min": round(values[0]), "max": round(values[values.len() - 1]) })
}

/// Percentiles of a way to ask, directly and through the gateway, round by round.
fn compared(
    direct: SocketAddr,
    through: SocketAddr,
    plan: &Plan,
    measure: fn(SocketAddr, Duration) -> Vec<u64>,
) -> Value {
    let mut columns: [Vec<f64>; 6] = Default::default();
    let mut samples = 0;
    for round in 0..=plan.rounds {
        // Who goes first changes, so that neither always finds the machine as the other left it.
        let order = if round % 2 == 0 { [direct, through] } else { [through, direct] };
        let [first, second] = order.map(|address| measure(address, plan.window));
        let (mut direct, mut through) = if round % 2 == 0 { (first, second) } else { (second, first) };
        if round == 0 {
            // Connections are made, memory is touched.
            continue;
        }
        samples += through.len();
        let row = [0.5, 0.99].map(|part| (percentile(&mut direct, part), percentile(&mut through, part)));
        let [(d50, t50), (d99, t99)] = row;
        eprintln!("round {round}: direct p50 {d50:.0} p99 {d99:.0} us, gateway p50 {t50:.0} p99 {t99:.0} us");
        for (column, value) in columns.iter_mut().zip([d50, d99, t50, t99, t50 - d50, t99 - d99]) {
            column.push(value);
        }
    }
    let [d50, d99, t50, t99, a50, a99] = columns.map(|column| spread(&column));
    json!({
        "direct_p50_us": d50, "direct_p99_us": d99, "gateway_p50_us": t50, "gateway_p99_us": t99,
        "added_p50_us": a50, "added_p99_us": a99, "samples": samples,
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let plan = if quick {
        Plan { rounds: 2, window: Duration::from_millis(500) }
    } else {
        Plan { rounds: 11, window: Duration::from_secs(3) }
    };
    let direct = replica();
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\nworkers = {WORKERS}\n[admin]\naddress = \"127.0.0.1:0\"\n[health]\npath = \"\"\n\
         [[model]]\nname = \"m\"\n[[replica]]\nname = \"a\"\nurl = \"http://{direct}\"\nmodels = [\"m\"]\nprefill-tokens-per-s = 100000000\n"
    );
    let gateway = Gateway::start(Config::parse(&text, "bench").unwrap(), Path::new("."), None).unwrap();
    let through = gateway.address();
    let before = Cores::so_far();
    let mut plain = compared(direct, through, &plan, plain);
    // The round that does not count has been served as well.
    let served = plain["samples"].as_f64().unwrap() * (plan.rounds + 1) as f64 / plan.rounds as f64;
    let cores = Cores::so_far().since(before);
    let us = |seconds: f64| (seconds / served * 1e7).round() / 10.0;
    plain["gateway_on_core_us_mean"] = json!(us(cores.ran));
    plain["gateway_waits_for_core_us_mean"] = json!(us(cores.waited));
    let stream = compared(direct, through, &plan, streamed);
    let (mut rates, mut per_core, mut direct_rates, mut kernel) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..=plan.rounds {
        let (direct_rate, _) = full(direct, plan.window);
        let before = Cores::so_far();
        let (rate, count) = full(through, plan.window);
        let cores = Cores::so_far().since(before);
        let core = count as f64 / cores.ran;
        eprintln!("round {round}: direct {direct_rate:.0}/s, gateway {rate:.0}/s, {core:.0} a core");
        if round > 0 {
            rates.push(rate);
            per_core.push(core);
            kernel.push(cores.kernel / cores.ticked.max(1.0));
            direct_rates.push(direct_rate);
        }
    }
    let result = json!({
        "what": "added latency of the gateway against a direct connection, and requests per second of its threads' core time",
        "kind": "measured",
        "rate_per_s": RATE, "connections": CONNECTIONS, "workers": WORKERS, "rounds": plan.rounds,
        "window_s": plan.window.as_secs_f64(),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "plain": plain, "stream": stream,
        "full": { "direct_per_s": spread(&direct_rates), "gateway_per_s": spread(&rates), "gateway_per_core_s": spread(&per_core), "gateway_kernel_share": spread(&kernel) },
    });
    let text = format!("{result:#}\n");
    print!("{text}");
    if let Some(file) = arguments.iter().find(|argument| !argument.starts_with("--")) {
        std::fs::write(file, text).unwrap();
    }
}
