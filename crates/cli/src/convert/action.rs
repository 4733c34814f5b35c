//! Actions of `rate_limits`: what each adds to a descriptor.

use serde_json::Value;

use super::conditions::{ANY, Conditions, ValueCondition, ValueSource, ValueTest};
use super::message::{EnvoyRoute, flag, member, number, text};

/// An entry of a descriptor that Envoy sends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SentEntry {
    pub(super) key: String,
    pub(super) value: SentValue,
}

/// Its value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SentValue {
    /// The configuration says it.
    Known(String),
    /// The request does.
    From(ValueSource),
}

/// What an action does for the requests of some conditions.
#[derive(Clone, Debug, Default)]
pub(super) struct Alternative {
    /// `None`: it adds nothing, and the other actions go on.
    pub(super) entry: Option<SentEntry>,
    pub(super) conditions: Conditions,
    /// What a document does not say of it.
    pub(super) gap: Option<String>,
}

impl Alternative {
    fn known(key: &str, value: &str) -> Self {
        let (key, value) = (key.to_owned(), SentValue::Known(value.to_owned()));
        Self { entry: Some(SentEntry { key, value }), ..Self::default() }
    }

    fn from(key: &str, source: ValueSource) -> Self {
        let (key, value) = (key.to_owned(), SentValue::From(source));
        Self { entry: Some(SentEntry { key, value }), ..Self::default() }
    }
}

/// What an action does: one of the alternatives, or it ends the descriptor. `cluster` is the name
/// of Envoy's own cluster.
///
/// # Errors
/// What a document cannot say, and what to do.
pub(super) fn alternatives(
    action: &Value,
    route: &EnvoyRoute<'_>,
    cluster: Option<&str>,
) -> Result<Vec<Alternative>, String> {
    let Some((name, fields)) = action.as_object().and_then(|action| action.iter().next()) else {
        return Err("an action without a kind: remove it".to_owned());
    };
    let key = |default: &'static str| text(fields, "descriptor_key").unwrap_or(default);
    let known = |default| {
        let value = text(fields, "descriptor_value").unwrap_or_default();
        Alternative::known(key(default), value)
    };
    Ok(match snake(name).as_str() {
        "generic_key" => vec![known("generic_key")],
        "request_headers" => {
            let name = text(fields, "header_name").unwrap_or_default();
            optional(fields, Alternative::from(key(""), ValueSource::header(name)))?
        }
        "query_parameters" => {
            let name = text(fields, "query_parameter_name").unwrap_or_default();
            optional(fields, Alternative::from(key(""), ValueSource::Query(name.to_owned())))?
        }
        "remote_address" => {
            let source = ValueSource::Address { ipv4: 32, ipv6: 128, is_network: false };
            vec![Alternative::from("remote_address", source)]
        }
        "masked_remote_address" => {
            let bits = |name, most| match number(fields, name) {
                None => Ok(most),
                Some(0) => Err(format!(
                    "`{name}: 0` makes one counter for all clients of a family: write \
                     `partition_by: []`"
                )),
                Some(bits) => Ok(u8::try_from(bits).unwrap_or(most).min(most)),
            };
            let (ipv4, ipv6) = (bits("v4_prefix_mask_len", 32)?, bits("v6_prefix_mask_len", 128)?);
            let source = ValueSource::Address { ipv4, ipv6, is_network: true };
            vec![Alternative::from("masked_remote_address", source)]
        }
        "header_value_match" => {
            let matchers = member(fields, "headers").and_then(Value::as_array);
            let conditions = expected(fields, matchers, header_matcher)?;
            vec![Alternative { conditions, ..known("header_match") }]
        }
        "query_parameter_value_match" => {
            let matchers = member(fields, "query_parameters").and_then(Value::as_array);
            let conditions = expected(fields, matchers, parameter_matcher)?;
            vec![Alternative { conditions, ..known("query_match") }]
        }
        "destination_cluster" => match route.cluster() {
            Some(cluster) => vec![Alternative::known("destination_cluster", cluster)],
            None => {
                return Err(
                    "destination_cluster of a route that chooses among clusters: write the \
                            names of its routes into match.routes"
                        .to_owned(),
                );
            }
        },
        "source_cluster" => match cluster {
            Some(cluster) => vec![Alternative::known("source_cluster", cluster)],
            None => {
                return Err(
                    "source_cluster, and the configuration has no node.cluster: write the \
                            value of --service-cluster there, and convert again"
                        .to_owned(),
                );
            }
        },
        "metadata" | "dynamic_metadata" => metadata(fields, key(""), route)?,
        other => {
            return Err(format!(
                "the action {other}: count by a header that another filter sets, or by metadata"
            ));
        }
    })
}

