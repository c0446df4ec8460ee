//! `partywall vram rewrite`: PTX that goes to a colored arena.

use std::path::Path;

use partywall_vram::ptx::rewrite::{Done, Options, RewriteError, Rewritten, rewrite as rewritten};
use serde::Serialize;

use crate::cli::vram::RewriteArguments;
use crate::error::Failure;
use crate::output;

/// What was done to a function.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    name: String,
    kernel: bool,
    /// Accesses that go through the translation.
    translated: usize,
    /// Accesses and policies that were told to leave the L2 first.
    evict_first: usize,
}

impl Line {
    pub(super) fn of(functions: Vec<Done>) -> Vec<Self> {
        let line = |Done { name, is_entry, translated, evict_first }| Self {
            name,
            kernel: is_entry,
            translated,
            evict_first,
        };
        functions.into_iter().map(line).collect()
    }
}

#[derive(Debug, Serialize)]
struct Report {
    /// The variable by which it can be told that it was rewritten, and for which arena.
    mark: String,
    functions: Vec<Line>,
}

pub(crate) fn rewrite(arguments: &RewriteArguments) -> Result<(), Failure> {
    let text = output::read_text(&arguments.file)?;
    let Rewritten { text, functions } = rewritten(&text, &arguments.arena)
        .map_err(|error| refused(&arguments.file, &error, &arguments.arena))?;
    if let Some(out) = &arguments.out {
        let failed = |error| Failure::Write { path: out.clone(), error };
        std::fs::write(out, &text).map_err(failed)?;
    }
    if arguments.json {
        let mark = arguments.arena.mark();
        return output::print(&output::json(&Report { mark, functions: Line::of(functions) })?);
    }
    if arguments.out.is_none() { output::print(&text) } else { Ok(()) }
}

/// What to say of a file that is not rewritten.
pub(super) fn refused(file: &Path, error: &RewriteError, options: &Options) -> Failure {
    use partywall_vram::ptx::rewrite::Pointers;

    let message = format!("{} is not rewritten:\n{error}", file.display());
    match error {
        RewriteError::Refused(_) if options.pointers == Pointers::Arena => Failure::input_with_hint(
            message,
            "generic addresses, and variables of the module, can be translated with pointers=any, which costs a comparison for each \
             access; tensor descriptors cannot: compile the kernel without them",
        ),
        _ => Failure::input(message),
    }
}
