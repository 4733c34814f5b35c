//! The configuration of one route.

use quotagate_quota::config::{Config, PerRoute};

use super::fixtures;

fn faults(text: &str) -> String {
    PerRoute::parse(text.as_bytes()).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn route_is_disabled_or_has_a_whole_document() {
    let read = |text: &[u8]| PerRoute::parse(text).unwrap_or_else(|faults| panic!("{faults}"));
    let disabled = read(br#"{"disabled": true}"#);
    assert!(matches!(disabled, PerRoute::Disabled) && disabled.warnings().is_empty());
    let text = std::fs::read(fixtures().join("good.json")).unwrap();
    let whole = Config::parse_unordered(&text).unwrap_or_else(|faults| panic!("{faults}"));
    let route = read(&text);
    assert_eq!(route.warnings(), whole.warnings());
    let PerRoute::Policies(config) = route else { panic!("a document") };
    assert_eq!(format!("{config:?}"), format!("{whole:?}"));
}

#[test]
fn faults_of_a_route_name_the_remedy() {
    for (text, expected) in [
        ("", "configuration: must be JSON: "),
        ("[]", "configuration: must be an object, is a list"),
        (r#"{"disabled": false}"#, "disabled: must be true: to apply the listener's document, "),
        (r#"{"disabled": "yes"}"#, "disabled: must be true or false, is a string"),
        (
            r#"{"disabled": true, "domain": "shop"}"#,
            "configuration: must be {disabled: true} alone, or a whole policy document",
        ),
        (r#"{"domain": "shop", "policies": []}"#, "store: is required"),
    ] {
        let found = faults(text);
        assert!(found.starts_with(expected) && found.lines().count() == 1, "{text}: {found}");
    }
    let both = faults(r#"{"disabled": 1, "policies": []}"#);
    assert_eq!(both.lines().count(), 2, "{both}");
    assert_eq!(faults("{}").lines().count(), 3, "a route inherits nothing: {}", faults("{}"));
}
