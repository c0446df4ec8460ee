//! The parameters of the fitted traces; [`super::fitted`] says what they mean.
//!
//! Times are in seconds. *Index of dispersion* is the variance of the number of requests in a window over its mean,
//! with windows that slide by a twentieth of their length; 1 for Poisson. Statistics of the traces are over the whole
//! of the file named; those of the generated stream are over a long run, and the tests hold them to the tolerance
//! that is stated there.

use super::fitted::{Fit, Quantiles};

/// Task `resnet152_rt` of DISB workload REAL (SJTU-IPADS/disb, Apache-2.0), 375 requests in 38.8 s.
///
/// Gaps: mean 0.1037 s, coefficient of variation 0.120, autocorrelation 0.02 at lag 1 and 0.63 at lag 2; index of
/// dispersion over 1 s 0.068. Generated: 0.1036, 0.117, 0.02, 0.60; 0.061.
pub(super) const DISB_RESNET152: Fit =
    Fit { cycle: &[&RESNET152_GAP, &RESNET152_GAP], share: 0.68, memory: 0.95, batch: None, tokens: None };

const RESNET152_GAP: Quantiles = Quantiles {
    mean: 0.103_72,
    knots: &[
        (0.0, 0.086),
        (0.02, 0.088),
        (0.1, 0.092),
        (0.25, 0.095),
        (0.5, 0.1),
        (0.75, 0.108),
        (0.9, 0.122),
        (0.98, 0.1355),
        (0.999, 0.15),
        (1.0, 0.183),
    ],
};

/// Task `densenet201_rt` of DISB workload REAL, 202 requests in 38.8 s.
///
/// Gaps: mean 0.1929 s, coefficient of variation 0.221, autocorrelation 0.57 at lag 1 and 0.31 at lag 2; index of
/// dispersion over 1 s 0.155. Generated: 0.1932, 0.224, 0.55, 0.34; 0.172.
pub(super) const DISB_DENSENET201: Fit =
    Fit { cycle: &[&DENSENET201_GAP], share: 1.0, memory: 0.63, batch: None, tokens: None };

const DENSENET201_GAP: Quantiles = Quantiles {
    mean: 0.192_86,
    knots: &[
        (0.0, 0.087),
        (0.02, 0.089),
        (0.1, 0.103),
        (0.2, 0.185),
        (0.3, 0.192),
        (0.5, 0.202),
        (0.75, 0.216),
        (0.95, 0.233),
        (0.98, 0.261),
        (1.0, 0.343),
    ],
};

/// Task `vgg19_rt` of DISB workload REAL, 560 requests in 29.3 s: 140 times four.
///
/// Gaps: mean 0.0523 s, coefficient of variation 1.589, autocorrelation -0.30 at lag 1, 0.94 at lag 4; index of
/// dispersion over 1 s 0.492. Generated: 0.0528, 1.588, -0.31, 0.94; 0.488.
///
/// Between the fours: mean 0.1909 s; within: mean 0.0065 s.
pub(super) const DISB_VGG19: Fit = Fit {
    cycle: &[&VGG19_SILENCE, &VGG19_GAP, &VGG19_GAP, &VGG19_GAP],
    share: 0.3,
    memory: 0.85,
    batch: None,
    tokens: None,
};

const VGG19_SILENCE: Quantiles = Quantiles {
    mean: 0.190_86,
    knots: &[
        (0.0, 0.089),
        (0.02, 0.1005),
        (0.1, 0.1264),
        (0.25, 0.154),
        (0.5, 0.191),
        (0.75, 0.222),
        (0.9, 0.2572),
        (0.98, 0.2782),
        (1.0, 0.283),
    ],
};

const VGG19_GAP: Quantiles = Quantiles {
    mean: 0.006_479,
    knots: &[
        (0.0, 0.003),
        (0.25, 0.004),
        (0.5, 0.005),
        (0.75, 0.008),
        (0.9, 0.011),
        (0.98, 0.0176),
        (1.0, 0.022),
    ],
};

/// Task `inceptionv3_rt` of DISB workload REAL, 374 requests in 38.6 s.
///
/// Gaps: mean 0.1035 s, coefficient of variation 0.230, autocorrelation 0.40 at lag 1 and 0.32 at lag 2; index of
/// dispersion over 1 s 0.201. Generated: 0.1034, 0.235, 0.36, 0.32; 0.202.
pub(super) const DISB_INCEPTIONV3: Fit =
    Fit { cycle: &[&INCEPTIONV3_GAP], share: 0.42, memory: 0.92, batch: None, tokens: None };

const INCEPTIONV3_GAP: Quantiles = Quantiles {
    mean: 0.103_46,
    knots: &[
        (0.0, 0.07),
        (0.02, 0.072),
        (0.1, 0.077),
        (0.25, 0.088),
        (0.5, 0.098),
        (0.75, 0.117),
        (0.9, 0.134),
        (0.98, 0.1708),
        (1.0, 0.205),
    ],
};

/// Task `distilbert_rt` of DISB workload REAL, 173 requests in 38.5 s.
///
/// Gaps: mean 0.2240 s, coefficient of variation 0.389, autocorrelation 0.07 at lag 1 and -0.02 at lag 2; index of
/// dispersion over 1 s 0.197. Generated: 0.2238, 0.380, 0.00, 0.00; 0.161.
pub(super) const DISB_DISTILBERT: Fit =
    Fit { cycle: &[&DISTILBERT_GAP], share: 0.0, memory: 0.0, batch: None, tokens: None };

