//! A replica that does what its requests say: byte by byte, so that it can do everything wrong.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// What it saw of a request.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub line: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

#[derive(Default)]
struct State {
    seen: Mutex<Vec<Seen>>,
    down: AtomicBool,
    refusing: AtomicBool,
    left: AtomicU64,
    go: Notify,
}

/// A replica.
pub(crate) struct Upstream {
    pub address: SocketAddr,
    state: Arc<State>,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                let serve = async {
                    loop {
                        let Ok((stream, _)) = listener.accept().await else { continue };
                        let state = Arc::clone(&served);
                        tokio::spawn(async move {
                            let _ = serve(stream, state).await;
                        });
                    }
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, state, _stop: stop }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Requests other than for its health, in the order in which they came.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// Whether it says that it is ill.
    pub(crate) fn set_down(&self, down: bool) {
        self.state.down.store(down, Ordering::SeqCst);
    }

    /// Whether it answers everything with 503.
    pub(crate) fn set_refusing(&self, refusing: bool) {
        self.state.refusing.store(refusing, Ordering::SeqCst);
    }

    /// Requests whose client left before the end.
    pub(crate) fn left(&self) -> u64 {
        self.state.left.load(Ordering::SeqCst)
    }

    /// Lets one request go on that waits, or the next one that will.
    pub(crate) fn go(&self) {
        self.state.go.notify_one();
    }
}

/// An event with one token.
pub(crate) fn event(index: usize) -> String {
    format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"t{index}\"}}}}]}}\n\n")
}

/// What the last event before the end says.
pub(crate) const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3,\"prompt_tokens_details\":{\"cached_tokens\":32}}}\n\n";

const JSON: &str = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":40,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":32}}}"#;

async fn serve(mut stream: TcpStream, state: Arc<State>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    loop {
        let Some(request) = read(&mut stream, &mut buffer).await? else { return Ok(()) };
        if request.line.contains(" /health ") {
            let status = if state.down.load(Ordering::SeqCst) { "503 Ill" } else { "200 OK" };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await?;
            continue;
        }
        let does = request.headers.get("x-test").cloned().unwrap_or_default();
        state.seen.lock().unwrap().push(request.clone());
        if state.refusing.load(Ordering::SeqCst) {
            stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nretry-after: 7\r\n\r\nbusy").await?;
            continue;
        }
        let mut words = does.split(' ');
        let verb = words.next().unwrap_or_default();
        let count: usize = words.next().and_then(|word| word.parse().ok()).unwrap_or(3);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: keep-alive\r\nx-engine: fake\r\n\r\n";
        let json = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            JSON.len()
        );
        match verb {
            // All of a stream.
            "stream" => {
                stream.write_all(head.as_bytes()).await?;
                for index in 0..count {
                    chunk(&mut stream, &event(index)).await?;
                }
                chunk(&mut stream, USAGE).await?;
                chunk(&mut stream, "data: [DONE]\n\n").await?;
                stream.write_all(b"0\r\n\r\n").await?;
            }
            // One event, then the next when told to.
            "step" => {
                stream.write_all(head.as_bytes()).await?;
                for index in 0..count {
                    chunk(&mut stream, &event(index)).await?;
                    if gone(&mut stream, &state).await {
                        return Ok(());
                    }
                }
                stream.write_all(b"0\r\n\r\n").await?;
            }
            // Some events and the end of the connection.
            "die" => {
                stream.write_all(head.as_bytes()).await?;
                for index in 0..count {
                    chunk(&mut stream, &event(index)).await?;
                }
                return Ok(());
            }
            // The same in the middle of an event.
            "tear" => {
                stream.write_all(head.as_bytes()).await?;
                for index in 0..count {
                    chunk(&mut stream, &event(index)).await?;
                }
                chunk(&mut stream, "data: {\"choices\":[{\"del").await?;
                return Ok(());
            }
            // A stream whose end is that of the connection, without having said that it is complete.
            "unframed" => {
                stream.write_all(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n").await?;
                stream.write_all(event(0).as_bytes()).await?;
                return Ok(());
            }
            // Events cut anywhere.
            "crumbs" => {
                stream.write_all(head.as_bytes()).await?;
                let text = format!("{}{}{USAGE}data: [DONE]\n\n", event(0), event(1));
                for crumb in text.as_bytes().chunks(5) {
                    chunk(&mut stream, std::str::from_utf8(crumb).unwrap()).await?;
                    tokio::task::yield_now().await;
                }
                stream.write_all(b"0\r\n\r\n").await?;
            }
            // Half of an answer.
            "half" => {
                stream.write_all(json.as_bytes()).await?;
                stream.write_all(&JSON.as_bytes()[..20]).await?;
                return Ok(());
            }
            // The request is read, and nothing comes.
            "hang" => return Ok(()),
            "wait" => {
                if gone(&mut stream, &state).await {
                    return Ok(());
                }
                stream.write_all(json.as_bytes()).await?;
                stream.write_all(JSON.as_bytes()).await?;
            }
            "echo" => {
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", request.body.len());
                stream.write_all(answer.as_bytes()).await?;
                stream.write_all(&request.body).await?;
            }
            "status" => {
                let answer = format!("HTTP/1.1 {count} Said\r\ncontent-length: 2\r\n\r\nno");
                stream.write_all(answer.as_bytes()).await?;
            }
            "large" => {
                let answer =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(answer.as_bytes()).await?;
                for _ in 0..count {
                    chunk(&mut stream, &"x".repeat(1000)).await?;
                }
                stream.write_all(b"0\r\n\r\n").await?;
            }
            "garbage" => {
                stream.write_all(b"this is not HTTP\r\n\r\n").await?;
                return Ok(());
            }
            _ => {
                stream.write_all(json.as_bytes()).await?;
                stream.write_all(JSON.as_bytes()).await?;
            }
        }
    }
}

/// Waits to be told to go on. Whether the client has left instead.
async fn gone(stream: &mut TcpStream, state: &State) -> bool {
    let mut byte = [0];
    tokio::select! {
        () = state.go.notified() => false,
        _ = stream.read(&mut byte) => {
            state.left.fetch_add(1, Ordering::SeqCst);
            true
        }
    }
}

async fn chunk(stream: &mut TcpStream, text: &str) -> std::io::Result<()> {
    stream.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes()).await
}

async fn read(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> std::io::Result<Option<Seen>> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while buffer.len() < end + 4 + length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer[end + 4..end + 4 + length].to_vec();
    buffer.drain(..end + 4 + length);
    Ok(Some(Seen { line, headers, body }))
}
