//! Keeps the first of any number of faults, and counts the others.

use std::fmt;

/// Most faults of a file or of a resource that are named.
const MAX_NAMED: usize = 1000;

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFault {
    /// Where, such as `descriptors[0].rate_limit.unit`.
    pub path: String,
    /// What is wrong, and what to do.
    pub text: String,
}

impl fmt::Display for RuleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.text)
    }
}

/// The longest text of a file that a fault shows, in characters.
const MAX_SHOWN: usize = 64;

/// The faults of a file or of a resource: the first ones, and the number of all others.
#[derive(Clone, Debug)]
pub struct BoundedFaults<F> {
    pub(super) named: Vec<F>,
    pub(super) unnamed: usize,
}

impl<F> Default for BoundedFaults<F> {
    fn default() -> Self {
        Self { named: Vec::new(), unnamed: 0 }
    }
}

impl<F> BoundedFaults<F> {
    /// Adds a fault, which is made only if there is room for it.
    pub(super) fn add(&mut self, fault: impl FnOnce() -> F) {
        if self.named.len() < MAX_NAMED {
            self.named.push(fault());
        } else {
            self.unnamed += 1;
        }
    }

    /// What stands for those beyond the bound.
    pub(super) fn further(&self) -> Option<RuleFault> {
        let number = self.unnamed;
        let text = format!("has {number} further faults: correct those above first");
        (number > 0).then(|| RuleFault { path: "file".to_owned(), text })
    }
}

impl BoundedFaults<RuleFault> {
    /// The faults, and one more that stands for those beyond the bound.
    pub fn all(self) -> impl Iterator<Item = RuleFault> {
        let further = self.further();
        self.named.into_iter().chain(further)
    }
}

/// As much of a text as a fault shows.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(MAX_SHOWN).collect()
}
