//! The SMs of both classes, as groups of the split of all of them.

use partywall_core::sm_sets::{self, SmSet};
use partywall_core::tenant::Share;

use crate::plan::NodeSetting;

/// All SMs in the smallest groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// How many groups.
    pub groups: u32,
    /// SMs of each.
    pub sms_per_group: u32,
}

/// The groups of a split as a value of [`SM_GROUPS`](crate::protocol::SM_GROUPS): those of the latency-sensitive tenant, the first, and those of
/// the best-effort one, the last.
///
/// # Errors
/// More SMs than there are.
pub fn sm_groups(ls_sms: u32, be_sms: u32, split: Split) -> Result<[String; 2], String> {
    let groups = |sms: u32| sms.div_ceil(split.sms_per_group.max(1)).max(1);
    let (ls, be) = (groups(ls_sms), groups(be_sms));
    let total = split.groups;
    if ls.saturating_add(be) > total {
        let sms = total * split.sms_per_group;
        return Err(format!(
            "{ls_sms}/{be_sms} SMs do not fit: there are {sms}, in groups of {}",
            split.sms_per_group
        ));
    }
    Ok([format!("0-{}", ls - 1), format!("{}-{}", total - be, total - 1)])
}

/// The SM sets of both classes under a node: latency-sensitive tenants have the first groups, best-effort ones the last.
///
/// # Errors
/// More SMs than there are.
pub fn sm_sets(node: &NodeSetting, split: Split) -> Result<[Option<SmSet>; 2], String> {
    let Split { groups: total, sms_per_group } = split;
    let groups = |sms: Option<u32>| sms.map_or(0, |sms| sms.div_ceil(sms_per_group.max(1)));
    let (ls, be) = (groups(node.ls_sms), groups(node.be_sms));
    if ls.saturating_add(be) > total {
        let sms = total * sms_per_group;
        return Err(format!("`{node}` does not fit: there are {sms} SMs, in groups of {sms_per_group}"));
    }
    let set = |first, groups| (groups > 0).then_some(SmSet { first, groups, sms_per_group });
    Ok([set(0, ls), set(total - be, be)])
}

/// The SMs that are left to a best-effort tenant while it is squeezed.
pub(super) fn squeezed(share: Share, own: Option<SmSet>, split: Option<Split>) -> Result<SmSet, String> {
    let Some(Split { groups, sms_per_group }) = split else {
        return Err("this GPU or driver has no Green Contexts".to_owned());
    };
    sm_sets::Line { groups, sms_per_group }.squeezed(own, share).map_err(|error| error.to_string())
}
