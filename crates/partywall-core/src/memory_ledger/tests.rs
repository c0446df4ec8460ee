use proptest::prelude::*;

use super::*;

const LS: TenantId = TenantId(0);
const BE: TenantId = TenantId(1);
const BE_2: TenantId = TenantId(2);

fn gib(gib: u64) -> Bytes {
    Bytes::from_gib(gib)
}

fn ls(tenant: TenantId, limit: Bytes) -> Entitlement {
    Entitlement { tenant, class: Class::LatencySensitive, quota: Quota::Limit(limit) }
}

fn be(tenant: TenantId, quota: Quota) -> Entitlement {
    Entitlement { tenant, class: Class::BestEffort, quota }
}

fn config(tenants: &[Entitlement]) -> Config {
    Config { whole: gib(80), reserve: gib(2), overcommit: false, tenants: tenants.to_vec() }
}

/// LS with 12 GiB, BE with 40 GiB, BE_2 with the remainder: 26 GiB.
fn three() -> MemoryLedger {
    MemoryLedger::new(&config(&[ls(LS, gib(12)), be(BE, Quota::Limit(gib(40))), be(BE_2, Quota::Remainder)]))
        .unwrap()
}

fn reserve(tenant: TenantId, id: u64, bytes: Bytes, path: AllocationPath) -> Event {
    Event::Reserve { tenant, id: AllocationId(id), bytes, path }
}

fn alloc(tenant: TenantId, id: u64, bytes: Bytes) -> Event {
    reserve(tenant, id, bytes, AllocationPath::CuMemAlloc)
}

fn commit(tenant: TenantId, id: u64) -> Event {
    Event::Commit { tenant, id: AllocationId(id) }
}

fn failed(tenant: TenantId, id: u64) -> Event {
    Event::Failed { tenant, id: AllocationId(id) }
}

fn free(tenant: TenantId, id: u64) -> Event {
    Event::Free { tenant, id: AllocationId(id) }
}

fn granted(bytes: Bytes) -> Decision {
    Decision::Granted { charged: bytes }
}

fn returned(bytes: Bytes, entries: usize) -> Decision {
    Decision::Returned { bytes, entries }
}

#[test]
fn s1_what_the_driver_refuses_is_rolled_back() {
    let mut ledger = three();
    assert_eq!(ledger.name(), "memory-ledger");
    let before = ledger.clone();
    assert_eq!(ledger.step(alloc(LS, 1, gib(12))), granted(gib(12)));
    // Until the driver has answered, nobody else may have it, nor the tenant itself twice.
    assert_eq!(ledger.free(LS), Bytes::ZERO);
    assert_eq!(ledger.step(failed(LS, 1)), returned(gib(12), 1));
    assert_eq!(ledger, before);
    ledger.step(alloc(LS, 1, gib(12)));
    assert_eq!(ledger.step(commit(LS, 1)), Decision::Committed);
    assert_eq!(ledger.step(free(LS, 1)), returned(gib(12), 1));
    assert_eq!(ledger, before);
}

#[test]
fn s2_a_tenant_at_its_limit_is_refused() {
    let mut ledger = three();
    ledger.step(alloc(LS, 1, gib(10)));
    let refusal = Refusal::Quota { asked: gib(3), free: gib(2), limit: gib(12) };
    assert_eq!(ledger.step(alloc(LS, 2, gib(3))), Decision::Refused(refusal));
    assert_eq!(
        refusal.to_string(),
        "3GiB more are beyond the tenant's limit of 12GiB, of which 2GiB are free"
    );
    assert_eq!(ledger.step(alloc(LS, 2, gib(2))), granted(gib(2)));
}

#[test]
fn s3_the_remainder_is_what_is_not_guaranteed_to_others() {
    let mut ledger = three();
    let refusal = Refusal::Whole { asked: gib(27), free: gib(26) };
    assert_eq!(ledger.step(alloc(BE_2, 1, gib(27))), Decision::Refused(refusal));
    assert_eq!(ledger.step(alloc(BE_2, 1, gib(26))), granted(gib(26)));
    assert_eq!(ledger.step(alloc(LS, 1, gib(12))), granted(gib(12)));
    assert_eq!(ledger.step(alloc(BE, 1, gib(40))), granted(gib(40)));
    assert_eq!((ledger.granted(), ledger.whole()), (gib(78), gib(80)));
}

