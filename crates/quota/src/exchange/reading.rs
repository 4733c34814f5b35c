//! A request whose body says what it costs: it is held until its body is there.

use std::num::NonZeroU64;
use std::time::Duration;

use crate::config::{Config, Policy};
use crate::decision::Admission;
use crate::evaluate::Check;
use crate::exchange::usage::BodyNumber;
use crate::request::allowance::{Cost, of_body};

/// Most bytes of a request's body that are read for its cost. A longer body costs the `default`, or
/// the number that was read until then if that is larger.
pub const MAX_REQUEST_BODY: usize = 64 * 1024;
/// How long a request's body is read for its cost. After that it costs as much as a body that is
/// too long.
pub const READS_REQUEST_FOR: Duration = Duration::from_secs(1);

/// The request, its checks without the right costs, and what its body has said so far.
#[derive(Debug)]
pub(super) struct BodyReading {
    pub(super) checks: Vec<Check>,
    /// The admission from before an internal redirect.
    pub(super) earlier: Option<Admission>,
    members: Vec<BodyCost>,
    /// Bytes that may still come.
    left: usize,
}

/// A number that a policy wants.
#[derive(Debug)]
struct BodyCost {
    /// The index of the check. Its cost is the `default` until the body is there.
    check: usize,
    member: BodyNumber,
    max: Option<NonZeroU64>,
}

/// How far a body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyExtent {
    Whole,
    /// It is too long, or late.
    Part,
}

impl BodyReading {
    /// Whether a policy wants a number of the body.
    pub(super) fn is_wanted(checks: &[Check], config: &Config) -> bool {
        let wants = |of: &Policy| matches!(&*of.cost, Cost::RequestJson { .. });
        checks.iter().any(|check| check.policy(config).is_some_and(wants))
    }

    /// Begins to read.
    pub(super) fn begin(checks: Vec<Check>, earlier: Option<Admission>, config: &Config) -> Self {
        let wanted = |(check, of): (usize, &Check)| match &*of.policy(config)?.cost {
            Cost::RequestJson { members, max, .. } => {
                let member = BodyNumber::new(members.iter().map(|name| &**name));
                Some(BodyCost { check, member, max: *max })
            }
            Cost::Fixed(_) | Cost::Header { .. } => None,
        };
        let members = checks.iter().enumerate().filter_map(wanted).collect();
        Self { checks, earlier, members, left: MAX_REQUEST_BODY }
    }

    /// The next chunk of the body. Returns how far the body was read, if nothing more of it is
    /// needed.
    pub(super) fn feed(&mut self, chunk: &[u8], end: bool) -> Option<BodyExtent> {
        // Hosts hand over chunks of any size, so all of them read the same bytes.
        let read = chunk.get(..self.left).unwrap_or(chunk);
        self.left = self.left.saturating_sub(read.len());
        for wanted in &mut self.members {
            wanted.member.feed(read);
        }
        if read.len() < chunk.len() {
            return Some(BodyExtent::Part);
        }
        end.then_some(BodyExtent::Whole)
    }

    /// The checks with their costs, and the admission from before.
    ///
    /// The unread rest of a body may name another number, so a part costs at least the `default`.
    /// So does a body in which one of the members is no number: the upstream may take that one.
    pub(super) fn finish(self, extent: BodyExtent) -> (Vec<Check>, Option<Admission>) {
        let Self { mut checks, earlier, members, .. } = self;
        for BodyCost { check, member, max } in members {
            let read = member.value().and_then(|number| of_body(number, max));
            if let (Some(check), Some(read)) = (checks.get_mut(check), read) {
                check.cost = match extent {
                    BodyExtent::Whole if !member.is_unusable() => read,
                    BodyExtent::Whole | BodyExtent::Part => read.max(check.cost),
                };
            }
        }
        (checks, earlier)
    }
}
