use proptest::prelude::*;

use super::*;

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;
const ASSERTION: u32 = 710;
const FAILED: u32 = 719;

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Two latency-sensitive tenants, 1 and 3, and two best-effort ones, 0 and 2, in the order of their file.
fn clients() -> Vec<Client> {
    let client = |(number, class)| Client {
        tenant: TenantId(number),
        class,
        order: number,
        restart: Restart::Always,
        attended: false,
    };
    [(0, BE), (1, LS), (2, BE), (3, LS)].map(client).to_vec()
}

/// A node that does what it is told at once, in words: `end 0`, `start 1`.
struct Stage {
    faults: Faults,
    clients: Vec<Client>,
    now: Nanos,
    done: Vec<String>,
    verdicts: Vec<Verdict>,
    /// What the MPS server says when it is asked, and who has gone on; `None`: it hangs.
    server: Option<(Server, Vec<u32>)>,
}

impl Stage {
    fn new() -> Self {
        Self {
            faults: Faults::new(),
            clients: clients(),
            now: ms(1_000),
            done: Vec::new(),
            verdicts: Vec::new(),
            server: Some((Server::Faulted, Vec::new())),
        }
    }

    fn whose_server_says(server: Server) -> Self {
        Self { server: Some((server, Vec::new())), ..Self::new() }
    }

    fn step(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.faults.step(self.now, event, &mut actions);
        let mut is_asked = false;
        for action in actions {
            let said = match action {
                Action::Hold { .. } => continue,
                Action::Ask => {
                    is_asked = true;
                    continue;
                }
                Action::Release { tenant } => format!("release {}", tenant.0),
                Action::Named(verdict) => {
                    self.verdicts.push(verdict);
                    match verdict.culprit {
                        Some(tenant) => format!("culprit {}", tenant.0),
                        None => "culprit unknown".to_owned(),
                    }
                }
                Action::End { tenant } => format!("end {}", tenant.0),
                Action::Start { tenant, at } if at > self.now => {
                    format!("start {} in {} ms", tenant.0, (at.0 - self.now.0) / 1_000_000)
                }
                Action::Start { tenant, .. } => format!("start {}", tenant.0),
                Action::Leave { tenant, why } => format!("leave {}: {why:?}", tenant.0),
                Action::KeepOut { tenant } => format!("keep out {}", tenant.0),
                Action::Recovered { took, tenant, .. } => {
                    format!("recovered {} after {} ms", tenant.0, took.0 / 1_000_000)
                }
            };
            self.done.push(said);
        }
        if let Some((server, went_on)) = self.server.clone().filter(|_| is_asked) {
            let went_on = went_on.into_iter().map(TenantId).collect();
            self.step(Event::Server { server, went_on });
        }
    }

    fn report(&mut self, tenant: u32, code: u32) {
        let report = Report { tenant: TenantId(tenant), code, at: self.now };
        let clients = self.clients.clone();
        self.step(Event::Reported { report, clients });
    }

    /// What these tenants were told, all at once.
    fn fault(&mut self, told: &[(u32, u32)]) {
        told.iter().for_each(|(tenant, code)| self.report(*tenant, *code));
    }

    fn ended(&mut self, tenants: &[u32]) {
        for tenant in tenants {
            self.step(Event::Ended { tenant: TenantId(*tenant), ending: Ending::Failed });
        }
    }

    fn registered(&mut self, tenants: &[u32]) {
        tenants.iter().for_each(|tenant| self.step(Event::Registered { tenant: TenantId(*tenant) }));
    }

    fn after(&mut self, time: Nanos) {
        self.now = self.now.saturating_add(time);
        self.step(Event::Time);
    }

    #[track_caller]
    fn did(&mut self, expected: &[&str]) {
        assert_eq!(std::mem::take(&mut self.done), expected);
    }

    /// A fault of tenant 2, from which all come back but who is kept out.
    fn sure_fault(&mut self) {
        self.fault(&[(2, ASSERTION), (0, FAILED), (1, FAILED), (3, FAILED)]);
        self.ended(&[0, 1, 2, 3]);
        self.registered(&[1, 3]);
        self.step(Event::Worked { tenant: TenantId(3), at: self.now });
    }
}

const ALL_END: [&str; 4] = ["end 0", "end 1", "end 2", "end 3"];

