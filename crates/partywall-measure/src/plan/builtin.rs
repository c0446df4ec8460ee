//! The plans that come with the program: a matrix of built-in victims and antagonists behind every wall that needs no
//! change of the GPU's settings.

use std::collections::BTreeMap;

use partywall_core::tenant::{Class, Slo};
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;

use super::{Pair, Patience, Place, Plan, Pretend, Program, Setting, Tenant};
use crate::load::Load;
use crate::record::{EvidenceRule, Processes};

/// Which of the built-in plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// A useful part of the matrix in under three minutes; percentiles with as many samples as are shown.
    Quick,
    /// The whole matrix; percentiles with as many samples as are recorded.
    Full,
}

/// Pause of victims between requests: what a service does between them. Without one a victim would be a batch job.
const PAUSE: Nanos = Nanos::from_micros(200);

/// Victims, whether the quick plan has them, and the time of a request on an H200 for rehearsals, us.
const VICTIMS: [(&str, bool, u64); 7] = [
    ("read-latency", false, 150),
    ("vram-read", true, 150),
    ("matmul", false, 200),
    ("tiny-kernels", true, 200),
    ("network", true, 500),
    ("decode", false, 400),
    ("copy-h2d", false, 10),
];

/// Antagonists: their name in the plan (a victim may have the built-in's), the built-in, and whether the quick plan has
/// them.
const ANTAGONISTS: [(&str, &str, bool); 10] = [
    ("compute", "compute", true),
    ("vram-stream", "vram-read", true),
    ("vram-stream-evict-first", "vram-read-evict-first", false),
    ("vram-read-write", "vram-read-write", false),
    ("vram-read-write-evict-first", "vram-read-write-evict-first", false),
    ("l2", "l2", false),
    ("copies-h2d", "copies-h2d", true),
    ("copies-d2h", "copies-d2h", false),
    ("launch-storm", "launch-storm", false),
    ("alloc-storm", "alloc-storm", false),
];

/// Service time of antagonists in rehearsals, us.
const PRETENDED_ANTAGONIST_US: u64 = 2_000;

/// The plan for a GPU with `sms` SMs, of which Green Contexts take multiples of `step`.
pub fn built_in(size: Size, sms: u32, step: u32) -> Plan {
    let quick = size == Size::Quick;
    let victims = VICTIMS.iter().filter(|(_, in_quick, _)| *in_quick || !quick);
    let victims = victims.map(|&(name, _, us)| {
        let load = Load::Closed { pause_ns: PAUSE.0, depth: 1 };
        tenant(name, name, Class::LatencySensitive, load, us)
    });
    let antagonists =
        ANTAGONISTS.iter().filter(|(_, _, in_quick)| *in_quick || !quick).map(|&(name, program, _)| {
            tenant(name, program, Class::BestEffort, Load::BACK_TO_BACK, PRETENDED_ANTAGONIST_US)
        });
    let tenants: Vec<Tenant> = victims.chain(antagonists).collect();
    let of =
        |class: Class| (0..tenants.len()).filter(|&index| tenants[index].class == class).collect::<Vec<_>>();
    let (victims, antagonists) = (of(Class::LatencySensitive), of(Class::BestEffort));
    let mut pairs = Vec::new();
    for place in places(size, sms, step) {
        for &ls in &victims {
            let beside = antagonists.iter();
            pairs.extend(beside.map(|&be| Pair {
                place: place.clone(),
                ls,
                be,
                beside: Vec::new(),
                priority: false,
                time_max: None,
                expect: None,
            }));
        }
    }
    Plan {
        name: if quick { "quick" } else { "full" }.to_owned(),
        seed: 1,
        rounds: if quick { 2 } else { 3 },
        warmup: if quick { Nanos::from_millis(100) } else { Nanos::from_millis(300) },
        time_max: if quick { Nanos::from_millis(800) } else { Nanos::from_secs(9) },
        // p99 needs 1 000 to be shown and 5 000 to be recorded.
        requests_wanted: if quick { 1_000 } else { 6_000 },
        evidence: if quick { EvidenceRule::Shown } else { EvidenceRule::Recorded },
        alone: true,
        patience: Patience::default(),
        tenants,
        pairs,
        duties: BTreeMap::new(),
    }
}

/// The walls, cheap ones first, so that what a time limit cuts off is what others have most to say about.
fn places(size: Size, sms: u32, step: u32) -> Vec<Place> {
    let step = step.max(1);
    let half = (sms / 2 / step * step).max(step);
    let rest = (sms.saturating_sub(half) / step * step).max(step);
    let halves = Setting::Sms(half, rest);
    let set = |wall, setting, processes| Place { wall, setting, processes };
    let percent = |ls, be| set(Wall::MpsPercentage, Setting::Percent(ls, be), Processes::Separate);
    let mut places = vec![
        Place::plain(Wall::TimeSlicing),
        Place::plain(Wall::Mps),
        percent(50, 50),
        set(Wall::GreenContexts, halves.clone(), Processes::Separate),
        Place::plain(Wall::StreamPriority),
        set(Wall::GreenContexts, halves, Processes::One),
    ];
    if size == Size::Full {
        places.insert(3, percent(100, 12));
    }
    places
}

fn tenant(name: &str, program: &str, class: Class, load: Load, pretended_us: u64) -> Tenant {
    Tenant {
        name: name.to_owned(),
        class,
        program: Program::BuiltIn(program.to_owned()),
        load,
        duty: None,
        slo: Slo::default(),
        env: BTreeMap::new(),
        pretend: Pretend::BuiltIn(vec!["--service".to_owned(), format!("{pretended_us}us")]),
    }
}
