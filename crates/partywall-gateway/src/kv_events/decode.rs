//! What engines publish, read from its bytes.
//!
//! A payload is a batch: a time, events, and perhaps the engine's rank; as a list or as a map. So is each event, and which of the two
//! changed over time, as did how many fields there are: what is missing at the end is missing, what is too much is ignored. An event
//! that cannot be understood is counted and costs itself, not its batch.

use partywall_routing::index::{EngineHash, Tier};
use partywall_routing::prefix::{Media, content};

use super::msgpack::{Item, Reader};
use super::{Adapter, Batch, Error, Event, Group, Stored};

/// The most events in a batch. An engine sends one per scheduler step, with a few events for each request in it.
pub const MAX_EVENTS: usize = 65_536;
/// The most blocks in an event: a prompt of 2 M tokens in blocks of 16.
pub const MAX_BLOCKS: usize = 131_072;
/// The most tokens in a block.
pub const MAX_BLOCK_TOKENS: u32 = 65_536;
/// The longest name of an adapter, a salt or a medium, in bytes.
pub const MAX_NAME: usize = 1024;
/// The most keys beside its tokens that a block depends on.
pub const MAX_KEYS: usize = 256;

/// Fields of an event in the order in which lists have them.
const STORED: [&str; 13] = [
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "locality",
];
const REMOVED: [&str; 5] = ["type", "block_hashes", "medium", "group_idx", "locality"];
/// The kinds of groups whose blocks hold a prompt's whole beginning; others forget or keep something else.
const MAIN_KINDS: [&[u8]; 3] = [b"full_attention", b"mla_attention", b"sink_full_attention"];

impl Batch {
    /// From a payload. An error is one of the batch's own form; what is wrong within events is counted in it.
    pub fn decode(payload: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(payload);
        let mut batch = Self::default();
        let (mut time, mut events, mut rank) = (None, None, None);
        match reader.next()? {
            Item::List(len) => {
                for field in [&mut time, &mut events, &mut rank].into_iter().take(len as usize) {
                    *field = Some(reader.value()?);
                }
            }
            Item::Map(len) => {
                for _ in 0..len {
                    let key = reader.next()?;
                    let value = reader.value()?;
                    match key {
                        Item::Text(b"ts") => time = Some(value),
                        Item::Text(b"events") => events = Some(value),
                        Item::Text(b"data_parallel_rank" | b"attn_dp_rank") => rank = Some(value),
                        _ => {}
                    }
                }
            }
            _ => return Err(Error::Shape { what: "a batch", expected: "a list or a map" }),
        }
        batch.mark = match time.map(|time| Reader::new(time).next()).transpose()? {
            // The bits of numbers above zero are in their order.
            Some(Item::Float(time)) if time > 0.0 => time.to_bits(),
            Some(Item::Integer(time)) => time,
            _ => 0,
        };
        batch.rank = match rank.map(|rank| Reader::new(rank).next()).transpose()? {
            Some(Item::Integer(rank)) => u32::try_from(rank).ok(),
            _ => None,
        };
        let mut events = Reader::new(events.unwrap_or(&[0x90]));
        let Item::List(count) = events.next()? else {
            return Err(Error::Shape { what: "a batch's events", expected: "a list" });
        };
        for number in 0..count as usize {
            if number == MAX_EVENTS {
                batch.problem(Error::TooMany { what: "events in a batch", limit: MAX_EVENTS });
                break;
            }
            match event(events.value()?) {
                Ok(event) => batch.events.push(event),
                Err(error) => batch.problem(error),
            }
        }
        Ok(batch)
    }

    fn problem(&mut self, error: Error) {
        self.problems += 1;
        self.first_problem.get_or_insert(error);
    }
}

/// The bytes of an event's fields, by name.
struct Fields<'a> {
    names: &'static [&'static str],
    values: [Option<&'a [u8]>; STORED.len()],
    /// The one field that only maps have.
    cache_salt: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a [u8]> {
        let at = self.names.iter().position(|known| *known == name)?;
        self.values[at].filter(|value| *value != [0xc0])
    }

    fn item(&self, name: &str) -> Result<Option<Item<'a>>, Error> {
        self.get(name).map(|value| Reader::new(value).next()).transpose()
    }

    fn name(&self, name: &'static str) -> Result<Option<&'a [u8]>, Error> {
        self.item(name)?.map(|item| text(name, item)).transpose()
    }
}

