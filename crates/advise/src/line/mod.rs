//! What one line of a log says: who asked, when, for how much.

pub(crate) mod json;
mod operators;
mod text;
mod time;

use std::borrow::Cow;

use self::json::{Found, Paths};
use self::operators::{quota, strftime, want};
use self::text::Format;
use self::time::TimeFormat;

/// Names of what is read of a line; what is absent has the name that `envoy/access_log.yaml` gives it, or in text the
/// operator that stands there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The format string that text lines were written with; none: Envoy's default.
    pub format: Option<String>,
    /// When the request began.
    pub time: Option<String>,
    /// How times are written, in the notation of strftime.
    pub time_format: Option<String>,
    /// Who is counted.
    pub key: Option<String>,
    /// The policy that counted.
    pub policy: Option<String>,
    /// The path.
    pub path: Option<String>,
    /// How many units the request takes; none: one.
    pub cost: Option<String>,
}

/// Which requests are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Those that this policy counted.
    pub policy: Option<String>,
    /// Those whose path begins so.
    pub path: Option<String>,
}

/// A request that is to be counted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request<'l> {
    pub(crate) time_ms: i64,
    pub(crate) key: Cow<'l, [u8]>,
    /// Absent where the log names none, or other fields than the filter's are read.
    pub(crate) policy: Option<Cow<'l, [u8]>>,
    pub(crate) cost: u32,
}

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'l> {
    /// A request to be counted.
    Request(Request<'l>),
    /// A request that names nobody.
    Nobody,
    /// A request that is not asked for.
    Other,
    /// Not written in the format.
    Malformed,
}

/// Reads lines.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    names: [Option<String>; json::FIELDS],
    /// Without a format text is not understood: the operator that it lacks.
    text: Result<Format, String>,
    json_dash: Dash,
    text_dash: Dash,
    times: TimeFormat,
    text_times: TimeFormat,
    only: Only,
}

/// What `-` is as the name of a user.
///
/// The filter writes it for all requests that share a counter since they lack an identity (`on_missing: shared`); Envoy writes
/// it into text for what is not there, and `null` into JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dash {
    /// The shared user.
    Shared,
    /// The shared user where a policy or its decision is logged.
    SharedOfPolicy,
    /// Nobody.
    Nobody,
}

/// Places of fields.
const TIME: usize = 0;
const KEY: usize = 1;
const POLICY: usize = 2;
const PATH: usize = 3;
const COST: usize = 4;
const DECISION: usize = 5;

const DASH: &[u8] = b"-";
/// The decision on requests that were refused before anybody was counted.
const MISSING_IDENTITY: &[u8] = b"missing_identity";

impl Reader {
    /// A reader of lines with these fields.
    ///
    /// # Errors
    /// A sentence on what does not fit together.
    pub(crate) fn new(fields: &Fields, only: &Only) -> Result<Self, String> {
        let name =
            |given: &Option<String>, shipped: &str| Some(given.clone().unwrap_or_else(|| shipped.to_owned()));
        // Whoever counts by something else than the filter's partition asks nothing about its policies.
        let by_policy = fields.policy.is_some() || fields.key.is_none() || only.policy.is_some();
        let names = [
            name(&fields.time, "time"),
            name(&fields.key, "quota_partition"),
            if by_policy { name(&fields.policy, "quota_policy") } else { None },
            if only.path.is_some() { name(&fields.path, "path") } else { None },
            fields.cost.clone(),
            // In JSON nothing depends on it.
            None,
        ];
        let mut format = Format::parse(fields.format.as_deref().unwrap_or(text::DEFAULT))?;
        let missing = want(&mut format, fields, &names);
        if let (Some(missing), true) = (&missing, fields.format.is_some()) {
            return Err(format!("the format has no {missing}"));
        }
        let given = fields.time_format.clone().map(TimeFormat::Strftime);
        let of_operator = format.names().find_map(|name| name.strip_prefix("START_TIME(")?.strip_suffix(')'));
        let of_operator = of_operator.filter(|_| fields.time.is_none()).map(strftime);
        let text_times = given.clone().or(of_operator).unwrap_or(TimeFormat::Known);
        format.stop_early();
        let json_dash = match (fields.key.is_some(), by_policy) {
            (false, _) => Dash::Shared,
            (true, true) => Dash::SharedOfPolicy,
            (true, false) => Dash::Nobody,
        };
        let of_filter = fields.key.as_ref().is_none_or(|key| *key == quota("partition"));
        let text_dash = if of_filter { Dash::SharedOfPolicy } else { Dash::Nobody };
        let text = missing.map_or(Ok(format), Err);
        let times = given.unwrap_or(TimeFormat::Known);
        Ok(Self { names, text, json_dash, text_dash, times, text_times, only: only.clone() })
    }

