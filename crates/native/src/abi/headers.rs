//! Header maps of Envoy's, read whole. Names and values stay in Envoy's memory.

use std::cell::Cell;

use super::raw::{self, Buffer, FilterPtr, Header};

/// The headers of a map, until one of them changes.
#[derive(Debug)]
pub struct HeaderMap<'h>(Vec<Header<'h>>);

/// How many headers the memory that a thread keeps has room for at most.
const MAX_SCRATCH: usize = 128;

const NO_HEADER: Header<'static> = Header { name: Buffer::EMPTY, value: Buffer::EMPTY };

thread_local! {
    /// Memory for the next map.
    static SCRATCH: Cell<Vec<Header<'static>>> = const { Cell::new(Vec::new()) };
}

impl<'h> HeaderMap<'h> {
    /// The headers of a map of the stream `filter`. Empty if it has no such map.
    ///
    /// # Safety
    /// The stream exists, and no header of the map changes, for `'h`.
    pub(super) unsafe fn read(filter: FilterPtr, map: u32) -> Self {
        // SAFETY: the stream exists, by the caller's contract.
        let count =
            unsafe { raw::envoy_dynamic_module_callback_http_get_headers_size(filter, map) };
        let mut headers: Vec<Header<'h>> = SCRATCH.take();
        headers.reserve(count);
        let memory = headers.as_mut_ptr();
        // SAFETY: as above, and there is room for as many headers as there are. On success Envoy
        // has written all of them.
        unsafe {
            if raw::envoy_dynamic_module_callback_http_get_headers(filter, map, memory) {
                headers.set_len(count);
            }
        }
        Self(headers)
    }

    /// The name of each header, in lower case.
    pub fn names(&self) -> impl Iterator<Item = &'h [u8]> {
        // SAFETY: Envoy's buffers are valid for `'h`.
        self.0.iter().map(|header| unsafe { header.name.bytes() })
    }

    /// The values of the header of this lower-case name, in their order.
    pub fn values(&self, name: &str) -> impl Iterator<Item = &'h [u8]> {
        let named = self.names().zip(&self.0).filter(move |(known, _)| *known == name.as_bytes());
        // SAFETY: as above.
        named.map(|(_, header)| unsafe { header.value.bytes() })
    }
}

impl Drop for HeaderMap<'_> {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.0);
        memory.clear();
        if memory.capacity() <= MAX_SCRATCH {
            // No header stays, so this only takes the memory over.
            SCRATCH.set(memory.into_iter().map(|_| NO_HEADER).collect());
        }
    }
}
