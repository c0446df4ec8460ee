use partywall_core::catalogue::Catalogue;
use proptest::prelude::*;

use super::*;

const HEAD: &str =
    "mechanism,ls,ls_batch,ls_sm_percent,be,be_batch,be_sm_percent,p50_ms,p99_ms,be_rate_per_s\n";

fn simulated(row: &str) -> Compared {
    let pairs = read(&format!("{HEAD}{row}\n"), "pairs.csv").unwrap().pairs;
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
    simulate(&pairs[0], gpu, &Params::default(), Effort { requests: 30, ..Effort::default() }).unwrap()
}

#[test]
fn a_row_becomes_a_pair() {
    let text = format!("{HEAD}mps-percentage,resnet50,1,50,resnet152,32,50,1.4367,1.5688,2218.6\n");
    let pairs = parse_pairs(&text, "pairs.csv").unwrap();
    let tenant = |program: &str, load: Load| {
        Some(Tenant {
            program: program.to_owned(),
            made: None,
            share: Some(Share::Percent(50)),
            load,
            solo_ms: None,
            launched_ms: None,
        })
    };
    let paced = Load::Closed { pause: Nanos::from_micros(500), depth: 1, host: None };
    assert_eq!(
        pairs,
        [Pair {
            wall: Wall::MpsPercentage,
            node: None,
            one_process: false,
            ls: tenant("resnet50-b1", paced),
            be: tenant("resnet152-b32", Load::closed(2)),
            rank: Rank::Above,
            p50_ms: Some(1.4367),
            p99_ms: Some(1.5688),
            be_rate_per_s: Some(2218.6),
        }]
    );
}

#[test]
fn a_file_brings_the_solo_latency_of_its_own_programs() {
    let text = format!(
        "{HEAD}mps,vgg16,1,100,,,,0.56,0.57,\nmps,vgg16,1,100,vgg16,32,100,2.0,2.1,\ntime-slicing,vgg16,1,100,,,,0.55,0.56,\n"
    );
    let pairs = parse_pairs(&text, "pairs.csv").unwrap();
    let solo = |tenant: &Option<Tenant>| tenant.as_ref().and_then(|tenant| tenant.solo_ms);
    assert!(pairs.iter().all(|pair| solo(&pair.ls) == Some(0.55)), "{pairs:?}");
    assert_eq!(solo(&pairs[1].be), None, "what the file does not have alone");
    let other = simulated("time-slicing,vgg16,1,100,,,,0.55,0.56,");
    assert!(other.error_p50().unwrap() < 0.01, "{other:?}");
}

#[test]
fn of_two_times_that_alternate_each_kind_of_recording_has_its_median() {
    let row = "time-slicing,resnet50,1,100,gemm,,100,1.7,3.1,";
    let mut pair = read(&format!("{HEAD}{row}\n"), "pairs.csv").unwrap().pairs.remove(0);
    // Two requests to a batch of products, one of which waits for a slice.
    pair.ls.as_mut().unwrap().load = Load::Closed { pause: Nanos::from_micros(200), depth: 1, host: None };
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
    let p50_ms = |rank| {
        let pair = Pair { rank, ..pair.clone() };
        simulate(&pair, gpu, &Params::default(), Effort { requests: 60, ..Effort::default() }).unwrap().p50_ms
    };
    let (nearest, above) = (p50_ms(Rank::Nearest), p50_ms(Rank::Above));
    assert!(nearest < 2.0 && above > 2.5, "{nearest} {above}");
}

#[test]
fn a_network_alone_takes_what_was_recorded() {
    let alone = simulated("time-slicing,vgg16,1,100,,,,0.5231,0.53,");
    assert!(alone.error_p50().unwrap() < 0.01, "{alone:?}");
    assert_eq!(alone.be_rate_per_s, None);
}

#[test]
fn pairs_behind_walls_without_recordings_are_simulated_too() {
    let row = simulated("green-contexts,resnet50,1,48,gemm,,48,1.2,1.3,");
    assert!(row.p50_ms > 1.0 && row.p50_ms < 3.0, "{row:?}");
}

#[test]
fn errors_are_summarised_per_wall_and_alone_apart() {
    let tenant = || {
        Some(Tenant {
            program: "stream".to_owned(),
            made: None,
            share: None,
            load: Load::closed(1),
            solo_ms: None,
            launched_ms: None,
        })
    };
    let compared = |wall: Wall, ls: bool, be: bool, simulated: f64| Compared {
        pair: Pair {
            wall,
            node: None,
            one_process: false,
            ls: ls.then(tenant).flatten(),
            be: be.then(tenant).flatten(),
            rank: Rank::Nearest,
            p50_ms: ls.then_some(1.0),
            p99_ms: None,
            be_rate_per_s: (be && !ls).then_some(10.0),
        },
        p50_ms: simulated,
        p99_ms: 2.0,
        be_rate_per_s: be.then_some(8.0),
    };
    let rows = [
        compared(Wall::Mps, true, true, 1.5),
        compared(Wall::TimeSlicing, true, true, 0.9),
        compared(Wall::TimeSlicing, true, true, 1.3),
        compared(Wall::TimeSlicing, true, false, 1.01),
        compared(Wall::TimeSlicing, false, true, 7.0),
        compared(Wall::Sides, true, false, 1.01),
    ];
    let walls = summarise(&rows);
    assert_eq!(walls.iter().map(|wall| wall.wall).collect::<Vec<_>>(), [Wall::TimeSlicing, Wall::Mps]);
    assert_eq!((walls[0].n, walls[0].alone_n, walls[0].be_alone_n), (2, 1, 1));
    assert!((walls[0].median_error_p50 - 0.2).abs() < 1e-9);
    assert!((walls[0].p90_error_p50 - 0.3).abs() < 1e-9);
    assert!((walls[0].alone_median_error_p50.unwrap() - 0.01).abs() < 1e-9);
    assert!((walls[0].be_alone_median_error_rate.unwrap() - 0.2).abs() < 1e-9);
    assert_eq!((walls[0].median_error_p99, walls[1].median_error_be_rate), (None, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_panics(text in ".*", rows in prop::collection::vec("[a-z0-9.,\"\n-]{0,60}", 0..6)) {
        let _ = parse_pairs(&text, "f");
        if let Err(error) = parse_pairs(&format!("{HEAD}{}", rows.join("\n")), "f") {
            prop_assert!(error.to_string().starts_with("f:"));
        }
    }

    #[test]
    fn a_damaged_row_is_refused_or_read_with_sound_numbers(at in 0usize..60, byte in 32u8..127) {
        let mut row = b"mps,resnet50,1,100,stream,,100,46.1356,48.1588,4224.6".to_vec();
        let at = at % row.len();
        row[at] = byte;
        let text = format!("{HEAD}{}", String::from_utf8(row).unwrap());
        if let Ok(pairs) = parse_pairs(&text, "f") {
            prop_assert!(pairs.iter().all(|pair| pair.p50_ms.is_some_and(|p50_ms| p50_ms > 0.0)));
        }
    }
}
