//! Log lines for operators: calls that fail, a store that the worker gives up, a store that answers
//! again.
//!
//! The first notice of a kind is logged at once. After that, at most one per [`PAUSE`] is logged,
//! with the number of those left out. So a store that fails a thousand times a second causes at
//! most one line of each kind in that time.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::time::Monotonic;
use crate::worker::call::breaker::BreakerChange;
use crate::worker::call::faults::{CallFault, CallOutcome};
use crate::worker::telemetry::identity_watch::FIRST;

/// Notices of one kind are at least this far apart.
pub const PAUSE: Duration = Duration::from_secs(10);
/// Most bytes of another program's text in a notice, before control characters are escaped.
const SHOWN: usize = 200;
/// Most faults of a published document in a notice.
const FAULTS: usize = 5;

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    what: What,
    /// Notices of its kind that were left out since the last one.
    left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    CallFailed(String),
    ReservationFailed { policy: Box<str>, why: String },
    FetchFailed(String),
    DialsIgnored(String),
    NoDials,
    GivenUp,
    Answers,
    NoToken(Box<str>),
    Rounded(Box<str>),
    TookUp { number: u64, digest: String },
    Withdrew,
    RefusedDocument { number: u64, faults: Vec<String> },
    DocumentFailed(String),
}

/// Notices to log, and when those of each kind were logged last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notices {
    due: Vec<Notice>,
    /// By the outcome of a call.
    faults: [Pace; CallOutcome::ALL.len()],
    given_up: Pace,
    answers: Pace,
    ignored: Pace,
    document: Pace,
    /// Whether the worker has given the store up, and whether the last line said so.
    is_given_up: bool,
    said_given_up: bool,
}

/// When a kind was logged last, and how many notices were left out since.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    last: Option<Monotonic>,
    left_out: u64,
}

impl Pace {
    fn is_open(&self, now: Monotonic) -> bool {
        self.last.is_none_or(|last| now.since(last) >= PAUSE)
    }

    /// Returns how many notices were left out, if one may be logged now.
    fn say(&mut self, now: Monotonic) -> Option<u64> {
        if self.is_open(now) {
            self.last = Some(now);
            Some(std::mem::take(&mut self.left_out))
        } else {
            self.left_out = self.left_out.saturating_add(1);
            None
        }
    }
}

impl Notices {
    /// A call failed. The notice never shows `secret`.
    pub(crate) fn call_failed(
        &mut self,
        fault: &CallFault<'_>,
        secret: Option<&str>,
        now: Monotonic,
    ) {
        let Some(left_out) = self.pace(fault.outcome()).and_then(|pace| pace.say(now)) else {
            return;
        };
        let what = What::CallFailed(explained(fault, secret));
        self.due.push(Notice { what, left_out });
    }

    /// A reservation of the counter `key` failed in a call with a reply.
    pub(crate) fn item_failed(
        &mut self,
        key: &str,
        why: &str,
        secret: Option<&str>,
        now: Monotonic,
    ) {
        let pace = self.pace(CallOutcome::ItemFailed);
        let Some(left_out) = pace.and_then(|pace| pace.say(now)) else { return };
        // Without the partition, which belongs in access logs only.
        let policy = key.split_once(":{").map_or(key, |(policy, _)| policy).into();
        let why = shown(why.as_bytes(), secret);
        self.due.push(Notice { what: What::ReservationFailed { policy, why }, left_out });
    }

    /// A fetch of dials failed.
    pub(crate) fn fetch_failed(
        &mut self,
        fault: &CallFault<'_>,
        secret: Option<&str>,
        now: Monotonic,
    ) {
        let pace = self.pace(CallOutcome::DialsFailed);
        let Some(left_out) = pace.and_then(|pace| pace.say(now)) else { return };
        let what = What::FetchFailed(explained(fault, secret));
        self.due.push(Notice { what, left_out });
    }

    /// A part of a reply with dials is invalid and ignored.
    pub(crate) fn dials_ignored(&mut self, what: &str, secret: Option<&str>, now: Monotonic) {
        let Some(left_out) = self.ignored.say(now) else { return };
        self.due
            .push(Notice { what: What::DialsIgnored(shown(what.as_bytes(), secret)), left_out });
    }

