//! The choices that engines make silently: each combination against the reference, and each preset
//! on rows where the choices part ways.

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{MassBase, Params, Sampler, TemperatureAt, Tier, Ties, reference};

type Source = Xoshiro256PlusPlus;

fn samplers() -> Vec<Sampler> {
    Tier::available().into_iter().map(|tier| Sampler::with_tier(tier).unwrap()).collect()
}

fn uniform(rng: &mut Source) -> f64 {
    (rng.next_u64() >> 11) as f64 * f64::exp2(-53.0)
}

fn pick<T: Copy>(rng: &mut Source, from: &[T]) -> T {
    from[(uniform(rng) * from.len() as f64) as usize]
}

fn normal(rng: &mut Source) -> f32 {
    ((0..12).map(|_| uniform(rng)).sum::<f64>() - 6.0) as f32
}

/// The tokens kept, on every tier and by the reference, which must agree.
fn kept(logits: &[f32], params: Params) -> Vec<usize> {
    let expected = reference::kept_set(logits, params).unwrap();
    for mut sampler in samplers() {
        let mut probs = vec![f32::NAN; logits.len()];
        let count = sampler.filter(logits, params, &mut probs).unwrap().kept;
        let found: Vec<usize> = (0..logits.len()).filter(|&i| probs[i] > 0.0).collect();
        assert_eq!(found, expected, "{}: {params:?}", sampler.tier());
        assert_eq!(count as usize, expected.len());
    }
    expected
}

fn ln(weights: &[f32]) -> Vec<f32> {
    weights.iter().map(|w| w.ln()).collect()
}

/// `e^2 : e : 1` is .665, .245, .090; at T = 2 it is .506, .307, .186.
#[test]
fn temperature_before_or_after_the_cut() {
    let row = [2.0, 1.0, 0.0];
    let params = Params::default().with_temperature(2.0).with_top_p(0.6);
    assert_eq!(kept(&row, params), [0, 1]);
    assert_eq!(kept(&row, params.with_temperature_at(TemperatureAt::AfterCut)), [0]);

    assert_eq!(kept(&row, Params::hugging_face(2.0, 0, 0.6, 0.0)), [0, 1]);
    assert_eq!(kept(&row, Params::vllm(2.0, 0, 0.6, 0.0)), [0, 1]);
    assert_eq!(kept(&row, Params::candle(2.0, 0, 0.6)), [0, 1]);
    assert_eq!(kept(&row, Params::llama_cpp(2.0, 0, 0.6, 0.0)), [0]);
    // Min-p sees the temperature, or not: exp(-1) = .37, exp(-1/2) = .61.
    assert_eq!(kept(&row, Params::hugging_face(2.0, 0, 1.0, 0.5)), [0, 1]);
    assert_eq!(kept(&row, Params::vllm(2.0, 0, 1.0, 0.5)), [0, 1]);
    assert_eq!(kept(&row, Params::llama_cpp(2.0, 0, 1.0, 0.5)), [0]);
}

/// Of the row, .2 is less than half; of the top two, it is two thirds.
#[test]
fn mass_of_the_row_or_of_the_top_k() {
    let row = ln(&[&[0.2, 0.1][..], &[0.01; 70]].concat());
    let params = Params::default().with_top_k(2).with_top_p(0.5);
    assert_eq!(kept(&row, params), [0, 1]);
    assert_eq!(kept(&row, params.with_mass_base(MassBase::TopK)), [0]);

    assert_eq!(kept(&row, Params::hugging_face(1.0, 2, 0.5, 0.0)), [0]);
    assert_eq!(kept(&row, Params::vllm(1.0, 2, 0.5, 0.0)), [0]);
    assert_eq!(kept(&row, Params::llama_cpp(1.0, 2, 0.5, 0.0)), [0]);
    assert_eq!(kept(&row, Params::candle(1.0, 2, 0.5)), [0, 1]);
}

#[test]
fn ties_together_or_by_index() {
    let row = [1.0, 3.0, 2.0, 2.0, 2.0];
    let params = Params::default().with_top_k(2);
    assert_eq!(kept(&row, params), [1, 2, 3, 4]);
    assert_eq!(kept(&row, params.with_ties(Ties::LowestIndex)), [1, 2]);

    assert_eq!(kept(&row, Params::hugging_face(1.0, 2, 1.0, 0.0)), [1, 2, 3, 4]);
    assert_eq!(kept(&row, Params::vllm(1.0, 2, 1.0, 0.0)), [1, 2, 3, 4]);
    assert_eq!(kept(&row, Params::llama_cpp(1.0, 2, 1.0, 0.0)), [1, 2]);
    assert_eq!(kept(&row, Params::candle(1.0, 2, 1.0)), [1, 2]);

    // Ties at top-p's boundary: .4 + .2 reaches .5.
    let row = ln(&[0.2, 0.4, 0.2, 0.2]);
    let params = Params::default().with_top_p(0.5);
    assert_eq!(kept(&row, params), [0, 1, 2, 3]);
    assert_eq!(kept(&row, params.with_ties(Ties::LowestIndex)), [0, 1]);
    assert_eq!(kept(&row, Params::candle(1.0, 0, 0.5)), [0, 1]);
}

