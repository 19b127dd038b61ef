//! The steps that are measured, and the check of each against the literal algorithm.

use std::hint::black_box;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{Error, Mirostat, Params, Sampler, Tier, reference, sample_batch};

use crate::rows::{BATCH, Rows};

/// What is done with a row.
#[derive(Clone, Copy)]
pub enum Step {
    Sample(Params),
    Filter(Params),
    /// Eight rows at once, on the detected tier.
    Batch(Params),
    /// A new controller for each row: one that runs on would wind up on rows that never reach its
    /// target, and cut nothing in the end.
    Mirostat(fn(f64, f64) -> Mirostat),
}

/// Top-k 40, then top-p .95 and min-p .05, at T = .8.
pub fn chain() -> Params {
    let params = Params::default().with_temperature(0.8);
    params.with_top_k(40).with_top_p(0.95).with_min_p(0.05)
}

pub fn cases() -> Vec<(&'static str, Step)> {
    let p = Params::default();
    let chain_of_top_k = chain().with_mass_base(topmass::MassBase::TopK);
    vec![
        ("greedy", Step::Sample(p.with_temperature(0.0))),
        ("temperature 1", Step::Sample(p)),
        ("temperature .7", Step::Sample(p.with_temperature(0.7))),
        ("top-p .9", Step::Sample(p.with_top_p(0.9))),
        ("top-p .9 at T .7", Step::Sample(p.with_top_p(0.9).with_temperature(0.7))),
        ("top-p .9 at T 1.5", Step::Sample(p.with_top_p(0.9).with_temperature(1.5))),
        ("top-k 40, top-p .95, min-p .05, T .8", Step::Sample(chain())),
        ("the same, p of the top-k mass", Step::Sample(chain_of_top_k)),
        ("top-k 40", Step::Sample(p.with_top_k(40))),
        ("min-p .05", Step::Sample(p.with_min_p(0.05))),
        ("Mirostat v1, tau 3", Step::Mirostat(Mirostat::v1)),
        ("Mirostat v2, tau 3", Step::Mirostat(Mirostat::v2)),
        ("filter_fused, top-p .9", Step::Filter(p.with_top_p(0.9))),
        ("batch of 8, top-p .9", Step::Batch(p.with_top_p(0.9))),
    ]
}

fn source() -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(9)
}

/// A sampler of a tier that this CPU has.
pub fn sampler(tier: Tier) -> Sampler {
    Sampler::with_tier(tier).unwrap_or_else(|e| panic!("{e}"))
}

impl Step {
    pub fn at_once(self) -> usize {
        if matches!(self, Step::Batch(_)) { BATCH } else { 1 }
    }

    /// A batch takes the detected tier and no other.
    pub fn runs_on(self, tier: Tier) -> bool {
        tier == Tier::detected() || !matches!(self, Step::Batch(_))
    }

    /// The step on the row (or the eight rows) from a given one.
    pub fn run(self, tier: Tier, rows: &Rows) -> Box<dyn FnMut(usize) + '_> {
        let mut sampler = sampler(tier);
        let mut rng = source();
        match self {
            Step::Sample(params) => Box::new(move |i| {
                let draw = sampler.sample(rows.row(i), params, &mut rng);
                black_box(draw.expect("a good row"));
            }),
            Step::Filter(params) => {
                let mut probs = vec![0.0; rows.v];
                Box::new(move |i| {
                    let kept = sampler.filter(rows.row(i), params, &mut probs);
                    black_box((kept.expect("a good row"), &mut probs));
                })
            }
            Step::Batch(params) => {
                let mut rngs = [(); BATCH].map(|()| source());
                let mut draws = vec![Err(Error::EmptyRow); BATCH];
                Box::new(move |i| {
                    let logits = rows.rows(i, BATCH);
                    sample_batch(logits, rows.v, &[params; BATCH], &mut rngs, &mut draws)
                        .expect("lengths that fit");
                    black_box(&mut draws);
                })
            }
            Step::Mirostat(new) => Box::new(move |i| {
                let mut controller = new(3.0, 0.1);
                let draw = controller.sample_with(&mut sampler, rows.row(i), 1.0, &mut rng);
                black_box(draw.expect("a good row"));
            }),
        }
    }

    /// The first `n` rows against the reference.
    ///
    /// # Panics
    /// Where the answers differ.
    pub fn check(self, tier: Tier, rows: &Rows, n: usize) {
        let mut sampler = sampler(tier);
        let (mut a, mut b) = (source(), source());
        for i in 0..n {
            let (row, name) = (rows.row(i), rows.name());
            match self {
                Step::Sample(params) => {
                    let fast = sampler.sample(row, params, &mut a).expect("a good row");
                    let slow = reference::sample(row, params, &mut b).expect("a good row");
                    assert_eq!((fast.token, fast.kept), (slow.token, slow.kept), "{name} {i}");
                }
                Step::Filter(params) => {
                    let mut probs = vec![0.0; rows.v];
                    sampler.filter(row, params, &mut probs).expect("a good row");
                    let slow = reference::filter(row, params).expect("a good row");
                    let close = |(&fast, &slow): (&f32, &f64)| {
                        (f64::from(fast) - slow).abs() <= 2e-7 * slow
                    };
                    assert!(probs.iter().zip(&slow).all(close), "{name} {i}");
                }
                Step::Batch(params) => {
                    let (mut rngs, mut draws) = ([a.clone()], [Err(Error::EmptyRow)]);
                    sample_batch(row, rows.v, &[params], &mut rngs, &mut draws).expect("it fits");
                    let [a] = draws.map(|draw| draw.expect("a good row"));
                    let slow = reference::sample(row, params, &mut b.clone()).expect("a good row");
                    assert_eq!((a.token, a.kept), (slow.token, slow.kept), "{name} {i}");
                }
                Step::Mirostat(new) => {
                    let (mut fast, mut slow) = (new(3.0, 0.1), new(3.0, 0.1));
                    let fast = fast.sample_with(&mut sampler, row, 1.0, &mut a);
                    let slow = reference::mirostat(&mut slow, row, 1.0, &mut b);
                    let pair = [fast, slow].map(|draw| draw.expect("a good row"));
                    let [fast, slow] = pair.map(|draw| (draw.token, draw.kept));
                    assert_eq!(fast, slow, "{name} {i}");
                }
            }
        }
    }
}
