//! How lines are read.

use super::*;

const SHIPPED: &str = r#"{"time":"2026-11-21T22:55:41.123Z","method":"GET","path":"/a/b","status":200,"details":"via_upstream","quota_decision":"admitted","quota_policy":"per-caller","quota_partition":"jwt.sub=alice","quota_used":"3"}"#;

fn shipped() -> Reader {
    Reader::new(&Fields::default(), &Only::default()).unwrap()
}

fn request<'l>(key: &'l str, policy: Option<&'l str>, cost: impl Into<Option<u32>>) -> Line<'l> {
    let policy = policy.map(|policy| Cow::Borrowed(policy.as_bytes()));
    Line::Request(Request {
        time_ms: 1_795_301_741_123,
        key: Cow::Borrowed(key.as_bytes()),
        policy,
        cost: cost.into(),
        duration_ms: None,
    })
}

#[test]
fn the_shipped_format_is_read() {
    assert_eq!(shipped().read(SHIPPED.as_bytes()), request("jwt.sub=alice", Some("per-caller"), 1));
    let unnamed = SHIPPED.replace("\"jwt.sub=alice\"", "null");
    assert_eq!(shipped().read(unnamed.as_bytes()), Line::Unidentified(Missing::User));
    for bad in ["", "{}", "hello", &SHIPPED.replace("2026", "MMXXVI"), &SHIPPED[..100]] {
        assert_eq!(shipped().read(bad.as_bytes()), Line::Malformed, "{bad}");
    }
}

#[test]
fn what_collectors_write_around_a_line_is_skipped() {
    let plain = |log: &str| {
        let expected = shipped().read(log.as_bytes());
        assert!(matches!(expected, Line::Request(_)), "{log}");
        for around in [
            "\u{feff}LINE",
            "2026-11-28T10:00:00.123456789Z stdout F LINE",
            "2026-11-28T10:00:00.123456789+01:00 stderr F LINE\r\n",
            "[pod/envoy-5d4f/envoy] LINE",
            "2026-11-28T10:00:00.123456789Z LINE",
            "[pod/envoy-5d4f/envoy] 2026-11-28T10:00:00.123456789Z LINE",
        ] {
            let line = around.replace("LINE", log);
            assert_eq!(shipped().read(line.as_bytes()), expected, "{line}");
        }
        let docker = serde_json::json!({
            "log": format!("{log}\n"), "stream": "stdout", "time": "2026-11-28T10:00:00.1Z"
        });
        assert_eq!(shipped().read(docker.to_string().as_bytes()), expected, "{docker}");
    };
    plain(SHIPPED);
    let part = format!("2026-11-28T10:00:00.123456789Z stdout P {SHIPPED}");
    for other in [&*part, "[pod/x", "\u{feff}", r#"{"log":"x","stream":"stdout","time":"t"}"#] {
        assert_eq!(shipped().read(other.as_bytes()), Line::Malformed, "{other}");
    }
}

#[test]
fn text_lines_are_read_within_what_collectors_write() {
    let format = "[%START_TIME%] %FILTER_STATE(wasm.quotagate.partition:PLAIN)% %PROTOCOL%";
    let fields = Fields { format: Some(format.to_owned()), ..Fields::default() };
    let only = Only::default();
    let Ok(reader) = Reader::new(&fields, &only) else {
        panic!("{:?}", Reader::new(&fields, &only))
    };
    let line = "[2026-11-21T22:55:41.123Z] jwt.sub=alice HTTP/2";
    let expected = reader.read(line.as_bytes());
    assert!(matches!(expected, Line::Request(_)), "{expected:?}");
    for front in ["2026-11-28T10:00:00.1Z stdout F ", "[pod/x/y] ", "2026-11-28T10:00:00.1Z "] {
        let line = format!("{front}{line}");
        assert_eq!(reader.read(line.as_bytes()), expected, "{line}");
    }
}

#[test]
fn requests_of_other_policies_and_paths_are_not_selected() {
    let only = |policy: Option<&str>, path: Option<&str>| {
        let only = Only { policy: policy.map(str::to_owned), path: path.map(str::to_owned) };
        Reader::new(&Fields::default(), &only).unwrap().read(SHIPPED.as_bytes())
            == Line::NotSelected
    };
    assert!(!only(Some("per-caller"), Some("/a")));
    assert!(only(Some("per-ip"), None) && only(None, Some("/b")));
}

#[test]
fn field_names_and_costs_can_be_given() {
    let fields = Fields {
        time: Some("at".to_owned()),
        key: Some("user.id".to_owned()),
        cost: Some("cost".to_owned()),
        ..Fields::default()
    };
    let reader = Reader::new(&fields, &Only::default()).unwrap();
    let line = r#"{"user":{"id":42},"at":1795301741.123,"cost":"7","quota_policy":"x"}"#;
    assert_eq!(reader.read(line.as_bytes()), request("42", None, 7));
    for (cost, expected) in [
        ("0", Some(0)),
        ("-3", None),
        ("\"many\"", None),
        ("2.5", None),
        ("null", None),
        ("99999999999", Some(u32::MAX)),
    ] {
        assert_eq!(
            reader.read(line.replace("\"7\"", cost).as_bytes()),
            request("42", None, expected)
        );
    }
}

