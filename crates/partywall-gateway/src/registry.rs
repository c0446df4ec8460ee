//! Replicas that come and go: from the configuration, or said by an operator.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use partywall_routing::router::ModelId;
use tokio::task::AbortHandle;

use crate::config::{self, replica_problem};
use crate::error::Error;
use crate::events::{Feeds, Told};
use crate::kv_events::Owner;
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
        let models: Vec<ModelId> =
            places.iter().flat_map(|place| self.shared.models.ids.all(*place)).collect();
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
        match self.feeds.follow(replica.id, self.sources(&replica.config)) {
            Ok(followers) => tasks.extend(followers),
            Err(error) => {
                tasks.iter().for_each(AbortHandle::abort);
                let _ = self.shared.fleet.remove(&name);
                return Err(Error::Replica { name, problem: error.to_string() });
            }
        }
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).insert(name, tasks);
        Ok(())
    }

    /// Where a replica's events come from, and which requests' prompts they are about.
    fn sources<'a>(&self, replica: &'a config::Replica) -> Vec<Told<'a>> {
        let (all, ids) = (&self.shared.config, &self.shared.models.ids);
        let told = |events: &'a config::KvEvents| {
            let (base, adapter) = events.owner(replica, all)?;
            // By whatever name it is asked for.
            let names: Vec<usize> = (0..all.models.len()).filter(|place| all.base(*place) == base).collect();
            let models = match adapter {
                Some(adapter) => {
                    self.shared.models.find(adapter).map(|named| ids.id(named)).into_iter().collect()
                }
                None if events.tells_adapters => names.into_iter().flat_map(|place| ids.all(place)).collect(),
                None => names.into_iter().map(|place| ModelId(place as u32)).collect(),
            };
            let adapters = events.adapter_ids.iter().map(|(name, id)| (*id, name.clone())).collect();
            let model = all.models[base].name.clone();
            let owner = Owner { model, adapter: adapter.map(str::to_owned), adapters };
            Some(Told { events, owner, models, block_tokens: all.models[base].block_tokens })
        };
        replica.kv_events.0.iter().filter_map(told).collect()
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
