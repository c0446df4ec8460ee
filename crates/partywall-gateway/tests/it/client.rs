//! A client that says exactly what it is told, and reads what comes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::PATIENCE;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    /// Whether its end came, rather than that of the connection.
    pub whole: bool,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// The code of an error.
    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap().to_owned()
    }

    /// A part of the header that says where the request went.
    pub(crate) fn decision(&self, part: &str) -> String {
        let decision = self.headers.get("x-partywall-decision").unwrap_or_else(|| panic!("{self:?}"));
        let value = decision.split("; ").find_map(|piece| piece.strip_prefix(part)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{decision}")).to_owned()
    }
}

/// A connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Sends a request with a body of known length.
    pub(crate) fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        self.raw(&[head.as_bytes(), body].concat()).unwrap();
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// The head of an answer; `None` where the connection ends.
    pub(crate) fn head(&mut self) -> Option<Answer> {
        let line = self.line()?;
        let status = line.split(' ').nth(1)?.parse().ok()?;
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        Some(Answer { status, headers, body: Vec::new(), whole: true })
    }

    /// The next chunk of a body; `None` where it or the connection ends, and whether it was the former.
    pub(crate) fn chunk(&mut self) -> (Option<Vec<u8>>, bool) {
        let length = self.line().and_then(|line| usize::from_str_radix(&line, 16).ok());
        let Some(length) = length else { return (None, false) };
        let mut chunk = vec![0; length + 2];
        if self.stream.read_exact(&mut chunk).is_err() {
            return (None, false);
        }
        chunk.truncate(length);
        if length == 0 { (None, true) } else { (Some(chunk), true) }
    }

    /// The whole answer; `None` where the connection ends before one begins.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        let mut answer = self.head()?;
        if answer.headers.contains_key("transfer-encoding") {
            loop {
                let (chunk, whole) = self.chunk();
                answer.whole = whole;
                let Some(chunk) = chunk else { return Some(answer) };
                answer.body.extend(chunk);
            }
        }
        let length = answer.headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        answer.body = vec![0; length];
        let mut read = 0;
        while read < length {
            match self.stream.read(&mut answer.body[read..]) {
                Ok(count) if count > 0 => read += count,
                _ => {
                    answer.whole = false;
                    answer.body.truncate(read);
                    break;
                }
            }
        }
        Some(answer)
    }
}

/// One request on a connection of its own.
pub(crate) fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut client = Client::connect(address);
    client.send(method, path, headers, body.as_bytes());
    client.answer().expect("an answer")
}

/// A chat request that makes the replica do this.
pub(crate) fn chat(address: SocketAddr, does: &str, body: &str) -> Answer {
    ask(address, "POST", "/v1/chat/completions", &[("x-test", does)], body)
}
