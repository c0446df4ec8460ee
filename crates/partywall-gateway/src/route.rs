//! What a path asks for.

use hyper::http::Method;

use crate::answer::Problem;
use crate::config::{Config, Proxy};
use hyper::http::StatusCode;

/// What is read of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `messages`, of the chat API.
    Chat,
    /// `prompt`, of the completions API.
    Completion,
    /// Only the model, as in the API of embeddings: nothing of a prompt stays in a cache.
    Model,
}

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    /// The OpenAI API: the model stands in the body.
    Inference(Shape),
    /// The list of models, or one of them.
    Models(Option<String>),
    /// Whether the gateway is there.
    Health,
    /// Passed on to a replica of this model; the path that it gets.
    Passed {
        /// Index of the model.
        model: usize,
        /// Path and query.
        path: String,
    },
}

/// Paths of the OpenAI API, and of what its servers have besides, that name a model in their body.
const INFERENCE: &[(&str, Shape)] = &[
    ("/v1/chat/completions", Shape::Chat),
    ("/v1/completions", Shape::Completion),
    ("/v1/embeddings", Shape::Model),
    ("/v1/rerank", Shape::Model),
    ("/v1/score", Shape::Model),
    ("/v1/classify", Shape::Model),
    ("/v1/moderations", Shape::Model),
];

impl Route {
    /// Of a request for `path` with `query`.
    pub(crate) fn of(
        config: &Config,
        method: &Method,
        path: &str,
        query: Option<&str>,
    ) -> Result<Self, Problem> {
        if let Some((_, shape)) = INFERENCE.iter().find(|(known, _)| *known == path) {
            return if *method == Method::POST {
                Ok(Self::Inference(*shape))
            } else {
                Err(wrong_method("POST"))
            };
        }
        let read = |route| {
            if *method == Method::GET || *method == Method::HEAD {
                Ok(route)
            } else {
                Err(wrong_method("GET"))
            }
        };
        match path {
            "/v1/models" => return read(Self::Models(None)),
            "/health" | "/v2/health/live" | "/v2/health/ready" => return read(Self::Health),
            _ => {}
        }
        if let Some(name) = path.strip_prefix("/v1/models/") {
            let name = decoded(name).ok_or_else(|| Problem::bad("the name of the model is not UTF-8"))?;
            return read(Self::Models(Some(name)));
        }
        let passed = |model, path: String| {
            let path = match query {
                Some(query) => format!("{path}?{query}"),
                None => path,
            };
            Ok(Self::Passed { model, path })
        };
        if let Some(rest) = path.strip_prefix("/v2/models/") {
            let name = decoded(rest.split('/').next().unwrap_or_default()).unwrap_or_default();
            let model = config.models.iter().position(|model| model.name == name);
            let model = model.ok_or_else(|| unknown_model(&name))?;
            plain(path)?;
            return passed(model, path.to_owned());
        }
        let fits = |proxy: &&Proxy| path.starts_with(proxy.prefix.as_str());
        // The longest prefix says most.
        if let Some(proxy) = config.proxies.iter().filter(fits).max_by_key(|proxy| proxy.prefix.len()) {
            plain(path)?;
            let model = config.models.iter().position(|model| model.name == proxy.model);
            let model = model.ok_or_else(|| unknown_model(&proxy.model))?;
            let rest = if proxy.strip { &path[proxy.prefix.len() - 1..] } else { path };
            return passed(model, rest.to_owned());
        }
        Err(Problem::new(
            StatusCode::NOT_FOUND,
            "no_such_path",
            "there is nothing at this path; the OpenAI API is at /v1, KServe's at /v2",
        ))
    }
}

fn wrong_method(right: &str) -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", format!("this path takes {right}"))
}

/// There is no such model.
pub(crate) fn unknown_model(name: &str) -> Problem {
    let name: String = name.chars().take(100).collect();
    Problem::new(
        StatusCode::NOT_FOUND,
        "model_not_found",
        format!("there is no model `{}`; /v1/models lists those there are", name.escape_debug()),
    )
}

/// A path that leaves its prefix at the replica would reach what was not meant to be reached.
fn plain(path: &str) -> Result<(), Problem> {
    let lower = path.to_ascii_lowercase();
    let dots = |part: &str| matches!(part.replace("%2e", ".").as_str(), "." | "..");
    let leaves =
        lower.split('/').any(dots) || ["//", "%2f", "%5c", "\\"].iter().any(|part| lower.contains(part));
    if leaves {
        return Err(Problem::bad("the path has empty parts, dots or encoded slashes; write it plainly"));
    }
    Ok(())
}

/// Without `%20` and its like.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = |digits: &[u8]| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok();
        match (first, after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit)).and_then(hex))
        {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (first, _) => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let text = "[[model]]\nname = \"m\"\n[[model]]\nname = \"org/n\"\n[[proxy]]\nprefix = \"/vision/\"\nmodel = \"m\"\n\
                    [[proxy]]\nprefix = \"/vision/raw/\"\nmodel = \"org/n\"\nstrip = false\n";
        Config::parse(text, "gateway.toml").unwrap()
    }

    #[test]
    fn paths_lead_where_they_should() {
        let config = config();
        let of = |method: &str, path: &str| {
            Route::of(&config, &method.parse().unwrap(), path, Some("a=b"))
                .map_err(|problem| problem.status.as_u16())
        };
        let passed = |model, path: &str| Ok(Route::Passed { model, path: path.to_owned() });
        assert_eq!(of("POST", "/v1/chat/completions"), Ok(Route::Inference(Shape::Chat)));
        assert_eq!(of("GET", "/v1/chat/completions"), Err(405));
        assert_eq!(of("GET", "/v1/models"), Ok(Route::Models(None)));
        assert_eq!(of("GET", "/v1/models/org%2Fn"), Ok(Route::Models(Some("org/n".to_owned()))));
        assert_eq!(of("POST", "/v2/models/m/infer"), passed(0, "/v2/models/m/infer?a=b"));
        assert_eq!(of("POST", "/v2/models/x/infer"), Err(404));
        assert_eq!(of("PUT", "/vision/a/b"), passed(0, "/a/b?a=b"));
        assert_eq!(of("PUT", "/vision/raw/b"), passed(1, "/vision/raw/b?a=b"));
        assert_eq!(of("GET", "/vision"), Err(404));
        assert_eq!(of("GET", "/metrics"), Err(404));
        for left in [
            "/vision/../x",
            "/vision/%2E%2e/x",
            "/vision/a//b",
            "/vision/a%2Fb",
            "/v2/models/m/../n",
            "/vision/./a",
        ] {
            assert_eq!(of("GET", left), Err(400), "{left}");
        }
    }
}
