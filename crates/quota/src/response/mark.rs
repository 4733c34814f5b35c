//! The mark of a request that is beyond the quota of a policy with `mode: mark`: a request header
//! for the upstream, and for the choice of the route.
//!
//! The host removes the client's own header before anything reads the request, and sets ours before
//! the request goes on.

use quotagate_protocol::Mode;

use crate::config::Config;
use crate::decision::Decision;

/// The request header. Its value names the policies, joined by `, `.
pub const EXCEEDED: &str = "x-quotagate-exceeded";

/// The value of [`EXCEEDED`] for a decided request. `None` if it goes on without a mark.
pub fn exceeded(config: &Config, decision: &Decision) -> Option<String> {
    let Decision::Admit(admission) = decision else { return None };
    let marking = admission.standings.iter().filter(|s| !s.granted && s.mode == Mode::Mark);
    let names: Vec<&str> =
        marking.filter_map(|s| Some(&*config.policies.get(s.policy)?.name)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
