//! The query of a request: names and values, of which the first of a name counts.

use std::borrow::Cow;
use std::str::FromStr;

use hyper::Uri;

use super::reply::Refusal;

/// A query.
pub struct Query<'a>(&'a [u8]);

impl<'a> Query<'a> {
    /// Of this address.
    pub fn of(uri: &'a Uri) -> Self {
        Self(uri.query().unwrap_or_default().as_bytes())
    }

    /// A value.
    pub fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        form_urlencoded::parse(self.0).find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// A number.
    ///
    /// # Errors
    /// Where it is none.
    pub fn number<T: FromStr>(&self, name: &'static str) -> Result<Option<T>, Refusal> {
        let read = |text: Cow<'_, str>| {
            text.parse().map_err(|_| Refusal::Malformed {
                field: name.to_owned(),
                reason: "must be a whole number".to_owned(),
            })
        };
        self.get(name).map(read).transpose()
    }
}
