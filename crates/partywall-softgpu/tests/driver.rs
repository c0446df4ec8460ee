//! The driver crate on this library: what `partywall doctor --check` tries on a GPU must hold on the simulated one.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod site;

use partywall_driver::{Cuda, checks};

/// The one check that looks at the time between two calls of the host: on a busy machine the host may be interrupted there.
const TIMED: &str = "events time a kernel";

/// How often [`TIMED`] may fail in a row.
const PATIENCE: usize = 5;

#[test]
fn the_checks_of_the_driver_crate_pass() {
    let directory = tempfile::tempdir().unwrap();
    // SAFETY: the library is this crate's, which behaves as documented for the driver API.
    let cuda = unsafe { Cuda::load_from(&site::folder(directory.path())) }.unwrap();
    let device = cuda.device(0).unwrap();
    for attempt in 1..=PATIENCE {
        let checked = checks::run(&device).unwrap();
        assert_eq!(checked.len(), 21);
        let fact = |name: &str| checked.iter().find_map(|check| check.facts.get(name)).copied();
        // As on an H200 with CUDA 13.0: the context of a node counts where it has no function of a module.
        assert_eq!((fact("kernel_on_a"), fact("kernel_on_b")), (Some(0.0), Some(100.0)));
        assert_eq!((fact("function_on_a"), fact("function_on_b")), (Some(32.0), Some(100.0)));
        assert_eq!((fact("stream_of_a_on_a"), fact("stream_of_a_on_b")), (Some(32.0), Some(0.0)));
        assert_eq!((fact("of_b_in_a_code"), fact("b_waits_for_a")), (Some(0.0), Some(1.0)));
        assert_eq!((fact("in_a_on_a"), fact("in_a_on_b")), (Some(0.0), Some(100.0)));
        let order = [
            "stream_waits_for_node",
            "default_waits_for_node",
            "default_waits_for_node_of_blocking",
            "blocking_waits_for_node_of_default",
            "node_waits_for_stream",
            "node_waits_for_default",
            "node_of_default_waits_for_blocking",
            "node_of_blocking_waits_for_default",
        ];
        assert!(order.iter().all(|name| fact(name) == Some(1.0)), "{checked:#?}");
        assert_eq!((fact("a_for_its_own"), fact("a_for_one_of_b")), (Some(1.0), Some(0.0)));
        let failed: Vec<_> = checked.iter().filter(|one| !one.passed).collect();
        match failed.as_slice() {
            [] => return,
            [one] if one.name == TIMED && attempt < PATIENCE => {}
            failed => panic!("{failed:#?}"),
        }
    }
}
