use proptest::prelude::*;

use super::*;

fn from(line: &str) -> Result<Line<FromTenant>, String> {
    Line::<FromTenant>::parse(line.as_bytes()).map_err(|error| error.to_string())
}

fn to(line: &str) -> Result<Line<ToTenant>, String> {
    Line::<ToTenant>::parse(line.as_bytes()).map_err(|error| error.to_string())
}

#[test]
fn the_lines_of_the_documentation_are_read() {
    let page = include_str!("../../../../docs/tenants.md");
    let blocks = page.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
    let (said, told): (Vec<&str>, Vec<&str>) = lines.into_iter().partition(|line| from(line).is_ok());
    assert_eq!((said.len(), told.len()), (4, 3), "{told:?}");
    for line in told {
        assert!(to(line).is_ok(), "{line}: {:?}", to(line));
    }
    for load in page.lines().filter_map(|line| line.strip_prefix("| `{")?.split_once('`')) {
        let load = serde_json::from_str::<Load>(&format!("{{{}", load.0)).unwrap();
        assert_eq!(load.check(), Ok(()));
    }
}

#[test]
fn lines_are_written_as_they_are_read() {
    let ready = r#"{"ready":{"protocol":1,"pid":4711,"unit":"image","work":1.0,"about":{"torch":"2.11.0"}}}"#;
    assert_eq!(from(ready).unwrap().write().trim_end(), ready);
    assert_eq!(
        from(r#"{"request": {"scheduled": 5, "start": 6, "end": 9}}"#),
        Ok(Line::of(FromTenant::Request(Request { scheduled: 5, start: 6, end: 9 })))
    );
    let done = from(r#"{"tenant": "a", "done": {"run": 7, "requests": 2, "check": "ok"}}"#).unwrap();
    assert_eq!(done.tenant.as_deref(), Some("a"));
    assert!(from(r#"{"failed": {"message": "no GPU"}}"#).is_ok());
    let run =
        r#"{"run":{"run":7,"load":{"closed":{"pause_ns":200000,"depth":1}},"begin":5,"requests_max":9}}"#;
    assert_eq!(to(run).unwrap().write().trim_end(), run);
    assert_eq!(to(r#"{"exit": {}}"#), Ok(Line::of(ToTenant::Exit(Exit {}))));
    assert_eq!(to(r#"{"stop": {"run": 7}}"#), Ok(Line::of(ToTenant::Stop(Stop { run: 7 }))));
}

#[test]
fn what_is_not_of_the_protocol_is_quoted_with_the_reason() {
    let cases = [
        ("loading weights...", "`loading weights...`: expected value"),
        ("{}", "exactly one of `ready`"),
        (r#"{"stop": {"run": 1}}"#, "unknown field `stop`"),
        (r#"{"failed": {"message": ""}, "done": {"run": 1, "requests": 1, "check": ""}}"#, "exactly one"),
        (r#"{"request": {"scheduled": 1, "start": 9, "end": 8}}"#, "`end` is before `start`"),
        (r#"{"request": {"scheduled": -1, "start": 0, "end": 8}}"#, "invalid value"),
        (r#"{"ready": {"protocol": 2, "pid": 1, "unit": "x", "work": 1}}"#, "protocol 2 is not known"),
        (r#"{"ready": {"protocol": 1, "pid": 1, "unit": "x", "work": 0}}"#, "above zero"),
        ("\u{1b}[31mred", "\\u{1b}[31mred"),
    ];
    for (line, part) in cases {
        let error = from(line).unwrap_err();
        assert!(error.contains(part), "{line}: {error}");
    }
    let long = "x".repeat(LINE_MAX + 1);
    let error = from(&long).unwrap_err();
    assert!(error.contains("more than 65536 bytes") && error.len() < 200, "{error}");
    let error = to(r#"{"run":{"run":7,"load":{"periodic":{"period_ns":0}},"begin":5,"requests_max":9}}"#);
    assert!(error.as_ref().is_err_and(|error| error.contains("a period of 0ns")), "{error:?}");
}

#[test]
fn sm_groups_are_ranges() {
    assert_eq!(sm_groups("0-3,8,10-11"), Ok(vec![0, 1, 2, 3, 8, 10, 11]));
    for wrong in ["", "3-1", "1,1", "0-2,2", "a", "-1", "+1", "0-99999999999", "1-"] {
        assert!(sm_groups(wrong).is_err(), "{wrong}");
    }
}

fn text() -> impl Strategy<Value = String> {
    proptest::string::string_regex(".{0,20}").unwrap()
}

fn messages() -> impl Strategy<Value = Line<FromTenant>> {
    let ready = (any::<u32>(), text(), 1u32..9999, proptest::collection::btree_map(text(), text(), 0..3))
        .prop_map(|(pid, unit, work, about)| {
            // Quarters, because the reader may be off by the last bit of other fractions.
            FromTenant::Ready(Ready { protocol: PROTOCOL, pid, unit, work: f64::from(work) / 4.0, about })
        });
    let request = (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(at, wait, took)| {
        let start = (at / 2).saturating_add(u64::from(wait));
        FromTenant::Request(Request { scheduled: at / 2, start, end: start.saturating_add(took.into()) })
    });
    let done = (any::<u64>(), any::<u64>(), text(), proptest::option::of(text()), any::<Option<u64>>())
        .prop_map(|(run, requests, check, checksum, host_gap_ns)| {
            FromTenant::Done(Done { run, requests, check, checksum, host_gap_ns })
        });
    let failed = text().prop_map(|message| FromTenant::Failed(Failed { message }));
    (proptest::option::of(text()), prop_oneof![ready, request, done, failed])
        .prop_map(|(tenant, message)| Line { tenant, message })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_written_is_read(line in messages()) {
        let written = line.write();
        prop_assert!(written.ends_with('\n') && !written[..written.len() - 1].contains('\n'));
        prop_assert_eq!(Line::<FromTenant>::parse(written.trim_end().as_bytes()), Ok(line));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for error in [Line::<FromTenant>::parse(&bytes).err(), Line::<ToTenant>::parse(&bytes).err()].into_iter().flatten() {
            let message = error.to_string();
            prop_assert!(message.chars().all(|c| !c.is_control()) && message.len() < 1000);
        }
    }

    #[test]
    fn no_damage_to_a_line_panics(line in messages(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut written = line.write().into_bytes();
        let at = at.index(written.len());
        written[at] = byte;
        let _ = Line::<FromTenant>::parse(&written);
    }

    #[test]
    fn no_groups_panic(text in "[0-9,-]{0,12}") {
        if let Ok(groups) = sm_groups(&text) {
            prop_assert!(groups.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