#[test]
fn durations_are_whole_milliseconds() {
    let duration = |fields: Fields, line: &str| match Reader::new(&fields, &Only::default())
        .unwrap()
        .read(line.as_bytes())
    {
        Line::Request(request) => request.duration_ms,
        other => panic!("{other:?}"),
    };
    let fields = || Fields { duration: Some("duration".to_owned()), ..Fields::default() };
    for (written, expected) in [
        ("0", Some(0)),
        ("1500", Some(1500)),
        ("\"1500\"", Some(1500)),
        ("99999999999999", Some(u32::MAX)),
        ("99999999999999999999999", None),
        ("-5", None),
        ("1.5", None),
        ("1e300", None),
        ("\"-\"", None),
        ("null", None),
        ("[7]", None),
    ] {
        let line = SHIPPED.replace("\"status\"", &format!("\"duration\":{written},\"status\""));
        assert_eq!(duration(fields(), &line), expected, "{written}");
        assert_eq!(duration(Fields::default(), &line), None);
    }
    assert_eq!(duration(fields(), SHIPPED), None);
    let line = "[2026-11-21T22:55:41.123Z] \"GET / HTTP/1.1\" 200 - 0 5 31 2 \"192.0.2.7\" \"c\" \"i\" \"a\" \"b\"";
    let by_ip = Fields { key: Some("REQ(X-FORWARDED-FOR)".to_owned()), ..fields() };
    assert_eq!(duration(by_ip, line), Some(31));
    let format = Some("%START_TIME% %FILTER_STATE(wasm.quotagate.partition:PLAIN)%".to_owned());
    let error = Reader::new(&Fields { format, ..fields() }, &Only::default()).unwrap_err();
    assert_eq!(error, "the format has no %DURATION%");
}

#[test]
fn text_is_read_by_its_format() {
    let format = "[%START_TIME(%Y-%m-%d %H:%M:%S.%3f)%] %FILTER_STATE(wasm.quotagate.partition:PLAIN)% \
                  %FILTER_STATE(wasm.quotagate.policy:PLAIN)% \"%REQ(:PATH)%\"";
    let fields = Fields { format: Some(format.to_owned()), ..Fields::default() };
    let only = Only { path: Some("/a".to_owned()), ..Only::default() };
    let reader = Reader::new(&fields, &only).unwrap();
    let line = "[2026-11-21 22:55:41.123] ip=192.0.2.7 per-ip \"/a/b\"\r\n";
    assert_eq!(reader.read(line.as_bytes()), request("ip=192.0.2.7", Some("per-ip"), 1));
    assert_eq!(reader.read(line.replace("/a/b", "/b").as_bytes()), Line::NotSelected);
    assert_eq!(
        reader.read(line.replace("ip=192.0.2.7 per-ip", "- -").as_bytes()),
        Line::Unidentified(Missing::UserAndPolicy)
    );
}

#[test]
fn a_dash_is_a_user_if_a_policy_counted_it() {
    let shared = SHIPPED.replace("jwt.sub=alice", "-");
    assert_eq!(shipped().read(shared.as_bytes()), request("-", Some("per-caller"), 1));
    let reader = |key: &str, policy: Option<&str>, format: Option<&str>| {
        let fields = Fields {
            key: (!key.is_empty()).then(|| key.to_owned()),
            policy: policy.map(str::to_owned),
            format: format.map(str::to_owned),
            ..Fields::default()
        };
        Reader::new(&fields, &Only::default()).unwrap()
    };
    // In other fields a dash is a user only if the line names a policy.
    let renamed = shared.replace("quota_", "q_");
    assert_eq!(
        reader("q_partition", None, None).read(renamed.as_bytes()),
        Line::Unidentified(Missing::User)
    );
    let named = reader("q_partition", Some("q_policy"), None);
    assert_eq!(named.read(renamed.as_bytes()), request("-", Some("per-caller"), 1));
    assert_eq!(
        named.read(renamed.replace("\"per-caller\"", "null").as_bytes()),
        Line::Unidentified(Missing::UserAndPolicy)
    );

    let all = "%START_TIME% %FILTER_STATE(wasm.quotagate.decision:PLAIN)% \
               %FILTER_STATE(wasm.quotagate.policy:PLAIN)% %FILTER_STATE(wasm.quotagate.partition:PLAIN)%";
    let (time, all) = ("2026-11-21T22:55:41.123Z", reader("", None, Some(all)));
    assert_eq!(
        all.read(format!("{time} admitted per-ip -").as_bytes()),
        request("-", Some("per-ip"), 1)
    );
    assert_eq!(
        all.read(format!("{time} - - -").as_bytes()),
        Line::Unidentified(Missing::UserAndPolicy)
    );
    assert_eq!(
        all.read(format!("{time} missing_identity per-ip -").as_bytes()),
        Line::Unidentified(Missing::User)
    );
    let alone =
        reader("", None, Some("%START_TIME% %FILTER_STATE(wasm.quotagate.partition:PLAIN)%"));
    assert_eq!(
        alone.read(format!("{time} -").as_bytes()),
        Line::Unidentified(Missing::UserAndPolicy)
    );
    // The dash of a missing header, whatever policy counted the request.
    let header = "%START_TIME% %REQ(X-USER)% %FILTER_STATE(wasm.quotagate.policy:PLAIN)%";
    let header =
        reader("REQ(X-USER)", Some("FILTER_STATE(wasm.quotagate.policy:PLAIN)"), Some(header));
    assert_eq!(
        header.read(format!("{time} - per-ip").as_bytes()),
        Line::Unidentified(Missing::User)
    );
}

