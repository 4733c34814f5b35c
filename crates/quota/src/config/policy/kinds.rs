//! Which kind of window a policy has, and what does not fit it.

use quotagate_protocol::{Sliding, Window};

use super::Count;
use super::counting::{Counting, PrecisionWord};
use crate::document::Node;

/// The window of a policy with `in_flight`: none, so nothing about windows fits. A field that is
/// `None` has a fault.
pub(super) fn slots(
    policy: &Node<'_>,
    window: Option<Window>,
    sliding: Option<bool>,
    stagger: Option<bool>,
    precision: Option<PrecisionWord>,
    counting: Option<&Counting>,
) -> Option<Window> {
    let counts_by_answer = counting.map(|counting| counting.count != Count::All);
    let counts_denied = counting.map(|counting| counting.count_denied);
    let wrong = [
        (
            "window",
            Some(window.is_some()),
            "cannot be with in_flight: keep one of the two, or write two policies",
        ),
        ("sliding", sliding, "means nothing with in_flight, which has no window: leave it out"),
        ("stagger", stagger, "means nothing with in_flight, which has no window: leave it out"),
        (
            "precision",
            precision.map(|precision| precision == PrecisionWord::Lease),
            "cannot be lease with in_flight: each request holds its own slot. Leave it out",
        ),
        (
            "lease",
            Some(policy.has("lease")),
            "means nothing with in_flight: each request holds its own slot. Leave it out",
        ),
        (
            "count",
            counts_by_answer,
            "cannot be by answer with in_flight: a request holds its slot before it is answered. Leave it out",
        ),
        (
            "count_denied",
            counts_denied,
            "means nothing with in_flight: a request that is refused does not run. Leave it out",
        ),
    ];
    let mut good = true;
    for (field, is_wrong, why) in wrong {
        if is_wrong == Some(true) {
            policy.field(field).fault(why);
        }
        good &= is_wrong == Some(false);
    }
    if counting.is_some_and(|counting| counting.cost.settle.is_some()) {
        let why = "cannot be with in_flight: a slot is free when its request ends, whatever that cost. Leave settle out";
        policy.field("cost").field("settle").fault(why);
        good = false;
    }
    good.then_some(Window::InFlight)
}

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
