//! Where a replica or a node is: scheme, host and port, and nothing else.

use hyper::http::HeaderValue;
use hyper::http::uri::{Authority, Scheme, Uri};

/// An origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// What the header `host` says.
    pub header: HeaderValue,
}

impl Target {
    /// Of `http://host:port` or `https://host:port`.
    ///
    /// # Errors
    /// What is wrong with `url`.
    pub fn parse(url: &str) -> Result<Self, String> {
        let wrong =
            |why: &str| format!("`{}` {why}", url.chars().take(100).collect::<String>().escape_debug());
        let uri: Uri = url.parse().map_err(|_| wrong("is no URL"))?;
        let tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => false,
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            _ => return Err(wrong("does not begin with http:// or https://")),
        };
        let authority: &Authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("holds a user or a password"));
        }
        if authority.host().is_empty() {
            return Err(wrong("names no host"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(wrong("has something behind the port"));
        }
        let header = HeaderValue::from_str(authority.as_str()).map_err(|_| wrong("is no URL"))?;
        let port = match authority.port() {
            Some(port) => port.as_str().parse().map_err(|_| wrong("has an impossible port"))?,
            None if authority.as_str().len() > authority.host().len() => {
                return Err(wrong("has an impossible port"));
            }
            None => {
                if tls {
                    443
                } else {
                    80
                }
            }
        };
        // Brackets belong to the URL, not to the address.
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { tls, host, port, header })
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn origins_are_read() {
        let read = |url: &str| Target::parse(url).map(|target| (target.tls, target.host, target.port));
        assert_eq!(read("http://10.0.0.5:8000"), Ok((false, "10.0.0.5".to_owned(), 8000)));
        assert_eq!(read("https://a.example/"), Ok((true, "a.example".to_owned(), 443)));
        assert_eq!(read("http://[::1]:80"), Ok((false, "::1".to_owned(), 80)));
        for wrong in [
            "",
            "10.0.0.5:8000",
            "ftp://a",
            "http://",
            "http://a:99999",
            "http://a/v1",
            "http://u:p@a",
            "http://a?b",
            "unix:/a",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
