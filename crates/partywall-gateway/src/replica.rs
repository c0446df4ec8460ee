//! A replica as the gateway talks to it.

use std::path::Path;
use std::sync::Arc;

use hyper::header::HeaderValue;
use partywall_routing::replica::{Capacity, ReplicaId};
use tokio_rustls::TlsConnector;

use crate::config;
use crate::error::Error;
use crate::keys::read_line;
use crate::target::Target;
use crate::tls;

/// One inference server. It never changes; what changes of it is in the fleet.
pub(crate) struct Replica {
    /// Its number in the router, given again when it is gone.
    pub id: ReplicaId,
    /// A number that no other replica has.
    pub generation: u64,
    /// What it was described as.
    pub config: config::Replica,
    /// Its name, to be kept without a copy.
    pub shown: Arc<str>,
    /// How it is reached.
    pub link: Link,
}

/// How a replica is reached.
#[derive(Clone)]
pub(crate) struct Link {
    pub target: Target,
    pub tls: Option<TlsConnector>,
    /// What it wants as `authorization`.
    pub authorization: Option<HeaderValue>,
}

impl Replica {
    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }
}

/// What a replica can do, with blocks of this size.
pub(crate) fn capacity(config: &config::Replica, block_tokens: u32) -> Capacity {
    let block_tokens = block_tokens.max(1);
    Capacity {
        prefill_tokens_per_s: config.prefill_tokens_per_s,
        token_time: config.token_time,
        streams: config.streams,
        block_tokens,
        cache_blocks: (config.cache_tokens / u64::from(block_tokens)).max(1),
    }
}

impl Link {
    /// Reads what the replica's description names; paths are relative to `folder`.
    pub(crate) fn of(config: &config::Replica, folder: &Path) -> Result<Self, Error> {
        let wrong = |problem: String| Error::Replica { name: config.name.clone(), problem };
        let target = Target::parse(&config.url).map_err(wrong)?;
        let ca = config.ca_file.as_ref().map(|path| folder.join(path));
        let tls = if target.tls { Some(tls::connector(ca.as_deref())?) } else { None };
        let authorization = match &config.key_file {
            None => None,
            Some(path) => {
                let key = read_line(&folder.join(path))?;
                let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
                    .map_err(|_| wrong("its key has characters that no header may have".to_owned()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        Ok(Self { target, tls, authorization })
    }
}
