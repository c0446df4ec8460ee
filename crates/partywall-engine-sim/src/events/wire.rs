//! Batches of events as bytes: msgpack in the shapes that vLLM and SGLang send.
//!
//! A batch is `[time, events, data-parallel rank]`. An event was an array that begins with its name until the middle of 2026, and is a map
//! with the key `type` since; the batch itself was a map in one revision of vLLM. Trailing fields with their default may be missing, and
//! a consumer has to take all of this. What differs between the two engines: SGLang's hashes are signed, its arrays end with the medium and
//! know no LoRA name, its maps have the salt as a field.

use std::str::FromStr;

use rmpv::Value;

use super::{CacheEvent, EngineHash, StoredBlock};
use crate::tokens::Domain;

/// Whose shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// vLLM's.
    #[default]
    Vllm,
    /// SGLang's.
    Sglang,
}

/// Which of an engine's shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Encoding {
    /// Events as arrays: the older one.
    Array,
    /// Events as maps.
    #[default]
    Map,
    /// The batch as a map as well.
    MapBatch,
}

/// How a block's hash is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashForm {
    /// As a number of 64 bits.
    #[default]
    Int,
    /// As the 32 bytes of a digest, of which the last eight are that number.
    Bytes,
}

/// How a batch becomes bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shape {
    /// Whose.
    pub format: Format,
    /// Which of theirs.
    pub encoding: Encoding,
    /// How hashes are written.
    pub hashes: HashForm,
}

impl Shape {
    /// Whether a replayed message carries the topic, as vLLM's does since it sends maps.
    pub fn replays_topic(self) -> bool {
        self.format == Format::Vllm && self.encoding != Encoding::Array
    }

    /// The bytes of a batch of a data-parallel rank; `time` in seconds since 1970.
    pub fn batch(self, time: f64, rank: u16, block_tokens: u32, events: &[CacheEvent]) -> Vec<u8> {
        let events = Value::Array(events.iter().map(|event| self.event(block_tokens, event)).collect());
        let batch = match self.encoding {
            Encoding::Array | Encoding::Map => {
                Value::Array(vec![Value::F64(time), events, Value::from(rank)])
            }
            Encoding::MapBatch => {
                map([("ts", Value::F64(time)), ("events", events), ("data_parallel_rank", Value::from(rank))])
            }
        };
        let mut bytes = Vec::new();
        // Writing into memory does not fail, and an event that is lost would be noticed as a gap.
        let _ = rmpv::encode::write_value(&mut bytes, &batch);
        bytes
    }

    fn event(self, block_tokens: u32, event: &CacheEvent) -> Value {
        match event {
            CacheEvent::Stored { parent, blocks, domain } => {
                self.stored(block_tokens, *parent, blocks, domain)
            }
            CacheEvent::Removed(hashes) => {
                let hashes = self.hashes(hashes.iter().copied());
                let medium = ("medium", Value::from("GPU"));
                self.fields("BlockRemoved", vec![("block_hashes", hashes), medium])
            }
            CacheEvent::Cleared => self.fields("AllBlocksCleared", Vec::new()),
        }
    }

    fn stored(
        self,
        block_tokens: u32,
        parent: Option<EngineHash>,
        blocks: &[StoredBlock],
        domain: &Domain,
    ) -> Value {
        let tokens = blocks.iter().flat_map(|block| block.tokens.iter().map(|&token| Value::from(token)));
        let mut fields = vec![
            ("block_hashes", self.hashes(blocks.iter().map(|block| block.hash))),
            ("parent_block_hash", parent.map_or(Value::Nil, |parent| self.hash(parent))),
            ("token_ids", Value::Array(tokens.collect())),
            ("block_size", Value::from(block_tokens)),
            ("lora_id", Value::Nil),
            ("medium", Value::from("GPU")),
        ];
        let salt = domain.cache_salt.as_deref();
        match (self.format, self.encoding) {
            (Format::Sglang, Encoding::Array) => {}
            (Format::Sglang, _) => fields.push(("cache_salt", salt.map_or(Value::Nil, Value::from))),
            (Format::Vllm, _) => {
                let lora = domain.lora.as_deref();
                let extra = blocks.iter().enumerate().map(|(number, _)| {
                    let first = number == 0 && parent.is_none();
                    let keys: Vec<Value> =
                        lora.into_iter().chain(salt.filter(|_| first)).map(Value::from).collect();
                    if keys.is_empty() { Value::Nil } else { Value::Array(keys) }
                });
                fields.extend([
                    ("lora_name", lora.map_or(Value::Nil, Value::from)),
                    ("extra_keys", Value::Array(extra.collect())),
                    ("group_idx", Value::from(0)),
                    ("kv_cache_spec_kind", Value::from("full_attention")),
                ]);
            }
        }
        self.fields("BlockStored", fields)
    }

    fn fields(self, name: &str, fields: Vec<(&str, Value)>) -> Value {
        let name = Value::from(name);
        match self.encoding {
            Encoding::Array => Value::Array(
                std::iter::once(name).chain(fields.into_iter().map(|(_, value)| value)).collect(),
            ),
            Encoding::Map | Encoding::MapBatch => map(std::iter::once(("type", name)).chain(fields)),
        }
    }

    fn hashes(self, hashes: impl Iterator<Item = EngineHash>) -> Value {
        Value::Array(hashes.map(|hash| self.hash(hash)).collect())
    }

