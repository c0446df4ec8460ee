//! The GPUs that Partywall knows, from `profiles/gpus/`.
//!
//! The files are part of the program, so nothing has to be installed for a simulation. Each holds one [`Gpu`];
//! every figure in it says how it is known and from where. Figures that nobody published are estimates by a rule
//! that the file states.
//!
//! # Power
//!
//! The power figures are meant for one model: power = idle + busy x utilisation x (clock / highest clock)^2.4, and
//! the part lowers its clock until that is at most the cap. `power_busy_w` of the data-centre parts follows from
//! one published observation (an H100 under matrix products keeps 0.92 of its clock). Those of the Jetson modules
//! are chosen so that the model shows what the edge isolation study saw; they are not wattages of a rail. The model
//! has a limit there: twice the utilisation lowers a throttled clock to 0.75 of what it was, never to half of it, so
//! on the Orin Nano two networks come down to half the highest clock only because one alone is at 0.67 of it.

mod check;
mod markdown;
mod placement;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use crate::gpu::Gpu;

pub use markdown::markdown;
pub use placement::{Placed, PlacementError};

macro_rules! files {
    ($($id:literal),+ $(,)?) => {
        &[$((
            concat!("profiles/gpus/", $id, ".toml"),
            include_str!(concat!("../../../profiles/gpus/", $id, ".toml")),
        )),+]
    };
}

/// The embedded files as (name, text), in the order in which lists show them.
const FILES: &[(&str, &str)] =
    files!["h200", "h100-sxm", "h100-pcie", "a100-80gb", "a100-40gb", "l40s", "l4", "agx-orin", "orin-nano"];

/// A set of GPUs with distinct ids. Every one of them has passed [`Gpu::validate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Catalogue {
    gpus: Vec<Gpu>,
}

/// Why a GPU file is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogueError {
    /// The text is not TOML, or not the TOML of a GPU.
    #[error("{file}:{line}:{column}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// What is wrong there.
        message: String,
    },
    /// The figures contradict each other.
    #[error("{file}: {}", problems.join("; "))]
    Invalid {
        /// The file.
        file: String,
        /// Each says what is wrong and what would be right.
        problems: Vec<String>,
    },
    /// Two files describe the same GPU.
    #[error("{second}: the id `{id}` is already that of {first}; give one of them another id")]
    DuplicateId {
        /// The id.
        id: String,
        /// The file that had it first.
        first: String,
        /// The file that has it too.
        second: String,
    },
}

/// An id that is not in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is no GPU of the catalogue{}; choose one of {}",
    nearest.as_ref().map(|id| format!(" (did you mean `{id}`?)")).unwrap_or_default(),
    known.join(", ")
)]
pub struct UnknownGpu {
    /// What was given.
    pub given: String,
    /// The id most like it, if one is.
    pub nearest: Option<String>,
    /// Every id.
    pub known: Vec<String>,
}

impl Catalogue {
    /// The catalogue that comes with Partywall; parsed once.
    ///
    /// # Errors
    /// When an embedded file is broken, which the tests of this crate exclude for a release.
    pub fn builtin() -> Result<&'static Self, CatalogueError> {
        static BUILTIN: OnceLock<Result<Catalogue, CatalogueError>> = OnceLock::new();
        BUILTIN.get_or_init(|| Self::parse(FILES)).as_ref().map_err(Clone::clone)
    }

    /// A catalogue from files given as (name, text); the names are for messages.
    ///
    /// # Errors
    /// The first file that does not parse, contradicts itself or repeats an id.
    pub fn parse(files: &[(&str, &str)]) -> Result<Self, CatalogueError> {
        let mut gpus: Vec<Gpu> = Vec::with_capacity(files.len());
        for (file, text) in files {
            let gpu = Gpu::parse(text, file)?;
            if let Some(first) = gpus.iter().position(|other| other.id == gpu.id) {
                return Err(CatalogueError::DuplicateId {
                    id: gpu.id,
                    first: files[first].0.to_owned(),
                    second: (*file).to_owned(),
                });
            }
            gpus.push(gpu);
        }
        Ok(Self { gpus })
    }

    /// The GPU of that id.
    ///
    /// # Errors
    /// When there is none: names the nearest id and lists all.
    pub fn get(&self, id: &str) -> Result<&Gpu, UnknownGpu> {
        self.gpus.iter().find(|gpu| gpu.id == id).ok_or_else(|| UnknownGpu {
            given: id.to_owned(),
            nearest: self.nearest(id),
            known: self.gpus.iter().map(|gpu| gpu.id.clone()).collect(),
        })
    }

    /// All GPUs, in the order of the files.
    pub fn iter(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter()
    }

    /// The id that somebody who wrote `given` most likely meant: one that starts with it or that it starts with,
    /// else the one that the fewest typing errors turn into it, if they are few.
    fn nearest(&self, given: &str) -> Option<String> {
        // Longer texts are no typing errors, and the distance takes time quadratic in the length.
        const LONGEST: usize = 40;
        let given = given.trim().to_lowercase();
        if given.is_empty() || given.chars().count() > LONGEST {
            return None;
        }
        let related = |id: &str| id.starts_with(&given) || given.starts_with(id);
        if let Some(gpu) = self.gpus.iter().find(|gpu| related(&gpu.id)) {
            return Some(gpu.id.clone());
        }
        let (errors, gpu) = self
            .gpus
            .iter()
            .map(|gpu| (typing_errors(&given, &gpu.id), gpu))
            .min_by_key(|(errors, _)| *errors)?;
        (errors <= 1 + gpu.id.len() / 4).then(|| gpu.id.clone())
    }
}

impl Gpu {
    /// A GPU from the text of a catalogue file; `file` is for messages. The result has passed
    /// [`Gpu::validate`].
    ///
    /// # Errors
    /// With line and column when the text is not the TOML of a GPU, with every contradiction when it is.
    pub fn parse(text: &str, file: &str) -> Result<Self, CatalogueError> {
        let gpu: Self = toml::from_str(text).map_err(|error| {
            let (line, column) = position(text, error.span().map_or(0, |span| span.start));
            CatalogueError::Syntax {
                file: file.to_owned(),
                line,
                column,
                message: error.message().lines().collect::<Vec<_>>().join(", "),
            }
        })?;
        let problems = gpu.validate();
        if problems.is_empty() {
            Ok(gpu)
        } else {
            Err(CatalogueError::Invalid { file: file.to_owned(), problems })
        }
    }
}

/// Line and column (in characters), both from 1, of a byte offset; offsets beyond the text mean its end.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.char_indices().take_while(|(at, _)| *at < offset).map(|(_, c)| c);
    before.fold((1, 1), |(line, column), c| if c == '\n' { (line + 1, 1) } else { (line, column + 1) })
}

/// The number of characters to insert, delete or replace to turn one text into the other (Levenshtein).
fn typing_errors(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
