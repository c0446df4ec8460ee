//! Runs a scenario: each tenant alone, then every variant on every GPU for every pair of the sweep.

use std::sync::atomic::{AtomicUsize, Ordering};

use std::collections::BTreeMap;

use partywall_core::catalogue::Catalogue;
use partywall_core::copy_scheduler;
use partywall_core::diagnostic::Step;
use partywall_core::gpu::Gpu;
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;

use super::bind::{Bound, OpenTrace, RECORDED_ON};
use super::report::{ImsResult, ImsStep, Pair, Row, ScenarioReport};
use super::{ImsSpec, MAX_RUNS, Objective, Scenario, ScenarioError, VariantSpec};
use crate::error::SimError;
use crate::experiment::{Cell, Experiment, Participant, Solo};
use crate::ims::{self, Bench};
use crate::kernel::Program;
use crate::layout::{Layout, Member};
use crate::machine::{Fault, Workload};
use crate::parallel::in_order;
use crate::params::Params;

/// What a run is given from outside.
#[derive(Debug, Clone, Copy)]
pub struct RunOptions<'a> {
    /// Where the GPUs are looked up.
    pub catalogue: &'a Catalogue,
    /// Walls for which the model was held against measurements.
    pub validated: &'a [Wall],
    /// Instead of the file's seed.
    pub seed: Option<u64>,
    /// Threads to use; the results do not depend on it.
    pub threads: usize,
    /// Parameters of the model.
    pub params: Params,
}

/// How far a run is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Steps done.
    pub done: usize,
    /// Steps in all.
    pub total: usize,
    /// The step that was done, for people.
    pub what: String,
}

/// One variant on one GPU with one pair of the sweep.
#[derive(Debug, Clone, Copy)]
struct Job<'s> {
    gpu: usize,
    variant: usize,
    pair: Option<(&'s str, &'s str)>,
}

/// A tenant alone: GPU, tenant, network from the sweep.
type SoloKey<'s> = (usize, usize, Option<&'s str>);

impl Scenario {
    /// Runs everything and reports. `open` opens the traces that loads name.
    ///
    /// # Errors
    /// A GPU that is not in the catalogue, a trace that cannot be read, a wall that does not fit: with the place in
    /// the file, before anything has run.
    pub fn run(
        &self,
        options: &RunOptions<'_>,
        open: &mut OpenTrace<'_>,
        progress: &(dyn Fn(Progress) + Sync),
    ) -> Result<ScenarioReport, ScenarioError> {
        let bound = self.bind(options.catalogue, open)?;
        let runner = Runner::new(self, options, bound)?;
        let jobs = runner.jobs()?;
        for job in &jobs {
            runner.layout(job)?;
        }
        let ims_jobs = runner.ims_jobs(&jobs);
        let solo_keys = runner.solo_keys(&jobs);
        let total = solo_keys.len() + jobs.len() + ims_jobs.len();
        let done = AtomicUsize::new(0);
        let tick = |what: String| {
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress { done, total, what });
        };
        let solos = in_order(&solo_keys, options.threads, |key| {
            let solo = runner.solo(key);
            tick(format!("{} alone", self.file.tenants[key.1].name));
            solo
        });
        let solos: BTreeMap<SoloKey<'_>, Solo> = solo_keys
            .iter()
            .copied()
            .zip(solos)
            .map(|(key, solo)| Ok((key, solo?)))
            .collect::<Result<_, ScenarioError>>()?;
        let rows = in_order(&jobs, options.threads, |job| {
            let rows = runner.rows(job, &solos);
            tick(self.file.variants[job.variant].name.clone());
            rows
        });
        let rows: Vec<Vec<Row>> = rows.into_iter().collect::<Result<_, _>>()?;
        let ims = in_order(&ims_jobs, options.threads, |(job, tenant, spec)| {
            let result = runner.ims(job, *tenant, spec);
            tick(format!("maximum stable rate of {}", self.file.tenants[*tenant].name));
            result
        });
        let ims = ims.into_iter().collect::<Result<_, _>>()?;
        Ok(ScenarioReport::new(self, runner.seed, rows.concat(), ims))
    }
}