    fn hash(self, hash: EngineHash) -> Value {
        match (self.hashes, self.format) {
            (HashForm::Int, Format::Vllm) => Value::from(hash.0),
            (HashForm::Int, Format::Sglang) => Value::from(hash.0 as i64),
            (HashForm::Bytes, _) => {
                let words = [hash.0.rotate_left(13), !hash.0, hash.0.rotate_left(41), hash.0];
                Value::Binary(words.iter().flat_map(|word| word.to_be_bytes()).collect())
            }
        }
    }
}

fn map<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Map(fields.into_iter().map(|(name, value)| (Value::from(name), value)).collect())
}

impl FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "vllm" => Ok(Self::Vllm),
            "sglang" => Ok(Self::Sglang),
            _ => Err("write vllm or sglang".to_owned()),
        }
    }
}

impl FromStr for Encoding {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "array" => Ok(Self::Array),
            "map" => Ok(Self::Map),
            "map-batch" => Ok(Self::MapBatch),
            _ => Err("write array, map or map-batch".to_owned()),
        }
    }
}

impl FromStr for HashForm {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "int" => Ok(Self::Int),
            "bytes" => Ok(Self::Bytes),
            _ => Err("write int or bytes".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const HASH: u64 = 0xfedc_ba98_7654_3210;

    fn events() -> Vec<CacheEvent> {
        let block = |hash, tokens: [u32; 2]| StoredBlock { hash: EngineHash(hash), tokens: Arc::new(tokens) };
        let domain = Domain { lora: Some("poet".to_owned()), cache_salt: Some("s".to_owned()) };
        let domain = Arc::new(domain);
        let blocks = vec![block(HASH, [1, 2]), block(7, [3, 300])];
        vec![
            CacheEvent::Stored { parent: None, blocks: blocks.clone(), domain: domain.clone() },
            CacheEvent::Stored { parent: Some(EngineHash(7)), blocks, domain: Arc::default() },
            CacheEvent::Removed(vec![EngineHash(7)]),
            CacheEvent::Cleared,
        ]
    }

    /// What rmpv prints of a value looks like JSON.
    fn check(shape: Shape, expected: &[&str]) {
        let bytes = shape.batch(1.5, 0, 2, &events());
        let batch = rmpv::decode::read_value(&mut bytes.as_slice()).unwrap();
        let (time, events) = match shape.encoding {
            Encoding::MapBatch => (batch["ts"].clone(), batch["events"].clone()),
            _ => (batch[0].clone(), batch[1].clone()),
        };
        assert_eq!(time, Value::F64(1.5));
        let seen: Vec<String> = events.as_array().unwrap().iter().map(Value::to_string).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn vllm_maps() {
        let expected = [
            r#"{"type": "BlockStored", "block_hashes": [18364758544493064720, 7], "parent_block_hash": nil, "token_ids": [1, 2, 3, 300], "block_size": 2, "lora_id": nil, "medium": "GPU", "lora_name": "poet", "extra_keys": [["poet", "s"], ["poet"]], "group_idx": 0, "kv_cache_spec_kind": "full_attention"}"#,
            r#"{"type": "BlockStored", "block_hashes": [18364758544493064720, 7], "parent_block_hash": 7, "token_ids": [1, 2, 3, 300], "block_size": 2, "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": [nil, nil], "group_idx": 0, "kv_cache_spec_kind": "full_attention"}"#,
            r#"{"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"}"#,
            r#"{"type": "AllBlocksCleared"}"#,
        ];
        check(Shape::default(), &expected);
        check(Shape { encoding: Encoding::MapBatch, ..Shape::default() }, &expected);
    }

    #[test]
    fn vllm_arrays() {
        let expected = [
            r#"["BlockStored", [18364758544493064720, 7], nil, [1, 2, 3, 300], 2, nil, "GPU", "poet", [["poet", "s"], ["poet"]], 0, "full_attention"]"#,
            r#"["BlockStored", [18364758544493064720, 7], 7, [1, 2, 3, 300], 2, nil, "GPU", nil, [nil, nil], 0, "full_attention"]"#,
            r#"["BlockRemoved", [7], "GPU"]"#,
            r#"["AllBlocksCleared"]"#,
        ];
        check(Shape { encoding: Encoding::Array, ..Shape::default() }, &expected);
    }

    #[test]
    fn sglang_signs_its_hashes() {
        let array = [
            r#"["BlockStored", [-81985529216486896, 7], nil, [1, 2, 3, 300], 2, nil, "GPU"]"#,
            r#"["BlockStored", [-81985529216486896, 7], 7, [1, 2, 3, 300], 2, nil, "GPU"]"#,
            r#"["BlockRemoved", [7], "GPU"]"#,
            r#"["AllBlocksCleared"]"#,
        ];
        let shape = Shape { format: Format::Sglang, encoding: Encoding::Array, hashes: HashForm::Int };
        check(shape, &array);
        assert!(!shape.replays_topic());
        let bytes = Shape { encoding: Encoding::Map, ..shape }.batch(0.0, 0, 2, &events());
        let batch = rmpv::decode::read_value(&mut bytes.as_slice()).unwrap();
        assert_eq!(batch[1][0]["cache_salt"], Value::from("s"));
        assert_eq!(batch[1][1]["cache_salt"], Value::Nil);
    }

    #[test]
    fn a_hash_as_bytes_ends_with_the_number() {
        let bytes = Shape { hashes: HashForm::Bytes, ..Shape::default() }.batch(0.0, 0, 2, &events());
        let batch = rmpv::decode::read_value(&mut bytes.as_slice()).unwrap();
        let hash = batch[1][0]["block_hashes"][0].as_slice().unwrap();
        assert_eq!((hash.len(), &hash[24..]), (32, HASH.to_be_bytes().as_slice()));
    }
}
