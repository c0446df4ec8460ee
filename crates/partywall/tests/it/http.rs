//! A client of HTTP that sees what is on the wire: one request per connection, answers piece by piece.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::patience::LIMIT;

/// An answer whose head has come.
pub(crate) struct Answer {
    pub(crate) status: u16,
    headers: BTreeMap<String, String>,
    connection: BufReader<TcpStream>,
    /// What a body without chunks has left.
    left: Option<u64>,
    ended: bool,
}

impl Answer {
    /// A header; its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// The next piece of the body; `None` at its end, an error where the connection was closed before it.
    pub(crate) fn piece(&mut self) -> io::Result<Option<String>> {
        if self.ended {
            return Ok(None);
        }
        let length = match self.left {
            Some(left) => left,
            None => {
                let line = line(&mut self.connection)?;
                u64::from_str_radix(&line, 16)
                    .map_err(|_| io::Error::other(format!("no length: {line:?}")))?
            }
        };
        let mut bytes = vec![0; length as usize];
        self.connection.read_exact(&mut bytes)?;
        if self.left.is_none() {
            line(&mut self.connection)?;
        }
        self.ended = self.left.is_some() || length == 0;
        Ok(Some(String::from_utf8(bytes).map_err(io::Error::other)?).filter(|_| length > 0))
    }

    /// All of the body that comes, and whether its end did.
    pub(crate) fn text(&mut self) -> (String, bool) {
        let mut text = String::new();
        loop {
            match self.piece() {
                Ok(Some(piece)) => text += &piece,
                Ok(None) => return (text, true),
                Err(_) => return (text, false),
            }
        }
    }

    /// All of the body, as JSON.
    #[track_caller]
    pub(crate) fn json(mut self) -> Value {
        let (text, whole) = self.text();
        assert!(whole, "the connection was closed behind {text:?}");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
    }
}

/// Asks and waits for the head of the answer.
pub(crate) fn ask(at: &str, request: &str, headers: &[(&str, &str)], body: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(LIMIT))?;
    // Tests ask thousands of times; a port that was closed the usual way is taken for a minute.
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO))?;
    let mut head = format!("{request} HTTP/1.1\r\nhost: {at}\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())?;
    let mut connection = BufReader::new(stream);
    let first = line(&mut connection)?;
    let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status: {first:?}")))?;
    let mut headers = BTreeMap::new();
    loop {
        let line = line(&mut connection)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let chunked = headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked");
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    Ok(Answer { status, headers, connection, left: (!chunked).then_some(length), ended: false })
}

/// Posts JSON and reads all of a JSON answer.
#[track_caller]
pub(crate) fn post(at: &str, path: &str, body: &Value) -> (u16, Value) {
    let answer = ask(at, &format!("POST {path}"), &[("content-type", "application/json")], &body.to_string());
    let answer = answer.unwrap();
    (answer.status, answer.json())
}

/// A sample of `/metrics`: the line with this beginning.
#[track_caller]
pub(crate) fn metric(at: &str, begins: &str) -> f64 {
    let (page, _) = ask(at, "GET /metrics", &[], "").unwrap().text();
    let line = page.lines().find(|line| line.starts_with(begins));
    let line = line.unwrap_or_else(|| panic!("{begins} is not in\n{page}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

fn line(connection: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if connection.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}
