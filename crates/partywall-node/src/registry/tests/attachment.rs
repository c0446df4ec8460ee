//! Who is behind the wall: clients of the node's MPS daemon, and SM sets.

use partywall_shim_api::page::SmSet as PageSet;

use partywall_core::sm_sets::SmSet;

use super::*;

type Clients = Arc<Mutex<Result<BTreeSet<u32>, String>>>;

/// A registry behind MPS, and what its daemon says.
fn behind_mps() -> (Bench, Clients) {
    let mut bench = Bench::new();
    bench.stop();
    let clients = Clients::new(Mutex::new(Ok(BTreeSet::new())));
    let told = Arc::clone(&clients);
    let options = Options {
        reserve: Bytes::ZERO,
        context_estimate: Bytes::ZERO,
        wall: WallChoice::Fixed(partywall_core::wall::Wall::Mps),
        clients: Some(Box::new(move || told.lock().unwrap().clone())),
        ..Options::new(Bytes::from_gib(10), Err("not in this test".to_owned()))
    };
    let _ = std::fs::remove_file(bench.socket());
    bench.registry = Some(Registry::start(&bench.socket(), options).unwrap());
    (bench, clients)
}

/// A process that has said what it uses.
fn joined(bench: &mut Bench, id: u32) -> Shim {
    let token = bench.tenant(id, 1000);
    let shim = bench.join(token);
    shim.send(&ToNode::Coverage { disposition: Disposition::Enforced, names: "cuInit".to_owned() });
    wait("what it uses", || bench.view(id).coverage.enforced.contains("cuInit"));
    shim
}

#[test]
fn nothing_is_guaranteed_before_a_process_was_seen_among_the_clients() {
    let (mut bench, clients) = behind_mps();
    let shim = joined(&mut bench, 1);
    assert_eq!((bench.view(1).guaranteed, bench.view(1).processes[0].mps_client), (None, None));
    clients.lock().unwrap().as_mut().unwrap().insert(std::process::id());
    // Looked for from its first use of the GPU on.
    shim.uses(2);
    wait("the proof", || bench.view(1).guaranteed == Some(true));
    assert_eq!(bench.view(1).processes[0].mps_client, Some(true));
    // One proof is enough for a process: clients do not leave.
    clients.lock().unwrap().as_mut().unwrap().clear();
    let other = joined(&mut bench, 2);
    other.uses(2);
    wait("that the other one is missing", || bench.view(2).guaranteed == Some(false));
    assert_eq!(bench.view(2).reasons, ["a process is not a client of the node's MPS daemon"]);
    assert_eq!(bench.view(2).processes[0].mps_client, Some(false));
    assert_eq!(bench.view(1).guaranteed, Some(true));
    bench.registry().wall_fell("the daemon has ended", true);
    assert_eq!(bench.view(1).guaranteed, Some(false));
    assert_eq!(bench.view(1).reasons, ["the MPS daemon of a process has ended"]);
    let third = joined(&mut bench, 3);
    assert_eq!((bench.view(3).guaranteed, bench.view(3).reasons.len()), (None, 0));
    clients.lock().unwrap().as_mut().unwrap().insert(std::process::id());
    third.uses(2);
    wait("the proof from the next daemon", || bench.view(3).guaranteed == Some(true));
    bench.registry().wall_fell("the daemon has ended", false);
    assert_eq!(bench.view(3).guaranteed, Some(false));
    assert!(
        bench.view(3).reasons.contains(&"the daemon has ended".to_owned()),
        "{:?}",
        bench.view(3).reasons
    );
}

#[test]
fn a_daemon_that_does_not_answer_proves_nothing_until_it_does() {
    let (mut bench, clients) = behind_mps();
    *clients.lock().unwrap() = Err("it is mute".to_owned());
    let shim = joined(&mut bench, 1);
    shim.uses(2);
    wait("that this is said", || bench.view(1).reasons == ["it is mute"]);
    assert_eq!(bench.view(1).guaranteed, Some(false));
    *clients.lock().unwrap() = Ok([std::process::id()].into());
    wait("the proof", || bench.view(1).guaranteed == Some(true));
    assert!(bench.view(1).reasons.is_empty());
}