/// `top_p = 0` keeps the first token in most engines, and everything in candle.
#[test]
fn no_mass_at_all() {
    let row = [1.0, 3.0, 2.0];
    assert_eq!(kept(&row, Params::hugging_face(1.0, 0, 0.0, 0.0)), [1]);
    assert_eq!(kept(&row, Params::llama_cpp(1.0, 0, 0.0, 0.0)), [1]);
    assert_eq!(kept(&row, Params::candle(1.0, 0, 0.0)), [0, 1, 2]);
    assert_eq!(kept(&row, Params::candle(1.0, 2, 0.0)), [1, 2]);
    assert!(Params::candle(1.0, 2, f64::NAN).validate().is_err());
}

/// Every combination of the choices, on random rows of every shape, on every tier.
#[test]
fn every_combination_against_the_reference() {
    let mut rng = Source::seed_from_u64(77);
    let mut samplers = samplers();
    let mut compared = 0;
    let mut undecidable = 0;
    for round in 0..if cfg!(debug_assertions) { 120 } else { 1200 } {
        let vocab = pick(&mut rng, &[1, 2, 5, 16, 39, 300, 1100, 3000]);
        let shape = round % 4;
        let scale = pick(&mut rng, &[0.05, 1.0, 4.0]);
        let mut logits: Vec<f32> = (0..vocab)
            .map(|_| match shape {
                // Ties among few values; among many; none; some masked.
                0 => (uniform(&mut rng) * 5.0).floor() as f32,
                1 => (scale * normal(&mut rng) * 8.0).round() / 8.0,
                _ => scale * normal(&mut rng),
            })
            .collect();
        if shape == 3 {
            logits.iter_mut().skip(1).step_by(3).for_each(|x| *x = f32::NEG_INFINITY);
        }
        let base = Params::default()
            .with_temperature(pick(&mut rng, &[0.3, 1.0, 1.0, 2.5]))
            .with_top_p(pick(&mut rng, &[0.05, 0.5, 0.9, 0.99, 1.0]))
            .with_top_k(pick(&mut rng, &[0, 1, 3, 20, 500]))
            .with_min_p(pick(&mut rng, &[0.0, 0.0, 0.01, 0.3]));
        for ties in [Ties::Together, Ties::LowestIndex] {
            for mass_base in [MassBase::FullRow, MassBase::TopK] {
                for temperature_at in [TemperatureAt::BeforeCut, TemperatureAt::AfterCut] {
                    let params = base
                        .with_ties(ties)
                        .with_mass_base(mass_base)
                        .with_temperature_at(temperature_at);
                    let expected = reference::filter(&logits, params).unwrap();
                    let moved = |by: f64| {
                        let params = params.with_top_p(params.top_p + by);
                        reference::kept_set(&logits, params).unwrap().len()
                    };
                    // Where a nudge of p moves the set, f64 cannot tell who is right.
                    if params.top_p < 1.0 && moved(-1e-12) != moved(1e-12) {
                        undecidable += 1;
                        continue;
                    }
                    let seed = rng.next_u64();
                    let rng = || Source::seed_from_u64(seed);
                    let by_reference = reference::sample(&logits, params, &mut rng()).unwrap();
                    let mut first = None;
                    compared += 1;
                    for sampler in &mut samplers {
                        let mut probs = vec![f32::NAN; vocab];
                        let kept = sampler.filter(&logits, params, &mut probs).unwrap();
                        for (i, (&p, &e)) in probs.iter().zip(&expected).enumerate() {
                            let close = (f64::from(p) - e).abs() <= 2e-7 * e;
                            assert!(close, "{} {params:?} token {i}: {p} {e}", sampler.tier());
                        }
                        let off = (kept.retained_mass - by_reference.retained_mass).abs();
                        assert!(off <= kept.mass_error + by_reference.mass_error, "{params:?}");
                        let draw = sampler.sample(&logits, params, &mut rng()).unwrap();
                        assert_eq!(draw.token, by_reference.token, "{params:?}");
                        assert_eq!(draw, *first.get_or_insert(draw), "{}", sampler.tier());
                    }
                }
            }
        }
    }
    println!("{compared} rows compared, {undecidable} at the boundary excluded");
    assert!(undecidable * 10 < compared);
}
