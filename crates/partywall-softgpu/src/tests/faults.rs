//! Faults: those of programs, and those that were asked for.

use super::{
    Player, allocate, alone, begin, command, cuCtxSynchronize, cuInit, cuStreamQuery, kernels, launch,
    listen, new_stream, say,
};
use crate::clock;
use crate::environment::{self, FAULT, MPS_PIPE_DIRECTORY};
use crate::folder::tests::made;

const ILLEGAL_ADDRESS: u32 = 700;
const NOT_READY: u32 = 600;
const UNAVAILABLE: u32 = 46;
const NO_DEVICE: &str = "100";

#[test]
fn an_illegal_access_ends_the_contexts_for_good() {
    alone("faults::an_illegal_access_ends_the_contexts_for_good", &[], || {
        begin();
        let kernels = kernels();
        assert_eq!(launch(kernels["step_once"], 0, 0x1000_u64), 0, "the launch itself is no error");
        // SAFETY: takes nothing.
        assert_eq!(unsafe { cuCtxSynchronize() }, ILLEGAL_ADDRESS);
        assert_eq!(allocate(100), Err(ILLEGAL_ADDRESS));
        assert_eq!(launch(kernels["something_else"], 0, 0_u32), ILLEGAL_ADDRESS);
    });
}

#[test]
fn allocations_fail_when_asked_to() {
    alone("faults::allocations_fail_when_asked_to", &[(FAULT, "oom-after=2")], || {
        begin();
        assert!(allocate(100).is_ok() && allocate(100).is_ok());
        assert_eq!(allocate(100), Err(2));
    });
}

#[test]
fn a_launch_hangs_when_asked_to() {
    alone("faults::a_launch_hangs_when_asked_to", &[(FAULT, "hang-at-launch=2")], || {
        begin();
        let (kernels, stream) = (kernels(), new_stream(1));
        assert_eq!(launch(kernels["something_else"], stream, 0_u32), 0);
        assert_eq!(launch(kernels["something_else"], stream, 0_u32), 0);
        let end = clock::now() + 30_000_000;
        while clock::now() < end {
            // SAFETY: the handle is alive.
            assert_eq!(unsafe { cuStreamQuery(stream) }, NOT_READY);
        }
    });
}

/// Everybody who has a context loses it; when they have ended, the next one finds the device as if nothing had been.
#[test]
fn the_device_is_lost_when_asked_to_and_comes_back() {
    const NAME: &str = "faults::the_device_is_lost_when_asked_to_and_comes_back";
    if let Some(part) = environment::text(super::PART) {
        if part == "late" {
            // SAFETY: takes no pointers.
            say(&unsafe { cuInit(0) }.to_string());
            return;
        }
        begin();
        let kernels = kernels();
        say("ready");
        listen();
        let launches = if part == "culprit" { 3 } else { 0 };
        let results: Vec<u32> = (0..launches)
            .map(|_| {
                let launched = launch(kernels["something_else"], 0, 0_u32);
                // SAFETY: takes nothing.
                if launched == 0 { unsafe { cuCtxSynchronize() } } else { launched }
            })
            .collect();
        let allocated = allocate(100).map(|_| ());
        say(&format!("{results:?} {allocated:?}"));
        listen();
        return;
    }
    let (directory, _folder) = made("h200");
    let start = |part: &str, variables: &[(&str, &str)]| {
        let mut player = Player::start(NAME, part, directory.path(), variables);
        assert_eq!(player.hear(), "ready");
        player
    };
    let late = || Player::start(NAME, "late", directory.path(), &[]).hear();
    let mut neighbour = start("neighbour", &[]);
    let mut culprit = start("culprit", &[(FAULT, "device-lost-after=2")]);
    let result = |player: &mut Player| {
        player.tell("go");
        player.hear()
    };
    assert_eq!(result(&mut culprit), format!("[0, 0, {UNAVAILABLE}] Err({UNAVAILABLE})"));
    assert_eq!(result(&mut neighbour), format!("[] Err({UNAVAILABLE})"));
    assert_eq!(late(), NO_DEVICE);
    drop(culprit);
    assert_eq!(late(), NO_DEVICE);
    drop(neighbour);
    assert_eq!(late(), "0");
    start("neighbour", &[]);
}

