//! `partywall tenant`: the built-in tenants, as `partywall measure` starts them.

use std::io::BufReader;

use partywall_core::diagnostic::quoted;
use partywall_driver::green::GroupSet;
use partywall_measure::protocol::SM_GROUPS;
use partywall_measure::synthetic::arguments::{Sharing, TenantArguments as Asked, TenantSpec};
use partywall_measure::synthetic::pretend::{Fault, Pretence};
use partywall_measure::synthetic::{TenantError, tenant_main};

use crate::cli::TenantArguments;
use crate::error::Failure;

pub(crate) fn run(arguments: &TenantArguments) -> Result<(), Failure> {
    let tenants: Result<Vec<TenantSpec>, _> = arguments.tenants.iter().map(|text| text.parse()).collect();
    let asked = Asked {
        tenants: tenants.map_err(Failure::input)?,
        sharing: sharing(arguments)?,
        device: arguments.device,
        pretence: pretence(arguments)?,
    };
    tenant_main(asked, BufReader::new(std::io::stdin()), std::io::stdout()).map_err(|error| match error {
        TenantError::Arguments(error) => Failure::input(error),
        TenantError::Host(error) => Failure::machine(error, None),
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the command line is the edge: the SM groups of a tenant come from here"
)]
fn sharing(arguments: &TenantArguments) -> Result<Sharing, Failure> {
    if arguments.stream_priority {
        return Ok(Sharing::StreamPriority);
    }
    let from_environment: Vec<String> = std::env::var(SM_GROUPS).into_iter().collect();
    let given = if arguments.sm_groups.is_empty() { &from_environment } else { &arguments.sm_groups };
    if given.is_empty() {
        return Ok(Sharing::Whole);
    }
    let sets: Result<Vec<GroupSet>, _> = given.iter().map(|text| text.parse()).collect();
    Ok(Sharing::GreenContexts(sets.map_err(Failure::input)?))
}

fn pretence(arguments: &TenantArguments) -> Result<Pretence, Failure> {
    let usual = Pretence::default();
    let fault = arguments.fault.as_deref().map(fault).transpose()?;
    Ok(Pretence {
        service: arguments.service.unwrap_or(usual.service),
        busy: !arguments.asleep,
        fault,
        wrong_result: arguments.wrong_result,
        ..usual
    })
}

fn fault(text: &str) -> Result<(Fault, u64), Failure> {
    let parsed = text.split_once('@').and_then(|(name, request)| {
        let fault = match name {
            "die" => Fault::Die,
            "hang" => Fault::Hang,
            "rubbish" => Fault::Rubbish,
            _ => return None,
        };
        Some((fault, request.parse().ok()?))
    });
    parsed.ok_or_else(|| {
        Failure::input(format!("{} is no fault; write die@5, hang@5 or rubbish@5", quoted(text)))
    })
}
