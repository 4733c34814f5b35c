//! Usage as providers report it.
//!
//! | Provider | Where | Input |
//! | --- | --- | --- |
//! | OpenAI: chat, completions, embeddings | `usage`; in a stream the last event, `null` before | `prompt_tokens`, cached ones included |
//! | OpenAI: responses | `usage`; in a stream below `response` | `input_tokens`, cached ones included |
//! | Anthropic | `usage`; in a stream first below `message`, then cumulative at the top | `input_tokens`, to which tokens written to and read from the cache are added |
//! | Gemini | `usageMetadata`, in a stream of every event or list element, cumulative | `promptTokenCount`, cached ones included |
//!
//! `usage` anywhere else, such as in `choices` or in a text that the model wrote, does not count.

use quotagate_protocol::MAX_UNITS;
use serde_json::Value;

use super::ends::{Ends, Sign};
use super::scanner::{Level, Role, Target};
use super::whole;
use crate::config::TokenUsage;

/// The longest `usage` object, in bytes of JSON. A longer one is ignored.
pub const MAX_OBJECT: usize = 64 * 1024;

/// The numbers of all formats so far. A later number replaces an earlier one of the same field.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    /// With cached ones: `prompt_tokens`, `promptTokenCount`.
    prompt: Option<u64>,
    /// With cached ones if there is a total, as OpenAI does; Anthropic states none.
    input: Option<u64>,
    cached: Option<u64>,
    cache_creation: Option<u64>,
    cache_read: Option<u64>,
    /// Gemini: results of tools, not in its prompt.
    tool_use: Option<u64>,
    output: Option<u64>,
    /// Gemini: reasoning, not in its candidates.
    thoughts: Option<u64>,
    total: Option<u64>,
    ends: Ends,
    /// What the scanner reads: a sign of the end, else a usage.
    sign: Option<Sign>,
}

type CountField = fn(&mut Reported) -> &mut Option<u64>;

/// The path of each number in a `usage` object, as a JSON pointer.
const FIELDS: [(&str, CountField); 15] = [
    ("/prompt_tokens", |r| &mut r.prompt),
    ("/prompt_tokens_details/cached_tokens", |r| &mut r.cached),
    ("/completion_tokens", |r| &mut r.output),
    ("/input_tokens", |r| &mut r.input),
    ("/input_tokens_details/cached_tokens", |r| &mut r.cached),
    ("/cache_creation_input_tokens", |r| &mut r.cache_creation),
    ("/cache_read_input_tokens", |r| &mut r.cache_read),
    ("/output_tokens", |r| &mut r.output),
    ("/total_tokens", |r| &mut r.total),
    ("/promptTokenCount", |r| &mut r.prompt),
    ("/cachedContentTokenCount", |r| &mut r.cached),
    ("/toolUsePromptTokenCount", |r| &mut r.tool_use),
    ("/candidatesTokenCount", |r| &mut r.output),
    ("/thoughtsTokenCount", |r| &mut r.thoughts),
    ("/totalTokenCount", |r| &mut r.total),
];

impl Reported {
    /// Whether the event has come that ends the stream.
    pub(super) const fn is_final(&self) -> bool {
        self.ends.have_come()
    }

    pub(super) fn usage(&self) -> TokenUsage {
        let excludes_cached = self.total.is_none();
        let caches =
            if excludes_cached { [self.cache_creation, self.cache_read] } else { [None; 2] };
        let [creation, read] = caches;
        let input = match self.prompt {
            Some(_) => sum([self.prompt, self.tool_use, None]),
            None => self.input.and_then(|_| sum([self.input, creation, read])),
        };
        let cached = self.cached.or(self.cache_read);
        TokenUsage {
            input,
            cached_input: cached.map(|cached| cached.min(input.unwrap_or(cached))),
            output: sum([self.output, self.thoughts, None]),
            total: self.total,
        }
    }
}

/// The sum of the numbers that are known, at most [`MAX_UNITS`].
fn sum(numbers: [Option<u64>; 3]) -> Option<u64> {
    let known = numbers.into_iter().flatten();
    known.reduce(|a, b| a.saturating_add(b).min(MAX_UNITS))
}

impl Target for Reported {
    fn longest_key(&self) -> usize {
        "usageMetadata".len()
    }

    fn takes_lists(&self) -> bool {
        true
    }

    fn role(&mut self, key: &str, level: Level) -> Role {
        self.sign = Sign::named(key, level);
        match (self.sign, key, level) {
            (Some(sign), ..) => Role::Wanted(sign.longest()),
            (_, "usage" | "usageMetadata", Level::Outer | Level::Inner) => Role::Wanted(MAX_OBJECT),
            (_, "response" | "message", Level::Outer) => Role::Entered,
            (_, "candidates", Level::Outer) => Role::Listed,
            _ => Role::Skipped,
        }
    }

    fn begin(&mut self) {
        self.ends.begin();
    }

    fn end(&mut self) {
        self.ends.end();
    }

    fn found(&mut self, value: Option<&[u8]>) {
        if let Some(sign) = self.sign {
            return self.ends.read(sign, value);
        }
        // Every event of a stream may have `"usage": null`.
        let object = value.filter(|value| value.contains(&b'{'));
        let Some(object) = object.and_then(|json| serde_json::from_slice::<Value>(json).ok())
        else {
            return;
        };
        self.ends.usage();
        for (path, field) in FIELDS {
            if let Some(number) = object.pointer(path).and_then(whole) {
                *field(self) = Some(number);
            }
        }
    }
}
