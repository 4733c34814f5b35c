//! The hooks that Envoy calls. It looks up all of them when it loads a configuration, and refuses a
//! module that lacks one.
//!
//! Only Envoy calls them, with pointers of its own or from an earlier hook.
//! A panic must not unwind into Envoy: [`guard`] catches it in every hook that runs code.

use std::cell::RefCell;
use std::ffi::{c_char, c_void};
use std::io::Write;
use std::mem::MaybeUninit;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quotagate_quota::worker::CallEnd;

use crate::abi::raw::{
    self, Buffer, ConfigPtr, FilterPtr, Header, ModulePtr, body_status, headers_status,
    trailers_status,
};
use crate::abi::{FilterConfig, Host, process};
use crate::link::Closed;
use crate::log;
use crate::panics::guard;
use crate::setup::{Route, Setup};
use crate::stream::{Action, Stream, failed};

/// How many configurations of routes exist. Without one, no request asks Envoy for its route's.
static ROUTES: AtomicUsize = AtomicUsize::new(0);

/// How many streams' memory a thread keeps at most. Under a sanitizer it keeps none: a sanitizer
/// notices uses of freed memory, but not of memory that holds another stream by now.
const MAX_SPARE: usize = if cfg!(quotagate_sanitize) { 0 } else { 64 };

thread_local! {
    /// Memory of streams that have ended, for those to come.
    static SPARE: RefCell<Vec<Rc<MaybeUninit<Stream>>>> = const { RefCell::new(Vec::new()) };
}

/// A stream behind a pointer for Envoy. [`end_of_stream`] takes it back.
fn into_stream(stream: Stream) -> ModulePtr {
    let mut memory = SPARE.with_borrow_mut(Vec::pop).unwrap_or_else(Rc::new_uninit);
    let Some(uninit) = Rc::get_mut(&mut memory) else { return std::ptr::null() };
    uninit.write(stream);
    Rc::into_raw(memory).cast()
}

/// Drops a stream, or lets the hook do so that still uses it.
fn end_of_stream(stream: Rc<Stream>) {
    if Rc::strong_count(&stream) > 1 {
        return;
    }
    let stream: *const Stream = Rc::into_raw(stream);
    // SAFETY: `MaybeUninit<Stream>` has size and alignment of `Stream`, and the pointer comes from
    // `Rc::into_raw`, so the `Rc` is the same allocation with its counts.
    let mut memory = unsafe { Rc::from_raw(stream.cast::<MaybeUninit<Stream>>()) };
    if let Some(uninit) = Rc::get_mut(&mut memory) {
        // SAFETY: `into_stream` wrote a stream, and nobody has dropped it. `get_mut` proves that
        // this is the only reference. To drop a `MaybeUninit` later runs no destructor.
        unsafe { uninit.assume_init_drop() };
    }
    SPARE.with_borrow_mut(|spare| {
        if spare.len() < MAX_SPARE {
            spare.push(memory);
        }
    });
}

/// A value as a pointer for Envoy.
fn into_pointer<T>(value: Arc<T>) -> ModulePtr {
    Arc::into_raw(value).cast()
}

/// What is behind a pointer of the module's: one that [`into_pointer`] made of an [`Arc`], or a
/// stream's, which `filter_new` made of an [`Rc`].
///
/// # Safety
/// `pointer` is null, or was made of the same type, and its reference has not been taken back and
/// is not while `'p` lasts. That of a stream is used on its own worker only.
unsafe fn borrow<'p, T>(pointer: ModulePtr) -> Option<&'p T> {
    // SAFETY: both kinds point to the value itself. By the caller's contract it is alive, or the
    // pointer is null.
    unsafe { pointer.cast::<T>().as_ref() }
}

/// Another reference to what is behind a pointer that [`into_pointer`] made.
///
/// # Safety
/// `pointer` is null, or comes from [`into_pointer`] with the same type and [`release`] has not run
/// for it.
unsafe fn share<T>(pointer: ModulePtr) -> Option<Arc<T>> {
    if pointer.is_null() {
        return None;
    }
    let pointer = pointer.cast::<T>();
    // SAFETY: not null, so it came from `Arc::into_raw` and is live, by the caller's contract.
    unsafe {
        Arc::increment_strong_count(pointer);
        Some(Arc::from_raw(pointer))
    }
}

/// A stream by the pointer that `filter_new` returned, for as long as a hook needs it: Envoy may
/// destroy the stream meanwhile.
///
/// # Safety
/// `pointer` is null, or comes from `filter_new` and `filter_destroy` has not run for it. Envoy
/// runs all three on one worker.
unsafe fn stream(pointer: ModulePtr) -> Option<Rc<Stream>> {
    if pointer.is_null() {
        return None;
    }
    let pointer = pointer.cast::<Stream>();
    // SAFETY: not null, so it came from `Rc::into_raw` and is live, by the caller's contract.
    unsafe {
        Rc::increment_strong_count(pointer);
        Some(Rc::from_raw(pointer))
    }
}

