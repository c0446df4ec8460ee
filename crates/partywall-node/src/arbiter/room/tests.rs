use super::*;

const IN: Direction = Direction::HostToDevice;
const OUT: Direction = Direction::DeviceToHost;
const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;

struct Scene {
    room: Room,
    pages: Vec<Arc<Mapped>>,
}

impl Scene {
    fn new(classes: &[Class]) -> Self {
        let mut scene = Self { room: Room::default(), pages: Vec::new() };
        classes.iter().for_each(|&class| scene.add(class));
        scene
    }

    fn add(&mut self, class: Class) {
        let page = Arc::new(Mapped::create(1, 0, 0, None).unwrap().0);
        self.room.add(ProcessId(self.pages.len() as u64), class, &page);
        self.pages.push(page);
    }

    fn look(&mut self, direction: Direction, now_ms: u64) {
        self.look_at(direction, Nanos::from_millis(now_ms));
    }

    fn look_at(&mut self, direction: Direction, now: Nanos) {
        self.room.look(direction, || now);
        self.room.expire(now);
    }

    fn announced(&self, process: usize, direction: Direction, word: usize, kib: u32) {
        self.pages[process].shim.announced.0[direction as usize][word].store(kib, Ordering::Relaxed);
    }

    /// What a process is told: whether to announce, and the pace of packets, per direction.
    fn told(&self, process: usize) -> [[u32; 2]; 2] {
        let node = &self.pages[process].node;
        [&node.announce, &node.pace]
            .map(|words| [words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)])
    }
}

const NOTHING: [[u32; 2]; 2] = [[0, 0], [0, 0]];

#[test]
fn s1_packets_make_room_while_a_copy_is_announced() {
    let mut scene = Scene::new(&[LS, BE]);
    assert_eq!([scene.told(0), scene.told(1)], [NOTHING; 2]);
    scene.look(IN, 1);
    assert_eq!([scene.told(0), scene.told(1)], [[[1, 0], [0, 0]], NOTHING]);
    scene.announced(0, IN, 3, 64);
    // The other direction is another engine.
    scene.look(OUT, 1);
    assert_eq!(scene.told(1), NOTHING);
    let at = Nanos::from_millis(1);
    for (later, expected) in [(0, Pace::Aside), (FRESH.0 - 1, Pace::Aside), (FRESH.0, Pace::OneByOne)] {
        scene.look_at(IN, at + Nanos(later));
        assert_eq!(scene.told(1), [[0, 0], [expected as u32, 0]], "{later} ns later");
    }
    // Another one is as fresh as the first one was.
    scene.announced(0, IN, 4, 64);
    scene.look_at(IN, at + FRESH);
    assert_eq!(scene.told(1), [[0, 0], [2, 0]]);
    for word in [3, 4] {
        scene.announced(0, IN, word, 0);
    }
    scene.look_at(IN, at + FRESH);
    assert_eq!(scene.told(1), [[0, 0], [1, 0]], "the copy may not be all through");
    scene.look(IN, 2);
    assert_eq!(scene.told(1), NOTHING);
    scene.announced(0, IN, 0, 64);
    scene.look(IN, 2);
    scene.room.rest();
    assert_eq!([scene.told(0), scene.told(1)], [NOTHING; 2]);
}

#[test]
fn s2_best_effort_announces_in_vain() {
    let mut scene = Scene::new(&[BE, BE, LS]);
    scene.announced(0, IN, 0, 1);
    scene.look(IN, 1);
    assert_eq!([scene.told(0), scene.told(1)], [NOTHING; 2]);
    scene.announced(2, IN, 0, 1);
    scene.look(IN, 1);
    assert_eq!(scene.told(2)[1], [0, 0], "its own packets go on");
}

#[test]
fn s3_an_announcement_counts_for_a_while() {
    let mut scene = Scene::new(&[LS, BE]);
    let limit = LIMIT.0 / 1_000_000;
    scene.announced(0, IN, 5, 64);
    for (now, expected) in
        [(10, 2), (11, 1), (10 + limit, 1), (11 + limit, 1), (12 + limit, 0), (99 + limit, 0)]
    {
        scene.look(IN, now);
        assert_eq!(scene.told(1)[1][0], expected, "at {now} ms");
    }
    // Another one of the same process counts, and so does the next one in the same word.
    scene.announced(0, IN, 6, 64);
    scene.look(IN, 100 + limit);
    assert_eq!(scene.told(1)[1][0], 2);
    for (kib, expected) in [(0, 1), (64, 2)] {
        scene.announced(0, IN, 5, kib);
        scene.look(IN, 101 + limit);
        assert_eq!(scene.told(1)[1][0], expected);
    }
    scene.announced(0, IN, 6, 0);
    scene.look(IN, 102 + limit);
    assert_eq!(scene.told(1)[1][0], 1, "the one in word 5 is new");
}

#[test]
fn s4_processes_come_and_go() {
    let mut scene = Scene::new(&[LS]);
    scene.announced(0, IN, 0, 64);
    scene.look(IN, 1);
    scene.add(BE);
    scene.add(LS);
    assert_eq!([scene.told(1), scene.told(2)], [[[0, 0], [2, 0]], [[1, 0], [0, 0]]]);
    scene.room.remove(ProcessId(0));
    scene.look(IN, 2);
    assert_eq!(scene.told(1), NOTHING);
}
