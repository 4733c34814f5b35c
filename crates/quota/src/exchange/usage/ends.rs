//! The event that ends a stream of a model.
//!
//! | Provider | Last event |
//! | --- | --- |
//! | OpenAI: chat, completions | `usage` and an empty list of `choices`, after other choices; then `[DONE]`, which `events` finds |
//! | OpenAI: responses | an event whose `type` is in [`LAST`] |
//! | Anthropic | an event whose `type` is in [`LAST`] |
//! | Gemini: interactions | an event whose `event_type` is in [`LAST`] |
//! | Gemini | `usageMetadata`, with or after the `finishReason` of the only candidate |
//!
//! Clients may leave after it and pay no more than the usage. So it must be one that only the
//! provider can cause, and after which no more tokens come. Some servers send such events early:
//! with a usage between choices, or with a `finishReason` in each event. The first content after an
//! end shows it, and then no event ends that stream, except `[DONE]`. A second candidate of Gemini
//! is known by its first event: if the first candidate ends before that, its usage counts as final.

use super::scanner::Level;

/// The types of last events, as JSON.
const LAST: [&[u8]; 6] = [
    br#""message_stop""#,
    br#""response.completed""#,
    br#""response.incomplete""#,
    br#""response.failed""#,
    br#""interaction.completed""#,
    br#""interaction.cancelled""#,
];

/// A member that tells whether an event is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    Type,
    Choices,
    /// Of a candidate.
    FinishReason,
    /// Of a candidate.
    Index,
}

/// What the events of a stream have said of its end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ends {
    /// Of the current event.
    event: EventSigns,
    /// The `finishReason` of a candidate has come with an earlier event.
    was_finished: bool,
    /// The model has written something.
    has_content: bool,
    /// No event ends the stream: there are other candidates than the first, and one may end long
    /// before the others, or content has come after an end.
    is_endless: bool,
    is_last: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct EventSigns {
    has_usage: bool,
    no_choices: bool,
    is_finished: bool,
    is_last: bool,
}

impl Sign {
    /// The sign with this name, if it is one.
    pub(super) fn named(key: &str, level: Level) -> Option<Self> {
        match (key, level) {
            ("type" | "event_type", Level::Outer) => Some(Self::Type),
            ("choices", Level::Outer) => Some(Self::Choices),
            ("finishReason", Level::Element) => Some(Self::FinishReason),
            ("index", Level::Element) => Some(Self::Index),
            _ => None,
        }
    }

    /// The longest value that matters, in bytes of JSON.
    pub(super) const fn longest(self) -> usize {
        match self {
            Self::Choices => "[]".len(),
            Self::Type | Self::FinishReason | Self::Index => 64,
        }
    }
}

impl Ends {
    /// An event begins.
    pub(super) fn begin(&mut self) {
        self.event = EventSigns::default();
    }

    /// The value of a sign, as JSON; `None` if it is longer than [`Sign::longest`].
    pub(super) fn read(&mut self, sign: Sign, value: Option<&[u8]>) {
        match sign {
            Sign::Type => {
                self.event.is_last = value.is_some_and(|json| LAST.contains(&json));
                if !self.event.is_last {
                    self.content();
                }
            }
            Sign::Choices => {
                self.event.no_choices = value == Some(&b"[]"[..]);
                if !self.event.no_choices {
                    self.content();
                }
            }
            Sign::FinishReason => self.event.is_finished |= value != Some(&b"null"[..]),
            Sign::Index => self.is_endless |= value != Some(&b"0"[..]),
        }
    }

    /// The event has something that the model wrote.
    pub(super) fn content(&mut self) {
        self.has_content = true;
        self.is_endless |= self.is_last || self.was_finished;
    }

    /// The event has a usage.
    pub(super) fn usage(&mut self) {
        self.event.has_usage = true;
    }

    /// The event ends.
    pub(super) fn end(&mut self) {
        let EventSigns { has_usage, no_choices, is_finished, is_last } = self.event;
        self.was_finished |= is_finished;
        let ends_choices = no_choices && self.has_content;
        self.is_last |= is_last || has_usage && (ends_choices || self.was_finished);
    }

    /// Whether the last event has come.
    pub(super) const fn have_come(&self) -> bool {
        self.is_last && !self.is_endless
    }
}
