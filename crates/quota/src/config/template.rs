//! Texts with placeholders: the body and the headers of refusals.
//!
//! `{policy}` is the name of the policy that refused, or all names with `, ` between them.
//! `{retry_after}` is the number of whole seconds until the request may pass, `{quota}` the quota
//! or concurrency limit of the first policy that refused. All other braces stay as they are, so
//! JSON needs no escaping. The values hold no character that JSON or a header would have to escape.

use std::fmt::Write as _;

use crate::document::{Node, suggest};

/// A text with placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Box<[Piece]>);

/// A part of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Text that stays as it is.
    Text(Box<str>),
    /// `{policy}`: the name of the policy that refused, or the names.
    Policy,
    /// `{retry_after}`: the whole seconds until the request may pass, at least 1. Of a concurrency
    /// limit it is 1, since nobody knows when a running request ends.
    RetryAfter,
    /// `{quota}`: the quota or concurrency limit of the first policy that refused, in units.
    Quota,
}

const PLACEHOLDERS: [(&str, Piece); 3] =
    [("policy", Piece::Policy), ("retry_after", Piece::RetryAfter), ("quota", Piece::Quota)];

/// Longest text between braces that may be a misspelled placeholder, in bytes.
const MAX_NAME: usize = 32;

impl Template {
    /// The parts in their order.
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// The text with its placeholders filled in.
    pub fn fill(&self, policy: &str, retry_after: u64, quota: u64) -> String {
        let mut out = String::new();
        for piece in self.pieces() {
            // Writing into a String cannot fail.
            let _ = match piece {
                Piece::Text(text) => out.write_str(text),
                Piece::Policy => out.write_str(policy),
                Piece::RetryAfter => write!(out, "{retry_after}"),
                Piece::Quota => write!(out, "{quota}"),
            };
        }
        out
    }

    /// Splits `text`, and warns of misspelled placeholders at `node`.
    pub(super) fn read(text: &str, node: &Node<'_>) -> Self {
        let mut pieces = Vec::new();
        let (mut plain, mut rest) = (String::new(), text);
        while let Some(brace) = rest.find('{') {
            let (before, from) = rest.split_at(brace);
            plain.push_str(before);
            let name = from.strip_prefix('{').and_then(name);
            let placeholder = name.and_then(|(name, after)| {
                Some((PLACEHOLDERS.iter().find(|(p, _)| *p == name)?, after))
            });
            if let Some(((_, piece), after)) = placeholder {
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain).into()));
                }
                pieces.push(piece.clone());
                rest = after;
                continue;
            }
            if let Some((name, _)) = name {
                near_miss(name, node);
            }
            plain.push('{');
            rest = from.get(1..).unwrap_or_default();
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain.into()));
        }
        Self(pieces.into())
    }
}

/// The text before the next `}`, if that is near, and the text after it.
fn name(inner: &str) -> Option<(&str, &str)> {
    let end = inner.bytes().take(MAX_NAME + 1).position(|b| b == b'}')?;
    Some((inner.get(..end)?, inner.get(end + 1..)?))
}

fn near_miss(name: &str, node: &Node<'_>) {
    let known = PLACEHOLDERS.map(|(known, _)| known);
    if let Some(near) = suggest::nearest(name.trim(), &known) {
        node.warn(format!(
            "{{{name}}} is no placeholder and stays as it is: did you mean {{{near}}}?"
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::document::Collector;

    #[test]
    fn only_placeholders_are_filled_in() {
        for (text, filled) in [
            ("", ""),
            ("slow down", "slow down"),
            ("{policy}", "per-ip"),
            ("{policy}{retry_after}{quota}", "per-ip30100"),
            ("{{policy}}", "{per-ip}"),
            (
                r#"{"policy": "{policy}", "a": {"b": {quota}}}"#,
                r#"{"policy": "per-ip", "a": {"b": 100}}"#,
            ),
            ("{policy", "{policy"),
            ("policy}", "policy}"),
            ("{Policy} {retry-after} {}", "{Policy} {retry-after} {}"),
            ("\u{e4}{\u{e4}{quota}", "\u{e4}{\u{e4}100"),
        ] {
            let collector = Collector::default();
            let template = Template::read(text, &Node::root(&Value::Null, &collector));
            assert_eq!(template.fill("per-ip", 30, 100), filled, "{text}");
        }
    }
}
