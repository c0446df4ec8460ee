use partywall_core::catalogue::Catalogue;
use proptest::prelude::*;

use super::*;

fn gpu(id: &str) -> &'static Gpu {
    Catalogue::builtin().unwrap().get(id).unwrap()
}

fn member(class: Class, share: Option<Share>) -> Member {
    Member { class, share }
}

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;

fn caps(wall: Wall, members: &[Member]) -> Vec<u32> {
    let layout = Layout::new(wall, gpu("h200"), members).unwrap();
    layout.places.iter().map(|place| place.cap as u32).collect()
}

fn refused(wall: Wall, id: &str, members: &[Member]) -> String {
    Layout::new(wall, gpu(id), members).unwrap_err().to_string()
}

#[test]
fn who_gets_how_many_sms_of_an_h200() {
    let two = [member(LS, None), member(BE, None)];
    for (wall, expected) in [
        (Wall::Exclusive, [132, 132]),
        (Wall::StreamPriority, [132, 132]),
        (Wall::TimeSlicing, [132, 132]),
        (Wall::Mps, [132, 132]),
        (Wall::MpsPercentage, [66, 66]),
        (Wall::MpsStatic, [56, 56]),
        (Wall::GreenContexts, [64, 68]),
        (Wall::Mig, [64, 60]),
        (Wall::Sides, [66, 66]),
    ] {
        assert_eq!(caps(wall, &two), expected, "{wall}");
    }
}

#[test]
fn shares_are_taken_in_the_walls_steps() {
    let asked = |percent| [member(LS, Some(Share::Percent(percent))), member(BE, None)];
    assert_eq!(caps(Wall::MpsPercentage, &asked(6)), [7, 66]);
    assert_eq!(caps(Wall::GreenContexts, &asked(50)), [64, 68]);
    let halves = [member(LS, Some(Share::Percent(50))), member(BE, Some(Share::Percent(50)))];
    assert_eq!(caps(Wall::GreenContexts, &halves), [64, 64], "rounded down, so that halves fit");
    let most = [member(LS, Some(Share::Percent(90))), member(BE, Some(Share::Percent(90)))];
    assert_eq!(caps(Wall::MpsPercentage, &most), [118, 118], "percentages cap and do not reserve");
    assert_eq!(
        refused(Wall::GreenContexts, "h200", &most),
        "the shares of `green-contexts` add up to 224 SMs in its steps; NVIDIA H200 SXM 141 GB has 132 to give"
    );
}

#[test]
fn seven_fit_mig_and_eight_do_not() {
    let many = |n| vec![member(LS, None); n];
    // The eighth memory slice goes to the first.
    assert_eq!(caps(Wall::Mig, &many(7)), [26, 16, 16, 16, 16, 16, 16]);
    assert_eq!(
        refused(Wall::Mig, "h200", &many(8)),
        "`mig` on NVIDIA H200 SXM 141 GB takes at most 7 tenants; there are 8"
    );
    assert!(refused(Wall::Mig, "l4", &many(2)).ends_with("the part has no MIG"));
}

#[test]
fn one_latency_sensitive_tenant_gets_the_larger_instance() {
    assert_eq!(caps(Wall::Mig, &[member(BE, None), member(LS, None)]), [60, 64]);
}

#[test]
fn sides_separate_the_classes() {
    let layout =
        Layout::new(Wall::Sides, gpu("h200"), &[member(LS, None), member(BE, None), member(BE, None)])
            .unwrap();
    let memory: Vec<usize> = layout.places.iter().map(|place| place.memory).collect();
    assert_eq!((memory, layout.places[1].cap), (vec![0, 1, 1], 32.0));
    assert_eq!(layout.described[0], "66 SMs of side 0");
    assert!(
        refused(Wall::Sides, "orin-nano", &[member(LS, None)]).contains("its L2 and memory are one part")
    );
}

#[test]
fn under_partywall_who_asks_for_sms_has_them_and_others_have_all() {
    let sms = |sms| Some(Share::Sms(SmCount(sms)));
    let layout = Layout::new(Wall::Partywall, gpu("h200"), &[member(LS, None), member(BE, sms(39))]).unwrap();
    assert_eq!(layout.described, ["132 SMs", "40 SMs, held for requests"]);
    assert_eq!(layout.only(1).places[0].cap, 40.0);
    assert!(layout.only(1).arbiter.is_none() && layout.only(1).turnstile.is_some(), "nobody to wait for");
    let percent = [member(LS, None), member(BE, Some(Share::Percent(50)))];
    assert_eq!(caps(Wall::Partywall, &percent), [132, 66]);
    let too_many = [member(LS, sms(100)), member(BE, sms(40))];
    assert_eq!(
        refused(Wall::Partywall, "h200", &too_many),
        "the shares of `partywall` add up to 140 SMs in its steps; NVIDIA H200 SXM 141 GB has 132 to give"
    );
}

#[test]
fn a_node_need_not_decide_about_launches_nor_hold_them() {
    let two = [member(LS, None), member(BE, None)];
    let layout = |node: Node| Layout::node(&node, gpu("h200"), &two).unwrap();
    let undecided = layout(Node { mps: false, launches: None, slice: None });
    assert!(
        (undecided.dispatch, undecided.mps) == (Dispatch::Sliced, false) && undecided.turnstile.is_none()
    );
    let free = NodeLaunches { hold: false, ..NodeLaunches::default() };
    let free = layout(Node { launches: Some(free), ..Node::default() });
    assert!(free.arbiter.is_none() && free.turnstile.is_some() && free.mps);
    let one_class = Layout::new(Wall::Partywall, gpu("h200"), &[member(LS, None); 2]).unwrap();
    assert!(one_class.arbiter.is_none());
}

#[test]
fn fault_domains_follow_the_wall() {
    for wall in Wall::ALL {
        let layout = Layout::new(wall, gpu("h200"), &[member(LS, None), member(BE, None)]).unwrap();
        let apart = layout.places[0].fault_domain != layout.places[1].fault_domain;
        assert_eq!(apart, wall.fault_contained(), "{wall}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn exclusive_parts_never_exceed_the_gpu(
        wall in (0..Wall::ALL.len()).prop_map(|index| Wall::ALL[index]),
        id in prop_oneof![Just("h200"), Just("a100-80gb"), Just("l4"), Just("orin-nano")],
        wanted in proptest::collection::vec((any::<bool>(), proptest::option::of(0u8..=100)), 1..9),
    ) {
        let members: Vec<Member> = wanted
            .iter()
            .map(|&(ls, share)| member(if ls { LS } else { BE }, share.map(Share::Percent)))
            .collect();
        if let Ok(layout) = Layout::new(wall, gpu(id), &members) {
            let whole = f64::from(gpu(id).sms.value);
            prop_assert_eq!(layout.places.len(), members.len());
            prop_assert_eq!(layout.described.len(), members.len());
            prop_assert!(layout.places.iter().all(|place| place.cap >= 1.0 && place.cap <= whole));
            prop_assert!(layout.memory.share > 0.0 && layout.memory.share <= 1.0);
            if [Wall::GreenContexts, Wall::MpsStatic, Wall::Mig, Wall::Sides].contains(&wall) {
                prop_assert!(layout.places.iter().map(|place| place.cap).sum::<f64>() <= whole);
            }
        }
    }
}
