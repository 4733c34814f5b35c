//! The section `response`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde_json::{Value, json};

use crate::config::names::MAX_HEADER;

/// What clients are told.
#[derive(JsonSchema)]
#[schemars(rename = "Response", deny_unknown_fields)]
pub struct ResponseDocument {
    /// The families of quota headers that every counted response carries; an empty list is none. `ietf` and `draft_07`
    /// exclude each other: both write the field `RateLimit`.
    #[schemars(
        length(max = 4),
        extend("uniqueItems" = true, "default" = ["ietf", "x_ratelimit"], "not" = both_write_ratelimit())
    )]
    pub headers: Option<Vec<Family>>,
    /// How `X-RateLimit-Reset` tells when the window ends.
    #[schemars(extend("default" = "epoch"))]
    pub reset: Option<Reset>,
    /// The answer to a request whose quota is used up.
    pub denied: Option<DeniedDocument>,
}

/// A family of quota headers.
#[derive(JsonSchema)]
pub enum Family {
    /// `RateLimit-Policy` and `RateLimit` of the IETF draft, one item a policy.
    #[schemars(rename = "ietf")]
    Ietf,
    /// `X-RateLimit-Limit`, `-Used`, `-Remaining` and `-Reset` of the policy with the fewest remaining.
    #[schemars(rename = "x_ratelimit")]
    XRateLimit,
    /// `RateLimit: limit=, remaining=, reset=` of the IETF draft's version 07, of the policy with the fewest remaining.
    #[schemars(rename = "draft_07")]
    Draft07,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` of the IETF draft's version 03, of the policy with the fewest
    /// remaining.
    #[schemars(rename = "draft_03")]
    Draft03,
}

/// How `X-RateLimit-Reset` tells when the window ends.
#[derive(JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub enum Reset {
    /// In seconds since the Unix epoch.
    Epoch,
    /// In seconds from now.
    Delta,
}

/// The answer to a request whose quota is used up. In the body and in values of headers, `{policy}`,
/// `{retry_after}` and `{quota}` are filled in.
#[derive(JsonSchema)]
#[schemars(rename = "Denied", deny_unknown_fields)]
pub struct DeniedDocument {
    /// The HTTP status.
    #[schemars(range(min = 400, max = 599), extend("default" = 429))]
    pub status: Option<u16>,
    /// The type of the body. Where it is one of JSON, the body must be JSON once its placeholders are filled in.
    pub content_type: Option<ContentType>,
    /// A body in place of the built-in one, which is `application/problem+json`.
    #[schemars(length(max = 65_536))]
    pub body: Option<String>,
    /// Further headers, none of those that the filter or Envoy sets.
    #[schemars(
        extend("maxProperties" = 32),
        extend("propertyNames" = header_name())
    )]
    pub headers: Option<BTreeMap<String, HeaderValue>>,
}

/// A media type, such as `application/json` or `text/html; charset=utf-8`.
#[derive(JsonSchema)]
pub struct ContentType(#[schemars(regex(pattern = MEDIA_TYPE), length(max = 1024))] pub String);

/// Two tokens, and perhaps parameters.
const MEDIA_TYPE: &str =
    "^[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+ *(;([ -~]*[!-~])?)?(?<! )$";

/// The value of a header: visible ASCII, with spaces only between its characters.
#[derive(JsonSchema)]
pub struct HeaderValue(#[schemars(regex(pattern = r"^[!-~]([ -~]*[!-~])?$"), length(max = 1024))] pub String);

fn both_write_ratelimit() -> Value {
    json!({"allOf": [{"contains": {"const": "ietf"}}, {"contains": {"const": "draft_07"}}]})
}

fn header_name() -> Value {
    json!({"pattern": super::identities::TOKEN, "maxLength": MAX_HEADER})
}
