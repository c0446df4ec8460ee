use proptest::prelude::*;

use super::*;

#[test]
fn every_recorded_network_reads_and_is_written_back_the_same() {
    assert_eq!(recorded_names().count(), 36);
    for name in recorded_names() {
        let profile = recorded(name).unwrap();
        assert_eq!(profile.name(), name);
        assert_eq!(Profile::parse(&profile.to_text(), name).unwrap(), profile);
    }
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let good = recorded("resnet50-b1").unwrap();
    let message = |change: fn(&mut Profile)| {
        let mut profile = good.clone();
        change(&mut profile);
        Profile::parse(&profile.to_text(), "x.json").unwrap_err().to_string()
    };
    for (message, expected) in [
        (message(|p| p.kernels.clear()), "x.json: has 0 kernels; 1 to 10000 are expected"),
        (message(|p| p.kernels[3].1 = 0), "x.json: kernel 3 takes 0 ns; 1 to 1000000000 are expected"),
        (message(|p| p.kernels[0].0 = 4000), "x.json: kernel 0 names shape 4000"),
        (message(|p| p.graph_p50_ms = -1.0), "graph_p50_ms is -1; a positive latency in ms is expected"),
        (message(|p| p.shapes[0].threads = 2048), "shape 0 has 2048 threads; at most 1024 exist"),
        (Profile::parse("{\n\"model\": 3}", "y.json").unwrap_err().to_string(), "y.json:2:10: invalid type"),
        (recorded("resnet51-b1").unwrap_err().to_string(), "no such recorded network; there are bert_base,"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A damaged file is refused or read, and never a panic.
    #[test]
    fn no_damage_panics(at in 0usize..6000, byte in any::<u8>(), cut in any::<bool>()) {
        let mut text = recorded("vgg16-b1").unwrap().to_text().into_bytes();
        let at = at % text.len();
        if cut { text.truncate(at) } else { text[at] = byte }
        let _ = Profile::parse(&String::from_utf8_lossy(&text), "damaged.json");
    }
}