    /// The store does not support dials.
    pub(crate) fn no_dials(&mut self) {
        self.due.push(Notice { what: What::NoDials, left_out: 0 });
    }

    /// A published document is in force now. An empty digest: the embedded one is again.
    pub(crate) fn took_up(&mut self, number: u64, digest: &str) {
        let digest = plain(digest);
        let what = if digest.is_empty() { What::Withdrew } else { What::TookUp { number, digest } };
        self.due.push(Notice { what, left_out: 0 });
    }

    /// A published document has these faults.
    pub(crate) fn refused_document(&mut self, number: u64, faults: &[String]) {
        let faults = faults.iter().take(FAULTS).map(|fault| plain(fault));
        let what = What::RefusedDocument { number, faults: faults.collect() };
        self.due.push(Notice { what, left_out: 0 });
    }

    /// A fetch of the published document failed.
    pub(crate) fn document_failed(
        &mut self,
        fault: &CallFault<'_>,
        secret: Option<&str>,
        now: Monotonic,
    ) {
        let Some(left_out) = self.document.say(now) else { return };
        let what = What::DocumentFailed(explained(fault, secret));
        self.due.push(Notice { what, left_out });
    }

    /// No request has had a verified token for this identity so far.
    pub(crate) fn no_token(&mut self, identity: &str) {
        self.due.push(Notice { what: What::NoToken(identity.into()), left_out: 0 });
    }

    /// This identity found a number that Envoy has rounded.
    pub(crate) fn rounded(&mut self, identity: &str) {
        self.due.push(Notice { what: What::Rounded(identity.into()), left_out: 0 });
    }

    /// A call ended with this change of the breaker.
    pub(crate) fn changed(&mut self, change: BreakerChange, now: Monotonic) {
        self.is_given_up = match change {
            BreakerChange::None => return,
            BreakerChange::Opened => true,
            BreakerChange::Healed => false,
        };
        self.catch_up(now, Pace::say);
    }

    /// Time has passed: logs the state of the store if that was left out and still holds.
    pub(crate) fn tick(&mut self, now: Monotonic) {
        // This notice was counted as left out when it happened.
        let late = |pace: &mut Pace, now| if pace.is_open(now) { pace.say(now) } else { None };
        self.catch_up(now, |pace, now| late(pace, now).map(|left_out| left_out.saturating_sub(1)));
    }

    /// Whether no notice waits for its time.
    pub(crate) const fn is_settled(&self) -> bool {
        self.is_given_up == self.said_given_up
    }

    /// Whether there are notices to take.
    pub(crate) const fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes the notices.
    pub(crate) fn take(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.due)
    }

    /// The last line about the store is never wrong for longer than [`PAUSE`].
    fn catch_up(&mut self, now: Monotonic, say: impl FnOnce(&mut Pace, Monotonic) -> Option<u64>) {
        if self.is_settled() {
            return;
        }
        let (pace, what) = if self.is_given_up {
            (&mut self.given_up, What::GivenUp)
        } else {
            (&mut self.answers, What::Answers)
        };
        if let Some(left_out) = say(pace, now) {
            self.said_given_up = self.is_given_up;
            self.due.push(Notice { what, left_out });
        }
    }

    fn pace(&mut self, outcome: CallOutcome) -> Option<&mut Pace> {
        self.faults.get_mut(outcome as usize)
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::CallFailed(why) => write!(f, "a call to the store failed: {why}")?,
            What::ReservationFailed { policy, why } => {
                write!(f, "the store could not count for {policy}: {why}")?;
            }
            What::FetchFailed(why) => {
                write!(f, "fetching dials failed, so the last known dials stay in force: {why}")?;
            }
            What::DialsIgnored(what) => write!(f, "part of the store's dials is ignored: {what}")?,
            What::NoDials => {
                write!(f, "the store does not support dials: it is older than this filter")?
            }
            What::TookUp { number, digest } => {
                write!(f, "the published document number {number} ({digest}) is in force")?
            }
            What::Withdrew => {
                write!(f, "no document is published any more: the embedded one is in force")?
            }
            What::RefusedDocument { number, faults } => write!(
                f,
                "the published document number {number} is refused, and the one before stays in \
                 force: {}",
                faults.join("; ")
            )?,
            What::DocumentFailed(why) => write!(
                f,
                "fetching the published document failed, so the one in force stays: {why}"
            )?,
            What::GivenUp => {
                write!(f, "the store does not answer; until it does, on_failure decides requests")?
            }
            What::Answers => write!(f, "the store answers again")?,
            What::NoToken(identity) => write!(
                f,
                "none of the first {FIRST} requests had a verified token for the identity \
                 {identity}: `quotagate check` with Envoy's whole configuration says whether \
                 jwt_authn runs before this filter and keeps its payload (payload_in_metadata)"
            )?,
            What::Rounded(identity) => write!(
                f,
                "the identity {identity} read a number above 2^53 - 1, which counts as missing: Envoy \
                 has rounded it, and another caller's number may have become the same. Let the issuer \
                 write it as a text, and remove type: number"
            )?,
        }
        match self.left_out {
            0 => Ok(()),
            more => write!(f, " ({more} more of this kind since the last such line)"),
        }
    }
}

