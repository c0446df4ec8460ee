//! `partywall vram ptxas`: the assembler, with kernels rewritten on their way to it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use partywall_vram::ptx::order::VARIABLE;
use partywall_vram::ptx::rewrite::{Options, Rewritten, rewrite};
use serde::Serialize;

use super::kernels::{Line, refused};
use crate::cli::vram::PtxasArguments;
use crate::error::Failure;
use crate::output;
use crate::tenants::variable;

/// What becomes of a file, in the log.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    file: String,
    arena: String,
    mark: String,
    functions: &'a [Line],
    refused: Option<String>,
}

pub(crate) fn run(arguments: &PtxasArguments) -> Result<(), Failure> {
    let options = match (&arguments.arena, variable(VARIABLE)) {
        (Some(options), _) => Some(*options),
        (None, Some(text)) => Some(from_environment(&text)?),
        (None, None) => None,
    };
    if let Some(directory) = &arguments.install {
        return install(directory, arguments, options.as_ref());
    }
    let [real] = &arguments.real[..] else {
        return Err(Failure::input("--real: one assembler; several are for --install"));
    };
    let mut command = Command::new(real);
    let Some(options) = options else {
        return Err(not_started(real, command.args(&arguments.words).exec()));
    };
    let asks = ["--version", "-V", "--help", "-h"];
    if arguments.words.iter().any(|word| asks.iter().any(|asked| word == asked)) {
        finish(real, command.args(&arguments.words))?;
        return output::print(&format!("Kernels are rewritten for {}", options.mark()));
    }
    let mut inputs = Inputs::of(&arguments.words)?;
    // Lives until the assembler has read what is in it.
    let folder = tempfile::tempdir().map_err(Failure::internal)?;
    for (number, index) in inputs.indices.iter().enumerate() {
        let path = PathBuf::from(&inputs.words[*index]);
        let text = rewritten(&path, &options, arguments.log.as_deref())?;
        // The assembler's messages name the file, so it keeps its name.
        let place = folder.path().join(number.to_string());
        fs::create_dir(&place).map_err(|error| Failure::Write { path: place.clone(), error })?;
        let place = place.join(path.file_name().unwrap_or(OsStr::new("input.ptx")));
        fs::write(&place, text).map_err(|error| Failure::Write { path: place.clone(), error })?;
        inputs.words[*index] = place.into_os_string();
    }
    finish(real, command.args(&inputs.words))
}

fn from_environment(text: &OsStr) -> Result<Options, Failure> {
    let wrong = |why: String| Failure::input(format!("{VARIABLE}: {why}"));
    let text = text.to_str().ok_or_else(|| wrong("it is not text".to_owned()))?;
    text.parse().map_err(|error: partywall_vram::ptx::order::OrderError| wrong(error.to_string()))
}

/// The arguments of the assembler.
struct Inputs {
    words: Vec<OsString>,
    /// Which of them are PTX.
    indices: Vec<usize>,
}

impl Inputs {
    /// Whether a file is an input or the value of an option is told by what is in it: the list of options differs between versions.
    fn of(words: &[OsString]) -> Result<Self, Failure> {
        let mut indices = Vec::new();
        let mut is_output = false;
        for (index, word) in words.iter().enumerate() {
            let text = word.to_string_lossy();
            let name = text.split_once('=').map_or(&*text, |(name, _)| name);
            if matches!(name, "--options-file" | "-optf" | "--input-as-string" | "-ias") {
                return Err(Failure::input(format!(
                    "{name}: kernels that are given so cannot be rewritten; name files of PTX on the command line"
                )));
            }
            if !is_output && !text.starts_with('-') && is_ptx(Path::new(word)) {
                indices.push(index);
            }
            is_output = matches!(&*text, "-o" | "--output-file");
        }
        if indices.is_empty() {
            return Err(Failure::input(
                "no file of PTX is among the arguments of the assembler, and nothing else can be rewritten",
            ));
        }
        Ok(Self { words: words.to_vec(), indices })
    }
}

/// Whether a file begins as PTX does: with `.version`, behind comments.
fn is_ptx(path: &Path) -> bool {
    let Ok(text) = output::read_text(path) else { return false };
    let mut rest = text.trim_start();
    loop {
        let end = match rest {
            _ if rest.starts_with("//") => rest.find('\n'),
            _ if rest.starts_with("/*") => rest.find("*/").map(|at| at + 1),
            _ => return rest.starts_with(".version"),
        };
        let Some(end) = end else { return false };
        rest = rest[end + 1..].trim_start();
    }
}

