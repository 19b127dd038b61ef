//! Mirostat against the literal controller, its figures, its degenerate rows, its closed loop.

mod support;

use std::path::Path;

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use support::mirostat::{assert_close, bits, check, on_the_line};
use support::rows::{normal, shuffle, source as rng, uniform as unit};
use support::{Scripted, read_rows, samplers};
use topmass::mirostat::{ZIPF_TOKENS, truncation_k, zipf_exponent};
use topmass::{Error, Mirostat, Sampler, SurpriseBase, reference};

const MASKED: f32 = f32::NEG_INFINITY;
const BASES: [SurpriseBase; 2] = [SurpriseBase::Full, SurpriseBase::Kept];
type Version = fn(f64, f64) -> Mirostat;
const VERSIONS: [Version; 2] = [Mirostat::v1, Mirostat::v2];

/// The committed rows of a real model.
fn real_rows() -> Vec<Vec<f32>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logits");
    ["story.npy", "chat.npy"].iter().flat_map(|name| read_rows(&folder.join(name))).collect()
}

/// `p_i ~ i^-s`, in an order that is not that of the ids.
fn zipf(s: f64, n: usize) -> Vec<f32> {
    let mut row: Vec<f32> = (1..=n).map(|i| (-s * (i as f64).ln()) as f32).collect();
    shuffle(&mut rng(n as u64), &mut row);
    row
}

// ---- figures ----

/// The worked step of the contract: tau = 3, eta = .1, mu = 6, a token of probability .05 drawn.
#[test]
fn a_surprising_token_lowers_mu() {
    for version in VERSIONS {
        let row = [0.05f32, 0.5, 0.3, 0.15].map(f32::ln);
        // u = 0 draws the lowest kept index.
        let draw = version(3.0, 0.1).sample(&row, 1.0, &mut Scripted::new(&[0])).unwrap();
        assert_eq!((draw.token, draw.kept), (0, 4));
        assert_close(draw.surprise_bits, 4.32, 0.005, "surprise");
        assert_close(draw.surprise_bits - 3.0, 1.32, 0.005, "error");
        assert_close(draw.mu, 5.87, 0.005, "mu");
        assert_close(draw.probability, 0.05, 1e-8, "probability");
    }
}

/// Case `mu-persists`: LLamaSharp#71 set mu anew before each token.
#[test]
fn mu_persists() {
    for version in VERSIONS {
        for base in BASES {
            let mut mirostat = version(5.0, 0.1).with_surprise_base(base);
            assert_eq!(mirostat.mu(), 10.0);
            let mut mu = 10.0;
            for step in 1..=5 {
                let draw = mirostat.sample(&[0.0, 0.0], 1.0, &mut rng(step)).unwrap();
                assert_eq!((draw.probability, draw.surprise_bits), (0.5, 1.0));
                mu -= 0.1 * (1.0 - 5.0);
                assert_eq!((draw.mu, mirostat.mu()), (mu, mu));
                if step == 1 {
                    assert!((10.4..=10.8).contains(&mu));
                }
            }
        }
    }
}

#[test]
fn k_is_that_of_the_paper() {
    // To the last figure given: half a unit of the last is the tolerance.
    for (s, mu, k, unit) in [
        (1.2, 4.0, 3.3547, 1e-4),
        (1.5, 4.0, 4.0866, 1e-4),
        (1.2, 6.0, 10.6504, 1e-4),
        (1.5, 6.0, 10.2976, 1e-4),
        (1.2, 10.0, 107.349, 1e-3),
        (1.5, 10.0, 65.3858, 1e-4),
    ] {
        assert_close(truncation_k(s, mu, 1000), k, unit / 2.0, "k");
        // And from probabilities, where s is not given.
        let p: Vec<f64> = (1..=1000).map(|i| f64::from(i).powf(-s) / 7.0).collect();
        assert_close(zipf_exponent(&p), s, 1e-13, "s");
        assert_close(truncation_k(zipf_exponent(&p[..100]), mu, 1000), k, unit / 2.0, "k");
    }
    assert_close(truncation_k(1.2, 6.0, 32_000), 9.4, 0.05, "k");
    assert_eq!(truncation_k(1.2, 6.0, 32_000).round(), 9.0);
}