/// A text of a document, without what a log could take for more than text.
fn plain(text: &str) -> String {
    let printable = |c: char| if (' '..='~').contains(&c) { c } else { '?' };
    text.chars().map(printable).take(SHOWN).collect()
}

fn explained(fault: &CallFault<'_>, secret: Option<&str>) -> String {
    match fault {
        CallFault::NoCluster => "Envoy knows no such cluster; see store.cluster".to_owned(),
        CallFault::NoHost => {
            "no host of its cluster is healthy, or too many calls are under way".to_owned()
        }
        CallFault::Unreachable(why) => format!("no answer: {}", shown(why, secret)),
        CallFault::TimedOut => "no answer in time; see store.timeout".to_owned(),
        CallFault::CutOff => "its answer broke off or was not complete in time".to_owned(),
        CallFault::Refused { status, body } => {
            let about_token = matches!(status, 401 | 403);
            let hint = if about_token { "; see store.token" } else { "" };
            match error_text(body) {
                // Another server's text may show the token in an unknown form.
                None if about_token => format!("it answered {status}{hint}"),
                text => {
                    format!(
                        "it answered {status}{hint}: {}",
                        shown(text.as_deref().unwrap_or(body), secret)
                    )
                }
            }
        }
        CallFault::Declined(why) => {
            format!("it did not carry out the call: {}", shown(why.as_bytes(), secret))
        }
        CallFault::Malformed(why) => {
            format!(
                "its answer is not a reply to the call: {}",
                shown(why.to_string().as_bytes(), secret)
            )
        }
    }
}

/// The error text of an answer in the store's own form.
fn error_text(body: &[u8]) -> Option<Vec<u8>> {
    #[derive(serde::Deserialize)]
    struct ErrorBody {
        error: String,
    }
    serde_json::from_slice(body).ok().map(|ErrorBody { error }| error.into_bytes())
}