struct Runner<'a> {
    scenario: &'a Scenario,
    options: &'a RunOptions<'a>,
    bound: Bound<'a>,
    seed: u64,
    faults: Vec<Fault>,
    /// Programs of each GPU, tenant and network of the sweep.
    programs: BTreeMap<SoloKey<'a>, Program>,
}

impl<'a> Runner<'a> {
    fn new(
        scenario: &'a Scenario,
        options: &'a RunOptions<'a>,
        bound: Bound<'a>,
    ) -> Result<Self, ScenarioError> {
        let file = &scenario.file;
        let index_of = |name: &str| file.tenants.iter().position(|tenant| tenant.name == name);
        let faults = file.faults.iter().filter_map(|fault| {
            let tenant = TenantId(index_of(&fault.tenant)? as u32);
            Some(Fault { tenant, at: fault.at, restart: fault.restart })
        });
        let mut programs = BTreeMap::new();
        for (gpu_index, gpu) in bound.gpus.iter().enumerate() {
            for index in 0..file.tenants.len() {
                for model in models_of(scenario, index) {
                    let program = scenario.program(index, model, gpu, options.catalogue, &options.params)?;
                    programs.insert((gpu_index, index, model), program);
                }
            }
        }
        Ok(Self {
            seed: options.seed.unwrap_or(file.seed),
            faults: faults.collect(),
            scenario,
            options,
            bound,
            programs,
        })
    }

