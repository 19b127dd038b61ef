//! Rows of logits: seeded, one function a kind.

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{MassBase, Params, TemperatureAt, Ties};

pub type Source = Xoshiro256PlusPlus;

pub fn source(seed: u64) -> Source {
    Source::seed_from_u64(seed)
}

/// In `[0, 1)`.
pub fn uniform(rng: &mut Source) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// In `0..n`.
pub fn below(rng: &mut Source, n: usize) -> usize {
    (uniform(rng) * n as f64) as usize
}

pub fn pick<T: Copy>(rng: &mut Source, from: &[T]) -> T {
    from[below(rng, from.len())]
}

/// Standard normal, by Box and Muller.
pub fn normal(rng: &mut Source) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(rng)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(rng)).cos()
}

pub fn shuffle<T>(rng: &mut Source, items: &mut [T]) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(rng, i + 1));
    }
}

fn row(v: usize, value: impl FnMut(usize) -> f32) -> Vec<f32> {
    (0..v).map(value).collect()
}

/// N(0, 1): flat, half of the row is kept.
pub fn flat(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| normal(rng) as f32)
}

/// Rows fitted to a real model: the recipe at the end of `logits/README.md`.
pub fn fitted(rng: &mut Source, v: usize) -> Vec<f32> {
    let mut model = source(2024); // `b` is fixed per model
    let a = 0.165 * (0.28 * normal(rng)).exp();
    let mean = 2.5 + 3.3 * normal(rng);
    let mut logits = row(v, |_| {
        let z = 0.65f64.sqrt() * normal(&mut model) + 0.35f64.sqrt() * normal(rng);
        (mean + 4.0 * (z + a * (z - 1.5).max(0.0).powi(2))) as f32
    });
    if uniform(rng) < 0.25 {
        let top = (0..v).max_by(|&i, &j| logits[i].total_cmp(&logits[j])).expect("not empty");
        logits[top] -= (2.5 * (1.0 - uniform(rng)).ln()) as f32;
    }
    logits
}

/// Many ties: multiples of 1/16.
pub fn sixteenths(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| ((normal(rng) * 32.0).round() / 16.0) as f32)
}

/// Five values.
pub fn five_integers(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| below(rng, 5) as f32)
}

/// Every logit one unit in the last place from the next.
pub fn one_ulp_apart(rng: &mut Source, v: usize) -> Vec<f32> {
    let first = pick(rng, &[1.0f32, 10.0, 16.0, 0.001]).to_bits();
    let mut logits = row(v, |i| f32::from_bits(first + i as u32));
    shuffle(rng, &mut logits);
    logits
}

pub fn ascending(rng: &mut Source, v: usize) -> Vec<f32> {
    let mut logits = fitted(rng, v);
    logits.sort_by(f32::total_cmp);
    logits
}

pub fn descending(rng: &mut Source, v: usize) -> Vec<f32> {
    let mut logits = ascending(rng, v);
    logits.reverse();
    logits
}

/// Rounded (down) to bfloat16: 8 bits of significand, so ties abound.
pub fn bf16(rng: &mut Source, v: usize) -> Vec<f32> {
    fitted(rng, v).iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
}

pub fn band_at_one(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| (1.0 + 0.2449 * uniform(rng)) as f32)
}

pub fn band_at_ten(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| (10.0 + 0.1999 * uniform(rng)) as f32)
}

/// Probabilities `1/i^s`, shuffled.
pub fn zipf(rng: &mut Source, v: usize) -> Vec<f32> {
    let s = pick(rng, &[1.0, 1.2, 1.5]);
    let mut logits = row(v, |i| (-s * ((i + 1) as f64).ln()) as f32);
    shuffle(rng, &mut logits);
    logits
}

/// Probabilities `r^i`, shuffled: the far tail underflows.
pub fn geometric(rng: &mut Source, v: usize) -> Vec<f32> {
    let r = pick(rng, &[0.6f64, 0.95, 0.999]);
    let mut logits = row(v, |i| (i as f64 * r.ln()) as f32);
    shuffle(rng, &mut logits);
    logits
}

/// A grammar's mask: `-inf` at most places, but not at all.
pub fn masked(rng: &mut Source, v: usize) -> Vec<f32> {
    let share = pick(rng, &[0.3, 0.9, 0.999]);
    let mut logits = if uniform(rng) < 0.5 { fitted(rng, v) } else { five_integers(rng, v) };
    let spared = below(rng, v);
    for (i, x) in logits.iter_mut().enumerate() {
        if i != spared && uniform(rng) < share {
            *x = f32::NEG_INFINITY;
        }
    }
    logits
}

