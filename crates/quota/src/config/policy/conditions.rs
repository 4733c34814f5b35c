//! The object `match` of a policy: its conditions on requests.

use super::overrides::NetworkType;
use crate::document::names::MAX_NAME;
use crate::document::{Boolean, Distinct, List, Node, Text, Type, object, one_of};
use crate::request::matching::{
    HeaderCondition, HostPattern, Matcher, PathPattern, QueryCondition, ValuePattern, WholeRegex,
};
use crate::request::source::header::HeaderName;
use crate::request::{credentials, host, path, percent};

/// The most entries of one list of conditions.
const MAX_CONDITIONS: usize = 64;
/// The most routes of one condition.
const MAX_ROUTES: usize = 1024;
/// The longest text of a condition, in bytes. Workers compile expressions when they start.
const MAX_PATTERN: usize = 1024;

type Pattern = Text<MAX_PATTERN>;

/// Declares an object of conditions on requests, and its further fields.
macro_rules! conditions {
    ($(#[doc = $doc:literal])* $name:ident($fields:ident) { $($more:tt)* } $($rule:tt)*) => {
        object! {
            $(#[doc = $doc])*
            $name($fields<'a>) -> Matcher {
                /// The method is one of these, in upper case.
                optional methods: List<Method, 1, MAX_CONDITIONS> = ["GET", "POST"],
                /// The condition on the path without the query string.
                optional path: PathCondition = {"prefix": "/api/"},
                /// The host is one of these, in any case and without port. `*.example.org` is every
                /// name below example.org.
                optional hosts: List<Host, 1, MAX_CONDITIONS> = ["api.example.com", "*.example.org"],
                /// All of these conditions on headers hold.
                optional headers: List<HeaderConditionType, 1, MAX_CONDITIONS> =
                    [{"name": "x-beta", "exact": "1"}],
                /// The name of the Envoy route is one of these.
                optional routes: Distinct<Pattern, 1, MAX_ROUTES> = ["search"],
                /// The condition on a parameter of the query string.
                optional query: QueryConditionType = {"name": "preview", "exact": "1"},
                /// The client's address that Envoy trusts is in one of these networks (CIDR). It
                /// does not hold for clients without an address, as on a Unix socket.
                optional client_ip: List<NetworkType, 1, MAX_CONDITIONS> =
                    ["10.0.0.0/8", "2001:db8::/32"],
                $($more)*
            }
            $($rule)*
        }

        impl $fields<'_> {
            fn conditions(self, not: Option<Box<Matcher>>) -> Option<Matcher> {
                Some(Matcher {
                    methods: self.methods?.unwrap_or_default(),
                    path: self.path?,
                    hosts: self.hosts?.unwrap_or_default(),
                    headers: self.headers?.unwrap_or_default(),
                    query: self.query?,
                    routes: self.routes?.unwrap_or_default().into_iter().map(Box::from).collect(),
                    networks: self.client_ip?.unwrap_or_default(),
                    not,
                })
            }
        }
    };
}

conditions! {
    /// Conditions that must all hold.
    Match(MatchFields) {
        /// None of these conditions may hold. Where a text is too long for a regular expression, or
        /// the upstream may read the path in several ways, the policy applies.
        optional not: Exclusion = {"path": {"prefix": "/healthz"}},
    }
}

conditions! {
    /// At least one condition. None of them may hold.
    Not(NotFields) {}
    rule {"minProperties": 1}
}

impl MatchFields<'_> {
    fn build(mut self) -> Option<Matcher> {
        let not = self.not.take()?;
        self.conditions(not.map(Box::new))
    }
}

impl NotFields<'_> {
    fn build(self) -> Option<Matcher> {
        self.conditions(None)
    }
}

/// [`Not`] with clear faults.
enum Exclusion {}

impl Type for Exclusion {
    type Out<'a> = Matcher;

    fn read(node: &Node<'_>) -> Option<Matcher> {
        if node.has("not") {
            node.field("not").fault("cannot stand within a not: write its conditions into match");
            return None;
        }
        if node.value().as_object().is_some_and(serde_json::Map::is_empty) {
            node.fault("must have a condition, such as path: {prefix: /healthz}");
            return None;
        }
        Not::read(node)
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> serde_json::Value {
        Not::schema(book)
    }
}

one_of! {
    /// A condition on the path in one spelling: decoded, without `.`, `..` and `//`. It holds for
    /// the path with or without parameters (`;v=1`).
    PathCondition<'a> -> PathPattern {
        /// The path is this one, with or without a slash at the end.
        exact: Absolute = "/login" => |text| {
            let path = path::normalize(text.as_bytes());
            PathPattern::Exact(path::without_slash(&path).into())
        },
        /// The path begins with this.
        prefix: Absolute = "/api/" => |text| PathPattern::Prefix(path::normalize_prefix(text).into()),
        /// The path ends with this.
        suffix: Suffix = ".pdf" => |suffix| PathPattern::Suffix(suffix.into()),
        /// The whole path matches this regular expression.
        regex: PathRegex = "/v[0-9]+/.*" => PathPattern::Regex,
    }
}

