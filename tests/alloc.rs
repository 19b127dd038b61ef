//! After the first row of a length, a step allocates nothing: counted by the allocator itself, on
//! the thread that asks.

use allocation_counter::measure;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use topmass::{
    Error, MassBase, NucleusLog, Params, Sampler, TemperatureAt, Ties, filter_fused, inspect,
    sample_batch, sample_fused,
};

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
        let mut step = |row: &[f32], p: Params| {
            sample_fused(row, p, &mut rng).expect("a good row");
            filter_fused(row, p, &mut probs).expect("a good row");
        };
        let warm_up = measure(|| step(&rows[0], params()[0]));
        let scratch = warm_up.bytes_total as f64 / v as f64;
        println!("V = {v}: scratch {scratch:.2} bytes a logit");
        assert!(v > 1 || warm_up.count_total > 0, "the counter counts");
        assert!(v < 20_000 || scratch <= 5.0);
        for row in &rows {
            for p in params() {
                let found = measure(|| (0..2).for_each(|_| step(row, p)));
                assert_eq!(found.count_total, 0, "V = {v}, {p:?}");
            }
        }
        // The same with scratch of its own.
        let mut sampler = Sampler::new();
        let mut step = |row: &[f32], p: Params| {
            sampler.sample(row, p, &mut rng).expect("a good row");
            sampler.filter(row, p, &mut probs).expect("a good row");
        };
        let warm_up = measure(|| step(&rows[0], params()[0]));
        assert!(warm_up.count_total > 0, "a new sampler has no scratch yet");
        for row in &rows {
            for p in params() {
                let found = measure(|| step(row, p));
                assert_eq!(found.count_total, 0, "V = {v}, {p:?}");
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
        // Some rows, which may take other ways than the first.
        let found = measure(|| (0..20).for_each(|_| step(p))).count_total;
        println!("{found} allocations in 100 rows of 20 batches");
        assert!(found == 0 || (cfg!(feature = "rayon") && found <= 20), "{found}, {p:?}");
    }
}
