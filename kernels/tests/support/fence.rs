//! An electric fence: an allocator that lays what is allocated against pages that may not be
//! touched, so that a load or a store one byte too far ends the process.
//!
//! ```text
//! Side::Before    no access | allocation......... | no access
//! Side::After     no access | .........allocation | no access
//! ```
//! An address is handed out once: what was freed cannot be touched either. It lies here because all
//! `unsafe` of the project lies in `kernels/`; the test that uses it is the root's `tests/memory.rs`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Where the forbidden pages touch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// Nowhere: the system allocates.
    Neither,
    /// The first byte.
    Before,
    /// The last byte, as far as the alignment lets it.
    After,
}

/// Fences what is allocated inside of [`fenced`], and is the system's allocator elsewhere.
pub struct Fence;

/// A multiple of every page size in use.
const PAGE: usize = 1 << 16;
/// Addresses that Linux gives to nobody who does not ask for them, on a CPU with 47 bits of them.
const ARENA: Range<usize> = 0x0800_0000_0000..0x1000_0000_0000;
/// The first one that was never handed out.
static NEXT: AtomicUsize = AtomicUsize::new(ARENA.start);
static SIDE: AtomicU8 = AtomicU8::new(Side::Neither as u8);

/// Runs `f`, everything that the process then allocates being fenced. One at a time. A panic leaves
/// the fence up.
pub fn fenced<T>(side: Side, f: impl FnOnce() -> T) -> T {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    SIDE.store(side as u8, Relaxed);
    let result = f();
    SIDE.store(Side::Neither as u8, Relaxed);
    result
}

/// Whether a load from there would go well, as the kernel says when it is asked to do it.
pub fn readable(at: *const u8) -> bool {
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    // SAFETY: `write` reads one byte, with no effect but an error where it may not be read.
    let written = unsafe { libc::write(writer.as_raw_fd(), at.cast(), 1) };
    let error = std::io::Error::last_os_error().raw_os_error();
    assert!(written == 1 || error == Some(libc::EFAULT), "{error:?}");
    written == 1
}

// SAFETY: a block is memory of the system's allocator, or part of a mapping of its own, that is as
// large and as aligned as the layout asks for. Nothing here unwinds.
unsafe impl GlobalAlloc for Fence {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let side = SIDE.load(Relaxed);
        if side == Side::Neither as u8 || layout.align() > PAGE {
            // SAFETY: the caller keeps the contract of `alloc`, which is that of `System`.
            return unsafe { System.alloc(layout) };
        }
        let room = layout.size().next_multiple_of(PAGE);
        let at = NEXT.fetch_add(room + 2 * PAGE, Relaxed);
        let (none, all) = (libc::PROT_NONE, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: without MAP_FIXED a new mapping replaces none.
        let mapping = unsafe { libc::mmap(at as *mut _, room + 2 * PAGE, none, flags, -1, 0) };
        let inside = mapping.wrapping_byte_add(PAGE);
        // SAFETY: these are pages of the mapping just made, which nobody else knows of.
        if mapping.addr() != at || unsafe { libc::mprotect(inside, room, all) } != 0 {
            return null_mut();
        }
        let slack = if side == Side::After as u8 { room - layout.size() } else { 0 };
        inside.wrapping_byte_add(slack / layout.align() * layout.align()).cast()
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if !ARENA.contains(&block.addr()) {
            // SAFETY: `block` lies outside of the arena, so it came from `System` with this layout.
            return unsafe { System.dealloc(block, layout) };
        }
        let slack = block.addr() % PAGE;
        let mapping = block.wrapping_byte_sub(slack + PAGE);
        let room = (slack + layout.size()).next_multiple_of(PAGE);
        // SAFETY: this is the whole mapping that `alloc` made for `block`, which nobody uses now.
        unsafe { libc::munmap(mapping.cast(), room + 2 * PAGE) };
    }
}