pub fn all_equal(rng: &mut Source, v: usize) -> Vec<f32> {
    vec![pick(rng, &[0.0, 7.25, -1e30, f32::MIN, f32::MAX, f32::MIN_POSITIVE / 8.0]); v]
}

/// Subnormals of both signs.
pub fn subnormal(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| f32::from_bits(below(rng, 0x0080_0000) as u32 | (below(rng, 2) as u32) << 31))
}

/// Values of both signs up to the largest `f32`: differences overflow it.
pub fn huge(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| match below(rng, 8) {
        0 => f32::MAX,
        1 => f32::MIN,
        2 => 1e38,
        _ => (normal(rng) * 1e37) as f32,
    })
}

/// `-0.0` and `0.0` are a tie.
pub fn signed_zeros(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| pick(rng, &[0.0, -0.0, 0.0, -0.0, -1.0, -1e-40]))
}

/// One token ahead of a flat floor, whose mass is in its number.
pub fn spike(rng: &mut Source, v: usize) -> Vec<f32> {
    let depth = pick(rng, &[-3.0, -12.0, -18.0, -90.0]);
    let place = below(rng, v);
    row(v, |i| if i == place { 0.0 } else { depth })
}

/// Magnitudes from 2^-126 to 2^126.
pub fn any_magnitude(rng: &mut Source, v: usize) -> Vec<f32> {
    row(v, |_| {
        f32::from_bits((below(rng, 253) as u32 + 1) << 23 | (rng.next_u64() as u32 & 0x807f_ffff))
    })
}

pub type Shape = fn(&mut Source, usize) -> Vec<f32>;

/// Every kind of row, with its name.
pub const SHAPES: &[(&str, Shape)] = &[
    ("fitted", fitted),
    ("flat", flat),
    ("sixteenths", sixteenths),
    ("five_integers", five_integers),
    ("one_ulp_apart", one_ulp_apart),
    ("ascending", ascending),
    ("descending", descending),
    ("bf16", bf16),
    ("band_at_one", band_at_one),
    ("band_at_ten", band_at_ten),
    ("zipf", zipf),
    ("geometric", geometric),
    ("masked", masked),
    ("all_equal", all_equal),
    ("subnormal", subnormal),
    ("huge", huge),
    ("signed_zeros", signed_zeros),
    ("spike", spike),
    ("any_magnitude", any_magnitude),
];

/// The named choices, each the default or the other.
pub fn with_choices(params: Params, [ties, mass_base, temperature_at]: [bool; 3]) -> Params {
    let or = usize::from;
    params
        .with_ties([Ties::Together, Ties::LowestIndex][or(ties)])
        .with_mass_base([MassBase::FullRow, MassBase::TopK][or(mass_base)])
        .with_temperature_at(
            [TemperatureAt::BeforeCut, TemperatureAt::AfterCut][or(temperature_at)],
        )
}

/// The named choices, at random.
pub fn choices(rng: &mut Source, params: Params) -> Params {
    let mut either = || pick(rng, &[false, true]);
    with_choices(params, [either(), either(), either()])
}

/// Parameters for a row of `v`: the common ones mostly, each rarer one often enough.
pub fn params(rng: &mut Source, v: usize) -> Params {
    let temperature = match below(rng, 8) {
        0 => 0.1 + 5.0 * uniform(rng) as f32,
        1 => pick(rng, &[0.0, 1e-3, 40.0, f32::INFINITY]),
        _ => pick(rng, &[0.3, 0.7, 1.0, 1.5, 3.0]),
    };
    let top_p = match below(rng, 3) {
        0 => 0.05 + 0.95 * uniform(rng),
        1 => pick(rng, &[0.5, 0.9, 0.95, 0.99]),
        _ => pick(rng, &[1.0, 1.0, 0.9999, 0.999_999_9, 1e-8]),
    };
    let mut params = Params::default().with_temperature(temperature).with_top_p(top_p);
    if below(rng, 3) == 0 {
        let most = pick(rng, &[v, v.min(60)]);
        params.top_k = 1 + below(rng, most) as u32;
    }
    if below(rng, 4) == 0 {
        params.min_p = 10f64.powf(-8.0 * uniform(rng));
    }
    if below(rng, 2) == 0 { params } else { choices(rng, params) }
}
