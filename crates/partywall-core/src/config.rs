//! `partywall.toml`: which tenants share the GPU, what each was promised, and behind which wall.
//!
//! The types below are the one source of the file format: the parser, the JSON schema ([`Config::schema`])
//! and the reference in the documentation come from them and from their comments. What cannot be said in
//! types (names are unique, a share is not zero) is checked after reading, so a [`Config`] that exists is one
//! that makes sense by itself. Whether a GPU can keep what it asks for is the planner's question.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::diagnostic::{Diagnostic, quoted};
use crate::tenant::{Baseline, Class, Share, Slo};
use crate::units::Bytes;
use crate::wall::Wall;

mod check;

/// Characters of a tenant's name: a DNS label's, because names stand in host names, metric labels and paths.
pub const MAX_NAME_CHARS: usize = 63;

/// Largest weight of a tenant's copies: beyond this ratio the lightest tenant starves.
pub const MAX_WEIGHT: u32 = crate::copy_scheduler::MAX_WEIGHT;

/// Whether `text` can be a tenant's name: 1 to [`MAX_NAME_CHARS`] lower-case letters, digits and hyphens, a letter or
/// digit first and last.
pub fn is_tenant_name(text: &str) -> bool {
    (1..=MAX_NAME_CHARS).contains(&text.len())
        && text.bytes().all(is_name_byte)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// A commented configuration for the help and the documentation. It is valid as it stands.
pub const EXAMPLE: &str = r#"# partywall.toml: the tenants of one GPU. Start them with `partywall up partywall.toml`.

[gpu]
select = "auto"             # which GPU: "auto", an index (0), a UUID ("GPU-..."), or simulated ("sim:h200")
wall = "auto"               # what stands between the tenants: "auto", or one wall by its id ("mps", "green-contexts", ...)

[[tenant]]
name = "detector"           # lower-case letters, digits and hyphens
class = "latency-sensitive" # keeps the tail latency that it has alone
slo.p99 = "5ms"             # optional: 99 of 100 requests take this time at most
slo.slowdown = 1.2          # optional: p99 at most this many times what it is alone, which is measured
                            # unless it is given: baseline.p99 = "1.1ms"
memory = "12GiB"            # all of its GPU memory; more is refused, to this tenant only
command = ["python", "serve_detector.py"]

[[tenant]]
name = "nightly-embeddings"
class = "best-effort"       # takes everything that is left
memory = "40GiB"
share.percent = 60          # of the SMs; or share.sms = 80. Kept behind mps-percentage and partywall, needed behind green-contexts
weight = 2                  # optional: of its copies over PCIe against other tenants'. Default: by class
restart = "on-failure"      # optional: "on-failure" (default), "always" or "never"
command = ["python", "embed.py", "--batch", "32"]
env = { OMP_NUM_THREADS = "4" }
"#;

/// The file `partywall.toml`: one GPU and the tenants that live on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Which GPU, and what stands between its tenants. Default: `select = "auto"`, `wall = "auto"`.
    #[serde(default)]
    pub gpu: GpuConfig,
    /// The tenants, at least one.
    #[serde(rename = "tenant")]
    #[schemars(length(min = 1))]
    pub tenants: Vec<TenantConfig>,
}

/// Which GPU, and what stands between its tenants.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct GpuConfig {
    /// Which GPU: `"auto"`, an index, a UUID, or a simulated one such as `"sim:h200"`. Default: `"auto"`.
    pub select: Select,
    /// The wall: `"auto"`, or a wall by its id. `partywall up` builds `"time-slicing"`, `"mps"`, `"mps-percentage"` and
    /// `"green-contexts"`. Default: `"auto"`, which adds none.
    pub wall: WallChoice,
}

/// One tenant: a command that uses the GPU, and what it was promised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Its name, once per file: 1 to 63 lower-case letters, digits and hyphens, a letter or digit first and
    /// last.
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))]
    pub name: String,
    /// What it cares about: `"latency-sensitive"` or `"best-effort"`.
    pub class: Class,
    /// The GPU memory that all its processes together may hold, above zero. More is refused, to this tenant
    /// only.
    pub memory: Bytes,
    /// The program and its arguments, run as they are: no shell looks at them.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// What its requests were promised; for latency-sensitive tenants. Default: no number, and still the tail
    /// latency that it has alone, as far as the wall allows.
    #[serde(default, skip_serializing_if = "is_default")]
    pub slo: Slo,
    /// What its requests take alone on the GPU, for latency-sensitive tenants: `baseline.p99 = "1.1ms"`. Default: it is measured, for
    /// which best-effort tenants stand back for some seconds where a slowdown was promised.
    #[serde(default, skip_serializing_if = "is_default")]
    pub baseline: Baseline,
    /// The SMs it gets: `share.sms = 80` or `share.percent = 60` (1 to 100, rounded down to SMs as MPS does). Behind
    /// `mps-percentage` the most that it uses, default all; behind `green-contexts` those that it has to itself, no default; behind `partywall`
    /// those that it stays on, default all.
    /// Not kept behind other walls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Share>,
    /// The SMs that are left to it while a latency-sensitive tenant is at work, for best-effort tenants behind `green-contexts` and
    /// `partywall`: `squeezed.sms = 16`, or `squeezed.percent = 12` of those that it has. Its launches then go on there instead of being held.
    /// Not for programs that take the number of SMs that they are told of for the number of blocks that run at the same time
    /// (docs/run.md). Default: it is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub squeezed: Option<Share>,
    /// The weight of its copies over PCIe against those of other tenants, 1 to 1024: with twice the weight,
    /// twice the bytes while both copy. Default: the weight of its class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub weight: Option<u32>,
    /// Environment variables to set for it, besides those of Partywall's own environment. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Whether it is started again when it ends: `"on-failure"`, `"always"` or `"never"`. Default:
    /// `"on-failure"`.
    #[serde(default)]
    pub restart: Restart,
}

