//! The recommended policy in shadow mode, ready for the policy document.

use std::fmt::Write as _;

use super::model::WindowAdvice;
use crate::options::Options;

/// The most bytes in the name of a policy, as policy documents have it.
const MAX_NAME: usize = 192;

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
        let name = if several { suffixed(policy, suffix) } else { policy.to_owned() };
        let name = yaml(&name);
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

/// The name of a policy with a suffix: another name, which is cut if it would be too long.
fn suffixed(policy: &str, suffix: &str) -> String {
    // A cut name is shorter than the longest policy, so it cannot be the same.
    let most = MAX_NAME - usize::from(policy.len() == MAX_NAME);
    let room = most.saturating_sub(suffix.len() + 1);
    format!("{}-{suffix}", policy.get(..room).unwrap_or(policy).trim_end_matches('/'))
}

/// A name as YAML reads it: `60`, `1e3`, `-` and `true` would not be text without quotes.
fn yaml(name: &str) -> String {
    let is_word = ["false", "n", "no", "null", "off", "on", "true", "y", "yes"].contains(&name);
    if is_word || !name.starts_with(|first: char| first.is_ascii_lowercase()) {
        format!("\"{name}\"")
    } else {
        name.to_owned()
    }
}

/// Whether policy documents allow this name: `[a-z0-9-]+(/[a-z0-9-]+)*`.
fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(allowed);
    name.len() <= MAX_NAME && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::yaml;

    #[test]
    fn name_that_yaml_would_not_read_as_text_is_quoted() {
        for (name, written) in [
            ("per-caller", "per-caller"),
            ("team/y", "team/y"),
            ("404", "\"404\""),
            ("1e3", "\"1e3\""),
            ("-", "\"-\""),
            ("null", "\"null\""),
            ("on", "\"on\""),
        ] {
            assert_eq!(yaml(name), written);
        }
    }
}
