//! A driver folder with the library under test.

use std::path::{Path, PathBuf};

use partywall_core::catalogue::Catalogue;
use partywall_core::soft_gpu::{FILE, SoftGpu};

/// The shared object, which cargo builds beside the tests.
fn library() -> PathBuf {
    let deps = std::env::current_exe().unwrap();
    deps.parent().unwrap().join("libpartywall_softgpu.so")
}

/// Makes a driver folder; where its driver is.
pub(crate) fn folder(path: &Path) -> PathBuf {
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap().clone();
    let figures = SoftGpu::new(&gpu, "NVIDIA H200");
    std::fs::write(path.join(FILE), serde_json::to_string(&figures).unwrap()).unwrap();
    let link = path.join("libcuda.so.1");
    std::os::unix::fs::symlink(library(), &link).unwrap();
    link
}
