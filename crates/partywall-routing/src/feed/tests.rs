use std::collections::BTreeMap;

use partywall_core::units::Nanos;
use proptest::prelude::{Just, Strategy, prop, prop_oneof, proptest};

use super::{Action, Event, Feed, Health, Limits};

fn live(seq: u64) -> Event {
    Event::Live { seq, mark: 1000 + seq }
}

fn replayed(seq: u64) -> Event {
    Event::Replayed { seq, mark: 1000 + seq }
}

fn apply(seqs: impl IntoIterator<Item = u64>) -> Vec<Action> {
    seqs.into_iter().map(|seq| Action::Apply { seq }).collect()
}

/// What the events lead to, all together.
fn steps(feed: &mut Feed, events: impl IntoIterator<Item = Event>) -> Vec<Action> {
    events.into_iter().flat_map(|event| feed.step(Nanos::ZERO, event)).collect()
}

/// One that has applied the batches before `next`.
fn following(replays: bool, next: u64) -> Feed {
    let mut feed = Feed::new(Limits::default(), replays);
    steps(&mut feed, [Event::Subscribed, Event::ReplayEnded]);
    steps(&mut feed, (0..next).map(live));
    feed
}

#[test]
fn f1_batches_in_order_are_applied_at_once() {
    let mut feed = Feed::new(Limits::default(), false);
    assert_eq!(steps(&mut feed, [Event::Subscribed]), []);
    assert_eq!(steps(&mut feed, (0..5).map(live)), apply(0..5));
    assert_eq!(feed.health(Nanos::ZERO), Health::Exact);
}

#[test]
fn f2_a_late_subscriber_gets_what_was_before_first() {
    let mut feed = Feed::new(Limits::default(), true);
    assert_eq!(steps(&mut feed, [Event::Subscribed]), [Action::Replay { from: 0 }]);
    assert_eq!(steps(&mut feed, [live(3)]), [Action::Keep { seq: 3 }]);
    assert_eq!(steps(&mut feed, (0..3).map(replayed)), apply(0..4));
    assert_eq!(steps(&mut feed, [replayed(3)]), [Action::Drop { seq: 3 }]);
    assert_eq!(steps(&mut feed, [replayed(4), replayed(5), Event::ReplayEnded]), apply(4..6));
    assert_eq!(steps(&mut feed, [live(4), live(5)]), [Action::Drop { seq: 4 }, Action::Drop { seq: 5 }]);
    assert_eq!(steps(&mut feed, [live(6)]), apply([6]));
    assert_eq!(feed.health(Nanos::ZERO), Health::Exact);
    assert_eq!((feed.counts().copies, feed.counts().lost, feed.counts().clears), (2, 0, 0));
}

#[test]
fn f3_a_gap_is_closed_by_a_replay() {
    let mut feed = following(true, 5);
    assert_eq!(steps(&mut feed, [live(7)]), [Action::Replay { from: 4 }, Action::Keep { seq: 7 }]);
    assert_eq!(steps(&mut feed, [live(8)]), [Action::Keep { seq: 8 }]);
    assert_eq!(steps(&mut feed, [replayed(4)]), [Action::Drop { seq: 4 }]);
    assert_eq!(steps(&mut feed, [replayed(5), replayed(6)]), apply(5..9));
    assert_eq!(steps(&mut feed, [Event::ReplayEnded, live(9)]), apply([9]));
    assert_eq!((feed.counts().gaps, feed.counts().lost), (1, 0));
}

#[test]
fn f4_what_cannot_be_had_again_is_lost() {
    for replays in [false, true] {
        let mut feed = following(replays, 5);
        let actions = steps(&mut feed, [live(7), Event::ReplayFailed]);
        assert_eq!(actions.last(), Some(&Action::Apply { seq: 7 }));
        assert!(!actions.contains(&Action::Clear));
        assert_eq!(feed.health(Nanos::ZERO), Health::Degraded);
        assert_eq!(feed.counts().lost, 2);
        let actions = steps(&mut feed, [live(1000), Event::ReplayFailed]);
        assert_eq!(actions[actions.len() - 2..], [Action::Clear, Action::Apply { seq: 1000 }]);
        assert_eq!(steps(&mut feed, [live(1001)]), apply([1001]));
    }
    // The ring of the engine does not reach far enough.
    let mut feed = following(true, 5);
    steps(&mut feed, [live(10)]);
    assert_eq!(steps(&mut feed, [replayed(8), replayed(9), Event::ReplayEnded]), apply([8, 9, 10]));
    assert_eq!((feed.counts().lost, feed.health(Nanos::ZERO)), (3, Health::Degraded));
}