    /// The operator for want of which no text line is understood, if there is one.
    pub(crate) fn text_lacks(&self) -> Option<&str> {
        self.text.as_ref().err().map(String::as_str)
    }

    /// What a line is; its line end may be there or not.
    pub(crate) fn read<'l>(&self, line: &'l [u8]) -> Line<'l> {
        let line = line.trim_ascii();
        let (found, times) = if line.starts_with(b"{") {
            (json::find(line, &self.paths()), &self.times)
        } else {
            (self.text.as_ref().ok().and_then(|format| format.find(line)), &self.text_times)
        };
        found.and_then(|found| self.judge(&found, times, line.starts_with(b"{"))).unwrap_or(Line::Malformed)
    }

    /// When a line's request began, if it says so.
    pub(crate) fn time(&self, line: &[u8]) -> Option<i64> {
        match self.read(line) {
            Line::Request(request) => Some(request.time_ms),
            _ => None,
        }
    }

    fn paths(&self) -> Paths<'_> {
        self.names.each_ref().map(Option::as_deref)
    }

    fn judge<'l>(&self, found: &Found<'l>, times: &TimeFormat, json: bool) -> Option<Line<'l>> {
        let written = |place: usize| -> Option<Cow<'l, [u8]>> {
            let raw = found.get(place).copied().flatten()?;
            let text = if json { json::text(raw)? } else { Cow::Borrowed(raw) };
            (!text.is_empty()).then_some(text)
        };
        // What Envoy writes for what is not there.
        let text = |place: usize| written(place).filter(|text| **text != *DASH);
        let time_ms = times.milliseconds(&text(TIME)?).filter(|time| *time >= 0)?;
        let policy = text(POLICY);
        if let Some(only) = &self.only.policy
            && policy.as_deref() != Some(only.as_bytes())
        {
            return Some(Line::Other);
        }
        if let Some(only) = &self.only.path
            && !text(PATH).is_some_and(|path| path.starts_with(only.as_bytes()))
        {
            return Some(Line::Other);
        }
        let dash = if json { self.json_dash } else { self.text_dash };
        let is_somebody = |key: &Cow<'l, [u8]>| {
            **key != *DASH
                || match dash {
                    Dash::Shared => true,
                    Dash::SharedOfPolicy => match text(DECISION) {
                        Some(decision) => *decision != *MISSING_IDENTITY,
                        None => policy.is_some(),
                    },
                    Dash::Nobody => false,
                }
        };
        let Some(key) = written(KEY).filter(is_somebody) else { return Some(Line::Nobody) };
        Some(Line::Request(Request { time_ms, key, policy, cost: cost(text(COST).as_deref()) }))
    }
}

