//! Identities: the callers that a request counts for.
//!
//! An identity asks its sources in their order, and the first that has a value wins. A value that
//! the client gave more than once names nobody, and ends the search: otherwise a client could
//! choose a later source by sending the value twice.

use super::fact::{Found, ValueType};
use super::facts::{Facts, IdentityId, Yield};
use super::key::{self, Digester};
use super::source::IdentitySource;

/// An identity of the configuration.
#[derive(Debug)]
pub(crate) struct Identity {
    /// Which one it is.
    pub(crate) id: IdentityId,
    /// Its name in the configuration.
    pub(crate) name: Box<str>,
    /// At least one.
    pub(crate) sources: Vec<IdentitySource>,
    /// Its bit in [`IdentityFindings`](super::findings::IdentityFindings) if it reads verified
    /// tokens, else 0.
    pub(crate) token: u64,
}

impl Identity {
    /// Appends its encoded value in a request.
    pub(crate) fn write<'c>(
        &'c self,
        out: &mut String,
        facts: &Facts<'c>,
        digester: &Digester,
    ) -> Yield {
        facts.resolved(self.id, out, |out| self.resolve(out, facts, digester))
    }

    fn resolve<'c>(&'c self, out: &mut String, facts: &Facts<'c>, digester: &Digester) -> Yield {
        for source in &self.sources {
            let written = source.write(self.id, out, facts, digester);
            if source.reads_token() {
                facts.saw_token(self.token, matches!(written, Yield::Value(_)));
            }
            match written {
                Yield::Nothing => {}
                Yield::Value(_) | Yield::Ambiguous => return written,
            }
        }
        Yield::Nothing
    }
}

impl IdentitySource {
    /// Appends its entries if the request has all its facts.
    fn write<'c>(
        &'c self,
        identity: IdentityId,
        out: &mut String,
        facts: &Facts<'c>,
        digester: &Digester,
    ) -> Yield {
        let start = out.len();
        let mut address = None;
        for (i, fact) in self.facts.iter().enumerate() {
            let value = match fact.lookup.look_up(facts) {
                Found::Value(value) => value,
                Found::Missing => {
                    let is_number = fact.value_type == Some(ValueType::Number);
                    if is_number && fact.lookup.number(facts).is_some() {
                        facts.saw_rounded(identity);
                    }
                    out.truncate(start);
                    return Yield::Nothing;
                }
                Found::Ambiguous => {
                    out.truncate(start);
                    return Yield::Ambiguous;
                }
            };
            if i > 0 {
                out.push(',');
            }
            key::write_entry(out, &fact.label, &value, fact.secrecy, digester);
            address = address.or_else(|| fact.lookup.prefixes().and_then(|_| facts.address()));
        }
        Yield::Value(address)
    }
}
