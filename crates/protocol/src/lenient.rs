//! Values that a newer version may have written: what this version cannot read is left out, and the
//! rest of the message counts.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

/// A value, or one that this version does not know.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Lenient<T> {
    Known(T),
    Unknown(IgnoredAny),
}

impl<T> Lenient<T> {
    pub(super) fn known(self) -> Option<T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Unknown(IgnoredAny) => None,
        }
    }
}

/// Reads the items of a list that this version knows.
pub(super) fn items<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let items = Vec::<Lenient<T>>::deserialize(deserializer)?;
    Ok(items.into_iter().filter_map(Lenient::known).collect())
}
