//! What a host does with a request.

use quotagate_protocol::OnFailure;

use crate::config::Config;
use crate::exchange::{Arrival, Exchange};
use crate::response::{self, Answer, Now, mark};

/// What the host does with a request that arrives, or that was held and is decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<'c> {
    /// Let it go on, with this value of [`EXCEEDED`](mark::EXCEEDED) if there is one. Resume it if
    /// it was held.
    Continue(Option<String>),
    /// Hold it until it is decided.
    Hold,
    /// Hold it, and pass on its body.
    Read,
    /// Answer it.
    Answer(Answer<'c>),
}

impl<'c> Action<'c> {
    /// For a request that has just arrived, or whose body was read. `config` is what it was
    /// evaluated with.
    pub fn on_arrival(
        arrival: &Arrival,
        exchange: &Exchange,
        config: &'c Config,
        now: impl FnOnce() -> Now,
    ) -> Self {
        match arrival {
            Arrival::Uncounted => Self::Continue(None),
            Arrival::WithoutDocument => Self::undecided(config),
            Arrival::MarkedByClient => Self::Answer(response::marked_by_client()),
            Arrival::Reading => Self::Read,
            Arrival::MissingIdentity(missing) => {
                Self::Answer(response::missing_identity(config, missing.policy))
            }
            Arrival::Waiting => Self::Hold,
            Arrival::Decided | Arrival::Counting => Self::on_decision(exchange, config, now),
        }
    }

    /// For a request that is decided.
    pub fn on_decision(exchange: &Exchange, config: &'c Config, now: impl FnOnce() -> Now) -> Self {
        let Some(decision) = exchange.decision() else { return Self::Continue(None) };
        match response::answer(config, decision, now) {
            Some(answer) => Self::Answer(answer),
            None => Self::Continue(mark::exceeded(config, decision)),
        }
    }

    /// For a request that nothing decided: the store's `on_failure` does.
    pub fn undecided(config: &'c Config) -> Self {
        match config.store.on_failure {
            OnFailure::Allow | OnFailure::Local => Self::Continue(None),
            OnFailure::Deny => Self::Answer(response::unavailable(config)),
        }
    }
}
