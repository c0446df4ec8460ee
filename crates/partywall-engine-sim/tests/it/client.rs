//! A client of one request per connection.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// An answer and the connection that it comes on, which closes when this is dropped.
pub(crate) struct Open {
    pub(crate) response: Response<Incoming>,
    connection: JoinHandle<()>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// Sends a request; an error is a connection that was closed before it answered.
pub(crate) async fn open(
    at: SocketAddr,
    method: Method,
    path: &str,
    body: &str,
) -> Result<Open, hyper::Error> {
    let stream = TcpStream::connect(at).await.unwrap();
    // Tests ask thousands of times; a port that was closed the usual way is taken for a minute.
    stream.set_zero_linger().unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(async { drop(connection.await) });
    let body = Full::new(Bytes::copy_from_slice(body.as_bytes()));
    let request = Request::builder().method(method).uri(path).header("host", "engine").body(body).unwrap();
    let response = sender.send_request(request).await;
    match response {
        Ok(response) => Ok(Open { response, connection }),
        Err(error) => {
            connection.abort();
            Err(error)
        }
    }
}

/// Status and text of an answer.
pub(crate) async fn text(at: SocketAddr, method: Method, path: &str, body: &str) -> (u16, String) {
    let mut open = open(at, method, path, body).await.unwrap();
    let status = open.response.status().as_u16();
    let bytes = open.response.body_mut().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

/// Posts JSON and reads JSON.
pub(crate) async fn post(at: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let (status, text) = text(at, Method::POST, path, &body.to_string()).await;
    (status, serde_json::from_str(&text).unwrap())
}

/// A completion of so many tokens, not streamed.
pub(crate) async fn complete(at: SocketAddr, prompt: &str, tokens: u32) -> Value {
    let (status, answer) =
        post(at, "/v1/completions", &json!({"prompt": prompt, "max_tokens": tokens})).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Tokens of the prompt that an answer says were in the cache.
pub(crate) fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

/// One sample of `/metrics` whose line begins with `name`, and with a label where it is given.
pub(crate) async fn metric(at: SocketAddr, name: &str, label: &str) -> u64 {
    let (status, page) = text(at, Method::GET, "/metrics", "").await;
    assert_eq!(status, 200);
    let line = page.lines().find(|line| line.split('{').next() == Some(name) && line.contains(label));
    let line = line.unwrap_or_else(|| panic!("{name} with {label} is not in\n{page}"));
    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
}

/// Tells an engine what is to go wrong.
pub(crate) async fn fault(at: SocketAddr, fault: &str) {
    let (status, answer) = post(at, "/fault", &json!({"fault": fault})).await;
    assert_eq!(status, 200, "{answer}");
}

/// The pieces of a stream, as they come.
pub(crate) struct Stream {
    open: Open,
    rest: String,
}

impl Stream {
    /// Asks for one.
    pub(crate) async fn completion(at: SocketAddr, prompt: &str, tokens: u32) -> Self {
        let options = json!({"include_usage": true});
        let body = json!({"prompt": prompt, "max_tokens": tokens, "stream": true, "stream_options": options});
        let open = open(at, Method::POST, "/v1/completions", &body.to_string()).await.unwrap();
        assert_eq!(open.response.status(), 200);
        assert_eq!(open.response.headers()["content-type"], "text/event-stream; charset=utf-8");
        Self { open, rest: String::new() }
    }

    /// The next event's data; `None` at the end, an error where the connection was closed before it.
    pub(crate) async fn next(&mut self) -> Option<Result<String, hyper::Error>> {
        loop {
            if let Some((event, rest)) = self.rest.split_once("\n\n") {
                let data = event.strip_prefix("data: ").unwrap().to_owned();
                self.rest = rest.to_owned();
                return Some(Ok(data));
            }
            match self.open.response.body_mut().frame().await? {
                Ok(frame) => self.rest += std::str::from_utf8(&frame.into_data().unwrap()).unwrap(),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// All events to the end, and whether that was a good one.
    pub(crate) async fn all(mut self) -> (Vec<String>, bool) {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Some(Ok(event)) => events.push(event),
                Some(Err(_)) => return (events, false),
                None => return (events, true),
            }
        }
    }
}

/// The text of a completion's stream.
pub(crate) fn spoken(events: &[String]) -> String {
    let values = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    values.filter_map(|value| value.pointer("/choices/0/text")?.as_str().map(str::to_owned)).collect()
}
