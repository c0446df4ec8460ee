//! `partywall vram neighbour`: one of the two processes of `interfere`.

use std::io::{BufRead as _, Write as _};
use std::sync::Arc;

use partywall_core::units::{Bytes, Nanos};
use partywall_driver::kernels::{Access, Kernels};
use partywall_driver::{Cuda, DriverError};
use partywall_vram::arena::{Arena, ArenaError};
use partywall_vram::pages::Source;
use partywall_vram::sides::{Known, Side};
use partywall_vram::tenant::{self, Request, Tenant, TenantError};

use super::descriptors;
use super::talk::{self, Measured, Pages, Ready, Said, Told};
use crate::error::Failure;
use crate::progress::stopwatch;

/// Of fewer there is no p99: the rule for all that is recorded.
const P99_LEAST: usize = 5_000;

/// Does what standard input says until it is closed.
pub(super) fn run() -> Result<(), Failure> {
    let mut tenant: Option<(Tenant, bool)> = None;
    let watch = std::cell::RefCell::new(stopwatch());
    let clock = || Nanos((watch.borrow_mut()() * 1e9) as u64);
    for line in std::io::stdin().lock().lines() {
        let told = serde_json::from_str(&line?).map_err(Failure::internal)?;
        let said = match obey(&mut tenant, told, &clock) {
            Ok(said) => said,
            Err(why) => Said::Failed(why),
        };
        let failed = matches!(said, Said::Failed(_));
        let mut line = serde_json::to_string(&said).map_err(Failure::internal)?;
        line.push('\n');
        let mut output = std::io::stdout().lock();
        output.write_all(line.as_bytes())?;
        output.flush()?;
        if failed {
            // What went wrong was said.
            break;
        }
    }
    if let Some((tenant, _)) = tenant {
        tenant.stop().map_err(|error| Failure::machine(error, None))?;
    }
    Ok(())
}

fn obey(tenant: &mut Option<(Tenant, bool)>, told: Told, clock: &dyn Fn() -> Nanos) -> Result<Said, String> {
    let failed = |error: TenantError| error.to_string();
    if let Told::Begin { device, known, side, data, request, code_places, seed, gentle, pages } = told {
        let mut took = stopwatch();
        let source = source(device, known, seed).map_err(|error| error.to_string())?;
        let arena = arena(&source, side, Bytes(data), &pages)?;
        let request = Request { launches: request.launches, bytes: Bytes(request.bytes) };
        let mut made = Tenant::new(&source, arena, (Bytes(data), request), None).map_err(failed)?;
        (1..code_places).try_for_each(|_| made.load_again(&source)).map_err(failed)?;
        let ready = Ready {
            sms: made.sms(),
            data_bytes: made.data().0,
            arena_bytes: made.arena().bytes().0,
            pages: made.arena().pages(),
            lost_bytes: made.arena().lost().0,
            took_s: took(),
        };
        *tenant = Some((made, gentle));
        return Ok(Said::Ready(ready));
    }
    let (tenant, gentle) = tenant.as_mut().ok_or("the first thing to be told is how to begin")?;
    match told {
        Told::Begin { .. } => Err("it has begun already".to_owned()),
        Told::Copies { seed } => Ok(Said::Copied { wrong: tenant.try_copies(seed).map_err(failed)? }),
        Told::Measure { work, view, threads, count, code } => {
            tenant.use_code(code as usize).map_err(failed)?;
            let taken = tenant.measure(work.into(), view.into(), threads, count, clock).map_err(failed)?;
            Ok(Said::Measured(measured(taken)))
        }
        Told::Start { load, view, sms, threads } => {
            let access = (load.access.into(), load.evict_first);
            tenant.start(access, (sms, threads), view.into(), *gentle).map_err(failed)?;
            Ok(Said::Done)
        }
        Told::Worked => {
            let at_ns = clock().0;
            Ok(Said::Worked { bytes: tenant.worked().map_err(failed)?.0, at_ns })
        }
        Told::Stop => tenant.stop().map(|()| Said::Done).map_err(failed),
    }
}

fn arena(source: &Source, side: Side, data: Bytes, pages: &Pages) -> Result<Arena, String> {
    let failed = |error: ArenaError| error.to_string();
    match pages {
        Pages::Private => Arena::private(source, side, Tenant::arena_bytes(data)).map_err(failed),
        Pages::Offered { bytes, at } => {
            let arena = Arena::paired(source, side, Tenant::arena_bytes(Bytes(*bytes))).map_err(failed)?;
            let files = arena.export().map_err(failed)?;
            descriptors::offer(at, files).map_err(|error| format!("offering pages: {error}"))?;
            Ok(arena)
        }
        Pages::Fetched { count, at } => {
            let files = descriptors::fetch(at, *count).map_err(|error| format!("fetching pages: {error}"))?;
            Arena::join(source, side, &files).map_err(failed)
        }
    }
}

fn source(device: u32, known: Known, seed: u64) -> Result<Source, DriverError> {
    let device = Cuda::load()?.device(device)?;
    let kernels = Arc::new(Kernels::load(&device.primary()?)?);
    Ok(Source { device, kernels, known, seed })
}

fn measured(taken: tenant::Taken) -> Measured {
    let [mut device, mut host] = [taken.device_us, taken.host_us];
    device.sort_by(f64::total_cmp);
    host.sort_by(f64::total_cmp);
    let p99 = |sorted: &[f64]| (sorted.len() >= P99_LEAST).then(|| quantile(sorted, 0.99)).flatten();
    Measured {
        count: device.len() as u32,
        p50_us: quantile(&device, 0.5).unwrap_or_default(),
        p99_us: p99(&device),
        max_us: device.last().copied().unwrap_or_default(),
        host_p50_us: quantile(&host, 0.5),
        host_p99_us: p99(&host),
    }
}

/// By nearest rank.
fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

impl From<talk::Work> for tenant::Work {
    fn from(work: talk::Work) -> Self {
        match work {
            talk::Work::Long => Self::Passes,
            talk::Work::Short => Self::Requests,
            talk::Work::Graph => Self::Graphs,
        }
    }
}

impl From<talk::View> for tenant::View {
    fn from(view: talk::View) -> Self {
        match view {
            talk::View::Colored => Self::Colored,
            talk::View::Uncolored => Self::Uncolored,
        }
    }
}

impl From<talk::Access> for Access {
    fn from(access: talk::Access) -> Self {
        match access {
            talk::Access::Read => Self::Read,
            talk::Access::Write => Self::Write,
            talk::Access::Mixed => Self::ReadWrite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank_and_a_p99_takes_five_thousand() {
        assert_eq!(quantile(&[1.0, 2.0, 3.0, 4.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[1.0], 0.99), Some(1.0));
        assert_eq!(quantile(&[], 0.5), None);
        let of = |count: u32| {
            measured(tenant::Taken {
                device_us: (1..=count).rev().map(f64::from).collect(),
                host_us: Vec::new(),
            })
        };
        let few = of(4_999);
        assert_eq!((few.p50_us, few.p99_us, few.max_us, few.host_p50_us), (2_500.0, None, 4_999.0, None));
        assert_eq!(of(5_000).p99_us, Some(4_950.0));
    }
}
