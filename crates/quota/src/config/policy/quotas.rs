//! The fields `quota_from` and `tiers` of a policy.

use std::collections::BTreeMap;
use std::rc::Rc;

use quotagate_protocol::MAX_UNITS;

use crate::document::{Map, Node, Type, Whole, object};
use crate::request::allowance::{QuotaFrom, Tiers};
use crate::request::fact::ValueType;
use crate::request::source::{VerifiedNumber, VerifiedText};

/// A number of units. 0 is none.
pub(super) type UnitCount = Whole<0, MAX_UNITS>;

/// The most tiers of a policy.
const MAX_TIERS: usize = 256;
/// The longest name of a tier, in bytes.
const MAX_NAME: usize = 128;

object! {
    /// A whole number from a source that no client can write. It replaces `quota` or `in_flight`.
    /// Without `type`, a text of digits (`"50"`) is a number, too.
    QuotaFromDocument(QuotaFromFields<'a>) -> QuotaFrom {
        /// The largest quota that the source can give.
        default(9_007_199_254_740_991_u64) max: UnitCount = 10000,
        + source: VerifiedNumber,
    }
}

const _: () = assert!(MAX_UNITS == 9_007_199_254_740_991);

impl QuotaFromFields<'_> {
    fn build(self) -> Option<QuotaFrom> {
        let (fact, digits) = self.source?;
        if fact.value_type == Some(ValueType::Boolean) {
            self.node.fault("must be a number or a string of digits: true and false are no quota");
            return None;
        }
        Some(QuotaFrom { fact, digits, max: self.max? })
    }
}

object! {
    /// Quotas by a value that no client can write.
    TiersDocument(TiersFields<'a>) -> Tiers {
        /// The source of the value, or of a list of values.
        required source: VerifiedText = {"jwt": {"claim": "plan"}},
        /// The quota of each value. Callers with another value have `quota` or `in_flight`. If the
        /// value is a list, the first tier in the order of this document that is among its first
        /// 64 elements wins; elements of another type match no tier. Where this document has no
        /// order, as in a `google.protobuf.Struct`, in the native module and with `live: true`,
        /// the largest matching quota wins.
        required quotas: TierQuotas = {"free": 100, "premium": 10000},
        ! in_flight: "write quotas: they replace the policy's quota or in_flight",
    }
}

impl TiersFields<'_> {
    fn build(self) -> Option<Tiers> {
        let value_type = self.source.as_ref().and_then(|fact| fact.value_type);
        let mut quotas = BTreeMap::new();
        let mut next = 0_usize..;
        let mut good = true;
        for (name, node, quota) in self.quotas? {
            if let Some(why) = value_type.and_then(|value_type| misnamed(name, value_type)) {
                node.fault(format!("no tier can be named so: {why}"));
                good = false;
            }
            match quota {
                Some(quota) => {
                    let position = next.next().unwrap_or_default();
                    quotas.insert(Box::from(name.as_bytes()), (position, quota));
                }
                None => good = false,
            }
        }
        let fact = self.source?;
        good.then_some(Tiers { fact, quotas })
    }
}

/// Quotas by the names of tiers. A tier with a fault is `None`.
enum TierQuotas {}

type TierQuotaMap = Map<UnitCount, MAX_TIERS>;

impl Type for TierQuotas {
    type Out<'a> = Vec<(&'a str, Node<'a>, Option<u64>)>;

    fn read<'a>(node: &Node<'a>) -> Option<Self::Out<'a>> {
        let mut quotas = TierQuotaMap::read(node)?;
        if quotas.is_empty() {
            node.fault("must not be empty");
            return None;
        }
        for (name, node, quota) in &mut quotas {
            if name.is_empty() || name.len() > MAX_NAME {
                node.fault(format!("the name of a tier must be 1 to {MAX_NAME} bytes long"));
                *quota = None;
            }
        }
        Some(quotas)
    }

    #[cfg(feature = "schema")]
    fn schema(book: &mut crate::document::book::Book) -> serde_json::Value {
        let mut schema = TierQuotaMap::schema(book);
        crate::document::book::set(&mut schema, "minProperties", 1.into());
        crate::document::book::set(
            &mut schema,
            "propertyNames",
            serde_json::json!({"minLength": 1, "maxLength": MAX_NAME}),
        );
        schema
    }
}

/// Why no value of this type can be written as `name`. `None` if one can.
fn misnamed(name: &str, value_type: ValueType) -> Option<String> {
    match value_type {
        ValueType::Text if name.bytes().any(|b| b.is_ascii_control()) => {
            Some("a string with control characters is a missing one".to_owned())
        }
        ValueType::Boolean if !["true", "false"].contains(&name) => {
            Some("the source is true or false".to_owned())
        }
        ValueType::Number => match number(name) {
            Some(text) if text == name => None,
            Some(text) => Some(format!("the source is a number, and this one is written {text}")),
            None => Some("the source is a number of at most 2^53 - 1".to_owned()),
        },
        ValueType::Text | ValueType::Boolean => None,
    }
}

/// The number that `name` writes, in the spelling of values.
fn number(name: &str) -> Option<String> {
    let raw = name.parse::<f64>().ok()?.to_le_bytes();
    String::from_utf8(ValueType::Number.text(&Rc::from(raw))?.to_vec()).ok()
}
