//! Files of NVIDIA's that come from PyPI: of one fixed version, checked against known hashes, unpacked below `target/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// One version of a package.
pub(crate) struct Wheel {
    /// Its name on PyPI.
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// SHA-256 of the wheels of that version, for Linux on x86-64 and on 64-bit Arm.
    pub(crate) hashes: [&'static str; 2],
    /// What is wanted of it: a path in it, the same in both.
    pub(crate) wanted: &'static str,
}

/// Where what was wanted is, or why it is not to be had.
pub(crate) enum Wanted {
    At(PathBuf),
    /// No Python, no pip, or no network.
    Missing(String),
}

impl Wheel {
    /// What is wanted, brought below `target/` if it is not there.
    ///
    /// # Errors
    /// When what was downloaded is not what it should be; that it cannot be downloaded is no error.
    pub(crate) fn fetch(&self, root: &Path) -> Result<Wanted> {
        let Self { package, version, .. } = self;
        let folder = root.join("target").join(format!("{package}-{version}"));
        let wanted = folder.join(self.wanted);
        if wanted.exists() {
            return Ok(Wanted::At(wanted));
        }
        let wheels = folder.join("wheel");
        fs::create_dir_all(&wheels).with_context(|| format!("making {}", wheels.display()))?;
        let requirements = wheels.join("requirements.txt");
        let hashes: Vec<String> = self.hashes.iter().map(|hash| format!("--hash=sha256:{hash}")).collect();
        fs::write(&requirements, format!("{package}=={version} {}\n", hashes.join(" ")))
            .with_context(|| format!("writing {}", requirements.display()))?;
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"])
            .args(["--only-binary=:all:", "--require-hashes", "--retries=1", "--timeout=20", "-r"])
            .arg(&requirements)
            .arg("-d")
            .arg(&wheels);
        let output = match pip.output() {
            Ok(output) => output,
            Err(error) => return Ok(Wanted::Missing(format!("python3 does not start: {error}"))),
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(
                !said.contains("DO NOT MATCH THE HASHES"),
                "{package} {version} is not the one known:\n{said}"
            );
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("nothing was said");
            let why = format!("pip cannot download {package} {version}: {}", last.trim());
            return Ok(Wanted::Missing(why));
        }
        let wheel = names(&wheels, "", "whl")?.into_iter().next().context("pip has downloaded no wheel")?;
        let mut unpack = Command::new("python3");
        unpack.args(["-m", "zipfile", "-e"]).arg(wheels.join(wheel)).arg(&folder);
        let unpacked = unpack.status().with_context(|| format!("unpacking {package}"))?;
        ensure!(unpacked.success(), "the wheel of {package} cannot be unpacked");
        ensure!(wanted.exists(), "the wheel of {package} has no {}", self.wanted);
        Ok(Wanted::At(wanted))
    }
}

/// The names of a folder's files with this extension, sorted.
pub(crate) fn names(root: &Path, folder: impl AsRef<Path>, extension: &str) -> Result<Vec<String>> {
    let folder = root.join(folder);
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = PathBuf::from(entry?.file_name());
        if path.extension().is_some_and(|found| found == extension)
            && let Some(name) = path.to_str()
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