#[test]
fn s4_small_allocations_share_pages() {
    let mut ledger = three();
    assert_eq!(ledger.step(alloc(LS, 1, Bytes(100))), granted(PAGE));
    assert_eq!(ledger.step(alloc(LS, 2, Bytes(PAGE.0 - 100))), granted(Bytes::ZERO));
    assert_eq!(ledger.step(alloc(LS, 3, Bytes(1))), granted(PAGE));
    assert_eq!(ledger.step(failed(LS, 1)), returned(PAGE, 1));
    assert_eq!(ledger.step(alloc(LS, 4, Bytes(PAGE.0 + 1))), granted(Bytes(2 * PAGE.0)));
    assert_eq!(ledger.step(reserve(LS, 5, Bytes(1), AllocationPath::Vmm)), granted(PAGE));
    assert_eq!(ledger.step(reserve(LS, 6, Bytes(77), AllocationPath::ContextOverhead)), granted(Bytes(77)));
    assert_eq!(ledger.used(LS), Bytes(4 * PAGE.0 + 77));
}

#[test]
fn s5_host_memory_and_imports_cost_nothing_and_everything_else_does() {
    for path in AllocationPath::ALL {
        let mut ledger = three();
        let costs = !matches!(path, AllocationPath::HostRegistered | AllocationPath::Imported);
        let expected = if costs { gib(1) } else { Bytes::ZERO };
        assert_eq!(ledger.step(reserve(LS, 1, gib(1), path)), granted(expected), "{path:?}");
        ledger.step(commit(LS, 1));
        assert_eq!(ledger.step(free(LS, 1)), returned(expected, 1), "{path:?}");
        let beyond = ledger.step(reserve(LS, 2, gib(13), path));
        assert_eq!(matches!(beyond, Decision::Refused(Refusal::Quota { .. })), costs, "{path:?}");
    }
}

#[test]
fn s6_events_that_do_not_fit_are_reported_and_change_nothing() {
    let mut ledger = three();
    ledger.step(alloc(LS, 1, gib(1)));
    ledger.step(alloc(LS, 2, gib(1)));
    ledger.step(commit(LS, 2));
    let before = ledger.clone();
    for (event, misuse) in [
        (free(LS, 9), Misuse::Allocation),
        (free(BE, 2), Misuse::Allocation),
        (free(TenantId(9), 2), Misuse::Tenant),
        (free(LS, 1), Misuse::Pending),
        (failed(LS, 2), Misuse::Answered),
        (commit(LS, 2), Misuse::Answered),
        (commit(LS, 9), Misuse::Allocation),
        (alloc(LS, 2, gib(1)), Misuse::InUse),
        (alloc(TenantId(9), 1, gib(1)), Misuse::Tenant),
        (Event::TenantGone { tenant: TenantId(9) }, Misuse::Tenant),
    ] {
        assert_eq!(ledger.step(event), Decision::Misused(misuse), "{event:?}");
        assert_eq!(ledger, before, "{event:?}");
    }
    ledger.step(free(LS, 2));
    assert_eq!(ledger.step(free(LS, 2)), Decision::Misused(Misuse::Allocation));
}

#[test]
fn s7_a_dead_tenants_memory_is_returned_and_its_guarantee_stays() {
    let mut ledger = three();
    let before = ledger.clone();
    ledger.step(alloc(BE, 1, gib(30)));
    ledger.step(alloc(BE, 2, Bytes(5)));
    ledger.step(commit(BE, 1));
    assert_eq!(ledger.step(Event::TenantGone { tenant: BE }), returned(gib(30) + PAGE, 2));
    assert_eq!(ledger, before);
    assert!(matches!(ledger.step(alloc(BE_2, 1, gib(27))), Decision::Refused(Refusal::Whole { .. })));
}