object! {
    /// A condition on a header.
    HeaderConditionType(HeaderConditionFields<'a>) -> HeaderCondition {
        /// The name of the header, in any case.
        required name: HeaderName = "x-beta",
        + value: HeaderValueCondition,
    }
}

one_of! {
    /// A condition on the values of a header. Under `not`, all values of a header that is given
    /// twice must match.
    HeaderValueCondition<'a> -> ValuePattern {
        /// One of its values is this.
        exact: Trimmed = "1" => |text| ValuePattern::Exact(text.into()),
        /// One of its values begins with this.
        prefix: TrimmedStart = "Bearer " => |text| ValuePattern::Prefix(text.into()),
        /// One of its values as a whole matches this regular expression.
        regex: Regex = "v[0-9]+" => ValuePattern::Regex,
        /// Whether the request has the header.
        present: Boolean = false => |there| if there { ValuePattern::Present } else { ValuePattern::Absent },
    }
}

impl HeaderConditionFields<'_> {
    fn build(self) -> Option<HeaderCondition> {
        let (name, mut value) = (self.name?, self.value?);
        if credentials::are_in(&name) {
            value = value.of_credentials();
            let regex = self.node.field("regex");
            if let Some(scheme) = regex.value().as_str().and_then(credentials::misspelt_scheme) {
                regex.warn(format!(
                    "matches nothing: however a client writes the scheme, it is compared as {scheme}. Write it so"
                ));
            }
        }
        Some(HeaderCondition { name: name.into(), value })
    }
}

object! {
    /// A condition on a parameter of the query string.
    QueryConditionType(QueryConditionFields<'a>) -> QueryCondition {
        /// The name of the parameter after decoding. Case matters.
        required name: Text<MAX_NAME> = "preview",
        + value: QueryValueCondition,
    }
}

one_of! {
    /// A condition on the values of a parameter after decoding. Under `not`, all values of a
    /// parameter that is given twice must match.
    QueryValueCondition<'a> -> ValuePattern {
        /// One of its values is this.
        exact: Pattern = "1" => |text| ValuePattern::Exact(text.into()),
        /// One of its values begins with this.
        prefix: Pattern = "beta-" => |text| ValuePattern::Prefix(text.into()),
        /// One of its values as a whole matches this regular expression.
        regex: Regex = "v[0-9]+" => ValuePattern::Regex,
        /// Whether the request has the parameter.
        present: Boolean = false => |there| if there { ValuePattern::Present } else { ValuePattern::Absent },
    }
}

impl QueryConditionFields<'_> {
    fn build(self) -> Option<QueryCondition> {
        Some(QueryCondition { name: self.name?.into(), value: self.value? })
    }
}

