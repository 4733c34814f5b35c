//! Calls of a filter configuration, on Envoy's main thread.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::time::Duration;

use super::raw::{self, Buffer, Header, callout};

/// A filter configuration, in a hook on Envoy's main thread.
#[derive(Debug)]
pub struct FilterConfig<'h> {
    config: raw::ConfigPtr,
    hook: PhantomData<&'h *mut c_void>,
}

/// Runs `on_http_filter_config_scheduled` on Envoy's main thread, from any thread.
#[derive(Debug)]
pub struct ConfigScheduler(raw::SchedulerPtr);

/// Why Envoy does not start a callout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStarted {
    /// There is no such cluster.
    NoCluster,
    /// The cluster has no healthy host, or its circuit breaker is full.
    NoHost,
}

impl FilterConfig<'_> {
    /// The configuration `config`.
    ///
    /// # Safety
    /// `config` comes from Envoy, in a hook of this configuration that outlives the result.
    pub const unsafe fn new(config: raw::ConfigPtr) -> Self {
        Self { config, hook: PhantomData }
    }

    /// A scheduler of the configuration.
    pub fn scheduler(&self) -> ConfigScheduler {
        // SAFETY: the configuration exists while its hook runs.
        let scheduler = unsafe {
            raw::envoy_dynamic_module_callback_http_filter_config_scheduler_new(self.config)
        };
        ConfigScheduler(scheduler)
    }

    /// Defines a counter with these labels. Only while the configuration is made.
    pub fn define_counter(&self, name: &str, labels: &[&str]) -> Option<usize> {
        let labels: Vec<_> = labels.iter().map(|label| Buffer::new(label.as_bytes())).collect();
        let mut id = 0;
        // SAFETY: the configuration exists, and the pointers are valid for the call.
        let result = unsafe {
            raw::envoy_dynamic_module_callback_http_filter_config_define_counter(
                self.config,
                Buffer::new(name.as_bytes()),
                labels.as_ptr(),
                labels.len(),
                &raw mut id,
            )
        };
        (result == raw::METRIC_OK).then_some(id)
    }

    /// Adds to a counter, if [`counts_without_stream`](super::process::counts_without_stream).
    pub fn add_to_counter(&self, id: usize, labels: &[&str], count: u64) {
        let labels: Vec<_> = labels.iter().map(|label| Buffer::new(label.as_bytes())).collect();
        // SAFETY: the configuration exists, and the pointers are valid for the call. The counter
        // was defined with as many labels, or there is none.
        let _ = unsafe {
            raw::envoy_dynamic_module_callback_http_filter_config_increment_counter(
                self.config,
                id,
                labels.as_ptr(),
                labels.len(),
                count,
            )
        };
    }

    /// Sends an HTTP request to a cluster. Envoy reports its end with the returned number.
    ///
    /// # Errors
    /// Why it cannot leave.
    pub fn call(
        &self,
        cluster: &str,
        headers: &[(&str, &str)],
        body: &[u8],
        timeout: Duration,
    ) -> Result<u64, NotStarted> {
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| Header {
                name: Buffer::new(name.as_bytes()),
                value: Buffer::new(value.as_bytes()),
            })
            .collect();
        let mut id = 0;
        // SAFETY: the configuration exists, and the pointers are valid for the call.
        let result = unsafe {
            raw::envoy_dynamic_module_callback_http_filter_config_http_callout(
                self.config,
                &raw mut id,
                Buffer::new(cluster.as_bytes()),
                headers.as_ptr(),
                headers.len(),
                Buffer::new(body),
                u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1),
            )
        };
        match result {
            callout::STARTED => Ok(id),
            callout::NO_CLUSTER => Err(NotStarted::NoCluster),
            _ => Err(NotStarted::NoHost),
        }
    }
}

// SAFETY: Envoy allows `commit` from any thread.
unsafe impl Send for ConfigScheduler {}
// SAFETY: as above.
unsafe impl Sync for ConfigScheduler {}

impl ConfigScheduler {
    /// Wakes the configuration on Envoy's main thread.
    pub fn commit(&self) {
        // SAFETY: the scheduler lives until it is dropped.
        unsafe {
            raw::envoy_dynamic_module_callback_http_filter_config_scheduler_commit(self.0, 0);
        }
    }
}

impl Drop for ConfigScheduler {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more.
        unsafe { raw::envoy_dynamic_module_callback_http_filter_config_scheduler_delete(self.0) }
    }
}
