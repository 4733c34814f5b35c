//! Settling: a policy replaces the cost that it reserved for a request by the real cost, once the
//! response says it.

use super::measure::Measure;

/// How a policy learns the real cost of a request.
#[derive(Debug)]
pub(crate) struct Settle {
    /// Where the cost may be. The first source that has a whole number wins. Never empty.
    pub(crate) sources: Box<[CostSource]>,
    /// The cost if no source has a whole number.
    pub(crate) missing: MissingCost,
}

/// A place in a response that may say the cost.
#[derive(Debug)]
pub(crate) enum CostSource {
    /// The tokens that a model used, in the body.
    Usage(Measure),
    /// The header of this lower-case name.
    Header(Box<str>),
    /// The trailer of this lower-case name.
    Trailer(Box<str>),
    /// A member of the stream's dynamic metadata.
    Metadata {
        /// The name of the filter that wrote it.
        filter: Box<str>,
        /// From the outermost member inwards.
        path: Box<[Box<str>]>,
    },
}

/// The cost of a request whose response does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingCost {
    /// What was reserved.
    Reserved,
    /// This many units.
    Units(u64),
}

impl MissingCost {
    /// The cost if `reserved` units were reserved.
    pub(crate) const fn cost(self, reserved: u64) -> u64 {
        match self {
            Self::Reserved => reserved,
            Self::Units(units) => units,
        }
    }
}

impl Settle {
    /// Whether it reads the body of responses.
    pub(crate) fn reads_body(&self) -> bool {
        self.sources.iter().any(|source| matches!(source, CostSource::Usage(_)))
    }

    /// The indexes of the sources in metadata below the first level.
    pub(crate) fn nested_metadata(&self) -> impl Iterator<Item = usize> {
        let sources = self.sources.iter().enumerate();
        sources.filter_map(|(index, source)| match source {
            CostSource::Metadata { path, .. } if path.len() > 1 => Some(index),
            _ => None,
        })
    }
}
