//! Our own step, by the rule of a peer.

use std::hint::black_box;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{Mirostat, Params, Sampler, SurpriseBase, Tier};

use crate::measure::Job;
use crate::rows::Rows;
use crate::{Case, Rule};

pub enum Ours {
    Params(Params),
    Mirostat(Mirostat),
}

impl Ours {
    pub fn new(case: Case, rule: Rule) -> Ours {
        let (t, k, p, min_p) = match case {
            Case::TopP => (1.0, 0, 0.9, 0.0),
            Case::Chain => (0.8, 40, 0.95, 0.05),
            _ => (0.8, 0, 1.0, 0.0),
        };
        // Theirs are f32.
        let [p32, min_p32] = [p, min_p].map(|x: f64| f64::from(x as f32));
        let mirostat = |controller: Mirostat| {
            let kept = matches!(rule, Rule::LlamaCpp);
            let base = if kept { SurpriseBase::Kept } else { SurpriseBase::Full };
            Ours::Mirostat(controller.with_surprise_base(base))
        };
        let default = Params::default().with_temperature(t).with_top_k(k);
        match (case, rule) {
            (Case::MirostatV1, _) => mirostat(Mirostat::v1(3.0, 0.1)),
            (Case::MirostatV2, _) => mirostat(Mirostat::v2(3.0, 0.1)),
            (_, Rule::Default) => Ours::Params(default.with_top_p(p).with_min_p(min_p)),
            (_, Rule::LlamaCpp) => Ours::Params(Params::llama_cpp(t, k, p32, min_p32)),
            (_, Rule::Candle) => Ours::Params(Params::candle(t, k, p32)),
        }
    }

    pub fn job<'a>(self, name: &str, tier: Tier, rows: &'a Rows) -> Job<'a> {
        let mut sampler = sampler(tier);
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
        match self {
            Ours::Params(params) => Job::new(name, rows, move |i| {
                black_box(sampler.sample(rows.row(i), params, &mut rng).expect("a good row"));
            }),
            Ours::Mirostat(controller) => Job::new(name, rows, move |i| {
                let mut fresh = controller.clone();
                let draw = fresh.sample_with(&mut sampler, rows.row(i), 1.0, &mut rng);
                black_box(draw.expect("a good row"));
            }),
        }
    }

    /// The kept set, in index order.
    pub fn kept(&self, tier: Tier, row: &[f32]) -> Vec<u32> {
        let mut sampler = sampler(tier);
        match self {
            Ours::Params(params) => {
                let mut probs = vec![0.0; row.len()];
                sampler.filter(row, *params, &mut probs).expect("a good row");
                (0..row.len() as u32).filter(|i| probs[*i as usize] > 0.0).collect()
            }
            Ours::Mirostat(controller) => {
                let mut rng = Xoshiro256PlusPlus::seed_from_u64(5);
                let draw = controller.clone().sample_with(&mut sampler, row, 1.0, &mut rng);
                let mut order = row.to_vec();
                order.sort_by(|a, b| b.total_cmp(a));
                let lowest = order[draw.expect("a good row").kept as usize - 1];
                (0..row.len() as u32).filter(|i| row[*i as usize] >= lowest).collect()
            }
        }
    }
}

fn sampler(tier: Tier) -> Sampler {
    Sampler::with_tier(tier).unwrap_or_else(|e| panic!("{e}"))
}
