//! The configuration of one route. Only the native form of the filter gets one.

use super::{Config, Fault, Faults, envoy, read};
use crate::document::{Collector, Node};

/// What the filter does with the requests of a route.
///
/// ```
/// use quotagate_quota::config::PerRoute;
///
/// assert!(matches!(PerRoute::parse(br#"{"disabled": true}"#)?, PerRoute::Disabled));
///
/// let whole = br#"{
///     "domain": "shop",
///     "store": {"cluster": "quota_store"},
///     "policies": [{"name": "uploads", "partition_by": [], "quota": 10, "window": "1m"}]
/// }"#;
/// assert!(matches!(PerRoute::parse(whole)?, PerRoute::Policies(_)));
/// # Ok::<(), quotagate_quota::config::Faults>(())
/// ```
#[derive(Clone, Debug)]
pub enum PerRoute {
    /// Nothing: `{disabled: true}`.
    Disabled,
    /// It applies a policy document of their own, and the listener's document does not apply.
    Policies(Box<Config>),
}

impl PerRoute {
    /// Reads `{disabled: true}` or a whole policy document, as
    /// [`Config::parse_unordered`] reads it.
    ///
    /// # Errors
    /// All faults of the text.
    pub fn parse(text: &[u8]) -> Result<Self, Faults> {
        let value = envoy::unordered(read(text)?);
        let collector = Collector::default();
        let node = Node::root(&value, &collector);
        if node.has("disabled") {
            let disabled = disabled(&node);
            collector.finish(disabled).map(|_| Self::Disabled)
        } else {
            Config::of(&value).map(|config| Self::Policies(config.into()))
        }
    }

    /// Warnings about values that are allowed but probably not what was meant.
    pub fn warnings(&self) -> &[Fault] {
        match self {
            Self::Disabled => &[],
            Self::Policies(config) => config.warnings(),
        }
    }
}

/// Reads `{disabled: true}`, which takes no other field.
fn disabled(node: &Node<'_>) -> Option<()> {
    if node.value().as_object().is_some_and(|fields| fields.len() > 1) {
        node.fault("must be {disabled: true} alone, or a whole policy document without disabled");
    }
    let disabled = node.field("disabled");
    if !disabled.boolean()? {
        disabled.fault("must be true: to apply the listener's document, give the route no configuration of this filter");
    }
    Some(())
}
