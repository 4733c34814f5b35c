//! Whether the service can answer requests.

use std::sync::{Arc, Mutex, PoisonError};

use quotagate_store::server::Connections;
use quotagate_store::store::Store;

pub(crate) mod grpc;

/// What a healthy service needs.
///
/// Envoy Gateway restarts a pod whose `/healthcheck` fails, which brings neither rules nor Redis
/// back. It therefore starts the service with `FORCE_START_WITHOUT_INITIAL_CONFIG`, and this has
/// neither of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthNeeds {
    /// Rules in force.
    pub rules: bool,
    /// A store that counts.
    pub store: bool,
}

/// What keeps the service from answering.
pub struct HealthState {
    needs: HealthNeeds,
    store: Arc<dyn Store>,
    connections: Arc<Connections>,
    /// Why no rules are in force.
    without_rules: Mutex<Option<String>>,
}

impl HealthState {
    /// A service without rules.
    pub fn new(needs: HealthNeeds, store: Arc<dyn Store>, connections: Arc<Connections>) -> Self {
        let without_rules = Mutex::new(Some("no rules have come yet".to_owned()));
        Self { needs, store, connections, without_rules }
    }

    /// Rules are in force, or why there are none.
    pub fn set_rules(&self, fault: Option<String>) {
        *self.without_rules.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// What is wrong. Empty if the service has what it needs.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.connections.is_draining() {
            faults.push("the service is shutting down".to_owned());
        }
        if self.needs.rules {
            let fault = self.without_rules.lock().unwrap_or_else(PoisonError::into_inner);
            faults.extend(fault.clone());
        }
        if self.needs.store {
            let health = self.store.health();
            faults.extend(health.faults.into_iter().filter(|_| health.outage));
        }
        faults
    }
}