#[test]
fn f1_the_culprit_is_named_and_all_start_in_the_order_of_class() {
    let mut stage = Stage::new();
    stage.report(1, FAILED);
    stage.report(2, ASSERTION);
    assert!(stage.faults.is_closed());
    stage.did(&[]);
    stage.after(SETTLE);
    stage.did(&["culprit 2", "end 0", "end 1", "end 2", "end 3"]);
    assert_eq!(stage.verdicts[0].evidence, Evidence::OnlyOwnCode);
    stage.ended(&[3, 2, 1]);
    stage.did(&[]);
    stage.ended(&[0]);
    stage.did(&["start 1", "start 3"]);
    assert!(!stage.faults.is_closed());
    stage.registered(&[3]);
    stage.did(&[]);
    stage.registered(&[1]);
    stage.did(&["start 0", "start 2"]);
    stage.step(Event::Worked { tenant: TenantId(1), at: stage.now });
    stage.did(&["recovered 1 after 400 ms"]);
    assert_eq!(stage.faults.deadline(), None);
}

#[test]
fn a_tenants_other_processes_do_not_speak_for_it() {
    let mut stage = Stage::new();
    stage.fault(&[(0, FAILED), (1, FAILED), (2, FAILED), (3, FAILED)]);
    stage.did(&[]);
    stage.report(2, ASSERTION);
    stage.did(&[&["culprit 2"], &ALL_END[..]].concat());
}

#[test]
fn f2_a_second_fault_keeps_out_unless_it_comes_late() {
    for (between, kept_out) in [(ms(120_000), true), (AGAIN, false)] {
        let mut stage = Stage::new();
        stage.sure_fault();
        stage.after(between);
        stage.done.clear();
        stage.sure_fault();
        let last = if kept_out { "keep out 2" } else { "start 2" };
        assert_eq!(stage.done.iter().rfind(|done| done.ends_with(" 2")).unwrap(), last);
        assert_eq!(stage.verdicts[1].kept_out, kept_out);
        for tenant in [0, 1, 3] {
            assert!(stage.done.contains(&format!("start {tenant}")), "{:?}", stage.done);
        }
    }
    // Who was asked for again begins anew.
    let mut stage = Stage::new();
    stage.sure_fault();
    stage.step(Event::Readmitted { tenant: TenantId(2) });
    stage.after(ms(120_000));
    stage.sure_fault();
    assert!(!stage.verdicts[1].kept_out);
}

#[test]
fn f3_where_all_say_the_same_nobody_is_named_or_kept_out() {
    let mut stage = Stage::new();
    for _ in 0..10 {
        stage.fault(&[(1, 700), (0, 700), (2, 700), (3, 700)]);
        assert_eq!(stage.verdicts.last().unwrap().evidence, Evidence::Several);
        assert_eq!(stage.verdicts.last().unwrap().culprit, None);
        stage.ended(&[0, 1, 2, 3]);
        stage.registered(&[1, 3]);
        stage.after(ms(100_000));
        stage.step(Event::Worked { tenant: TenantId(3), at: stage.now });
    }
    assert!(!stage.done.iter().any(|done| done.starts_with("keep out")));
}

#[test]
fn f4_best_effort_waits_for_who_registers_and_not_for_ever() {
    let mut stage = Stage::new();
    stage.sure_fault_until_started();
    stage.registered(&[1]);
    stage.after(Nanos(REGISTER_LIMIT.0 - 1));
    stage.did(&[]);
    stage.after(Nanos(1));
    stage.did(&["start 0", "start 2"]);
    // One that ends before it registers is not waited for.
    let mut stage = Stage::new();
    stage.sure_fault_until_started();
    stage.registered(&[1]);
    stage.ended(&[3]);
    stage.did(&["start 0", "start 2"]);
}

impl Stage {
    fn sure_fault_until_started(&mut self) {
        self.fault(&[(2, ASSERTION), (0, FAILED), (1, FAILED), (3, FAILED)]);
        self.ended(&[0, 1, 2, 3]);
        self.did(&[&["culprit 2"], &ALL_END[..], &["start 1", "start 3"]].concat());
    }
}