/// As the filter takes it: what is no whole number of at least 1 is 1.
fn cost(text: Option<&[u8]>) -> u32 {
    let number = text.and_then(|text| str::from_utf8(text).ok()).and_then(|text| text.parse::<u64>().ok());
    number.map_or(1, |number| u32::try_from(number.max(1)).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = r#"{"time":"2026-11-21T22:55:41.123Z","method":"GET","path":"/a/b","status":200,"details":"via_upstream","quota_decision":"admitted","quota_policy":"per-caller","quota_partition":"jwt.sub=alice","quota_used":"3"}"#;

    fn shipped() -> Reader {
        Reader::new(&Fields::default(), &Only::default()).unwrap()
    }

    fn request<'l>(key: &'l str, policy: Option<&'l str>, cost: u32) -> Line<'l> {
        let policy = policy.map(|policy| Cow::Borrowed(policy.as_bytes()));
        Line::Request(Request {
            time_ms: 1_795_301_741_123,
            key: Cow::Borrowed(key.as_bytes()),
            policy,
            cost,
        })
    }

    #[test]
    fn the_shipped_format_is_read() {
        assert_eq!(shipped().read(SHIPPED.as_bytes()), request("jwt.sub=alice", Some("per-caller"), 1));
        for nobody in
            [SHIPPED.replace("\"jwt.sub=alice\"", "null"), SHIPPED.replace("quota_partition", "other")]
        {
            assert_eq!(shipped().read(nobody.as_bytes()), Line::Nobody);
        }
        for bad in ["", "{}", "hello", &SHIPPED.replace("2026", "MMXXVI"), &SHIPPED[..100]] {
            assert_eq!(shipped().read(bad.as_bytes()), Line::Malformed, "{bad}");
        }
    }

    #[test]
    fn other_requests_are_left_out() {
        let only = |policy: Option<&str>, path: Option<&str>| {
            let only = Only { policy: policy.map(str::to_owned), path: path.map(str::to_owned) };
            Reader::new(&Fields::default(), &only).unwrap().read(SHIPPED.as_bytes()) == Line::Other
        };
        assert!(!only(Some("per-caller"), Some("/a")));
        assert!(only(Some("per-ip"), None) && only(None, Some("/b")));
    }

    #[test]
    fn names_and_costs_can_be_told() {
        let fields = Fields {
            time: Some("at".to_owned()),
            key: Some("user.id".to_owned()),
            cost: Some("cost".to_owned()),
            ..Fields::default()
        };
        let reader = Reader::new(&fields, &Only::default()).unwrap();
        let line = r#"{"user":{"id":42},"at":1795301741.123,"cost":"7","quota_policy":"x"}"#;
        assert_eq!(reader.read(line.as_bytes()), request("42", None, 7));
        for (cost, expected) in [("0", 1), ("-3", 1), ("\"many\"", 1), ("99999999999", u32::MAX)] {
            assert_eq!(reader.read(line.replace("\"7\"", cost).as_bytes()), request("42", None, expected));
        }
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
        assert_eq!(reader.read(line.replace("/a/b", "/b").as_bytes()), Line::Other);
        assert_eq!(reader.read(line.replace("ip=192.0.2.7 per-ip", "- -").as_bytes()), Line::Nobody);
    }

    #[test]
    fn who_shares_a_counter_is_somebody() {
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
        // Of other fields none knows what it means, unless a policy is there too.
        let renamed = shared.replace("quota_", "q_");
        assert_eq!(reader("q_partition", None, None).read(renamed.as_bytes()), Line::Nobody);
        let named = reader("q_partition", Some("q_policy"), None);
        assert_eq!(named.read(renamed.as_bytes()), request("-", Some("per-caller"), 1));
        assert_eq!(named.read(renamed.replace("\"per-caller\"", "null").as_bytes()), Line::Nobody);

        let all = "%START_TIME% %FILTER_STATE(wasm.quotagate.decision:PLAIN)% \
                   %FILTER_STATE(wasm.quotagate.policy:PLAIN)% %FILTER_STATE(wasm.quotagate.partition:PLAIN)%";
        let (time, all) = ("2026-11-21T22:55:41.123Z", reader("", None, Some(all)));
        assert_eq!(all.read(format!("{time} admitted per-ip -").as_bytes()), request("-", Some("per-ip"), 1));
        assert_eq!(all.read(format!("{time} - - -").as_bytes()), Line::Nobody);
        assert_eq!(all.read(format!("{time} missing_identity per-ip -").as_bytes()), Line::Nobody);
        let alone = reader("", None, Some("%START_TIME% %FILTER_STATE(wasm.quotagate.partition:PLAIN)%"));
        assert_eq!(alone.read(format!("{time} -").as_bytes()), Line::Nobody);
        // The header that is not there, whoever counted the request.
        let header = "%START_TIME% %REQ(X-USER)% %FILTER_STATE(wasm.quotagate.policy:PLAIN)%";
        let header = reader("REQ(X-USER)", Some("FILTER_STATE(wasm.quotagate.policy:PLAIN)"), Some(header));
        assert_eq!(header.read(format!("{time} - per-ip").as_bytes()), Line::Nobody);
    }

    #[test]
    fn one_operator_may_be_read_for_several_things() {
        let line = "[2026-11-21T22:55:41.123Z] \"GET /api/x HTTP/1.1\" 200 - 0 5 3 2 \"192.0.2.7\" \"c\" \"i\" \"a\" \"b\"";
        let path = Some("REQ(X-ENVOY-ORIGINAL-PATH?:PATH)".to_owned());
        let only = Only { path: Some("/api".to_owned()), ..Only::default() };
        let reader = Reader::new(&Fields { key: path, ..Fields::default() }, &only).unwrap();
        assert_eq!(reader.read(line.as_bytes()), request("/api/x", None, 1));
        assert_eq!(reader.read(line.replace("/api", "/b").as_bytes()), Line::Other);
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
}