    /// Everything to run, by GPU, then pair, then variant.
    fn jobs(&self) -> Result<Vec<Job<'a>>, ScenarioError> {
        let file = &self.scenario.file;
        let pairs: Vec<Option<(&str, &str)>> = match &file.sweep {
            None => vec![None],
            Some(sweep) => sweep
                .ls
                .iter()
                .flat_map(|ls| sweep.be.iter().map(move |be| Some((&ls[..], &be[..]))))
                .collect(),
        };
        let count = file.gpu.0.len() * pairs.len() * file.variants.len();
        if count > MAX_RUNS {
            let message = format!("{count} runs (GPUs x variants x pairs); at most {MAX_RUNS} are done");
            return Err(self.scenario.diagnostic(&[Step::Key("sweep")], message, "").into());
        }
        let mut jobs = Vec::with_capacity(count);
        for (gpu, id) in file.gpu.0.iter().enumerate() {
            for &pair in &pairs {
                let wanted =
                    |variant: &VariantSpec| variant.gpu.as_ref().is_none_or(|gpus| gpus.0.contains(id));
                let variants = (0..file.variants.len()).filter(|&index| wanted(&file.variants[index]));
                jobs.extend(variants.map(|variant| Job { gpu, variant, pair }));
            }
        }
        Ok(jobs)
    }

    fn gpu(&self, job: &Job<'_>) -> &'a Gpu {
        self.bound.gpus[job.gpu]
    }

    fn key(&self, job: &Job<'a>, tenant: usize) -> SoloKey<'a> {
        let spec = &self.scenario.file.tenants[tenant];
        let model = job.pair.filter(|_| spec.program == "sweep").map(|(ls, be)| match spec.class {
            Class::LatencySensitive => ls,
            Class::BestEffort => be,
        });
        (job.gpu, tenant, model)
    }

    fn workload(&self, key: &SoloKey<'_>, objective: Option<Nanos>) -> Workload {
        let &(_, tenant, _) = key;
        let spec = &self.scenario.file.tenants[tenant];
        Workload {
            name: spec.name.clone(),
            class: spec.class,
            program: self.programs[key].clone(),
            demand: self.bound.demands[tenant].clone(),
            objective,
        }
    }

    fn participants(&self, job: &Job<'a>, objectives: &[Option<Nanos>]) -> Vec<Participant> {
        let file = &self.scenario.file;
        let variant = &file.variants[job.variant];
        let tenants = file.tenants.iter().enumerate().map(|(index, spec)| Participant {
            workload: self.workload(&self.key(job, index), objectives.get(index).copied().flatten()),
            share: variant.share.get(&spec.name).copied().or(spec.share),
        });
        tenants.collect()
    }

    fn experiment(&self, gpu: usize, participants: Vec<Participant>) -> Experiment<'a> {
        let file = &self.scenario.file;
        Experiment {
            gpu: self.bound.gpus[gpu],
            participants,
            params: self.options.params,
            seed: self.seed,
            warmup: file.warmup,
            end: file.warmup + file.duration,
            faults: self.faults.clone(),
            timeline: None,
        }
    }

    /// The layout of a job, or why there is none.
    fn layout(&self, job: &Job<'a>) -> Result<(Layout, Vec<Participant>), ScenarioError> {
        let participants = self.participants(job, &[]);
        let members: Vec<Member> = participants.iter().map(Participant::member).collect();
        let variant = &self.scenario.file.variants[job.variant];
        let layout = Layout::behind(variant.wall, variant.node().as_ref(), self.gpu(job), &members)
            .map_err(|error| self.refused(job, error.to_string()))?;
        Ok((layout, participants))
    }

    fn refused(&self, job: &Job<'_>, message: String) -> ScenarioError {
        let at = [Step::Key("variant"), Step::Index(job.variant), Step::Key("wall")];
        self.scenario.diagnostic(&at, message, "").into()
    }

    fn solo_keys(&self, jobs: &[Job<'a>]) -> Vec<SoloKey<'a>> {
        let count = self.scenario.file.tenants.len();
        let keys = jobs.iter().flat_map(|job| (0..count).map(move |tenant| self.key(job, tenant)));
        keys.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }

    /// A tenant alone on the whole GPU.
    fn solo(&self, key: &SoloKey<'a>) -> Result<Solo, ScenarioError> {
        let &(gpu, tenant, _) = key;
        // The others are named, so that the arrivals come from the tenant's own stream; only it runs.
        let count = self.scenario.file.tenants.len();
        let participants: Vec<Participant> =
            (0..count).map(|_| Participant { workload: self.workload(key, None), share: None }).collect();
        let solo = self.experiment(gpu, participants).solo(tenant);
        solo.map_err(|error: SimError| {
            let at = [Step::Key("tenant"), Step::Index(tenant)];
            self.scenario.diagnostic(&at, error.to_string(), "").into()
        })
    }

    /// What the objective of a tenant is in time.
    fn objective(&self, tenant: usize, solo: &Solo) -> Option<Nanos> {
        let file = &self.scenario.file;
        let spec = &file.tenants[tenant];
        let default = file.objective.filter(|_| spec.class == Class::LatencySensitive);
        match spec.objective.or(default)? {
            Objective::Time(time) => Some(time),
            Objective::TimesSolo(times) => {
                let service = solo.service();
                service.p50_ms.or(service.mean_ms).map(|ms| Nanos::from_ms_f64(ms * times))
            }
        }
    }

    fn rows(&self, job: &Job<'a>, solos: &BTreeMap<SoloKey<'a>, Solo>) -> Result<Vec<Row>, ScenarioError> {
        let file = &self.scenario.file;
        let variant = &file.variants[job.variant];
        let solo: Vec<Solo> =
            (0..file.tenants.len()).map(|tenant| solos[&self.key(job, tenant)].clone()).collect();
        let objectives: Vec<Option<Nanos>> =
            solo.iter().enumerate().map(|(tenant, solo)| self.objective(tenant, solo)).collect();
        let experiment = self.experiment(job.gpu, self.participants(job, &objectives));
        let cell = Cell { wall: variant.wall, node: variant.node(), copies: variant.copies.policy() };
        let result = experiment.cell(cell, &solo).map_err(|error| self.refused(job, error.to_string()))?;
        let gpu = self.gpu(job);
        let rows = result.tenants.into_iter().enumerate().map(|(index, tenant)| Row {
            gpu: gpu.id.clone(),
            variant: variant.name.clone(),
            wall: variant.wall,
            copies: result.copies,
            validated: self.validated(gpu, variant.wall),
            fault_contained: variant.wall.fault_contained(),
            pair: job.pair.map(|(ls, be)| Pair { ls: ls.to_owned(), be: be.to_owned() }),
            program: experiment.participants[index].workload.program.name.clone(),
            objective_ms: objectives[index].map(Nanos::as_ms),
            tenant,
            power_w: result.power_w,
            clock_mhz: result.clock_mhz,
            clock_min_mhz: result.clock_min_mhz,
            throttled: result.throttled,
        });
        Ok(rows.collect())
    }

    /// The model was held against measurements on one GPU; on others its error is not known.
    fn validated(&self, gpu: &Gpu, wall: Wall) -> bool {
        gpu.id == RECORDED_ON && self.options.validated.contains(&wall)
    }

    fn ims_jobs(&self, jobs: &[Job<'a>]) -> Vec<(Job<'a>, usize, &'a ImsSpec)> {
        let file = &self.scenario.file;
        let Some(spec) = &file.ims else { return Vec::new() };
        let under_test = |job: &Job<'a>| {
            let job = *job;
            spec.tenants.iter().filter_map(move |name| {
                let tenant = file.tenants.iter().position(|tenant| tenant.name == *name)?;
                Some((job, tenant, spec))
            })
        };
        jobs.iter().flat_map(under_test).collect()
    }

    fn ims(&self, job: &Job<'a>, tenant: usize, spec: &ImsSpec) -> Result<ImsResult, ScenarioError> {
        let refused = |error: SimError| self.refused(job, error.to_string());
        let file = &self.scenario.file;
        let variant = &file.variants[job.variant];
        let (layout, participants) = self.layout(job)?;
        let bench = Bench {
            gpu: self.gpu(job),
            layout,
            workloads: participants.into_iter().map(|participant| participant.workload).collect(),
            copies: copy_scheduler::Config {
                policy: variant.copies.policy(),
                ..copy_scheduler::Config::default()
            },
            params: self.options.params,
            seed: self.seed,
            config: ims::Config { requests: spec.requests, step: spec.step, ..ims::Config::default() },
        };
        let own = bench.alone(tenant).map_err(refused)?;
        // The periods at which the test runs.
        let eased = |period: Nanos| Nanos((period.0 as f64 / (1.0 - spec.margin)).ceil() as u64);
        let mut others = Vec::new();
        // Behind `exclusive` the others are on other GPUs.
        if variant.wall != Wall::Exclusive {
            for other in (0..file.tenants.len()).filter(|&other| other != tenant) {
                if let Some(period) = bench.alone(other).map_err(refused)?.found.period {
                    others.push((other, eased(period)));
                }
            }
        }
        let mut steps = Vec::new();
        for &load in own.found.period.iter().flat_map(|_| &spec.loads) {
            let Some(period) = own.found.period else { break };
            let beside: Vec<(usize, Nanos)> = others
                .iter()
                .filter(|_| load > 0.0)
                .map(|&(other, period)| (other, Nanos((period.0 as f64 / load).ceil() as u64)))
                .collect();
            let beside = bench.beside(tenant, eased(period), &beside).map_err(refused)?;
            steps.push(ImsStep::new(load, &beside));
        }
        let gpu = self.gpu(job);
        Ok(ImsResult {
            gpu: gpu.id.clone(),
            variant: variant.name.clone(),
            wall: variant.wall,
            validated: self.validated(gpu, variant.wall),
            tenant: file.tenants[tenant].name.clone(),
            program: bench.workloads[tenant].program.name.clone(),
            ims_per_s: own.found.period.map(|period| 1.0 / period.as_secs()),
            first_estimate_per_s: 1.0 / own.found.first.as_secs(),
            clock_alone_mhz: own.clock_mhz,
            steps,
        })
    }
}

/// The networks that tenant `index` runs in the course of a scenario; `None` for its own program.
fn models_of(scenario: &Scenario, index: usize) -> Vec<Option<&str>> {
    let spec = &scenario.file.tenants[index];
    match &scenario.file.sweep {
        Some(sweep) if spec.program == "sweep" => {
            let list = if spec.class == Class::LatencySensitive { &sweep.ls } else { &sweep.be };
            list.iter().map(|model| Some(&model[..])).collect()
        }
        _ => vec![None],
    }
}
