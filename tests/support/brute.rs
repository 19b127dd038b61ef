//! The order-free rule, said a second time: one token at a time, no sort, `O(V^2)`. Written from
//! the contract, not from `src/reference.rs`.

use topmass::{MassBase, Params, TemperatureAt, Ties};

/// Masses closer than this share of the whole cannot be told apart by `f64`.
const BLUR: f64 = 1e-12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Kept,
    Dropped,
    /// The masses compared agree within [`BLUR`].
    Undecidable,
}

/// `a < b`, unless they are within `blur`.
fn less(a: f64, b: f64, blur: f64) -> Fate {
    if (a - b).abs() <= blur {
        Fate::Undecidable
    } else if a < b {
        Fate::Kept
    } else {
        Fate::Dropped
    }
}

fn weights(logits: &[f32], temperature: f64) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // A masked token weighs nothing, also where -inf / inf is NaN.
    let weight = |x: f32| match x {
        f32::NEG_INFINITY => 0.0,
        x => ((f64::from(x) - f64::from(max)) / temperature).exp(),
    };
    logits.iter().map(|&x| weight(x)).collect()
}

/// The fate of every token of a row without NaN or `+inf`, not all masked.
pub fn fates(logits: &[f32], params: Params) -> Vec<Fate> {
    let v = logits.len();
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if params.temperature <= 0.0 {
        let first = logits.iter().position(|&x| x == max);
        return (0..v).map(|i| if Some(i) == first { Fate::Kept } else { Fate::Dropped }).collect();
    }
    let w = weights(
        logits,
        match params.temperature_at {
            TemperatureAt::BeforeCut => f64::from(params.temperature),
            TemperatureAt::AfterCut => 1.0,
        },
    );
    // Who comes strictly before token i: the rule's only notion of order.
    let before = |j: usize, i: usize| match params.ties {
        Ties::Together => logits[j] > logits[i],
        Ties::LowestIndex => logits[j] > logits[i] || (logits[j] == logits[i] && j < i),
    };
    let in_top_k = |i: usize| {
        let ahead = (0..v).filter(|&j| before(j, i)).count();
        params.top_k == 0 || ahead < params.top_k as usize
    };
    let base: f64 = match params.mass_base {
        MassBase::FullRow => w.iter().sum(),
        MassBase::TopK => (0..v).filter(|&i| in_top_k(i)).map(|i| w[i]).sum(),
    };
    let fate = |i: usize| {
        if logits[i] == f32::NEG_INFINITY || !in_top_k(i) {
            return Fate::Dropped;
        }
        let above: f64 = (0..v).filter(|&j| before(j, i)).map(|j| w[j]).sum();
        let nothing_above = !(0..v).any(|j| before(j, i));
        let by_top_p = if params.top_p >= 1.0 || nothing_above {
            Fate::Kept
        } else {
            less(above, params.top_p * base, BLUR * base)
        };
        let by_min_p = if params.min_p == 0.0 || logits[i] == max {
            Fate::Kept
        } else {
            less(params.min_p, w[i], BLUR * params.min_p)
        };
        match (by_top_p, by_min_p) {
            (Fate::Dropped, _) | (_, Fate::Dropped) => Fate::Dropped,
            (Fate::Kept, Fate::Kept) => Fate::Kept,
            _ => Fate::Undecidable,
        }
    };
    (0..v).map(fate).collect()
}

/// The renormalised probabilities of the tokens kept.
pub fn probabilities(logits: &[f32], params: Params, kept: &[usize]) -> Vec<f64> {
    let mut probs = vec![0.0; logits.len()];
    if params.temperature <= 0.0 {
        probs[kept[0]] = 1.0;
        return probs;
    }
    let w = weights(logits, f64::from(params.temperature));
    let total: f64 = kept.iter().map(|&i| w[i]).sum();
    for &i in kept {
        probs[i] = w[i] / total;
    }
    probs
}

/// The token at `u`: the first whose inclusive sum of probabilities exceeds it. `None` where a
/// sum comes within [`BLUR`] of `u`.
pub fn token(probs: &[f64], u: f64) -> Option<usize> {
    let sum_to = |i: usize| probs[..=i].iter().sum::<f64>();
    let close = (0..probs.len()).any(|i| (sum_to(i) - u).abs() <= BLUR);
    if close { None } else { (0..probs.len()).find(|&i| sum_to(i) > u) }
}
