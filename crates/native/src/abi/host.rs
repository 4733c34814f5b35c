//! Calls of a stream. Values in Envoy's memory are valid only within a hook, and headers only until
//! they change; the borrow checker holds both. All other values are copied.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use quotagate_quota::access_log::AccessLogEntry;
use quotagate_quota::exchange::counting::is_grpc;
use quotagate_quota::response::mark::EXCEEDED;
use quotagate_quota::response::{Answer, HeaderWrite, PUSHBACK};

use super::headers::HeaderMap;
use super::process;
use super::raw::{self, Buffer, Header, attribute, body, header_map};
use crate::redirects::Redirect;

/// The stream whose hook runs. It cannot leave the hook or its thread.
#[derive(Debug)]
pub struct Host<'h> {
    filter: raw::FilterPtr,
    hook: PhantomData<&'h *mut c_void>,
}

/// A stream, remembered beyond its hook until Envoy destroys it.
#[derive(Debug)]
pub struct Handle(AtomicPtr<c_void>);

/// Wakes a stream from any thread: Envoy then runs `on_http_filter_scheduled` on the stream's
/// worker, if the stream still exists.
#[derive(Debug)]
pub struct Scheduler(raw::SchedulerPtr);

impl<'h> Host<'h> {
    /// The stream `filter`.
    ///
    /// # Safety
    /// `filter` comes from Envoy, in a hook of this stream that outlives `'h`.
    pub const unsafe fn new(filter: raw::FilterPtr) -> Self {
        Self { filter, hook: PhantomData }
    }

    /// Remembers the stream.
    pub const fn handle(&self) -> Handle {
        Handle(AtomicPtr::new(self.filter))
    }

    /// The index of the Envoy worker that runs the stream.
    pub fn worker_index(&self) -> usize {
        // SAFETY: the stream exists while its hook runs.
        let index =
            unsafe { raw::envoy_dynamic_module_callback_http_filter_get_worker_index(self.filter) };
        usize::try_from(index).unwrap_or_default()
    }

    /// The module's configuration of the request's route, as its `per_route_config_new` made it.
    pub fn route_config(&self) -> raw::ModulePtr {
        // SAFETY: the stream exists while its hook runs.
        unsafe { raw::envoy_dynamic_module_callback_get_most_specific_route_config(self.filter) }
    }

    /// A scheduler of the stream.
    pub fn scheduler(&self) -> Scheduler {
        // SAFETY: the stream exists while its hook runs.
        let scheduler =
            unsafe { raw::envoy_dynamic_module_callback_http_filter_scheduler_new(self.filter) };
        Scheduler(scheduler)
    }

    /// The first value of a header. That of a pseudo-header or of `content-type` costs little; for
    /// others, Envoy first makes an index of all headers, so [`headers`](Self::headers) costs less.
    pub fn first_header(&self, map: u32, name: &str) -> Option<&[u8]> {
        let mut value = Buffer::EMPTY;
        // SAFETY: the stream exists, and the pointers are valid for the call.
        let found = unsafe {
            raw::envoy_dynamic_module_callback_http_get_header(
                self.filter,
                map,
                Buffer::new(name.as_bytes()),
                &raw mut value,
                0,
                std::ptr::null_mut(),
            )
        };
        // SAFETY: on success Envoy's buffer is valid until the hook ends or the header changes, and
        // a change needs `&mut self`.
        found.then(|| unsafe { value.bytes() })
    }