#[test]
fn one_operator_may_serve_several_fields() {
    let line = "[2026-11-21T22:55:41.123Z] \"GET /api/x HTTP/1.1\" 200 - 0 5 3 2 \"192.0.2.7\" \"c\" \"i\" \"a\" \"b\"";
    let path = Some("REQ(X-ENVOY-ORIGINAL-PATH?:PATH)".to_owned());
    let only = Only { path: Some("/api".to_owned()), ..Only::default() };
    let reader = Reader::new(&Fields { key: path, ..Fields::default() }, &only).unwrap();
    assert_eq!(reader.read(line.as_bytes()), request("/api/x", None, 1));
    assert_eq!(reader.read(line.replace("/api", "/b").as_bytes()), Line::NotSelected);
    assert_eq!(reader.text_lacks(), None);
    let key = Some("REQ(X-USER)".to_owned());
    let reader = Reader::new(&Fields { key, ..Fields::default() }, &only).unwrap();
    assert_eq!(reader.text_lacks(), Some("%REQ(X-USER)%"));
}

#[test]
fn the_default_format_needs_a_key() {
    let line = "[2026-11-21T22:55:41.123Z] \"GET / HTTP/1.1\" 200 - 0 5 3 2 \"192.0.2.7\" \"curl/8\" \"id\" \"a\" \"b\"";
    assert_eq!(shipped().read(line.as_bytes()), Line::Malformed);
    let fields = Fields { key: Some("REQ(X-FORWARDED-FOR)".to_owned()), ..Fields::default() };
    let reader = Reader::new(&fields, &Only::default()).unwrap();
    assert_eq!(reader.read(line.as_bytes()), request("192.0.2.7", None, 1));
    let fields = Fields { format: Some("%START_TIME% x".to_owned()), ..Fields::default() };
    let error = Reader::new(&fields, &Only::default()).unwrap_err();
    assert!(error.contains("wasm.quotagate.partition"), "{error}");
}

#[test]
fn fields_with_names_of_secrets_are_recognized() {
    let is_secret =
        |key: &str| Fields { key: Some(key.to_owned()), ..Fields::default() }.key_is_secret();
    assert!(
        ["REQ(AUTHORIZATION)", "REQ(X-API-KEY)", "api_key", "user.sessionId"]
            .into_iter()
            .all(is_secret)
    );
    assert!(!is_secret("user.id") && !Fields::default().key_is_secret());
}

#[test]
fn an_error_says_why_a_json_line_has_no_time() {
    let reader = |time: Option<&str>| {
        let fields = Fields { time: time.map(str::to_owned), ..Fields::default() };
        Reader::new(&fields, &Only::default()).unwrap()
    };
    let line = br#"{"ts":"2026-11-21T22:55:41Z","at":"yesterday"}"#;
    let unknown = reader(Some("tiem")).why_no_time(line).unwrap();
    assert!(
        unknown.contains("no field \"tiem\"")
            && unknown.contains("\"at\"")
            && unknown.contains("\"ts\""),
        "{unknown}"
    );
    let no_time = reader(Some("at")).why_no_time(line).unwrap();
    assert!(
        no_time.contains("\"at\" is \"yesterday\"") && no_time.contains("--time-format"),
        "{no_time}"
    );
    assert_eq!(reader(Some("ts")).why_no_time(line), None);
    assert_eq!(reader(None).why_no_time(b"text"), None);
}

#[test]
fn requests_without_a_user_are_classified() {
    let uncounted = SHIPPED.replace("\"per-caller\"", "null").replace("\"jwt.sub=alice\"", "null");
    let other_format = "{\"time\":\"2026-11-21T22:55:41.123Z\",\"path\":\"/\"}";
    let only = Only { policy: Some("per-caller".to_owned()), path: None };
    for reader in [shipped(), Reader::new(&Fields::default(), &only).unwrap()] {
        assert_eq!(reader.read(uncounted.as_bytes()), Line::Unidentified(Missing::UserAndPolicy));
        assert_eq!(reader.read(other_format.as_bytes()), Line::Unidentified(Missing::Field));
    }
}
