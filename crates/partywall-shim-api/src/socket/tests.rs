use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::frame::{ToNode, ToShim};
use crate::page::Mapped;

fn connected(folder: &Path) -> (Socket, Socket) {
    let path = folder.join("tenants.sock");
    let listener = Listener::bind(&path).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let shim = Socket::connect(&path).unwrap();
    (listener.accept().unwrap().unwrap(), shim)
}

#[test]
fn a_page_and_a_bell_travel_with_the_welcome() {
    let folder = tempfile::tempdir().unwrap();
    let (node, shim) = connected(folder.path());
    assert_eq!(node.peer().unwrap().pid, rustix::process::getpid());
    let hello = ToNode::Hello { version: 1, token: [7; 16], held_bytes: 0 };
    shim.send(&hello.encode(), &[]).unwrap();
    let received = node.wait(10_000).unwrap().unwrap();
    assert_eq!(ToNode::decode(&received.bytes), Ok(hello));

    let (page, file) = Mapped::create(5, 1, 0, None).unwrap();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let welcome = ToShim::Welcome { version: 1, lease_bytes: 0 };
    node.send(&welcome.encode(), &[file.as_fd(), bell.as_fd()]).unwrap();
    let received = shim.wait(10_000).unwrap().unwrap();
    assert_eq!(ToShim::decode(&received.bytes), Ok(welcome));
    assert_eq!(received.descriptors.len(), 2);
    let mapped = Mapped::open(&received.descriptors[0]).unwrap();
    mapped.shim.launches.store(3, std::sync::atomic::Ordering::Relaxed);
    assert_eq!(page.shim.launches.load(std::sync::atomic::Ordering::Relaxed), 3);
}

#[test]
fn the_end_of_a_process_is_noticed_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let (node, shim) = connected(folder.path());
    assert!(node.receive().unwrap().is_none());
    drop(shim);
    assert!(matches!(node.receive(), Err(Error::Closed)));
    assert!(matches!(node.send(&ToShim::Recall.encode(), &[]), Err(Error::Closed)));
}

#[test]
fn a_side_that_does_not_read_does_not_hold_up_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let (node, _shim) = connected(folder.path());
    let frame = ToShim::Refused { version: 1, text: "x".repeat(900) }.encode();
    let refused = (0..100_000).find_map(|_| node.send(&frame, &[]).err());
    assert!(matches!(refused, Some(Error::System { .. })));
}

#[test]
fn a_frame_that_is_too_long_is_an_error_and_the_next_one_arrives() {
    let folder = tempfile::tempdir().unwrap();
    let (node, shim) = connected(folder.path());
    shim.send(&[0; FRAME_BYTES + 1], &[]).unwrap();
    assert!(matches!(node.receive(), Err(Error::Frame(_))));
    shim.send(&ToNode::Give { bytes: 1 }.encode(), &[]).unwrap();
    assert!(node.receive().unwrap().is_some());
}
