//! Which of an admitted request's held units its response spends, and which it refunds.
//!
//! A gRPC response has its status in `grpc-status`: in the headers if they are the whole response,
//! else in the trailers. Its HTTP status is 200 even if the call failed.

use crate::config::{Abandoned, Config, Count, CountedResponses};
use crate::decision::{Admission, Balance, Held};
use crate::response::Upstream;

/// What is known about a response so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEvent {
    /// The headers have come.
    Headers {
        /// The HTTP status.
        status: u16,
        /// The gRPC status, if it is a gRPC response.
        grpc: Option<GrpcStatus>,
    },
    /// The trailers of a gRPC response have come, with this status.
    Trailers(u16),
    /// The stream has ended without a whole response.
    Abandoned,
}

/// The gRPC status of a response whose headers have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcStatus {
    /// The headers have it.
    Known(u16),
    /// The trailers will have it.
    InTrailers,
}

/// The content type of a message.
pub const CONTENT_TYPE: &str = "content-type";
/// The gRPC status of a response, in its headers or trailers.
pub const GRPC_STATUS: &str = "grpc-status";
/// The status UNKNOWN. Clients assume it if a gRPC response has no status that they can read.
const UNKNOWN: u16 = 2;

/// What happens to held units.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Counted,
    Refunded,
    /// The trailers decide.
    Held,
}

impl ResponseEvent {
    /// Reads the head of a response. `whole`: the headers are the whole response; `grpc`: a gRPC
    /// status matters. `None` if it has no status.
    pub fn head(response: &impl Upstream, whole: bool, grpc: bool) -> Option<Self> {
        let status = response.status()?;
        let header = |name| if grpc { response.first_header(name) } else { None };
        let grpc_status = header(GRPC_STATUS);
        let content_type = if grpc_status.is_none() { header(CONTENT_TYPE) } else { None };
        Some(Self::headers(status, grpc_status.as_deref(), content_type.as_deref(), whole))
    }

    /// Reads response headers: the HTTP status, `grpc-status`, `content-type`, and whether the
    /// headers are the whole response. A server that speaks gRPC sends HTTP status 200, so a
    /// response with another status and without `grpc-status` is not gRPC.
    pub fn headers(
        status: u16,
        grpc: Option<&[u8]>,
        content_type: Option<&[u8]>,
        whole: bool,
    ) -> Self {
        let grpc = match grpc {
            Some(text) => Some(GrpcStatus::Known(grpc_status(text))),
            None if status == 200 && content_type.is_some_and(is_grpc) => {
                Some(if whole { GrpcStatus::Known(UNKNOWN) } else { GrpcStatus::InTrailers })
            }
            None => None,
        };
        Self::Headers { status, grpc }
    }

    /// Reads response trailers: their `grpc-status`.
    pub fn trailers(grpc: Option<&[u8]>) -> Self {
        Self::Trailers(grpc.map_or(UNKNOWN, grpc_status))
    }

    fn fate(self, counted: &CountedResponses) -> Fate {
        let listed = |listed: &[u16], status: u16| match listed.binary_search(&status) {
            Ok(_) => Fate::Counted,
            Err(_) => Fate::Refunded,
        };
        match self {
            Self::Headers { grpc: Some(grpc), .. } if !counted.grpc_statuses.is_empty() => {
                match grpc {
                    GrpcStatus::Known(status) => listed(&counted.grpc_statuses, status),
                    GrpcStatus::InTrailers => Fate::Held,
                }
            }
            Self::Headers { status, .. } => listed(&counted.statuses, status),
            Self::Trailers(status) => listed(&counted.grpc_statuses, status),
            Self::Abandoned => match counted.abandoned {
                Abandoned::Count => Fate::Counted,
                Abandoned::Refund => Fate::Refunded,
            },
        }
    }
}

impl Admission {
    /// Whether a policy that holds units of this request counts by gRPC status.
    pub fn counts_by_grpc(&self, config: &Config) -> bool {
        self.held
            .iter()
            .filter_map(|held| counted_responses(held, config))
            .any(|a| !a.grpc_statuses.is_empty())
    }