/// With `skip_if_absent`, a request without the value has a shorter descriptor.
fn optional(fields: &Value, with_value: Alternative) -> Result<Vec<Alternative>, String> {
    if !flag(fields, "skip_if_absent") {
        return Ok(vec![with_value]);
    }
    let Some(SentEntry { value: SentValue::From(of), .. }) = &with_value.entry else {
        return Ok(vec![with_value]);
    };
    if of.is_always_there() {
        return Ok(vec![with_value]);
    }
    let mut absent = Alternative::default();
    let test = ValueTest::Present(false);
    absent.conditions.all.push(ValueCondition { of: of.clone(), test });
    Ok(vec![with_value, absent])
}

fn metadata(fields: &Value, key: &str, route: &EnvoyRoute<'_>) -> Result<Vec<Alternative>, String> {
    let of = member(fields, "metadata_key");
    let filter = of.and_then(|of| text(of, "key")).unwrap_or_default();
    let steps = of.and_then(|of| member(of, "path")).and_then(Value::as_array);
    let steps = steps.into_iter().flatten();
    let path: Vec<String> = steps.filter_map(|step| text(step, "key")).map(str::to_owned).collect();
    let default = text(fields, "default_value").filter(|default| !default.is_empty());
    let source = member(fields, "source").map(|source| match source {
        Value::String(name) => name.clone(),
        number => number.to_string(),
    });
    match source.as_deref().unwrap_or("DYNAMIC") {
        "DYNAMIC" | "0" => {}
        "ROUTE_ENTRY" | "1" => {
            let known = route.metadata(filter, &path).or(default);
            return Ok(match known {
                Some(value) => vec![Alternative::known(key, value)],
                None if flag(fields, "skip_if_absent") => vec![Alternative::default()],
                None => Vec::new(),
            });
        }
        other => {
            return Err(format!(
                "metadata of {other}: let a filter copy it into dynamic metadata or a header"
            ));
        }
    }
    let mut with_value =
        Alternative::from(key, ValueSource::Metadata { filter: filter.to_owned(), path });
    with_value.gap = if let Some(default) = default {
        Some(format!(
            "requests without this metadata are not counted here, and as {default:?} by the \
             service: let the filter that writes it write this default"
        ))
    } else {
        flag(fields, "skip_if_absent").then(|| {
            "requests without this metadata are not counted here, and without this entry by the \
             service: add a policy for them"
                .to_owned()
        })
    };
    Ok(vec![with_value])
}

/// The conditions of matchers, or their opposite with `expect_match: false`.
fn expected(
    fields: &Value,
    matchers: Option<&Vec<Value>>,
    read: fn(&Value) -> Result<Conditions, String>,
) -> Result<Conditions, String> {
    let matchers = matchers.map(Vec::as_slice).unwrap_or_default();
    let mut all = Conditions::default();
    for matcher in matchers {
        let Conditions { all: hold, none } = read(matcher)?;
        all.all.extend(hold);
        all.none.extend(none);
    }
    if member(fields, "expect_match").and_then(Value::as_bool) != Some(false) {
        return Ok(all);
    }
    if all.all.len() + all.none.len() > 1 {
        return Err("expect_match: false over several conditions: a document has no \"not all of \
                    these\", so write one policy for each of them"
            .to_owned());
    }
    Ok(Conditions { all: all.none, none: all.all })
}

