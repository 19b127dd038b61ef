//! After warm-up nothing allocates. A file of its own: the allocator counts for the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{Error, NucleusLog, Params, Sampler, inspect, sample_batch, sample_fused};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the promises of `dealloc`, and `alloc` asked the system.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the promises of `realloc`, and `alloc` asked the system.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    f();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// Rows from peaked to flat: every path of the search is taken.
fn logits(rows: usize, vocab: usize) -> Vec<f32> {
    (0..rows * vocab)
        .map(|i| {
            let (row, at) = (i / vocab, i as u32 % vocab as u32);
            let unit = at.wrapping_mul(2_654_435_769) as f32 / u32::MAX as f32;
            unit * [0.01, 3.0, 12.0, 40.0][row % 4]
        })
        .collect()
}

// One test: what another thread allocates would be counted too.
#[test]
fn nothing_allocates_after_warm_up() {
    let (rows, vocab) = (32, 20_000);
    let logits = logits(rows, vocab);
    let params: Vec<Params> = (0..rows)
        .map(|i| {
            let params = Params::default().with_temperature([1.0, 0.0, 0.7][i % 3]);
            params.with_top_p([0.9, 1.0, 0.999, 0.5][i / 4 % 4]).with_top_k([0, 50][i / 16])
        })
        .collect();
    let mut rngs: Vec<_> = (0..rows as u64).map(Xoshiro256PlusPlus::seed_from_u64).collect();
    let mut draws = vec![Err(Error::EmptyRow); rows];
    let mut log = NucleusLog::new();
    log.record(&sample_fused(&[0.0], Params::default(), &mut rngs[0].clone()).unwrap());

    let mut batch = || {
        sample_batch(&logits, vocab, &params, &mut rngs, &mut draws).unwrap();
        draws.iter().flatten().for_each(|draw| log.record(draw));
    };
    // One row of the length is warm-up enough, even one that needs next to nothing.
    let greedy = Params::default().with_temperature(0.0);
    inspect(&logits[..vocab], greedy).unwrap();
    if cfg!(feature = "rayon") {
        batch(); // starts the threads
    }
    let calls = 50;
    let counted = allocations(|| (0..calls).for_each(|_| batch()));
    println!("{counted} allocations in {} rows of {calls} batches", calls * rows);
    #[cfg(not(feature = "rayon"))]
    assert_eq!(counted, 0);
    // Rayon's queue now and then, and threads that see their first row; nothing per row.
    #[cfg(feature = "rayon")]
    assert!(counted < calls + 50 * rayon::current_num_threads());

    let mut sampler = Sampler::new();
    sampler.inspect(&logits[..vocab], greedy).unwrap();
    let mut probs = vec![0.0; vocab];
    let mut all = || {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        for (row, &params) in logits.chunks(vocab).zip(&params) {
            sampler.sample(row, params, &mut rng).unwrap();
            sampler.filter(row, params, &mut probs).unwrap();
            sampler.inspect(row, params).unwrap();
            inspect(row, params).unwrap();
        }
    };
    assert_eq!(allocations(|| (0..10).for_each(|_| all())), 0);
}