/// Equal rows but for a hair, at the mu where neither all nor one is kept: `ln k` is a quotient of
/// two numbers near 0. Against the formula in 400 digits.
#[test]
fn k_has_its_digits_near_equal_rows() {
    for (s, mu, vocab, k) in [
        (1e-20, 0.0, 2, 1.471_517_764_685_77),
        (1e-20, 4.0, 17, 7.465_475_887_034_96),
        (f64::exp2(-60.0), 10.0, 1025, 379.637_883_495_562),
        (1e-9, 10.0, 1025, 379.637_883_314_66),
        (1e-9, 4.000_000_001, 17, 14.930_952_626_892_75),
        (0.25, 10.0, 1025, 330.285_471_379_358),
        (0.4999, 3.0, 17, 1.639_979_555_291_34),
        (0.5, 3.0, 17, 1.640_388_203_202_21),
    ] {
        assert_close(truncation_k(s, mu, vocab), k, 1e-13 * k, &format!("{s} {mu} {vocab}"));
    }
}

#[test]
fn k_is_finite_everywhere() {
    // The limit at s = 1, and no jump on either side of it.
    let at_1 = truncation_k(1.0, 6.0, 1000);
    assert_close(at_1, 64.0 / 1000f64.ln(), 1e-12, "s = 1");
    for eps in [1e-16, 1e-15, 1e-12, 1e-9] {
        for s in [1.0 - eps, 1.0 + eps] {
            assert_close(truncation_k(s, 6.0, 1000), at_1, 1e-13 + 40.0 * eps, "s near 1");
        }
    }
    assert_eq!(truncation_k(0.0, 6.0, 1000), 1000.0);
    assert_eq!(truncation_k(-0.5, 6.0, 1000), 1000.0);
    let numbers = [-f64::MAX, -1e9, -10.0, -0.0, 1e-320, 1e-9, 0.5, 1.0, 2.0, 1e9, f64::MAX];
    for s in numbers.into_iter().chain([f64::INFINITY, f64::NEG_INFINITY]) {
        for mu in numbers {
            for vocab in [0, 1, 2, 1000, usize::MAX] {
                let k = truncation_k(s, mu, vocab);
                assert!(k.is_finite() && k >= 0.0, "s {s} mu {mu} N {vocab}: {k}");
                assert!(vocab > 1 || k == 1.0, "s {s} mu {mu} N {vocab}: {k}");
            }
        }
    }
}

#[test]
fn the_exponent_is_that_of_the_first_hundred() {
    assert_eq!(zipf_exponent(&[]), 0.0);
    assert_eq!(zipf_exponent(&[1.0]), 0.0);
    assert_eq!(zipf_exponent(&[0.1; 10]), 0.0);
    // Two tokens: one slope.
    assert_close(zipf_exponent(&[0.8, 0.2]), 4f64.ln() / 2f64.ln(), 1e-15, "two");
    // Masked ones at the end do not count; nor does what lies beyond the hundredth.
    assert_eq!(zipf_exponent(&[0.8, 0.2, 0.0, 0.0]), zipf_exponent(&[0.8, 0.2]));
    let mut p: Vec<f64> = (1..=1000).map(|i| 1.0 / f64::from(i)).collect();
    p[ZIPF_TOKENS..].fill(1e-300);
    assert_close(zipf_exponent(&p), 1.0, 1e-13, "a hundred");
    assert!(zipf_exponent(&[f64::MAX, 5e-324]).is_finite());
    // Ten tokens, by hand: t = ln 2 each, so s = ln 2 sum(b) / sum(b^2), and sum(b) = ln 10.
    let halves: Vec<f64> = (0..10).map(|i| f64::exp2(-f64::from(i))).collect();
    let squares: f64 = (1..10).map(|i| (f64::from(i + 1) / f64::from(i)).ln().powi(2)).sum();
    assert_close(zipf_exponent(&halves), 2f64.ln() * 10f64.ln() / squares, 1e-13, "halves");
}

// ---- degenerate rows ----

