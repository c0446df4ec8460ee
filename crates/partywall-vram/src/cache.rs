//! What was found out about GPUs before, in files.
//!
//! A file for each GPU and driver holds what belongs to neither a process nor an allocation: the mask, the sides of groups of SMs and what
//! operations take ([`Known`]). It is a shortcut and never trusted: whoever uses it measures fresh addresses against it
//! ([`crate::sides::find_knowing`]), and removes it where they say otherwise.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::sides::Known;

/// Says what a file is, and changes when its contents do.
const FORMAT: &str = "partywall-sides-1";

/// More than any GPU's file has, so that reading one that is something else takes no time.
const BYTES_MAX: u64 = 1 << 20;

/// Whose file it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Made from what the driver calls the GPU; not the UUID itself, which others need not know.
    pub gpu: String,
    /// The driver's version.
    pub driver: String,
    /// Groups of SMs.
    pub groups: u16,
}

impl Key {
    /// For a GPU by its UUID and name.
    pub fn new(uuid: &str, name: &str, driver: &str, groups: u16) -> Self {
        Self { gpu: format!("{:016x}", fnv1a(&[uuid, name])), driver: driver.to_owned(), groups }
    }

    fn file(&self) -> String {
        let kept = |letter: char| letter.is_ascii_alphanumeric() || letter == '.';
        let driver: String = self.driver.chars().map(|one| if kept(one) { one } else { '-' }).collect();
        format!("sides-{}-{driver}.json", self.gpu)
    }
}

/// The 64-bit hash of Fowler, Noll and Vo, of texts with a zero byte between them.
fn fnv1a(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    key: Key,
    known: Known,
}

/// What there is of a GPU.
#[derive(Debug, Clone, PartialEq)]
pub enum Looked {
    /// No file.
    Nothing,
    /// What one says, so far unchecked.
    Known(Known),
    /// A file that cannot be used, for the reason given.
    Useless(String),
}