/// Takes back a pointer that [`into_pointer`] made.
///
/// # Safety
/// As for [`share`]; the pointer must not be used again.
unsafe fn release<T>(pointer: ModulePtr) -> Option<Arc<T>> {
    // SAFETY: it came from `Arc::into_raw` and is live, by the caller's contract.
    (!pointer.is_null()).then(|| unsafe { Arc::from_raw(pointer.cast::<T>()) })
}

/// Envoy loads the module. Returns the version of the ABI, or null if this Envoy cannot run it.
#[unsafe(no_mangle)]
pub extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    match process::missing_callback() {
        None => raw::ABI_VERSION.as_ptr(),
        Some(name) => {
            let line = format!(
                "quotagate: this Envoy lacks {}, which the native form of the filter needs: run \
                 Envoy 1.38 or later, or the Wasm form",
                name.to_string_lossy()
            );
            // Envoy's own log may be what is missing. `eprintln!` would panic if nobody reads it.
            let _ = writeln!(std::io::stderr(), "{line}");
            std::ptr::null()
        }
    }
}

/// A filter configuration arrives, on the main thread. Returns null to refuse it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    config: ConfigPtr,
    name: Buffer<'_>,
    document: Buffer<'_>,
) -> ModulePtr {
    guard("configuration", std::ptr::null(), || {
        // SAFETY: Envoy's configuration and buffers are valid during this hook.
        let (config, name, document) =
            unsafe { (FilterConfig::new(config), name.bytes(), document.bytes()) };
        match Setup::of_listener(&String::from_utf8_lossy(name), document, &config) {
            Ok(setup) => into_pointer(setup),
            Err(faults) => refused(&faults),
        }
    })
}

fn refused(faults: &[String]) -> ModulePtr {
    for fault in faults {
        log::error(&format!("configuration refused: {fault}"));
    }
    std::ptr::null()
}

/// Envoy destroys a filter configuration, after all streams with it, on the thread that lets go of
/// it last. That is the main thread, an Envoy worker (after an update by ECDS), or one of ours.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(module: ModulePtr) {
    guard("end of a configuration", (), || {
        // SAFETY: Envoy returns what `config_new` gave it, for the last time.
        let Some(setup) = (unsafe { release::<Setup>(module) }) else { return };
        if setup.close() == Closed::Pending {
            // Envoy may still report their ends with this pointer.
            std::mem::forget(setup);
        }
    });
}

/// The configuration of a route arrives, on the main thread. Returns null to refuse it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_new(
    name: Buffer<'_>,
    document: Buffer<'_>,
) -> ModulePtr {
    guard("configuration of a route", std::ptr::null(), || {
        // SAFETY: Envoy's buffers are valid during this hook.
        let (name, document) = unsafe { (name.bytes(), document.bytes()) };
        match Route::new(&String::from_utf8_lossy(name), document) {
            Ok(route) => {
                ROUTES.fetch_add(1, Ordering::Relaxed);
                into_pointer(Arc::new(route))
            }
            Err(faults) => refused(&faults),
        }
    })
}

/// Envoy destroys the configuration of a route.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_destroy(
    module: ModulePtr,
) {
    guard("end of a route's configuration", (), || {
        // SAFETY: Envoy returns what `per_route_config_new` gave it, for the last time.
        if let Some(route) = unsafe { release::<Route>(module) } {
            ROUTES.fetch_sub(1, Ordering::Relaxed);
            route.close();
        }
    });
}

/// A stream begins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_new(
    module: ModulePtr,
    _filter: FilterPtr,
) -> ModulePtr {
    guard("begin of a stream", std::ptr::null(), || {
        // SAFETY: the configuration outlives its streams.
        let setup = unsafe { share::<Setup>(module) };
        setup.map_or(std::ptr::null(), |setup| into_stream(Stream::new(setup)))
    })
}