/// The text that is assembled instead; the log says what was done.
fn rewritten(path: &Path, options: &Options, log: Option<&Path>) -> Result<String, Failure> {
    let done = rewrite(&output::read_text(path)?, options);
    let why = done.as_ref().err().map(ToString::to_string);
    let (text, functions) = match done {
        Ok(Rewritten { text, functions }) => (Ok(text), Line::of(functions)),
        Err(error) => (Err(refused(path, &error, options)), Vec::new()),
    };
    if let Some(log) = log {
        let file = path.display().to_string();
        let (arena, mark) = (options.to_string(), options.mark());
        let entry = Entry { file, arena, mark, functions: &functions, refused: why };
        let line = serde_json::to_string(&entry).map_err(Failure::internal)? + "\n";
        let opened = fs::OpenOptions::new().append(true).create(true).open(log);
        // Compilers call several of us at a time: one write is one line.
        let written = opened.and_then(|mut file| file.write_all(line.as_bytes()));
        written.map_err(|error| Failure::Write { path: log.to_owned(), error })?;
    }
    text
}

/// Runs the assembler to its end, which becomes ours.
fn finish(real: &Path, command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|error| not_started(real, error))?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        // The assembler has said why.
        (Some(code), _) => Err(Failure::Exit { code: u8::try_from(code).unwrap_or(1), message: None }),
        // As shells report a signal; Triton looks for it.
        (None, signal) => {
            let code = u8::try_from(128 + signal.unwrap_or_default()).unwrap_or(1);
            Err(Failure::Exit { code, message: Some(format!("{} was ended by a signal", real.display())) })
        }
    }
}

fn not_started(real: &Path, error: std::io::Error) -> Failure {
    Failure::input_with_hint(
        format!("--real: cannot run {}: {error}", real.display()),
        "Triton has one in triton/backends/nvidia/bin, the CUDA toolkit in bin",
    )
}

/// Writes a script for each assembler, and prints what the environment of compilers has to say.
fn install(directory: &Path, arguments: &PtxasArguments, options: Option<&Options>) -> Result<(), Failure> {
    let written = |path: &Path| {
        let path = path.to_owned();
        move |error| Failure::Write { path, error }
    };
    fs::create_dir_all(directory).map_err(written(directory))?;
    let directory = directory.canonicalize().map_err(written(directory))?;
    let program = std::env::current_exe().map_err(Failure::internal)?;
    let mut settings = Vec::new();
    for real in &arguments.real {
        let found = real.canonicalize().map_err(|error| not_started(real, error))?;
        // By the name that was given: what it leads to may have another one.
        let name = real.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let path = directory.join(name);
        if path.canonicalize().is_ok_and(|path| path == found) {
            return Err(Failure::input(format!("--install: {} would take its own place", path.display())));
        }
        let mut script =
            format!("#!/bin/sh\nexec {} vram ptxas --real {}", quoted(&program)?, quoted(&found)?);
        if let Some(options) = options {
            script += &format!(" --arena '{options}'");
        }
        if let Some(log) = &arguments.log {
            let log = std::path::absolute(log).map_err(written(log))?;
            script += &format!(" --log {}", quoted(&log)?);
        }
        script += " -- \"$@\"\n";
        fs::write(&path, script).map_err(written(&path))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(written(&path))?;
        let name = name.to_uppercase().replace('-', "_");
        settings.push(format!("export TRITON_{name}_PATH={}", quoted(&path)?));
    }
    if let Some(options) = options {
        // Inductor keeps what it has loaded itself, and does not ask which assembler made it.
        let cache = quoted(&directory.join(options.mark()))?;
        settings.push(format!("export TRITON_CACHE_DIR={cache} TORCHINDUCTOR_CACHE_DIR={cache}"));
    }
    output::print(&settings.join("\n"))
}

/// As a shell takes it for one word.
fn quoted(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains('\''));
    let text = text.ok_or_else(|| {
        Failure::input(format!(
            "{}: a path with quotes, or that is not text, cannot be used here",
            path.display()
        ))
    })?;
    Ok(format!("'{text}'"))
}
