use std::fs;

use super::*;
use crate::workspace::Scratch;

/// As the first recordings: a list, kernels of an eager pass.
const EAGER: &str = r#"[{"model": "net", "batch": 1, "precision": "fp16", "graph_p50_ms": 0.03, "graph_p99_ms": 0.04,
    "eager_p50_ms": 0.2, "kernels": [
    {"name": "cutlass_gemm", "us": 5.25, "grid": [4, 2, 1], "block": [128, 1, 1], "regs": 90, "smem": 1024},
    {"name": "elementwise", "us": 2.0, "grid": [9, 1, 1], "block": [256, 1, 1], "regs": 16, "smem": 0},
    {"name": "Memset (Device)", "us": 1.0, "grid": null, "block": null, "regs": null, "smem": null}]}]"#;

/// A later one: the graph's kernels with bytes, and nothing about latencies.
const GRAPH: &str = r#"{"about": {"gpu": "NVIDIA H200", "date": "2026-11-21"}, "networks": [{"model": "net", "batch": 1,
    "pass": "graph", "kernels": [
    {"name": "nvjet_hsh", "us": 6.0, "grid": [4, 1, 1], "block": [384, 1, 1], "regs": 168, "smem": 0, "vram_bytes": 77},
    {"name": "softmax", "us": 3.0, "grid": [4, 1, 1], "block": [128, 1, 1], "regs": 32, "smem": 0}],
    "scaling": [{"sms": 66, "p50_ms": 0.05, "requests": 400}, {"sms": 132, "p50_ms": 0.03}, {"sms": 8, "p50_ms": null}]}]}"#;

fn imported(scratch: &Scratch, texts: &[&str]) -> Result<()> {
    let paths = texts.iter().enumerate().map(|(index, text)| {
        let path = scratch.root().join(format!("recording-{index}.json"));
        fs::write(&path, text).unwrap();
        path
    });
    import(scratch.root(), &paths.collect::<Vec<_>>(), None)
}

fn profile(scratch: &Scratch) -> Profile {
    Profile::parse(&scratch.text("profiles/networks/net-b1.json"), "net").unwrap()
}

#[test]
fn skinny_products_move_data() {
    for (name, expected) in [
        ("nvjet_sm90_hsh_512x8_64x3_2x1_v_bz_TNT", KernelKind::Memory),
        ("nvjet_sm90_hsh_32x128_64x10_4x2_h_bz_NNN", KernelKind::Memory),
        ("nvjet_sm90_hsh_64x128_64x8_4x2_h_bz_NNN", KernelKind::Math),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_f16_s161616gemm_f16_32x32>", KernelKind::Math),
        ("void at::native::vectorized_elementwise_kernel<8>", KernelKind::Memory),
    ] {
        assert_eq!(kind(name), expected, "{name}");
    }
}

#[test]
fn kernels_keep_order_time_shape_and_kind() {
    let scratch = Scratch::with("profiles-eager", &[]);
    imported(&scratch, &[EAGER]).unwrap();
    let profile = profile(&scratch);
    assert_eq!(profile.kernels, [(0, 5250), (1, 2000), (2, 1000)]);
    let kinds: Vec<KernelKind> = profile.shapes.iter().map(|shape| shape.kind).collect();
    assert_eq!(kinds, [KernelKind::Math, KernelKind::Memory, KernelKind::Copy]);
    assert_eq!((profile.shapes[0].blocks, profile.shapes[0].threads, profile.shapes[2].blocks), (8, 128, 0));
    assert_eq!((profile.pass, profile.eager_p50_ms), (Pass::Eager, Some(0.2)));
    assert!(profile.vram_bytes.is_empty() && profile.sources.bytes.is_none());
    assert!(profile.sources.kernels.ends_with("kernels of one eager pass"), "{:?}", profile.sources);
}

#[test]
fn a_later_recording_replaces_what_it_has_and_nothing_else() {
    let scratch = Scratch::with("profiles-graph", &[]);
    imported(&scratch, &[EAGER, GRAPH]).unwrap();
    let profile = profile(&scratch);
    assert_eq!((profile.graph_p50_ms, profile.eager_p50_ms), (0.03, Some(0.2)));
    assert!(profile.sources.latency.contains("November 2026"), "{:?}", profile.sources);
    assert_eq!((profile.pass, profile.kernels.len()), (Pass::Graph, 2));
    assert_eq!(profile.vram_bytes, [Some(77), None]);
    assert!(profile.l2_bytes.is_empty());
    assert_eq!(profile.scaling.iter().map(|point| point.sms).collect::<Vec<_>>(), [132, 66]);
    let kernels = "measured: date 2026-11-21, gpu NVIDIA H200; kernels of replays of a CUDA graph";
    assert_eq!(profile.sources.kernels, kernels);
    assert!(profile.sources.bytes.is_some() && profile.sources.scaling.is_some());
}

#[test]
fn what_lacks_kernels_or_latencies_is_refused_by_name() {
    let scratch = Scratch::with("profiles-refused", &[]);
    let error = |text: &str| format!("{:#}", imported(&scratch, &[text]).unwrap_err());
    let graph = error(GRAPH);
    assert!(graph.contains("net-b1 of ") && graph.contains("has no graph_p50_ms"), "{graph}");
    let unsaid = error(&GRAPH.replace("\"pass\": \"graph\",", ""));
    assert!(unsaid.contains("by which `pass` its kernels were launched"), "{unsaid}");
    let bare = error(r#"[{"model": "net", "batch": 1, "graph_p50_ms": 1.0, "graph_p99_ms": 1.0}]"#);
    assert!(bare.contains("has no kernels"), "{bare}");
    let fake = error(&GRAPH.replace("\"gpu\"", "\"fake\""));
    assert!(fake.contains("is of a rehearsal, not of a GPU"), "{fake}");
    let other = error(&GRAPH.replace("NVIDIA H200", "NVIDIA L4"));
    assert!(other.contains("was recorded on NVIDIA L4"), "{other}");
    assert!(error("3").contains("is no recording of networks"), "{}", error("3"));
    assert!(error(&EAGER.replace("5.25", "0.0")).contains("kernel 0 takes 0 ns"));
    assert!(!scratch.root().join("profiles").exists(), "nothing was written");
}

#[test]
fn the_list_has_every_file_by_model_and_batch() {
    let files = ["net-b8", "net-b32", "abc-b1"].map(|name| format!("profiles/networks/{name}.json"));
    let files: Vec<(&str, &str)> = files.iter().map(|file| (file.as_str(), "{}")).collect();
    let scratch = Scratch::with("profiles-list", &files);
    let text = list(scratch.root()).unwrap();
    let names: Vec<&str> =
        text.lines().filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next()).collect();
    assert_eq!(names, ["abc-b1", "net-b8", "net-b32"]);
    let scratch = Scratch::with("profiles-odd", &[("profiles/networks/odd.json", "{}")]);
    assert!(list(scratch.root()).unwrap_err().to_string().contains("odd.json: expected MODEL-bBATCH.json"));
}