#[test]
fn f5_an_engine_that_was_started_again_is_cleared() {
    for first in [0, 1, 3] {
        for replays in [false, true] {
            let mut feed = following(replays, 5);
            let actions = steps(&mut feed, [Event::Live { seq: first, mark: 9999 }]);
            assert_eq!(actions[0], Action::Clear);
            match (first, replays) {
                (0, _) | (_, false) => assert_eq!(actions[1..], apply([first])),
                (_, true) => {
                    assert_eq!(actions[1..], [Action::Replay { from: 0 }, Action::Keep { seq: first }]);
                }
            }
            assert_eq!(feed.counts().restarts, 1);
        }
    }
}

#[test]
fn f5_also_when_it_is_beyond_the_last_number_already() {
    let mut feed = following(true, 5);
    assert_eq!(steps(&mut feed, [Event::Live { seq: 9, mark: 9999 }])[0], Action::Replay { from: 4 });
    let actions = steps(&mut feed, [Event::Replayed { seq: 4, mark: 9990 }]);
    let dropped = [Action::Drop { seq: 4 }, Action::Drop { seq: 9 }];
    assert_eq!(actions, [dropped[0], dropped[1], Action::Clear, Action::Replay { from: 0 }]);
    let again = (0..10).map(|seq| Event::Replayed { seq, mark: 9986 + seq });
    assert_eq!(steps(&mut feed, again), apply(0..10));
    assert_eq!(feed.health(Nanos::ZERO), Health::Exact);
}

#[test]
fn f6_a_copy_is_dropped() {
    let mut feed = following(true, 5);
    assert_eq!(steps(&mut feed, [live(4), live(2)]), [Action::Drop { seq: 4 }, Action::Drop { seq: 2 }]);
    assert_eq!(steps(&mut feed, [live(5)]), apply([5]));
    assert_eq!((feed.counts().copies, feed.counts().restarts), (2, 0));
}

#[test]
fn f7_a_publisher_that_is_not_there_is_visible() {
    let mut feed = Feed::new(Limits::default(), true);
    let minutes = |minutes: u64| Nanos::from_secs(60 * minutes);
    assert_eq!(feed.health(minutes(9)), Health::Waiting);
    feed.step(minutes(9), Event::Subscribed);
    assert_eq!(feed.health(minutes(10)), Health::Waiting);
    assert_eq!(feed.health(minutes(11)), Health::Missing);
    feed.step(minutes(12), Event::ReplayEnded);
    feed.step(minutes(12), live(0));
    assert_eq!(feed.health(minutes(99)), Health::Exact, "an idle engine says nothing");
}

#[test]
fn f9_a_batch_that_nothing_follows_is_asked_for() {
    let second = Nanos::from_secs;
    let mut feed = Feed::new(Limits::default(), true);
    assert_eq!(feed.step(second(0), Event::Subscribed), [Action::Replay { from: 0 }]);
    assert_eq!(feed.step(second(0), Event::ReplayEnded), []);
    // The engine has published its first batch before it noticed the subscription.
    assert_eq!(feed.step(second(1), Event::Tick), []);
    assert_eq!(feed.step(second(2), Event::Tick), [Action::Replay { from: 0 }]);
    assert_eq!(feed.step(second(2), Event::Replayed { seq: 0, mark: 1 }), [Action::Apply { seq: 0 }]);
    assert_eq!(feed.step(second(2), Event::ReplayEnded), []);
    // Each time that nothing was lost it waits twice as long.
    let mut asked = Vec::new();
    for now in 3..400 {
        if feed.step(second(now), Event::Tick) == [Action::Replay { from: 0 }] {
            asked.push(now);
            feed.step(second(now), Event::ReplayEnded);
        }
    }
    assert_eq!(asked[..4], [6, 14, 30, 62]);
    assert!(asked.windows(2).all(|pair| pair[1] - pair[0] <= 60), "{asked:?}");
    // Whoever publishes is asked again soon.
    assert_eq!(feed.step(second(400), Event::Live { seq: 1, mark: 2 }), [Action::Apply { seq: 1 }]);
    assert_eq!(feed.step(second(402), Event::Tick), [Action::Replay { from: 1 }]);
    // Without a replay there is nobody to ask.
    let mut deaf = Feed::new(Limits::default(), false);
    deaf.step(second(0), Event::Subscribed);
    assert_eq!(deaf.step(second(100), Event::Tick), []);
}

#[test]
fn f8_a_replay_that_never_ends_is_given_up() {
    let mut feed = following(true, 5);
    steps(&mut feed, [live(7)]);
    assert_eq!(feed.step(Nanos::from_secs(10), Event::Tick), []);
    assert_eq!(feed.step(Nanos::from_secs(11), Event::Tick), apply([7]));
    assert_eq!(feed.counts().failed_replays, 1);

    let mut feed = Feed::new(Limits { kept: 3, ..Limits::default() }, true);
    steps(&mut feed, [Event::Subscribed]);
    let actions = steps(&mut feed, (5..9).map(live));
    assert_eq!(actions[4..], apply(5..9));
    assert_eq!(steps(&mut feed, [replayed(0)]), [Action::Drop { seq: 0 }]);
}