fn event(bytes: &[u8]) -> Result<Event, Error> {
    let mut reader = Reader::new(bytes);
    let mut fields = Fields { names: &STORED, values: [None; STORED.len()], cache_salt: None };
    let kind = match reader.next()? {
        Item::List(len) if len > 0 => {
            let kind = reader.next()?;
            for field in fields.values.iter_mut().skip(1).take(len as usize - 1) {
                *field = Some(reader.value()?);
            }
            kind
        }
        Item::Map(len) => {
            let mut kind = Item::Nil;
            let mut named = Vec::new();
            for _ in 0..len {
                let key = reader.next()?;
                let value = reader.value()?;
                match key {
                    Item::Text(b"type") => kind = Reader::new(value).next()?,
                    Item::Text(b"cache_salt") => fields.cache_salt = Some(value),
                    Item::Text(key) if named.len() < STORED.len() => named.push((key, value)),
                    _ => {}
                }
            }
            if kind == Item::Text(b"BlockRemoved") {
                fields.names = &REMOVED;
            }
            for (key, value) in named {
                if let Some(at) = fields.names.iter().position(|name| name.as_bytes() == key) {
                    fields.values[at] = Some(value);
                }
            }
            kind
        }
        _ => return Err(Error::Shape { what: "an event", expected: "a list or a map" }),
    };
    match kind {
        Item::Text(b"BlockStored") => Ok(Event::Stored(stored(&fields)?)),
        Item::Text(b"BlockRemoved") => {
            fields.names = &REMOVED;
            let hashes = hashes(fields.get("block_hashes"))?;
            let group = group(&fields)?;
            Ok(Event::Removed { hashes, tier: tier(&fields)?, group, remote: remote(&fields)? })
        }
        Item::Text(b"AllBlocksCleared") => Ok(Event::Cleared),
        _ => Err(Error::Shape {
            what: "an event's type",
            expected: "BlockStored, BlockRemoved or AllBlocksCleared",
        }),
    }
}

fn stored(fields: &Fields<'_>) -> Result<Stored, Error> {
    let hashes = hashes(fields.get("block_hashes"))?;
    let parent = fields.item("parent_block_hash")?.map(hash).transpose()?;
    let block_tokens = match fields.item("block_size")? {
        Some(Item::Integer(size)) if (1..=u64::from(MAX_BLOCK_TOKENS)).contains(&size) => size as u32,
        _ => return Err(Error::Shape { what: "block_size", expected: "a number from 1 to 65536" }),
    };
    let tokens = tokens(fields.get("token_ids"))?;
    if !tokens.is_empty() && tokens.len() != hashes.len() * block_tokens as usize {
        return Err(Error::Shape {
            what: "token_ids",
            expected: "block_size tokens for each block, or none",
        });
    }
    let name = fields.name("lora_name")?;
    let mut keys = Keys::default();
    if let Some(extra) = fields.get("extra_keys") {
        keys.read(extra, hashes.len(), name.unwrap_or_default())?;
    }
    let lora = match (name, fields.item("lora_id")?) {
        (Some(name), _) => Some(Adapter::Name(owned(name))),
        (None, Some(Item::Integer(id))) => Some(Adapter::Number(id)),
        (None, _) => None,
    };
    if let Some(salt) = fields.cache_salt.map(|salt| Reader::new(salt).next()).transpose()?
        && salt != Item::Nil
    {
        keys.salt = Some(owned(text("cache_salt", salt)?));
    }
    let Keys { salt: cache_salt, media } = keys;
    let (group, remote) = (group(fields)?, remote(fields)?);
    Ok(Stored {
        hashes,
        parent,
        tokens,
        block_tokens,
        tier: tier(fields)?,
        lora,
        cache_salt,
        media,
        group,
        remote,
    })
}

/// What a block depends on beside its tokens.
#[derive(Default)]
struct Keys {
    salt: Option<String>,
    /// The block and what begins in it.
    media: Vec<(u32, Media)>,
}

