//! What one response has said of its cost so far.

#[cfg(test)]
mod tests;

use quotagate_protocol::MAX_UNITS;

use crate::config::{CostSource, Settle};
use crate::exchange::usage::UsageReader;
use crate::request::allowance::whole;
use crate::request::fact::{self, whole_number};
use crate::request::pairs::trim;
use crate::response::Upstream;

/// The real cost of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RealCost {
    pub(crate) units: u64,
    /// Whether `if_missing` says it, and not the response.
    pub(crate) is_missing: bool,
}

/// A response that is being read for its cost.
///
/// Headers and trailers are read when they come, and metadata at the end.
#[derive(Debug, Default)]
pub(crate) struct SettleProgress {
    reader: Option<UsageReader>,
    /// The numbers of headers and trailers: index of the policy, index of the source, number.
    found: Vec<(usize, usize, u64)>,
    /// Whether the whole response has come.
    is_whole: bool,
}

impl SettleProgress {
    /// The headers have come. `policies` are those that settle, by index.
    pub(crate) fn begin<'c>(
        policies: impl Iterator<Item = (usize, &'c Settle)>,
        response: &impl Upstream,
    ) -> Self {
        let (mut progress, mut reads_body) = (Self::default(), false);
        for (policy, settle) in policies {
            reads_body |= settle.reads_body();
            progress.find(policy, settle, |source| match source {
                CostSource::Header(name) => number(&response.header(name)),
                _ => None,
            });
        }
        if reads_body {
            // Several encodings cannot be read either.
            let encoding = response.header("content-encoding").join(&b","[..]);
            progress.reader = UsageReader::new(&response.header("content-type"), &encoding);
        }
        progress
    }

    /// Whether it needs the body.
    pub(crate) fn reads_body(&self) -> bool {
        self.reader.as_ref().is_some_and(UsageReader::reads_on)
    }

    /// The next chunk of the body.
    pub(crate) fn body(&mut self, chunk: &[u8]) {
        if let Some(reader) = &mut self.reader {
            reader.feed(chunk);
        }
    }

    /// The trailers have come.
    pub(crate) fn trailers<'c>(
        &mut self,
        policies: impl Iterator<Item = (usize, &'c Settle)>,
        response: &impl Upstream,
    ) {
        for (policy, settle) in policies {
            self.find(policy, settle, |source| match source {
                CostSource::Trailer(name) => number(&response.trailer(name)),
                _ => None,
            });
        }
    }

    /// The whole response has come.
    pub(crate) const fn complete(&mut self) {
        self.is_whole = true;
    }

    /// The cost by this policy, which reserved `reserved` units.
    ///
    /// Until the stream ends (`is_last`), another filter may still write metadata: then the result
    /// is `None`. A usage that broke off is no more than a lower bound: it counts, but no less than
    /// a missing one. Otherwise clients could save units by leaving just before the end. It is
    /// final with the event that ends a stream, because many clients close the connection then,
    /// unless a trailer that precedes it in the list was still to come.
    pub(crate) fn cost(
        &self,
        policy: usize,
        settle: &Settle,
        reserved: u64,
        response: &impl Upstream,
        is_last: bool,
    ) -> Option<RealCost> {
        let missing = settle.missing.cost(reserved);
        let mut is_missing = false;
        let mut awaits_trailer = false;
        for (index, source) in settle.sources.iter().enumerate() {
            let number = match source {
                CostSource::Usage(measure) => self.reader.as_ref().and_then(|reader| {
                    let used = measure.units(&reader.usage())?;
                    let is_final = self.is_whole || reader.is_final() && !awaits_trailer;
                    is_missing = !is_final && used < missing;
                    Some(if is_missing { missing } else { used })
                }),
                CostSource::Header(_) | CostSource::Trailer(_) => self
                    .found
                    .iter()
                    .find(|(p, s, _)| (*p, *s) == (policy, index))
                    .map(|(.., number)| *number),
                CostSource::Metadata { filter, path } => {
                    let number = response.metadata(filter, path).and_then(metadata);
                    if number.is_none() && !is_last {
                        return None;
                    }
                    number
                }
            };
            if let Some(number) = number {
                return Some(RealCost { units: number.min(MAX_UNITS), is_missing });
            }
            awaits_trailer |= matches!(source, CostSource::Trailer(_));
        }
        Some(RealCost { units: missing, is_missing: true })
    }

    fn find(&mut self, policy: usize, settle: &Settle, look: impl Fn(&CostSource) -> Option<u64>) {
        for (index, source) in settle.sources.iter().enumerate() {
            self.found.extend(look(source).map(|number| (policy, index, number)));
        }
    }
}

/// The whole number that is the only value of a header.
fn number(values: &[Vec<u8>]) -> Option<u64> {
    match values {
        [only] => whole(trim(only)),
        _ => None,
    }
}

/// The whole number in metadata. The host does not say whether it is a number or a text.
fn metadata(raw: Vec<u8>) -> Option<u64> {
    fact::number(&raw).and_then(whole_number).or_else(|| whole(&raw))
}
