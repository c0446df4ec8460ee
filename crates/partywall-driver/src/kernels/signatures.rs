//! What is embedded: the PTX files, and the kernels in them with their parameters.

/// The PTX files by the names of their sources.
pub(super) const SOURCES: &[(&str, &str)] = &[
    ("arena", include_str!("../../../../kernels/ptx/arena.ptx")),
    ("buffers", include_str!("../../../../kernels/ptx/buffers.ptx")),
    ("compute", include_str!("../../../../kernels/ptx/compute.ptx")),
    ("decode", include_str!("../../../../kernels/ptx/decode.ptx")),
    ("memory", include_str!("../../../../kernels/ptx/memory.ptx")),
    ("network", include_str!("../../../../kernels/ptx/network.ptx")),
    ("placement", include_str!("../../../../kernels/ptx/placement.ptx")),
    ("sides", include_str!("../../../../kernels/ptx/sides.ptx")),
];

/// The type of a kernel's parameter, as far as it matters for passing it. Pointers are 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parameter {
    U32,
    U64,
}

/// A kernel.
#[derive(Debug)]
pub(super) struct Signature {
    pub(super) source: &'static str,
    pub(super) name: &'static str,
    pub(super) parameters: &'static [Parameter],
}

const fn kernel(source: &'static str, name: &'static str, parameters: &'static [Parameter]) -> Signature {
    Signature { source, name, parameters }
}

const W: Parameter = Parameter::U32;
const D: Parameter = Parameter::U64;
const READ: &[Parameter] = &[D, D, W, D, W];
const MATMUL: &[Parameter] = &[D, D, D, W, W];
const STREAM: &[Parameter] = &[D, W, W, D, D, D, D, D, W];

/// Most parameters of a kernel here.
pub(super) const PARAMETERS_MAX: usize = 9;

/// All kernels, in the order of the sources.
pub(super) const SIGNATURES: &[Signature] = &[
    kernel("arena", "arena_scatter", &[D, W, W, D, D, D]),
    kernel("arena", "arena_gather", &[D, W, W, D, D, D]),
    kernel("arena", "arena_fill", &[D, W, W, D, D, W]),
    kernel("arena", "arena_read", &[D, W, W, D, D, D]),
    kernel("arena", "arena_passes", &[D, W, W, D, D, D, W, D, D]),
    kernel("arena", "arena_stream_read_default", STREAM),
    kernel("arena", "arena_stream_read_evict_first", STREAM),
    kernel("arena", "arena_stream_write_default", STREAM),
    kernel("arena", "arena_stream_write_evict_first", STREAM),
    kernel("arena", "arena_stream_read_write_default", STREAM),
    kernel("arena", "arena_stream_read_write_evict_first", STREAM),
    kernel("buffers", "fill_pattern", &[D, D, W, W]),
    kernel("buffers", "count_wrong", &[D, D, W, W, D]),
    kernel("buffers", "checksum", &[D, D, D]),
    kernel("buffers", "fill_halves", &[D, D, W]),
    kernel("buffers", "fill_links", &[D, W, W, W, W]),
    kernel("compute", "multiply_add", &[D, W, W]),
    kernel("compute", "step_once", &[D]),
    kernel("decode", "begin_token", &[D, W, W, W, W, W, D, W]),
    kernel("decode", "project", &[D, D, W, W, D]),
    kernel("decode", "attend", &[D, D, W, D, W]),
    kernel("memory", "chase", &[D, W, W, D, W, W]),
    kernel("memory", "read_default", READ),
    kernel("memory", "read_evict_first", READ),
    kernel("memory", "read_l2", READ),
    kernel("memory", "read_write_default", &[D, D, W]),
    kernel("memory", "read_write_evict_first", &[D, D, W]),
    kernel("network", "matmul_64", MATMUL),
    kernel("network", "matmul_128", MATMUL),
    kernel("network", "row_sums", &[D, W, D]),
    kernel("network", "fold", &[D, D, W, D, D]),
    kernel("placement", "count_by_sm", &[D, W, D]),
    kernel("placement", "meet", &[D, W, D, D]),
    kernel("placement", "stay", &[D, D, D]),
    kernel("sides", "chain_atomics", &[D, D, W, W, W, W, D]),
    kernel("sides", "contend", &[D, D, W, W, W, W, D, D]),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels of a PTX file with the types of their parameters.
    fn entries(ptx: &str) -> Vec<(String, Vec<Parameter>)> {
        let mut entries = Vec::new();
        for entry in ptx.split(".visible .entry ").skip(1) {
            let (name, rest) = entry.split_once('(').unwrap();
            let (list, _) = rest.split_once(')').unwrap();
            let parameter = |line: &str| match line.split_whitespace().nth(1).unwrap() {
                ".u32" => W,
                ".u64" => D,
                other => panic!("{name}: {other}"),
            };
            let parameters = list.lines().filter(|line| line.contains(".param")).map(parameter).collect();
            entries.push((name.trim().to_owned(), parameters));
        }
        entries
    }

    #[test]
    fn the_signatures_are_those_of_the_ptx() {
        let mut listed = 0;
        for (source, ptx) in SOURCES {
            for (name, parameters) in entries(ptx) {
                let mut found = SIGNATURES.iter().filter(|one| one.name == name);
                let signature = found.next().unwrap_or_else(|| panic!("{name} is not listed"));
                assert!(found.next().is_none(), "{name} twice");
                assert_eq!(
                    (signature.source, signature.parameters),
                    (*source, parameters.as_slice()),
                    "{name}"
                );
                listed += 1;
            }
        }
        assert_eq!(listed, SIGNATURES.len(), "a kernel is listed that no PTX file has");
    }

    #[test]
    fn the_ptx_loads_on_every_gpu_since_volta_with_drivers_since_12_4() {
        for (source, ptx) in SOURCES {
            assert!(ptx.contains("\n.version 8.4\n") && ptx.contains("\n.target sm_70\n"), "{source}");
        }
    }

    /// Both languages say these; neither can include the other's.
    #[test]
    fn the_constants_are_those_of_the_sources() {
        let prelude = include_str!("../../../../kernels/prelude.cuh");
        assert!(prelude.contains(&format!("SLOT_STRIDE = {} }}", super::super::SLOT_BYTES / 4)));
        let compute = include_str!("../../../../kernels/compute.cu");
        assert!(
            compute.contains("*value * 1664525u + 1013904223u") && compute.contains("__fmaf_rn(x, x, -1.9f)")
        );
        assert_eq!(super::super::stepped(1, 1), 1_664_525 + 1_013_904_223);
        assert_eq!(super::super::multiplied(0, 1), -1.9);
    }
}
