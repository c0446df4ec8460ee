use proptest::prelude::*;

use super::*;

#[test]
fn every_recorded_network_reads_and_is_written_back_the_same() {
    assert!(recorded_names().count() >= 36);
    for name in recorded_names() {
        let profile = recorded(name).unwrap();
        assert_eq!(profile.name(), name);
        assert_eq!(Profile::parse(&profile.to_text(), name).unwrap(), profile);
        assert!(profile.sources.latency.starts_with("measured"), "{name}");
        assert!(profile.sources.kernels.starts_with("measured"), "{name}");
        let bytes = !(profile.vram_bytes.is_empty() && profile.l2_bytes.is_empty());
        assert_eq!(profile.sources.bytes.is_some(), bytes, "{name}");
        assert_eq!(profile.sources.scaling.is_some(), !profile.scaling.is_empty(), "{name}");
    }
}

/// Counters are matched with kernels by name; what is not found is left to the rule, and that should be copies and fills
/// alone, which have none.
#[test]
fn counted_networks_are_counted_whole() {
    let counted = recorded_names().map(|name| recorded(name).unwrap());
    let counted: Vec<Profile> = counted.filter(|profile| profile.sources.bytes.is_some()).collect();
    assert!(counted.len() >= 20, "{}", counted.len());
    for profile in counted {
        for (index, &(shape, _)) in profile.kernels.iter().enumerate() {
            let launched = profile.shapes[shape as usize].kind != KernelKind::Copy;
            let (vram, l2) = (profile.vram_bytes[index], profile.l2_bytes[index]);
            assert_eq!(
                (vram.is_some(), l2.is_some()),
                (launched, launched),
                "{} kernel {index}",
                profile.name()
            );
            assert!(vram <= l2, "{} kernel {index}: what goes to VRAM goes through L2", profile.name());
        }
    }
}

/// A small made-up recording with everything that can be recorded.
fn complete() -> Profile {
    let shape = |kind, blocks| Shape { kind, blocks, threads: 256, regs: 32, smem: 0 };
    Profile {
        model: "made-up".to_owned(),
        batch: 4,
        precision: "bf16".to_owned(),
        gpu: "h200".to_owned(),
        sources: Sources {
            latency: "a".to_owned(),
            kernels: "b".to_owned(),
            bytes: Some("c \"quoted\"".to_owned()),
            scaling: Some("d".to_owned()),
        },
        graph_p50_ms: 0.05,
        graph_p50_again_ms: None,
        graph_p99_ms: Some(0.06),
        eager_p50_ms: None,
        pass: Pass::Graph,
        scaling: vec![OnSms { sms: 132, p50_ms: 0.05 }, OnSms { sms: 16, p50_ms: 0.3 }],
        shapes: vec![shape(KernelKind::Math, 100), shape(KernelKind::Memory, 300)],
        kernels: (0..9).map(|index| (index % 2, 4_000 + index)).collect(),
        vram_bytes: (0..9).map(|index| (index != 3).then_some(1_000_000 * index)).collect(),
        l2_bytes: Vec::new(),
    }
}

#[test]
fn everything_recorded_is_written_and_read_back() {
    let profile = complete();
    assert_eq!(Profile::parse(&profile.to_text(), "f").unwrap(), profile);
    let both = Profile { l2_bytes: profile.vram_bytes.clone(), ..profile };
    assert_eq!(Profile::parse(&both.to_text(), "f").unwrap(), both);
}

#[test]
fn models_are_listed_with_their_batches() {
    let models = recorded_models();
    assert!(models.contains(&("resnet50", vec![1, 8, 32])), "{models:?}");
    assert_eq!(models.iter().map(|(_, batches)| batches.len()).sum::<usize>(), recorded_names().count());
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
        (message(|p| p.graph_p99_ms = Some(0.0)), "graph_p99_ms is 0; a positive latency in ms is expected"),
        (message(|p| p.vram_bytes = vec![None]), "vram_bytes has 1 entries for"),
        (
            message(|p| p.l2_bytes = vec![Some(u64::MAX); p.kernels.len()]),
            "l2_bytes of kernel 0 is out of range",
        ),
        (
            message(|p| p.scaling = vec![OnSms { sms: 0, p50_ms: 1.0 }]),
            "scaling has a point at 0 SMs; 1 to 1024 are expected",
        ),
        (
            message(|p| p.scaling = vec![OnSms { sms: 8, p50_ms: -1.0 }]),
            "p50_ms in scaling is -1; a positive latency in ms is expected",
        ),
        (
            message(|p| p.scaling = vec![OnSms { sms: 8, p50_ms: 1.0 }; 65]),
            "scaling has 65 points; at most 64",
        ),
        (Profile::parse("{\n\"model\": 3}", "y.json").unwrap_err().to_string(), "y.json:2:10: invalid type"),
        (
            recorded("resnet51-b1").unwrap_err().to_string(),
            "no such recorded network; there are bert_base (-b1, -b8, -b32), ",
        ),
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A damaged file is refused or read, and never a panic.
    #[test]
    fn no_damage_panics(at in 0usize..2000, byte in any::<u8>(), cut in any::<bool>()) {
        let mut text = complete().to_text().into_bytes();
        let at = at % text.len();
        if cut { text.truncate(at) } else { text[at] = byte }
        let _ = Profile::parse(&String::from_utf8_lossy(&text), "damaged.json");
    }
}