#[test]
fn s8_limits_beyond_the_gpu_need_overcommit() {
    let mut config =
        config(&[ls(LS, gib(12)), be(BE, Quota::Limit(gib(60))), be(BE_2, Quota::Limit(gib(60)))]);
    assert_eq!(
        MemoryLedger::new(&config).unwrap_err().to_string(),
        "the memory limits add up to 132.0GiB, but tenants can have 78.0GiB together: the GPU has 80.0GiB and keeps 2.0GiB \
         for itself; lower a limit, or stop a tenant that has one"
    );
    config.overcommit = true;
    let mut ledger = MemoryLedger::new(&config).unwrap();
    assert_eq!(ledger.step(alloc(BE, 1, gib(60))), granted(gib(60)));
    let refusal = Refusal::Whole { asked: gib(7), free: gib(6) };
    assert_eq!(ledger.step(alloc(BE_2, 1, gib(7))), Decision::Refused(refusal));
    assert_eq!(ledger.step(alloc(LS, 1, gib(12))), granted(gib(12)));
    config.tenants.push(ls(TenantId(3), gib(70)));
    // Those that are only caps do not count.
    let message = MemoryLedger::new(&config).unwrap_err().to_string();
    assert!(message.starts_with("the memory limits add up to 82.0GiB, but"), "{message}");
}

#[test]
fn s8_what_is_said_to_fit_fits() {
    // An H200, with the reserve of a node.
    let whole = Bytes::from_mib(143_768);
    let reserve = Bytes(whole.0 / 64);
    let of = |limit| Config { whole, reserve, ..config(&[ls(LS, limit)]) };
    let message = MemoryLedger::new(&of(whole)).unwrap_err().to_string();
    assert!(message.contains("add up to 140.4GiB, but tenants can have 138.2GiB together"), "{message}");
    MemoryLedger::new(&of("138.2GiB".parse().unwrap())).unwrap();
    // One byte too much is not said to be what there is.
    let message = MemoryLedger::new(&of(Bytes(whole.0 - reserve.0 + 1))).unwrap_err().to_string();
    assert!(message.contains("add up to 138.3GiB, but tenants can have 138.2GiB together"), "{message}");
}

#[test]
fn s8_entitlements_that_make_no_sense_are_refused() {
    let message = |tenants: &[Entitlement]| MemoryLedger::new(&config(tenants)).unwrap_err().to_string();
    let unlimited = Entitlement { quota: Quota::Remainder, ..ls(LS, gib(1)) };
    assert!(message(&[unlimited]).contains("only best-effort tenants can take the remainder"));
    assert!(message(&[ls(LS, gib(1)), be(LS, Quota::Remainder)]).contains("tenant 0 is listed twice"));
    let many: Vec<_> = (0..65).map(|n| be(TenantId(n), Quota::Remainder)).collect();
    assert!(message(&many).contains("at most 64"));
    let huge = Bytes(u64::MAX);
    assert!(message(&[ls(LS, huge), ls(BE, huge)]).contains("the GPU has 80.0GiB"));
    let wrapping = Config { whole: huge, ..config(&[ls(LS, huge), ls(BE, huge)]) };
    assert!(MemoryLedger::new(&wrapping).is_err());
}

#[test]
fn s9_what_a_tenant_sees_of_the_memory() {
    let mut ledger = three();
    let seen = |ledger: &MemoryLedger, tenant| (ledger.free(tenant), ledger.total(tenant));
    ledger.step(alloc(LS, 1, gib(2)));
    ledger.step(alloc(BE_2, 1, gib(20)));
    assert_eq!(seen(&ledger, LS), (gib(10), gib(12)));
    assert_eq!(seen(&ledger, BE), (gib(40), gib(40)));
    assert_eq!(seen(&ledger, BE_2), (gib(6), gib(26)));
    assert_eq!(seen(&ledger, TenantId(9)), (Bytes::ZERO, Bytes::ZERO));
}