/// The request's headers arrive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    filter: FilterPtr,
    module: ModulePtr,
    end: bool,
) -> u32 {
    // SAFETY: Envoy's stream is valid during this hook, and `module` came from `filter_new`.
    let (mut host, stream) = unsafe { (Host::new(filter), stream(module)) };
    let Some(stream) = stream else { return headers_status::CONTINUE };
    let config = stream.setup().config();
    // A published document may mark requests although the embedded one does not.
    if config.marks || config.is_live() {
        guard("mark", (), || host.remove_mark());
    }
    // SAFETY: Envoy keeps the route's configuration while its request is served.
    let route = (ROUTES.load(Ordering::Relaxed) > 0)
        .then(|| unsafe { borrow::<Route>(host.route_config()) })
        .flatten();
    let setup = match route {
        None => &**stream.setup(),
        Some(Route::Own(setup)) => &**setup,
        Some(Route::Disabled) => return headers_status::CONTINUE,
    };
    let action =
        guard("request headers", None, || Some(stream.request_headers(&mut host, setup, end)));
    let action = action.or_else(|| {
        guard("answer", None, || {
            stream.give_up(&host, setup);
            Some(failed(&mut host, setup.config()))
        })
    });
    match action.unwrap_or(Action::Continue) {
        Action::Continue => headers_status::CONTINUE,
        Action::Answered | Action::Read => headers_status::STOP,
        Action::Hold => headers_status::STOP_ALL_AND_WATERMARK,
    }
}

/// A piece of the request's body arrives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_body(
    filter: FilterPtr,
    module: ModulePtr,
    end: bool,
) -> u32 {
    // SAFETY: by the caller's contract.
    match unsafe { request_body(filter, module, end) } {
        Action::Continue => body_status::CONTINUE,
        Action::Answered => body_status::STOP_NO_BUFFER,
        Action::Hold | Action::Read => body_status::STOP_AND_WATERMARK,
    }
}

/// The request's trailers arrive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_request_trailers(
    filter: FilterPtr,
    module: ModulePtr,
) -> u32 {
    // SAFETY: by the caller's contract.
    match unsafe { request_body(filter, module, true) } {
        Action::Continue => trailers_status::CONTINUE,
        Action::Answered | Action::Hold | Action::Read => trailers_status::STOP,
    }
}

/// The body of a request goes on, or its end comes.
///
/// # Safety
/// Called in a hook of Envoy's with its arguments.
unsafe fn request_body(filter: FilterPtr, module: ModulePtr, end: bool) -> Action {
    // SAFETY: Envoy's stream is valid during this hook, and `module` came from `filter_new`.
    let Some(known) = (unsafe { borrow::<Stream>(module) }) else { return Action::Continue };
    if !known.reads_request() {
        return Action::Continue;
    }
    // SAFETY: as above.
    let (mut host, stream) = unsafe { (Host::new(filter), stream(module)) };
    let Some(stream) = stream else { return Action::Continue };
    let action = guard("request body", None, || Some(stream.request_body(&mut host, end)));
    let action = action.or_else(|| guard("answer", None, || Some(stream.give_up_body(&mut host))));
    action.unwrap_or(Action::Continue)
}

/// Runs `act` on a stream whose response goes by, or that is over. A panic leaves what the client
/// gets as it is.
///
/// # Safety
/// Called in a hook of Envoy's with its arguments.
unsafe fn on_stream(
    what: &'static str,
    filter: FilterPtr,
    module: ModulePtr,
    act: impl FnOnce(&Stream, &mut Host<'_>),
) {
    guard(what, (), || {
        // SAFETY: Envoy's stream is valid during this hook, and `module` came from `filter_new`.
        let (mut host, stream) = unsafe { (Host::new(filter), borrow::<Stream>(module)) };
        if let Some(stream) = stream {
            act(stream, &mut host);
        }
    });
}

/// A piece of the response's body arrives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_body(
    filter: FilterPtr,
    module: ModulePtr,
    end: bool,
) -> u32 {
    // SAFETY: by the caller's contract.
    unsafe {
        on_stream("response body", filter, module, |stream, host| stream.response_body(host, end))
    };
    body_status::CONTINUE
}

/// The response's headers arrive, from the upstream or from Envoy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    filter: FilterPtr,
    module: ModulePtr,
    end: bool,
) -> u32 {
    // SAFETY: by the caller's contract.
    unsafe {
        on_stream("response headers", filter, module, |stream, host| {
            stream.response_headers(host, end)
        })
    };
    headers_status::CONTINUE
}

/// The response's trailers arrive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_response_trailers(
    filter: FilterPtr,
    module: ModulePtr,
) -> u32 {
    // SAFETY: by the caller's contract.
    unsafe {
        on_stream("response trailers", filter, module, |stream, host| {
            stream.response_trailers(host)
        })
    };
    headers_status::CONTINUE
}

/// A stream is over. Envoy writes the access log next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(
    filter: FilterPtr,
    module: ModulePtr,
) {
    // SAFETY: by the caller's contract.
    unsafe { on_stream("end of a stream", filter, module, |stream, host| stream.complete(host)) };
}

/// Envoy destroys a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_destroy(module: ModulePtr) {
    guard("destruction of a stream", (), || {
        // SAFETY: Envoy returns what `filter_new` gave it, for the last time.
        let stream = (!module.is_null()).then(|| unsafe { Rc::from_raw(module.cast::<Stream>()) });
        if let Some(stream) = stream {
            stream.destroy();
            end_of_stream(stream);
        }
    });
}

