//! Envoy's threads and one filter configuration, with its counters and callouts.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quotagate_protocol::RESERVE_PATH;

use super::abi::{self, Buffer, Header, Module, Ptr};
use super::dispatcher::Dispatcher;
use super::streams::{Request, Stream};
use super::{ALIVE, eventually, lock};

thread_local! {
    /// What the callbacks without a context return on a main thread.
    pub static CONCURRENCY: Cell<u32> = const { Cell::new(1) };
    pub static VALIDATES: Cell<bool> = const { Cell::new(false) };
}

/// A main thread, workers, and a configuration.
pub struct Envoy {
    pub main: Arc<Dispatcher>,
    pub workers: Vec<Arc<Dispatcher>>,
    config: Option<Arc<FilterConfig>>,
}

/// Envoy's side of a filter configuration. The module's side ends with it, on whatever thread drops
/// it last.
pub struct FilterConfig {
    pub main: Arc<Dispatcher>,
    pub module: AtomicUsize,
    /// Names, labels, and the sum of each combination of labels.
    pub counters: Mutex<Vec<(String, Vec<String>, Counts)>>,
    pub callouts: Arc<Mutex<Callouts>>,
}

type Counts = HashMap<Vec<String>, u64>;

/// The callouts of a configuration.
#[derive(Default)]
pub struct Callouts {
    /// What the next ones return instead of starting.
    pub refused_with: Option<u32>,
    /// Whether the next ones end only by `end_callout`, and never by their time limit.
    pub never_time_out: bool,
    pub made: Vec<Callout>,
    /// The numbers of those that have not ended.
    pub pending: HashSet<u64>,
}

/// A callout that was started.
#[derive(Clone, Debug)]
pub struct Callout {
    pub number: u64,
    pub cluster: String,
    pub headers: Vec<(String, String)>,
    pub body: String,
    pub timeout_ms: u64,
}

impl Callout {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

impl Drop for FilterConfig {
    fn drop(&mut self) {
        let module = *self.module.get_mut() as Module;
        // SAFETY: the module made it, and gets it back once.
        unsafe { abi::envoy_dynamic_module_on_http_filter_config_destroy(module) };
        let pending = std::mem::take(&mut lock(&self.callouts).pending);
        if !pending.is_empty() && !self.main.is_current() {
            eprintln!("callouts {pending:?} of the main thread are cancelled on another one");
            std::process::abort();
        }
        lock(&ALIVE).get_or_insert_default().remove(&(std::ptr::from_ref(self) as usize));
    }
}

impl Envoy {
    /// Starts an Envoy with this policy document. `Err` if the module refuses it.
    pub fn new(workers: u32, document: &str) -> Result<Self, ()> {
        Self::with(workers, document, false)
    }

    /// The same, with an Envoy that only validates its configuration.
    pub fn validate(document: &str) -> Result<(), ()> {
        Self::with(1, document, true).map(drop)
    }

    /// Starts an Envoy. The module must accept the document.
    pub fn start(workers: u32, document: &str) -> Self {
        Self::new(workers, document).expect("the module accepts the document")
    }

    fn with(workers: u32, document: &str, validates: bool) -> Result<Self, ()> {
        let main = Arc::new(Dispatcher::start("main"));
        main.run(move || {
            CONCURRENCY.set(workers);
            VALIDATES.set(validates);
        });
        let config = configure(&main, document)?;
        let worker = |index| Arc::new(Dispatcher::start(&format!("wrk:{index}")));
        Ok(Self { main, workers: (0..workers).map(worker).collect(), config: Some(config) })
    }

    /// Replaces the configuration. Streams keep the old one until they end.
    pub fn update(&mut self, document: &str) -> Result<(), ()> {
        let config = configure(&self.main, document)?;
        self.unconfigure();
        self.config = Some(config);
        Ok(())
    }

    /// Destroys the configuration as soon as no stream has it.
    pub fn unconfigure(&mut self) {
        let config = self.config.take();
        self.main.run(|| drop(config));
    }

    /// The configuration of a route. `Err` if the module refuses it.
    pub fn route(&self, document: &str) -> Result<Route, ()> {
        let document = document.to_owned();
        let module = self.main.run(move || {
            let (name, document) = (Buffer::new(b"quotagate"), Buffer::new(document.as_bytes()));
            // SAFETY: the buffers are valid for the call.
            unsafe {
                abi::envoy_dynamic_module_on_http_filter_per_route_config_new(name, document)
                    as usize
            }
        });
        if module == 0 { Err(()) } else { Ok(Route(module)) }
    }

    /// A request arrives on a worker.
    pub fn request(&self, worker: usize, request: Request) -> Arc<Stream> {
        self.turn(worker, vec![request]).remove(0)
    }

    /// Requests arrive on a worker, in one turn of its event loop.
    pub fn turn(&self, worker: usize, requests: Vec<Request>) -> Vec<Arc<Stream>> {
        let dispatcher = &self.workers[worker];
        let new = |request| Stream::new(dispatcher, worker, request);
        let streams: Vec<_> = requests.into_iter().map(new).collect();
        let (arriving, config) = (streams.clone(), Arc::clone(self.config()));
        dispatcher
            .run(move || arriving.iter().for_each(|stream| stream.arrive(Arc::clone(&config))));
        streams
    }