#[test]
fn s10_sizes_that_no_gpu_has_are_refused() {
    let mut ledger = three();
    for tenant in [LS, BE_2] {
        ledger.step(alloc(tenant, 1, Bytes(1)));
        let before = ledger.clone();
        for bytes in [u64::MAX, u64::MAX - PAGE.0, 1 << 63] {
            for path in AllocationPath::ALL {
                let free_of_charge =
                    matches!(path, AllocationPath::HostRegistered | AllocationPath::Imported);
                let decision = ledger.step(reserve(tenant, 2, Bytes(bytes), path));
                assert_eq!(matches!(decision, Decision::Refused(_)), !free_of_charge, "{path:?} {bytes}");
                ledger.step(failed(tenant, 2));
                assert_eq!(ledger, before);
            }
        }
    }
}

/// What the tenants have, kept as plainly as possible.
#[derive(Default)]
struct Model {
    entries: Vec<(TenantId, AllocationId, Bytes, AllocationPath, bool)>,
}

impl Model {
    fn used(&self, tenant: TenantId) -> u64 {
        let (mut small, mut pages, mut exact) = (0, 0, 0);
        for &(_, _, bytes, path, _) in self.entries.iter().filter(|entry| entry.0 == tenant) {
            match path {
                AllocationPath::HostRegistered | AllocationPath::Imported => {}
                AllocationPath::ContextOverhead => exact += bytes.0,
                AllocationPath::Vmm => pages += bytes.0.div_ceil(PAGE.0),
                _ if bytes < PAGE => small += bytes.0,
                _ => pages += bytes.0.div_ceil(PAGE.0),
            }
        }
        exact + (pages + small.div_ceil(PAGE.0)) * PAGE.0
    }

    /// Whether the ledger should have accepted the event; takes it in if it did.
    fn step(&mut self, event: Event, decision: Decision) -> bool {
        let find = |t, i| self.entries.iter().position(|entry| entry.0 == t && entry.1 == i);
        match event {
            Event::Reserve { tenant, id, bytes, path } => {
                let fresh = find(tenant, id).is_none();
                if matches!(decision, Decision::Granted { .. }) {
                    self.entries.push((tenant, id, bytes, path, false));
                }
                fresh
            }
            Event::Commit { tenant, id } => match find(tenant, id) {
                Some(at) if !self.entries[at].4 => {
                    self.entries[at].4 = true;
                    true
                }
                _ => false,
            },
            Event::Failed { tenant, id } | Event::Free { tenant, id } => {
                let committed = matches!(event, Event::Free { .. });
                match find(tenant, id) {
                    Some(at) if self.entries[at].4 == committed => {
                        self.entries.remove(at);
                        true
                    }
                    _ => false,
                }
            }
            Event::TenantGone { tenant } => {
                self.entries.retain(|entry| entry.0 != tenant);
                true
            }
        }
    }
}

