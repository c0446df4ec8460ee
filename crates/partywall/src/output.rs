//! Reading what was named and writing results: whole files or none.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::error::Failure;

/// Largest text file read: a recording of a million pairs is far smaller.
const TEXT_MAX: u64 = 256 << 20;

/// The text of a file that the user named.
pub(crate) fn read_text(path: &Path) -> Result<String, Failure> {
    let read = |error| Failure::Read { path: path.to_owned(), error };
    let length = fs::metadata(path).map_err(read)?.len();
    if length > TEXT_MAX {
        return Err(Failure::input(format!(
            "{} has {length} bytes; at most {TEXT_MAX} are read",
            path.display()
        )));
    }
    let bytes = fs::read(path).map_err(read)?;
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Failure::input(format!("{} is not UTF-8 text (byte {offset})", path.display()))
    })
}

/// Writes several files into `directory`, which is created. Each appears whole or not at all: it is written beside its
/// place first and then renamed, and no place is touched before all have been written.
pub(crate) fn write_all(directory: &Path, files: &[(&str, &str)]) -> Result<Vec<PathBuf>, Failure> {
    fs::create_dir_all(directory).map_err(|error| Failure::Write { path: directory.to_owned(), error })?;
    let mut written = Vec::new();
    for (name, text) in files {
        let path = directory.join(name);
        let beside = directory.join(format!(".{name}.{}.new", std::process::id()));
        let result = fs::File::create(&beside).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        written.push((beside.clone(), path));
        if let Err(error) = result {
            discard(&written);
            return Err(Failure::Write { path: beside, error });
        }
    }
    for (beside, path) in &written {
        if let Err(error) = fs::rename(beside, path) {
            discard(&written);
            return Err(Failure::Write { path: path.clone(), error });
        }
    }
    Ok(written.into_iter().map(|(_, path)| path).collect())
}

fn discard(written: &[(PathBuf, PathBuf)]) {
    for (beside, _) in written {
        // The error that led here is the one to report.
        let _ = fs::remove_file(beside);
    }
}

/// Prints a result on standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

/// A value as the JSON that `--json` prints.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(Failure::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_where_a_file_cannot_be_written() {
        let directory = std::env::temp_dir().join(format!("partywall-output-{}", std::process::id()));
        // A directory in the way of the second file.
        fs::create_dir_all(directory.join("b")).unwrap();
        fs::create_dir_all(directory.join("b/full")).unwrap();
        let failed = write_all(&directory, &[("b", "text")]).unwrap_err();
        assert_eq!(failed.exit_code(), 1);
        let left: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["b"]);
        let paths = write_all(&directory, &[("a.txt", "one"), ("c.txt", "two")]).unwrap();
        assert_eq!(fs::read_to_string(&paths[1]).unwrap(), "two");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn what_is_not_text_says_so() {
        let path = std::env::temp_dir().join(format!("partywall-bytes-{}", std::process::id()));
        fs::write(&path, [b'a', 0xff]).unwrap();
        assert!(read_text(&path).unwrap_err().to_string().contains("is not UTF-8 text (byte 1)"));
        fs::remove_file(&path).unwrap();
        assert_eq!(read_text(&path).unwrap_err().exit_code(), 2);
    }
}
