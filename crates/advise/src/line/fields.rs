//! Which fields of a line are read, and which requests are selected.

/// Names of the fields to read: of members in JSON, with dots between nested names, and of
/// operators in text. An absent name is the one in `envoy/access_log.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// The format string of text lines; none: Envoy's default.
    pub format: Option<String>,
    /// The time at which the request began.
    pub time: Option<String>,
    /// The format of times, in the notation of strftime.
    pub time_format: Option<String>,
    /// The user whom the request is counted for.
    pub key: Option<String>,
    /// The policy that counted the request.
    pub policy: Option<String>,
    /// The path of the request.
    pub path: Option<String>,
    /// The cost of the request in units; none: one.
    pub cost: Option<String>,
    /// The duration of the request in milliseconds, to advise on `in_flight`; none: not read. In
    /// text, `duration` is the operator `DURATION`.
    pub duration: Option<String>,
}

impl Fields {
    /// Whether the names of users may be secrets: the field has the name of a secret. In the
    /// filter's own field, secrets are digests.
    pub(crate) fn key_is_secret(&self) -> bool {
        let name = self.key.as_deref().unwrap_or_default().to_ascii_lowercase().replace('_', "-");
        SECRETS.iter().any(|secret| name.contains(secret))
    }
}

/// Parts of the names of fields that may hold secrets.
const SECRETS: [&str; 8] =
    ["authorization", "cookie", "api-key", "apikey", "token", "secret", "password", "session"];

/// Which requests are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Only those that this policy counted.
    pub policy: Option<String>,
    /// Only those with this prefix of the path.
    pub path: Option<String>,
}

/// How many fields are read at most.
pub(super) const NUMBER: usize = 7;
/// Indexes of fields.
pub(super) const TIME: usize = 0;
pub(super) const KEY: usize = 1;
pub(super) const POLICY: usize = 2;
pub(super) const PATH: usize = 3;
pub(super) const COST: usize = 4;
pub(super) const DECISION: usize = 5;
pub(super) const DURATION: usize = 6;
