//! Launches.

use super::{Rule, Subject, passed, watched};

pub(super) const LAUNCHES: Subject = Subject {
    name: "Launches",
    about: "Launches are counted in the page of the process and go to the driver at once. The wall that the tenant runs \
            behind decides about SMs.",
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
        "counted; kernels are neither delayed nor changed",
    ),
    passed(&["cuLaunchHostFunc"], "runs a function of the program on the host"),
];