/// Whether a tenant is started again when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Restart {
    /// When it ends with an error or a signal, also because a neighbour's GPU fault ended it.
    #[default]
    OnFailure,
    /// Whenever it ends.
    Always,
    /// Not at all.
    Never,
}

/// Which GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Select {
    /// The only one, or the first that can hold the tenants.
    #[default]
    Auto,
    /// The one that NVML lists at this index, from 0.
    Index(u32),
    /// The one with this UUID, `GPU-` and 32 hexadecimal digits in groups, in lower case.
    Uuid(String),
    /// A simulated one with this id in the catalogue; whether the catalogue has it is for the caller to see.
    Simulated(String),
}

/// The wall that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WallChoice {
    /// The wall that fits, chosen and explained.
    #[default]
    Auto,
    /// This one.
    Fixed(Wall),
}

/// Everything that is wrong with a configuration, each once, in the order of the file; never empty. What is
/// not TOML, or not of the right shape, is one error: reading ends there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    diagnostics: Vec<Diagnostic>,
}

impl ConfigError {
    /// What is wrong, in the order of the file.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }
}

impl ConfigError {
    /// Of what a check found; nothing where it found nothing.
    ///
    /// # Errors
    /// All of `diagnostics`, in the order of the file.
    pub fn of(diagnostics: Vec<Diagnostic>) -> Result<(), Self> {
        if diagnostics.is_empty() { Ok(()) } else { Err(Self { diagnostics }) }
    }
}

impl From<Diagnostic> for ConfigError {
    fn from(diagnostic: Diagnostic) -> Self {
        Self { diagnostics: vec![diagnostic] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.diagnostics.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{diagnostic}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Reads `text`, the contents of `file` (named in messages only).
    ///
    /// # Errors
    /// What is not TOML, has an unknown or missing key or a value of the wrong kind, or makes no sense: see
    /// [`ConfigError`].
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        if let Some(diagnostic) = check::list_for_table(text, file) {
            return Err(diagnostic.into());
        }
        let config: Self =
            toml::from_str(text).map_err(|error| Diagnostic::from_toml(text, file, &error, example))?;
        ConfigError::of(check::check(&config, text, file))?;
        Ok(config)
    }

    /// The JSON schema of the file, for editors and documentation: indented, the same text each time, with a
    /// final line break.
    pub fn schema() -> String {
        schema_of::<Self>()
    }
}

/// The JSON schema of a TOML file that is read into a `T`.
pub fn schema_of<T: JsonSchema>() -> String {
    let settings = schemars::generate::SchemaSettings::draft2020_12();
    let no_null = schemars::transform::RecursiveTransform(without_null);
    let schema = settings.with_transform(no_null).into_generator().into_root_schema_for::<T>();
    format!("{:#}\n", schema.to_value())
}

/// TOML has no null: what may be absent is just not required.
fn without_null(schema: &mut schemars::Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    object.retain(|key, value| key != "default" || !value.is_null());
    if let Some(types) = object.get_mut("type").filter(|types| types.is_array()) {
        let rest = types.as_array().into_iter().flatten().find(|name| *name != "null").cloned();
        *types = rest.unwrap_or_default();
    }
    let is_null = |option: &serde_json::Value| option.get("type").is_some_and(|name| name == "null");
    let options = object.get_mut("anyOf").and_then(|options| options.as_array_mut());
    let Some(options) = options.filter(|options| options.iter().any(is_null)) else { return };
    options.retain(|option| !is_null(option));
    if let [serde_json::Value::Object(only)] = &options[..] {
        let only = only.clone();
        object.remove("anyOf");
        for (key, value) in only {
            object.entry(key).or_insert(value);
        }
    }
}

/// How a key is written right.
fn example(key: &str) -> Option<&'static str> {
    Some(match key {
        "gpu" => "a table [gpu], with select and wall in it",
        "select" => "select = \"auto\", an index, a UUID, or \"sim:h200\"",
        "wall" => "wall = \"auto\", or the id of a wall such as \"mps\"",
        "tenant" => "a table [[tenant]] for each tenant",
        "name" => "name = \"detector\"",
        "class" => "class = \"latency-sensitive\" or class = \"best-effort\"",
        "memory" => "memory = \"12GiB\"",
        "command" => "command = [\"python\", \"serve.py\"]",
        "slo" => "slo.p99 = \"5ms\" or slo.slowdown = 1.2",
        "squeezed" => "squeezed.sms = 16 or squeezed.percent = 12",
        "baseline" => "baseline.p99 = \"1.1ms\"",
        "p99" => "slo.p99 = \"5ms\"",
        "slowdown" => "slo.slowdown = 1.2",
        "share" => "share.sms = 80 or share.percent = 60",
        "sms" => "share.sms = 80",
        "percent" => "share.percent = 60, from 1 to 100",
        "weight" => "weight = 2, from 1 to 1024",
        "env" => "env = { NAME = \"value\" }",
        "restart" => "restart = \"on-failure\", \"always\" or \"never\"",
        _ => return None,
    })
}