/// A stream was woken by its scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
    filter: FilterPtr,
    module: ModulePtr,
    _event: u64,
) {
    guard("decisions", (), || {
        // SAFETY: Envoy's stream is valid during this hook, and `module` came from `filter_new`.
        let (mut host, stream) = unsafe { (Host::new(filter), stream(module)) };
        if let Some(stream) = stream {
            stream.woken(&mut host);
        }
    });
}

/// The scheduler of a filter configuration fired, on the main thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
    config: ConfigPtr,
    module: ModulePtr,
    _event: u64,
) {
    guard("calls and metrics", (), || {
        // SAFETY: Envoy's configuration is valid during this hook, and `module` came from
        // `config_new`.
        let (config, setup) = unsafe { (FilterConfig::new(config), borrow::<Setup>(module)) };
        if let Some(setup) = setup {
            setup.woken(&config);
        }
    });
}

/// A callout of a filter configuration has ended, on the main thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn envoy_dynamic_module_on_http_filter_config_http_callout_done(
    _config: ConfigPtr,
    module: ModulePtr,
    number: u64,
    result: u32,
    headers: *const Header<'_>,
    headers_len: usize,
    chunks: *const Buffer<'_>,
    chunks_len: usize,
) {
    guard("reply", (), || {
        // SAFETY: headers and body are valid during this hook, and `module` came from
        // `config_new`.
        let (setup, headers, chunks) = unsafe {
            // Another thread may destroy the configuration as soon as the last callout has ended.
            (share::<Setup>(module), list(headers, headers_len), list(chunks, chunks_len))
        };
        let Some(callouts) = setup.as_deref().and_then(Setup::callouts) else { return };
        let header = |wanted: &str| {
            // SAFETY: as above.
            let value = |header: &Header<'_>| unsafe {
                (header.name.bytes() == wanted.as_bytes()).then(|| header.value.bytes().to_vec())
            };
            if result == raw::CALLOUT_ANSWERED { headers.iter().find_map(value) } else { None }
        };
        let body = |len| {
            let mut body = Vec::with_capacity(len);
            for chunk in chunks {
                // SAFETY: as above.
                let chunk = unsafe { chunk.bytes() };
                let room = len - body.len();
                body.extend_from_slice(chunk.get(..room).unwrap_or(chunk));
            }
            body
        };
        let end = CallEnd::read(header, chunks.iter().map(Buffer::len).sum(), body);
        callouts.ended(number, end);
    });
}

/// A list of Envoy's.
///
/// # Safety
/// `first` is null, or points to `len` values that are valid for `'l`.
unsafe fn list<'l, T>(first: *const T, len: usize) -> &'l [T] {
    if first.is_null() {
        return &[];
    }
    // SAFETY: by the caller's contract.
    unsafe { std::slice::from_raw_parts(first, len) }
}

/// Hooks that do nothing, and return 0: Envoy goes on.
macro_rules! unused {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        $(
            #[doc = "Nothing to do."]
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($(_: $argument),*) $(-> $result)? { $(0 as $result)? }
        )*
    };
}

unused! {
    envoy_dynamic_module_on_http_filter_local_reply(FilterPtr, ModulePtr, u32, Buffer<'_>, bool) -> u32;
    envoy_dynamic_module_on_http_filter_http_callout_done(FilterPtr, ModulePtr, u64, u32, *const c_void, usize, *const c_void, usize);
    envoy_dynamic_module_on_http_filter_http_stream_headers(FilterPtr, ModulePtr, u64, *const c_void, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_data(FilterPtr, ModulePtr, u64, *const c_void, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_trailers(FilterPtr, ModulePtr, u64, *const c_void, usize);
    envoy_dynamic_module_on_http_filter_http_stream_complete(FilterPtr, ModulePtr, u64);
    envoy_dynamic_module_on_http_filter_http_stream_reset(FilterPtr, ModulePtr, u64, u32);
    envoy_dynamic_module_on_http_filter_config_http_stream_headers(ConfigPtr, ModulePtr, u64, *const c_void, usize, bool);
    envoy_dynamic_module_on_http_filter_config_http_stream_data(ConfigPtr, ModulePtr, u64, *const c_void, usize, bool);
    envoy_dynamic_module_on_http_filter_config_http_stream_trailers(ConfigPtr, ModulePtr, u64, *const c_void, usize);
    envoy_dynamic_module_on_http_filter_config_http_stream_complete(ConfigPtr, ModulePtr, u64);
    envoy_dynamic_module_on_http_filter_config_http_stream_reset(ConfigPtr, ModulePtr, u64, u32);
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(FilterPtr, ModulePtr);
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(FilterPtr, ModulePtr);
}
