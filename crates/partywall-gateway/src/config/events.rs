//! Where a replica's KV events come from, and whose blocks they are about.

use std::collections::BTreeMap;
use std::fmt;

use partywall_core::diagnostic::quoted;
use schemars::JsonSchema;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Config, MAX_RANKS, Replica};

/// Where a replica publishes what its cache stores and removes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct KvEvents {
    /// Its publisher: `"tcp://10.0.0.5:5557"`.
    pub endpoint: String,
    /// Where what was missed can be had again: `"tcp://10.0.0.5:5558"`. Default: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<String>,
    /// The topic. Default: all.
    #[serde(default)]
    pub topic: String,
    /// Data-parallel ranks, each at the port of the one before and 1. Default: 1.
    #[serde(default = "KvEvents::one")]
    #[schemars(range(min = 1, max = 1024))]
    pub ranks: u32,
    /// The model whose blocks they are about, by its name in this file: events do not say it. Or an adapter, where an engine has that and
    /// nothing else. Default: the replica's model; where it has several this has to be said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The numbers of adapters, for engines that tell these and no names: `{ french = 1 }`. vLLM before `lora_name` counts them from 1 in the order
    /// in which they were loaded.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub adapter_ids: BTreeMap<String, u64>,
    /// Whether they say which adapter blocks were computed with. vLLM's do, SGLang's do not: what adapters hold is then assumed from what was
    /// sent. Default: true.
    #[serde(default = "KvEvents::yes")]
    pub tells_adapters: bool,
}

/// All places from which a replica's events come: in the file one table, or a list of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct EventSources(pub Vec<KvEvents>);

/// One table, or a list of them.
#[derive(JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "the schema is made of its form")]
pub(super) enum OneOrMany {
    One(KvEvents),
    Many(Vec<KvEvents>),
}

impl KvEvents {
    fn one() -> u32 {
        1
    }
    fn yes() -> bool {
        true
    }

    /// The model in `config` whose blocks these are, and the adapter if they are of one only. `replica` is valid.
    pub(crate) fn owner<'a>(
        &'a self,
        replica: &Replica,
        config: &'a Config,
    ) -> Option<(usize, Option<&'a str>)> {
        let Some(name) = &self.model else {
            let first = config.models.iter().position(|model| Some(&model.name) == replica.models.first())?;
            return Some((config.base(first), None));
        };
        if let Some(place) = config.models.iter().position(|model| model.name == *name) {
            return Some((config.base(place), None));
        }
        let place = config.models.iter().position(|model| model.adapters.contains(name))?;
        Some((config.base(place), Some(name)))
    }

    /// What is wrong with these of a replica, if anything is.
    fn problem(&self, replica: &Replica, config: &Config) -> Option<String> {
        let ends = std::iter::once((&self.endpoint, "endpoint"));
        for (endpoint, key) in ends.chain(self.replay.iter().map(|replay| (replay, "replay"))) {
            if !["tcp://", "ipc://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
                return Some(format!("the {key} {} is no ZeroMQ address", quoted(endpoint)));
            }
        }
        if !(1..=MAX_RANKS).contains(&self.ranks) {
            return Some(format!("{} is no number of ranks", self.ranks));
        }
        let place = |name: &String| config.models.iter().position(|model| model.name == *name);
        let served: Vec<usize> = replica.models.iter().filter_map(place).collect();
        let mut bases: Vec<usize> = served.iter().map(|place| config.base(*place)).collect();
        bases.sort_unstable();
        bases.dedup();
        let names = |places: &[usize]| {
            places.iter().map(|place| quoted(&config.models[*place].name)).collect::<Vec<_>>().join(", ")
        };
        if self.model.is_none() && bases.len() > 1 {
            let names = names(&bases);
            return Some(format!(
                "the replica serves {names}, and events do not say whose blocks they are about; write model = \"...\" in a table of \
                 kv-events for each"
            ));
        }
        let adapters: Vec<&String> =
            served.iter().flat_map(|place| &config.models[*place].adapters).collect();
        if let Some(model) = &self.model {
            let known = place(model).is_some_and(|place| bases.contains(&config.base(place)));
            if !known && !adapters.contains(&model) {
                return Some(format!("the replica does not serve the model {}", quoted(model)));
            }
        }
        for (name, id) in &self.adapter_ids {
            if !adapters.contains(&name) {
                return Some(format!("no model of the replica has the adapter {}", quoted(name)));
            }
            if self.adapter_ids.values().filter(|other| *other == id).count() > 1 {
                return Some(format!("two adapters have the number {id}"));
            }
        }
        None
    }
}

impl EventSources {
    /// What is wrong with them, if anything is.
    pub(super) fn problem(&self, replica: &Replica, config: &Config) -> Option<String> {
        for (number, events) in self.0.iter().enumerate() {
            if let Some(problem) = events.problem(replica, config) {
                return Some(problem);
            }
            // A subscription is to everything that begins with its topic.
            let same = |other: &&KvEvents| {
                let [one, two] = [&other.topic, &events.topic];
                other.endpoint == events.endpoint && (one.starts_with(two) || two.starts_with(one))
            };
            if let Some(other) = self.0[..number].iter().find(same) {
                let endpoint = quoted(&other.endpoint);
                return Some(format!(
                    "{endpoint} stands there twice, with topics that do not exclude each other"
                ));
            }
        }
        let ranks: u64 = self.0.iter().map(|events| u64::from(events.ranks)).sum();
        (ranks > u64::from(MAX_RANKS)).then(|| format!("{ranks} ranks are more than a replica may have"))
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for EventSources {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Not an untagged enum: of that a message says no more than that nothing fits.
        struct Tables;
        impl<'de> Visitor<'de> for Tables {
            type Value = EventSources;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a table, or a list of tables")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<EventSources, A::Error> {
                Ok(EventSources(vec![KvEvents::deserialize(MapAccessDeserializer::new(map))?]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<EventSources, A::Error> {
                Ok(EventSources(Vec::deserialize(SeqAccessDeserializer::new(seq))?))
            }
        }
        deserializer.deserialize_any(Tables)
    }
}