    /// All headers of a map.
    pub fn headers(&self, map: u32) -> HeaderMap<'_> {
        // SAFETY: the stream exists while its hook runs, and what changes a header needs
        // `&mut self`.
        unsafe { HeaderMap::read(self.filter, map) }
    }

    /// Writes a response header.
    pub fn write_response_header(&mut self, how: HeaderWrite, name: &str, value: &str) {
        let value = Buffer::new(value.as_bytes());
        match how {
            HeaderWrite::Replace => self.set_header(header_map::RESPONSE, name, value),
            HeaderWrite::Add => {
                let name = Buffer::new(name.as_bytes());
                // SAFETY: the stream exists, and the pointers are valid for the call. Without
                // these headers there is nothing to add to.
                let _ = unsafe {
                    raw::envoy_dynamic_module_callback_http_add_header(
                        self.filter,
                        header_map::RESPONSE,
                        name,
                        value,
                    )
                };
            }
        }
    }

    /// Sets a header and replaces all others of its name. [`Buffer::EMPTY`] removes them.
    fn set_header(&mut self, map: u32, name: &str, value: Buffer<'_>) {
        let name = Buffer::new(name.as_bytes());
        // SAFETY: the stream exists, and the pointers are valid for the call. Without these headers
        // there is nothing to set.
        let _ = unsafe {
            raw::envoy_dynamic_module_callback_http_set_header(self.filter, map, name, value)
        };
    }

    /// Removes the mark that the request brought along. Envoy chooses the route again at once, so
    /// that no policy sees the one that the mark has chosen.
    pub fn remove_mark(&mut self) {
        if self.first_header(header_map::REQUEST, EXCEEDED).is_some() {
            self.set_header(header_map::REQUEST, EXCEEDED, Buffer::EMPTY);
            self.clear_route();
            // Envoy needs the route to find its configuration.
            self.route_config();
        }
    }

    /// Marks the request, and lets Envoy choose its route again.
    pub fn mark(&mut self, value: &str) {
        self.set_header(header_map::REQUEST, EXCEEDED, Buffer::new(value.as_bytes()));
        self.clear_route();
    }

    fn clear_route(&mut self) {
        // SAFETY: the stream exists.
        unsafe { raw::envoy_dynamic_module_callback_http_clear_route_cache(self.filter) }
    }

    fn attribute(&self, attribute: u32) -> Option<Vec<u8>> {
        let mut value = Buffer::EMPTY;
        // SAFETY: the stream exists, and the pointer is valid for the call.
        let found = unsafe {
            raw::envoy_dynamic_module_callback_http_filter_get_attribute_string(
                self.filter,
                attribute,
                &raw mut value,
            )
        };
        // SAFETY: as for a header.
        found.then(|| unsafe { value.bytes() }.to_vec())
    }

    /// An attribute by its path, as the policy document and Envoy's documentation name it.
    pub fn attribute_at(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.attribute(match path {
            ["source", "address"] => attribute::SOURCE_ADDRESS,
            ["request", "id"] => attribute::REQUEST_ID,
            ["response", "code_details"] => attribute::RESPONSE_CODE_DETAILS,
            ["connection", "requested_server_name"] => attribute::REQUESTED_SERVER_NAME,
            ["connection", "subject_peer_certificate"] => attribute::SUBJECT_PEER_CERTIFICATE,
            ["connection", "dns_san_peer_certificate"] => attribute::DNS_SAN_PEER_CERTIFICATE,
            ["connection", "uri_san_peer_certificate"] => attribute::URI_SAN_PEER_CERTIFICATE,
            ["xds", "route_name"] => attribute::ROUTE_NAME,
            _ => return None,
        })
    }

    /// A text of dynamic metadata.
    pub fn metadata_text(&self, namespace: &str, key: &str) -> Option<Vec<u8>> {
        let mut value = Buffer::EMPTY;
        // SAFETY: the stream exists, and the pointers are valid for the call.
        let found = unsafe {
            raw::envoy_dynamic_module_callback_http_get_metadata_string(
                self.filter,
                raw::DYNAMIC_METADATA,
                Buffer::new(namespace.as_bytes()),
                Buffer::new(key.as_bytes()),
                &raw mut value,
            )
        };
        // SAFETY: as for a header.
        found.then(|| unsafe { value.bytes() }.to_vec())
    }

    /// A number of dynamic metadata.
    pub fn metadata_number(&self, namespace: &str, key: &str) -> Option<f64> {
        let mut value = 0.0;
        // SAFETY: the stream exists, and the pointers are valid for the call.
        let found = unsafe {
            raw::envoy_dynamic_module_callback_http_get_metadata_number(
                self.filter,
                raw::DYNAMIC_METADATA,
                Buffer::new(namespace.as_bytes()),
                Buffer::new(key.as_bytes()),
                &raw mut value,
            )
        };
        found.then_some(value)
    }

    /// A boolean of dynamic metadata.
    pub fn metadata_boolean(&self, namespace: &str, key: &str) -> Option<bool> {
        let mut value = false;
        // SAFETY: the stream exists, and the pointers are valid for the call.
        let found = unsafe {
            raw::envoy_dynamic_module_callback_http_get_metadata_bool(
                self.filter,
                raw::DYNAMIC_METADATA,
                Buffer::new(namespace.as_bytes()),
                Buffer::new(key.as_bytes()),
                &raw mut value,
            )
        };
        found.then_some(value)
    }

    /// Whether a filter wrote dynamic metadata.
    pub fn has_metadata(&self, namespace: &str) -> bool {
        // SAFETY: the stream exists, and the pointer is valid for the call.
        let keys = unsafe {
            raw::envoy_dynamic_module_callback_http_get_metadata_keys_count(
                self.filter,
                raw::DYNAMIC_METADATA,
                Buffer::new(namespace.as_bytes()),
            )
        };
        keys > 0
    }

    /// A text of the filter state.
    pub fn filter_state(&self, key: &str) -> Option<Vec<u8>> {
        let mut value = Buffer::EMPTY;
        // SAFETY: the stream exists, and the pointers are valid for the call.
        let found = unsafe {
            raw::envoy_dynamic_module_callback_http_get_filter_state_bytes(
                self.filter,
                Buffer::new(key.as_bytes()),
                &raw mut value,
            )
        };
        // SAFETY: as for a header.
        found.then(|| unsafe { value.bytes() }.to_vec())
    }

    /// Writes an entry to the filter state, which access logs show as
    /// `%FILTER_STATE(<name>:PLAIN)%`. Envoy keeps the first value of each name.
    pub fn note(&self, entry: &AccessLogEntry<'_>) {
        entry.write(|name, value| {
            // SAFETY: the stream exists, and the pointers are valid for the call. A stream without
            // filter state is not logged.
            let _ = unsafe {
                raw::envoy_dynamic_module_callback_http_set_filter_state_bytes(
                    self.filter,
                    Buffer::new(name.as_bytes()),
                    Buffer::new(value.as_bytes()),
                )
            };
        });
    }

    /// Lets Envoy buffer at least this many bytes of a body, whatever the listener's limit is. An
    /// Envoy without the callback keeps its limit. Envoy takes a limit of 0 as no limit, so it
    /// stays.
    pub fn buffer_at_least(&self, bytes: usize) {
        if !process::has_buffer_limit() {
            return;
        }
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        // SAFETY: the stream exists.
        unsafe {
            let limit = raw::envoy_dynamic_module_callback_http_get_buffer_limit(self.filter);
            if (1..bytes).contains(&limit) {
                raw::envoy_dynamic_module_callback_http_set_buffer_limit(self.filter, bytes);
            }
        }
    }

    /// What [`keep_redirect`](Self::keep_redirect) kept of the request under this name.
    pub fn redirect(&self, name: &str) -> Option<&'h Redirect> {
        if !process::keeps_objects() {
            return None;
        }
        // SAFETY: the stream exists, and the pointer is valid for the call.
        let object = unsafe {
            raw::envoy_dynamic_module_callback_http_get_filter_state_object(
                self.filter,
                Buffer::new(name.as_bytes()),
            )
        };
        // SAFETY: it is null, or it comes from `keep_redirect`, since nobody else uses the name.
        // Envoy destroys it after the last stream of the request, so it outlives the hook.
        unsafe { object.cast::<Redirect>().as_ref() }
    }

    /// Keeps this as long as the request, beyond internal redirects. Drops it if Envoy cannot.
    /// `name` is new to the request.
    pub fn keep_redirect(&self, name: &str, redirect: Box<Redirect>) {
        if !process::keeps_objects() {
            return;
        }
        // SAFETY: the stream exists, and the name is valid for the call. Envoy owns the object from
        // now on. It destroys it once: with the request, or at once if it cannot keep it.
        let _ = unsafe {
            raw::envoy_dynamic_module_callback_http_set_filter_state_object(
                self.filter,
                Buffer::new(name.as_bytes()),
                Box::into_raw(redirect).cast(),
                destroy_redirect,
                raw::LIVES_AS_LONG_AS_REQUEST,
            )
        };
    }

    /// Whether the client speaks gRPC.
    pub fn is_grpc_request(&self) -> bool {
        self.first_header(header_map::REQUEST, "content-type").is_some_and(is_grpc)
    }

    /// Answers the stream instead of its upstream. Envoy calls no response hook of the stream for
    /// this answer.
    pub fn send(&mut self, answer: &Answer<'_>) {
        let for_grpc = self.is_grpc_request().then(|| {
            let status = ("grpc-status", answer.grpc_status.to_string());
            let pushback = answer.pushback.map(|wait| (PUSHBACK, wait.to_string()));
            std::iter::once(status).chain(pushback).collect::<Vec<_>>()
        });
        let for_grpc = for_grpc.iter().flatten().map(|(name, value)| (*name, value.as_str()));
        let headers: Vec<_> = answer
            .headers
            .iter()
            .map(|(name, value)| (*name, &**value))
            .chain(for_grpc)
            .map(|(name, value)| Header {
                name: Buffer::new(name.as_bytes()),
                value: Buffer::new(value.as_bytes()),
            })
            .collect();
        // SAFETY: the stream exists, and the pointers are valid for the call.
        unsafe {
            raw::envoy_dynamic_module_callback_http_send_response(
                self.filter,
                answer.status.into(),
                headers.as_ptr(),
                headers.len(),
                Buffer::new(answer.body.as_bytes()),
                Buffer::new(answer.details.as_bytes()),
            );
        }
    }

    /// Passes the piece of the request's body that has just come, chunk by chunk.
    pub fn request_body(&self, read: impl FnMut(&[u8])) {
        self.body(body::RECEIVED_REQUEST, read);
    }

    /// The same for the response's body.
    pub fn response_body(&self, read: impl FnMut(&[u8])) {
        self.body(body::RECEIVED_RESPONSE, read);
    }

    fn body(&self, body: u32, mut read: impl FnMut(&[u8])) {
        // SAFETY: the stream exists.
        let count = unsafe {
            raw::envoy_dynamic_module_callback_http_get_body_chunks_size(self.filter, body)
        };
        let mut chunks = vec![Buffer::EMPTY; count];
        // SAFETY: the stream exists, and there is room for as many chunks as there are.
        let found = count > 0
            && unsafe {
                raw::envoy_dynamic_module_callback_http_get_body_chunks(
                    self.filter,
                    body,
                    chunks.as_mut_ptr(),
                )
            };
        for chunk in chunks.into_iter().filter(|_| found) {
            // SAFETY: Envoy's chunk is valid until the hook ends.
            read(unsafe { chunk.bytes() });
        }
    }

    /// Whether the stream ends because Envoy redirects its request internally.
    pub fn is_redirected(&self) -> bool {
        self.attribute(attribute::RESPONSE_CODE_DETAILS)
            .is_some_and(|details| details == b"internal_redirect")
    }

    /// Lets the stream's request go on. Envoy may call other hooks of the stream before this
    /// returns.
    pub fn resume_request(&mut self) {
        // SAFETY: the stream exists.
        unsafe { raw::envoy_dynamic_module_callback_http_filter_continue_decoding(self.filter) }
    }

    /// Adds to a counter.
    pub fn add_to_counter(&self, id: usize, labels: &[&str], count: u64) {
        let labels: Vec<_> = labels.iter().map(|label| Buffer::new(label.as_bytes())).collect();
        // SAFETY: the stream exists, and the pointers are valid for the call. The counter was
        // defined with as many labels, or there is none.
        let _ = unsafe {
            raw::envoy_dynamic_module_callback_http_filter_increment_counter(
                self.filter,
                id,
                labels.as_ptr(),
                labels.len(),
                count,
            )
        };
    }
}

