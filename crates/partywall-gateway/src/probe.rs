//! Asking on the gateway's own account: replicas for their health, nodes for how their GPUs are.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::http::{StatusCode, Uri};
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::config::Health;
use crate::fleet::Fleet;
use crate::gpu::{Reading, state};
use crate::replica::{Link, Replica};
use crate::target::Target;
use crate::upstream::{connect, said};

/// Bytes of a node's facts: a few kilobytes for each of its tenants.
const MAX_FACTS_BYTES: usize = 8 << 20;

/// How often a node is asked, and how long its answer may take.
const GPU_INTERVAL: Duration = Duration::from_millis(500);

/// Times in a row that a node may not answer before what it said last does not count any more.
const GPU_MISSES: u32 = 6;

/// Asks a replica for its health, for ever.
pub(crate) async fn health(fleet: Arc<Fleet>, replica: Arc<Replica>, settings: Health) {
    let path = replica.config.health_path.clone().unwrap_or(settings.path);
    let (interval, limit) = (clock::duration(settings.interval), clock::duration(settings.timeout));
    let Ok(uri) = path.parse::<Uri>() else { return };
    loop {
        let passed = match timeout(limit, get(&replica.link, &uri, limit, 64 << 10)).await {
            Ok(Ok((status, _))) => status.is_success(),
            _ => false,
        };
        fleet.probed(&replica, passed);
        sleep(interval).await;
    }
}

/// Asks the node of a replica's GPU how it is, for ever.
pub(crate) async fn gpu(fleet: Arc<Fleet>, replica: Arc<Replica>) {
    let Some(gpu) = replica.config.gpu.clone() else { return };
    let Ok(target) = Target::parse(&gpu.node) else { return };
    let link = Link { target, tls: None, authorization: None };
    let uri = Uri::from_static("/api/v1/node");
    let mut last: Option<Reading> = None;
    let mut misses = 0;
    loop {
        let told = timeout(GPU_INTERVAL, get(&link, &uri, GPU_INTERVAL, MAX_FACTS_BYTES)).await;
        let reading = match told {
            Ok(Ok((StatusCode::OK, body))) => Reading::of(&body, &gpu.tenant),
            _ => None,
        };
        match reading {
            Some(reading) => {
                misses = 0;
                fleet.set_gpu(&replica, state(last.as_ref(), &reading));
                last = Some(reading);
            }
            None => {
                misses += 1;
                if misses == GPU_MISSES {
                    fleet.set_gpu(&replica, Default::default());
                    last = None;
                }
            }
        }
        sleep(GPU_INTERVAL).await;
    }
}

/// The answer to a GET on a connection of its own.
async fn get(link: &Link, uri: &Uri, limit: Duration, most: usize) -> Result<(StatusCode, Bytes), String> {
    let mut sender = connect(link, limit, limit).await?;
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() = uri.clone();
    request.headers_mut().insert(HOST, link.target.header.clone());
    if let Some(key) = &link.authorization {
        request.headers_mut().insert(AUTHORIZATION, key.clone());
    }
    let response = sender.send_request(request).await.map_err(|error| said(&error))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), most).collect().await.map_err(|error| error.to_string())?;
    Ok((status, body.to_bytes()))
}
