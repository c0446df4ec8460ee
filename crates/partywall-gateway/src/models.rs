//! The models: what requests name, and how their prompts are read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use partywall_routing::router::ModelId;
use tokenizers::Tokenizer;

use crate::answer::Problem;
use crate::config::{Config, Model};
use crate::error::Error;
pub(crate) use crate::prompt::Prompt;
use crate::prompt::{Owner, Reader};
use crate::route::Shape;
use crate::template::Template;

/// Bytes of a tokenizer's file.
const MAX_TOKENIZER_BYTES: u64 = 256 << 20;

/// What a request's name for a model means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Named {
    /// Index of the model.
    pub model: usize,
    /// Index of its adapter.
    pub adapter: Option<usize>,
}

/// The models and their adapters as the router knows them: each name is one, models first.
#[derive(Debug, Clone)]
pub(crate) struct Ids {
    /// By model: the id of its first adapter, and how many it has.
    adapters: Vec<(u32, u32)>,
}

impl Ids {
    pub(crate) fn of(config: &Config) -> Self {
        let mut next = config.models.len() as u32;
        let mut of_one = |model: &Model| {
            let first = next;
            next += model.adapters.len() as u32;
            (first, model.adapters.len() as u32)
        };
        Self { adapters: config.models.iter().map(&mut of_one).collect() }
    }

    /// Of what a request names.
    pub(crate) fn id(&self, named: Named) -> ModelId {
        let first = self.adapters.get(named.model).map_or(0, |(first, _)| *first);
        ModelId(named.adapter.map_or(named.model as u32, |adapter| first + adapter as u32))
    }

    /// Of the adapters of the model at `place`.
    pub(crate) fn adapters(&self, place: usize) -> impl Iterator<Item = ModelId> + use<> {
        let (first, count) = self.adapters.get(place).copied().unwrap_or_default();
        (first..first + count).map(ModelId)
    }

    /// Of the model at `place` with all its adapters.
    pub(crate) fn all(&self, place: usize) -> impl Iterator<Item = ModelId> + use<> {
        std::iter::once(ModelId(place as u32)).chain(self.adapters(place))
    }
}

/// All models.
pub(crate) struct Models {
    pub(crate) ids: Ids,
    models: Vec<Model>,
    readers: Vec<Reader>,
    /// The model that each is, by whatever name.
    bases: Vec<usize>,
    names: BTreeMap<String, Named>,
}

impl Models {
    /// Those of a configuration, with the files that it names, relative to `folder`.
    pub(crate) fn read(config: &Config, folder: &Path) -> Result<Self, Error> {
        let mut models = Self {
            ids: Ids::of(config),
            models: config.models.clone(),
            readers: Vec::new(),
            bases: Vec::new(),
            names: BTreeMap::new(),
        };
        for (place, model) in config.models.iter().enumerate() {
            // An alias is read as its model is; its own reader is never asked.
            let own = config.base(place) == place;
            models.readers.push(if own { reader(model, folder)? } else { Reader::default() });
            models.bases.push(config.base(place));
            models.names.insert(model.name.clone(), Named { model: place, adapter: None });
            for (index, adapter) in model.adapters.iter().enumerate() {
                models.names.insert(adapter.clone(), Named { model: place, adapter: Some(index) });
            }
        }
        Ok(models)
    }

    /// What a request means by this name.
    pub(crate) fn find(&self, name: &str) -> Option<Named> {
        self.names.get(name).copied()
    }

    /// Whether this model's prompts are read by a tokenizer.
    pub(crate) fn tokenizes(&self, model: usize) -> bool {
        let base = self.bases.get(model).and_then(|base| self.readers.get(*base));
        base.is_some_and(|reader| reader.tokenizer.is_some())
    }

    /// What the prompt in a body begins with.
    pub(crate) fn prompt(
        &self,
        named: Named,
        shape: Shape,
        body: &[u8],
        salt: Option<&str>,
    ) -> Result<Prompt, Problem> {
        let base = self.bases.get(named.model).copied().unwrap_or(named.model);
        let found = (self.models.get(named.model), self.models.get(base), self.readers.get(base));
        let (Some(model), Some(base), Some(reader)) = found else { return Ok(Prompt::default()) };
        let adapter = named.adapter.and_then(|index| model.adapters.get(index)).map(String::as_str);
        let owner = Owner { model: &base.name, adapter, salt };
        match shape {
            Shape::Chat => reader.chat(body, owner),
            Shape::Completion => reader.completion(body, owner),
            Shape::Model => Ok(Prompt::default()),
        }
    }

    /// The answer to `/v1/models`, or to `/v1/models/NAME`; `None` where there is no such model.
    pub(crate) fn listed(&self, name: Option<&str>) -> Option<Bytes> {
        let one = |(name, named): (&String, &Named)| {
            let parent = named.adapter.and_then(|_| self.models.get(named.model)).map(|model| &model.name);
            serde_json::json!({
                "id": name, "object": "model", "created": 0, "owned_by": "partywall", "root": name, "parent": parent
            })
        };
        let text = match name {
            Some(name) => one(self.names.get_key_value(name)?).to_string(),
            None => {
                let all: Vec<_> = self.names.iter().map(one).collect();
                serde_json::json!({ "object": "list", "data": all }).to_string()
            }
        };
        Some(Bytes::from(text))
    }
}

fn reader(model: &Model, folder: &Path) -> Result<Reader, Error> {
    let Some(file) = &model.tokenizer else {
        return Ok(Reader { block_tokens: model.block_tokens, ..Reader::default() });
    };
    let file = folder.join(file);
    let length = std::fs::metadata(&file).map_err(Error::read(&file))?.len();
    let wrong = |problem: String| Error::Content { path: file.clone(), problem };
    if length > MAX_TOKENIZER_BYTES {
        return Err(wrong(format!("has {length} bytes; at most {MAX_TOKENIZER_BYTES} are read")));
    }
    let mut tokenizer = Tokenizer::from_file(&file)
        .map_err(|error| wrong(format!("is no tokenizer that can be read: {error}")))?;
    // What a prompt is cut or filled up to is not the gateway's business.
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(|error| wrong(error.to_string()))?;
    let template = match &model.chat_template {
        Some(path) => Template::read(&folder.join(path))?,
        None => beside(&file).map_or(Ok(None), |path| Template::read(&path))?,
    };
    Ok(Reader { tokenizer: Some(tokenizer), template, block_tokens: model.block_tokens })
}

/// The template that comes with a tokenizer.
fn beside(tokenizer: &Path) -> Option<PathBuf> {
    let names = ["chat_template.jinja", "tokenizer_config.json"];
    names.iter().map(|name| tokenizer.with_file_name(name)).find(|path| path.is_file())
}
