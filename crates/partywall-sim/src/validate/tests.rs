use partywall_core::catalogue::Catalogue;
use proptest::prelude::*;

use super::*;

const HEAD: &str =
    "mechanism,ls,ls_batch,ls_sm_percent,be,be_batch,be_sm_percent,p50_ms,p99_ms,be_rate_per_s\n";

fn simulated(row: &str) -> Compared {
    let pairs = parse_pairs(&format!("{HEAD}{row}\n"), "pairs.csv").unwrap();
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
    simulate(&pairs[0], gpu, &Params::default(), Effort { requests: 30, ..Effort::default() }).unwrap()
}

#[test]
fn a_row_becomes_a_pair() {
    let text = format!("{HEAD}mps-percentage,resnet50,1,50,resnet152,32,50,1.4367,1.5688,2218.6\n");
    let pairs = parse_pairs(&text, "pairs.csv").unwrap();
    assert_eq!(
        pairs,
        [Pair {
            wall: Wall::MpsPercentage,
            ls: ("resnet50".to_owned(), 1),
            ls_percent: 50,
            be: Some(("resnet152".to_owned(), 32, 50)),
            p50_ms: 1.4367,
            p99_ms: 1.5688,
            be_rate_per_s: Some(2218.6),
        }]
    );
}

#[test]
fn a_network_alone_takes_what_was_recorded() {
    let alone = simulated("time-slicing,vgg16,1,100,,,,0.5231,0.53,");
    assert!(alone.error_p50() < 0.01, "{alone:?}");
    assert_eq!(alone.be_rate_per_s, None);
}

#[test]
fn pairs_behind_walls_without_recordings_are_simulated_too() {
    let row = simulated("green-contexts,resnet50,1,48,gemm,,48,1.2,1.3,");
    assert!(row.p50_ms > 1.0 && row.p50_ms < 3.0, "{row:?}");
}

#[test]
fn errors_are_summarised_per_wall_and_alone_apart() {
    let compared = |wall: Wall, be: bool, p50: f64| Compared {
        pair: Pair {
            wall,
            ls: ("a".to_owned(), 1),
            ls_percent: 100,
            be: be.then(|| ("b".to_owned(), 1, 100)),
            p50_ms: 1.0,
            p99_ms: 2.0,
            be_rate_per_s: None,
        },
        p50_ms: p50,
        p99_ms: 2.0,
        be_rate_per_s: be.then_some(1.0),
    };
    let rows = [
        compared(Wall::Mps, true, 1.5),
        compared(Wall::TimeSlicing, true, 0.9),
        compared(Wall::TimeSlicing, true, 1.3),
        compared(Wall::TimeSlicing, false, 1.01),
    ];
    let walls = summarise(&rows);
    assert_eq!(walls.iter().map(|wall| wall.wall).collect::<Vec<_>>(), [Wall::TimeSlicing, Wall::Mps]);
    assert_eq!((walls[0].n, walls[0].alone_n), (2, 1));
    assert!((walls[0].median_error_p50 - 0.2).abs() < 1e-9);
    assert!((walls[0].p90_error_p50 - 0.3).abs() < 1e-9);
    assert!((walls[0].alone_median_error_p50.unwrap() - 0.01).abs() < 1e-9);
    assert_eq!(walls[1].median_error_be_rate, None);
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
            prop_assert!(pairs.iter().all(|pair| pair.p50_ms > 0.0 && (1..=100).contains(&pair.ls_percent)));
        }
    }
}
