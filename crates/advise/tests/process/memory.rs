//! The most memory of a run, for any log: every byte of the heap is counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use quotagate_advise::{Advice, Fields, Length, Limits, Options, advise};

const MIB: usize = 1 << 20;
const MEMORY: usize = 16 * MIB;
const THREADS: usize = 2;
/// As `docs/operate/advise.md` says.
const ALLOWED: usize = MEMORY + THREADS * 5 * MIB;

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator, with a count of the bytes that are allocated now and of their maximum.
struct Counting;

fn add(bytes: usize) {
    MOST.fetch_max(HELD.fetch_add(bytes, Relaxed) + bytes, Relaxed);
}

fn subtract(bytes: usize) {
    HELD.fetch_sub(bytes, Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged, and counting allocates nothing.
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
        // While a block moves, both copies are allocated.
        add(size);
        // SAFETY: the caller keeps the contract of `realloc`.
        let block = unsafe { System.realloc(block, layout, size) };
        subtract(layout.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        subtract(layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Writes lines of time, user, cost and duration.
fn write(path: &Path, lines: impl Iterator<Item = (u32, u32, u32, u32)>) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    for (second, user, cost, duration_ms) in lines {
        writeln!(file, "{} {user:x} {cost} {duration_ms}", 1_795_300_000 + second).unwrap();
    }
    file.flush().unwrap();
}

/// The advice, and the most bytes that were allocated for it.
fn run(path: &Path, memory: usize, duration: Option<String>) -> (Advice, usize) {
    let operator = |name: &str| Some(format!("REQ({name})"));
    let options = Options {
        logs: vec![path.to_owned()],
        fields: Fields {
            format: Some("%START_TIME% %REQ(USER)% %REQ(COST)% %DURATION%".to_owned()),
            key: operator("USER"),
            cost: operator("COST"),
            duration,
            ..Fields::default()
        },
        windows: vec![Length::Seconds(1)],
        limits: Limits { users: 0.001, windows: 0.001 },
        memory,
        lateness_s: 1,
        threads: THREADS,
        ..Options::default()
    };
    let before = HELD.load(Relaxed);
    MOST.store(before, Relaxed);
    let advice = advise(&options).unwrap();
    (advice, MOST.load(Relaxed) - before)
}

/// Asserts that a run stays within its bound.
fn bounded(path: &Path) -> Advice {
    let (advice, most) = run(path, MEMORY, None);
    assert!(most <= ALLOWED, "{most} bytes, of {ALLOWED}");
    advice
}

#[test]
fn memory_of_a_run_stays_within_its_bound() {
    let _alone = super::alone();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");

    // Three million users in one window, which need several times the bound.
    write(&path, (0..3_000_000).map(|user| (0, user, 1, 0)));
    let (advice, most) = run(&path, 1 << 30, None);
    assert_eq!((advice.windows[0].users, &advice.windows[0].sample), (3_000_000, &None));
    assert!(most > ALLOWED * 2, "{most}");
    let advice = bounded(&path);
    assert!(advice.windows[0].sample.as_ref().is_some_and(|sample| sample.users > 100_000));

    // A hundred thousand users in thirty windows, each with a count of its own.
    let lines = (0..3_000_000).map(|line| (line / 100_000, line % 100_000, line * 1000, 0));
    write(&path, lines);
    let advice = bounded(&path);
    assert!(advice.windows[0].rounded && advice.windows[0].user_windows > 2_500_000, "{advice:?}");

    // Three million requests of ten thousand users, each of several seconds. Nearly all sums of the
    // costs that run at once differ.
    let cost = |line: u32| 1000 + line.wrapping_mul(0x9e37_79b9) % 100_000;
    let of = |line| (line / 50_000, line % 10_000, cost(line), 1000 + line % 4000);
    write(&path, (0..3_000_000).map(of));
    let (advice, most) = run(&path, MEMORY, Some("DURATION".to_owned()));
    assert!(most <= ALLOWED, "{most} bytes, of {ALLOWED}");
    let in_flight = advice.in_flight.unwrap();
    assert!(in_flight.one_in > 1 && in_flight.requests > 2_000_000, "{in_flight:?}");
    let (advice, _) = run(&path, 1 << 30, Some("DURATION".to_owned()));
    let exact = advice.in_flight.unwrap();
    assert_eq!((exact.one_in, exact.requests, exact.users), (1, 3_000_000, 10_000));
}
