//! Entry point of the `quorate` binary: everything is in [`quorate::cli`].

use std::{
    alloc::{GlobalAlloc, Layout},
    io::Write,
    process::ExitCode,
};

/// Applying entries and writing the state to disk is mostly allocation (docs/adr/0006).
#[global_allocator]
static ALLOCATOR: Explaining = Explaining(mimalloc::MiMalloc);

/// An allocator that says what to do when there is no memory: the process ends then.
struct Explaining(mimalloc::MiMalloc);

#[expect(unsafe_code, reason = "it passes each call on as it is, and looks at the result")]
unsafe impl GlobalAlloc for Explaining {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the caller.
        explain(unsafe { self.0.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for the caller.
        explain(unsafe { self.0.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for the caller.
        explain(unsafe { self.0.realloc(memory, layout, size) }, size)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as for the caller.
        unsafe { self.0.dealloc(memory, layout) }
    }
}

/// Says that there is no memory. Takes none.
fn explain(memory: *mut u8, bytes: usize) -> *mut u8 {
    if memory.is_null() {
        let said = writeln!(
            std::io::stderr(),
            "quorate: no memory for {bytes} bytes: {}",
            ground::task::MEMORY_REMEDY
        );
        // Without a standard error there is nobody to tell.
        drop(said);
        ground::task::note_want_of_memory();
    }
    memory
}

/// Read here alone and by the compiler, so that another commit compiles this file again and not the
/// library. See CONTRIBUTING.md.
const BUILD: ground::version::Build = ground::version::Build {
    commit: option_env!("QUORATE_COMMIT"),
    date: option_env!("QUORATE_BUILD_DATE"),
};

fn main() -> ExitCode {
    BUILD.set();
    quorate::cli::entry::main()
}
