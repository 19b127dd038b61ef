//! Rows built to be expensive: an adversary's order, ties, values and parameters.

use topmass::{Params, Ties, reference};

use crate::rows::shapes::{self, Source, below, normal, uniform};
use crate::rows::{Rows, of_shape};

/// Rows, and the parameters that they are bad for.
pub struct Candidate {
    pub name: &'static str,
    pub params: Params,
    pub rows: Rows,
}

/// Every candidate at a length.
pub fn candidates(v: usize) -> Vec<Candidate> {
    let p9 = Params::default().with_top_p(0.9);
    let split_ties = p9.with_ties(Ties::LowestIndex);
    let mut all: Vec<Candidate> = [
        ("flat, half is kept", p9, shapes::flat as shapes::Shape),
        ("flat, p = .9999: nearly all is kept", p9.with_top_p(0.9999), shapes::flat),
        ("uniform in [1, 1.24]", p9, shapes::band_at_one),
        ("one ulp apart, shuffled", p9, shapes::one_ulp_apart),
        ("one ulp apart, ascending", p9, sorted_ulps),
        ("one ulp apart, LowestIndex", split_ties, shapes::one_ulp_apart),
        ("all equal", p9, |_, v| vec![1.0; v]),
        ("all equal, LowestIndex", split_ties, |_, v| vec![1.0; v]),
        ("five values", p9, shapes::five_integers),
        ("five values, LowestIndex", split_ties, shapes::five_integers),
        ("two values, the cut among the lower, LowestIndex", split_ties, two_values),
        ("multiples of 1/16, LowestIndex", split_ties, shapes::sixteenths),
        (
            "multiples of 1/16, top-k V/2, LowestIndex",
            split_ties.with_top_k(v as u32 / 2),
            shapes::sixteenths,
        ),
        ("bfloat16", p9, shapes::bf16),
        ("ascending: every block has a new maximum", p9, shapes::ascending),
        ("ascending and flat", p9, ascending_flat),
        ("staircase, each block 80 nats up", p9, staircase),
        ("Zipf", p9, shapes::zipf),
        ("Zipf, p = .999", p9.with_top_p(0.999), shapes::zipf),
        ("geometric", p9, shapes::geometric),
        ("any magnitude", p9, shapes::any_magnitude),
        ("subnormal", p9, shapes::subnormal),
        ("huge", p9, shapes::huge),
        ("masked", p9, shapes::masked),
        ("a spike over a floor", p9, spike),
        ("a spike over a floor, LowestIndex", split_ties, spike),
        ("2,100 tokens of a nucleus, just over the selection", p9, plateau),
        ("a plateau in one place, a sample misses it", p9, hidden_plateau),
        ("a rare heavy tier, a sample misses it", p9, rare_tier),
        ("a sample sees masked tokens only", p9, |rng, v| blind(rng, v, |_| f32::NEG_INFINITY)),
        ("a sample sees a weightless token only", p9, |rng, v| blind(rng, v, |_| -1e4)),
        ("a sample sees the heaviest tokens only", p9, |rng, v| blind(rng, v, |_| 6.0)),
        ("a sample sees no tied token", p9, |rng, v| blind(rng, v, |rng| normal(rng) as f32 - 9.0)),
        ("one-hot and flat in turn", p9, {
            // The sampler guesses from the row before.
            |rng, v| if below(rng, 2) == 0 { shapes::flat(rng, v) } else { one_hot(v) }
        }),
    ]
    .into_iter()
    .map(|(name, params, shape)| Candidate { name, params, rows: of_shape("worst", shape, v) })
    .collect();

    // p is the very mass at which a token's fate turns (but for what f64 can tell), so the scan's
    // bound leaves it open.
    for (name, shape, n) in [
        ("p = the mass of the first 30, fitted", shapes::fitted as shapes::Shape, 30),
        ("p = the mass of the first 3,000, flat", shapes::flat, 3_000),
        ("p = the mass of half of V, one ulp apart", shapes::one_ulp_apart, v as u32 / 2),
    ] {
        let row = shape(&mut shapes::source(3), v);
        let first = Params::default().with_top_k(n);
        let kept = reference::sample(&row, first, &mut shapes::source(0)).expect("a good row");
        let params = p9.with_top_p(kept.retained_mass + 1e-11);
        all.push(Candidate { name, params, rows: Rows::new("worst", v, row) });
    }
    all
}

fn sorted_ulps(rng: &mut Source, v: usize) -> Vec<f32> {
    let mut row = shapes::one_ulp_apart(rng, v);
    row.sort_by(f32::total_cmp);
    row
}

fn two_values(rng: &mut Source, v: usize) -> Vec<f32> {
    (0..v).map(|_| below(rng, 2) as f32 * 0.1).collect()
}

fn ascending_flat(rng: &mut Source, v: usize) -> Vec<f32> {
    let mut row = shapes::flat(rng, v);
    row.sort_by(f32::total_cmp);
    row
}

fn staircase(rng: &mut Source, v: usize) -> Vec<f32> {
    (0..v).map(|i| (i / 1024) as f32 * 80.0 + normal(rng) as f32).collect()
}

/// The spike holds .9 within a rounding.
fn spike(rng: &mut Source, v: usize) -> Vec<f32> {
    let depth = -((v - 1) as f64 * 9.0).ln() as f32;
    let place = below(rng, v);
    (0..v).map(|i| if i == place { 0.0 } else { depth }).collect()
}

fn plateau(rng: &mut Source, v: usize) -> Vec<f32> {
    let share = 2_330.0 / v as f64;
    let high = |rng: &mut Source| uniform(rng) < share;
    (0..v).map(|_| if high(rng) { 12.0 } else { 0.0 } + 0.1 * normal(rng) as f32).collect()
}

fn hidden_plateau(rng: &mut Source, v: usize) -> Vec<f32> {
    let start = below(rng, v - 3_000);
    let high = |i| (start..start + 3_000).contains(&i);
    (0..v).map(|i| if high(i) { 12.0 } else { 0.0 } + normal(rng) as f32).collect()
}

fn rare_tier(rng: &mut Source, v: usize) -> Vec<f32> {
    let mut row = shapes::flat(rng, v);
    for _ in 0..40 {
        let i = below(rng, v);
        row[i] = (v as f32 / 40.0).ln() + 0.01 * normal(rng) as f32;
    }
    row
}

fn one_hot(v: usize) -> Vec<f32> {
    let mut row = vec![-1e30; v];
    row[v / 3] = 0.0;
    row
}

/// Flat and fine-grained, but for the vectors of 16 that `search.rs` samples: 128 of them, evenly
/// spread, at 1/6, 3/6 and 5/6 of the step.
fn blind(rng: &mut Source, v: usize, seen: impl Fn(&mut Source) -> f32) -> Vec<f32> {
    let mut row = shapes::flat(rng, v);
    let step = (v / 16) as f64 / 128.0;
    for part in [1.0, 3.0, 5.0] {
        for i in 0..128 {
            let start = 16 * ((f64::from(i) + part / 6.0) * step) as usize;
            row[start..start + 16].fill_with(|| seen(rng));
        }
    }
    row
}
