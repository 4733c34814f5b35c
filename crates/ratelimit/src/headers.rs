//! The headers for clients.

use crate::messages::{Code, DescriptorStatus, HeaderValue};

/// The names of the headers for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Of the limit.
    pub limit: String,
    /// Of the hits that are left.
    pub remaining: String,
    /// Of the seconds until the window ends.
    pub reset: String,
}

/// The headers of the descriptor that is nearest to its limit: the last that refuses, else the
/// first with the fewest hits left. `is_quota` says whether a descriptor refuses only together with
/// others. Without a limit there are none.
pub(crate) fn headers(
    names: &HeaderNames,
    statuses: &[DescriptorStatus],
    is_quota: impl Fn(usize) -> bool,
) -> Vec<HeaderValue> {
    let refuses = |(index, status): &(usize, &DescriptorStatus)| {
        status.code() == Code::OverLimit && !is_quota(*index)
    };
    let refusing = statuses.iter().enumerate().rfind(refuses).map(|(_, status)| status);
    let limited = statuses
        .iter()
        .filter(|status| status.current_limit.is_some() && status.limit_remaining < u32::MAX);
    let nearest = refusing.or_else(|| limited.min_by_key(|status| status.limit_remaining));
    let Some((status, limit)) =
        nearest.and_then(|status| Some((status, status.current_limit.as_ref()?)))
    else {
        return Vec::new();
    };
    let reset = status.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds);
    let header = |key: &str, value: String| HeaderValue { key: key.to_owned(), value };
    vec![
        header(&names.limit, limit.requests_per_unit.to_string()),
        header(&names.remaining, status.limit_remaining.to_string()),
        header(&names.reset, reset.to_string()),
    ]
}
