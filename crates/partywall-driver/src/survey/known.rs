//! What the catalogue knows of a GPU that the driver names.

use partywall_core::catalogue::Catalogue;
use partywall_core::gpu;
use partywall_core::soft_gpu::SUFFIX;

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

/// The entry of the catalogue that a driver's name is about. A simulated GPU says that it is one behind its name, and
/// those that drivers have no name of their own for are called as the catalogue calls them.
pub(super) fn entry<'a>(name: &str, catalogue: &'a Catalogue) -> Option<&'a gpu::Gpu> {
    let simulated = name.strip_suffix(SUFFIX);
    let by_its_own = || catalogue.iter().find(|gpu| simulated == Some(gpu.name.as_str()));
    catalogue_id(simulated.unwrap_or(name)).and_then(|id| catalogue.get(id).ok()).or_else(by_its_own)
}

/// What the driver calls a GPU of the catalogue, where it has a name for it that nothing else has.
pub(crate) fn driver_name(id: &str) -> Option<String> {
    NAMES.iter().find(|(_, known)| *known == id).map(|(name, _)| format!("NVIDIA {name}"))
}

/// The catalogue's id for a driver's name.
fn catalogue_id(name: &str) -> Option<&'static str> {
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
    fn a_simulated_gpu_is_found_under_its_simulated_name_only() {
        let catalogue = Catalogue::builtin().unwrap();
        for gpu in catalogue.iter() {
            let name = driver_name(&gpu.id).unwrap_or_else(|| gpu.name.clone());
            let found = entry(&format!("{name}{SUFFIX}"), catalogue).unwrap();
            assert_eq!(found.id, gpu.id, "{name}");
        }
        assert_eq!(entry("NVIDIA H200", catalogue).unwrap().id, "h200");
        assert_eq!(entry("NVIDIA Jetson AGX Orin 64 GB", catalogue), None);
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