/// A leaf type of conditions: its reader, and its keywords of the JSON Schema.
macro_rules! condition {
    ($(#[doc = $doc:literal])* $name:ident<$life:lifetime> -> $out:ty, $read:expr, $schema:tt) => {
        $(#[doc = $doc])*
        enum $name {}

        impl Type for $name {
            type Out<$life> = $out;

            fn read<$life>(node: &Node<$life>) -> Option<$out> {
                $read(node)
            }

            #[cfg(feature = "schema")]
            fn schema(_: &mut crate::document::book::Book) -> serde_json::Value {
                serde_json::json!($schema)
            }
        }
    };
}

condition! {
    /// A method. Requests are compared in upper case, so anything else is a slip.
    Method<'a> -> Box<str>, method, {"type": "string", "pattern": "^[A-Z0-9_-]{1,64}$"}
}

condition! {
    /// A host, or `*.` and a host.
    Host<'a> -> HostPattern, host,
    {"type": "string", "pattern": r"^((\*\.)?[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])$"}
}

condition! {
    /// The beginning of a path. `*` is the path of `OPTIONS *`.
    Absolute<'a> -> &'a str, absolute,
    {"type": "string", "pattern": r"^(/[^?#;]*|\*)$", "maxLength": MAX_PATTERN}
}

condition! {
    /// The end of a path, in its one spelling.
    Suffix<'a> -> Vec<u8>, suffix, {"type": "string", "pattern": "^[^?#;]+$", "maxLength": MAX_PATTERN}
}

condition! {
    /// A regular expression for paths.
    PathRegex<'a> -> WholeRegex, path_regex, {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN}
}

condition! {
    /// A regular expression.
    Regex<'a> -> WholeRegex, regex, {"type": "string", "minLength": 1, "maxLength": MAX_PATTERN}
}

condition! {
    /// A text without spaces around it.
    Trimmed<'a> -> &'a str, |node| trimmed(node, str::trim_matches),
    {"type": "string", "pattern": r"^[^ \t](.*[^ \t])?$", "maxLength": MAX_PATTERN}
}

condition! {
    /// A text without spaces before it.
    TrimmedStart<'a> -> &'a str, |node| trimmed(node, str::trim_start_matches),
    {"type": "string", "pattern": r"^[^ \t]", "maxLength": MAX_PATTERN}
}

fn method(node: &Node<'_>) -> Option<Box<str>> {
    let method = node.string()?;
    let allowed = |b: u8| b.is_ascii_uppercase() || b.is_ascii_digit() || b"-_".contains(&b);
    if (1..=64).contains(&method.len()) && method.bytes().all(allowed) {
        return Some(method.into());
    }
    node.fault(format!("must be a method in upper case such as GET, is {method:?}"));
    None
}

fn absolute<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = no_query(node)?;
    if !text.starts_with('/') && text != "*" {
        node.fault(format!("must begin with /, is {text:?}: no path matches otherwise"));
        return None;
    }
    Some(text)
}

fn suffix(node: &Node<'_>) -> Option<Vec<u8>> {
    let text = no_query(node)?;
    let suffix = path::normalize_suffix(text);
    if suffix.is_none() {
        node.fault(format!(
            "must be without segments . and .., is {text:?}: they are resolved before a path is matched"
        ));
    }
    suffix
}

fn no_query<'a>(node: &Node<'a>) -> Option<&'a str> {
    let text = Pattern::read(node)?;
    if text.contains(['?', '#']) {
        node.fault(format!(
            "must be without ? and #, is {text:?}: the query string is no part of the path"
        ));
        return None;
    }
    if percent::decode(text.as_bytes()).contains(&b';') {
        node.fault(format!(
            "must be without ;, is {text:?}: clients can leave out ; and what follows it"
        ));
        return None;
    }
    Some(text)
}

fn path_regex(node: &Node<'_>) -> Option<WholeRegex> {
    if node.value().as_str().is_some_and(|text| text.contains(';')) {
        node.warn(
            "has a semicolon: paths are compared with and without parameters, so clients can leave this part out",
        );
    }
    regex(node)
}

fn regex(node: &Node<'_>) -> Option<WholeRegex> {
    let text = Pattern::read(node)?;
    match WholeRegex::new(text) {
        Ok(regex) => Some(regex),
        Err(e) => {
            node.fault(format!("must be a regular expression, is {text:?}: {e}"));
            None
        }
    }
}

/// A text to compare header values with. Header values come without spaces and tabs around them.
fn trimmed<'a>(
    node: &Node<'a>,
    trim: impl for<'t> Fn(&'t str, [char; 2]) -> &'t str,
) -> Option<&'a str> {
    let text = Pattern::read(node)?;
    if trim(text, [' ', '\t']).len() < text.len() {
        node.fault(format!(
            "must be without the spaces around it, is {text:?}: values come without them"
        ));
        return None;
    }
    Some(text)
}

/// Brings a host into the spelling of requests.
fn host(node: &Node<'_>) -> Option<HostPattern> {
    let text = node.text()?;
    let (below, name) = match text.strip_prefix("*.") {
        Some(name) => (true, name),
        None => (false, text),
    };
    let normal = host::normalize(name.as_bytes().into()).into_owned();
    let bytes = |b: &u8| b.is_ascii_alphanumeric() || b"._-".contains(b);
    let bracketed = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    let address = !below && bracketed.is_some_and(|n| n.parse::<std::net::Ipv6Addr>().is_ok());
    let domain = !normal.is_empty() && !normal.starts_with(b".") && name.bytes().all(|b| bytes(&b));
    match String::from_utf8(normal) {
        Ok(host) if below && domain => Some(HostPattern::Below(format!(".{host}").into())),
        Ok(host) if address || domain => Some(HostPattern::Exact(host.into())),
        _ => {
            node.fault(format!(
                "must be a host without port such as api.example.com or *.example.com, is {text:?}"
            ));
            None
        }
    }
}
