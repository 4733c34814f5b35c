//! Usage as providers report it.
//!
//! | Provider | Where | Input |
//! | --- | --- | --- |
//! | OpenAI: chat, completions, embeddings | `usage`; in a stream the last event, `null` before | `prompt_tokens`, cached ones included |
//! | OpenAI: responses | `usage`; in a stream below `response` | `input_tokens`, cached ones included |
//! | Anthropic | `usage`; in a stream first below `message`, then cumulative at the top | `input_tokens`, to which tokens written to and read from the cache are added |
//! | Gemini | `usageMetadata`, in a stream of every event or list element, cumulative | `promptTokenCount`, cached ones included |
//! | Gemini: interactions | `usage`; in a stream below `interaction` | `total_input_tokens`, cached ones included |
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

/// Usage of a response as far as it has been read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    counts: TokenCounts,
    /// Anthropic: the sum of all iterations. The other numbers lack compactions and advisors.
    iterations: TokenSum,
    /// OpenAI: models that ran as tools, in none of the other numbers.
    tools: TokenSum,
    /// Beside `tools`: the model that drew an SVG.
    svg: TokenSum,
    /// Whether the latest usage states no total above 0.
    total_is_outdated: bool,
    ends: Ends,
    /// Member of JSON that the scanner reads.
    member: Member,
}

/// The numbers of all formats. A later number replaces an earlier one of the same field, but a zero
/// replaces none that is greater: servers fill the fields of other formats with zeros, and events
/// that report nothing anew.
#[derive(Clone, Copy, Debug, Default)]
struct TokenCounts {
    /// With cached ones: `prompt_tokens`, `promptTokenCount`.
    prompt: Option<u64>,
    /// With cached ones as OpenAI states it, without them beside the fields of Anthropic's caches.
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
}

/// A member that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Member {
    #[default]
    Usage,
    /// The usages of tools, by their names.
    Tools,
    /// The usage of the tool that draws.
    Svg,
    Sign(Sign),
}

/// The sum of several usages with Anthropic's or OpenAI's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TokenSum {
    /// Cached ones included.
    input: u64,
    cached: u64,
    output: u64,
}

impl TokenSum {
    fn of<'v>(usages: impl IntoIterator<Item = &'v Value>) -> Self {
        let of_one = |usage| {
            let mut counts = TokenCounts::default();
            counts.read(usage);
            Self {
                input: counts.input_with_caches().unwrap_or_default(),
                cached: counts.cached().unwrap_or_default(),
                output: counts.output().unwrap_or_default(),
            }
        };
        usages.into_iter().map(of_one).fold(Self::default(), Self::plus)
    }

    fn plus(self, other: Self) -> Self {
        let sum = |a: u64, b| a.saturating_add(b).min(MAX_UNITS);
        Self {
            input: sum(self.input, other.input),
            cached: sum(self.cached, other.cached),
            output: sum(self.output, other.output),
        }
    }

    /// Takes the place of an earlier sum, unless it says nothing.
    fn replace(&mut self, later: Self) {
        if later != Self::default() {
            *self = later;
        }
    }
}

type CountField = fn(&mut TokenCounts) -> &mut Option<u64>;

/// The path of each number in a `usage` object, as a JSON pointer.
const FIELDS: [(&str, CountField); 22] = [
    ("/prompt_tokens", |r| &mut r.prompt),
    ("/prompt_tokens_details/cached_tokens", |r| &mut r.cached),
    // DeepSeek and Moonshot.
    ("/prompt_cache_hit_tokens", |r| &mut r.cached),
    ("/cached_tokens", |r| &mut r.cached),
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
    ("/total_input_tokens", |r| &mut r.prompt),
    ("/total_cached_tokens", |r| &mut r.cached),
    ("/total_tool_use_tokens", |r| &mut r.tool_use),
    ("/total_output_tokens", |r| &mut r.output),
    ("/total_thought_tokens", |r| &mut r.thoughts),
];

impl Reported {
    /// Whether the event has come that ends the stream.
    pub(super) const fn is_final(&self) -> bool {
        self.ends.have_come()
    }

