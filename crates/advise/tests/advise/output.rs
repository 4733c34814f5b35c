//! The text, the picture, and a snippet that the filter accepts.

use std::fs;

use quotagate_advise::{Advice, Fields, Length, Only, Options, advise};
use quotagate_quota::config::Config;
use serde_json::{Value, json};

/// Advice on two users with one request a minute, one user with twelve, a malformed line and a
/// request without a user.
fn advice(options: Options) -> Advice {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let line = |user: &str, second: u32| {
        let time = format!("2026-11-21T22:55:{second:02}.000Z");
        json!({"time": time, "quota_policy": "per-caller", "quota_partition": user}).to_string()
            + "\n"
    };
    let mut text =
        line("jwt.sub=alice", 1) + &line("jwt.sub=bob", 2) + "\x1b[31mnonsense\n" + &line("", 3);
    (0..12).for_each(|second| text += &line("jwt.sub=eve", second));
    fs::write(&path, text).unwrap();
    let options = Options { logs: vec![path], ..options };
    let mut advice = advise(&options).unwrap();
    advice.read.malformed_first[0].log = "access.log".to_owned();
    advice
}

#[test]
fn the_text_is_complete() {
    let expected = include_str!("output.txt");
    assert_eq!(advice(Options::default()).text(), expected);
}

#[test]
fn the_snippet_is_a_policy_in_shadow_mode() {
    let snippet: Value = serde_saphyr::from_str(&advice(Options::default()).snippet).unwrap();
    let mut document = json!({"domain": "shop", "store": {"cluster": "s"}, "identities": {"caller": [{"client_ip": {}}]}});
    document["policies"] = snippet["policies"].clone();
    let config = Config::parse(document.to_string().as_bytes()).unwrap();
    assert_eq!(config.policies.len(), 1);
    assert_eq!(document["policies"][0]["mode"], "shadow");
    assert_eq!(document["policies"][0]["quota"], 12);
}

#[test]
fn the_snippet_with_in_flight_is_a_policy_in_shadow_mode() {
    let line = "{\"time\":1795301741,\"duration\":9,\"quota_policy\":\"p\",\"quota_partition\":\"jwt.sub=a\"}\n";
    let fields = Fields { duration: Some("duration".to_owned()), ..Fields::default() };
    let advice = of(&line.repeat(3), Options { fields, ..Options::default() });
    let snippet: Value = serde_saphyr::from_str(&advice.snippet).unwrap();
    let mut document = json!({"domain": "shop", "store": {"cluster": "s"}, "identities": {"caller": [{"client_ip": {}}]}});
    document["policies"] = snippet["policies"].clone();
    let config = Config::parse(document.to_string().as_bytes()).unwrap();
    assert_eq!(config.policies.len(), 2);
    let policy = &document["policies"][1];
    assert_eq!(
        (&policy["name"], &policy["in_flight"], &policy["mode"]),
        (&json!("p-in-flight"), &json!(3), &json!("shadow"))
    );
}

#[test]
fn policies_of_the_snippet_have_different_valid_names() {
    let longest = "a".repeat(64) + "/" + &"b".repeat(127);
    let names = [
        "p",
        "team/exports/per-caller",
        &longest,
        &longest[..191],
        &(longest[..182].to_owned() + "-in-flight"),
        &(longest[..64].to_owned() + "/" + &"c".repeat(115) + "/ddddddddddd"),
    ];
    for name in names {
        for windows in [vec![Length::Seconds(60)], vec![Length::Seconds(1), Length::Seconds(60)]] {
            let line = json!({"time": 1_795_301_741, "duration": 9, "quota_policy": name, "quota_partition": "jwt.sub=a"});
            let fields = Fields { duration: Some("duration".to_owned()), ..Fields::default() };
            let count = windows.len();
            let advice =
                of(&format!("{line}\n"), Options { fields, windows, ..Options::default() });
            assert_eq!(advice.policy.as_deref(), Some(name));
            let snippet: Value = serde_saphyr::from_str(&advice.snippet).unwrap();
            let mut document = json!({"domain": "shop", "store": {"cluster": "s"}, "identities": {"caller": [{"client_ip": {}}]}});
            document["policies"] = snippet["policies"].clone();
            let config = Config::parse(document.to_string().as_bytes()).unwrap();
            assert_eq!(config.policies.len(), count + 1);
            let begin = &name[..name.len().min(180)];
            for policy in snippet["policies"].as_array().unwrap() {
                assert!(policy["name"].as_str().unwrap().starts_with(begin), "{policy}");
            }
            if count == 1 {
                assert_eq!(snippet["policies"][0]["name"], name);
            }
        }
    }
}

