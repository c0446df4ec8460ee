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
    assert!((1e9 / gemm.solo_ns() / 710.0 - 1.0).abs() < 0.01);
}
