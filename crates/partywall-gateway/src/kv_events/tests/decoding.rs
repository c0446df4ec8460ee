//! What engines send becomes what it means, in all the forms that it has had, and nothing that is sent does any harm.

use partywall_routing::index::{EngineHash, Tier};
use partywall_routing::prefix::{Media, content};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};
use rmpv::Value;

use crate::kv_events::msgpack::Reader;
use crate::kv_events::{Adapter, Batch, Error, Event, Group, Stored, decode};

pub(super) fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).expect("memory");
    bytes
}

pub(super) fn list(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect())
}

pub(super) fn numbers(numbers: impl IntoIterator<Item = u64>) -> Value {
    list(numbers.into_iter().map(Value::from))
}

fn map<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Map(fields.into_iter().map(|(key, value)| (key.into(), value)).collect())
}

/// As current vLLM sends it.
fn stored_map(more: Vec<(&'static str, Value)>) -> Value {
    let fields = vec![
        ("type", "BlockStored".into()),
        ("block_hashes", numbers([11, 22])),
        ("parent_block_hash", Value::Nil),
        ("token_ids", numbers([1, 2, 3, 4])),
        ("block_size", 2.into()),
        ("lora_id", Value::Nil),
        ("medium", "GPU".into()),
    ];
    map(fields.into_iter().chain(more))
}

fn stored() -> Stored {
    Stored { hashes: vec![EngineHash(11), EngineHash(22)], ..super::stored(11, None, &[1, 2, 3, 4]) }
}

fn batch(events: impl IntoIterator<Item = Value>) -> Batch {
    let value = list([Value::F64(1_789_095_808.84), list(events), 0.into()]);
    Batch::decode(&bytes(&value)).expect("a batch")
}

/// The one event of a batch.
fn event(value: Value) -> Event {
    let batch = batch([value]);
    assert_eq!(batch.first_problem, None);
    batch.events.into_iter().next().expect("one event")
}

fn problem(value: Value) -> Error {
    let batch = batch([value, list(["AllBlocksCleared".into()])]);
    assert_eq!((batch.events, batch.problems), (vec![Event::Cleared], 1), "the rest of the batch is read");
    batch.first_problem.expect("a problem")
}

#[test]
fn events_are_lists_or_maps() {
    let short = list([
        "BlockStored".into(),
        numbers([11, 22]),
        Value::Nil,
        numbers([1, 2, 3, 4]),
        2.into(),
        Value::Nil,
    ]);
    assert_eq!(event(short), Event::Stored(stored()));
    assert_eq!(event(stored_map(vec![])), Event::Stored(stored()));
    assert_eq!(event(stored_map(vec![("unheard_of", numbers([1]))])), Event::Stored(stored()));
    assert_eq!(event(map([("type", "AllBlocksCleared".into())])), Event::Cleared);
    let removed = |group| {
        let hashes = vec![EngineHash(11)];
        Event::Removed { hashes, tier: Tier::Host, group: Group { number: group, main: None }, remote: false }
    };
    let short = list(["BlockRemoved".into(), numbers([11]), "CPU".into()]);
    assert_eq!(event(short), removed(None));
    let fields =
        [("type", "BlockRemoved".into()), ("block_hashes", numbers([11])), ("medium", "CPU_TIER1".into())];
    assert_eq!(event(map(fields.clone())), removed(None));
    // In any order, with a group.
    let fields = [("group_idx", 3.into())].into_iter().chain(fields.into_iter().rev());
    assert_eq!(event(map(fields)), removed(Some(3)));
}

#[test]
fn a_list_may_have_every_field() {
    let value = list([
        "BlockStored".into(),
        numbers([22]),
        Value::from(-1),
        numbers([3, 4]),
        2.into(),
        7.into(),
        "FS".into(),
        "french".into(),
        list([list(["french".into(), list(["image".into(), 1.into()])])]),
        0.into(),
        "full_attention".into(),
        Value::Nil,
        "REMOTE".into(),
        "from the future".into(),
    ]);
    let expect = Stored {
        hashes: vec![EngineHash(22)],
        parent: Some(EngineHash(u64::MAX)),
        tokens: vec![3, 4],
        tier: Tier::Disk,
        lora: Some(Adapter::Name("french".into())),
        media: vec![(0, Media { content: content(b"image"), at: 1 })],
        group: Group { number: Some(0), main: Some(true) },
        remote: true,
        ..stored()
    };
    assert_eq!(event(value), Event::Stored(expect));
}

#[test]
fn a_batch_is_a_list_or_a_map_and_its_time_grows() {
    let events = || list([list(["AllBlocksCleared".into()])]);
    let as_list =
        |time: f64| Batch::decode(&bytes(&list([time.into(), events(), 3.into()]))).expect("a batch");
    let as_map = map([("ts", 5.0.into()), ("events", events()), ("data_parallel_rank", 3.into())]);
    let as_map = Batch::decode(&bytes(&as_map)).expect("a batch");
    assert_eq!(as_map, as_list(5.0));
    assert_eq!((as_map.rank, as_map.events.len()), (Some(3), 1));
    assert!(as_list(5.0).mark < as_list(5.1).mark && as_list(0.001).mark < as_list(1e9).mark);
    assert_eq!(as_list(-1.0).mark, 0);
    assert_eq!(Batch::decode(&bytes(&list([1.5.into()]))).map(|batch| batch.events), Ok(vec![]));
    assert!(matches!(Batch::decode(&bytes(&5.into())), Err(Error::Shape { .. })));
    assert!(matches!(Batch::decode(b""), Err(Error::MessagePack { at: 0, .. })));
}

#[test]
fn a_hash_is_a_number_or_the_end_of_bytes() {
    let long: Vec<u8> = (0..32).collect();
    let hashes = list([Value::from(-2i64), u64::MAX.into(), Value::Binary(long), Value::Binary(vec![1, 2])]);
    let removed = event(list(["BlockRemoved".into(), hashes]));
    let Event::Removed { hashes, .. } = removed else { panic!("{removed:?}") };
    let expect = [u64::MAX - 1, u64::MAX, 0x1819_1a1b_1c1d_1e1f, 0x0102];
    assert_eq!(hashes, expect.map(EngineHash));
}

#[test]
fn pairs_of_tokens_stand_for_the_first() {
    let pairs = list([numbers([1, 2]), numbers([2, 3]), numbers([3, 4]), numbers([4, 5])]);
    let value = list(["BlockStored".into(), numbers([11, 22]), Value::Nil, pairs, 2.into()]);
    assert_eq!(event(value), Event::Stored(stored()));
}

#[test]
fn salts_and_media_are_told_apart() {
    let keys = list([
        list(["pepper".into(), list(["cat".into(), 1.into()])]),
        list([list(["cat".into(), Value::from(-1)]), list(["dog".into(), 0.into()]), "bird".into()]),
    ]);
    let Event::Stored(stored) = event(stored_map(vec![("extra_keys", keys)])) else { panic!("not stored") };
    assert_eq!(stored.cache_salt.as_deref(), Some("pepper"));
    let media = |block, name: &[u8], at| (block, Media { content: content(name), at });
    assert_eq!(stored.media, [media(0, b"cat", 1), media(1, b"dog", 0), media(1, b"bird", 0)]);
    let Event::Stored(stored) = event(stored_map(vec![("cache_salt", "pepper".into())])) else {
        panic!("not stored")
    };
    assert_eq!(stored.cache_salt.as_deref(), Some("pepper"));
}

#[test]
fn what_is_wrong_is_named_and_costs_itself_only() {
    let shape = |what, expected| Error::Shape { what, expected };
    let tokens = shape("token_ids", "block_size tokens for each block, or none");
    let stored = |hashes, tokens, size: u64| {
        list(["BlockStored".into(), numbers(hashes), Value::Nil, numbers(tokens), size.into()])
    };
    assert_eq!(problem(stored(vec![1], vec![1, 2, 3], 2)), tokens);
    let size = shape("block_size", "a number from 1 to 65536");
    assert_eq!(problem(stored(vec![1], vec![1], 0)), size);
    assert_eq!(problem(stored(vec![1], vec![1], 1 << 20)), size);
    assert_eq!(problem(stored(vec![1], vec![1 << 40], 1)), shape("a token", "below 2^32"));
    assert_eq!(problem(list(["BlockRemoved".into()])), shape("block_hashes", "a list"));
    let hash = problem(list(["BlockRemoved".into(), list([Value::Nil])]));
    assert_eq!(hash, shape("a block's hash", "a number or bytes"));
    assert!(matches!(problem(list(["Bang".into()])), Error::Shape { what: "an event's type", .. }));
    assert!(matches!(problem(7.into()), Error::Shape { what: "an event", .. }));
    let name = "x".repeat(decode::MAX_NAME + 1);
    let name = problem(list(["BlockRemoved".into(), numbers([1]), name.into()]));
    assert_eq!(name, Error::TooMany { what: "bytes in a name", limit: decode::MAX_NAME });
    let many = problem(list(["BlockRemoved".into(), numbers(0..=decode::MAX_BLOCKS as u64)]));
    assert_eq!(many, Error::TooMany { what: "blocks in an event", limit: decode::MAX_BLOCKS });
    let events = vec![list(["AllBlocksCleared".into()]); decode::MAX_EVENTS + 1];
    assert_eq!(
        batch(events).first_problem,
        Some(Error::TooMany { what: "events in a batch", limit: decode::MAX_EVENTS })
    );
}

#[test]
fn a_length_that_lies_is_noticed_before_anything_is_reserved() {
    // A list of 2^32 - 1 events, and a text as long, of which nothing comes.
    for lie in [&[0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff][..], &[0x91, 0xdb, 0xff, 0xff, 0xff, 0xff, 0x41]]
    {
        assert!(matches!(Batch::decode(lie), Err(Error::MessagePack { .. })));
    }
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-200..200i64).prop_map(Value::from),
        any::<f32>().prop_map(Value::F32),
        any::<f64>().prop_map(Value::F64),
        prop_oneof![
            Just("BlockStored"),
            Just("BlockRemoved"),
            Just("type"),
            Just("block_hashes"),
            Just("token_ids"),
            Just("block_size"),
            Just("extra_keys"),
            Just("events"),
            Just("medium"),
            Just("ts"),
        ]
        .prop_map(Value::from),
        "[a-z]{0,40}".prop_map(Value::from),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        (any::<i8>(), prop::collection::vec(any::<u8>(), 0..20))
            .prop_map(|(kind, data)| Value::Ext(kind, data)),
    ];
    leaf.prop_recursive(5, 64, 20, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..20).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..10).prop_map(Value::Map),
        ]
    })
}

proptest! {
    /// Whatever bytes come, the answer is a batch or an error.
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Batch::decode(&bytes);
        let _ = Reader::new(&bytes).value();
    }

    /// So it is when they are MessagePack, of which each value is as long as its writer made it.
    #[test]
    fn any_values(value in values(), rest in prop::collection::vec(any::<u8>(), 0..10)) {
        let whole = bytes(&value);
        let longer = [&whole[..], &rest].concat();
        let mut reader = Reader::new(&longer);
        assert_eq!(reader.value(), Ok(&whole[..]));
        for end in 0..whole.len() {
            assert!(Reader::new(&whole[..end]).value().is_err());
        }
        let _ = Batch::decode(&whole);
        let batch = batch([value.clone(), list(["AllBlocksCleared".into()])]);
        assert_eq!(batch.events.last(), Some(&Event::Cleared), "{value}");
    }

    /// And when a good payload was damaged on its way.
    #[test]
    fn damaged_payloads(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let good = list([Value::F64(1.0), list([stored_map(vec![]), list(["AllBlocksCleared".into()])])]);
        let mut bytes = bytes(&good);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(batch) = Batch::decode(&bytes) {
            assert!(batch.events.len() <= 16);
        }
    }
}
