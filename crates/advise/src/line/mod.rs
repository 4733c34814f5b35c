//! What one line of a log says: who asked, when, for how much.

pub(crate) mod json;
mod text;
mod time;

use std::borrow::Cow;

use self::json::{Found, Paths};
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
    /// None: text is not understood, since it has no operator for what is needed.
    text: Option<Format>,
    times: TimeFormat,
    text_times: TimeFormat,
    only: Only,
}

/// Places of fields.
const TIME: usize = 0;
const KEY: usize = 1;
const POLICY: usize = 2;
const PATH: usize = 3;
const COST: usize = 4;

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
        let text = missing.is_none().then_some(format);
        Ok(Self { names, text, times: given.unwrap_or(TimeFormat::Known), text_times, only: only.clone() })
    }

    /// What a line is; its line end may be there or not.
    pub(crate) fn read<'l>(&self, line: &'l [u8]) -> Line<'l> {
        let line = line.trim_ascii();
        let (found, times) = if line.starts_with(b"{") {
            (json::find(line, &self.paths()), &self.times)
        } else {
            (self.text.as_ref().and_then(|format| format.find(line)), &self.text_times)
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
        let text = |place: usize| -> Option<Cow<'l, [u8]>> {
            let raw = found.get(place).copied().flatten()?;
            let text = if json { json::text(raw)? } else { Cow::Borrowed(raw) };
            // What Envoy writes for what is not there.
            (!text.is_empty() && *text != *b"-").then_some(text)
        };
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
        let Some(key) = text(KEY) else { return Some(Line::Nobody) };
        Some(Line::Request(Request { time_ms, key, policy, cost: cost(text(COST).as_deref()) }))
    }
}

/// Wants of a format what lines must say; the name of what it lacks.
fn want(format: &mut Format, fields: &Fields, names: &[Option<String>; json::FIELDS]) -> Option<String> {
    let quota = |field: &str| format!("FILTER_STATE(wasm.quotagate.{field}:PLAIN)");
    let is_time = |name: &str| name == "START_TIME" || name.starts_with("START_TIME(");
    let is_path = |name: &str| name.starts_with("PATH(") || name == "PATH" || name.ends_with(":PATH)");
    let found = match &fields.time {
        Some(time) => format.want(|name| name == time, TIME),
        None => format.want(is_time, TIME),
    };
    if !found {
        return Some(fields.time.clone().unwrap_or_else(|| "%START_TIME%".to_owned()));
    }
    for (place, given, shipped) in
        [(KEY, &fields.key, quota("partition")), (POLICY, &fields.policy, quota("policy"))]
    {
        let name = given.clone().unwrap_or(shipped);
        let needed = place == KEY || given.is_some();
        if names.get(place).is_some_and(Option::is_some)
            && !format.want(|other| other == name, place)
            && needed
        {
            return Some(format!("%{name}%"));
        }
    }
    if names.get(PATH).is_some_and(Option::is_some) {
        let found = match &fields.path {
            Some(path) => format.want(|name| name == path, PATH),
            None => format.want(is_path, PATH),
        };
        if !found {
            return Some("%PATH%".to_owned());
        }
    }
    let cost = fields.cost.as_ref()?;
    (!format.want(|name| name == cost, COST)).then(|| format!("%{cost}%"))
}

/// The format of Envoy's `START_TIME(..)`; `%3f` and its like are read by `%f`.
fn strftime(arguments: &str) -> TimeFormat {
    let mut format = arguments.to_owned();
    for digit in '1'..='9' {
        format = format.replace(&format!("%{digit}f"), "%f");
    }
    TimeFormat::Strftime(format)
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
        for nobody in [SHIPPED.replace("\"jwt.sub=alice\"", "null"), SHIPPED.replace("jwt.sub=alice", "-")] {
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
        assert_eq!(reader.read(line.replace("ip=192.0.2.7", "-").as_bytes()), Line::Nobody);
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
