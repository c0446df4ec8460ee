//! `partywall tenant`: the process with real clocks, real workloads and real consequences.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use partywall_core::units::{Bytes, Nanos};
use rustix::process::{Signal, getpid, kill_process};

use super::allocations::Allocations;
use super::arguments::{ArgumentsError, Kind, TenantArguments, TenantSpec};
use super::chase::Chase;
use super::compute::Compute;
use super::copies::Copies;
use super::decode::Decode;
use super::host::{HostError, Hosted, Made, Make, Output, host};
use super::matmul::Matmul;
use super::network::Network;
use super::place::Place;
use super::pretend::{Pretend, Victim};
use super::reads::Reads;
use super::tiny::Tiny;
use super::writes::Writes;
use super::{Builtin, Clock, Program, Workload, WorkloadError};
use crate::clock;

/// Why `partywall tenant` does not end as it should.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// It was asked for something that makes no sense; nothing was started.
    #[error(transparent)]
    Arguments(#[from] ArgumentsError),
    /// A tenant failed, or the input was no protocol.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Hosts the tenants until they are told to end, or the input ends.
///
/// Ignores SIGINT: Ctrl-C in a terminal reaches the whole group, and what becomes of a tenant is for whoever started it to
/// decide. Its end is noticed as the end of the input.
///
/// # Errors
/// Arguments that make no sense, a tenant that failed, or input that is no protocol.
pub fn tenant_main(
    arguments: TenantArguments,
    input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), TenantError> {
    arguments.check()?;
    // A handler that does nothing that matters. Where it cannot be installed, Ctrl-C ends the process: no harm.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::new(AtomicBool::new(false)));
    let hosted =
        |tenant: &TenantSpec| Hosted { tag: tenant.tag.clone(), class: tenant.class, sleeps: !tenant.awake };
    let tenants: Vec<Hosted> = arguments.tenants.iter().map(hosted).collect();
    let make: Arc<Make> = Arc::new(move |index, output| workload(&arguments, index, output));
    Ok(host(&tenants, make, input, output)?)
}

/// The machine's clock.
struct Monotonic;

impl Clock for Monotonic {
    fn now(&self) -> Nanos {
        clock::now()
    }

    fn sleep(&self, duration: Nanos) {
        clock::sleep(duration);
    }
}

/// This process, for pretended faults.
struct Myself(Arc<Output>);

impl Victim for Myself {
    fn die(&self) {
        // Without a word and without a core dump, as the kernel ends a process that used too much memory.
        let _ = kill_process(getpid(), Signal::KILL);
    }

    fn rubbish(&self) {
        self.0.write("this line is not of the protocol, on purpose\n");
    }
}

/// Makes a tenant's workload, on its thread.
fn workload(arguments: &TenantArguments, index: usize, output: &Arc<Output>) -> Result<Made, WorkloadError> {
    let Some(tenant) = arguments.tenants.get(index) else {
        return Err(WorkloadError::Unfit(format!("there is no tenant {index}")));
    };
    let clock = Box::new(Monotonic);
    Ok(match tenant.kind {
        Kind::Pretend => {
            let process = Rc::new(Myself(Arc::clone(output)));
            let workload = Box::new(Pretend::new(arguments.pretence, Rc::new(Monotonic), process));
            Made { workload, clock, about: BTreeMap::new() }
        }
        Kind::Builtin(builtin) => {
            let place = Place::open(arguments, index)?;
            let about = place.about()?;
            Made { workload: built(builtin, place, tenant.size)?, clock, about }
        }
    })
}

fn built(
    builtin: &'static Builtin,
    place: Place,
    size: Option<Bytes>,
) -> Result<Box<dyn Workload>, WorkloadError> {
    Ok(match builtin.program {
        Program::Chase => Box::new(Chase::new(place, builtin, size)?),
        Program::Reads => Box::new(Reads::new(place, builtin, size)?),
        Program::Writes => Box::new(Writes::new(place, builtin, size)?),
        Program::Matmul => Box::new(Matmul::new(place, builtin)?),
        Program::Tiny => Box::new(Tiny::new(place, builtin)?),
        Program::Network => Box::new(Network::new(place, builtin)?),
        Program::Decode => Box::new(Decode::new(place, builtin, size)?),
        Program::Copies => Box::new(Copies::new(place, builtin, size)?),
        Program::Compute => Box::new(Compute::new(place, builtin)?),
        Program::Allocations => Box::new(Allocations::new(place, builtin, size)?),
    })
}
