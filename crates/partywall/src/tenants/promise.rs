//! What `partywall ps` and `up` say of promises.

use partywall_core::guarantee::{Reason, Status};
use partywall_core::units::Nanos;
use partywall_node::control::TenantReport;
use partywall_node::promise::Cause;

/// One word, and what was measured of what was promised: `kept, 1.08 of 1.2`.
pub(super) fn cell(tenant: &TenantReport) -> String {
    let Some(status) = tenant.facts.promise.as_ref().map(|promise| &promise.status) else {
        return "-".to_owned();
    };
    if !status.promised.is_some() {
        return status.slowdown.map_or("-".to_owned(), |slowdown| format!("none, {slowdown:.2}"));
    }
    let slowdown = status.slowdown.zip(status.promised.slowdown);
    let slowdown = slowdown.map(|(is, may)| format!(", {is:.2} of {may}"));
    let time = status.beside.p99_ns.zip(status.promised.p99);
    let time = time.map(|(is, may)| format!(", {} of {may}", ms(is)));
    format!("{}{}{}", status.verdict, slowdown.unwrap_or_default(), time.unwrap_or_default())
}

/// Why it is not guaranteed, and since when it is broken beside whom.
pub(super) fn notes(tenant: &TenantReport) -> Vec<String> {
    let Some(promise) = &tenant.facts.promise else { return Vec::new() };
    let name = &tenant.name;
    let mut notes: Vec<String> =
        reasons(&promise.status).map(|reason| format!("{name}: promise not guaranteed: {reason}")).collect();
    if promise.status.baseline.is_being_taken {
        notes.push(format!(
            "{name}: best-effort tenants stand back until it is known what its requests take alone"
        ));
    }
    if let Some(one) = promise.history.first().filter(|one| one.goes_on) {
        let cause = |cause: &Cause| format!("{} for {:.1} s", cause.tenant, cause.time_ns.as_secs());
        let by: Vec<String> = one.by.iter().map(cause).collect();
        let by = if by.is_empty() { String::new() } else { format!(", beside {}", by.join(", ")) };
        notes.push(format!("{name}: promise broken for {:.1} s{by}", one.lasted_ns.as_secs()));
    }
    notes
}

/// Whether a promise was made that this node cannot keep, because it does not decide about launches.
pub(super) fn is_out_of_reach(tenant: &TenantReport) -> bool {
    let status = tenant.facts.promise.as_ref().map(|promise| &promise.status);
    status.is_some_and(|status| status.reasons.contains(&Reason::LaunchesUndecided))
}

/// Those that are not said of the tenant already, nor that nothing was promised.
fn reasons(status: &Status) -> impl Iterator<Item = &Reason> {
    let is_news = |reason: &&Reason| !matches!(reason, Reason::NotPromised | Reason::Outside { .. });
    status.reasons.iter().filter(is_news)
}

/// For people: three digits behind the point.
fn ms(time: Nanos) -> String {
    format!("{:.3}ms", time.as_ms())
}

#[cfg(test)]
mod tests {
    use partywall_core::guarantee::{Config, Event, Phase, Tracker};
    use partywall_core::tenant::Slo;
    use partywall_node::promise::PromiseFacts;
    use partywall_node::tenant::TenantFacts;
    use serde_json::json;

    use super::*;

    fn report(slo: Slo, requests: u64, ms: u64) -> TenantReport {
        let mut tracker = Tracker::new(Config { slo, baseline: Some(Nanos::from_millis(4)) });
        let (mut now, mut said) = (Nanos::ZERO, Vec::new());
        for _ in 0..requests {
            now = now.saturating_add(Nanos::from_millis(5));
            let (took, phase) = (Some(Nanos::from_millis(ms)), Phase::Beside);
            tracker.step(now, Event::Request { end: now, took, phase }, &mut said);
        }
        tracker.step(now, Event::Time, &mut said);
        let promise = PromiseFacts { status: tracker.status(now, &[]), history: Vec::new() };
        let facts = TenantFacts { promise: Some(Box::new(promise)), ..TenantFacts::default() };
        let report = json!({
            "id": 1, "name": "detector", "class": "latency-sensitive", "activity": "running", "pid": null,
            "running_for_ns": null, "starts_in_ns": null, "restarts": 0, "end": null, "end_text": null,
            "exit_code": null, "memory": null, "weight": 8, "wall": "auto", "share": null, "sms": null,
            "command": [], "log_bytes_lost": 0, "facts": facts,
        });
        serde_json::from_value(report).unwrap()
    }

    #[test]
    fn a_promise_is_a_word_and_its_measure() {
        let slowdown = Slo { slowdown: Some(1.2), p99: None };
        let time = Slo { slowdown: None, p99: Some(Nanos::from_millis(5)) };
        let cases = [
            (slowdown, 2_000, 4, "kept, 1.00 of 1.2"),
            (slowdown, 2_000, 5, "broken, 1.25 of 1.2"),
            (time, 2_000, 4, "kept, 4.000ms of 5ms"),
            (slowdown, 200, 4, "not guaranteed"),
            (Slo::default(), 2_000, 5, "none, 1.25"),
            (Slo::default(), 2, 5, "-"),
        ];
        for (slo, requests, ms, text) in cases {
            assert_eq!(cell(&report(slo, requests, ms)), text);
        }
        let few = notes(&report(slowdown, 200, 4));
        assert_eq!(
            few,
            [
                "detector: promise not guaranteed: too few requests beside best-effort work to tell: 100 of 1000"
            ]
        );
        assert!(notes(&report(Slo::default(), 2, 5)).is_empty());
    }
}
