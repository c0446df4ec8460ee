use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::policy;
use partywall_routing::router::RouterSettings;
use partywall_sim::serving::comparison::{ABLATIONS, Comparison, ComparisonReport, OFFERED};
use partywall_sim::serving::engine::EngineSettings;
use partywall_sim::serving::generate::generate;

use super::{page, pictures};
use crate::report::tests::figures::inside;

fn report(policies: Vec<&'static str>, rates: Vec<f64>, mixed: bool) -> ComparisonReport {
    let comparison = Comparison {
        policies,
        rates,
        cache_tokens: vec![1_000_000, 150_000],
        engines: 8,
        engine: EngineSettings::default(),
        router: RouterSettings::default(),
        mixed,
        offered: OFFERED,
        whole: false,
        seed: 1,
    };
    comparison.run(&generate(Nanos::from_secs(60), 1, Class::LatencySensitive), 2, &|| {}).unwrap()
}

fn names(report: &ComparisonReport) -> Vec<String> {
    let pictures = pictures(report);
    for (name, svg) in &pictures {
        inside(svg);
        assert!(svg.contains("Simulated, not measured"), "{name}");
    }
    pictures.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn nothing_leaves_a_figure_and_every_policy_is_in_it() {
    let report = report(policy::NAMES.to_vec(), vec![1.0, 1.5, 2.0], true);
    assert_eq!(names(&report), ["first-tokens.svg", "queueing.svg", "mixed.svg"]);
    for (name, svg) in pictures(&report) {
        for policy in policy::NAMES {
            assert!(svg.contains(policy), "{policy} in {name}");
        }
    }
    let page = page(&report, "partywall sim route --some <load>");
    assert!(page.contains("--some &lt;load&gt;") && page.contains("class-blind"));
    page.split("<svg").skip(1).for_each(|svg| inside(svg.split("</svg>").next().unwrap()));
    // What is recorded is what is drawn.
    let read: ComparisonReport = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(pictures(&read), pictures(&report));
}

#[test]
fn figures_without_data_are_left_out() {
    assert_eq!(names(&report(vec!["partywall"], vec![1.0], false)), ["first-tokens.svg"]);
    assert_eq!(names(&report(vec!["dynamo"], vec![1.0, 2.0], false)), ["first-tokens.svg", "queueing.svg"]);
    let ablations = [&[policy::NAMES[0]][..], &ABLATIONS].concat();
    assert_eq!(names(&report(ablations, vec![], true)), ["mixed.svg"]);
    let mut odd = report(vec!["partywall", "dynamo"], vec![1.0, 2.0], true);
    for setting in &mut odd.settings {
        setting.policies[0].measures.ttft_mean_s = None;
        setting.policies[1].measures.ttft_p99_s = Some(f64::INFINITY);
    }
    odd.mixed[0].alone.ttft_p99_s = None;
    odd.mixed[1].policies.clear();
    assert_eq!(names(&odd).len(), 3);
}