fn header_matcher(matcher: &Value) -> Result<Conditions, String> {
    let name = text(matcher, "name").unwrap_or_default();
    if name == ":scheme" {
        return Err(
            "a condition on :scheme: write it into match as a header that Envoy sets, such \
                    as x-forwarded-proto"
                .to_owned(),
        );
    }
    let of = ValueSource::header(name);
    let is_inverted = flag(matcher, "invert_match");
    let present = |is_there| ValueCondition { of: of.clone(), test: ValueTest::Present(is_there) };
    let deprecated = || {
        let test = |name: &str| text(matcher, name).map(str::to_owned);
        let regex = || member(matcher, "safe_regex_match").and_then(|regex| text(regex, "regex"));
        test("exact_match")
            .map(ValueTest::Exact)
            .or_else(|| test("prefix_match").map(ValueTest::Prefix))
            .or_else(|| test("suffix_match").map(ValueTest::Suffix))
            .or_else(|| test("contains_match").map(|part| contains(&part)))
            .or_else(|| regex().map(|regex| ValueTest::Regex(regex.to_owned())))
    };
    let test = match member(matcher, "string_match") {
        Some(matcher) => Some(string_matcher(matcher)?),
        None => deprecated(),
    };
    if member(matcher, "range_match").is_some() {
        return Err(format!(
            "a range of numbers for the header {name:?}: write it as a regex into match.headers"
        ));
    }
    let Some(test) = test else {
        let is_there = member(matcher, "present_match").and_then(Value::as_bool) != Some(false);
        let all = vec![present(is_there != is_inverted)];
        return Ok(Conditions { all, ..Conditions::default() });
    };
    let is_empty = flag(matcher, "treat_missing_header_as_empty");
    let held = vec![ValueCondition { of: of.clone(), test }];
    match (is_inverted, is_empty || of.is_always_there()) {
        (false, _) if is_empty => Err(format!(
            "treat_missing_header_as_empty for the header {name:?}: write a policy with \
             `present: false` for requests without it"
        )),
        (false, _) => Ok(Conditions { all: held, none: Vec::new() }),
        (true, true) => Ok(Conditions { all: Vec::new(), none: held }),
        (true, false) => Ok(Conditions { all: vec![present(true)], none: held }),
    }
}

fn parameter_matcher(matcher: &Value) -> Result<Conditions, String> {
    let name = text(matcher, "name").unwrap_or_default();
    let test = match member(matcher, "string_match") {
        Some(matcher) => string_matcher(matcher)?,
        None => {
            let is_there = member(matcher, "present_match").and_then(Value::as_bool);
            ValueTest::Present(is_there != Some(false))
        }
    };
    let of = ValueSource::Query(name.to_owned());
    Ok(Conditions { all: vec![ValueCondition { of, test }], ..Conditions::default() })
}

fn string_matcher(matcher: &Value) -> Result<ValueTest, String> {
    let of = |name: &str| text(matcher, name).map(str::to_owned);
    let regex = member(matcher, "safe_regex").and_then(|regex| text(regex, "regex"));
    let test = of("exact")
        .map(ValueTest::Exact)
        .or_else(|| of("prefix").map(ValueTest::Prefix))
        .or_else(|| of("suffix").map(ValueTest::Suffix))
        .or_else(|| of("contains").map(|part| contains(&part)))
        .or_else(|| regex.map(|regex| ValueTest::Regex(regex.to_owned())));
    let test = test.ok_or("a matcher of another kind: write its condition into match")?;
    // Envoy ignores the field beside `safe_regex`.
    if !flag(matcher, "ignore_case") || regex.is_some() {
        return Ok(test);
    }
    let regex = test.regex().unwrap_or_default();
    Ok(ValueTest::Regex(format!("(?i){regex}")))
}

fn contains(part: &str) -> ValueTest {
    ValueTest::Regex(format!("{ANY}{}{ANY}", regex_lite::escape(part)))
}

/// `genericKey` as `generic_key`.
fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
