//! Mirostat allocates nothing once it has seen rows of the length and the kind.

use allocation_counter::measure;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{Mirostat, Sampler, SurpriseBase};

fn allocations(f: impl FnOnce()) -> u64 {
    measure(f).count_total
}

#[test]
fn no_allocation_after_warm_up() {
    assert!(allocations(|| drop(std::hint::black_box(vec![0u8; 100]))) > 0, "the counter counts");

    let v = 40_000;
    let row = |slope: f32| -> Vec<f32> {
        (0..v).map(|i| -slope * ((i * 7919 % v) as f32 + 1.0).ln()).collect()
    };
    // Steep, flat, equal: whatever is selected, whatever is kept.
    let rows = [row(1.1), row(0.3), vec![1.0; v], row(3.0)];
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    for version in [Mirostat::v1 as fn(f64, f64) -> Mirostat, Mirostat::v2] {
        for base in [SurpriseBase::Full, SurpriseBase::Kept] {
            let fresh = version(3.0, 0.1).with_surprise_base(base);
            let mut sampler = Sampler::new();
            let mut run = |mu: f64, row: &[f32]| {
                let mut mirostat = fresh.clone().with_mu(mu);
                mirostat.sample_with(&mut sampler, row, 1.0, &mut rng).unwrap();
                mirostat.with_mu(mu).sample(row, 1.0, &mut rng).unwrap();
            };
            // The first round is the warm-up; then other tokens are drawn from the same rows.
            for round in 0..3 {
                for (i, row) in rows.iter().enumerate() {
                    for mu in [-2.0, 2.0, 6.0, 9.0, 14.0, 30.0] {
                        let n = allocations(|| run(mu, row));
                        assert!(round == 0 || n == 0, "{fresh:?} row {i} mu {mu}: {n}");
                    }
                }
            }
        }
    }
}
