//! Which kind of window a policy has, and what does not fit it.

use quotagate_protocol::{Sliding, Window};

use super::counting::PrecisionWord;
use crate::document::Node;

/// The window of a policy, sliding if it says so.
pub(super) fn resolve(
    policy: &Node<'_>,
    window: Window,
    sliding: bool,
    stagger: bool,
    precision: PrecisionWord,
) -> Option<Window> {
    let refuse = |field, reason| {
        policy.field(field).fault(reason);
        None
    };
    match window {
        Window::Calendar(_) if sliding => refuse(
            "sliding",
            "cannot be with a window of the calendar, which begins anew: write a length, such as window: 24h",
        ),
        Window::Calendar(_) if stagger => refuse(
            "stagger",
            "cannot be with a window of the calendar: it begins with the calendar for every partition",
        ),
        Window::Fixed(fixed) if sliding => match precision {
            PrecisionWord::Lease => refuse(
                "sliding",
                "cannot be with precision: lease: a unit that is spent later than it was counted breaks the bound",
            ),
            PrecisionWord::Exact if stagger => refuse(
                "stagger",
                "means nothing with sliding: true: a sliding window has no end that partitions share",
            ),
            PrecisionWord::Exact => Sliding::new(fixed.seconds()).map(Window::Sliding),
        },
        window => Some(window),
    }
}
