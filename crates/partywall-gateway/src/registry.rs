//! Replicas that come and go: from the configuration, or said by an operator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use partywall_routing::router::ModelId;
use tokio::task::AbortHandle;

use crate::config::{self, replica_problem};
use crate::error::Error;
use crate::events::Feeds;
use crate::probe;
use crate::replica::{Link, Replica, capacity};
use crate::worker::Shared;

/// What looks after each replica.
pub(crate) struct Registry {
    shared: Arc<Shared>,
    folder: PathBuf,
    pub(crate) feeds: Arc<Feeds>,
    tasks: Mutex<BTreeMap<String, Vec<AbortHandle>>>,
}

impl Registry {
    pub(crate) fn new(shared: Arc<Shared>, folder: &Path) -> Self {
        let feeds = Arc::new(Feeds::new(Arc::clone(&shared.fleet.knowledge)));
        Self { shared, folder: folder.to_owned(), feeds, tasks: Mutex::default() }
    }

    /// Takes a replica, and starts to look after it. In a runtime.
    pub(crate) fn add(&self, config: config::Replica) -> Result<(), Error> {
        let name = config.name.clone();
        let all = &self.shared.config;
        if let Some((key, problem)) = replica_problem(&config, all) {
            return Err(Error::Replica { name, problem: format!("{key}: {problem}") });
        }
        let link = Link::of(&config, &self.folder)?;
        let places: Vec<usize> = config
            .models
            .iter()
            .filter_map(|name| all.models.iter().position(|model| model.name == *name))
            .collect();
        let block_tokens = places.first().map_or(1, |place| all.models[all.base(*place)].block_tokens);
        let models: Vec<ModelId> = places.iter().map(|place| ModelId(*place as u32)).collect();
        let probed = !config.health_path.as_ref().unwrap_or(&all.health.path).is_empty();
        let replica = self.shared.fleet.add(
            &name,
            capacity(&config, block_tokens),
            &models,
            probed,
            |id, generation| Replica {
                id,
                generation,
                shown: Arc::from(config.name.as_str()),
                config: config.clone(),
                link,
            },
        )?;
        let mut tasks = Vec::new();
        if probed {
            let task =
                probe::health(Arc::clone(&self.shared.fleet), Arc::clone(&replica), all.health.clone());
            tasks.push(tokio::spawn(task).abort_handle());
        }
        if replica.config.gpu.is_some() {
            let task = probe::gpu(Arc::clone(&self.shared.fleet), Arc::clone(&replica));
            tasks.push(tokio::spawn(task).abort_handle());
        }
        if let Some(events) = &replica.config.kv_events {
            let place = places.first().copied().unwrap_or_default();
            let model = &all.models[all.base(place)];
            match self.feeds.follow(replica.id, events, &model.name, model.block_tokens) {
                Ok(followers) => tasks.extend(followers),
                Err(error) => {
                    tasks.iter().for_each(AbortHandle::abort);
                    let _ = self.shared.fleet.remove(&name);
                    return Err(Error::Replica { name, problem: error.to_string() });
                }
            }
        }
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).insert(name, tasks);
        Ok(())
    }

    /// Forgets a replica.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Error> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        for task in tasks.into_iter().flatten() {
            task.abort();
        }
        let replica = self.shared.fleet.remove(name)?;
        self.feeds.forget(replica.id);
        self.shared.fleet.knowledge.forget(replica.id);
        Ok(())
    }
}
