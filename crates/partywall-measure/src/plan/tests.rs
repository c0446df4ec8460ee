use proptest::prelude::{Just, ProptestConfig, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::*;

fn example() -> Plan {
    Plan::parse(EXAMPLE, "plan.toml", "plan").unwrap_or_else(|error| panic!("{error}"))
}

fn wrong(text: &str) -> String {
    Plan::parse(text, "plan.toml", "plan").unwrap_err().to_string()
}

const TENANTS: &str = "[[tenant]]\nname = \"a\"\nclass = \"latency-sensitive\"\nbuilt_in = \"matmul\"\n\
    [[tenant]]\nname = \"b\"\nclass = \"best-effort\"\nbuilt_in = \"compute\"\n";

#[test]
fn the_example_is_what_its_comments_say() {
    let plan = example();
    assert_eq!((plan.rounds, plan.warmup, plan.time_max), (2, Nanos::from_millis(300), Nanos::from_secs(4)));
    assert_eq!(plan.tenants[0].load, Load::Closed { pause_ns: 200_000, depth: 1 });
    assert_eq!(plan.tenants[1].load, Load::Closed { pause_ns: 0, depth: 4 });
    let places: Vec<String> = plan.pairs.iter().map(|pair| pair.place.to_string()).collect();
    let expected = [
        "time-slicing",
        "mps",
        "mps-percentage 50/50",
        "green-contexts 66/66",
        "green-contexts 66/66 in one process",
        "partywall mps be=66sms chunks=2",
    ];
    assert_eq!(places, expected);
}

#[test]
fn cells_are_measured_once_however_many_pairs_need_them() {
    let plan = example();
    let cells = plan.cells();
    let kinds = |kind| cells.iter().filter(|cell| cell.kind == kind).count();
    // Both tenants solo; alone behind all walls but time-slicing; six pairs.
    assert_eq!([kinds(CellKind::Solo), kinds(CellKind::Alone), kinds(CellKind::Corun)], [2, 5, 6]);
    let without = Plan { alone: false, ..plan };
    assert_eq!(without.cells().iter().filter(|cell| cell.kind == CellKind::Alone).count(), 0);
    assert!(cells.iter().all(|cell| cell.priority));
    let built_in = built_in(Size::Quick, 132, 2);
    let pairs = built_in.pairs.len();
    assert_eq!(built_in.cells().iter().filter(|cell| cell.pair.is_some()).count(), pairs);
}

#[test]
fn settings_of_a_node_are_words_and_come_back_as_written() {
    for (text, shown) in [
        ("mps", "mps"),
        ("time-slicing decided", "time-slicing decided"),
        (
            "mps  be=66sms   chunks=2,launches=16 release=50us",
            "mps be=66sms chunks=2,launches=16,release=50us",
        ),
        ("mps straight level ls=32sms be=100sms", "mps ls=32sms be=100sms level straight"),
    ] {
        let place = Place::parse(Wall::Partywall, text, None).unwrap();
        assert_eq!(place.to_string(), format!("partywall {shown}"));
        assert_eq!(Place::parse(Wall::Partywall, shown, None), Ok(place));
    }
    for (text, wrong) in [
        ("", "does not say what is below the node"),
        ("be=66sms", "does not say what is below"),
        ("mps be=66", "`be=66` is no number of SMs"),
        ("mps be=0sms", "is no number of SMs"),
        ("mps be=+6sms", "is no number of SMs"),
        ("mps chunks=99", "chunks are 1 to 16"),
        ("mps slice=200us", "clients of an MPS daemon share one turn"),
        ("time-slicing slice=20us", "a time slice is 50 us to 1000 ms"),
        ("mps sometimes", "`sometimes` says nothing about launches"),
    ] {
        let found = Place::parse(Wall::Partywall, text, None).unwrap_err();
        assert!(found.contains(wrong), "{found}");
    }
    let shim = Place::parse(Wall::GreenContexts, "66/60 shim", None).unwrap();
    assert_eq!((shim.to_string(), shim.has_mps()), ("green-contexts 66/60 shim".to_owned(), true));
    let node = shim.node().unwrap();
    assert_eq!((node.ls_sms, node.be_sms, node.copies, node.launches), (Some(66), Some(60), false, None));
    let one = Place::parse(Wall::GreenContexts, "66/66 shim", Some(Processes::One)).unwrap_err();
    assert!(one.contains("needs processes = \"separate\""), "{one}");
}

#[test]
fn memory_of_a_side_is_private_or_plain() {
    for (text, memory, in_turn) in
        [("private", SideMemory::Private, true), ("plain", SideMemory::Plain, false)]
    {
        let place = Place::parse(Wall::Sides, text, None).unwrap();
        assert_eq!(place.to_string(), format!("sides {text}"));
        assert_eq!((place.side_memory(), place.starts_in_turn()), (Some(memory), in_turn));
        assert!(place.has_mps() && place.has_alone() && place.shares_faults() && place.node().is_none());
        assert_eq!(Place::parse(Wall::Sides, &place.setting.to_string(), Some(place.processes)), Ok(place));
        let one = Place::parse(Wall::Sides, text, Some(Processes::One)).unwrap_err();
        assert!(one.contains("`sides` needs processes = \"separate\""), "{one}");
    }
    for text in ["", "paired", "66/66", "Private"] {
        assert!(Place::parse(Wall::Sides, text, None).unwrap_err().contains("nothing about the memory"));
    }
    let third = "[[tenant]]\nname = \"c\"\nclass = \"best-effort\"\nbuilt_in = \"l2\"\n";
    let together = |more: &str| {
        format!(
            "{TENANTS}{third}[[pair]]\nwalls = [{{ wall = \"sides\", setting = \"plain\" }}]\ntogether = true\n{more}"
        )
    };
    assert!(wrong(&together("")).contains("a side has one tenant at work at a time"));
    let two = Plan::parse(&together("be = [\"c\"]\n"), "plan.toml", "plan").unwrap();
    assert_eq!((two.pairs.len(), two.pairs[0].beside.len()), (1, 0));
}

#[test]
fn a_duty_is_for_latency_sensitive_tenants() {
    let tenants =
        |load: &str| TENANTS.replacen("built_in", &format!("load = {load}\nbuilt_in"), 1) + "[[pair]]\n";
    let walls = "walls = [{ wall = \"mps\" }]\n";
    let plan = Plan::parse(&(walls.to_owned() + &tenants("{ duty = 0.3 }")), "plan.toml", "plan").unwrap();
    assert_eq!((plan.tenants[0].duty, plan.tenants[1].duty), (Some(0.3), None));
    assert!(
        wrong(&tenants("{ duty = 0.0 }")).contains("a duty of 0 is out of range; use above 0 and up to 2")
    );
    let of_be = TENANTS.to_owned() + "load = { duty = 0.3 }\n[[pair]]\n";
    assert!(wrong(&of_be).contains("a duty is for latency-sensitive tenants"));
}

#[test]
fn a_promise_is_to_latency_sensitive_tenants() {
    let walls = "walls = [{ wall = \"mps\" }]\n";
    let tenants =
        |slo: &str| TENANTS.replacen("built_in", &format!("slo = {slo}\nbuilt_in"), 1) + "[[pair]]\n";
    let plan =
        Plan::parse(&(walls.to_owned() + &tenants("{ slowdown = 1.2 }")), "plan.toml", "plan").unwrap();
    assert_eq!(plan.tenants[0].slo.slowdown, Some(1.2));
    assert!(!plan.tenants[1].slo.is_some());
    assert!(wrong(&tenants("{ slowdown = 0.5 }")).contains("a slowdown of 0.5 cannot be promised"));
    assert!(wrong(&tenants("1.2")).contains("slo = { slowdown = 1.2 }"));
    let of_be = TENANTS.to_owned() + "slo = { p99 = \"5ms\" }\n[[pair]]\n";
    assert!(wrong(&of_be).contains("a promise is for latency-sensitive tenants"));
}

#[test]
fn tenants_can_run_all_at_once() {
    let third = "[[tenant]]\nname = \"c\"\nclass = \"best-effort\"\nbuilt_in = \"l2\"\n";
    let text =
        |walls: &str| format!("walls = [{{ wall = {walls} }}]\n{TENANTS}{third}[[pair]]\ntogether = true\n");
    let plan = Plan::parse(&text("\"mps\""), "plan.toml", "plan").unwrap();
    let [pair] = &plan.pairs[..] else { panic!("{:?}", plan.pairs) };
    assert_eq!(pair.tenants().collect::<Vec<_>>(), [0, 1, 2]);
    // All solo, the latency-sensitive one alone, all together.
    let cells = plan.cells();
    let kinds = |kind| cells.iter().filter(|cell| cell.kind == kind).count();
    assert_eq!([kinds(CellKind::Solo), kinds(CellKind::Alone), kinds(CellKind::Corun)], [3, 1, 1]);
    let one = wrong(&text("\"stream-priority\""));
    assert!(one.contains("more than two tenants cannot share a process"), "{one}");
}

#[test]
fn a_plan_goes_on_where_a_record_ended() {
    use crate::record::tests::sample;
    use crate::record::{CellError, ErrorKind};
    let mut plan = example();
    let mut record = sample();
    let row = |place: &Place| crate::record::Row {
        wall: place.wall,
        setting: place.setting.to_string(),
        processes: place.processes,
        ls: "camera".to_owned(),
        be: "stream".to_owned(),
        error: None,
        ..sample().rows[0].clone()
    };
    record.rows = plan.pairs.iter().take(3).map(|pair| row(&pair.place)).collect();
    // Not measured for want of time, and measured with a fault: only the first is missing.
    record.rows[1].error = Some(CellError::new(ErrorKind::Skipped, "the time limit came first"));
    record.rows[2].error = Some(CellError::new(ErrorKind::Died, "it died"));
    plan.go_on(&record).unwrap();
    let left: Vec<String> = plan.pairs.iter().map(|pair| pair.place.to_string()).collect();
    assert_eq!(left[..2], ["mps", "green-contexts 66/66"]);
    record.rows = plan.pairs.iter().map(|pair| row(&pair.place)).collect();
    assert_eq!(plan.go_on(&record).unwrap_err(), "quick has all that the plan measures");
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let cases = [
        ("", "plan.toml:1:1: there is no tenant"),
        ("round = 2", "unknown key `round`"),
        ("rounds = 0\n", "plan.toml:1:10: `rounds` is out of range"),
        ("[[tenant]]\nname = \"a\"\nclass = \"best-effort\"\n", "either a command or a built-in"),
        (
            "[[tenant]]\nname = \"a\"\nclass = \"best-effort\"\ncommand = []\n",
            "plan.toml:4:11: the command is empty",
        ),
        (
            "[[tenant]]\nname = \"a b\"\nclass = \"best-effort\"\nbuilt_in = \"l2\"\n",
            "plan.toml:2:8: `a b` cannot name a tenant",
        ),
    ];
    for (text, part) in cases {
        assert!(wrong(text).contains(part), "{text}: {}", wrong(text));
    }
    let with = |text: &str| wrong(&format!("{TENANTS}{text}"));
    let walls = |walls: &str| with(&format!("[[pair]]\nwalls = [{walls}]\n"));
    assert!(with("").contains("there is no pair"));
    assert!(with("[[pair]]\n").contains("there is no wall for this pair"));
    assert!(with("[[pair]]\nls = [\"b\"]\n").contains("no latency-sensitive tenant is named `b`"));
    assert!(
        walls("{ wall = \"mps\", setting = \"1/2\" }").contains("plan.toml:10:10: `mps` has nothing to set")
    );
    assert!(walls("{ wall = \"mps-percentage\", setting = \"0/50\" }").contains("write setting = \"50/50\""));
    assert!(walls("{ wall = \"green-contexts\" }").contains("write setting = \"64/68\""));
    assert!(
        walls("{ wall = \"sides\" }")
            .contains("write setting = \"private\" for memory of that side alone, or \"plain\"")
    );
    assert!(walls("{ wall = \"mps-static\" }").contains("cannot be measured by this version"));
    assert!(
        walls("{ wall = \"mps\", processes = \"one\" }").contains("`mps` needs processes = \"separate\"")
    );
    assert!(walls("{ wall = \"mig\", setting = \"a/b\" }").contains("MIG-uuid/MIG-uuid"));
    let load = TENANTS.replacen("built_in", "load = { closed = { depth = 0 } }\nbuilt_in", 1);
    assert!(wrong(&load).contains("plan.toml:4:8: a depth of 0"), "{}", wrong(&load));
    let unknown = TENANTS.replacen("built_in = \"", "built_in = \"no-", 1);
    assert!(wrong(&unknown).contains("there is no tenant `no-"), "{}", wrong(&unknown));
    assert!(with("[[pair]]\nseconds_max = -1\n").contains("`seconds_max` is out of range"));
    let twice = TENANTS.replace("\"b\"", "\"a\"");
    assert!(wrong(&twice).contains("plan.toml:6:8: a second tenant is named `a`"), "{}", wrong(&twice));
}

#[test]
fn a_plan_can_be_restricted_to_what_it_has() {
    let full = || built_in(Size::Full, 132, 2);
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let mut plan = full();
    plan.restrict(&names(&["matmul"]), &names(&["compute", "l2"]), &[Wall::Mps]).unwrap();
    assert_eq!(plan.pairs.len(), 2);
    assert_eq!(plan.cells().len(), 3 + 1 + 2);
    let error = full().restrict(&names(&["compute"]), &[], &[]).unwrap_err();
    assert!(error.starts_with("the plan has no victim `compute`; it has read-latency, "), "{error}");
    let error = full().restrict(&[], &[], &[Wall::Mig]).unwrap_err();
    assert!(error.starts_with("the plan does not have the wall `mig`; it has stream-priority, "), "{error}");
    assert!(error.contains("--plan FILE"), "{error}");
    let mut small = full();
    small.pairs.retain(|pair| pair.place.wall == Wall::Mps);
    let error = small.restrict(&[], &[], &[Wall::TimeSlicing]).unwrap_err();
    assert_eq!(error, "the plan does not have the wall `time-slicing`; it has mps");
}

#[test]
fn what_is_offered_can_be_planned() {
    let offer = "choose one of time-slicing, mps, mps-percentage, green-contexts, stream-priority, mig, sides, partywall";
    assert_eq!(measurable("foo").unwrap_err(), format!("`foo` is no wall; {offer}"));
    for wall in Wall::ALL {
        // The setting of the ones that need one is what is wrong here, not the wall.
        let planned = Place::parse(wall, "", None).err().is_none_or(|error| !error.contains("this version"));
        match measurable(wall.id()) {
            Ok(found) => assert!(found == wall && planned, "{wall}"),
            Err(error) => {
                assert!(
                    !planned && error == format!("`{wall}` cannot be measured by this version; {offer}"),
                    "{error}"
                );
            }
        }
    }
}

/// The arithmetic behind "under three minutes", on an H200.
#[test]
fn the_quick_plan_takes_less_than_three_minutes() {
    let plan = built_in(Size::Quick, 132, 2);
    let cells = plan.cells();
    // 3 victims and 3 antagonists solo, 3 victims alone behind 5 walls, 9 pairs behind 6 walls.
    assert_eq!(cells.len(), 6 + 15 + 54);
    // Each at most two warm-ups of 0.1 s and a window of 0.8 s: 75 s for all. The tenants are started for each of 4
    // walls and solo, and for each of 9 pairs behind 2 walls in one process: 22 or 23 times at most 1.5 s.
    let bound = plan.time_bound(Nanos::from_millis(1_500));
    assert_eq!(bound, Nanos::from_secs(75) + Nanos::from_millis(23 * 1_500));
    // Where a victim waits for 100 ms (MPS and stream priorities beside compute), a window is stretched until there
    // are enough requests for a median, at most fourfold: 6 such pairs.
    let stretched = Nanos(6 * 3 * plan.time_max.0);
    assert!(bound + stretched < Nanos::from_secs(180), "{}", bound + stretched);
    // And it has something to say: p99 of victims that are not held up.
    let samples = partywall_core::measure::Percentile::P99.samples_needed(plan.evidence());
    assert!(plan.requests_wanted >= samples);
}

#[test]
fn the_full_plan_has_every_built_in_and_records_percentiles() {
    let plan = built_in(Size::Full, 132, 2);
    assert_eq!((plan.tenants.len(), plan.pairs.len()), (17, 7 * 10 * 7));
    let samples = partywall_core::measure::Percentile::P99.samples_needed(plan.evidence());
    assert!(plan.requests_wanted >= samples);
}

#[test]
fn halves_fit_the_gpu() {
    for (sms, step, halves) in
        [(132, 2, "66/66"), (132, 8, "64/64"), (114, 2, "56/58"), (8, 2, "4/4"), (1, 2, "2/2")]
    {
        let plan = built_in(Size::Quick, sms, step);
        let place = plan.pairs.iter().map(|pair| &pair.place).find(|place| place.wall == Wall::GreenContexts);
        assert_eq!(place.unwrap().setting.to_string(), halves);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_damage_to_a_plan_panics(at in any::<proptest::sample::Index>(), text in "\\PC{0,4}") {
        let mut plan = EXAMPLE.to_owned();
        let starts: Vec<usize> = plan.char_indices().map(|(start, _)| start).collect();
        plan.insert_str(starts[at.index(starts.len())], &text);
        if let Err(error) = Plan::parse(&plan, "f", "f") {
            prop_assert!(error.to_string().starts_with("f:"));
        }
    }

    #[test]
    fn settings_read_back(wall in prop_oneof![Just(Wall::MpsPercentage), Just(Wall::GreenContexts)], text in "[0-9/]{0,8}") {
        if let Ok(place) = Place::parse(wall, &text, None) {
            let again = Place::parse(wall, &place.setting.to_string(), Some(place.processes));
            prop_assert_eq!(again, Ok(place));
        }
    }
}
