//! Launches.

use super::{Rule, Subject, passed, watched};

pub(super) const LAUNCHES: Subject = Subject {
    name: "Launches",
    about: "Launches are counted in the page of the process and go to the driver, at once or when it is their turn. The wall \
            that the tenant runs behind decides about SMs.",
    rules: &RULES,
};

const RULES: [Rule; 2] = [
    watched(
        &[
            "cuLaunch",
            "cuLaunchCooperativeKernel",
            "cuLaunchCooperativeKernelMultiDevice",
            "cuLaunchGrid",
            "cuLaunchGridAsync",
            "cuLaunchKernel",
            "cuLaunchKernelEx",
        ],
        "counted; where the node decides about launches, those of best-effort tenants wait for their turn, or go to fewer SMs",
    ),
    passed(&["cuLaunchHostFunc"], "runs a function of the program on the host"),
];