#[test]
fn f5_policies_say_who_is_left() {
    let mut stage = Stage::new();
    stage.clients[0].restart = Restart::Never;
    stage.clients[1].restart = Restart::OnFailure;
    stage.clients[2].attended = true;
    stage.clients[3].restart = Restart::OnFailure;
    stage.report(0, FAILED);
    // It noticed nothing, and was done.
    stage.step(Event::Ended { tenant: TenantId(1), ending: Ending::Well });
    stage.after(SETTLE);
    stage.did(&["leave 1: Well", "culprit 0", "end 0", "end 2", "end 3"]);
    // Told to end, it ends as well as it can.
    for tenant in [0, 2, 3] {
        stage.step(Event::Ended { tenant: TenantId(tenant), ending: Ending::Well });
    }
    stage.did(&["leave 0: Never", "leave 2: Attended", "start 3"]);
}

#[test]
fn f6_a_fault_while_tenants_start_takes_along_those_that_wait() {
    let mut stage = Stage::new();
    stage.sure_fault_until_started();
    // The others have no processes now.
    stage.clients.retain(|client| client.class == LS);
    stage.after(ms(100));
    stage.fault(&[(1, ASSERTION), (3, FAILED)]);
    stage.did(&["culprit 1", "end 1", "end 3"]);
    stage.ended(&[1, 3]);
    // The one that did it waits longer now.
    stage.did(&["start 1 in 500 ms", "start 3"]);
    stage.registered(&[1, 3]);
    stage.did(&["start 0", "start 2"]);
}

#[test]
fn f7_only_best_effort_tenants_wait_longer_each_time() {
    let mut stage = Stage::new();
    let mut waits = Vec::new();
    for _ in 0..4 {
        stage.fault(&[(1, 700), (0, 700), (2, 700), (3, 700)]);
        stage.ended(&[0, 1, 2, 3]);
        stage.registered(&[1, 3]);
        assert!(stage.done.contains(&"start 1".to_owned()));
        waits.extend(stage.done.iter().filter(|done| done.starts_with("start 0")).cloned());
        stage.done.clear();
        stage.after(ms(1_000));
    }
    // The second time they are to come back apart, and it happens again before the first of them has.
    assert_eq!(waits, ["start 0", "start 0 in 1000 ms", "start 0 in 2000 ms"]);
}

#[test]
fn f8_the_time_is_that_of_the_first_class() {
    let mut stage = Stage::new();
    stage.sure_fault_until_started();
    stage.after(ms(700));
    stage.registered(&[1, 3]);
    stage.step(Event::Worked { tenant: TenantId(0), at: stage.now });
    stage.did(&["start 0", "start 2"]);
    stage.after(ms(300));
    stage.step(Event::Worked { tenant: TenantId(1), at: stage.now });
    stage.step(Event::Worked { tenant: TenantId(3), at: stage.now });
    stage.did(&["recovered 1 after 1000 ms"]);
    // Where there is nobody of that class, anybody counts.
    let mut stage = Stage::new();
    stage.clients.retain(|client| client.class == BE);
    stage.fault(&[(2, ASSERTION), (0, FAILED)]);
    stage.ended(&[0, 2]);
    stage.after(ms(50));
    stage.step(Event::Worked { tenant: TenantId(0), at: stage.now });
    stage.did(&["culprit 2", "end 0", "end 2", "start 0", "start 2", "recovered 0 after 50 ms"]);
}

#[test]
fn f9_who_is_stopped_or_does_not_end_holds_nobody_up() {
    let mut stage = Stage::new();
    stage.fault(&[(2, ASSERTION), (0, FAILED), (1, FAILED), (3, FAILED)]);
    stage.did(&[&["culprit 2"], &ALL_END[..]].concat());
    stage.step(Event::Gone { tenant: TenantId(1) });
    stage.ended(&[0, 3]);
    stage.did(&[]);
    stage.after(END_LIMIT);
    stage.did(&["start 3"]);
    stage.registered(&[3]);
    stage.did(&["start 0"]);
    stage.step(Event::Worked { tenant: TenantId(3), at: stage.now });
    stage.ended(&[2]);
    stage.did(&["recovered 3 after 30000 ms", "start 2"]);
}

const ALL_RELEASED: [&str; 4] = ["release 0", "release 1", "release 2", "release 3"];

