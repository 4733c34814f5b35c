//! The JSON of the grants in a reply: the fields of a grant, or `error` alone.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Grant;

#[derive(Serialize)]
#[serde(untagged)]
enum Written<'a> {
    Granted(&'a Grant),
    Failed { error: &'a str },
}

/// Every field may be missing, so that one bad item does not make the whole reply unreadable. An
/// item that is neither a grant nor an error has failed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Read {
    error: Option<String>,
    granted: Option<u64>,
    used: Option<u64>,
    quota: Option<u64>,
    reset_ms: Option<u64>,
    window: Option<u64>,
    window_s: u32,
    waiting: u64,
}

impl Read {
    fn grant(&self) -> Option<Grant> {
        Some(Grant {
            granted: self.granted?,
            used: self.used?,
            quota: self.quota?,
            reset_ms: self.reset_ms?,
            window: self.window?,
            window_s: self.window_s,
            waiting: self.waiting,
            expired: 0,
        })
    }

    fn into_result(self) -> Result<Grant, String> {
        match (self.grant(), self.error) {
            (_, Some(error)) => Err(error),
            (Some(grant), None) => Ok(grant),
            (None, None) => Err("neither a grant nor an error".to_owned()),
        }
    }
}

pub(super) fn serialize<S: Serializer>(
    grants: &[Result<Grant, String>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(grants.iter().map(|grant| match grant {
        Ok(grant) => Written::Granted(grant),
        Err(error) => Written::Failed { error },
    }))
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Result<Grant, String>>, D::Error> {
    deserializer.deserialize_seq(ReadGrants)
}

/// Reads one grant after the other: a list of [`Read`] would be more than twice as large.
struct ReadGrants;

impl<'de> Visitor<'de> for ReadGrants {
    type Value = Vec<Result<Grant, String>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of grants")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut grants = Vec::new();
        while let Some(read) = items.next_element::<Read>()? {
            grants.push(read.into_result());
        }
        Ok(grants)
    }
}