/// A GPU of 40 pages and a bit, tenants 0 and 1 latency-sensitive, 2 and 3 best-effort.
fn configs() -> impl Strategy<Value = Config> {
    let pages = |n: u64| Bytes(n * PAGE.0 + 12_345);
    (any::<bool>(), 0u64..5, 1u64..12, 1u64..12, prop::option::of(1u64..30), prop::option::of(1u64..30))
        .prop_map(move |(overcommit, reserve, a, b, c, d)| {
            let quota = |n: Option<u64>| n.map_or(Quota::Remainder, |n| Quota::Limit(pages(n)));
            let tenants = vec![
                ls(TenantId(0), pages(a)),
                ls(TenantId(1), pages(b)),
                be(TenantId(2), quota(c)),
                be(TenantId(3), quota(d)),
            ];
            Config { whole: pages(40), reserve: pages(reserve), overcommit, tenants }
        })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let tenant = || (0u32..4).prop_map(TenantId);
    let id = || (0u64..12).prop_map(AllocationId);
    let bytes = prop_oneof![0u64..PAGE.0, 0u64..10 * PAGE.0].prop_map(Bytes);
    let event = prop_oneof![
        8 => (tenant(), id(), bytes, prop::sample::select(&AllocationPath::ALL[..]))
            .prop_map(|(tenant, id, bytes, path)| Event::Reserve { tenant, id, bytes, path }),
        6 => (tenant(), id()).prop_map(|(tenant, id)| Event::Commit { tenant, id }),
        2 => (tenant(), id()).prop_map(|(tenant, id)| Event::Failed { tenant, id }),
        3 => (tenant(), id()).prop_map(|(tenant, id)| Event::Free { tenant, id }),
        1 => tenant().prop_map(|tenant| Event::TenantGone { tenant }),
    ];
    prop::collection::vec(event, 0..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_book_adds_up_and_nobody_gets_what_is_not_theirs(config in configs(), events in events()) {
        let ledger = MemoryLedger::new(&config);
        prop_assume!(ledger.is_ok());
        let mut ledger = ledger.unwrap();
        let mut model = Model::default();
        for event in events {
            let before = ledger.clone();
            let decision = ledger.step(event);
            let fits = model.step(event, decision);
            prop_assert_eq!(fits, !matches!(decision, Decision::Misused(_)), "{:?} {:?}", event, decision);
            if matches!(decision, Decision::Misused(_) | Decision::Refused(_)) {
                prop_assert_eq!(&ledger, &before);
            }
            if matches!(decision, Decision::Granted { .. }) {
                let Event::Reserve { tenant, id, .. } = event else { unreachable!() };
                let mut undone = ledger.clone();
                undone.step(Event::Failed { tenant, id });
                prop_assert_eq!(undone, before);
            }
            prop_assert!(ledger.granted() + config.reserve <= config.whole);
            for &Entitlement { tenant, class, quota } in &config.tenants {
                let used = ledger.used(tenant);
                prop_assert_eq!(used.0, model.used(tenant));
                if let Quota::Limit(limit) = quota {
                    prop_assert!(used <= limit);
                    if class == Class::LatencySensitive {
                        prop_assert_eq!(ledger.free(tenant), limit - used, "a guarantee was given away");
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_said_to_be_free_can_be_had_and_no_byte_more(config in configs(), events in events()) {
        let ledger = MemoryLedger::new(&config);
        prop_assume!(ledger.is_ok());
        let mut ledger = ledger.unwrap();
        for event in events {
            ledger.step(event);
        }
        for tenant in (0..4).map(TenantId) {
            // By the one path that is not rounded, so that the last byte counts.
            let ask = |bytes| reserve(tenant, 99, bytes, AllocationPath::ContextOverhead);
            let free = ledger.free(tenant);
            prop_assert!(free <= ledger.total(tenant));
            prop_assert!(matches!(ledger.clone().step(ask(free + Bytes(1))), Decision::Refused(_)));
            prop_assert_eq!(ledger.clone().step(ask(free)), granted(free));
        }
    }

    #[test]
    fn returning_everything_leaves_an_empty_book(config in configs(), events in events()) {
        let empty = MemoryLedger::new(&config);
        prop_assume!(empty.is_ok());
        let empty = empty.unwrap();
        let mut ledger = empty.clone();
        for event in events {
            ledger.step(event);
        }
        let mut by_tenant = ledger.clone();
        for tenant in (0..4).map(TenantId) {
            by_tenant.step(Event::TenantGone { tenant });
            for id in (0..12).map(AllocationId) {
                ledger.step(Event::Failed { tenant, id });
                ledger.step(Event::Free { tenant, id });
            }
        }
        prop_assert_eq!(&ledger, &empty);
        prop_assert_eq!(&by_tenant, &empty);
    }
}

#[test]
fn s4_one_that_only_counts_rounds_like_the_others() {
    let mut ledger = MemoryLedger::unlimited(LS);
    assert_eq!(ledger.step(alloc(LS, 1, Bytes(1))), granted(PAGE));
    assert_eq!(ledger.step(alloc(LS, 2, gib(1 << 20))), granted(gib(1 << 20)));
    assert_eq!(ledger.used(LS), gib(1 << 20) + PAGE);
    // All but what no number can hold.
    assert!(matches!(ledger.step(alloc(LS, 3, Bytes(u64::MAX))), Decision::Refused(_)));
    assert_eq!(ledger.step(failed(LS, 2)), returned(gib(1 << 20), 1));
    assert_eq!(ledger.used(LS), PAGE);
}
