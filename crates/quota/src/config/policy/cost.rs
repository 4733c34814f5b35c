//! The field `cost` of a policy: the units that a request takes, and how its real cost replaces
//! them after the response.

use std::num::NonZeroU64;

use quotagate_protocol::MAX_UNITS;
use serde_json::Value;

use super::measure::{Measure, Weights};
use crate::config::warnings;
use crate::config::{CostSource, MissingCost, Settle};
use crate::document::{At, Distinct, List, Node, Text, Type, Whole, object, one_of, words};
use crate::request::allowance::Cost;
use crate::request::source::header::HeaderName;
use crate::request::source::metadata::{MAX_DEPTH, MetadataName};

/// The units that a request takes, and how they are corrected.
pub(crate) struct Costs {
    /// What it takes on arrival.
    pub(crate) reserve: Cost,
    /// How the response corrects that.
    pub(crate) settle: Option<Settle>,
}

/// A number of units of at least 1.
pub(super) type SomeUnits = Whole<1, MAX_UNITS>;

/// The most sources of a real cost.
const MAX_SOURCES: usize = 8;
/// The longest name of a member of a request's body, in bytes.
const MAX_MEMBER: usize = 128;
/// The most of these names.
const MAX_MEMBERS: usize = 8;
/// The largest weight of a token.
const MAX_WEIGHT: f64 = 1e6;

/// The cost of a request: a number, or where it comes from.
pub(crate) enum CostType {}

impl Type for CostType {
    type Out<'a> = Costs;

    fn read(node: &Node<'_>) -> Option<Costs> {
        if node.value().is_object() {
            CostDocument::read(node)
        } else {
            let reserve = units(SomeUnits::read(node)?).map(Cost::Fixed)?;
            Some(Costs { reserve, settle: None })
        }
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> Value {
        serde_json::json!({"anyOf": [SomeUnits::schema(book), CostDocument::schema(book)]})
    }
}

object! {
    /// A cost that the request or its response says.
    CostDocument(CostFields<'a>) -> Costs {
        /// Beside `reserve`: where the response says the real cost. The first source that has a
        /// whole number wins. The difference to the reserved units is refunded or taken when the
        /// response ends. Not with `precision: lease`, and not with `count_denied`.
        optional settle: List<SettleSource, 1, MAX_SOURCES> = [{"usage": "total"}],
        /// Beside `settle`: the real cost if no source has a whole number. `reserved` keeps
        /// the reservation. With `request_json` the client chooses that number, so write the units
        /// of your largest request instead. A response
        /// that breaks off before its usage is final costs no less than this by `usage`.
        default("reserved") if_missing: IfMissing = "nothing",
        + amount: CostAmount,
    }
    rule {"dependentRequired": {"settle": ["reserve"], "if_missing": ["settle"]}}
}

one_of! {
    /// The units that a request takes on arrival.
    CostAmount<'a> -> Cost {
        /// The header of the request that holds the cost.
        header: CostHeader = {"name": "x-cost", "max": 100} => |cost| cost,
        /// The units to reserve until the real cost is known: a number, or where the number is. A
        /// quota is exact if no request costs more than it reserves.
        reserve: Reserve = 2000 => |cost| cost,
    }
}

impl CostFields<'_> {
    fn build(self) -> Option<Costs> {
        let mut good = true;
        if self.node.has("settle") && self.node.has("header") {
            self.node.field("settle").fault(
                "needs reserve, the units to take on arrival: write reserve: {header: ..} instead of header",
            );
            good = false;
        }
        if self.node.has("if_missing") && !self.node.has("settle") {
            self.node.field("if_missing").fault("means nothing without settle");
            good = false;
        }
        let (sources, missing) = (self.settle?, self.if_missing?);
        let settle = sources.map(|sources| Settle { sources: sources.into(), missing });
        let reserve = self.amount?;
        if let Some(settle) = &settle {
            warnings::missing_usage(&self.node, &reserve, settle);
        }
        good.then_some(Costs { reserve, settle })
    }
}

/// The units that are reserved: a number, or where it comes from.
pub(crate) enum Reserve {}

impl Type for Reserve {
    type Out<'a> = Cost;

