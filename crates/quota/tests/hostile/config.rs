//! Any bytes as a configuration: the reader does not panic, each fault is one line, and an accepted
//! configuration counts hostile requests under keys that the store accepts.

use std::borrow::Cow;
use std::cell::RefCell;

use quotagate_protocol::dials::MAX_FAULT;
use quotagate_protocol::{Holding, MAX_UNITS, Reservation, Window};
use quotagate_quota::config::{Config, OnWrongDocument, WrongDocument};
use quotagate_quota::request::{HeaderValues, Request};
use serde_json::{Value, json};

use crate::choices::Choices;

/// Configurations with every field.
const GOOD: [&str; 2] =
    [include_str!("../fixtures/good.json"), include_str!("../fixtures/good-redis.json")];

/// Uses the bytes as a configuration, and to choose what to change in a good one.
pub fn check(bytes: &[u8]) {
    read(bytes, bytes);
    let mut choices = Choices::new(bytes);
    for good in GOOD {
        let mut document: Value = serde_json::from_str(good).unwrap();
        for _ in 0..=choices.below(3) {
            change(&mut document, &mut choices);
        }
        read(document.to_string().as_bytes(), bytes);
    }
}

fn read(text: &[u8], hostile: &[u8]) {
    match Config::parse(text) {
        Err(faults) => {
            assert!(faults.iter().next().is_some());
            for fault in faults.iter() {
                let line = fault.to_string();
                assert!(!line.contains('\n') && !fault.path.is_empty(), "{line:?}");
            }
            let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
            let mut wrong = WrongDocument::read(text);
            let is_rejected = wrong.clone().instead(&lines, |_| None).is_none();
            assert_eq!(is_rejected, wrong.on_wrong_document == OnWrongDocument::Reject);
            wrong.on_wrong_document = OnWrongDocument::Keep;
            let instead = wrong.instead(&lines, |_| None).expect("always");
            assert!(instead.without_document().is_some() && instead.policies.is_empty());
            let fault = instead.refused.map(|refused| refused.fault).unwrap_or_default();
            assert!(fault.len() <= MAX_FAULT && !fault.contains(|c: char| c.is_control()));
        }
        Ok(config) => {
            let request = Hostile(RefCell::new(Choices::new(hostile)));
            for _ in 0..3 {
                count(&config, &request);
            }
        }
    }
}

fn count(config: &Config, request: &Hostile<'_>) {
    let evaluation = config.evaluate(request);
    let policies = config.policies.len();
    assert!(evaluation.missing.iter().all(|policy| *policy < policies));
    for check in evaluation.checks.into_iter().flatten() {
        let policy = &config.policies[check.policy];
        assert!(check.counter.key.starts_with(&format!("{}:{}:{{", config.domain, policy.name)));
        assert!(check.counter.quota <= MAX_UNITS && check.cost.get() <= MAX_UNITS);
        let (kind, window_s, offset_s) = check.counter.window.parts();
        let holds = check.counter.window == Window::InFlight;
        let holding =
            holds.then(|| Holding { worker: "w".into(), serial: 1, ..Holding::default() });
        let reservation = Reservation {
            key: check.counter.key.clone(),
            kind,
            holding,
            window_s,
            offset_s,
            quota: check.counter.quota,
            want: check.cost.get(),
            min: 1,
            ..Reservation::default()
        };
        assert_eq!(reservation.check(), Ok(check.counter.window), "{reservation:?}");
    }
}

/// Changes or removes one value of a document.
fn change(document: &mut Value, choices: &mut Choices<'_>) {
    let value = match choices.below(4) {
        0 => at(document, choices).clone(),
        1 if choices.yes() => (*choices
            .of(&["a\nb", "", " ", "\0", "\u{e4}", "{quota}", "a,b=c", "%", "*", "/"]))
        .into(),
        1 => String::from_utf8_lossy(&choices.bytes()).into_owned().into(),
        2 => (*choices.of(&[0, 1, 100, 1 << 31, MAX_UNITS, u64::MAX])).into(),
        _ => {
            let others = [
                json!(null),
                json!(true),
                json!(false),
                json!(-1),
                json!(0.5),
                json!([]),
                json!({}),
            ];
            choices.of(&others).clone()
        }
    };
    let target = at(document, choices);
    match target {
        Value::Object(fields) if choices.yes() => {
            let name = fields.keys().nth(choices.below(fields.len().max(1))).cloned();
            fields.remove(&name.unwrap_or_default());
        }
        Value::Array(values) if choices.yes() => values.push(value),
        _ => *target = value,
    }
}

/// A value anywhere in the document.
fn at<'v>(mut value: &'v mut Value, choices: &mut Choices<'_>) -> &'v mut Value {
    for _ in 0..choices.below(8) {
        let children = match &*value {
            Value::Object(fields) => fields.len(),
            Value::Array(values) => values.len(),
            _ => 0,
        };
        if children == 0 {
            break;
        }
        let child = choices.below(children);
        value = match value {
            Value::Object(fields) => fields.values_mut().nth(child).unwrap(),
            other => &mut other[child],
        };
    }
    value
}

/// Request facts with an answer to every question of a policy.
struct Hostile<'b>(RefCell<Choices<'b>>);

impl Hostile<'_> {
    fn some(&self) -> Option<Vec<u8>> {
        let mut choices = self.0.borrow_mut();
        (choices.below(4) != 3).then(|| choices.bytes())
    }

    /// A plausible value, or garbage.
    fn among(&self, plausible: &[&str]) -> Option<Vec<u8>> {
        let choice = self.0.borrow_mut().below(plausible.len() + 1);
        plausible.get(choice).map(|text| text.as_bytes().to_vec()).or_else(|| self.some())
    }
}

impl Request for Hostile<'_> {
    fn method(&self) -> Option<Cow<'_, [u8]>> {
        self.among(&["GET", "post"]).map(Cow::from)
    }
    fn path(&self) -> Option<Cow<'_, [u8]>> {
        self.among(&["/api/a?b=c&b=%zz", "/internal", "//v1/../v2/%2e%2e/", "*", "http://a/b"])
            .map(Cow::from)
    }
    fn authority(&self) -> Option<Cow<'_, [u8]>> {
        self.among(&["api.example.com:443", "a.example.org.", "[2001:db8::1]:80"]).map(Cow::from)
    }
    fn header(&self, name: &str) -> HeaderValues<'_> {
        let plausible: &[&str] =
            if name == "cookie" { &["a=b; a=\"c\"; =; session=%41"] } else { &["1", "-1", " 7\t"] };
        let more = self.0.borrow_mut().below(3);
        (0..more).filter_map(|_| self.among(plausible).map(Cow::from)).collect()
    }
    fn metadata(&self, _: &str, _: &[Box<str>]) -> Option<Vec<u8>> {
        let choice = self.0.borrow_mut().below(4);
        match choice {
            0 => Some(5e10_f64.to_le_bytes().to_vec()),
            1 => Some(f64::NAN.to_le_bytes().to_vec()),
            2 => Some(vec![1]),
            _ => self.some(),
        }
    }
    fn attribute(&self, _: &[&str]) -> Option<Vec<u8>> {
        self.among(&["spiffe://a/b"])
    }
    fn source_address(&self) -> Option<Cow<'_, [u8]>> {
        self.among(&["192.0.2.7:1", "[::ffff:192.0.2.7]:1", "[2001:db8::1]:1", "/run/a.sock"])
            .map(Cow::from)
    }
    fn route_name(&self) -> Option<Cow<'_, [u8]>> {
        self.among(&["search"]).map(Cow::from)
    }
}
