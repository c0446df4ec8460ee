use std::collections::BTreeSet;

use proptest::prelude::{Strategy, any, prop, proptest};

use super::{Chain, Identity, Media, PrefixHash, blocks, blocks_of_text, content};

const IDENTITY: Identity<'static> = Identity { model: "m", lora: None, cache_salt: None };

#[test]
fn only_whole_blocks_count() {
    let tokens: Vec<u32> = (0..100).collect();
    assert_eq!(blocks(&IDENTITY, &tokens, &[], 16).len(), 6);
    assert_eq!(blocks(&IDENTITY, &tokens[..15], &[], 16), []);
    assert_eq!(blocks(&IDENTITY, &tokens[..2], &[], 0).len(), 2, "a block has at least one token");
    assert_eq!(Chain::new(IDENTITY.root(), 16).next(&tokens[..17], &[]), None);
}

#[test]
fn everything_that_a_block_depends_on_tells_it_from_others() {
    let identities = [
        IDENTITY,
        Identity { model: "n", ..IDENTITY },
        Identity { model: "", ..IDENTITY },
        Identity { lora: Some(""), ..IDENTITY },
        Identity { lora: Some("a"), ..IDENTITY },
        Identity { cache_salt: Some("a"), ..IDENTITY },
        Identity { lora: Some("a"), cache_salt: Some("a"), ..IDENTITY },
        Identity { lora: Some("aa"), cache_salt: Some(""), ..IDENTITY },
    ];
    let tokens = [1, 2, 3, 4];
    let media = [Media { content: content(b"cat"), at: 1 }];
    let mut seen = BTreeSet::new();
    for identity in &identities {
        for (tokens, media) in [(tokens, &media[..]), (tokens, &[]), ([1, 2, 3, 5], &[])] {
            assert!(seen.insert(blocks(identity, &tokens, media, 4)), "{identity:?} {tokens:?} {media:?}");
        }
    }
    assert_ne!(blocks(&IDENTITY, &tokens, &[], 2), blocks(&IDENTITY, &tokens, &[], 4));
}

#[test]
fn an_event_that_goes_on_behind_a_block_comes_to_what_the_request_does() {
    let tokens: Vec<u32> = (0..48).collect();
    let media = [Media { content: 5, at: 3 }, Media { content: 6, at: 40 }];
    let whole = blocks(&IDENTITY, &tokens, &media, 16);
    let mut chain = Chain::new(whole[1], 16);
    assert_eq!(chain.next(&tokens[32..], &[Media { content: 6, at: 8 }]), Some(whole[2]));
}

#[test]
fn bytes_are_tokens_where_there_is_no_tokenizer() {
    let text = "Grüße, tenant of the second floor";
    let tokens: Vec<u32> = text.bytes().map(u32::from).collect();
    assert_eq!(blocks_of_text(&IDENTITY, text, 8), blocks(&IDENTITY, &tokens, &[], 8));
}

/// Hashes must not change from one release to the next while gateways of both run side by side.
#[test]
fn hashes_stay_what_they_are() {
    let identity = Identity { model: "llama", lora: Some("french"), cache_salt: Some("salt") };
    let media = [Media { content: content(b"cat"), at: 2 }];
    assert_eq!(blocks(&identity, &[1, 2, 3, 4], &media, 2), HASHES);
}

const HASHES: [PrefixHash; 2] =
    [PrefixHash(5_192_233_361_459_831_977), PrefixHash(11_628_899_471_599_590_725)];

fn prompts() -> impl Strategy<Value = (Vec<u32>, Vec<Media>)> {
    let media = prop::collection::btree_map(0..200u32, any::<u64>(), 0..4);
    let media =
        media.prop_map(|media| media.into_iter().map(|(at, content)| Media { content, at }).collect());
    (prop::collection::vec(0..50_000u32, 0..200), media)
}

proptest! {
    /// A change of any token changes its block and all behind it, and none before it.
    #[test]
    fn a_token_counts_from_its_block_on(
        (tokens, media) in prompts(),
        at in any::<prop::sample::Index>(),
        other in 50_000..60_000u32,
        size in 1..20u32,
    ) {
        if tokens.is_empty() {
            return Ok(());
        }
        let at = at.index(tokens.len());
        let mut changed = tokens.clone();
        changed[at] = other;
        let (before, after) = (blocks(&IDENTITY, &tokens, &media, size), blocks(&IDENTITY, &changed, &media, size));
        assert_eq!(before.len(), tokens.len() / size as usize);
        for (number, (before, after)) in before.iter().zip(&after).enumerate() {
            assert_eq!(before == after, number < at / size as usize);
        }
    }

    /// So does a change of media.
    #[test]
    fn media_count_from_their_block_on(
        (tokens, media) in prompts(),
        which in any::<prop::sample::Index>(),
        change in 1..u64::MAX,
        size in 1..20u32,
    ) {
        if media.is_empty() {
            return Ok(());
        }
        let which = which.index(media.len());
        let mut changed = media.clone();
        changed[which].content ^= change;
        let (before, after) = (blocks(&IDENTITY, &tokens, &media, size), blocks(&IDENTITY, &tokens, &changed, size));
        for (number, (before, after)) in before.iter().zip(&after).enumerate() {
            assert_eq!(before == after, number < (media[which].at / size) as usize);
        }
    }

    /// What begins alike has equal hashes as far as it does, whatever follows.
    #[test]
    fn equal_beginnings_are_equal((tokens, media) in prompts(), more in prop::collection::vec(any::<u32>(), 0..60), size in 1..20u32) {
        let short = blocks(&IDENTITY, &tokens, &media, size);
        let long: Vec<u32> = tokens.iter().chain(&more).copied().collect();
        let end = tokens.len() as u32 / size * size;
        let media: Vec<Media> = media.into_iter().filter(|media| media.at < end).collect();
        assert_eq!(blocks(&IDENTITY, &long, &media, size)[..short.len()], short);
    }
}