const DISTILBERT_GAP: Quantiles = Quantiles {
    mean: 0.224_05,
    knots: &[
        (0.0, 0.087),
        (0.02, 0.1808),
        (0.1, 0.188),
        (0.5, 0.2065),
        (0.8, 0.2258),
        (0.9, 0.234),
        (0.95, 0.3154),
        (0.98, 0.5422),
        (1.0, 0.957),
    ],
};

/// Azure LLM inference trace 2023, coding (Azure/AzurePublicDataset, Patel et al., ISCA 2024, CC-BY-4.0), 8 819
/// requests in 57 min.
///
/// Gaps: mean 0.3897 s, coefficient of variation 13.2; index of dispersion 13.1 over 1 s, 74 over 10 s, 156 over 60 s.
/// Generated: 0.3998, 12.7; 12.2, 69, 181.
///
/// Prompt: mean 2 048 tokens, coefficient of variation 0.964. Answer: mean 27.9, coefficient of variation 2.147.
/// Generated: 2 048, 0.977; 27.9, 2.229.
pub(super) const AZURE_CODE: Fit = Fit {
    cycle: &[&AZURE_GAP],
    share: 0.17,
    memory: 0.98,
    batch: None,
    tokens: Some([&AZURE_INPUT, &AZURE_OUTPUT]),
};

const AZURE_GAP: Quantiles = Quantiles {
    mean: 0.389_65,
    knots: &[
        (0.0, 0.000_01),
        (0.1, 0.000_21),
        (0.17, 0.001),
        (0.35, 0.005_34),
        (0.45, 0.038_2),
        (0.55, 0.089_6),
        (0.7, 0.1001),
        (0.9, 0.2729),
        (0.97, 0.5974),
        (0.99, 2.205),
        (0.995, 9.978),
        (0.999, 79.23),
        (1.0, 217.2),
    ],
};

const AZURE_INPUT: Quantiles = Quantiles {
    mean: 2047.8,
    knots: &[
        (0.0, 3.0),
        (0.01, 17.0),
        (0.05, 75.0),
        (0.1, 147.0),
        (0.25, 578.0),
        (0.5, 1469.0),
        (0.75, 2744.5),
        (0.9, 5187.6),
        (0.95, 7303.3),
        (0.99, 7436.0),
        (1.0, 7437.0),
    ],
};

const AZURE_OUTPUT: Quantiles = Quantiles {
    mean: 27.88,
    knots: &[
        (0.0, 6.0),
        (0.04, 6.2),
        (0.1, 7.0),
        (0.25, 9.0),
        (0.5, 13.0),
        (0.75, 24.0),
        (0.9, 55.0),
        (0.95, 90.0),
        (0.98, 170.9),
        (0.99, 251.5),
        (0.998, 669.6),
        (0.9995, 885.0),
        (1.0, 1899.0),
    ],
};

/// Mooncake conversation trace (kvcache-ai/Mooncake, FAST 2025, Apache-2.0), 12 031 requests in 59 min, in 1 180
/// batches 3 s apart (give or take 1 ms, which is left out here).
///
/// Batches: mean 10.20 requests, coefficient of variation 0.328, autocorrelation 0.15 at lag 1 and 0.17 at lag 2; index
/// of dispersion over 60 s 2.75. Generated: 10.20, 0.326, 0.15 at lag 1; 2.90.
///
/// Prompt: mean 12 035 tokens, coefficient of variation 1.313. Answer: mean 342.6, coefficient of
/// variation 0.729. Generated: 12 024, 1.336; 342.2, 0.740.
pub(super) const MOONCAKE: Fit = Fit {
    cycle: &[&MOONCAKE_GAP],
    share: 0.17,
    memory: 0.9,
    batch: Some(&MOONCAKE_BATCH),
    tokens: Some([&MOONCAKE_INPUT, &MOONCAKE_OUTPUT]),
};

const MOONCAKE_GAP: Quantiles = Quantiles { mean: 3.0, knots: &[(0.0, 3.0), (1.0, 3.0)] };

const MOONCAKE_BATCH: Quantiles = Quantiles {
    mean: 10.196,
    knots: &[
        (0.0, 2.0),
        (0.02, 4.4),
        (0.1, 6.3),
        (0.25, 8.0),
        (0.5, 10.0),
        (0.75, 12.2),
        (0.9, 14.5),
        (0.98, 17.3),
        (0.999, 20.5),
        (1.0, 28.0),
    ],
};

const MOONCAKE_INPUT: Quantiles = Quantiles {
    mean: 12_035.0,
    knots: &[
        (0.0, 891.0),
        (0.05, 901.0),
        (0.1, 964.0),
        (0.25, 2306.5),
        (0.5, 6909.0),
        (0.75, 15_367.0),
        (0.9, 27_367.0),
        (0.95, 39_550.5),
        (0.99, 85_400.0),
        (0.999, 121_301.0),
        (1.0, 126_195.0),
    ],
};

const MOONCAKE_OUTPUT: Quantiles = Quantiles {
    mean: 342.6,
    knots: &[
        (0.0, 1.0),
        (0.02, 3.0),
        (0.05, 10.0),
        (0.1, 24.0),
        (0.2, 100.0),
        (0.3, 213.0),
        (0.5, 350.0),
        (0.75, 472.0),
        (0.9, 597.0),
        (0.95, 698.0),
        (0.99, 1118.5),
        (1.0, 2000.0),
    ],
};
