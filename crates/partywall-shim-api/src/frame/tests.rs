use proptest::prelude::*;

use super::*;

fn to_node() -> impl Strategy<Value = ToNode> {
    let text = || "[ -~é]{0,80}";
    prop_oneof![
        (any::<u32>(), any::<[u8; 16]>(), any::<u64>())
            .prop_map(|(version, token, held_bytes)| ToNode::Hello { version, token, held_bytes }),
        (any::<u64>(), any::<u64>())
            .prop_map(|(need_bytes, want_bytes)| ToNode::Ask { need_bytes, want_bytes }),
        any::<u64>().prop_map(|bytes| ToNode::Give { bytes }),
        (0_usize..4, text())
            .prop_map(|(n, names)| ToNode::Coverage { disposition: Disposition::ALL[n], names }),
        text().prop_map(|text| ToNode::Notice { text }),
    ]
}

fn to_shim() -> impl Strategy<Value = ToShim> {
    prop_oneof![
        (any::<u32>(), any::<u64>())
            .prop_map(|(version, lease_bytes)| ToShim::Welcome { version, lease_bytes }),
        (any::<u32>(), "[ -~é]{0,80}").prop_map(|(version, text)| ToShim::Refused { version, text }),
        (any::<u64>(), any::<bool>())
            .prop_map(|(total_bytes, granted)| ToShim::Lease { total_bytes, granted }),
        Just(ToShim::Recall),
        Just(ToShim::AskCoverage),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_was_sent_is_what_arrives(node in to_node(), shim in to_shim()) {
        prop_assert_eq!(ToNode::decode(&node.encode()), Ok(node));
        prop_assert_eq!(ToShim::decode(&shim.encode()), Ok(shim));
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0_u32..110) {
        let _ = ToNode::decode(&bytes);
        let stated = [&kind.to_le_bytes()[..], &(bytes.len() as u32).to_le_bytes(), &bytes].concat();
        if let Ok(frame) = ToNode::decode(&stated) {
            prop_assert_eq!(ToNode::decode(&frame.encode()), Ok(frame));
        }
        let _ = ToShim::decode(&stated);
    }
}

#[test]
fn text_that_is_too_long_is_cut_between_characters() {
    let frame = ToNode::Notice { text: "é".repeat(TEXT_BYTES) };
    let bytes = frame.encode();
    assert!(bytes.len() <= FRAME_BYTES);
    let Ok(ToNode::Notice { text }) = ToNode::decode(&bytes) else { panic!("no notice") };
    assert_eq!(text, "é".repeat(TEXT_BYTES / 2));
}

#[test]
fn what_is_wrong_with_a_frame_is_said() {
    let cases: [(&[u8], &str); 4] = [
        (&[1, 0, 0], "3 bytes"),
        (&[9, 0, 0, 0, 0, 0, 0, 0], "kind 9"),
        (&[3, 0, 0, 0, 1, 0, 0, 0, 7], "fields"),
        (&[5, 0, 0, 0, 1, 0, 0, 0, 0xff], "UTF-8"),
    ];
    for (bytes, says) in cases {
        let message = ToNode::decode(bytes).unwrap_err().to_string();
        assert!(message.contains(says), "{message}");
    }
}