#[test]
fn a_wrong_wish_is_refused_at_the_start() {
    alone("faults::a_wrong_wish_is_refused_at_the_start", &[(FAULT, "explode=1")], || {
        // SAFETY: takes no pointers.
        assert_eq!(unsafe { cuInit(0) }, 1);
    });
}

/// The clients of an MPS daemon go down together; who comes after them, and who is outside, does not notice.
#[test]
fn clients_of_a_daemon_die_together() {
    const NAME: &str = "faults::clients_of_a_daemon_die_together";
    if let Some(part) = environment::text(super::PART) {
        begin();
        let kernels = kernels();
        // SAFETY: takes nothing.
        let wait = || unsafe { cuCtxSynchronize() };
        say("ready");
        listen();
        if part == "culprit" {
            assert_eq!(launch(kernels["step_once"], 0, 0x1000_u64), 0);
        }
        say(&wait().to_string());
        listen();
        return;
    }
    // Of an assertion nobody else can know.
    for (fault, of_culprit, of_client) in [("", "700", "700"), ("assert-for-all-at-launch=1", "710", "719")] {
        die_together(NAME, fault, of_culprit, of_client);
    }
}

/// After an assertion the daemon's other clients go on, and it takes new ones while who made it is still there.
#[test]
fn an_assertion_ends_its_own_process() {
    const NAME: &str = "faults::an_assertion_ends_its_own_process";
    if let Some(part) = environment::text(super::PART) {
        begin();
        let kernels = kernels();
        say("ready");
        listen();
        let launched = launch(kernels["something_else"], 0, 0_u32);
        // SAFETY: takes nothing.
        say(&format!("{part}: {launched} {}", unsafe { cuCtxSynchronize() }));
        listen();
        return;
    }
    let (directory, _folder) = made("h200");
    let pipe = directory.path().join("pipe");
    daemon(&pipe);
    let inside = (MPS_PIPE_DIRECTORY, pipe.to_str().unwrap());
    let start = |part: &str, fault: &str| {
        let mut player = Player::start(NAME, part, directory.path(), &[inside, (FAULT, fault)]);
        assert_eq!(player.hear(), "ready");
        player
    };
    let (mut culprit, mut client) = (start("culprit", "assert-at-launch=1"), start("client", ""));
    culprit.tell("go");
    assert_eq!(culprit.hear(), "culprit: 0 710");
    client.tell("go");
    assert_eq!(client.hear(), "client: 0 0");
    let mut late = start("late", "");
    late.tell("go");
    assert_eq!(late.hear(), "late: 0 0");
    assert!(!pipe.join("faulted").exists());
    drop((culprit, client, late));
}

fn die_together(name: &str, fault: &str, of_culprit: &str, of_client: &str) {
    let (directory, _folder) = made("h200");
    let pipe = directory.path().join("pipe");
    daemon(&pipe);
    let inside = [(MPS_PIPE_DIRECTORY, pipe.to_str().unwrap())];
    let start = |part: &str, variables: &[(&str, &str)]| {
        let mut player = Player::start(name, part, directory.path(), variables);
        assert_eq!(player.hear(), "ready");
        player
    };
    let (mut culprit, mut client, mut outside) =
        (start("culprit", &[inside[0], (FAULT, fault)]), start("client", &inside), start("outside", &[]));
    let result = |player: &mut Player| {
        player.tell("go");
        player.hear()
    };
    assert_eq!(result(&mut culprit), of_culprit);
    assert_eq!(result(&mut client), of_client);
    assert_eq!(result(&mut outside), "0");
    assert_eq!(std::fs::read_dir(pipe.join("faulted")).unwrap().count(), 2, "the daemon knows of two");
    // Until all have gone, the server takes nobody.
    let refused = command(name, "late", directory.path(), &inside).output().unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("807"), "{refused:?}");
    drop((culprit, client));
    start("late", &inside);
}

/// What a daemon leaves in its pipe directory: the process is this one.
fn daemon(pipe: &std::path::Path) {
    std::fs::create_dir_all(pipe.join("clients")).unwrap();
    let pid = std::process::id();
    let start = crate::device::process::start_time(pid).unwrap();
    std::fs::write(pipe.join("soft-mps"), format!("{pid} {start}\n")).unwrap();
}