/// Another program's text in quotes, on one line, cut to [`SHOWN`] bytes and without the secret.
fn shown(text: &[u8], secret: Option<&str>) -> String {
    let text = String::from_utf8_lossy(text);
    let text = match secret {
        Some(secret) if !secret.is_empty() => Cow::Owned(text.replace(secret, "[token]")),
        _ => text,
    };
    let ends = text.char_indices().map(|(start, char)| start + char.len_utf8());
    let end = ends.take_while(|&end| end <= SHOWN).last().unwrap_or_default();
    let cut = text.get(..end).unwrap_or_default();
    let rest = if cut.len() < text.len() { "..." } else { "" };
    format!("\"{}{rest}\"", cut.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::new(Duration::from_millis(ms))
    }

    fn lines(notices: &mut Notices) -> Vec<String> {
        notices.take().iter().map(Notice::to_string).collect()
    }

    #[test]
    fn each_kind_is_logged_once_per_ten_seconds_with_the_number_left_out() {
        let mut notices = Notices::default();
        for ms in 0..10_000 {
            notices.call_failed(&CallFault::TimedOut, None, at(ms));
            notices.call_failed(&CallFault::CutOff, None, at(ms));
        }
        assert_eq!(lines(&mut notices).len(), 2);
        notices.call_failed(&CallFault::CutOff, None, at(10_000));
        let more = "(9999 more of this kind since the last such line)";
        assert_eq!(
            lines(&mut notices),
            [format!(
                "a call to the store failed: its answer broke off or was not complete in time {more}"
            )]
        );
        notices.call_failed(&CallFault::CutOff, None, at(20_000));
        assert_eq!(
            lines(&mut notices),
            ["a call to the store failed: its answer broke off or was not complete in time"]
        );
    }

    #[test]
    fn flapping_store_is_logged_rarely_and_the_last_line_is_true() {
        let mut notices = Notices::default();
        let mut seen = Vec::new();
        for step in 0..80 {
            let change = if step % 2 == 0 { BreakerChange::Opened } else { BreakerChange::Healed };
            notices.changed(change, at(step * 250));
            notices.tick(at(step * 250 + 10));
            seen.extend(lines(&mut notices));
        }
        assert!(seen.len() <= 4, "{seen:?}");
        notices.changed(BreakerChange::Opened, at(20_000));
        assert!(!lines(&mut notices).is_empty() && notices.is_settled());
        notices.changed(BreakerChange::Healed, at(20_500));
        lines(&mut notices);
        notices.changed(BreakerChange::Opened, at(20_600));
        assert!(lines(&mut notices).is_empty() && !notices.is_settled());
        notices.tick(at(29_999));
        assert!(lines(&mut notices).is_empty());
        notices.tick(at(30_000));
        let line = lines(&mut notices).join("\n");
        assert!(
            line.starts_with("the store does not answer;") && !line.contains("more of this kind"),
            "{line}"
        );
        assert!(notices.is_settled());
    }

    #[test]
    fn foreign_text_is_cut_escaped_and_never_shows_the_token() {
        let say = |fault: CallFault<'_>| {
            let mut notices = Notices::default();
            notices.call_failed(&fault, Some("s3cret+/="), at(0));
            lines(&mut notices).remove(0)
        };
        let long = format!("{}ä", "x".repeat(SHOWN - 1));
        for (body, shown) in [
            (&br#"{"error":"Redis is down"}"#[..], r#""Redis is down""#),
            (br#"{"error":"a\nb \u0000","more":1}"#, r#""a\nb \0""#),
            (b"<html>\r\n\x1b[31m", r#""<html>\r\n\u{1b}[31m""#),
            (b"\xff", "\"\u{fffd}\""),
            (b"no Bearer s3cret+/= here", r#""no Bearer [token] here""#),
            (br#"{"error":"s3cret+\/="}"#, r#""[token]""#),
            (b"", r#""""#),
            (long.as_bytes(), &format!("\"{}...\"", "x".repeat(SHOWN - 1))),
        ] {
            let line = say(CallFault::Refused { status: 500, body });
            assert_eq!(line, format!("a call to the store failed: it answered 500: {shown}"));
        }
        for (body, shown) in [
            (&br#"{"error":"wrong token"}"#[..], r#": "wrong token""#),
            (br#"{"message":"no s3cret+\/="}"#, ""),
            (b"s3cret%2B%2F%3D", ""),
        ] {
            let line = say(CallFault::Refused { status: 401, body });
            assert_eq!(
                line,
                format!("a call to the store failed: it answered 401; see store.token{shown}")
            );
        }
        assert!(say(CallFault::Unreachable(b"s3cret+/=\n")).ends_with(r#"no answer: "[token]\n""#));
        let misread = crate::worker::call::faults::Misread::Form("unknown `s3cret+/=`".to_owned());
        assert!(!say(CallFault::Malformed(misread)).contains("s3cret"));
    }

    #[test]
    fn failed_reservation_names_its_policy_but_not_its_partition() {
        let mut notices = Notices::default();
        notices.item_failed("shop:per-ip:{ip=192.0.2.7}", "moved\n", None, at(0));
        notices.item_failed("shop:other:{*}", "moved", None, at(1));
        assert_eq!(
            lines(&mut notices),
            [r#"the store could not count for shop:per-ip: "moved\n""#]
        );
    }
}
