//! For an answer of a store that lies about the published document: no panic, a document that is
//! taken up is the one that was named, and otherwise the one before stays in force. A request that
//! waits meanwhile is decided once.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use quotagate_protocol::dials::{DOCUMENT_PATH, MAX_REPORT, Report};
use quotagate_quota::config::{Config, PublishedDocument};
use quotagate_quota::evaluate::{Check, Counter};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{AnsweredBy, CallEnd, CallId, Submitted, Worker};
use serde_json::{Value, json};

use crate::choices::Choices;

const EMBEDDED: &str = r#"{
    "domain": "d",
    "live": true,
    "store": {"cluster": "c", "token": "s3cret"},
    "digest_key": "k3y",
    "policies": [{"name": "embedded", "quota": 1, "window": "1s", "partition_by": []}]
}"#;

/// Uses the bytes to choose what the store publishes and answers.
pub fn check(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let embedded = Arc::new(Config::parse(EMBEDDED.as_bytes()).unwrap());
    let mut liar = LyingStore {
        worker: Worker::new(Arc::clone(&embedded), 1),
        embedded,
        now: Monotonic::default(),
        version: 0,
        waits: None,
    };
    for _ in 0..=bytes.len() / 8 {
        liar.step(&mut choices);
    }
}

struct LyingStore {
    worker: Worker<u64>,
    embedded: Arc<Config>,
    now: Monotonic,
    version: u64,
    /// The request that waits, by the version at which it arrived.
    waits: Option<u64>,
}

/// What the worker goes by.
#[derive(Debug, PartialEq)]
struct InForce {
    number: u64,
    digest: String,
    policies: Vec<String>,
}

impl LyingStore {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let document = document(choices);
        let number = *choices.of(&[self.version + 1, 1, 0, u64::MAX]);
        let named = match choices.below(8) {
            7 => {
                choices.of(&["", "0123456789ab", "é\u{1}&domain=x", "0123456789abcdef"]).to_string()
            }
            _ => digest(&self.embedded, &document),
        };
        let policies = document["policies"].as_array().into_iter().flatten();
        let names: Vec<_> = policies.filter_map(|policy| policy["name"].as_str()).collect();
        let before = self.in_force();
        self.names(number, &named);
        self.arrives();
        for _ in 0..3 {
            let Some(fetch) = self.worker.next_fetch(self.now) else { break };
            assert!(fetch.path().starts_with(DOCUMENT_PATH), "one report in five seconds");
            assert!(fetch.report.is_none());
            let status = *choices.of(&[200, 200, 200, 200, 200, 200, 503, 404]);
            self.ends(fetch.id, status, reply(number, &named, &document, choices));
            self.now = self.now + Duration::from_secs(1);
        }
        let Some(document) = self.worker.document().cloned() else {
            return self.is_unchanged(&before);
        };
        let config = document.config(&self.embedded).map_err(Vec::from);
        let is_embedded = named.is_empty();
        if let Ok(config) = &config {
            assert_eq!(config.domain, self.embedded.domain);
            assert_eq!(config.store, self.embedded.store);
            assert!(is_embedded || *config.digest == *named, "what was named");
        }
        if self.worker.take_up(&document, config, self.now) {
            let after = self.in_force();
            assert_eq!(after.number, if is_embedded { 0 } else { number });
            if is_embedded {
                assert_eq!(after.digest, *self.embedded.digest);
            } else {
                assert_eq!(after.policies, names);
            }
        } else {
            self.is_unchanged(&before);
            assert_eq!(self.worker.config().refused.as_ref().map(|of| of.number), Some(number));
        }
    }

    /// The answer to a report names this document.
    fn names(&mut self, number: u64, digest: &str) {
        self.version += 1;
        // More than a store may lag behind the others.
        self.now = self.now + Duration::from_secs(11);
        self.worker.tick(self.now);
        for notice in self.worker.take_notices() {
            let line = notice.to_string();
            assert!(line.len() < 2_000 && !line.contains(char::is_control), "{line:?}");
            assert!(!line.contains("s3cret") && !line.contains("k3y"), "{line}");
        }
        let fetch = self.worker.next_fetch(self.now).expect("it reports without traffic");
        let report = fetch.report.unwrap();
        assert!(report.len() <= MAX_REPORT && report.bytes().all(|b| (b' '..=b'~').contains(&b)));
        let _: Report = serde_json::from_str(&report).unwrap();
        let document = json!({"number": number, "digest": digest});
        let reply = json!({"version": self.version, "dials": [], "document": document});
        self.ends(fetch.id, 200, reply.to_string().into_bytes());
    }

    /// A request arrives, for which no call is made. The one before is over.
    fn arrives(&mut self) {
        let decided = std::iter::from_fn(|| self.worker.next_decision());
        let decided: Vec<u64> = decided.map(|(who, _)| who).collect();
        assert_eq!(decided, Vec::from_iter(self.waits.replace(self.version)));
        let config = Arc::clone(self.worker.config());
        let policy = config.policies.first().expect("each document here has a policy");
        let key = format!("d:{}:{{*}}", policy.name).into();
        let counter = Counter { key, quota: policy.quota, window: policy.window.clone() };
        let check = Check { policy: 0, counter, cost: NonZeroU64::MIN, mode: policy.mode };
        let submitted = self.worker.submit(self.version, vec![check], self.now);
        assert!(matches!(submitted, Submitted::Waiting(_)), "{submitted:?}");
    }

    fn ends(&mut self, id: CallId, status: u16, body: Vec<u8>) {
        let end = CallEnd::Answered { status, by: AnsweredBy::Store, size: body.len(), body };
        self.worker.call_ended(id, &end, self.now);
    }

    fn in_force(&self) -> InForce {
        let config = self.worker.config();
        let policies = config.policies.iter().map(|policy| policy.name.to_string());
        InForce {
            number: config.number(),
            digest: config.digest.to_string(),
            policies: policies.collect(),
        }
    }

    /// The same document is in force. A store may give it another number.
    fn is_unchanged(&self, before: &InForce) {
        let after = self.in_force();
        assert_eq!((&after.digest, &after.policies), (&before.digest, &before.policies));
    }
}