    /// The sum of a counter, over all labels that are not named here.
    pub fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let counters = lock(&self.config().counters);
        let (_, names, counts) =
            counters.iter().find(|(known, ..)| known == name).expect("it is defined");
        let fits = |values: &[String]| {
            labels.iter().all(|(label, value)| {
                names.iter().zip(values).any(|(name, known)| name == label && known == value)
            })
        };
        counts.iter().filter(|(values, _)| fits(values)).map(|(_, count)| count).sum()
    }

    /// The same, once it is at least this. The main thread writes what the last stream leaves.
    pub fn counter_reaches(&self, least: u64, name: &str, labels: &[(&str, &str)]) -> u64 {
        eventually(&format!("{name} {labels:?} reaches {least}"), || {
            Some(self.counter(name, labels)).filter(|count| *count >= least)
        })
    }

    /// Makes callouts fail with this result, or start again.
    pub fn refuse_callouts(&self, result: Option<u32>) {
        lock(&self.config().callouts).refused_with = result;
    }

    /// From now on, callouts do not end by their time limit.
    pub fn never_time_out(&self) {
        lock(&self.config().callouts).never_time_out = true;
    }

    /// The callouts for units so far.
    pub fn calls(&self) -> Vec<Callout> {
        self.callouts(|path| path == RESERVE_PATH)
    }

    /// Waits for a callout that fetches dials.
    pub fn fetch(&self) -> Callout {
        eventually("a fetch", || self.callouts(|path| path != RESERVE_PATH).into_iter().next())
    }

    /// Waits for the callout for units after `known` ones.
    pub fn callout(&self, known: usize) -> Callout {
        eventually("a callout", || self.calls().get(known).cloned())
    }

    fn callouts(&self, to: impl Fn(&str) -> bool) -> Vec<Callout> {
        let callouts = lock(&self.config().callouts);
        let made = callouts.made.iter();
        made.filter(|callout| callout.header(":path").is_some_and(&to)).cloned().collect()
    }

    /// Ends a callout with this result, these headers and this body.
    pub fn end_callout(
        &self,
        number: u64,
        result: u32,
        headers: &'static [(&'static str, &'static str)],
        body: &str,
    ) {
        let (config, body) = (Arc::clone(self.config()), body.to_owned());
        self.main.run(move || {
            lock(&config.callouts).pending.remove(&number);
            let headers: Vec<_> = headers
                .iter()
                .map(|(name, value)| Header {
                    name: Buffer::new(name.as_bytes()),
                    value: Buffer::new(value.as_bytes()),
                })
                .collect();
            let (start, rest) = body.as_bytes().split_at(body.len() / 2);
            let chunks = [Buffer::new(start), Buffer::new(rest)];
            // SAFETY: everything is valid for the call.
            unsafe {
                abi::envoy_dynamic_module_on_http_filter_config_http_callout_done(
                    config.pointer(),
                    config.module(),
                    number,
                    result,
                    if headers.is_empty() { std::ptr::null() } else { headers.as_ptr() },
                    headers.len(),
                    if body.is_empty() { std::ptr::null() } else { chunks.as_ptr() },
                    if body.is_empty() { 0 } else { chunks.len() },
                );
            }
        });
    }

    /// How many callouts of the configuration have not ended.
    pub fn pending(&self) -> usize {
        lock(&self.config().callouts).pending.len()
    }

    pub fn config(&self) -> &Arc<FilterConfig> {
        self.config.as_ref().expect("a configuration")
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        self.unconfigure();
    }
}

impl FilterConfig {
    /// Ends a callout at its time limit, as Envoy does: even while another thread destroys the
    /// configuration.
    pub fn time_out(&self, number: u64, after: Duration) {
        let (config, module) = (self.pointer() as usize, self.module() as usize);
        let (main, callouts) = (Arc::clone(&self.main), Arc::clone(&self.callouts));
        std::thread::spawn(move || {
            std::thread::sleep(after);
            main.post(move || {
                if lock(&callouts).pending.remove(&number) {
                    // SAFETY: the configuration exists while it has pending callouts.
                    unsafe {
                        abi::envoy_dynamic_module_on_http_filter_config_http_callout_done(
                            config as Ptr,
                            module as Module,
                            number,
                            1,
                            std::ptr::null(),
                            0,
                            std::ptr::null(),
                            0,
                        );
                    }
                }
            });
        });
    }

    pub fn pointer(&self) -> Ptr {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    pub fn module(&self) -> Module {
        self.module.load(Ordering::Acquire) as Module
    }
}

fn configure(main: &Arc<Dispatcher>, document: &str) -> Result<Arc<FilterConfig>, ()> {
    let config = Arc::new(FilterConfig {
        main: Arc::clone(main),
        module: AtomicUsize::new(0),
        counters: Mutex::default(),
        callouts: Arc::default(),
    });
    lock(&ALIVE).get_or_insert_default().insert(config.pointer() as usize);
    let document = document.to_owned();
    main.run(move || {
        let (name, document) = (Buffer::new(b"quotagate"), Buffer::new(document.as_bytes()));
        // SAFETY: the configuration exists, and the buffers are valid for the call.
        let module = unsafe {
            abi::envoy_dynamic_module_on_http_filter_config_new(config.pointer(), name, document)
        };
        config.module.store(module as usize, Ordering::Release);
        if module.is_null() { Err(()) } else { Ok(config) }
    })
}

/// The configuration of a route. It must outlive the streams that have it.
pub struct Route(pub usize);

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: the module made it, and gets it back once.
        unsafe {
            abi::envoy_dynamic_module_on_http_filter_per_route_config_destroy(self.0 as Module);
        }
    }
}