/// A folder of such files.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// In a folder, which need not be there yet.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The file of a GPU.
    pub fn path(&self, key: &Key) -> PathBuf {
        self.folder.join(key.file())
    }

    /// Reads what is known.
    pub fn look(&self, key: &Key) -> Looked {
        match read(&self.path(key)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Looked::Nothing,
            Err(error) => Looked::Useless(error.to_string()),
            Ok(text) => match serde_json::from_str::<File>(&text) {
                Err(error) => Looked::Useless(error.to_string()),
                Ok(file) if file.format != FORMAT => {
                    Looked::Useless(format!("its format is `{}`, not `{FORMAT}`", file.format))
                }
                Ok(file) if file.key != *key => Looked::Useless("it is another GPU's".to_owned()),
                Ok(file) if !file.known.is_possible(key.groups) => {
                    Looked::Useless("what it says cannot have been measured".to_owned())
                }
                Ok(file) => Looked::Known(file.known),
            },
        }
    }

    /// Writes what is known: all of it or nothing, whatever others do at the same time.
    ///
    /// # Errors
    /// Where the folder cannot be made or the file not written.
    pub fn keep(&self, key: &Key, known: &Known) -> io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let file = File { format: FORMAT.to_owned(), key: key.clone(), known: known.clone() };
        let mut new = tempfile::NamedTempFile::new_in(&self.folder)?;
        serde_json::to_writer_pretty(&mut new, &file)?;
        new.write_all(b"\n")?;
        new.persist(self.path(key)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes the file of a GPU, if there is one.
    pub fn discard(&self, key: &Key) {
        // What cannot be removed is found wrong again the next time.
        let _ = std::fs::remove_file(self.path(key));
    }
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::sides::{Found, SidesError, find, find_knowing};

    fn known(model: &mut Model) -> Known {
        match find(model, 500, 3).unwrap() {
            Found::Two(sides) => sides.known,
            other => panic!("{other:?}"),
        }
    }

    fn key() -> Key {
        Key::new("GPU-1234", "NVIDIA H200", "580.159.04", 66)
    }

    #[test]
    fn what_is_kept_is_found_again_and_holds_for_other_pages() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("partywall"));
        assert_eq!(cache.look(&key()), Looked::Nothing);
        let mut model = Model::h200(300, 1);
        let known = known(&mut model);
        cache.keep(&key(), &known).unwrap();
        assert_eq!(cache.look(&key()), Looked::Known(known.clone()));
        assert!(!cache.path(&key()).to_string_lossy().contains("1234"));
        // Other pages, of which nothing is known, and few questions.
        model.pages.iter_mut().for_each(|page| *page ^= page.rotate_left(7));
        model.asked.latencies = 0;
        let map = find_knowing(&mut model, &known, 4, 200, 5).unwrap();
        for page in 0..300 {
            let address = crate::address::Address { page, offset: 0x3_4000 };
            let is_second = (model.side(address) == model.groups[0])
                != (map.of(address) == Some(known.scale.groups[0].side));
            assert!(!is_second, "{page}");
        }
        assert!(model.asked.latencies < 500 * 8, "{:?}", model.asked);
        cache.discard(&key());
        assert_eq!(cache.look(&key()), Looked::Nothing);
    }

    #[test]
    fn another_driver_another_gpu_and_other_groups_have_files_of_their_own_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        cache.keep(&key(), &known(&mut Model::h200(50, 1))).unwrap();
        for other in [
            Key::new("GPU-1234", "NVIDIA H200", "590.1", 66),
            Key::new("GPU-1235", "NVIDIA H200", "580.159.04", 66),
        ] {
            assert_eq!(cache.look(&other), Looked::Nothing);
        }
        let fewer = Key { groups: 65, ..key() };
        assert_eq!(cache.look(&fewer), Looked::Useless("it is another GPU's".to_owned()));
    }

    #[test]
    fn files_that_are_something_else_are_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        cache.keep(&key(), &known(&mut Model::h200(50, 1))).unwrap();
        let good = std::fs::read_to_string(cache.path(&key())).unwrap();
        let cut = good.len() / 2;
        for (bad, why) in [
            (String::new(), "EOF"),
            (good[..cut].to_owned(), "EOF"),
            (good.replace(FORMAT, "partywall-sides-0"), "its format is"),
            (good.replace("\"mask\": 700416", "\"mask\": 4294967295"), "cannot have been measured"),
            (good.replacen("\"first\"", "\"second\"", 1), "cannot have been measured"),
            (good.replace("\"far_cycles\": ", "\"far_cycles\": -"), "cannot have been measured"),
        ] {
            assert_ne!(bad, good, "{why}");
            std::fs::write(cache.path(&key()), &bad).unwrap();
            let looked = cache.look(&key());
            assert!(matches!(&looked, Looked::Useless(said) if said.contains(why)), "{why}: {looked:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_noticed_when_it_is_used() {
        let mut model = Model::h200(300, 2);
        let right = known(&mut model);
        let wrong_mask = Known { mask: right.mask ^ 1 << 14, ..right.clone() };
        let refused = find_knowing(&mut model, &wrong_mask, 4, 200, 5);
        assert!(matches!(refused, Err(SidesError::Wrong { .. })), "{refused:?}");
        let mut wrong_sides = right.clone();
        wrong_sides.scale.groups.iter_mut().skip(1).for_each(|group| group.side = group.side.other());
        let refused = find_knowing(&mut model, &wrong_sides, 4, 200, 5);
        assert!(matches!(refused, Err(SidesError::Wrong { .. } | SidesError::Noise { .. })), "{refused:?}");
        let mut fewer = right.clone();
        fewer.scale.groups.pop();
        assert!(matches!(find_knowing(&mut model, &fewer, 4, 200, 5), Err(SidesError::NotKnown)));
        assert!(find_knowing(&mut model, &right, 4, 200, 5).is_ok());
    }
}