    fn read(node: &Node<'_>) -> Option<Cost> {
        if node.value().is_object() {
            ReserveFrom::read(node)
        } else {
            units(SomeUnits::read(node)?).map(Cost::Fixed)
        }
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> Value {
        serde_json::json!({"anyOf": [SomeUnits::schema(book), ReserveFrom::schema(book)]})
    }
}

object! {
    /// Units to reserve that the request says.
    ReserveFrom(ReserveFields<'a>) -> Cost {
        /// Beside `request_json`, where it is required: the units if the body has no such whole
        /// number of at least 1. A body of more than 64 KiB, one that takes longer than a second,
        /// or one where such a member is anything else reserves no less than this. In the Wasm
        /// form, so does a body that stops coming for 500 ms after its first 16 KiB: Envoy may have
        /// stopped the client because a buffer is full.
        optional default: At<SomeUnits> = 2000,
        /// Beside `request_json`: the most units. A larger number reserves this many.
        optional max: SomeUnits = 8000,
        + source: ReserveSource,
    }
    rule {"dependentRequired": {
        "request_json": ["default"], "default": ["request_json"], "max": ["request_json"]
    }}
}

/// Where a reserved cost comes from.
pub(crate) enum From<'a> {
    Header(Cost),
    RequestJson(Vec<&'a str>),
}

one_of! {
    /// Where a reserved cost comes from.
    ReserveSource<'a> -> From<'a> {
        /// The header of the request that holds the number.
        header: CostHeader = {"name": "x-max-cost"} => From::Header,
        /// The member of the request's body, a JSON object, that holds the number, or a list of
        /// such members. Names are compared without case, and the greatest number counts. The
        /// request waits until its body is there.
        request_json: MemberNames = ["max_completion_tokens", "max_tokens"] => From::RequestJson,
    }
}

/// Names of members of a request's body: one, or a list.
pub(crate) enum MemberNames {}

type MemberName = Text<MAX_MEMBER>;
type MemberList = Distinct<MemberName, 1, MAX_MEMBERS>;

impl Type for MemberNames {
    type Out<'a> = Vec<&'a str>;

    fn read<'a>(node: &Node<'a>) -> Option<Vec<&'a str>> {
        match node.value() {
            Value::Array(_) => MemberList::read(node),
            Value::String(_) => MemberName::read(node).map(|name| vec![name]),
            _ => {
                node.must("a name or a list of names, such as [max_completion_tokens, max_tokens]")
            }
        }
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> Value {
        serde_json::json!({"anyOf": [MemberName::schema(book), MemberList::schema(book)]})
    }
}

impl ReserveFields<'_> {
    fn build(self) -> Option<Cost> {
        let (default, max) = (self.default, self.max);
        let members = match self.source? {
            From::RequestJson(members) => members,
            From::Header(cost) => {
                let mut good = true;
                for field in ["default", "max"] {
                    if self.node.has(field) {
                        self.node
                            .field(field)
                            .fault("means nothing beside header: write it inside");
                        good = false;
                    }
                }
                return good.then_some(cost);
            }
        };
        let max = max?;
        let Some((default, at)) = default? else {
            self.node
                .field("default")
                .fault("is required: the units of a request whose body does not say");
            return None;
        };
        if let Some(max) = max
            && default > max
        {
            at.fault(format!("must be at most max, which is {max}, is {default}"));
            return None;
        }
        Some(Cost::RequestJson {
            members: members.into_iter().map(Box::from).collect(),
            default: units(default)?,
            max: max.and_then(units),
        })
    }
}

one_of! {
    /// A place in a response that may say the real cost.
    SettleSource<'a> -> CostSource {
        /// The tokens that a model used, in a body of JSON or server-sent events as OpenAI,
        /// Anthropic and Gemini write them. A compressed body cannot be read.
        /// `docs/reference/token-usage.md` says what counts.
        usage: UsageMeasure = "total" => CostSource::Usage,
        /// The header of the response that holds the cost.
        response_header: HeaderName = "x-cost" => |name| CostSource::Header(name.into()),
        /// The trailer of the response that holds the cost. Envoy passes trailers of an HTTP/1.1
        /// upstream on only if its cluster sets `enable_trailers`.
        response_trailer: HeaderName = "x-cost" => |name| CostSource::Trailer(name.into()),
        /// The member of the dynamic metadata that holds the cost. The native module reads the
        /// first level only.
        metadata: SettleMetadata = {"filter": "envoy.filters.http.example", "path": ["tokens"]} => |source| source,
    }
}

object! {
    /// A number in the dynamic metadata of the stream.
    SettleMetadata(SettleMetadataFields<'a>) -> CostSource {
        /// The namespace, which is mostly the name of the filter that wrote it.
        required filter: MetadataName = "envoy.filters.http.example",
        /// The names that lead to the number.
        required path: List<MetadataName, 1, MAX_DEPTH> = ["usage", "tokens"],
    }
}

impl SettleMetadataFields<'_> {
    fn build(self) -> Option<CostSource> {
        let path = self.path?.into_iter().map(Box::from).collect();
        Some(CostSource::Metadata { filter: self.filter?.into(), path })
    }
}