#[test]
fn a_page_says_on_which_sms_its_tenant_computes() {
    let mut bench = Bench::new();
    let set = |first| Some(SmSet { first, groups: 10, sms_per_group: 2 });
    let of_page = |shim: &Shim| shim.page.header.sm_set();
    let described = TenantSpec { sms: set(27), ..spec(1, None) };
    bench.registry().add_tenant(&described).unwrap();
    let shim = bench.join(described.token);
    assert_eq!(of_page(&shim), Some(PageSet { first: 27, groups: 10, sms_per_group: 2 }));
    assert_eq!(bench.view(1).sms, set(27));
    bench.registry().confine(TenantId(1), Place { sms: set(3), squeezed: set(9) });
    assert_eq!(shim.page.header.squeezed(), None);
    let again = bench.join(described.token);
    let told = [of_page(&again), again.page.header.squeezed()].map(|set| set.map(|set| set.first));
    assert_eq!(told, [Some(3), Some(9)]);
    assert_eq!(bench.view(1).squeezed_sms, set(9));
    let free = bench.tenant(2, 10);
    assert_eq!(of_page(&bench.join(free)), None);
}

/// What processes behind the daemon have shown.
fn shown(bench: &mut Bench) -> Vec<(u32, Sign)> {
    bench.registry().signs().into_iter().map(|(id, sign)| (id.0, sign)).collect()
}

#[test]
fn what_processes_behind_the_daemon_show_is_told_once() {
    let (mut bench, clients) = behind_mps();
    clients.lock().unwrap().as_mut().unwrap().insert(std::process::id());
    let shim = joined(&mut bench, 1);
    assert_eq!(shown(&mut bench), [(1, Sign::Registered)]);
    shim.uses(2);
    wait("the proof", || bench.view(1).guaranteed == Some(true));
    shim.page.shim.launches.store(1, Ordering::Relaxed);
    let mut signs = Vec::new();
    wait("the first launch", || {
        signs.extend(shown(&mut bench));
        !signs.is_empty()
    });
    assert!(matches!(signs[..], [(1, Sign::Worked { .. })]), "{signs:?}");
    // No error that ends anything.
    shim.page.shim.fault_code.store(720, Ordering::Release);
    let before = clock::now();
    wait("some looks", || clock::now() > before.saturating_add(Nanos::from_millis(300)));
    assert_eq!(shown(&mut bench), []);
    // A time that makes no sense is bent until it does.
    shim.page.shim.fault_ns.store(u64::MAX, Ordering::Relaxed);
    shim.page.shim.fault_code.store(700, Ordering::Release);
    wait("the fault", || {
        signs = shown(&mut bench);
        !signs.is_empty()
    });
    let (pid, now) = (Some(std::process::id()), clock::now());
    assert!(
        matches!(signs[..], [(1, Sign::Fault { pid: told, code: 700, at })] if told == pid && at <= now),
        "{signs:?}"
    );
    let behind = bench.registry().behind_mps();
    assert_eq!(behind, [(TenantId(1), BTreeSet::from([std::process::id()]))].into());
    // Its last words, and nothing twice. For a moment it still counts as one that the fault has ended.
    drop(shim);
    bench.registry().tenant_event(TenantId(1), TenantEvent::Ended { run: 1 });
    assert_eq!(shown(&mut bench), []);
    assert_eq!(bench.registry().behind_mps(), behind);
}

#[test]
fn nothing_is_shown_where_there_is_no_daemon() {
    let mut bench = Bench::new();
    let shim = joined(&mut bench, 1);
    shim.page.shim.fault_code.store(700, Ordering::Release);
    let before = clock::now();
    wait("some looks", || clock::now() > before.saturating_add(Nanos::from_millis(300)));
    assert_eq!((shown(&mut bench), bench.registry().behind_mps()), (Vec::new(), BTreeMap::new()));
}
