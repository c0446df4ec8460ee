//! A model's chat template, as its authors wrote it for Python: what the engine makes of messages before it counts tokens.

use std::path::Path;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error as JinjaError, ErrorKind};
use serde::Serialize as _;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::clock;
use crate::error::Error;

/// Bytes of a file with a template.
const MAX_FILE_BYTES: u64 = 16 << 20;

const NAME: &str = "chat";

/// A chat template, ready to be used.
pub(crate) struct Template {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl Template {
    /// Reads the template in `file`, a `tokenizer_config.json` or nothing but a template. `None` where the former has none.
    pub(crate) fn read(file: &Path) -> Result<Option<Self>, Error> {
        let wrong = |problem: String| Error::Content { path: file.to_owned(), problem };
        let length = std::fs::metadata(file).map_err(Error::read(file))?.len();
        if length > MAX_FILE_BYTES {
            return Err(wrong(format!("has {length} bytes; at most {MAX_FILE_BYTES} are read")));
        }
        let text = std::fs::read_to_string(file).map_err(Error::read(file))?;
        if file.extension().is_none_or(|extension| extension != "json") {
            return Self::new(text, String::new(), String::new()).map(Some).map_err(wrong);
        }
        let config: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| wrong(format!("is no JSON: {error}")))?;
        let token = |name: &str| {
            let token = &config[name];
            token.as_str().or_else(|| token["content"].as_str()).unwrap_or_default().to_owned()
        };
        let named = |templates: &Vec<serde_json::Value>| {
            let default = templates.iter().find(|template| template["name"] == "default");
            default
                .or(templates.first())
                .and_then(|template| template["template"].as_str())
                .map(str::to_owned)
        };
        let template = match &config["chat_template"] {
            serde_json::Value::String(template) => Some(template.clone()),
            serde_json::Value::Array(templates) => named(templates),
            _ => None,
        };
        let Some(template) = template else { return Ok(None) };
        Self::new(template, token("bos_token"), token("eos_token")).map(Some).map_err(wrong)
    }

    fn new(source: String, bos: String, eos: String) -> Result<Self, String> {
        let mut environment = Environment::new();
        // As transformers set them.
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", to_json);
        environment.add_function("raise_exception", |why: String| -> Result<Value, JinjaError> {
            Err(JinjaError::new(ErrorKind::InvalidOperation, why))
        });
        environment.add_function("strftime_now", |format: String| date(&format, clock::unix_ms() / 1_000));
        let source = without_generation(&source);
        environment
            .add_template_owned(NAME, source)
            .map_err(|error| format!("holds a chat template that cannot be read: {error}"))?;
        Ok(Self { environment, bos, eos })
    }

    /// The text of these messages; `None` where the template does not take them.
    pub(crate) fn render(&self, messages: &Value, tools: &Value, open: bool, more: &Value) -> Option<String> {
        let context = minijinja::context! {
            messages => messages,
            tools => tools,
            add_generation_prompt => open,
            bos_token => &self.bos,
            eos_token => &self.eos,
            ..more.clone()
        };
        self.environment.get_template(NAME).ok()?.render(context).ok()
    }
}

/// Marks of what a model said, for training; they change nothing of the text, and no other engine of templates knows them.
fn without_generation(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}").map(|length| length + 2) else { break };
        let tag = &rest[start..start + length];
        let word = tag[2..length - 2].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        text.push_str(&rest[..start]);
        if word == "generation" || word == "endgeneration" {
            // An empty comment takes blanks away on the same sides.
            let [before, after] = [tag.starts_with("{%-"), tag.ends_with("-%}")];
            text.push_str(if before { "{#-" } else { "{#" });
            text.push_str(if after { "-#}" } else { "#}" });
        } else {
            text.push_str(tag);
        }
        rest = &rest[start + length..];
    }
    text + rest
}

/// JSON as Python writes it: a blank behind colons and commas, nothing escaped for HTML.
fn to_json(value: Value, options: Kwargs) -> Result<Value, JinjaError> {
    let indent: Option<usize> = options.get("indent").unwrap_or(None);
    // Others are about what is the case already.
    let _ = (options.get::<Option<Value>>("ensure_ascii"), options.get::<Option<Value>>("separators"));
    let mut bytes = Vec::new();
    let spaces = " ".repeat(indent.unwrap_or(0).min(16));
    let written = match indent {
        Some(_) => value.serialize(&mut Serializer::with_formatter(
            &mut bytes,
            PrettyFormatter::with_indent(spaces.as_bytes()),
        )),
        None => value.serialize(&mut Serializer::with_formatter(&mut bytes, Python)),
    };
    let failed = |why: String| JinjaError::new(ErrorKind::BadSerialization, why);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map(Value::from_safe_string).map_err(|error| failed(error.to_string()))
}

struct Python;

impl Formatter for Python {
    fn begin_array_value<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
    fn begin_object_key<W: std::io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }
    fn begin_object_value<W: std::io::Write + ?Sized>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// What templates ask of `strftime`, in UTC.
fn date(format: &str, unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil(days);
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let name = MONTHS[month as usize - 1];
        // 1 January 1970 was a Thursday.
        let weekday = DAYS[((days + 3) % 7) as usize];
        text.push_str(&match letters.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year % 100),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('b') => name[..3].to_owned(),
            Some('B') => name.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('H') => format!("{:02}", seconds / 3_600),
            Some('M') => format!("{:02}", seconds / 60 % 60),
            Some('S') => format!("{:02}", seconds % 60),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        });
    }
    text
}

/// Year, month and day of a number of days since 1970: years are counted from March, so that the leap day is their last.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &str) -> Option<String> {
        let messages: Value = serde_json::from_str(messages).unwrap();
        let template = Template::new(source.to_owned(), "<s>".to_owned(), "</s>".to_owned()).unwrap();
        template.render(&messages, &Value::from(()), true, &Value::from(()))
    }

    #[test]
    fn templates_written_for_python_work() {
        let source = "{{ bos_token }}{% for m in messages %}\n    {%- if m['role'] == 'user' %}{% generation %}[U]{{ m.content.strip() }}{% endgeneration %}\n\
                      {%- elif m.role not in ['system'] %}{{ raise_exception('no ' + m.role) }}{% endif %}\n{% endfor %}{% if add_generation_prompt %}[A]{% endif %}";
        assert_eq!(render(source, r#"[{"role":"user","content":" hi "}]"#).unwrap(), "<s>[U]hi[A]");
        assert_eq!(render(source, r#"[{"role":"tool","content":""}]"#), None);
        let json = "{{ messages | tojson }}|{{ messages[0].get('x', 'none') }}";
        assert_eq!(
            render(json, r#"[{"role":"<u>","a":[1,true]}]"#).unwrap(),
            "[{\"role\": \"<u>\", \"a\": [1, true]}]|none"
        );
    }

    #[test]
    fn days_have_their_dates() {
        assert_eq!(date("%d %b %Y, %A %H:%M:%S", 0), "01 Jan 1970, Thursday 00:00:00");
        assert_eq!(date("%Y-%m-%d %a %%", 951_782_400), "2000-02-29 Tue %%");
        assert_eq!(date("%B %y%", 4_102_444_799), "December 99%");
    }
}
