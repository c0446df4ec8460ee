//! Which header lines go on, and which are between two neighbours only.

use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Where a request went and why.
pub(crate) const DECISION: HeaderName = HeaderName::from_static("x-partywall-decision");
/// The class that a request asks for.
pub(crate) const CLASS: HeaderName = HeaderName::from_static("x-partywall-class");
/// How long a request may wait for the beginning of its answer.
pub(crate) const DEADLINE: HeaderName = HeaderName::from_static("x-partywall-deadline");
/// What keeps requests together, such as a conversation's id.
pub(crate) const SESSION: HeaderName = HeaderName::from_static("x-partywall-session");
/// A name for a request, from the client or from the gateway.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where some clients put their key.
pub(crate) const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Lines that are between two neighbours (RFC 9110, 7.6.1), besides those that `connection` names.
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    PROXY_CONNECTION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Takes away what is between two neighbours.
pub(crate) fn strip_hops(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Takes away what of a request is meant for the gateway, or is made anew. `keys`: whether the client's key is the gateway's.
pub(crate) fn strip_request(headers: &mut HeaderMap, keys: bool) {
    strip_hops(headers);
    for name in [HOST, CONTENT_LENGTH, EXPECT, CLASS, DEADLINE, SESSION, DECISION] {
        headers.remove(name);
    }
    if keys {
        headers.remove(AUTHORIZATION);
        headers.remove(API_KEY);
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn what_is_between_neighbours_stays_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("authorization", "Bearer a"),
            ("content-type", "text/plain"),
            ("host", "there"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip_request(&mut headers, false);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "content-type"]);
        strip_request(&mut headers, true);
        assert_eq!(headers.len(), 1);
    }
}
