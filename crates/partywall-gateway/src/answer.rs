//! What the gateway itself answers: errors, each with what was wrong and what to do, in the form that clients of the OpenAI API read.

use std::convert::Infallible;

use bytes::Bytes;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::http::StatusCode;

use crate::relay::Body;

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// What the status line says.
    pub status: StatusCode,
    /// A word for programs: it stands in the answer, the log and the metrics.
    pub code: &'static str,
    /// For people.
    pub message: String,
    /// When it may go better, in seconds.
    pub retry_after: Option<u32>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: None }
    }

    /// The request itself cannot be served.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }

    /// There is too much to do.
    pub(crate) fn busy(code: &'static str, message: impl Into<String>) -> Self {
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message);
        Self { retry_after: Some(1), ..problem }
    }

    /// The replica did not do what it should.
    pub(crate) fn upstream(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, code, message)
    }

    /// It took too long.
    pub(crate) fn late(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, code, message)
    }

    /// The kind of error as the OpenAI API names it.
    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 | 403 => "authentication_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// As JSON.
    pub(crate) fn json(&self) -> Bytes {
        let error = serde_json::json!({
            "error": { "message": self.message, "type": self.kind(), "param": null, "code": self.code }
        });
        Bytes::from(error.to_string())
    }

    /// As an event of a stream that has begun, after which nothing comes.
    pub(crate) fn event(&self) -> Bytes {
        let json = self.json();
        let mut event = Vec::with_capacity(json.len() + 8);
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(&json);
        event.extend_from_slice(b"\n\n");
        Bytes::from(event)
    }

    /// As an answer.
    pub(crate) fn response(&self) -> Response<Body> {
        let mut response = json(self.status, self.json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Response<Body> {
    typed(status, "application/json", body)
}

/// An answer of this content type.
pub(crate) fn typed(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::whole(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// What a service gives: it answers whatever happens.
pub(crate) type Answer = Result<Response<Body>, Infallible>;
