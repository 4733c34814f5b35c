//! Which fields of a line are read, and which requests are asked for.

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

impl Fields {
    /// Whether what names users may be a secret: a field of one's own that is called like one. (In the filter's own field
    /// secrets are digests.)
    pub(crate) fn key_is_secret(&self) -> bool {
        let name = self.key.as_deref().unwrap_or_default().to_ascii_lowercase().replace('_', "-");
        SECRETS.iter().any(|secret| name.contains(secret))
    }
}

/// What fields are called that may hold secrets.
const SECRETS: [&str; 8] =
    ["authorization", "cookie", "api-key", "apikey", "token", "secret", "password", "session"];

/// Which requests are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Only {
    /// Those that this policy counted.
    pub policy: Option<String>,
    /// Those whose path begins so.
    pub path: Option<String>,
}

/// How many fields are read at most.
pub(super) const NUMBER: usize = 6;
/// Indexes of fields.
pub(super) const TIME: usize = 0;
pub(super) const KEY: usize = 1;
pub(super) const POLICY: usize = 2;
pub(super) const PATH: usize = 3;
pub(super) const COST: usize = 4;
pub(super) const DECISION: usize = 5;
