//! API keys: who may ask, and for which class.
//!
//! A key is never kept, compared or logged as it is, only its SHA-256. Keys are long and random, so a plain hash is enough: there is
//! nothing to guess. All keys are compared with what was shown, byte by byte without stopping, so that the time that this takes says nothing.

use std::path::Path;

use partywall_core::tenant::Class;
use ring::digest::{SHA256, digest};

use crate::error::Error;

/// Keys in a file. All of them are compared with what a request shows: with this many that takes some ten microseconds.
const MAX_KEYS: usize = 4096;

/// Bytes of a file with keys.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Characters of a key: shorter ones can be guessed.
const MIN_KEY_CHARS: usize = 16;

/// Characters of a key that are looked at.
const MAX_KEY_CHARS: usize = 512;

const HASH_BYTES: usize = 32;

/// One who may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// What the log calls it.
    pub name: String,
    /// The class of its requests.
    pub class: Option<Class>,
}

/// Those who may ask.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    hashes: Vec<[u8; HASH_BYTES]>,
    holders: Vec<Holder>,
}

impl Keys {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let text = read_secret(path, MAX_FILE_BYTES)?;
        Self::parse(&text).map_err(|problem| Error::Content { path: path.to_owned(), problem })
    }

    /// What is wrong is said with its line, and without what stands there.
    fn parse(text: &str) -> Result<Self, String> {
        let mut keys = Self::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| format!("line {}: {why}", index + 1);
            let words: Vec<&str> = line.split_whitespace().collect();
            let (name, key, class) = match words[..] {
                [name, key] => (name, key, None),
                [name, key, "latency-sensitive"] => (name, key, Some(Class::LatencySensitive)),
                [name, key, "best-effort"] => (name, key, Some(Class::BestEffort)),
                _ => {
                    return Err(wrong(
                        "write a name, a key or sha256:HASH, and optionally latency-sensitive or best-effort",
                    ));
                }
            };
            if name.len() > 64 || !name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"') {
                return Err(wrong(
                    "the name has other characters than letters, digits and signs, or more than 64",
                ));
            }
            let hash = match key.strip_prefix("sha256:") {
                Some(digits) => from_hex(digits)
                    .ok_or_else(|| wrong("behind sha256: there have to be 64 hexadecimal digits"))?,
                None if !(MIN_KEY_CHARS..=MAX_KEY_CHARS).contains(&key.len()) => {
                    return Err(wrong("a key has 16 to 512 characters"));
                }
                None => hash(key.as_bytes()),
            };
            if keys.holders.iter().any(|holder| holder.name == name) {
                return Err(wrong("the name stands above already"));
            }
            if keys.hashes.len() == MAX_KEYS {
                return Err(wrong("these are too many keys; at most 4096 are taken"));
            }
            keys.hashes.push(hash);
            keys.holders.push(Holder { name: name.to_owned(), class });
        }
        if keys.hashes.is_empty() {
            Err("holds no key; write a name and a key in a line".to_owned())
        } else {
            Ok(keys)
        }
    }

    /// Whose key this is.
    pub(crate) fn holder(&self, shown: &[u8]) -> Option<&Holder> {
        if shown.is_empty() || shown.len() > MAX_KEY_CHARS {
            return None;
        }
        let shown = hash(shown);
        let mut found = usize::MAX;
        for (index, known) in self.hashes.iter().enumerate() {
            if same(known, &shown) {
                found = index;
            }
        }
        self.holders.get(found)
    }
}

/// A secret that one line of a file holds, and no more.
#[derive(Clone)]
pub(crate) struct Secret {
    hash: [u8; HASH_BYTES],
}

impl Secret {
    /// Reads it from a file.
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let text = read_line(path)?;
        if text.len() < MIN_KEY_CHARS {
            let problem = format!("has less than {MIN_KEY_CHARS} characters; write a longer secret");
            return Err(Error::Content { path: path.to_owned(), problem });
        }
        Ok(Self { hash: hash(text.as_bytes()) })
    }

    /// Whether this is it.
    pub(crate) fn is(&self, shown: &[u8]) -> bool {
        shown.len() <= MAX_KEY_CHARS && same(&self.hash, &hash(shown))
    }
}

/// The one line of a file that holds a secret.
pub(crate) fn read_line(path: &Path) -> Result<String, Error> {
    let text = read_secret(path, MAX_KEY_CHARS as u64 + 2)?;
    let line = text.trim().to_owned();
    if line.is_empty() || line.contains(char::is_whitespace) {
        let problem = "has to hold one line with a secret and nothing else".to_owned();
        return Err(Error::Content { path: path.to_owned(), problem });
    }
    Ok(line)
}

fn read_secret(path: &Path, most: u64) -> Result<String, Error> {
    let length = std::fs::metadata(path).map_err(Error::read(path))?.len();
    if length > most {
        let problem = format!("has {length} bytes; at most {most} are read");
        return Err(Error::Content { path: path.to_owned(), problem });
    }
    std::fs::read_to_string(path).map_err(Error::read(path))
}

fn hash(bytes: &[u8]) -> [u8; HASH_BYTES] {
    let mut hash = [0; HASH_BYTES];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// Whether they are equal, in a time that does not depend on where they differ.
fn same(one: &[u8; HASH_BYTES], other: &[u8; HASH_BYTES]) -> bool {
    let differing = one.iter().zip(other).fold(0u8, |differing, (a, b)| differing | (a ^ b));
    std::hint::black_box(differing) == 0
}

fn from_hex(digits: &str) -> Option<[u8; HASH_BYTES]> {
    if digits.len() != 2 * HASH_BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; HASH_BYTES];
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_plain_and_hashed() {
        let text = "# comment\n\nalice correct-horse-battery\nbob sha256:\
            9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08 best-effort\n";
        let keys = Keys::parse(text).unwrap();
        let name = |key: &str| keys.holder(key.as_bytes()).map(|holder| (holder.name.clone(), holder.class));
        assert_eq!(name("correct-horse-battery"), Some(("alice".to_owned(), None)));
        assert_eq!(name("test"), Some(("bob".to_owned(), Some(Class::BestEffort))), "the hash of `test`");
        for wrong in ["", "correct-horse-batterx", "correct-horse-batter", "sha256:9f86", "alice"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
        assert_eq!(name(&"x".repeat(10_000)), None);
    }

    #[test]
    fn what_is_wrong_is_said_without_the_key() {
        let cases = [
            ("", "holds no key"),
            ("alice", "line 1: write a name"),
            ("alice secretsecretsecret gold", "line 1: write a name"),
            ("\nalice short", "line 2: a key has 16"),
            ("alice sha256:secret", "64 hexadecimal digits"),
            ("a secretsecretsecret\na secretsecretsecreu", "line 2: the name stands above"),
        ];
        for (text, expected) in cases {
            let said = Keys::parse(text).unwrap_err();
            assert!(said.contains(expected) && !said.contains("secret"), "{text}: {said}");
        }
    }
}