#[test]
fn f10_after_a_contained_fault_nobody_is_ended_or_kept_out() {
    let mut stage = Stage::whose_server_says(Server::Active);
    for fault in 1..=5 {
        stage.report(2, ASSERTION);
        assert!(stage.faults.is_closed());
        stage.ended(&[2]);
        stage.did(&[]);
        stage.after(SETTLE);
        // What it has ended by itself is for its policy.
        stage.did(&[&["culprit 2"], &ALL_RELEASED[..]].concat());
        let verdict = stage.verdicts.last().unwrap();
        assert_eq!((verdict.fault, verdict.is_contained(), verdict.kept_out), (fault, true, false));
        assert!(!stage.faults.is_closed());
        assert_eq!(stage.faults.deadline(), None);
        stage.after(ms(3_000));
    }
    // It did not add up to anything.
    stage.server = Some((Server::Faulted, Vec::new()));
    stage.sure_fault();
    assert_eq!(stage.verdicts.last().unwrap().evidence, Evidence::OnlyOwnCode);
    assert!(!stage.verdicts.last().unwrap().kept_out);
    // Its policy holds for who has ended by himself, and who was stopped stays so.
    let mut stage = Stage::whose_server_says(Server::Active);
    stage.clients[2].restart = Restart::Never;
    stage.report(2, ASSERTION);
    stage.ended(&[2]);
    stage.step(Event::Gone { tenant: TenantId(0) });
    stage.after(SETTLE);
    stage.did(&["leave 2: Never", "culprit 2", "release 1", "release 3"]);
    // The only client there is, too.
    let mut stage = Stage::whose_server_says(Server::Active);
    stage.clients.truncate(1);
    stage.report(0, ASSERTION);
    stage.after(SETTLE);
    stage.did(&["culprit 0", "release 0"]);
}

#[test]
fn a_fault_of_which_others_are_told_is_not_contained() {
    let told: [&[(u32, u32)]; 3] =
        [&[(2, ASSERTION), (1, FAILED)], &[(2, ASSERTION), (1, ASSERTION)], &[(2, 810)]];
    for told in told {
        let mut stage = Stage::whose_server_says(Server::Active);
        stage.fault(told);
        stage.after(SETTLE);
        assert_eq!(stage.done[1..], ALL_END, "{told:?}");
    }
    // While the server thinks about its answer, too.
    let mut stage = Stage { server: None, ..Stage::new() };
    stage.report(2, ASSERTION);
    stage.after(SETTLE);
    stage.did(&[]);
    stage.report(1, FAILED);
    stage.did(&[&["culprit 2"], &ALL_END[..]].concat());
    // And whom the log names has not been told.
    let mut stage = Stage::whose_server_says(Server::Active);
    stage.report(2, ASSERTION);
    stage.step(Event::Logged { tenant: TenantId(1) });
    stage.after(SETTLE);
    assert_eq!(stage.done[1..], ALL_END);
}

#[test]
fn f11_without_an_answer_all_others_must_have_gone_on() {
    for (went_on, contained) in [(vec![0, 1, 3], true), (vec![1, 3], false), (vec![], false)] {
        let mut stage = Stage::new();
        stage.server = Some((Server::Unknown, went_on));
        stage.report(2, ASSERTION);
        stage.after(SETTLE);
        let (first, rest) = stage.done.split_first().unwrap();
        assert_eq!((first.as_str(), rest == ALL_RELEASED), ("culprit 2", contained));
        assert_eq!(rest == ALL_END, !contained);
    }
    // It hangs.
    let mut stage = Stage { server: None, ..Stage::new() };
    stage.report(2, ASSERTION);
    stage.after(SETTLE);
    stage.after(Nanos(ASK_LIMIT.0 - 1));
    stage.did(&[]);
    stage.after(Nanos(1));
    stage.did(&[&["culprit 2"], &ALL_END[..]].concat());
}

#[test]
fn f12_others_that_are_told_later_are_told_of_the_same_fault() {
    for (between, faults) in [(Nanos(AFTERMATH.0 - 1), 1), (AFTERMATH, 2)] {
        let mut stage = Stage::whose_server_says(Server::Active);
        stage.report(2, ASSERTION);
        stage.after(SETTLE);
        stage.did(&[&["culprit 2"], &ALL_RELEASED[..]].concat());
        stage.after(between);
        stage.report(1, FAILED);
        stage.after(SETTLE);
        let (culprit, then) = if faults == 1 { ("culprit 2", ALL_END) } else { ("culprit 1", ALL_RELEASED) };
        stage.did(&[&[culprit], &then[..]].concat());
        assert_eq!(stage.verdicts[1].fault, faults);
    }
    // The culprit's next run has a fault of its own.
    let mut stage = Stage::whose_server_says(Server::Active);
    for fault in 1..=2 {
        stage.report(2, ASSERTION);
        stage.after(SETTLE);
        stage.did(&[&["culprit 2"], &ALL_RELEASED[..]].concat());
        assert_eq!(stage.verdicts.last().unwrap().fault, fault);
    }
}