#[test]
fn a_single_request_is_written_in_the_singular() {
    let line = "{\"time\":1795301741,\"duration\":9,\"quota_policy\":\"p\",\"quota_partition\":\"jwt.sub=a\"}\n";
    let log = line.to_owned() + &line.replace("9,", "null,");
    let fields = Fields { duration: Some("duration".to_owned()), ..Fields::default() };
    let text = of(&log, Options { fields, ..Options::default() }).text();
    let expected = "\nRunning at once: 1 request of 1 user\n1 request has no duration in whole milliseconds and is left out here: ";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn several_windows_get_advice_in_one_run() {
    let advice = advice(Options {
        windows: vec![Length::Seconds(5), Length::Seconds(60)],
        ..Options::default()
    });
    let quotas: Vec<_> = advice
        .windows
        .iter()
        .map(|window| (window.window.to_string(), window.recommended.quota))
        .collect();
    assert_eq!(quotas, [("5s".to_owned(), 5), ("1m".to_owned(), 12)]);
    let text = advice.text();
    assert!(text.starts_with("14 requests, from "), "{text}");
    assert!(text.contains("\nWindows of 5s: 3 users in 5 user-windows\n"), "{text}");
    assert!(
        text.contains("Recommended: 5 per 5s.") && text.contains("Recommended: 12 per 1m."),
        "{text}"
    );
    assert!(
        text.contains("  - name: per-caller-5s\n") && text.contains("  - name: per-caller-1m\n"),
        "{text}"
    );
    let plots = advice.plots().unwrap();
    assert_eq!(plots.iter().map(|(window, _)| window.as_str()).collect::<Vec<_>>(), ["5s", "1m"]);
}

#[test]
fn users_with_the_largest_windows_are_named_and_left_out() {
    let with = advice(Options { show_users: 2, without_top: 1, ..Options::default() });
    let top = &with.windows[0].top_users;
    assert_eq!(
        (top[0].user.as_str(), top[0].most, top[0].window_ms),
        ("jwt.sub=eve", 12, 1_795_301_700_000)
    );
    assert_eq!((top.len(), top[1].most), (2, 1));
    let without = with.windows[0].without_top.as_ref().unwrap();
    assert_eq!((without.left_out, without.recommended.as_ref().unwrap().quota), (1, 1));
    let text = with.text();
    assert!(text.contains("Without the user with the largest window: 1 per 1m.\n"), "{text}");
    assert!(text.contains("  12  jwt.sub=eve (at 2026-11-21T22:55:00Z)\n"), "{text}");

    let exclude = ["jwt.sub=e*", "jwt.sub=nobody"].map(str::to_owned).to_vec();
    let without = advice(Options { exclude, ..Options::default() });
    assert_eq!((without.read.requests, without.windows[0].recommended.quota), (2, 1));
    let text = without.text();
    assert!(text.contains("\n12 requests of jwt.sub=e* are excluded\n"), "{text}");
    assert!(text.contains("\n--exclude jwt.sub=nobody matches no user\n"), "{text}");
}

#[test]
fn names_from_a_field_of_secrets_are_hashed() {
    let fields = Fields { key: Some("api_key".to_owned()), ..Fields::default() };
    let advice = of(
        "{\"time\":1795301741,\"api_key\":\"hunter2\"}\n",
        Options { fields, show_users: 1, ..Options::default() },
    );
    let user = &advice.windows[0].top_users[0].user;
    assert!(user.starts_with('~') && user.len() == 17, "{user}");
    assert!(
        !advice.text().contains("hunter2")
            && !serde_json::to_string(&advice).unwrap().contains("hunter2")
    );
}

#[test]
fn requests_without_a_user_make_the_recommendation_doubtful() {
    let counted =
        "{\"time\":1795301741,\"quota_policy\":\"p\",\"quota_partition\":\"jwt.sub=a\"}\n";
    let lost = "{\"time\":1795301741,\"quota_policy\":null,\"quota_partition\":null}\n".repeat(9);
    let only = Only { policy: Some("p".to_owned()), path: None };
    for only in [Only::default(), only] {
        let advice = of(&format!("{counted}{lost}"), Options { only, ..Options::default() });
        assert_eq!(
            (advice.read.requests, advice.read.not_counted, advice.read.not_selected),
            (1, 9, 0)
        );
        let text = advice.text();
        assert!(
            text.contains(
                "\n9 requests have empty fields and are left out: no policy counted them\n"
            ),
            "{text}"
        );
        assert!(text.contains("Careful: 90 % of the requests (9) have no user"), "{text}");
    }
    let other =
        of(&format!("{counted}{}", "{\"time\":1795301741}\n".repeat(9)), Options::default());
    assert_eq!((other.read.without_field, other.read.not_counted), (9, 0));
    assert!(of(&counted.repeat(9), Options::default()).text().matches("Careful").next().is_none());
}

/// The advice on a log with this text.
fn of(text: &str, options: Options) -> Advice {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, text).unwrap();
    advise(&Options { logs: vec![path], ..options }).unwrap()
}

#[test]
fn the_picture_marks_the_recommendation_and_clips_no_text() {
    let fields =
        Fields { key: Some("user".to_owned()), cost: Some("cost".to_owned()), ..Fields::default() };
    let log = "{\"time\":1795301741,\"user\":\"a\",\"cost\":1}\n{\"time\":1795301741,\"user\":\"b\",\"cost\":987654321}\n";
    let advice = of(log, Options { fields, ..Options::default() });
    let [(window, picture)] = <[_; 1]>::try_from(advice.plots().unwrap()).unwrap();
    assert_eq!(window, "1m");
    assert!(picture.starts_with("<svg") && picture.contains(" per 1m"), "{picture}");
    for text in picture.split("<text ").skip(1) {
        let (attributes, rest) = text.split_once('>').unwrap();
        let words = rest.split_once('<').unwrap().0.trim();
        let value = |name: &str| {
            attributes.split_once(&format!("{name}=\"")).unwrap().1.split_once('"').unwrap().0
        };
        let [x, size] = ["x", "font-size"].map(|name| value(name).parse::<f64>().unwrap());
        // Letters of a sans-serif font are about 0.6 of its size wide.
        let width = 0.6 * size * words.len() as f64;
        let right = match value("text-anchor") {
            "start" => x + width,
            "middle" => x + width / 2.0,
            _ => x,
        };
        assert!(right <= 900.0 || attributes.contains("rotate"), "{words:?} ends at {right}");
    }
}
