//! Counts what a thread allocates. It is the allocator of this test binary alone, and adds to
//! numbers of the thread that asks, so that tests that run beside it do not count.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ops::AddAssign,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static TAKEN: Cell<Allocations> = const { Cell::new(Allocations { count: 0, bytes: 0 }) };
    static LIVE_BYTES: Cell<i64> = const { Cell::new(0) };
}

/// What was allocated. A block that grows counts once more, with the bytes that it grows by.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Allocations {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl AddAssign for Allocations {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

/// What this thread allocates while it does something, with what that returns.
pub(crate) fn count<T>(work: impl FnOnce() -> T) -> (T, Allocations) {
    let before = TAKEN.get();
    let value = work();
    let after = TAKEN.get();
    let (count, bytes) = (after.count - before.count, after.bytes - before.bytes);
    (value, Allocations { count, bytes })
}

/// Bytes that this thread has allocated and not freed, less those of other threads that it freed.
pub(crate) fn live_bytes() -> i64 {
    LIVE_BYTES.get()
}

struct Counting;

fn size_of(layout: Layout) -> i64 {
    i64::try_from(layout.size()).unwrap_or(i64::MAX)
}

/// The numbers have no destructor, so they are there for as long as the thread is.
fn taken(bytes: i64) {
    let mut sum = TAKEN.get();
    sum += Allocations { count: 1, bytes: u64::try_from(bytes).unwrap_or(0) };
    TAKEN.set(sum);
    LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
}

#[expect(unsafe_code, reason = "it passes each call on as it is, and counts it")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(size_of(layout));
        // SAFETY: as for the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(size_of(layout));
        // SAFETY: as for the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        taken(i64::try_from(size).unwrap_or(i64::MAX) - size_of(layout));
        // SAFETY: as for the caller.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - size_of(layout));
        // SAFETY: as for the caller.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[test]
fn allocations_of_this_thread_are_counted_and_no_others() {
    let before = live_bytes();
    let (kept, taken) = count(|| {
        drop(Vec::<u8>::with_capacity(100));
        Vec::<u8>::with_capacity(1000)
    });
    assert_eq!(taken, Allocations { count: 2, bytes: 1100 });
    assert_eq!(live_bytes() - before, 1000);
    drop(kept);
    assert_eq!(live_bytes(), before);
    let (other, taken) = count(|| std::thread::spawn(|| drop(Vec::<u8>::with_capacity(1 << 20))));
    other.join().expect("it only allocates");
    assert!(taken.bytes < 1 << 20, "{taken:?}");
}
