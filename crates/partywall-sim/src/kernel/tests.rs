use partywall_core::catalogue::Catalogue;

use super::*;
use crate::profile;

fn chip(id: &str) -> Chip {
    Chip::of(Catalogue::builtin().unwrap().get(id).unwrap())
}

fn program(name: &str, id: &str) -> Program {
    Program::of(&profile::recorded(name).unwrap(), &chip("h200"), &chip(id), &Params::default())
}

#[test]
fn every_recorded_network_takes_its_recorded_time_alone() {
    for name in profile::recorded_names() {
        let recorded = profile::recorded(name).unwrap().solo_ms();
        let estimated = program(name, "h200").solo_ns() / 1e6;
        assert!((estimated / recorded - 1.0).abs() < 0.02, "{name}: {estimated} ms of {recorded}");
    }
}

#[test]
fn what_was_recorded_replaces_what_was_estimated() {
    let (gpu, params) = (chip("h200"), Params::default());
    let eager = profile::recorded("bert_base-b8").unwrap();
    let launched = |profile: &Profile| Program::of(profile, &gpu, &gpu, &params);
    assert!(
        launched(&eager).kernels.len() > eager.kernels.len(),
        "the graph has kernels that were not traced"
    );

    let graph = Profile { pass: profile::Pass::Graph, ..eager };
    assert_eq!(launched(&graph).kernels.len(), graph.kernels.len(), "a traced graph is taken as it is");

    let mut bytes = vec![None; graph.kernels.len()];
    (bytes[0], bytes[1]) = (Some(0), Some(u64::from(u32::MAX) * 1000));
    let counted = launched(&Profile { vram_bytes: bytes, ..graph.clone() });
    let estimated = launched(&graph);
    assert_eq!((counted.kernels[0].traffic, counted.kernels[0].sensitivity), (0.0, 1.0));
    assert_eq!((counted.kernels[1].traffic, counted.kernels[1].sensitivity), (gpu.bandwidth, 0.0));
    assert_eq!(counted.kernels[2..], estimated.kernels[2..], "kernels without a count keep the estimate");
    assert!((counted.solo_ns() - estimated.solo_ns()).abs() < 1.0);
}

#[test]
fn bytes_that_stay_in_l2_load_the_memory_system_in_part() {
    let (gpu, params) = (chip("h200"), Params::default());
    let kernel = program("resnet50-b1", "h200").kernels[0];
    let moving = |vram: f64, l2: f64| {
        let bytes = |part: f64| (part * gpu.bandwidth * kernel.work_ns) as u64;
        let moved = kernel.that_moves(bytes(vram), Some(bytes(l2)), &gpu, &params);
        (moved.traffic / gpu.bandwidth, moved.sensitivity)
    };
    for ((vram, l2), (traffic, sensitivity)) in [
        ((0.0, 0.0), (0.0, 1.0)),
        ((0.5, 0.5), (0.5, 0.5)),
        ((0.0, 0.5), (0.5 * params.l2_weight, 0.5)),
        ((0.2, 0.7), (0.2 + 0.5 * params.l2_weight, 0.3)),
        // Less than what went to VRAM: some of it was no access of an SM.
        ((0.5, 0.1), (0.5, 0.5)),
        ((0.0, 9.0), (1.0, 0.0)),
    ] {
        let found = moving(vram, l2);
        assert!(
            (found.0 - traffic).abs() < 1e-3 && (found.1 - sensitivity).abs() < 1e-3,
            "{vram} {l2}: {found:?}"
        );
    }
}

#[test]
fn a_program_that_replays_otherwise_has_other_gaps_and_the_same_kernels() {
    let program = program("resnet50-b1", "h200");
    let launches = program.kernels.len() as f64;
    let params = Params::default();
    let slower = program.clone().paced(program.solo_ns() + 300.0 * launches, &params);
    for (paced, own) in slower.kernels.iter().zip(&program.kernels) {
        assert!((paced.gap_ns - own.gap_ns - 300.0).abs() < 1.0, "{paced:?} {own:?}");
        assert!((paced.work_ns / own.work_ns - 1.0).abs() < 1e-6);
    }
    // Gaps can neither be shorter than the GPU's nor longer than gaps are; the rest is in the kernels.
    for factor in [0.9, 2.0] {
        let paced = program.clone().paced(program.solo_ns() * factor, &params);
        assert!((paced.solo_ns() / program.solo_ns() - factor).abs() < 1e-6, "{factor}");
        let gaps = paced.kernels.iter().map(|kernel| kernel.gap_ns);
        assert!(gaps.into_iter().all(|gap| (params.gap_ns..=GAP_MAX_NS).contains(&gap)), "{factor}");
    }
}

