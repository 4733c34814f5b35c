//! The recommended policy in shadow mode, ready for the policy document.

use std::fmt::Write as _;

use super::model::WindowAdvice;
use crate::options::Options;

/// The policies as YAML: one for each window with its recommended quota, and one with
/// the recommended `in_flight`.
pub(crate) fn of(
    options: &Options,
    policy: Option<&str>,
    partition: Option<&str>,
    windows: &[WindowAdvice],
    in_flight: Option<u32>,
) -> String {
    let policy =
        options.only.policy.as_deref().or(policy).filter(|name| is_name(name)).unwrap_or("advised");
    // Only the label goes into a comment: a client may have chosen the value.
    let label = partition.and_then(|partition| partition.split_once('=')).map(|(label, _)| label);
    let label = label
        .filter(|label| label.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)));
    let counted_by = match label {
        Some(label) => format!("the identity that the log names {label}"),
        None => "the identity that the log names".to_owned(),
    };
    let mut text = "policies:\n".to_owned();
    let mut add = |suffix: &str, several: bool, limit: &str| {
        let suffixed = format!("{policy}-{suffix}");
        let name = if several && is_name(&suffixed) { &suffixed } else { policy };
        let _ = write!(
            text,
            "  - name: {name}\n    partition_by: [caller] # {counted_by}\n    {limit}\n    \
             mode: shadow # counts and never refuses: watch shadow_refused, then remove this line\n"
        );
    };
    for of in windows {
        let limit =
            format!("quota: {}\n    {}", of.recommended.quota, of.window.fields().join("\n    "));
        add(&of.window.name(), windows.len() > 1, &limit);
    }
    if let Some(in_flight) = in_flight {
        add("in-flight", true, &format!("in_flight: {in_flight}"));
    }
    text
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}
