//! What the catalogue knows of a GPU that the driver names.

use partywall_core::gpu;

use crate::mig::Profile;

/// The names that drivers give to the parts of the catalogue, without `NVIDIA`, which older drivers leave out. Jetson
/// modules are not here: they all call their GPU the same.
const NAMES: &[(&str, &str)] = &[
    ("H200", "h200"),
    ("H100 80GB HBM3", "h100-sxm"),
    ("H100 PCIe", "h100-pcie"),
    ("A100-SXM4-80GB", "a100-80gb"),
    ("A100-SXM4-40GB", "a100-40gb"),
    ("A100-PCIE-40GB", "a100-40gb"),
    ("L40S", "l40s"),
    ("L4", "l4"),
];

/// The catalogue's id for a driver's name.
pub(super) fn catalogue_id(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("NVIDIA ").unwrap_or(name).trim();
    NAMES.iter().find(|(known, _)| *known == name).map(|(_, id)| *id)
}

/// The largest profile of which at least two fit, by name.
pub(super) fn half(profiles: &[Profile]) -> Option<String> {
    let fitting = profiles.iter().filter(|profile| profile.instances >= 2);
    fitting.max_by_key(|profile| (profile.sms, profile.memory_mib)).and_then(|profile| profile.name.clone())
}

/// The same from the catalogue, for drivers that tell no profiles while MIG is off.
pub(super) fn half_of_known(gpu: &gpu::Gpu) -> Option<String> {
    let fitting = gpu.mig.iter().flat_map(|mig| &mig.profiles).filter(|profile| profile.instances >= 2);
    fitting.max_by_key(|profile| profile.sms.value).map(|profile| profile.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partywall_core::catalogue::Catalogue;

    #[test]
    fn names_lead_to_gpus_that_the_catalogue_has() {
        let catalogue = Catalogue::builtin().unwrap();
        for (name, id) in NAMES {
            assert_eq!(catalogue.get(id).unwrap().id, *id, "{name}");
            assert_eq!(catalogue_id(&format!("NVIDIA {name}")), Some(*id));
            assert_eq!(catalogue_id(name), Some(*id));
        }
        for unknown in ["NVIDIA H200 NVL", "NVIDIA GeForce RTX 4090", "Orin (nvgpu)", ""] {
            assert_eq!(catalogue_id(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn two_tenants_ask_for_the_largest_profile_that_fits_twice() {
        let catalogue = Catalogue::builtin().unwrap();
        assert_eq!(half_of_known(catalogue.get("h200").unwrap()).as_deref(), Some("3g.71gb"));
        assert_eq!(half_of_known(catalogue.get("l4").unwrap()), None);
        let profile = |name: &str, instances, sms| Profile {
            id: 0,
            name: Some(name.to_owned()),
            instances,
            sms,
            memory_mib: 1,
            copy_engines: 1,
            placements: Vec::new(),
        };
        let all = [profile("1g.10gb", 7, 16), profile("3g.40gb", 2, 60), profile("7g.80gb", 1, 132)];
        assert_eq!(half(&all).as_deref(), Some("3g.40gb"));
        assert_eq!(half(&all[2..]), None);
    }
}