#[test]
fn latencies_on_fewer_sms_set_the_widths() {
    let (gpu, params) = (chip("h200"), Params::default());
    let profile = profile::recorded("vgg16-b1").unwrap();
    let on = |program: &Program, sms: f64| -> f64 {
        program
            .kernels
            .iter()
            .map(|k| k.gap_ns + k.launch_ns + k.work_ns * stretch(k.width, sms, 132.0))
            .sum()
    };
    let by_rule = Program::of(&profile, &gpu, &gpu, &params);
    // As measured on an H200 for VGG-16 on 64 and 16 SMs: 0.53, 0.73, 2.05 ms.
    let curve = [(132, 0.53), (64, 0.73), (16, 2.05)];
    let scaling = curve.map(|(sms, p50_ms)| profile::OnSms { sms, p50_ms }).to_vec();
    let profile = Profile { scaling, ..profile };
    let fitted = Program::of(&profile, &gpu, &gpu, &params);
    for (sms, p50_ms) in curve {
        let off = |program: &Program| {
            (on(program, f64::from(sms)) / on(program, 132.0) / (p50_ms / 0.53) - 1.0).abs()
        };
        assert!(
            off(&fitted) <= off(&by_rule) + 0.02,
            "{sms} SMs: {} and {} by rule",
            off(&fitted),
            off(&by_rule)
        );
        assert!(off(&fitted) < 0.06, "{sms} SMs: {}", off(&fitted));
    }
    assert!(
        (fitted.solo_ns() / by_rule.solo_ns() - 1.0).abs() < 1e-9,
        "alone on the whole GPU nothing changes"
    );
    assert_ne!(Program::widths(&profile, &gpu, &params), Widths::RULE);
}

#[test]
fn a_smaller_gpu_is_slower() {
    for name in ["resnet50-b1", "bert_base-b8", "vgg16-b32"] {
        let times = ["h200", "h100-pcie", "l4", "orin-nano"].map(|id| program(name, id).solo_ns());
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]), "{name}: {times:?}");
    }
}

#[test]
fn merged_kernels_take_as_long_and_move_as_much() {
    let whole = program("densenet121-b8", "h200");
    for segments in [1, 4, 16, usize::MAX] {
        let merged = whole.coarsened(segments);
        assert!(merged.kernels.len() <= segments);
        assert!((merged.solo_ns() / whole.solo_ns() - 1.0).abs() < 1e-9);
        let moved = |program: &Program| program.kernels.iter().map(|k| k.traffic * k.work_ns).sum::<f64>();
        assert!((moved(&merged) / moved(&whole) - 1.0).abs() < 1e-9);
    }
    assert_eq!(whole.coarsened(usize::MAX), whole);
}

#[test]
fn room_follows_the_scarcest_resource_of_an_sm() {
    let shape = Shape { kind: KernelKind::Math, blocks: 132, threads: 256, regs: 32, smem: 0 };
    // 2 048 threads, 65 536 registers, 228 KiB.
    assert_eq!(room(&shape), 132.0 / 8.0);
    assert_eq!(room(&Shape { regs: 128, ..shape }), 132.0 / 2.0);
    assert_eq!(room(&Shape { smem: 200 << 10, ..shape }), 132.0);
    assert_eq!(room(&Shape { threads: 32, regs: 16, ..shape }), 132.0 / 32.0);
    assert_eq!(
        room(&Shape { threads: 1024, regs: 255, ..shape }),
        132.0,
        "what cannot fit still runs one by one"
    );
}

#[test]
fn a_stream_moves_what_it_was_seen_to_move() {
    let stream = Program::stream(&chip("h200"), &Params::default());
    let gb_s = stream.items / (stream.solo_ns() / 1e9);
    assert!((gb_s / 4250.0 - 1.0).abs() < 0.01, "{gb_s} GB/s");
    let gemm = Program::gemm(&chip("h200"), &chip("h200"), &Params::default());
    // At the highest clock, which the power cap does not leave it for long: `machine::tests::effects`.
    assert!((1e9 / gemm.solo_ns() / 782.0 - 1.0).abs() < 0.01);
}