    pub(super) fn usage(&self) -> TokenUsage {
        let (counts, iterations) = (&self.counts, self.iterations);
        let tools = self.tools.plus(self.svg);
        let input = counts.input().max(positive(iterations.input));
        let input = sum([input, positive(tools.input)]);
        let cached = counts.cached().max(positive(iterations.cached));
        let cached = sum([cached, positive(tools.cached)]);
        let output = counts.output().max(positive(iterations.output));
        let output = sum([output, positive(tools.output)]);
        let total = counts.total.and_then(|total| {
            let total = sum([Some(total), sum([Some(tools.input), Some(tools.output)])]);
            // Without the caches, or of an earlier event, it is no more than a lower bound.
            let is_bound = self.total_is_outdated || counts.caches().is_some();
            if is_bound { total.max(sum([input, output])) } else { total }
        });
        TokenUsage {
            input,
            cached_input: cached.map(|cached| cached.min(input.unwrap_or(cached))),
            output,
            total,
        }
    }

    fn read(&mut self, object: &Value) {
        self.ends.usage();
        let states_total = |path| object.pointer(path).and_then(whole).is_some_and(|n| n > 0);
        self.total_is_outdated =
            !["/total_tokens", "/totalTokenCount"].into_iter().any(states_total);
        self.counts.read(object);
        if let Some(Value::Array(iterations)) = object.get("iterations") {
            self.iterations.replace(TokenSum::of(iterations));
        }
    }
}

impl TokenCounts {
    fn read(&mut self, object: &Value) {
        for (path, field) in FIELDS {
            if let Some(number) = object.pointer(path).and_then(whole) {
                let known = field(self);
                if number > 0 || known.is_none() {
                    *known = Some(number);
                }
            }
        }
    }

    /// Whether the prompt is the input. Some servers state both, and leave one at zero.
    fn has_prompt(&self) -> bool {
        self.prompt.is_some_and(|prompt| prompt > 0 || self.input.is_none())
    }

    /// Tokens written to and read from a cache, if the input lacks them. OpenAI's details say that
    /// the input contains them, whatever stands beside.
    fn caches(&self) -> Option<u64> {
        match self.cached {
            None | Some(0) if !self.has_prompt() => sum([self.cache_creation, self.cache_read]),
            _ => None,
        }
    }

    fn input(&self) -> Option<u64> {
        match self.has_prompt() {
            true => sum([self.prompt, self.tool_use]),
            false => self.input_with_caches(),
        }
    }

    fn input_with_caches(&self) -> Option<u64> {
        self.input.and_then(|_| sum([self.input, self.caches()]))
    }

    fn cached(&self) -> Option<u64> {
        self.cached.max(self.cache_read)
    }

    fn output(&self) -> Option<u64> {
        sum([self.output, self.thoughts])
    }
}

fn positive(tokens: u64) -> Option<u64> {
    (tokens > 0).then_some(tokens)
}

/// The sum of the numbers that are known, at most [`MAX_UNITS`].
fn sum(numbers: [Option<u64>; 2]) -> Option<u64> {
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
        if level == Level::Element {
            self.ends.content();
        }
        if let Some(sign) = Sign::named(key, level) {
            self.member = Member::Sign(sign);
            return Role::Wanted(sign.longest());
        }
        self.member = match (key, level) {
            ("usage" | "usageMetadata", Level::Outer | Level::Inner) => Member::Usage,
            ("tool_usage", Level::Outer | Level::Inner) => Member::Tools,
            ("svg_usage", Level::Outer) => Member::Svg,
            ("response" | "message" | "interaction", Level::Outer) => return Role::Entered,
            ("candidates", Level::Outer) => return Role::Listed,
            _ => return Role::Skipped,
        };
        Role::Wanted(MAX_OBJECT)
    }

    fn begin(&mut self) {
        self.ends.begin();
    }

    fn end(&mut self) {
        self.ends.end();
    }

    fn found(&mut self, value: Option<&[u8]>) {
        let member = self.member;
        if let Member::Sign(sign) = member {
            return self.ends.read(sign, value);
        }
        // Every event of a stream may have `"usage": null`.
        let object = value.filter(|value| value.contains(&b'{'));
        let Some(object) = object.and_then(|json| serde_json::from_slice::<Value>(json).ok())
        else {
            return;
        };
        match (member, &object) {
            (Member::Svg, svg) => self.svg.replace(TokenSum::of([svg])),
            (Member::Tools, Value::Object(tools)) => {
                self.tools.replace(TokenSum::of(tools.values()));
            }
            (_, usage) => self.read(usage),
        }
    }
}