/// Case `mirostat-degenerate` and its kind.
#[test]
fn degenerate_rows() {
    let mut three = vec![MASKED; 1000];
    (three[7], three[500], three[999]) = (1.0, 3.0, 2.0);
    let mut one = vec![MASKED; 1000];
    one[998] = -7.0;
    let mut head = vec![0.0; 20_000];
    head[..50].fill(3.0);
    let mut unequal_head = vec![-1.0; 30_000];
    (0..60).for_each(|i| unequal_head[i * 499] = 4.0 - i as f32 / 16.0);
    let mut half_masked = zipf(0.7, 40_000);
    half_masked.iter_mut().step_by(2).for_each(|x| *x = MASKED);
    let zeros: Vec<f32> = (0..1000).map(|i| if i % 2 == 0 { 0.0 } else { -0.0 }).collect();
    let rows: Vec<(&str, Vec<f32>)> = vec![
        ("one token", vec![3.0]),
        ("one of 1,000", one),
        ("two", vec![1.0, 2.0]),
        ("three of 1,000", three),
        ("1,000 equal", vec![0.25; 1000]),
        ("20,000 equal", vec![-3.5; 20_000]),
        ("zeros of both signs", zeros),
        ("50 above 19,950 equal", head),
        ("60 above 29,940 equal", unequal_head),
        ("Zipf 1", zipf(1.0, 1000)),
        ("Zipf 1, long", zipf(1.0, 50_000)),
        ("half masked", half_masked),
        ("exactly 100", zipf(1.1, 100)),
        ("101", zipf(1.1, 101)),
        ("extremes", vec![f32::MAX, f32::MIN, 0.0, 1e-45, -1e-45, f32::MAX, 3.0]),
        ("lowest", vec![f32::MIN; 5000]),
        ("peaked", (0..5000).map(|i| if i == 77 { 50.0 } else { i as f32 / 5000.0 }).collect()),
    ];
    let mut samplers = samplers();
    for (name, row) in &rows {
        let unmasked = row.iter().filter(|&&x| x > MASKED).count();
        let mut mus: &[f64] = &[-3.0, 0.0, 2.0, 6.0, 12.0, 40.0, 3000.0];
        let mut temperatures: &[f32] = &[1.0, 0.3, 8.0, f32::INFINITY, 1e-30, 1e-45, 1e35];
        if row.len() > 10_000 {
            (mus, temperatures) = (&[2.0, 9.0, 40.0], &[1.0, f32::INFINITY]);
        }
        for base in BASES {
            for (v, version) in VERSIONS.into_iter().enumerate() {
                for &mu in mus {
                    for &temperature in temperatures {
                        let mirostat = version(3.0, 0.1).with_mu(mu).with_surprise_base(base);
                        let draw = check(&mut samplers, &mirostat, row, temperature, 5);
                        let kept = draw.kept as usize;
                        assert!((1..=unmasked).contains(&kept), "{name}: {kept}");
                        assert_eq!(draw.zipf_exponent.is_some(), v == 0);
                        if name.contains("equal") && !name.contains("above") {
                            assert_eq!(kept, row.len(), "{name} mu {mu}");
                            assert_close(
                                draw.surprise_bits,
                                (kept as f64).log2(),
                                1e-12,
                                "equal rows",
                            );
                        }
                        if unmasked == 1 {
                            assert_eq!((draw.probability, draw.surprise_bits), (1.0, 0.0));
                        }
                    }
                }
            }
        }
    }
    // Exact Zipf, s = 1: the limit of k.
    let mirostat = Mirostat::v1(3.0, 0.1);
    let draw = check(&mut samplers, &mirostat, &zipf(1.0, 1000), 1.0, 5);
    assert_close(draw.zipf_exponent.unwrap(), 1.0, 1e-5, "s"); // f32 logits
    assert_eq!(f64::from(draw.kept), (64.0 / 1000f64.ln()).round());
}

