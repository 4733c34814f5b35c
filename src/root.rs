//! The root context of one worker: reads the configuration, owns the calls to the store, and
//! receives the ticks.

use std::rc::Rc;

use log::{error, warn};
use proxy_wasm::hostcalls;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{BufferType, ContextType};
use quotagate_quota::config::{Config, WrongDocument};

use crate::plugin::Plugin;
use crate::stream::Stream;
use crate::{call, good_documents, host};

/// The file of the filter that gets bodies.
const BODIES_FILE: &str = "quotagate-bodies.wasm";

/// The root context of one worker.
pub struct Root {
    id: u32,
    plugin: Option<Rc<Plugin>>,
}

impl Root {
    /// The root context `id`, not configured yet.
    pub fn new(id: u32) -> Self {
        Self { id, plugin: None }
    }
}

impl Context for Root {
    fn on_http_call_response(
        &mut self,
        token: u32,
        headers: usize,
        body_size: usize,
        _trailers: usize,
    ) {
        let Some(plugin) = &self.plugin else { return };
        let Some(call) = plugin.take_call(token) else { return };
        let end = call::end(headers, body_size);
        plugin.driver.borrow_mut().call_ended(call, &end, plugin.now());
        plugin.take_up(carried_out);
        plugin.dispatch();
        plugin.answer();
        plugin.end_after_calls();
    }

    fn on_done(&mut self) -> bool {
        let Some(plugin) = &self.plugin else { return true };
        plugin.flush_statistics();
        plugin.may_end()
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        let text = hostcalls::get_buffer(BufferType::PluginConfiguration, 0, size).ok().flatten();
        let text = text.unwrap_or_default();
        let config = match usable(&text) {
            Ok(config) => {
                good_documents::keep(&config, &text);
                config
            }
            Err(faults) => {
                for fault in &faults {
                    error!("quotagate: configuration refused: {fault}");
                }
                let last_good = |wrong: &_| usable(good_documents::last(wrong)?.as_bytes()).ok();
                let instead = WrongDocument::read(&text).instead(&faults, last_good);
                let Some(config) = instead else { return false };
                error!("quotagate: {}", config.in_force_instead());
                config
            }
        };
        for warning in config.warnings() {
            warn!("quotagate: {warning}");
        }
        let plugin = Plugin::new(self.id, config);
        plugin.inherit();
        plugin.take_up(carried_out);
        plugin.flush_statistics();
        self.plugin = Some(Rc::new(plugin));
        true
    }

    fn on_queue_ready(&mut self, queue: u32) {
        let Some(plugin) = &self.plugin else { return };
        host::enter(self.id);
        plugin.dispatch();
        // In a stream's callback no stream is answered, since it may be that one.
        if plugin.take_message(queue) {
            plugin.answer();
        } else {
            plugin.schedule_answers();
        }
    }

    fn on_tick(&mut self) {
        let Some(plugin) = &self.plugin else { return };
        plugin.driver.borrow_mut().tick(plugin.now());
        plugin.forget_message();
        plugin.give_up_reading();
        host::enter(self.id);
        plugin.dispatch();
        plugin.answer();
        plugin.flush_statistics();
        plugin.rest_when_idle();
        plugin.end_after_calls();
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        let plugin = self.plugin.as_ref()?;
        Some(Box::new(Stream::new(id, Rc::clone(plugin))))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// The configuration of a document that this form of the filter can carry out.
///
/// # Errors
/// All faults of the document.
fn usable(text: &[u8]) -> Result<Config, Vec<String>> {
    carried_out(Config::parse(text)?)
}

/// The configuration, if this form of the filter can carry it out.
///
/// # Errors
/// All faults of the document.
fn carried_out(config: Config) -> Result<Config, Vec<String>> {
    if (config.reads_request_bodies() || config.reads_response_bodies()) && !host::gets_bodies() {
        return Err(vec![format!(
            "policies: {BODIES_FILE} reads the bodies that cost.settle with usage and cost.reserve \
             with request_json need, and this file does not: set vm_config.code to {BODIES_FILE}"
        )]);
    }
    match config.store.reach.called_by_envoy() {
        Ok(_) => Ok(config),
        Err(fault) => Err(vec![fault.to_string()]),
    }
}