/// A document as the store may have it: good, or with a fault.
fn document(choices: &mut Choices<'_>) -> Value {
    let name = *choices.of(&["a", "b", "embedded"]);
    let policy = json!({"name": name, "quota": 5, "window": "1m", "partition_by": []});
    let mut document = json!({"domain": "d", "policies": [policy]});
    match choices.below(12) {
        9 => document["polices"] = json!([]),
        1 => document["policies"][0]["speed"] = json!("high"),
        2 => document["domain"] = json!("e"),
        3 => document["store"] = json!({"cluster": "mine"}),
        4 => document["live"] = json!(true),
        5 => document["digest_key"] = json!("mine"),
        6 => document["policies"] = vec![policy; *choices.of(&[2, 2, 2, 2, 2, 2, 2, 1_025])].into(),
        7 => document = choices.of(&[json!([]), json!(7), json!(null), json!("")]).clone(),
        8 => document["policies"][0]["name"] = "x".repeat(*choices.of(&[0, 65, 1_000])).into(),
        _ => {}
    }
    document
}

/// The digest of a document, which may have faults.
fn digest(embedded: &Config, document: &Value) -> String {
    let reply = json!({"number": 1, "digest": "?", "document": document}).to_string();
    // `null` is no document.
    let read = PublishedDocument::read(reply.as_bytes()).unwrap();
    let Some(document) = read else { return "0123456789ab".to_owned() };
    let faults: Vec<String> = document.config(embedded).unwrap_err().into();
    let (_, digest) = faults[0].split_once("has the digest ").unwrap();
    digest.split(',').next().unwrap().to_owned()
}

/// What the store answers to a worker that asks for this document.
fn reply(number: u64, digest: &str, document: &Value, choices: &mut Choices<'_>) -> Vec<u8> {
    let honest = json!({"number": number, "digest": digest, "document": document});
    let mut text = match choices.below(12) {
        6 => return choices.bytes(),
        1 => json!({"number": number, "digest": digest}),
        2 => json!({"number": 77, "digest": digest, "document": document}),
        3 => json!({"number": number, "digest": "x", "document": document}),
        4 => json!({"number": "7", "digest": digest, "document": document}),
        5 => json!({"number": number, "digest": digest, "document": {"domain": "d"}}),
        _ => honest,
    }
    .to_string()
    .into_bytes();
    match choices.below(8) {
        4 => {
            let at = usize::from(u16::from_be_bytes([choices.byte(), choices.byte()]));
            let at = at % text.len();
            text[at] = choices.byte();
        }
        1 => text.truncate(text.len() / 2),
        2 => {
            // Deeper than any document is.
            let depth = *choices.of(&[120, 127, 128, 10_000]);
            let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            let reply = format!(
                r#"{{"number": {number}, "digest": "{}", "document": {nested}}}"#,
                digest.escape_default()
            );
            text = reply.into_bytes();
        }
        3 => text.resize(*choices.of(&[text.len(), text.len(), text.len(), 2 << 20]), b' '),
        _ => {}
    }
    text
}
