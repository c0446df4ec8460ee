use std::collections::BTreeSet;

use super::*;

/// Every name of every rule.
fn names() -> Vec<&'static str> {
    let rules = SUBJECTS.iter().flat_map(|subject| subject.rules);
    rules.flat_map(|rule| rule.names.iter().copied()).collect()
}

#[test]
fn every_function_of_the_list_is_decided() {
    let undecided: Vec<&str> = driver_api::cuda()
        .map(|function| function.name)
        .filter(|name| treatment(name).disposition == Disposition::Unknown)
        .collect();
    assert_eq!(undecided, [""; 0]);
}

#[test]
fn every_rule_is_for_functions_that_exist_and_no_name_has_two() {
    let functions: Vec<_> = driver_api::cuda().collect();
    let mut seen = BTreeSet::new();
    for name in names() {
        let first = name.strip_suffix("_v1").unwrap_or(name);
        let exists = functions.iter().any(|function| function.name == first || function.base == name);
        assert!(exists, "{name} is neither an export nor a base name");
        assert!(seen.insert(name), "{name} has two rules");
    }
}

#[test]
fn every_rule_says_why() {
    for rule in SUBJECTS.iter().flat_map(|subject| subject.rules) {
        assert!(rule.treatment.why.len() >= 10 && !rule.treatment.why.contains('|'), "{:?}", rule.names);
        assert_ne!(rule.treatment.disposition, Disposition::Unknown, "{:?}", rule.names);
    }
}

/// The rule of one export comes before that of its base.
#[test]
fn one_version_can_be_treated_differently() {
    assert_eq!(treatment("cuMemcpyHtoD").disposition, Disposition::Passed, "the first version");
    for name in ["cuMemcpyHtoD_v2", "cuMemcpyHtoD_v2_ptds"] {
        assert_eq!(treatment(name).disposition, Disposition::Enforced, "{name}");
    }
    assert_eq!(treatment("cuMemcpyHtoD_v1").disposition, Disposition::Unknown, "no export is called so");
}

#[test]
fn variants_are_treated_like_their_base_and_what_is_nowhere_is_unknown() {
    assert_eq!(treatment("cuLaunchKernel_ptsz"), treatment("cuLaunchKernel"));
    assert_eq!(treatment("cuNoSuchFunction"), Treatment { disposition: Disposition::Unknown, why: "" });
    assert_eq!(treatment("").disposition, Disposition::Unknown);
}

#[test]
fn the_page_has_every_rule_under_its_subject() {
    let page = markdown();
    for name in names() {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
    let heading = page.find("## Launches").unwrap();
    assert!(page[heading..].contains("`cuLaunchKernel`"));
}
