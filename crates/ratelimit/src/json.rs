//! The messages as JSON, in the mapping of Protocol Buffers.

use std::fmt::{self, Formatter};
use std::marker::PhantomData;

use prost_types::value::Kind;
use prost_types::{Struct, Value as ProtoValue};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::messages::{
    Code, Descriptor, DescriptorEntry, DescriptorStatus, MAX_DESCRIPTORS, MAX_ENTRIES,
    RateLimitRequest, RateLimitResponse, RequestLimit, Unit, escape_bytes,
};

/// Below 2^53, a number of a message holds every whole number.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// Most characters of a fault: a parser may repeat a value of any length.
const MAX_FAULT: usize = 300;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RequestJson {
    #[serde(deserialize_with = "nullable")]
    domain: String,
    #[serde(deserialize_with = "nullable")]
    descriptors: AtMost<DescriptorJson, MAX_DESCRIPTORS>,
    #[serde(alias = "hitsAddend", deserialize_with = "nullable")]
    hits_addend: Scalar,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DescriptorJson {
    #[serde(deserialize_with = "nullable")]
    entries: AtMost<EntryJson, MAX_ENTRIES>,
    limit: Option<LimitJson>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Scalar>,
    #[serde(alias = "isNegativeHits", deserialize_with = "nullable")]
    is_negative_hits: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct EntryJson {
    #[serde(deserialize_with = "nullable")]
    key: String,
    #[serde(deserialize_with = "nullable")]
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LimitJson {
    #[serde(alias = "requestsPerUnit", deserialize_with = "nullable")]
    requests_per_unit: Scalar,
    #[serde(deserialize_with = "nullable")]
    unit: Scalar,
}

/// A list of at most `MAX` elements. Further ones are not read.
struct AtMost<T, const MAX: usize>(Vec<T>);

/// A number, or a text: digits, or a name.
enum Scalar {
    Number(i128),
    Text(String),
}

impl<T, const MAX: usize> Default for AtMost<T, MAX> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for AtMost<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor::<T, MAX>(PhantomData))
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = AtMost<T, MAX>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} elements")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = sequence.next_element()? {
            if list.len() == MAX {
                return Err(A::Error::custom(format!("the list must have at most {MAX} elements")));
            }
            list.push(element);
        }
        Ok(AtMost(list))
    }
}

