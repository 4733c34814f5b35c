//! Envoy's main thread, as other threads wake it for one filter configuration.

use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::{ConfigScheduler, FilterConfig};

/// Wakes Envoy's main thread for a filter configuration, until Envoy destroys that.
pub struct MainThread(Mutex<Option<Arc<ConfigScheduler>>>);

impl MainThread {
    /// For this configuration. Call it on Envoy's main thread.
    pub fn new(config: &FilterConfig<'_>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Arc::new(config.scheduler())))))
    }

    /// Whether Envoy still has the configuration.
    pub fn is_open(&self) -> bool {
        self.scheduler().is_some()
    }

    /// Something that wakes the main thread: `on_http_filter_config_scheduled` runs. `None` if the
    /// configuration is closed.
    ///
    /// Committing may destroy the configuration on this thread. So commit with nothing locked that
    /// [`close`](Self::close), or the end of a configuration, locks.
    pub fn scheduler(&self) -> Option<Arc<ConfigScheduler>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Envoy destroys the configuration.
    pub fn close(&self) {
        let scheduler = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(scheduler);
    }
}
