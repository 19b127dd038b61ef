//! Draws in number: they follow the distribution they are drawn from.

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{Params, Sampler, reference};

/// As many draws as the contract asks for, or in a debug build, which takes forty microseconds for
/// the shortest row, a twentieth.
const fn draws(full: usize) -> usize {
    if cfg!(debug_assertions) { full / 20 } else { full }
}

type Source = Xoshiro256PlusPlus;

fn ln(weights: &[f32]) -> Vec<f32> {
    weights.iter().map(|w| w.ln()).collect()
}

/// How often each token is drawn.
fn tally(logits: &[f32], params: Params, draws: usize, rng: &mut impl Rng) -> Vec<u64> {
    let mut counts = vec![0; logits.len()];
    let mut sampler = Sampler::new();
    for _ in 0..draws {
        counts[sampler.sample(logits, params, rng).unwrap().token as usize] += 1;
    }
    counts
}

/// Half the sum of the differences between shares and probabilities.
fn total_variation(counts: &[u64], probs: &[f64]) -> f64 {
    let n = counts.iter().sum::<u64>() as f64;
    counts.iter().zip(probs).map(|(&c, p)| (c as f64 / n - p).abs()).sum::<f64>() / 2.0
}

/// `next_u64` at evenly spaced `u`, the middles of `n` equal parts of `[0, 1)`.
struct Even {
    next: u64,
    n: u64,
}

impl rand::TryRng for Even {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        unreachable!("the contract draws with next_u64")
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        let u = (self.next as f64 + 0.5) / self.n as f64;
        self.next += 1;
        Ok(((u * f64::exp2(53.0)) as u64) << 11)
    }

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
        unreachable!("the contract draws with next_u64")
    }
}

#[test]
fn four_hundred_thousand_draws_of_a_filtered_row() {
    let draws = draws(400_000);
    for (weights, p, kept) in [
        ([0.30, 0.25, 0.25, 0.12, 0.08], 0.6, 3),
        ([0.50, 0.41, 0.05, 0.03, 0.01], 0.9, 2),
        ([0.40, 0.30, 0.15, 0.10, 0.05], 0.9, 4),
    ] {
        let row = ln(&weights);
        let params = Params::default().with_top_p(p);
        let probs = reference::filter(&row, params).unwrap();
        assert_eq!(probs.iter().filter(|&&p| p > 0.0).count(), kept);

        let random = tally(&row, params, draws, &mut Source::seed_from_u64(400));
        let even = tally(&row, params, draws, &mut Even { next: 0, n: draws as u64 });
        for counts in [&random, &even] {
            let filtered = counts.iter().zip(&probs).filter(|(_, p)| **p == 0.0);
            assert_eq!(filtered.map(|(c, _)| c).sum::<u64>(), 0, "a filtered token was drawn");
        }
        // The mean of |share - p| is sqrt(2 p (1 - p) / (pi n)) for independent draws.
        let mean = |p: &f64| (2.0 * p * (1.0 - p) / (std::f64::consts::PI * draws as f64)).sqrt();
        let expected = probs.iter().map(mean).sum::<f64>() / 2.0;
        let (random, even) = (total_variation(&random, &probs), total_variation(&even, &probs));
        println!(
            "{kept} of 5 tokens, {draws} draws: total variation {random:.2e} (expected {expected:.2e}), at even u {even:.2e}"
        );
        assert!(random < 3.0 * expected);
        assert!(even <= kept as f64 / draws as f64, "the mapping of u is off: {even}");
    }
}

/// Chi-square over bins of at least `5` expected draws, as deviations from its mean.
fn chi_square(counts: &[u64], probs: &[f64]) -> (f64, f64) {
    let n = counts.iter().sum::<u64>() as f64;
    let (mut chi, mut bins) = (0.0, 0.0);
    let (mut count, mut expected) = (0.0, 0.0);
    for (&c, &p) in counts.iter().zip(probs) {
        count += c as f64;
        expected += p * n;
        if expected >= 5.0 {
            chi += (count - expected) * (count - expected) / expected;
            bins += 1.0;
            (count, expected) = (0.0, 0.0);
        }
    }
    let freedom: f64 = bins - 1.0;
    (chi, (chi - freedom) / (2.0 * freedom).sqrt())
}

#[test]
fn chi_square_on_flat_and_peaked_rows() {
    let draws = draws(100_000);
    let rows: [(&str, Vec<f32>, Params); 5] = [
        ("equal, all kept", vec![0.25; 1000], Params::default()),
        (
            "nearly flat, p = .9",
            (0..3000).map(|i| ((i * 37) % 3000) as f32 * 1e-4).collect(),
            Params::default().with_top_p(0.9),
        ),
        (
            "Zipf 1.2, p = .95",
            (1..5000).map(|i| -1.2 * (i as f32).ln()).collect(),
            Params::default().with_top_p(0.95),
        ),
        (
            "geometric .6, T = 1.5",
            (0..200).map(|i| i as f32 * 0.6f32.ln()).collect(),
            Params::default().with_temperature(1.5),
        ),
        (
            "Zipf 1.5, k = 40 as llama.cpp, T = 2",
            (1..2000).map(|i| -1.5 * (i as f32).ln()).collect(),
            Params::llama_cpp(2.0, 40, 0.95, 0.0),
        ),
    ];
    for (i, (name, row, params)) in rows.into_iter().enumerate() {
        let probs = reference::filter(&row, params).unwrap();
        let counts = tally(&row, params, draws, &mut Source::seed_from_u64(i as u64));
        assert!(counts.iter().zip(&probs).all(|(&c, &p)| c == 0 || p > 0.0));
        let (chi, sigmas) = chi_square(&counts, &probs);
        println!("{name}: chi-square {chi:.1}, {sigmas:+.2} sigma");
        assert!(sigmas.abs() < 4.5, "{name}: {sigmas}");
    }
}

/// The case `24-bit-uniform` (vllm#51367): each token of the tail has 1.5e-8, less than a step of
/// a 24-bit uniform; together they have 1.97e-3.
#[test]
fn a_long_tail_is_drawn() {
    let mut row = vec![-18.0; 129_280];
    row[0] = 0.0;
    let draws = draws(100_000);
    let weight = (-18.0f64).exp() * 129_279.0;
    let share = weight / (1.0 + weight);
    assert!((share - 1.97e-3).abs() < 5e-6);
    let counts = tally(&row, Params::default(), draws, &mut Source::seed_from_u64(24));
    let found = 1.0 - counts[0] as f64 / draws as f64;
    let sigma = (share * (1.0 - share) / draws as f64).sqrt();
    println!("tail share {found:.3e} of {draws} draws, expected {share:.3e}");
    assert!((found - share).abs() < 4.0 * sigma);
    // From all over the tail.
    let halves = counts[1..].chunks(64_640).map(|half| half.iter().sum::<u64>());
    assert!(halves.clone().count() == 2 && halves.min() > Some(0));
}