#[test]
fn f13_who_waits_since_the_fault_before_is_started() {
    let mut stage = Stage::new();
    stage.sure_fault_until_started();
    // The others have no processes now.
    stage.clients.retain(|client| client.class == LS);
    stage.server = Some((Server::Active, Vec::new()));
    stage.report(1, ASSERTION);
    stage.after(SETTLE);
    stage.did(&["culprit 1", "release 1", "release 3", "start 0", "start 2"]);
}

impl Stage {
    /// All that run are told the same at the same time, and end; latency-sensitive ones come back.
    fn unsure_fault(&mut self, running: &[u32]) {
        self.clients = clients();
        self.clients.retain(|client| running.contains(&client.tenant.0));
        self.fault(&running.iter().map(|&tenant| (tenant, 700)).collect::<Vec<_>>());
        self.ended(running);
        self.done.retain(|done| !done.starts_with("end"));
        self.registered(&[1, 3]);
        self.step(Event::Worked { tenant: TenantId(1), at: self.now });
        self.done.retain(|done| !done.starts_with("recovered"));
    }
}

#[test]
fn f14_suspects_come_back_apart_until_one_of_them_has_done_it_twice() {
    let mut stage = Stage::new();
    stage.unsure_fault(&[0, 1, 2, 3]);
    stage.did(&["culprit unknown", "start 1", "start 3", "start 0", "start 2"]);
    assert_eq!(stage.verdicts[0].apart, None);
    stage.after(ms(4_000));
    stage.unsure_fault(&[0, 1, 2, 3]);
    stage.did(&["culprit unknown", "start 1", "start 3"]);
    assert_eq!(stage.verdicts[1].apart, Some(ms(12_000)), "three times the four seconds");
    stage.after(ms(11_999));
    stage.did(&[]);
    stage.after(ms(1));
    stage.did(&["start 0"]);
    // It is observed from when it is there.
    stage.after(ms(7_000));
    stage.registered(&[0]);
    stage.after(ms(11_999));
    stage.did(&[]);
    stage.after(ms(1));
    stage.did(&["start 2"]);
    stage.registered(&[2]);
    stage.after(ms(4_000));
    stage.unsure_fault(&[0, 1, 2, 3]);
    stage.did(&["culprit 2", "start 1", "start 3"]);
    assert_eq!((stage.verdicts[2].evidence, stage.verdicts[2].kept_out), (Evidence::LetInLast, false));
    // Again, and the one that was named is the last.
    stage.after(ms(12_000));
    stage.did(&["start 0"]);
    stage.registered(&[0]);
    stage.after(ms(12_000));
    assert!(stage.done[0].starts_with("start 2"), "{:?}", stage.done);
    stage.done.clear();
    stage.registered(&[2]);
    stage.unsure_fault(&[0, 1, 2, 3]);
    stage.did(&["culprit 2", "keep out 2", "start 1", "start 3", "start 0"]);
    assert_eq!(stage.verdicts[3].apart, None, "it is over");
}

#[test]
fn f14_what_is_sure_or_was_not_reported_by_the_last_one_is_not_its_fault() {
    for (told, culprit) in [
        (vec![(0, 710), (1, FAILED), (3, FAILED)], Some(0)),
        (vec![(1, 700), (3, 700)], None),
        (vec![(0, 700), (1, 700), (3, 700)], Some(0)),
        (vec![(3, 710), (0, FAILED), (1, FAILED)], Some(3)),
    ] {
        let mut stage = Stage::new();
        stage.unsure_fault(&[0, 1, 2, 3]);
        stage.unsure_fault(&[0, 1, 2, 3]);
        stage.after(OBSERVE_MIN);
        stage.registered(&[0]);
        stage.clients.retain(|client| client.tenant.0 != 2);
        stage.fault(&told);
        stage.after(SETTLE);
        assert_eq!(stage.verdicts[2].culprit, culprit.map(TenantId), "{told:?}");
    }
}

