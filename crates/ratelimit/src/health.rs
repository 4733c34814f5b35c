//! Whether the service can answer requests.

use std::sync::{Arc, Mutex, PoisonError};

use quotagate_store::server::Connections;
use quotagate_store::store::Store;

/// What keeps the service from answering.
pub struct HealthState {
    store: Arc<dyn Store>,
    connections: Arc<Connections>,
    /// Why no rules are in force.
    without_rules: Mutex<Option<String>>,
}

impl HealthState {
    /// A service without rules.
    pub fn new(store: Arc<dyn Store>, connections: Arc<Connections>) -> Self {
        let without_rules = Mutex::new(Some("no rules have come yet".to_owned()));
        Self { store, connections, without_rules }
    }

    /// Rules are in force, or why there are none.
    pub fn set_rules(&self, fault: Option<String>) {
        *self.without_rules.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// What is wrong. Empty if requests are answered.
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if self.connections.is_draining() {
            faults.push("the service is shutting down".to_owned());
        }
        faults.extend(self.without_rules.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let health = self.store.health();
        if health.outage {
            faults.extend(health.faults);
        }
        faults
    }
}
