use partywall_core::tenant::Class;
use partywall_core::units::{Nanos, SmCount};
use partywall_measure::plan::NodeSetting;
use partywall_measure::record::{
    CellError, CellKind, CellRecord, Environment, ErrorKind, EvidenceRule, FORMAT, GpuRecord, Processes,
    ProgramKind, Quantiles, Record, Settings, TenantRecord, TenantResult,
};
use partywall_sim::layout::{Node, NodeLaunches, NodeText, Turnstile};

use super::*;

#[test]
fn cells_that_cannot_be_compared_are_counted_by_reason_and_named() {
    let left_out = |why: &str, cell: &str| LeftOut { why: why.to_owned(), cell: cell.to_owned() };
    let cells = [
        left_out("no model of `x`", "mps: a beside x"),
        left_out("died", "mps: b"),
        left_out("died", "mps: c"),
    ];
    assert_eq!(
        not_comparable(&cells),
        "\nNot comparable: 3 cells.\n  2: died\n    mps: b\n    mps: c\n  1: no model of `x`\n    mps: a beside x\n"
    );
    assert_eq!(not_comparable(&[]), "");
}

/// The simulator reads settings of the wall `partywall` by a reader of its own; it must have what the node had.
#[test]
fn a_node_is_simulated_as_it_was_set() {
    let all = |mps: bool, launches: Option<&str>, (ls_sms, be_sms): (Option<u32>, Option<u32>)| NodeSetting {
        mps,
        ls_sms,
        be_sms,
        lower: mps,
        copies: launches.is_some(),
        launches: launches.map(str::to_owned),
    };
    for setting in [
        all(true, Some(""), (None, None)),
        all(false, Some(""), (None, None)),
        all(true, None, (None, Some(66))),
        all(true, Some("chunks=3,chunk=25us,launches=4,release=1ms"), (Some(20), Some(16))),
        all(false, Some("chunk=0us,fixed"), (None, None)),
        all(false, Some("slice=50us,release=60us"), (None, Some(84))),
        all(false, Some("off,slice=200us"), (None, None)),
        all(true, Some("off"), (None, None)),
        NodeSetting::sets_alone(64, 68),
    ] {
        let text = setting.to_string();
        let read: NodeText = text.parse().unwrap();
        let options = setting.launch_options().unwrap();
        let turnstile =
            Turnstile { chunks: options.chunks, chunk: options.chunk, launches: options.launches };
        let launches =
            NodeLaunches { turnstile, hold: options.setting(false).hold, release: options.release };
        let launches = options.decided.then_some(launches);
        assert_eq!(read.node, Node { mps: setting.mps, launches, slice: options.slice }, "{text}");
        assert_eq!((read.ls, read.be), (setting.ls_sms.map(SmCount), setting.be_sms.map(SmCount)), "{text}");
    }
}

#[test]
fn recordings_of_one_gpu_are_joined() {
    let (name, text) = CALIBRATED[0];
    let one = Measured::read([(name, text)]).unwrap();
    let two = Measured::read([(name, text), (name, text)]).unwrap();
    assert_eq!((two.pairs.len(), &two.gpu.id[..]), (2 * one.pairs.len(), RECORDED_ON));
    assert!(Measured::read([]).is_err());
}

/// What `partywall measure` writes, by its own structures, is what the simulator reads by others.
#[test]
fn records_of_measure_are_read() {
    let text = measured_record().json().unwrap();
    let read = Measured::read([("r.json", &*text)]).unwrap();
    let [pair] = &read.pairs[..] else { panic!("{:?}", read.pairs) };
    assert_eq!((pair.wall, pair.p50_ms, pair.be_rate_per_s), (Wall::GreenContexts, Some(1.8), Some(3500.0)));
    let host = Load::Closed { pause: Nanos(500_000), depth: 1, host: Some(Nanos(60_000)) };
    let ls = Tenant {
        program: "resnet50-b1".to_owned(),
        made: None,
        share: Some(Share::Sms(SmCount(66))),
        load: host,
        solo_ms: None,
        launched_ms: None,
    };
    assert_eq!(pair.ls, Some(ls));
    assert_eq!(pair.be.as_ref().map(|be| &be.program[..]), Some("stream"));
    let why: Vec<&str> = read.left_out.iter().map(|cell| &cell.why[..]).collect();
    assert_eq!(why, ["not measured to the end: skipped"]);
}

fn measured_record() -> Record {
    let tenant = |name: &str, class, pause_ns, depth, work| TenantRecord {
        name: name.to_owned(),
        class,
        program: ProgramKind::External,
        command: vec!["tenant.py".to_owned()],
        load: partywall_measure::load::Load::Closed { pause_ns, depth },
        duty: None,
        unit: Some("u".to_owned()),
        work: Some(work),
        about: BTreeMap::new(),
        cache_policy: None,
    };
    let result = |tenant: &str, p50, rate_per_s| TenantResult {
        tenant: tenant.to_owned(),
        requests: 5000,
        check: "ok".to_owned(),
        service_ms: Quantiles { p50, ..Quantiles::default() },
        response_ms: Quantiles::default(),
        rate_per_s,
        offered_per_s: None,
        completed_per_s: 1.0,
        saturated: false,
        host_gap_us: Some(560.0),
        rounds: Vec::new(),
    };
    let cell = |results, error| CellRecord {
        wall: Wall::GreenContexts,
        setting: "66/66".to_owned(),
        processes: Processes::Separate,
        kind: CellKind::Corun,
        ls: Some("resnet50-b1".to_owned()),
        be: Some("stream".to_owned()),
        beside: Vec::new(),
        results,
        gpu: None,
        node: Vec::new(),
        part: 0,
        error,
    };
    let both = vec![result("resnet50-b1", Some(1.8), 400.0), result("stream", None, 3500.0)];
    let gpu = GpuRecord { id: Some("h200".to_owned()), ..GpuRecord::default() };
    Record {
        format: FORMAT.to_owned(),
        simulated: false,
        pretended: false,
        name: "networks".to_owned(),
        command: String::new(),
        started: String::new(),
        took_s: 1.0,
        complete: true,
        environment: Environment { gpu: Some(gpu), ..Environment::default() },
        settings: Settings {
            plan: "full".to_owned(),
            seed: 1,
            rounds: 1,
            warmup_s: 0.1,
            seconds_max: 1.0,
            requests_wanted: 5000,
            evidence: EvidenceRule::Recorded,
        },
        tenants: vec![
            tenant("resnet50-b1", Class::LatencySensitive, 500_000, 1, 1.0),
            tenant("stream", Class::BestEffort, 0, 4, 2.147483648),
        ],
        cells: vec![cell(both, None), cell(Vec::new(), Some(CellError::new(ErrorKind::Skipped, "time")))],
        rows: Vec::new(),
        ims: Vec::new(),
        facts: Vec::new(),
        parts: Vec::new(),
        summary: BTreeMap::new(),
    }
}
