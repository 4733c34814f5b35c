//! What is wrong with a configuration: all of it, each with its place.

use std::fmt;

/// One fault, or one warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where: a JSON path such as `policies[0].window`, or `configuration` for the whole.
    pub path: String,
    /// What is wrong or misleading, and what would be right.
    pub message: String,
}

/// All faults of a configuration, at least one. Displayed as one line each, without the warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    faults: Vec<Fault>,
    warnings: Box<[Fault]>,
}

impl Faults {
    /// In the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter()
    }

    /// What is allowed and misleading, as far as it could be seen among the faults.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }

    /// The single fault of something that could not be read at all.
    pub(super) fn one(path: &str, message: impl Into<String>) -> Self {
        Self::new(vec![Fault { path: path.to_owned(), message: message.into() }], Box::default())
    }

    /// `faults` are not empty.
    pub(super) fn new(faults: Vec<Fault>, warnings: Box<[Fault]>) -> Self {
        Self { faults, warnings }
    }
}

/// The path of the member `name` of the object at `path`, as [`Fault::path`] writes it.
pub fn member_path(path: &str, name: &str) -> String {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    match (plain, path.is_empty()) {
        (true, true) => name.to_owned(),
        (true, false) => format!("{path}.{name}"),
        (false, _) => format!("{path}[{name:?}]"),
    }
}

/// The path of an element of the list at `path`, counted from 0.
pub fn element_path(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.iter().enumerate() {
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
