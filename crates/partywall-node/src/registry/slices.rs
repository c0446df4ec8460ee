//! How long the device stays with each process while others wait, where that is to be short for best-effort ones.
//!
//! A slice that is much shorter than what a change of hands takes is for one process beside others that finish and rest. Two that always
//! have something to run would do little else than change hands, so as soon as there are two best-effort processes, slices are longer.

use std::sync::atomic::Ordering;

use partywall_core::tenant::Class;

use super::state::State;
use crate::arbiter::squeeze::LaunchOptions;

impl State {
    /// Tells all processes their time slices, because one has come or gone.
    pub(super) fn say_slices(&self) {
        let LaunchOptions { slice: Some(_), .. } = self.launches else { return };
        let class = |tenant| self.tenants.get(&tenant).map(|tenant| tenant.spec.class);
        let members = || self.connections.values().filter_map(|connection| connection.member());
        let best_effort = members().filter(|member| class(member.tenant) == Some(Class::BestEffort)).count();
        for member in members() {
            let slice_us = class(member.tenant).map_or(0, |class| self.launches.slice_us(class, best_effort));
            member.page.node.slice_us.store(slice_us, Ordering::Relaxed);
        }
    }
}