/// Reads a number or a text. Anything else is refused before it is read, however long it is.
struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number or a text")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Scalar, E> {
        Ok(Scalar::Number(number.into()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

impl Default for Scalar {
    fn default() -> Self {
        Self::Number(0)
    }
}

impl Scalar {
    fn read<N: TryFrom<i128>>(self, field: &str) -> Result<N, String> {
        let number = match self {
            Self::Number(number) => Some(number),
            Self::Text(text) => text.parse().ok(),
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        number.ok_or_else(|| format!("{field}: must be a whole number within its type"))
    }
}

/// Reads `null` like a field that is missing, as the mapping of Protocol Buffers does.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a request.
///
/// # Errors
/// Why it is none.
pub(crate) fn request(body: &[u8]) -> Result<RateLimitRequest, String> {
    let RequestJson { domain, descriptors, hits_addend } =
        serde_json::from_slice(body).map_err(|error| {
            let fault: String = error.to_string().chars().take(MAX_FAULT).collect();
            format!("the body is no request: {fault}")
        })?;
    let descriptors = descriptors.0.into_iter().map(descriptor).collect::<Result<_, _>>()?;
    Ok(RateLimitRequest { domain, descriptors, hits_addend: hits_addend.read("hits_addend")? })
}

fn descriptor(descriptor: DescriptorJson) -> Result<Descriptor, String> {
    let DescriptorJson { entries, limit, hits_addend, is_negative_hits } = descriptor;
    let text = |text: String| escape_bytes(text.into_bytes());
    let entry = |EntryJson { key, value }| DescriptorEntry { key: text(key), value: text(value) };
    Ok(Descriptor {
        entries: entries.0.into_iter().map(entry).collect(),
        limit: limit.map(request_limit).transpose()?,
        hits_addend: hits_addend.map(|hits| hits.read("hits_addend")).transpose()?,
        is_negative_hits,
    })
}

fn request_limit(limit: LimitJson) -> Result<RequestLimit, String> {
    let LimitJson { requests_per_unit, unit } = limit;
    let unit = match unit {
        Scalar::Text(name) => {
            let all = || Unit::ALL.map(Unit::name).join(", ");
            Unit::of(&name).ok_or_else(|| format!("unit: must be one of {}", all()))?.into()
        }
        number @ Scalar::Number(_) => number.read("unit")?,
    };
    Ok(RequestLimit { requests_per_unit: requests_per_unit.read("requests_per_unit")?, unit })
}

/// Writes an answer.
pub(crate) fn response(answer: &RateLimitResponse) -> Value {
    let mut members = Map::new();
    members.insert("overallCode".to_owned(), code(answer.overall_code()).into());
    members.insert("statuses".to_owned(), answer.statuses.iter().map(status).collect());
    if !answer.response_headers_to_add.is_empty() {
        let headers = answer.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({"key": header.key, "value": header.value}));
        members.insert("responseHeadersToAdd".to_owned(), headers.collect());
    }
    if let Some(metadata) = &answer.dynamic_metadata {
        members.insert("dynamicMetadata".to_owned(), structure(metadata));
    }
    Value::Object(members)
}

fn status(status: &DescriptorStatus) -> Value {
    let mut members = Map::new();
    members.insert("code".to_owned(), code(status.code()).into());
    if let Some(limit) = &status.current_limit {
        let mut of_limit = Map::new();
        if limit.requests_per_unit != 0 {
            of_limit.insert("requestsPerUnit".to_owned(), limit.requests_per_unit.into());
        }
        of_limit.insert("unit".to_owned(), limit.unit().name().into());
        if !limit.name.is_empty() {
            of_limit.insert("name".to_owned(), limit.name.as_str().into());
        }
        members.insert("currentLimit".to_owned(), Value::Object(of_limit));
    }
    if status.limit_remaining != 0 {
        members.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(reset) = &status.duration_until_reset {
        members.insert("durationUntilReset".to_owned(), format!("{}s", reset.seconds).into());
    }
    Value::Object(members)
}

const fn code(code: Code) -> &'static str {
    match code {
        Code::Unknown => "UNKNOWN",
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

fn structure(fields: &Struct) -> Value {
    Value::Object(members(fields))
}

/// The members of a structure.
pub(crate) fn members(of: &Struct) -> Map<String, Value> {
    of.fields.iter().map(|(name, member)| (name.clone(), value(member))).collect()
}

fn value(of: &ProtoValue) -> Value {
    match &of.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(truth)) => Value::Bool(*truth),
        // Whole numbers have no fraction.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < EXACT => {
            json!(*number as i64)
        }
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => Value::String(text.clone()),
        Some(Kind::ListValue(list)) => list.values.iter().map(value).collect(),
        Some(Kind::StructValue(fields)) => structure(fields),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_escapes_that_they_have_by_grpc() {
        let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "\ufffdxe9"}]}]}"#;
        let value = &request(body.as_bytes()).unwrap().descriptors[0].entries[0].value;
        assert_eq!(value, "\u{fffd}xef\u{fffd}xbf\u{fffd}xbdxe9");
    }

    #[test]
    fn null_is_a_field_that_is_missing() {
        let empty = r#"{"domain": null, "descriptors": null, "hits_addend": null}"#;
        assert_eq!(request(empty.as_bytes()).unwrap(), RateLimitRequest::default());
        let limit = r#"{"requests_per_unit": null, "unit": null}"#;
        let fields = format!(
            r#""entries": [{{"key": null, "value": null}}], "limit": {limit}, "hits_addend": null, "is_negative_hits": null"#
        );
        let of = |descriptor: &str| {
            let text = format!(r#"{{"domain": "d", "descriptors": [{descriptor}]}}"#);
            request(text.as_bytes())
        };
        assert_eq!(
            of(&format!("{{{fields}}}")),
            of(r#"{"entries": [{}], "limit": {}}"#),
            "the same without the fields"
        );
        assert_eq!(of(r#"{"entries": null, "limit": null}"#), of("{}"));
        assert!(of("null").is_err(), "an element of a list must not be null");
    }

    #[test]
    fn fields_of_an_answer_that_are_zero_are_left_out() {
        let statuses = vec![DescriptorStatus { code: 1, ..DescriptorStatus::default() }];
        let answer =
            RateLimitResponse { overall_code: 1, statuses, ..RateLimitResponse::default() };
        let text = response(&answer).to_string();
        assert_eq!(text, r#"{"overallCode":"OK","statuses":[{"code":"OK"}]}"#);
    }
}