impl Select {
    const EXPECTED: &'static str = "write \"auto\", an index such as 0, a UUID such as \"GPU-01234567-89ab-cdef-0123-456789abcdef\", or \
         \"sim:h200\"";

    fn from_text(text: &str) -> Option<Self> {
        if text == "auto" {
            return Some(Self::Auto);
        }
        if let Some(id) = text.strip_prefix("sim:") {
            let fits = !id.is_empty() && id.bytes().all(is_name_byte);
            return fits.then(|| Self::Simulated(id.to_owned()));
        }
        if let Some(uuid) = text.strip_prefix("GPU-") {
            return is_uuid(uuid).then(|| Self::Uuid(format!("GPU-{}", uuid.to_ascii_lowercase())));
        }
        // `parse` alone would take "+1".
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if digits { text.parse().ok().map(Self::Index) } else { None }
    }
}

/// 8-4-4-4-12 hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    let hexadecimal = groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hexadecimal && groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl fmt::Display for Select {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Index(index) => write!(f, "{index}"),
            Self::Uuid(uuid) => f.write_str(uuid),
            Self::Simulated(id) => write!(f, "sim:{id}"),
        }
    }
}

impl Serialize for Select {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Index(index) => serializer.serialize_u32(*index),
            other => serializer.collect_str(other),
        }
    }
}

impl<'de> Deserialize<'de> for Select {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Select;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or an index")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Select, E> {
                Select::from_text(text).ok_or_else(|| {
                    E::custom(format_args!("{} selects no GPU; {}", quoted(text), Select::EXPECTED))
                })
            }
            fn visit_i64<E: serde::de::Error>(self, index: i64) -> Result<Select, E> {
                u32::try_from(index).map(Select::Index).map_err(|_| {
                    E::custom(format_args!("{index} is no index of a GPU; {}", Select::EXPECTED))
                })
            }
            fn visit_u64<E: serde::de::Error>(self, index: u64) -> Result<Select, E> {
                self.visit_i64(i64::try_from(index).unwrap_or(i64::MAX))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Select {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Select".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let uuid = "GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
        schemars::json_schema!({
            "description": "Which GPU.",
            "anyOf": [
                { "const": "auto", "description": "The only one, or the first that can hold the tenants." },
                { "type": "integer", "minimum": 0, "maximum": u32::MAX, "description": "Its index in NVML's list." },
                { "type": "string", "pattern": format!("^([0-9]+|{uuid}|sim:[a-z0-9-]+)$"),
                  "description": "Its index, its UUID, or `sim:` and the id of a GPU in the catalogue." },
            ],
        })
    }
}

impl fmt::Display for WallChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Fixed(wall) => wall.fmt(f),
        }
    }
}

/// A text that is neither a wall nor `auto`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no wall; choose auto or one of {}", Wall::ALL.map(Wall::id).join(", "))]
pub struct UnknownWallChoice {
    /// What was given.
    pub given: String,
}

impl FromStr for WallChoice {
    type Err = UnknownWallChoice;
    fn from_str(text: &str) -> Result<Self, UnknownWallChoice> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse().map(Self::Fixed).map_err(|_| UnknownWallChoice { given: text.to_owned() })
    }
}

impl Serialize for WallChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WallChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const AUTO: &str = "auto";
        const IDS: [&str; Wall::ALL.len() + 1] = {
            let mut ids = [AUTO; Wall::ALL.len() + 1];
            let mut index = 0;
            while index < Wall::ALL.len() {
                ids[index + 1] = Wall::ALL[index].id();
                index += 1;
            }
            ids
        };
        let text = String::deserialize(deserializer)?;
        if text == AUTO {
            return Ok(Self::Auto);
        }
        // As serde says it of its own enums, so that the nearest id is found.
        text.parse().map(Self::Fixed).map_err(|_| serde::de::Error::unknown_variant(&text, &IDS))
    }
}

impl JsonSchema for WallChoice {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WallChoice".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let wall = generator.subschema_for::<Wall>();
        schemars::json_schema!({
            "description": "The wall that was asked for.",
            "anyOf": [{ "const": "auto", "description": "The wall that fits, chosen and explained." }, wall],
        })
    }
}

#[cfg(test)]
mod tests;
