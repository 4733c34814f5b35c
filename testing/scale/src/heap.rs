//! Bytes on the heap, by thread: what the workers of one run hold while other runs use other
//! threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator, with a count of what each thread has allocated and not freed.
struct Counting;

/// What this thread has allocated and not freed, in requested bytes, without the allocator's own
/// overhead.
pub fn held() -> i64 {
    HELD.get()
}

fn add(bytes: usize) {
    HELD.set(HELD.get().wrapping_add_unsigned(bytes as u64));
}

fn subtract(bytes: usize) {
    HELD.set(HELD.get().wrapping_sub_unsigned(bytes as u64));
}

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing, and a
// cell without a destructor can be used for as long as its thread runs.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        subtract(layout.size());
        add(size);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_count_until_they_are_freed() {
        let before = held();
        let mut bytes = vec![0_u8; 1000];
        assert_eq!(held() - before, 1000);
        bytes.reserve_exact(3000);
        assert_eq!(held() - before, 4000);
        drop(bytes);
        assert_eq!(held(), before);
    }
}
