//! A scenario joined with what is outside its file: the GPUs of the catalogue, the traces, the recorded networks.

use std::collections::BTreeMap;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use partywall_core::catalogue::Catalogue;
use partywall_core::diagnostic::{Diagnostic, Step, TomlPlaces};
use partywall_core::gpu::Gpu;
use partywall_core::units::Bytes;

use super::{Scenario, ScenarioError, TenantSpec};
use crate::kernel::{Chip, Program};
use crate::load::Demand;
use crate::params::Params;
use crate::profile;
use crate::trace::Trace;

/// Opens a trace; what a relative path starts from is the caller's to say.
pub(super) type OpenTrace<'a> = dyn FnMut(&Path) -> io::Result<Box<dyn BufRead>> + 'a;

/// What a scenario names, found.
pub(super) struct Bound<'a> {
    /// In the order of the scenario.
    pub(super) gpus: Vec<&'a Gpu>,
    /// Per tenant.
    pub(super) demands: Vec<Demand>,
}

impl Scenario {
    /// A message about the value at `path` of the file.
    pub(super) fn diagnostic(&self, path: &[Step<'_>], message: String, help: &str) -> Diagnostic {
        let span = TomlPlaces::parse(&self.text).map_or(0..0, |places| places.value(path));
        Diagnostic::at(&self.text, span, &self.name, message).with_help(help)
    }

    pub(super) fn bind<'a>(
        &self,
        catalogue: &'a Catalogue,
        open: &mut OpenTrace<'_>,
    ) -> Result<Bound<'a>, ScenarioError> {
        let gpus = self.file.gpu.0.iter().enumerate().map(|(index, id)| {
            catalogue.get(id).map_err(|error| {
                let known = format!("choose one of {}", error.known.join(", "));
                let help =
                    error.nearest.map_or(known.clone(), |near| format!("did you mean `{near}`? {known}"));
                let message =
                    format!("{} is no GPU of the catalogue", partywall_core::diagnostic::quoted(id));
                self.diagnostic(&[Step::Key("gpu"), Step::Index(index)], message, &help)
            })
        });
        let gpus = gpus.collect::<Result<_, Diagnostic>>()?;
        let mut read: BTreeMap<(String, PathBuf), Trace> = BTreeMap::new();
        let mut demands = Vec::new();
        for (index, tenant) in self.file.tenants.iter().enumerate() {
            let at = [Step::Key("tenant"), Step::Index(index), Step::Key("load")];
            let trace = match tenant.load.trace() {
                None => None,
                Some(wanted) => {
                    let key = (format!("{:?}", wanted.format), wanted.path.clone());
                    if !read.contains_key(&key) {
                        let mut reader = open(&wanted.path).map_err(|error| {
                            let at = [&at[..], &[Step::Key("trace"), Step::Key("path")]].concat();
                            self.diagnostic(&at, format!("the trace cannot be read: {error}"), "")
                        })?;
                        let name = wanted.path.display().to_string();
                        let trace =
                            Trace::read(wanted.format, &name, &mut *reader).map_err(ScenarioError::Trace)?;
                        read.insert(key.clone(), trace);
                    }
                    read.get(&key)
                }
            };
            let demand =
                tenant.load.demand(trace).map_err(|error| self.diagnostic(&at, error.to_string(), ""))?;
            demands.push(demand);
        }
        Ok(Bound { gpus, demands })
    }

    /// What tenant `index` runs on `gpu`; `model` stands for `sweep`.
    pub(super) fn program(
        &self,
        index: usize,
        model: Option<&str>,
        gpu: &Gpu,
        catalogue: &Catalogue,
        params: &Params,
    ) -> Result<Program, ScenarioError> {
        let at = [Step::Key("tenant"), Step::Index(index), Step::Key("program")];
        let refused = |message: String| ScenarioError::from(self.diagnostic(&at, message, ""));
        let recorded = |id: &str| {
            catalogue.get(id).map(Chip::of).map_err(|error| {
                refused(format!("it was recorded on {}, which the catalogue lacks", error.given))
            })
        };
        let tenant: &TenantSpec = &self.file.tenants[index];
        let chip = Chip::of(gpu);
        let program = match model.unwrap_or(&tenant.program) {
            "stream" => Program::stream(&chip, params),
            "gemm" => Program::gemm(&recorded(RECORDED_ON)?, &chip, params),
            "host-copy" => {
                return Ok(Program::host_copy(tenant.bytes.unwrap_or(Bytes::ZERO))
                    .with_copies(tenant.bytes.unwrap_or(Bytes::ZERO), tenant.output));
            }
            network => {
                let name = format!("{network}-b{}", tenant.batch.unwrap_or(1));
                let profile = profile::recorded(&name).map_err(|error| refused(error.to_string()))?;
                Program::of(&profile, &recorded(&profile.gpu)?, &chip, params)
            }
        };
        Ok(program.with_copies(tenant.input, tenant.output))
    }
}

/// Where the model was held against measurements, by catalogue id: its error is known there only.
pub(super) const RECORDED_ON: &str = "h200";
