//! Faults and warnings, each with the path of the value.

use std::fmt;

/// One fault, or one warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The JSON path, such as `policies[0].window`, or `configuration` for the whole.
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
    /// The faults in the order in which the reader found them.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter()
    }

    /// The warnings that the reader found besides the faults.
    pub fn warnings(&self) -> &[Fault] {
        &self.warnings
    }

    /// The single fault of a text that could not be read at all.
    pub(crate) fn one(path: &str, message: impl Into<String>) -> Self {
        Self::new(vec![Fault { path: path.to_owned(), message: message.into() }], Box::default())
    }

    /// `faults` must not be empty.
    pub(crate) fn new(faults: Vec<Fault>, warnings: Box<[Fault]>) -> Self {
        Self { faults, warnings }
    }
}

/// The path of the member `name` of the object at `path`, as [`Fault::path`] writes it.
pub fn member_path(path: &str, name: &str) -> String {
    let plain = !name.is_empty()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
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

/// One line for each fault.
impl From<Faults> for Vec<String> {
    fn from(faults: Faults) -> Self {
        faults.iter().map(ToString::to_string).collect()
    }
}

impl std::error::Error for Fault {}
impl std::error::Error for Faults {}