#[test]
fn f15_apart_and_nothing_happens_all_are_back() {
    let mut stage = Stage::new();
    stage.unsure_fault(&[0, 1, 2, 3]);
    stage.unsure_fault(&[0, 1, 2, 3]);
    stage.done.clear();
    for tenant in [0, 2] {
        stage.after(OBSERVE_MIN);
        stage.did(&[&format!("start {tenant}")]);
        // One that never comes is not waited for.
        stage.after(REGISTER_LIMIT);
        stage.did(&[]);
    }
    stage.after(OBSERVE_MIN);
    assert_eq!(stage.faults.deadline(), None);
    // Long after that it is a fault like the first.
    stage.after(AGAIN);
    stage.unsure_fault(&[0, 1, 2, 3]);
    assert_eq!(stage.verdicts[2].apart, None);
    // Without latency-sensitive tenants there is nobody to be observed first.
    let mut stage = Stage::new();
    stage.unsure_fault(&[0, 2]);
    stage.unsure_fault(&[0, 2]);
    stage.did(&["culprit unknown", "start 0", "start 2", "culprit unknown", "start 0"]);
}

#[test]
fn f16_best_effort_tenants_do_not_wait_for_what_others_do() {
    let mut stage = Stage::new();
    stage.unsure_fault(&[0, 1, 2, 3]);
    stage.unsure_fault(&[0, 1, 2, 3]);
    stage.done.clear();
    stage.unsure_fault(&[1, 3]);
    assert_eq!(stage.verdicts[2].apart, None);
    let begun =
        |stage: &Stage, tenant| stage.done.iter().any(|done| done.starts_with(&format!("start {tenant}")));
    assert!(begun(&stage, 0) && begun(&stage, 2), "{:?}", stage.done);
}

#[test]
fn what_was_reported_and_logged_is_weighed() {
    let report = |tenant, code, at| Report { tenant: TenantId(tenant), code, at: ms(at) };
    let all = [0, 1, 2].map(TenantId);
    // Reports, tenants that the log names; the culprit and why.
    type Case<'a> = (&'a [Report], &'a [u32], Option<u32>, Evidence);
    let cases: &[Case<'_>] = &[
        (&[report(0, 710, 9), report(1, 719, 1)], &[], Some(0), Evidence::OnlyOwnCode),
        (&[report(0, 719, 9), report(1, 810, 1)], &[], Some(0), Evidence::OnlyOwnCode),
        (&[report(0, 700, 1), report(1, 700, 9)], &[], Some(0), Evidence::ReportedFirst),
        (&[report(0, 700, 1), report(1, 700, 2)], &[], None, Evidence::Several),
        (&[report(0, 700, 1)], &[], Some(0), Evidence::ReportedFirst),
        (&[report(0, 810, 1), report(1, 806, 1)], &[], None, Evidence::Nobody),
        (&[report(0, 700, 1), report(1, 700, 2)], &[1, 1], Some(1), Evidence::NamedByServer),
        (&[report(0, 700, 1), report(1, 700, 2)], &[0, 1], None, Evidence::Several),
        (&[report(0, 710, 1), report(1, 719, 2)], &[1], None, Evidence::Conflict),
        (&[report(0, 710, 1), report(1, 719, 2)], &[7], Some(0), Evidence::OnlyOwnCode),
        // A process of the culprit's that did nothing hears of it like the others.
        (&[report(0, 719, 1), report(1, 719, 2), report(0, 710, 3)], &[], Some(0), Evidence::OnlyOwnCode),
    ];
    for (reports, named, culprit, evidence) in cases {
        let named: Vec<TenantId> = named.iter().copied().map(TenantId).collect();
        let found = evidence::weigh(reports, &named, &all);
        assert_eq!(found, (culprit.map(TenantId), *evidence), "{reports:?} {named:?}");
    }
    let alone = evidence::weigh(&[report(0, 719, 1)], &[], &[TenantId(0)]);
    assert_eq!(alone, (Some(TenantId(0)), Evidence::Alone));
}

#[test]
fn reporting_first_keeps_out_the_fourth_time_and_nobody_latency_sensitive() {
    for (tenant, kept_out) in [(0, true), (1, false)] {
        let mut stage = Stage::new();
        for time in 1..=6 {
            stage.report(tenant, 700);
            stage.after(SETTLE);
            stage.ended(&[0, 1, 2, 3]);
            stage.registered(&[1, 3]);
            assert_eq!(stage.verdicts.last().unwrap().kept_out, kept_out && time == 4, "time {time}");
            stage.after(ms(70_000));
        }
    }
}