    /// Decides on the held units by the response. Returns the units to refund, and counts them as
    /// remaining again. Units stay held only if the trailers of a gRPC response decide. Units that
    /// count are settled later if their policy does that.
    pub fn count_response(&mut self, event: ResponseEvent, config: &Config) -> Vec<Held> {
        let mut refunds = Vec::new();
        for held in std::mem::take(&mut self.held) {
            match counted_responses(&held, config)
                .map_or(Fate::Counted, |counted| event.fate(counted))
            {
                Fate::Counted => {
                    if config.policies.get(held.policy).is_some_and(|p| p.settle.is_some()) {
                        self.unsettled.push(held);
                    }
                }
                Fate::Refunded => refunds.push(held),
                Fate::Held => self.held.push(held),
            }
        }
        for standing in &mut self.standings {
            let refunded = refunds.iter().filter(|held| held.policy == standing.policy);
            let units: u64 = refunded.map(|held| held.units.amount).sum();
            let balance = standing.balance.plus(units);
            standing.balance =
                Balance { remaining: balance.remaining.min(balance.quota), ..balance };
        }
        refunds
    }
}

fn counted_responses<'c>(held: &Held, config: &'c Config) -> Option<&'c CountedResponses> {
    match &config.policies.get(held.policy)?.count {
        Count::Responses(counted) => Some(counted),
        Count::All => None,
    }
}

/// Reads a status as gRPC clients do: `UNKNOWN` if it is not a number.
fn grpc_status(text: &[u8]) -> u16 {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).unwrap_or(UNKNOWN)
}

/// Whether a content type is gRPC: `application/grpc`, with or without a codec
/// (`application/grpc+proto`). gRPC-Web is not: its trailers are part of the body.
pub fn is_grpc(content_type: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    let Some((start, rest)) = content_type.split_at_checked(GRPC.len()) else { return false };
    start.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRPC: Option<&[u8]> = Some(b"application/grpc");

    fn fate(event: ResponseEvent, statuses: &[u16], grpc_statuses: &[u16]) -> char {
        let abandoned = Abandoned::Refund;
        let counted = CountedResponses {
            statuses: statuses.into(),
            grpc_statuses: grpc_statuses.into(),
            abandoned,
        };
        match event.fate(&counted) {
            Fate::Counted => '+',
            Fate::Refunded => '-',
            Fate::Held => '?',
        }
    }

    #[test]
    fn response_counts_by_the_status_of_its_protocol() {
        let whole_grpc =
            |status: &'static [u8]| ResponseEvent::headers(200, Some(status), GRPC, true);
        // By [401], by [16], by both, by [200] and [0].
        for (event, fates) in [
            (ResponseEvent::headers(401, None, None, false), "+-+-"),
            (ResponseEvent::headers(200, None, Some(b"text/html"), false), "---+"),
            (ResponseEvent::headers(200, None, GRPC, false), "-???"),
            (ResponseEvent::headers(200, None, Some(b"Application/gRPC+proto"), false), "-???"),
            (ResponseEvent::headers(200, None, Some(b"application/grpc;x"), false), "-???"),
            (ResponseEvent::headers(200, None, Some(b"application/grpc-web"), false), "---+"),
            (ResponseEvent::headers(401, None, GRPC, false), "+-+-"),
            (ResponseEvent::headers(200, None, GRPC, true), "----"),
            (whole_grpc(b"16"), "-++-"),
            (whole_grpc(b"0"), "---+"),
            (whole_grpc(b"-1"), "----"),
            (whole_grpc(b"\xff"), "----"),
            (ResponseEvent::headers(401, Some(b"16"), None, true), "+++-"),
            (ResponseEvent::trailers(Some(b"16")), "-++-"),
            (ResponseEvent::trailers(Some(b"0")), "---+"),
            (ResponseEvent::trailers(Some(b"99999999")), "----"),
            (ResponseEvent::trailers(None), "----"),
            (ResponseEvent::Abandoned, "----"),
        ] {
            let lists: [(&[u16], &[u16]); 4] =
                [(&[401], &[]), (&[], &[16]), (&[401], &[16]), (&[200], &[0])];
            let found: String =
                lists.iter().map(|(statuses, grpc)| fate(event, statuses, grpc)).collect();
            assert_eq!(found, fates, "{event:?}");
        }
        let nothing_read = ResponseEvent::headers(200, Some(b"?"), GRPC, true);
        assert_eq!(fate(nothing_read, &[], &[2]), '+', "clients take it for UNKNOWN");
    }
}
