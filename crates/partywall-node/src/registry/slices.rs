//! How long the device stays with each process while others wait, where that is to be short for best-effort ones.
//!
//! A slice that is much shorter than what a change of hands takes is for one process beside others that finish and rest. Two that always
//! have something to run would do little else than change hands. So where best-effort processes do not compute one at a time, and while work of
//! two is found on the device all the same, slices are longer as soon as there are two of them.

use std::sync::atomic::Ordering;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use super::state::State;
use crate::arbiter::squeeze::LaunchOptions;

impl State {
    /// Tells all processes their time slices: when one has come or gone, and from time to time.
    pub(super) fn say_slices(&self, now: Nanos) {
        let LaunchOptions { slice: Some(_), .. } = self.launches else { return };
        let class = |tenant| self.tenants.get(&tenant).map(|tenant| tenant.spec.class);
        let members = || self.connections.values().filter_map(|connection| connection.member());
        let best_effort = members().filter(|member| class(member.tenant) == Some(Class::BestEffort)).count();
        let overlap = || self.arbiter.as_ref().is_some_and(|arbiter| arbiter.turns().is_shared(now));
        let share = best_effort > 1 && (!self.launches.takes_turns() || overlap());
        for member in members() {
            let slice_us = class(member.tenant).map_or(0, |class| self.launches.slice_us(class, share));
            member.page.node.slice_us.store(slice_us, Ordering::Relaxed);
        }
    }
}