/// Surprises that are exact: `log2` of 8 equal tokens is 3, and 3 is not above mu = 3.
#[test]
fn version_2_keeps_what_equals_mu() {
    let mut samplers = samplers();
    for base in BASES {
        for (mu, kept) in [(3.0, 8), (3f64.next_down(), 1), (2.9, 1), (4.0, 8)] {
            // Seven below the maximum: ties with it would survive any cut.
            let row = vec![1.0, 1.0 + 4e-7, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
            let mirostat = Mirostat::v2(1.5, 0.1).with_mu(mu).with_surprise_base(base);
            let draw = check(&mut samplers, &mirostat, &row, f32::INFINITY, 3);
            // At T = inf all are equally likely, whatever their logits; none survives below mu = 3
            // but the largest logit.
            assert_eq!(draw.kept, kept, "mu {mu}");
        }
    }
}

// ---- against the literal controller ----

fn random_row(rng: &mut Xoshiro256PlusPlus, v: usize) -> Vec<f32> {
    let width = f64::exp2(8.0 * unit(rng) - 4.0);
    let tied = unit(rng) < 0.3;
    let masked = if unit(rng) < 0.3 { unit(rng) } else { 0.0 };
    let at = rng.next_u64() as usize % v;
    let mut row: Vec<f32> = (0..v)
        .map(|_| {
            let x = normal(rng) * width;
            let x = if tied { x.round().clamp(-2.0, 2.0) } else { x } as f32;
            if unit(rng) < masked { MASKED } else { x }
        })
        .collect();
    row[at] = row[at].max(0.0);
    row
}

fn against_the_literal_controller(rows: &[Vec<f32>], rng: &mut Xoshiro256PlusPlus) -> usize {
    let mut samplers = samplers();
    let mut excluded = 0;
    for (seed, row) in (0..).zip(rows) {
        let temperature = [0.5, 1.0, 2.0, 0.1][rng.next_u64() as usize % 4];
        for (v, version) in VERSIONS.into_iter().enumerate() {
            for base in BASES {
                let mu = unit(rng) * 1.5 * (row.len() as f64).log2() - 0.5;
                let mirostat = version(3.0, 0.1).with_mu(mu).with_surprise_base(base);
                if on_the_line(&mirostat, v == 1, row, temperature) {
                    excluded += 1;
                } else {
                    check(&mut samplers, &mirostat, row, temperature, seed);
                }
            }
        }
    }
    excluded
}

#[test]
fn small_rows_against_the_literal_controller() {
    let mut rng = rng(1);
    let rows: Vec<_> = (0..1500)
        .map(|_| {
            let v = 1 + rng.next_u64() as usize % 39;
            random_row(&mut rng, v)
        })
        .collect();
    let excluded = against_the_literal_controller(&rows, &mut rng);
    println!("{excluded} of 6,000 steps on the line");
    assert!(excluded < 30);
}

#[test]
fn large_rows_against_the_literal_controller() {
    let mut rng = rng(2);
    let sizes = [1000, 4096, 5000, 32_000, 49_152, 128_256];
    let rows: Vec<_> = sizes.iter().cycle().take(24).map(|&v| random_row(&mut rng, v)).collect();
    let excluded = against_the_literal_controller(&rows, &mut rng);
    println!("{excluded} of 96 steps on the line");
    assert!(excluded < 3);
}

#[test]
fn real_rows_against_the_literal_controller() {
    let excluded = against_the_literal_controller(&real_rows(), &mut rng(3));
    assert_eq!(excluded, 0);
}

/// A mu so near to a token's surprise that the f32 normaliser cannot tell the side.
#[test]
fn version_2_is_exact_where_f32_is_not() {
    let mut samplers = samplers();
    let mut rng = rng(4);
    let mut rows = real_rows();
    rows.truncate(3);
    rows.push(random_row(&mut rng, 3000));
    for row in &rows {
        let max = row.iter().copied().fold(MASKED, f32::max);
        let z = |x: f32| f64::from(x) - f64::from(max);
        let total: f64 = row.iter().map(|&x| z(x).exp()).sum();
        let mut sorted = row.clone();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let ranks = [1, 5, 40, 300, 2000];
        for rank in ranks.into_iter().filter(|&rank| sorted[rank - 1] > MASKED) {
            let surprise = total.log2() - z(sorted[rank - 1]) * std::f64::consts::LOG2_E;
            for (side, keeps) in [(1e-10, true), (-1e-10, false)] {
                for base in BASES {
                    let mu = surprise + side;
                    let mirostat = Mirostat::v2(3.0, 0.1).with_mu(mu).with_surprise_base(base);
                    let draw = check(&mut samplers, &mirostat, row, 1.0, 9);
                    let kept = sorted.iter().filter(|&&x| {
                        let cut = sorted[rank - 1];
                        x > cut || (x == cut && (keeps || rank == 1))
                    });
                    assert_eq!(draw.kept as usize, kept.count());
                }
            }
        }
    }
}

/// Many steps: the fast controller and the literal one draw the same tokens, and their `mu` do not
/// drift apart: what a surprise is off by does not add up.
#[test]
fn trajectories_are_the_same() {
    let rows = real_rows();
    for version in VERSIONS {
        for base in BASES {
            let (mut fast, mut fast_rng) = (version(3.0, 0.1).with_surprise_base(base), rng(6));
            let (mut literal, mut literal_rng) = (fast.clone(), fast_rng.clone());
            for row in rows.iter().cycle().take(60) {
                let a = fast.sample(row, 1.3, &mut fast_rng).unwrap();
                let b = reference::mirostat(&mut literal, row, 1.3, &mut literal_rng).unwrap();
                assert_eq!((a.token, a.kept), (b.token, b.kept));
                let off = if base == SurpriseBase::Kept { 1e-13 } else { 3.0 * a.surprise_error };
                assert_close(a.mu, b.mu, off, "mu");
            }
        }
    }
}

// ---- state ----

#[test]
fn sequences_interleave_and_fork() {
    let rows = real_rows();
    for version in VERSIONS {
        for base in BASES {
            let fresh = version(3.0, 0.1).with_surprise_base(base);
            let alone = |seed, sampler: &mut dyn FnMut() -> Sampler| -> Vec<_> {
                let (mut mirostat, mut rng) = (fresh.clone(), rng(seed));
                let step = |row: &Vec<f32>| {
                    mirostat.sample_with(&mut sampler(), row, 1.0, &mut rng).unwrap()
                };
                rows.iter().map(step).map(|draw| bits(&draw)).collect()
            };
            let (a, b) = (alone(1, &mut Sampler::new), alone(2, &mut Sampler::new));

            // Interleaved on one sampler, which has seen a row that leads it astray as well.
            let mut shared = Sampler::new();
            let mut sequences = [(fresh.clone(), rng(1)), (fresh.clone(), rng(2))];
            let mut fork = None;
            for (i, row) in rows.iter().enumerate() {
                for ((mirostat, rng), expected) in sequences.iter_mut().zip([&a, &b]) {
                    fresh
                        .clone()
                        .sample_with(&mut shared, &[0.0; 9000], 5.0, &mut self::rng(i as u64))
                        .unwrap();
                    let draw = mirostat.sample_with(&mut shared, row, 1.0, rng).unwrap();
                    assert_eq!(bits(&draw), expected[i]);
                }
                if i == 6 {
                    fork = Some(sequences[0].clone());
                }
            }
            // A clone goes on from where it was taken.
            let (mut mirostat, mut rng) = fork.unwrap();
            for (row, expected) in rows.iter().zip(&a).skip(7) {
                assert_eq!(bits(&mirostat.sample(row, 1.0, &mut rng).unwrap()), *expected);
            }
            assert_eq!(mirostat, sequences[0].0);
            assert_ne!(mirostat, fresh);
        }
    }
}

#[test]
fn a_refused_row_changes_nothing() {
    let nan = f32::NAN;
    let mut long = vec![0.0; 70_000];
    long[69_999] = nan;
    let rows: &[(&[f32], Error)] = &[
        (&[], Error::EmptyRow),
        (&[MASKED; 40], Error::AllMasked),
        (&[1.0, nan, f32::INFINITY], Error::NotANumber { index: 1 }),
        (&[1.0, f32::INFINITY, nan], Error::PositiveInfinity { index: 1 }),
        (&long, Error::NotANumber { index: 69_999 }),
    ];
    let mut samplers = samplers();
    for version in VERSIONS {
        for base in BASES {
            let mut mirostat = version(3.0, 0.1).with_surprise_base(base);
            let mut rng = rng(8);
            for temperature in [1.0, 0.0, 1e-30] {
                for (row, error) in rows {
                    mirostat.sample(&[1.0, 2.0, 3.0], 1.0, &mut rng).unwrap();
                    let before = (mirostat.clone(), rng.clone());
                    let refused = mirostat.sample(row, temperature, &mut rng);
                    assert_eq!(refused.as_ref(), Err(error));
                    for sampler in &mut samplers {
                        let refused = mirostat.sample_with(sampler, row, temperature, &mut rng);
                        assert_eq!(refused.as_ref(), Err(error));
                    }
                    let refused = reference::mirostat(&mut mirostat, row, temperature, &mut rng);
                    assert_eq!(refused.as_ref(), Err(error));
                    assert_eq!((&mirostat, &rng), (&before.0, &before.1));
                }
            }
        }
    }
}

#[test]
fn bad_parameters_are_named() {
    let (nan, infinity) = (f64::NAN, f64::INFINITY);
    for version in VERSIONS {
        let cases = [
            ("tau", -0.5, version(-0.5, 0.1)),
            ("tau", nan, version(nan, 0.1)),
            ("tau", infinity, version(infinity, 0.1)),
            ("eta", -1e-9, version(3.0, -1e-9)),
            ("eta", nan, version(3.0, nan)),
            ("eta", infinity, version(3.0, infinity)),
            ("mu", nan, version(3.0, 0.1).with_mu(nan)),
            ("mu", infinity, version(3.0, 0.1).with_mu(infinity)),
            ("mu", -infinity, version(3.0, 0.1).with_mu(-infinity)),
        ];
        for (name, value, mut mirostat) in cases {
            let mut rng = rng(1);
            let refused = mirostat.sample(&[1.0, 2.0], 1.0, &mut rng);
            assert_eq!(refused, Err(Error::InvalidParam { name, value }));
            assert_eq!(reference::mirostat(&mut mirostat, &[1.0], 1.0, &mut rng), refused);
            assert_eq!(rng, self::rng(1));
        }
        let refused = version(3.0, 0.1).sample(&[1.0], f32::NAN, &mut rng(1));
        assert_eq!(refused, Err(Error::InvalidParam { name: "temperature", value: nan }));
        // The ends of what is allowed.
        for (tau, eta) in [(0.0, 0.0), (0.0, 0.1), (f64::MAX, 0.1), (3.0, f64::MAX)] {
            let mut mirostat = version(tau, eta);
            for seed in 0..50 {
                let draw = mirostat.sample(&zipf(0.5, 300), 1.0, &mut rng(seed)).unwrap();
                assert!(draw.mu.is_finite());
            }
        }
    }
}

#[test]
fn greedy_is_certain() {
    for version in VERSIONS {
        for base in BASES {
            for temperature in [0.0, -0.0, -1.0, f32::NEG_INFINITY] {
                let mut mirostat = version(3.0, 0.1).with_surprise_base(base);
                let mut rng = rng(1);
                let row = [1.0, 5.0, MASKED, 5.0];
                let draw = mirostat.sample(&row, temperature, &mut rng).unwrap();
                assert_eq!((draw.token, draw.probability, draw.kept), (1, 1.0, 1));
                assert_eq!((draw.surprise_bits, draw.zipf_exponent), (0.0, None));
                assert_eq!(draw.mu, 6.0 - 0.1 * (0.0 - 3.0));
                assert_eq!(rng, self::rng(1));
                let mut literal = version(3.0, 0.1).with_surprise_base(base);
                let expected = reference::mirostat(&mut literal, &row, temperature, &mut rng);
                assert_eq!(Ok(draw), expected);
            }
        }
    }
}

/// The two bases differ by the logarithm of the retained mass.
#[test]
fn bases_differ_by_the_mass() {
    let row = [0.4f32, 0.3, 0.2, 0.06, 0.04].map(f32::ln);
    for version in VERSIONS {
        let draw = |base| {
            let mut mirostat = version(1.2, 0.1).with_surprise_base(base);
            mirostat.sample(&row, 1.0, &mut Scripted::new(&[u64::MAX])).unwrap()
        };
        let [full, kept] = BASES.map(draw);
        assert_eq!((full.token, full.kept), (kept.token, kept.kept));
        assert_eq!(full.kept, 3);
        let mass: f64 = [0.4, 0.3, 0.2].iter().sum();
        let difference = full.surprise_bits - kept.surprise_bits;
        assert_close(difference, -mass.log2(), 1e-6, "log2(1/M)");
        assert_close(kept.surprise_bits, -kept.probability.log2(), 1e-14, "kept");
        assert_close(full.surprise_bits, -(full.probability * mass).log2(), 1e-6, "full");
    }
}

#[cfg(feature = "serde")]
#[test]
fn a_stored_sequence_goes_on() {
    let row = zipf(1.1, 500);
    for version in VERSIONS {
        for base in BASES {
            let mut mirostat = version(3.0, 0.1).with_surprise_base(base);
            mirostat.sample(&row, 1.0, &mut rng(2)).unwrap(); // a mu with all its digits
            let json = serde_json::to_string(&mirostat).unwrap();
            let mut restored: Mirostat = serde_json::from_str(&json).unwrap();
            assert_eq!(mirostat, restored);
            let expected = mirostat.sample(&row, 1.0, &mut rng(3));
            assert_eq!(restored.sample(&row, 1.0, &mut rng(3)), expected);
        }
    }
    assert!(serde_json::from_str::<Mirostat>("{}").is_err());
}

// ---- the closed loop ----

/// Mean surprise of a long text over `rows`.
fn mean_surprise(mirostat: &mut Mirostat, rows: &[Vec<f32>], temperature: f32, n: usize) -> f64 {
    let (mut sampler, mut rng) = (Sampler::new(), rng(11));
    let mut bits = 0.0;
    for row in rows.iter().cycle().take(n) {
        let draw = mirostat.sample_with(&mut sampler, row, temperature, &mut rng).unwrap();
        bits += draw.surprise_bits;
    }
    bits / n as f64
}

/// The surprise of the likeliest token and the mean surprise: the least and the most that a loop
/// can ask of a row.
fn range(row: &[f32], temperature: f32) -> [f64; 2] {
    let max = row.iter().copied().fold(MASKED, f32::max);
    let z = |x: f32| (f64::from(x) - f64::from(max)) / f64::from(temperature);
    let total: f64 = row.iter().map(|&x| z(x).exp()).sum();
    let expected: f64 = row.iter().filter(|&&x| x > MASKED).map(|&x| z(x) * z(x).exp()).sum();
    [total.log2(), total.log2() - expected / total * std::f64::consts::LOG2_E]
}

fn holds_tau(rows: &[Vec<f32>], temperature: f32, tau: f64, n: usize) {
    let ranges = rows.iter().map(|row| range(row, temperature));
    let [least, most] = ranges.reduce(|a, b| [a[0] + b[0], a[1] + b[1]]).unwrap();
    let (least, most) = (least / rows.len() as f64, most / rows.len() as f64);
    assert!(least + 0.2 < tau && tau + 0.2 < most, "T {temperature}: {least} to {most}, tau {tau}");
    for (v, version) in VERSIONS.into_iter().enumerate() {
        for base in BASES {
            let mut mirostat = version(tau, 0.1).with_surprise_base(base);
            let mean = mean_surprise(&mut mirostat, rows, temperature, n);
            println!(
                "v{} {base:?} tau {tau} T {temperature} ({least:.2} to {most:.2}): mean {mean:.4}, \
                 perplexity {:.3} for {:.3}, mu {:.2}",
                v + 1,
                mean.exp2(),
                tau.exp2(),
                mirostat.mu()
            );
            assert_close(mean, tau, 0.05, "mean surprise");
            assert_close(mean.exp2(), tau.exp2(), 0.036 * tau.exp2(), "perplexity");
        }
    }
}

#[test]
fn the_loop_holds_the_surprise_on_real_rows() {
    let rows = real_rows();
    for (tau, temperature) in [(2.0, 1.0), (3.0, 1.2), (5.0, 1.5)] {
        holds_tau(&rows, temperature, tau, 2500);
    }
}

#[test]
fn the_loop_holds_the_surprise_on_synthetic_rows() {
    let mut rng = rng(12);
    for (tau, exponents, width) in [
        (2.0, [1.5, 1.6, 1.7, 1.8], 5.0),
        (3.0, [1.3, 1.4, 1.45, 1.5], 4.0),
        (5.0, [1.0, 1.1, 1.2, 1.3], 2.5),
    ] {
        holds_tau(&exponents.map(|s| zipf(s, 5000)), 1.0, tau, 4000);
        let mut normals = || (0..5000).map(|_| (width * normal(&mut rng)) as f32).collect();
        holds_tau(&[normals(), normals(), normals(), normals()], 1.0, tau, 4000);
    }
}
