use std::mem::offset_of;

use super::*;

/// Whoever changes this changes [`VERSION`]: a shim of yesterday may be running inside a tenant.
#[test]
fn the_layout_is_that_of_version_8() {
    assert_eq!(VERSION, 8);
    let at = [
        ("header", offset_of!(Page, header), 0),
        ("header.version", offset_of!(Page, header.version), 8),
        ("header.generation", offset_of!(Page, header.generation), 16),
        ("header.class", offset_of!(Page, header.class), 28),
        ("header.sm_set", offset_of!(Page, header.sm_set), 32),
        ("header.squeezed", offset_of!(Page, header.squeezed), 44),
        ("node", offset_of!(Page, node), 56),
        ("node.context_bytes", offset_of!(Page, node.context_bytes), 80),
        ("node.packet_bytes", offset_of!(Page, node.packet_bytes), 96),
        ("node.granted", offset_of!(Page, node.granted), 120),
        ("node.grants", offset_of!(Page, node.grants), 136),
        ("node.asleep", offset_of!(Page, node.asleep), 140),
        ("node.others_used_bytes", offset_of!(Page, node.others_used_bytes), 144),
        ("node.pace", offset_of!(Page, node.pace), 152),
        ("node.announce", offset_of!(Page, node.announce), 160),
        ("node.chunks_max", offset_of!(Page, node.chunks_max), 168),
        ("node.launches_per_chunk", offset_of!(Page, node.launches_per_chunk), 172),
        ("node.chunk_ns", offset_of!(Page, node.chunk_ns), 176),
        ("node.hold", offset_of!(Page, node.hold), 180),
        ("node.resized_ns", offset_of!(Page, node.resized_ns), 184),
        ("node.slice_us", offset_of!(Page, node.slice_us), 192),
        ("shim", offset_of!(Page, shim), 256),
        ("shim.copies", offset_of!(Page, shim.0.copies), 272),
        ("shim.launches", offset_of!(Page, shim.0.launches), 384),
        ("shim.memory_by_path", offset_of!(Page, shim.0.memory_by_path), 416),
        ("shim.refusals", offset_of!(Page, shim.0.refusals), 504),
        ("shim.covered_unknown", offset_of!(Page, shim.0.covered_unknown), 524),
        ("shim.announced", offset_of!(Page, shim.0.announced), 576),
        ("shim.chunks", offset_of!(Page, shim.0.chunks), 704),
        ("shim.active", offset_of!(Page, shim.0.active), 768),
        ("shim.longest_launch_ns", offset_of!(Page, shim.0.longest_launch_ns), 784),
        ("shim.graphs_whole", offset_of!(Page, shim.0.graphs_whole), 796),
        ("shim.requests", offset_of!(Page, shim.0.requests), 800),
        ("shim.requests.times", offset_of!(Page, shim.0.requests.times), 816),
        ("shim.fault_ns", offset_of!(Page, shim.0.fault_ns), 4912),
        ("shim.fault_code", offset_of!(Page, shim.0.fault_code), 4920),
        ("shim.squeezed_launches", offset_of!(Page, shim.0.squeezed_launches), 4928),
        ("shim.longest_resize_ns", offset_of!(Page, shim.0.longest_resize_ns), 4960),
        ("shim.busy_ns", offset_of!(Page, shim.0.busy_ns), 4968),
        ("shim.slice_us", offset_of!(Page, shim.0.slice_us), 4976),
        ("shim.unmarked", offset_of!(Page, shim.0.unmarked), 4984),
    ];
    for (name, found, expected) in at {
        assert_eq!(found, expected, "{name}");
    }
    assert_eq!(size_of::<Page>(), 4992);
}

#[test]
fn both_sides_see_what_the_other_writes() {
    let (node, file) = Mapped::create(7, 3, 1, None).unwrap();
    let shim = Mapped::open(&file).unwrap();
    assert_eq!(shim.header.generation.load(Ordering::Relaxed), 7);
    assert_eq!(shim.header.tenant.load(Ordering::Relaxed), 3);
    node.node.granted[1].store(512, Ordering::Release);
    assert_eq!(shim.node.granted[1].load(Ordering::Acquire), 512);
    shim.shim.copies[0].ready.store(64, Ordering::Release);
    assert_eq!(node.shim.copies[0].ready.load(Ordering::Acquire), 64);
}

#[test]
fn a_copier_sleeps_until_it_is_granted_something() {
    let (node, file) = Mapped::create(1, 1, 0, None).unwrap();
    let shim = Mapped::open(&file).unwrap();
    // A grant that came after `last` was read is not slept over.
    node.wake_grants();
    shim.wait_grants(0, u64::MAX / 2);
    std::thread::scope(|scope| {
        let copier = scope.spawn(|| {
            while shim.node.granted[0].load(Ordering::Acquire) == 0 {
                let last = shim.node.grants.load(Ordering::Acquire);
                if shim.node.granted[0].load(Ordering::Acquire) == 0 {
                    shim.wait_grants(last, 60_000_000_000);
                }
            }
        });
        while node.shim.copier_asleep.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        node.node.granted[0].store(1, Ordering::Release);
        node.wake_grants();
        copier.join().unwrap();
    });
    assert_eq!(shim.shim.copier_asleep.load(Ordering::Relaxed), 0);
    shim.wait_grants(shim.node.grants.load(Ordering::Acquire), 1_000);
}

#[test]
fn what_is_no_page_of_this_version_is_refused() {
    let (page, file) = Mapped::create(1, 1, 0, None).unwrap();
    page.header.version.store(VERSION + 1, Ordering::Relaxed);
    let message = Mapped::open(&file).unwrap_err().to_string();
    assert!(
        message.contains(&format!("version {VERSION}")) && message.contains("one version of Partywall"),
        "{message}"
    );
    let short = memfd_create("short", MemfdFlags::CLOEXEC).unwrap();
    let message = Mapped::open(&short).unwrap_err().to_string();
    assert!(message.contains("0 bytes") && message.contains("8192 bytes, sealed"), "{message}");
}

#[test]
fn a_tenant_cannot_take_the_memory_away() {
    let (_page, file) = Mapped::create(1, 1, 0, None).unwrap();
    assert!(ftruncate(&file, 0).is_err());
}
