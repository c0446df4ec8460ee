use partywall_core::copy_scheduler::Policy;

use super::*;

fn link(policy: Policy) -> Link {
    Link::new(57.0, Config { policy, ..Config::default() }).unwrap()
}

fn submit(
    link: &mut Link,
    now: u64,
    tenant: u32,
    id: u64,
    direction: Direction,
    bytes: Bytes,
) -> Vec<Outcome> {
    let mut outcomes = Vec::new();
    let who = (TenantId(tenant), Class::BestEffort);
    link.submit(now, who, (CopyId(id), direction, bytes), &mut outcomes);
    outcomes
}

fn started(outcomes: &[Outcome]) -> Vec<Packet> {
    let packet = |outcome: &Outcome| match outcome {
        Outcome::Started(packet) => Some(*packet),
        _ => None,
    };
    outcomes.iter().filter_map(packet).collect()
}

#[test]
fn packets_follow_each_other_on_the_link_and_hide_their_latency() {
    let mut link = link(Policy::Fair);
    let packets = started(&submit(&mut link, 0, 0, 1, Direction::HostToDevice, Bytes::from_mib(1)));
    let each = ((512u64 << 10) as f64 / 57.0).ceil() as u64;
    assert_eq!(
        packets.iter().map(|p| p.done_at).collect::<Vec<_>>(),
        [each + LATENCY_NS, 2 * each + LATENCY_NS]
    );
    let mut outcomes = Vec::new();
    link.packet_done(packets[0].done_at, packets[0], &mut outcomes);
    assert!(outcomes.is_empty(), "half of the copy is not the copy");
    link.packet_done(packets[1].done_at, packets[1], &mut outcomes);
    assert_eq!(outcomes, [Outcome::Finished { tenant: TenantId(0), id: CopyId(1) }]);
}

#[test]
fn each_direction_has_a_link_of_its_own() {
    let mut link = link(Policy::Fifo);
    let there = started(&submit(&mut link, 0, 0, 1, Direction::HostToDevice, Bytes::from_mib(64)));
    let back = started(&submit(&mut link, 0, 1, 1, Direction::DeviceToHost, Bytes::from_mib(1)));
    assert!(back[0].done_at < there[0].done_at / 10);
}

#[test]
fn the_next_copy_goes_when_a_cancelled_one_has_left_the_link() {
    let mut link = link(Policy::Fifo);
    let first = started(&submit(&mut link, 0, 0, 1, Direction::HostToDevice, Bytes::from_mib(64)))[0];
    assert!(submit(&mut link, 0, 1, 1, Direction::HostToDevice, Bytes::from_mib(1)).is_empty());
    let mut outcomes = Vec::new();
    link.cancel(10, TenantId(0), &mut outcomes);
    assert!(outcomes.is_empty());
    link.packet_done(first.done_at, first, &mut outcomes);
    let next = started(&outcomes);
    assert_eq!((next.len(), next[0].tenant), (1, TenantId(1)), "and no word of the cancelled copy");
}