/// Envoy destroys what [`Host::keep_redirect`] kept.
///
/// # Safety
/// Called by Envoy, once, with the pointer that it was given.
unsafe extern "C" fn destroy_redirect(object: *mut c_void) {
    // SAFETY: `keep_redirect` made it of such a box, and Envoy does not use it any more.
    drop(unsafe { Box::from_raw(object.cast::<Redirect>()) });
}

impl Handle {
    /// The stream, if it still exists. `current` is the stream whose hook runs, on the same Envoy
    /// worker: so Envoy cannot destroy the other one meanwhile.
    pub fn enter<'h>(&self, _current: &'h mut Host<'_>) -> Option<Host<'h>> {
        let filter = self.0.load(Ordering::Acquire);
        (!filter.is_null()).then_some(Host { filter, hook: PhantomData })
    }

    /// Whether the stream still exists.
    pub fn exists(&self) -> bool {
        !self.0.load(Ordering::Acquire).is_null()
    }

    /// Envoy destroys the stream.
    pub fn forget(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }
}

// SAFETY: Envoy allows `commit` from any thread.
unsafe impl Send for Scheduler {}
// SAFETY: as above; Envoy's scheduler has no state that `commit` changes.
unsafe impl Sync for Scheduler {}

impl Scheduler {
    /// Wakes the stream.
    pub fn commit(&self) {
        // SAFETY: the scheduler lives until it is dropped.
        unsafe {
            raw::envoy_dynamic_module_callback_http_filter_scheduler_commit(self.0, 0);
        }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more.
        unsafe { raw::envoy_dynamic_module_callback_http_filter_scheduler_delete(self.0) }
    }
}
