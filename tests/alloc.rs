//! After the first row of a length, a step allocates nothing: counted by the allocator itself.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use topmass::{
    Error, MassBase, NucleusLog, Params, TemperatureAt, Ties, filter_fused, inspect, sample_batch,
    sample_fused,
};

thread_local!(static COUNT: Cell<(usize, usize)> = const { Cell::new((0, 0)) });

struct Counting;

// SAFETY: every call goes to `System` unchanged; counting in a const-initialised thread-local of
// plain numbers neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set((c.get().0 + 1, c.get().1 + layout.size())));
        // SAFETY: the caller keeps the contract of `alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` by `alloc` above, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn params() -> Vec<Params> {
    let p = Params::default();
    vec![
        p.with_top_p(0.9),
        p,
        p.with_temperature(0.0),
        p.with_temperature(1e-30).with_top_p(0.9),
        p.with_top_p(0.999_999_9),
        p.with_top_k(40),
        p.with_top_k(7000).with_ties(Ties::LowestIndex),
        p.with_min_p(0.05),
        p.with_min_p(1e-6),
        p.with_top_k(300).with_top_p(0.8).with_mass_base(MassBase::TopK),
        p.with_temperature(2.0).with_top_p(0.6).with_temperature_at(TemperatureAt::AfterCut),
    ]
}

/// Peaked, flat, tied, one value only, and masked rows.
fn rows(v: usize) -> Vec<Vec<f32>> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
    let mut unit = || (rng.next_u64() >> 40) as f32 / 16_777_216.0;
    let mut row = |f: &dyn Fn(f32) -> f32| (0..v).map(|_| f(unit())).collect();
    vec![
        row(&|u| 20.0 * u * u * u * u),
        row(&|u| u),
        row(&|u| (u * 8.0).floor()),
        row(&|_| 1.0),
        row(&|u| if u < 0.5 { f32::NEG_INFINITY } else { u }),
    ]
}

#[test]
fn after_the_first_row_of_a_length_nothing_is_allocated() {
    for v in [1, 300, 5_000, 49_152, 131_077] {
        let rows = rows(v);
        let mut probs = vec![0.0; v];
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
        let before = COUNT.get();
        sample_fused(&rows[0], params()[0], &mut rng).expect("a good row");
        filter_fused(&rows[0], params()[0], &mut probs).expect("a good row");
        let warm = COUNT.get();
        let scratch = (warm.1 - before.1) as f64 / v as f64;
        println!("V = {v}: scratch {scratch:.2} bytes a logit");
        assert!(v < 20_000 || scratch <= 5.0);
        for row in &rows {
            for p in params() {
                let before = COUNT.get().0;
                for _ in 0..2 {
                    sample_fused(row, p, &mut rng).expect("a good row");
                    filter_fused(row, p, &mut probs).expect("a good row");
                }
                assert_eq!(COUNT.get().0, before, "V = {v}, {p:?}");
            }
        }
    }
}

/// A batch adds nothing to its rows, nor does looking at a step or logging it. (With `rayon`, what
/// other threads allocate is not counted here.)
#[test]
fn batches_and_logs_allocate_nothing() {
    let v = 20_000;
    let logits = rows(v).concat();
    let mut rngs: Vec<_> = (0..5).map(Xoshiro256PlusPlus::seed_from_u64).collect();
    let mut draws = vec![Err(Error::EmptyRow); 5];
    let mut log = NucleusLog::new();
    let mut step = |p: Params| {
        sample_batch(&logits, v, &[p; 5], &mut rngs, &mut draws).expect("lengths fit");
        for (row, draw) in logits.chunks(v).zip(&draws) {
            log.record(draw.as_ref().expect("a good row"));
            inspect(row, p).expect("a good row");
        }
    };
    step(params()[2]);
    for p in params() {
        let before = COUNT.get().0;
        // Enough rows for a sampler to learn from.
        (0..20).for_each(|_| step(p));
        let found = COUNT.get().0 - before;
        println!("{found} allocations in 100 rows of 20 batches");
        assert!(found == 0 || (cfg!(feature = "rayon") && found <= 20), "{found}, {p:?}");
    }
}