/// What may happen to a stage, at random.
#[derive(Debug, Clone)]
enum Random {
    Report(u32, u32),
    Logged(u32),
    Server(Server, Vec<u32>),
    Ended(u32, bool),
    Gone(u32),
    Registered(u32),
    Worked(u32),
    After(u64),
}

fn random() -> impl Strategy<Value = Random> {
    let code = prop_oneof![Just(700), Just(710), Just(719), Just(806), Just(810), any::<u32>()];
    let server = prop_oneof![Just(Server::Active), Just(Server::Faulted), Just(Server::Unknown)];
    prop_oneof![
        3 => (0u32..4, code).prop_map(|(tenant, code)| Random::Report(tenant, code)),
        1 => (0u32..6).prop_map(Random::Logged),
        2 => (server, proptest::collection::vec(0u32..4, 0..4)).prop_map(|(server, went_on)| Random::Server(server, went_on)),
        6 => (0u32..4, any::<bool>()).prop_map(|(tenant, well)| Random::Ended(tenant, well)),
        1 => (0u32..4).prop_map(Random::Gone),
        2 => (0u32..4).prop_map(Random::Registered),
        2 => (0u32..4).prop_map(Random::Worked),
        4 => (0u64..20_000).prop_map(Random::After),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn whatever_happens(events in proptest::collection::vec(random(), 1..120)) {
        let mut faults = Faults::new();
        let (mut now, clients) = (ms(1), clients());
        let mut started = [false; 4];
        let mut blamed = [0; 4];
        for event in events {
            let mut actions = Vec::new();
            let ending = |well| if well { Ending::Well } else { Ending::Failed };
            let event = match event {
                Random::Report(tenant, code) => {
                    let report = Report { tenant: TenantId(tenant), code, at: now };
                    Event::Reported { report, clients: clients.clone() }
                }
                Random::Logged(tenant) => Event::Logged { tenant: TenantId(tenant) },
                Random::Server(server, went_on) => {
                    Event::Server { server, went_on: went_on.into_iter().map(TenantId).collect() }
                }
                Random::Ended(tenant, well) => {
                    Event::Ended { tenant: TenantId(tenant), ending: ending(well) }
                }
                Random::Gone(tenant) => Event::Gone { tenant: TenantId(tenant) },
                Random::Registered(tenant) => Event::Registered { tenant: TenantId(tenant) },
                Random::Worked(tenant) => Event::Worked { tenant: TenantId(tenant), at: now },
                Random::After(time) => {
                    now = now.saturating_add(ms(time));
                    Event::Time
                }
            };
            faults.step(now, event, &mut actions);
            for action in &actions {
                match action {
                    Action::Named(verdict) => {
                        started = [false; 4];
                        if let Some(tenant) = verdict.culprit {
                            blamed[tenant.index()] += verdict.evidence.weight();
                            prop_assert!(verdict.evidence.weight() > 0 || verdict.is_contained());
                        }
                        let ends = actions.iter().any(|action| matches!(action, Action::End { .. }));
                        prop_assert!(!(verdict.is_contained() && ends), "ended for nothing");
                        let released = actions.iter().any(|action| matches!(action, Action::Release { .. }));
                        prop_assert!(verdict.is_contained() || !released, "nobody says when it starts");
                        prop_assert!(!verdict.kept_out || verdict.culprit.is_some());
                    }
                    Action::Start { tenant, at } => {
                        prop_assert!(*at >= now);
                        prop_assert!(!std::mem::replace(&mut started[tenant.index()], true), "started twice for a fault");
                    }
                    Action::KeepOut { tenant } => prop_assert!(blamed[tenant.index()] >= KEEP_OUT, "kept out without evidence"),
                    Action::Recovered { tenant, .. } => prop_assert!(started[tenant.index()]),
                    Action::Hold { .. } | Action::Ask | Action::End { .. } | Action::Leave { .. } => {}
                    Action::Release { tenant } => {
                        prop_assert!(!started[tenant.index()], "its policy starts it, too");
                    }
                }
            }
            let order: Vec<Class> = actions
                .iter()
                .filter_map(|action| match action {
                    Action::Start { tenant, .. } => Some(clients[tenant.index()].class),
                    _ => None,
                })
                .collect();
            prop_assert!(order.is_sorted(), "best-effort first");
            prop_assert!(faults.deadline().is_none_or(|at| at > now), "something was due and was not done");
        }
    }
}