impl Keys {
    /// For each block nothing, or a list: the adapter's name, media with their places, and in the first block the salt.
    fn read(&mut self, bytes: &[u8], blocks: usize, lora: &[u8]) -> Result<(), Error> {
        let mut reader = Reader::new(bytes);
        let Item::List(count) = reader.next()? else {
            return Err(Error::Shape { what: "extra_keys", expected: "a list" });
        };
        for block in 0..(count as usize).min(blocks) {
            let mut reader = Reader::new(reader.value()?);
            let Item::List(keys) = reader.next()? else { continue };
            if keys as usize > MAX_KEYS {
                return Err(Error::TooMany { what: "extra keys of a block", limit: MAX_KEYS });
            }
            for _ in 0..keys {
                let mut key = Reader::new(reader.value()?);
                match key.next()? {
                    Item::Text(text) if text == lora => {}
                    // Media without a place are where the block begins, as far as anybody can tell.
                    Item::Text(text) | Item::Bytes(text) if block > 0 => {
                        self.media.push(media(block, text, 0))
                    }
                    Item::Text(salt) => self.salt = Some(owned(text("a salt", Item::Text(salt))?)),
                    Item::List(2) => {
                        let (identifier, place) = (key.next()?, key.next()?);
                        if let (Item::Text(text) | Item::Bytes(text), Item::Integer(place)) = (identifier, place)
                            // Below zero it began in a block before this one, which has it already.
                            && let Ok(place) = u32::try_from(place)
                        {
                            self.media.push(media(block, text, place));
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn media(block: usize, identifier: &[u8], at: u32) -> (u32, Media) {
    (block as u32, Media { content: content(identifier), at })
}

fn tier(fields: &Fields<'_>) -> Result<Tier, Error> {
    Ok(match fields.name("medium")? {
        None | Some(b"GPU") => Tier::Device,
        Some(b"CPU" | b"CPU_PINNED" | b"CPU_TIER1") => Tier::Host,
        Some(_) => Tier::Disk,
    })
}

fn remote(fields: &Fields<'_>) -> Result<bool, Error> {
    Ok(fields.name("locality")? == Some(b"REMOTE"))
}

fn group(fields: &Fields<'_>) -> Result<Group, Error> {
    let number = match fields.item("group_idx")? {
        Some(Item::Integer(number)) => u32::try_from(number).ok(),
        _ => None,
    };
    let main = fields.name("kv_cache_spec_kind")?.map(|kind| MAIN_KINDS.contains(&kind));
    Ok(Group { number, main })
}

fn text<'a>(what: &'static str, item: Item<'a>) -> Result<&'a [u8], Error> {
    match item {
        Item::Text(text) if text.len() <= MAX_NAME => Ok(text),
        Item::Text(_) => Err(Error::TooMany { what: "bytes in a name", limit: MAX_NAME }),
        _ => Err(Error::Shape { what, expected: "a text" }),
    }
}

fn owned(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn hashes(bytes: Option<&[u8]>) -> Result<Vec<EngineHash>, Error> {
    let mut reader = Reader::new(bytes.unwrap_or_default());
    match reader.next() {
        Ok(Item::List(len)) if len as usize > MAX_BLOCKS => {
            Err(Error::TooMany { what: "blocks in an event", limit: MAX_BLOCKS })
        }
        Ok(Item::List(len)) => (0..len).map(|_| hash(reader.next()?)).collect(),
        _ => Err(Error::Shape { what: "block_hashes", expected: "a list" }),
    }
}

/// A number as it is, and of bytes the last eight, which is what engines shorten a hash to that they write as a number.
fn hash(item: Item<'_>) -> Result<EngineHash, Error> {
    match item {
        Item::Integer(number) => Ok(EngineHash(number)),
        Item::Bytes(bytes) | Item::Text(bytes) if !bytes.is_empty() => {
            let last = &bytes[bytes.len().saturating_sub(8)..];
            Ok(EngineHash(last.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))))
        }
        _ => Err(Error::Shape { what: "a block's hash", expected: "a number or bytes" }),
    }
}

/// Tokens, or pairs of neighbouring tokens, as speculative decoding has them: the first of each is the token.
fn tokens(bytes: Option<&[u8]>) -> Result<Vec<u32>, Error> {
    let Some(bytes) = bytes else { return Ok(Vec::new()) };
    let mut reader = Reader::new(bytes);
    let Item::List(len) = reader.next()? else {
        return Err(Error::Shape { what: "token_ids", expected: "a list" });
    };
    let mut tokens = Vec::with_capacity(len as usize);
    for _ in 0..len {
        let token = match reader.next()? {
            Item::List(2) => {
                let first = reader.next()?;
                reader.next()?;
                first
            }
            item => item,
        };
        let Item::Integer(token) = token else {
            return Err(Error::Shape { what: "a token", expected: "a number" });
        };
        tokens.push(
            u32::try_from(token).map_err(|_| Error::Shape { what: "a token", expected: "below 2^32" })?,
        );
    }
    Ok(tokens)
}
