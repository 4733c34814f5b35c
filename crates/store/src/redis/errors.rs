//! Errors of Redis, counted by kind. The list of kinds is closed, so that no text of a server
//! becomes a label.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use redis::{RedisError, ServerError, ServerErrorKind, Value};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// Commands, or counters of one, that Redis refused or left unanswered.
#[derive(Default)]
pub struct Errors(Family<Kind, Counter>);

impl Errors {
    /// Adds the counters to `registry`.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Commands, or counters of one, that Redis refused or left unanswered, by kind";
        registry.register("redis_errors", help, self.0.clone());
    }

    /// Counts `count` commands that were left unanswered.
    pub fn unanswered(&self, error: &RedisError, count: u64) {
        let kind = match error {
            error if error.is_timeout() => "timeout",
            error if error.is_io_error() || error.is_connection_dropped() => "disconnected",
            _ => "other",
        };
        self.0.get_or_create(&Kind { kind }).inc_by(count);
    }

    /// Counts the errors in an answer: one for the whole command, or one for each counter that
    /// failed.
    pub fn answer(&self, reply: &Value) {
        match reply {
            Value::ServerError(error) => self.refused(error),
            Value::Array(values) => values.iter().for_each(|value| {
                if let Value::ServerError(error) = value {
                    self.refused(error);
                }
            }),
            _ => {}
        }
    }

    fn refused(&self, error: &ServerError) {
        self.0.get_or_create(&Kind { kind: kind(error) }).inc();
    }
}

fn kind(error: &ServerError) -> &'static str {
    match error.kind() {
        Some(ServerErrorKind::Moved) => "moved",
        Some(ServerErrorKind::Ask) => "ask",
        Some(ServerErrorKind::TryAgain) => "try_again",
        Some(ServerErrorKind::ClusterDown) => "cluster_down",
        Some(ServerErrorKind::MasterDown) => "master_down",
        Some(ServerErrorKind::BusyLoading) => "loading",
        Some(ServerErrorKind::ReadOnly) => "readonly",
        Some(ServerErrorKind::NoScript) => "noscript",
        Some(ServerErrorKind::CrossSlot) => "cross_slot",
        _ if error.code() == "NOPERM" => "no_permission",
        _ if error.code() == "OOM" => "out_of_memory",
        _ => "refused",
    }
}