words! {
    /// Which tokens count.
    pub(crate) enum UsageWord {
        /// All tokens.
        Total = "total",
        /// The tokens that went in.
        Input = "input",
        /// The tokens that came out.
        Output = "output",
    }
}

/// Which tokens count: a word, or weights.
pub(crate) enum UsageMeasure {}

impl Type for UsageMeasure {
    type Out<'a> = Measure;

    fn read(node: &Node<'_>) -> Option<Measure> {
        match node.value() {
            Value::Object(_) => UsageWeights::read(node).map(Measure::Weighted),
            Value::String(_) => UsageWord::read(node).map(|word| match word {
                UsageWord::Total => Measure::Total,
                UsageWord::Input => Measure::Input,
                UsageWord::Output => Measure::Output,
            }),
            _ => node.must("total, input, output or weights such as {input: 1, output: 4}"),
        }
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> Value {
        serde_json::json!({"anyOf": [UsageWord::schema(book), UsageWeights::schema(book)]})
    }
}

object! {
    /// The units that one token costs, by its kind. The sum is rounded up. One of them must be more
    /// than 0.
    UsageWeights(UsageWeightsFields<'a>) -> Weights {
        /// A token that went in.
        default(0) input: Weight = 1,
        /// A token that went in and came out of the provider's cache. Left out, it costs as much as
        /// any other that went in.
        optional cached_input: Weight = 0.1,
        /// A token that came out.
        default(0) output: Weight = 4,
    }
}

impl UsageWeightsFields<'_> {
    fn build(self) -> Option<Weights> {
        let (input, cached, output) = (self.input?, self.cached_input?, self.output?);
        let weights = Weights::new(input, cached, output)?;
        if weights.are_zero() {
            self.node.fault("must have a weight above 0, such as {input: 1, output: 4}");
            return None;
        }
        Some(weights)
    }
}

/// A number from 0 to [`MAX_WEIGHT`]. Envoy passes a number with a fraction on as a string.
pub(crate) enum Weight {}

impl Type for Weight {
    type Out<'a> = f64;

    fn read(node: &Node<'_>) -> Option<f64> {
        match node.decimal() {
            Some(weight) if (0.0..=MAX_WEIGHT).contains(&weight) => Some(weight),
            _ => {
                node.fault(format!("must be a number from 0 to {MAX_WEIGHT}, is {}", node.shown()));
                None
            }
        }
    }

    #[cfg(feature = "schema")]
    fn schema(_: &mut crate::document::book::Book) -> Value {
        serde_json::json!({"type": "number", "minimum": 0, "maximum": MAX_WEIGHT})
    }
}

words! {
    /// A word for a missing cost.
    pub(crate) enum MissingWord {
        /// The reserved units count.
        Reserved = "reserved",
        /// Nothing counts.
        Nothing = "nothing",
    }
}

/// The cost if the response does not say it: a word, or a number.
pub(crate) enum IfMissing {}

impl Type for IfMissing {
    type Out<'a> = MissingCost;

    fn read(node: &Node<'_>) -> Option<MissingCost> {
        match node.value() {
            Value::String(text) if !text.bytes().all(|b| b.is_ascii_digit()) => {
                MissingWord::read(node).map(|word| match word {
                    MissingWord::Reserved => MissingCost::Reserved,
                    MissingWord::Nothing => MissingCost::Units(0),
                })
            }
            _ => Whole::<0, MAX_UNITS>::read(node).map(MissingCost::Units),
        }
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> Value {
        let number = Whole::<0, MAX_UNITS>::schema(book);
        serde_json::json!({"anyOf": [MissingWord::schema(book), number]})
    }
}

object! {
    /// A header that holds a cost.
    CostHeader(CostHeaderFields<'a>) -> Cost {
        /// The name of the header.
        required name: HeaderName = "x-cost",
        /// The cost of a request whose header is missing, or is no whole number of at least 1.
        default(1) default: At<SomeUnits> = 2,
        /// The largest cost. A larger number costs this much, and so does a header that is given
        /// twice. Without `max`, the larger of two numbers counts.
        optional max: SomeUnits = 100,
    }
}

impl CostHeaderFields<'_> {
    fn build(self) -> Option<Cost> {
        let (default, max) = (self.default, self.max);
        if let (Some((default, at)), Some(Some(max))) = (&default, max)
            && *default > max
            && self.node.has("default")
        {
            at.fault(format!("must be at most max, which is {max}, is {default}"));
            return None;
        }
        let max = match max? {
            Some(max) => Some(units(max)?),
            None => None,
        };
        Some(Cost::Header { name: self.name?.into(), default: units(default?.0)?, max })
    }
}

pub(super) fn units(number: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(number)
}