/// Something that happens between an engine and its subscriber.
#[derive(Debug, Clone)]
enum Chance {
    Heard,
    Unheard,
    HeardTwice,
    /// The subscriber gets this many of the batches that it asked for.
    Replay(usize),
    Restart,
    Reconnect,
}

fn chances() -> impl Strategy<Value = Chance> {
    prop_oneof![
        8 => Just(Chance::Heard),
        2 => Just(Chance::Unheard),
        1 => Just(Chance::HeardTwice),
        4 => (0..6usize).prop_map(Chance::Replay),
        1 => Just(Chance::Restart),
        1 => Just(Chance::Reconnect),
    ]
}

/// An engine with a ring that holds everything, and a subscriber that does what its feed says.
struct World {
    feed: Feed,
    /// Marks, by number, of this life of the engine.
    published: Vec<u64>,
    clock: u64,
    /// The numbers that a replay still has to bring, and the end.
    replay: Option<std::ops::Range<u64>>,
    kept: BTreeMap<u64, u64>,
    applied: Vec<u64>,
}

impl World {
    fn tell(&mut self, event: Event) {
        let current = match event {
            Event::Live { seq, mark } | Event::Replayed { seq, mark } => Some((seq, mark)),
            _ => None,
        };
        for action in self.feed.step(Nanos::ZERO, event) {
            match action {
                Action::Clear => self.applied.clear(),
                Action::Apply { seq } => {
                    let kept = self.kept.remove(&seq);
                    let now = current.filter(|&(current, _)| current == seq).map(|(_, mark)| mark);
                    self.applied.push(now.or(kept).expect("a batch that is there"));
                }
                Action::Keep { seq } => {
                    self.kept.insert(seq, current.expect("a batch").1);
                }
                Action::Drop { seq } => {
                    if current.is_none_or(|(current, _)| current != seq) {
                        self.kept.remove(&seq);
                    }
                }
                Action::Replay { from } => self.replay = Some(from..self.published.len() as u64),
            }
        }
        if matches!(event, Event::Live { .. } | Event::Replayed { .. }) {
            assert!(self.kept.len() <= Limits::default().kept);
        }
    }

    fn replay(&mut self, most: usize) {
        for _ in 0..most {
            let Some(range) = &mut self.replay else { return };
            match range.next() {
                Some(seq) => {
                    let mark = self.published[seq as usize];
                    self.tell(Event::Replayed { seq, mark });
                }
                None => {
                    self.replay = None;
                    self.tell(Event::ReplayEnded);
                }
            }
        }
    }
}

proptest! {
    /// As long as replays reach far enough, what is applied since the last clear is what the engine published since it started.
    #[test]
    fn in_the_end_everything_was_applied_once_and_in_order(chances in prop::collection::vec(chances(), 1..200)) {
        let mut world = World {
            feed: Feed::new(Limits::default(), true),
            published: Vec::new(),
            clock: 0,
            replay: None,
            kept: BTreeMap::new(),
            applied: Vec::new(),
        };
        world.tell(Event::Subscribed);
        let mut restarted = false;
        for chance in chances.into_iter().chain([Chance::Heard]) {
            world.clock += 1;
            let seq = world.published.len() as u64;
            let mark = world.clock;
            match chance {
                Chance::Restart => {
                    world.published.clear();
                    // Its connections break, and a replay with them.
                    if world.replay.take().is_some() {
                        world.tell(Event::ReplayFailed);
                    }
                    restarted = true;
                }
                Chance::Replay(most) => world.replay(most),
                Chance::Reconnect => world.tell(Event::Subscribed),
                Chance::Unheard => world.published.push(mark),
                Chance::Heard | Chance::HeardTwice => {
                    world.published.push(mark);
                    if std::mem::take(&mut restarted) {
                        world.tell(Event::Subscribed);
                    }
                    world.tell(Event::Live { seq, mark });
                    if matches!(chance, Chance::HeardTwice) {
                        world.tell(Event::Live { seq, mark });
                    }
                }
            }
        }
        // One more batch shows whatever is still missing.
        world.replay(usize::MAX);
        world.clock += 1;
        world.published.push(world.clock);
        world.tell(Event::Live { seq: world.published.len() as u64 - 1, mark: world.clock });
        world.replay(usize::MAX);
        assert_eq!(world.applied, world.published);
        assert!(world.kept.is_empty());
    }
}
