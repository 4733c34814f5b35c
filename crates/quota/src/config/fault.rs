//! What is wrong with a configuration: all of it, each with its place.

use std::fmt;

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where: a JSON path such as `policies[0].window`, or `configuration` for the whole.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

/// All faults of a configuration, at least one. Displayed as one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// In the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }

    /// The single fault of something that could not be read at all.
    pub(super) fn one(path: &str, message: impl Into<String>) -> Self {
        Self(vec![Fault { path: path.to_owned(), message: message.into() }])
    }

    /// `None` when there are none.
    pub(super) fn from_list(faults: Vec<Fault>) -> Option<Self> {
        (!faults.is_empty()).then_some(Self(faults))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            fault.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}
impl std::error::Error for Faults {}
