//! The literal algorithm in `f64`: softmax, full sort, prefix sum, cut, renormalise, inverse CDF.
//!
//! Dull on purpose. It is the oracle of the tests and the scalar reference of the benchmarks;
//! it allocates, sorts and takes milliseconds. Sums are compensated (Neumaier), so that the order
//! of a quarter of a million terms costs less than the last bits of the answer.

use rand::Rng;

use crate::Error;
use crate::mirostat::{Mirostat, MirostatDraw, SurpriseBase, Version};
use crate::outcome::Draw;
use crate::params::{MassBase, Params, TemperatureAt, Ties};

/// The kept tokens, in index order. `O(V log V)`.
///
/// # Errors
/// The row's or the parameter's fault, see [`Error`].
///
/// ```
/// use topmass::{Params, reference};
/// let logits = [0.4f32.ln(), 0.3f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
/// let kept = reference::kept_set(&logits, Params::default().with_top_p(0.5))?;
/// assert_eq!(kept, [0, 1]); // the token that carries the sum across .5 belongs to the set
/// # Ok::<(), topmass::Error>(())
/// ```
pub fn kept_set(logits: &[f32], params: Params) -> Result<Vec<usize>, Error> {
    Ok(cut(logits, params)?.kept)
}

/// The renormalised probabilities of the kept tokens, 0 elsewhere. `O(V log V)`.
///
/// # Errors
/// As [`kept_set`].
///
/// ```
/// use topmass::{Params, reference};
/// let probs = reference::filter(&[2.0, 2.0, f32::NEG_INFINITY], Params::default())?;
/// assert_eq!(probs, [0.5, 0.5, 0.0]);
/// # Ok::<(), topmass::Error>(())
/// ```
pub fn filter(logits: &[f32], params: Params) -> Result<Vec<f64>, Error> {
    let cut = cut(logits, params)?;
    let mut probs = vec![0.0; logits.len()];
    for (&i, &w) in cut.kept.iter().zip(&cut.weights) {
        probs[i] = w / cut.kept_weight;
    }
    Ok(probs)
}

/// Draws one token, with one `next_u64` (none where greedy). `O(V log V)`.
///
/// # Errors
/// As [`kept_set`]; the rng is then left alone.
///
/// ```
/// use topmass::{Params, reference};
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
/// let draw = reference::sample(&[0.0, 9.0, 0.0], Params::default().with_top_p(0.9), &mut rng)?;
/// assert_eq!((draw.token, draw.kept), (1, 1));
/// # Ok::<(), topmass::Error>(())
/// ```
pub fn sample<R: Rng + ?Sized>(logits: &[f32], params: Params, rng: &mut R) -> Result<Draw, Error> {
    let cut = cut(logits, params)?;
    let u = if params.temperature <= 0.0 { 0.0 } else { uniform(rng) };
    let drawn = inverse_cdf(&cut.weights, cut.kept_weight, u);
    let probability = cut.weights[drawn] / cut.kept_weight;
    // A weight e^z, z with two roundings, is off by as much as z is and one rounding of its own. Over
    // a softmax of N tokens -z is ln N on average at most, as the entropy is (Gibbs); so for sums.
    let depth = -libm::log(cut.weights[drawn]);
    let average = libm::log(logits.len() as f64);
    Ok(Draw {
        token: cut.kept[drawn] as u32,
        probability,
        probability_error: f64::EPSILON * (depth + average + 6.0) * probability,
        kept: cut.kept.len() as u32,
        retained_mass: cut.retained_mass,
        mass_error: f64::EPSILON * (2.0 * average + 6.0) * cut.retained_mass,
    })
}

/// One step of Mirostat, which moves the controller as [`Mirostat::sample`] does. `O(V log V)`.
///
/// # Errors
/// As [`Mirostat::sample`]; the controller and the rng are then left alone.
///
/// ```
/// use topmass::{Mirostat, reference};
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
/// let mut controller = Mirostat::v2(1.0, 0.1);
/// let logits = [0.5f32.ln(), 0.25f32.ln(), 0.15f32.ln(), 0.1f32.ln()];
/// let draw = reference::mirostat(&mut controller, &logits, 1.0, &mut rng)?;
/// assert_eq!(draw.kept, 2); // surprises of 1, 2, 2.7 and 3.3 bits, cut at 2
/// # Ok::<(), topmass::Error>(())
/// ```
pub fn mirostat<R: Rng + ?Sized>(
    controller: &mut Mirostat,
    logits: &[f32],
    temperature: f32,
    rng: &mut R,
) -> Result<MirostatDraw, Error> {
    controller.validate(temperature)?;
    let max = check_row(logits)?;
    if temperature <= 0.0 {
        let argmax = logits.iter().position(|&x| x == max).expect("the maximum is in the row");
        return Ok(controller.drawn(argmax as u32, 1.0, (0.0, 0.0), 1, None));
    }

    // Logarithms of the softmax, most likely first.
    let mut order: Vec<usize> =
        (0..logits.len()).filter(|&i| logits[i] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("no NaN").then(a.cmp(&b)));
    let temperature = f64::from(temperature);
    let w = |i: usize| weight(logits[i], max, temperature);
    let log2_w =
        |i: usize| (f64::from(logits[i]) - f64::from(max)) / temperature * std::f64::consts::LOG2_E;
    let total = sum(order.iter().map(|&i| w(i)));

    let (mut n, zipf_exponent) = match controller.version {
        Version::V1 => {
            let (mut tb, mut bb) = (0.0, 0.0);
            for i in 1..order.len().min(100) {
                let t = (log2_w(order[i - 1]) - log2_w(order[i])) * std::f64::consts::LN_2;
                let b = libm::log((i as f64 + 1.0) / i as f64);
                tb += t * b;
                bb += b * b;
            }
            let s = if order.len() > 1 { tb / bb } else { 0.0 };
            let unmasked = order.len() as f64;
            let eps = s - 1.0;
            // (1 - N^-eps) / eps, in a form that has a value at eps = 0.
            let tail = match eps * libm::log(unmasked) {
                0.0 => libm::log(unmasked),
                x => -libm::expm1(-x) / eps,
            };
            let k = match order.len() {
                1 => 1.0,
                _ if s == 0.0 => unmasked,
                // (2^mu / tail)^(1/s), of logarithms, as 2^mu alone may overflow. Where s is small the
                // tail is near N - 1: 2^mu / (N - 1), divided by tail / (N - 1) without its 1.
                _ if s < 0.5 => {
                    let n = unmasked;
                    let short = n * libm::expm1(-s * libm::log(n)) / (n - 1.0);
                    let ln_share = libm::log1p(short) - libm::log1p(-s);
                    let bits = controller.mu() - libm::log2(n - 1.0);
                    libm::exp((bits * std::f64::consts::LN_2 - ln_share) / s)
                }
                _ => libm::exp((controller.mu() * std::f64::consts::LN_2 - libm::log(tail)) / s),
            };
            (k.round().clamp(1.0, unmasked) as usize, Some(s))
        }
        Version::V2 => {
            let surprise = |i: usize| libm::log2(total) - log2_w(i);
            let n = order.iter().take_while(|&&i| surprise(i) <= controller.mu()).count();
            (n.max(1), None)
        }
    };
    while n < order.len() && logits[order[n]] == logits[order[n - 1]] {
        n += 1;
    }

    let mut kept = order[..n].to_vec();
    kept.sort_unstable();
    let weights: Vec<f64> = kept.iter().map(|&i| w(i)).collect();
    let kept_weight = sum(weights.iter().copied());
    let drawn = inverse_cdf(&weights, kept_weight, uniform(rng));
    let of = match controller.surprise_base() {
        SurpriseBase::Full => total,
        SurpriseBase::Kept => kept_weight,
    };
    let surprise = libm::log2(of) - log2_w(kept[drawn]);
    let probability = weights[drawn] / kept_weight;
    // In nats the sum is off by ln N and three units (see `sample`), in bits by 1.5 times that; of
    // the logarithms, neither above S, one has a rounding and the other four.
    let error = 1.5 * f64::EPSILON * (libm::log(logits.len() as f64) + 4.0 * (1.0 + surprise));
    let surprise = (surprise, error);
    Ok(controller.drawn(kept[drawn] as u32, probability, surprise, n as u32, zipf_exponent))
}

fn uniform<R: Rng + ?Sized>(rng: &mut R) -> f64 {
    (rng.next_u64() >> 11) as f64 * f64::exp2(-53.0)
}

/// The first position at which the sum of weights exceeds `u` times all of them.
fn inverse_cdf(weights: &[f64], all: f64, u: f64) -> usize {
    let mut below = Sum::default();
    let mut drawn = 0;
    for (position, &w) in weights.iter().enumerate() {
        below.add(w);
        if w > 0.0 {
            drawn = position;
            if below.get() > u * all {
                break;
            }
        }
    }
    drawn
}

struct Cut {
    /// Kept indices, ascending, and their weights at the temperature of the draw.
    kept: Vec<usize>,
    weights: Vec<f64>,
    kept_weight: f64,
    retained_mass: f64,
}

fn cut(logits: &[f32], params: Params) -> Result<Cut, Error> {
    params.validate()?;
    let max = check_row(logits)?;
    if params.temperature <= 0.0 {
        let argmax = logits.iter().position(|&x| x == max).expect("the maximum is in the row");
        // At T = 0 all of the mass lies on the maximum: nothing is cut away.
        return Ok(Cut {
            kept: vec![argmax],
            weights: vec![1.0],
            kept_weight: 1.0,
            retained_mass: 1.0,
        });
    }

    // Softmax weights at the temperature of the cut, most likely first, ties by index.
    let temperature = f64::from(params.temperature);
    let cut_temperature = match params.temperature_at {
        TemperatureAt::BeforeCut => temperature,
        TemperatureAt::AfterCut => 1.0,
    };
    let w: Vec<f64> = logits.iter().map(|&x| weight(x, max, cut_temperature)).collect();
    let mut order: Vec<usize> =
        (0..logits.len()).filter(|&i| logits[i] > f32::NEG_INFINITY).collect();
    // No NaN is left, and partial_cmp, unlike total_cmp, calls -0.0 and 0.0 a tie.
    order.sort_by(|&a, &b| logits[b].partial_cmp(&logits[a]).expect("no NaN").then(a.cmp(&b)));
    let together = params.ties == Ties::Together;
    let tied = |order: &[usize], a: usize, b: usize| logits[order[a]] == logits[order[b]];

    // Top-k: the position in the order, or of the first of its ties.
    let total = sum(order.iter().map(|&i| w[i]));
    let mut n_k = order.len();
    if params.top_k > 0 && (params.top_k as usize) < n_k {
        n_k = params.top_k as usize;
        while together && n_k < order.len() && tied(&order, n_k, n_k - 1) {
            n_k += 1;
        }
    }

    // Top-p: keep while the mass before (LowestIndex) or strictly above (Together) is below p.
    let mut n_p = order.len();
    if params.top_p < 1.0 {
        let base = match params.mass_base {
            MassBase::FullRow => total,
            MassBase::TopK => sum(order[..n_k].iter().map(|&i| w[i])),
        };
        let mut above = Sum::default();
        n_p = 0;
        while n_p < order.len() && (n_p == 0 || above.get() < params.top_p * base) {
            let first = n_p;
            while n_p < order.len() && (n_p == first || (together && tied(&order, n_p, first))) {
                above.add(w[order[n_p]]);
                n_p += 1;
            }
        }
    }

    // Min-p: a threshold on the weight, the largest weight being 1.
    let n_min = order.iter().take_while(|&&i| w[i] >= params.min_p).count();

    let mut kept = order[..n_k.min(n_p).min(n_min)].to_vec();
    kept.sort_unstable();
    let unmasked_kept = kept.len() == order.len();
    let retained = sum(kept.iter().map(|&i| w[i]));
    let weights: Vec<f64> = kept.iter().map(|&i| weight(logits[i], max, temperature)).collect();
    Ok(Cut {
        kept_weight: sum(weights.iter().copied()),
        weights,
        kept,
        retained_mass: if unmasked_kept { 1.0 } else { retained / total },
    })
}

fn check_row(logits: &[f32]) -> Result<f32, Error> {
    if logits.is_empty() {
        return Err(Error::EmptyRow);
    }
    if u32::try_from(logits.len()).is_err() {
        return Err(Error::RowTooLong { len: logits.len() });
    }
    let mut max = f32::NEG_INFINITY;
    for (index, &x) in logits.iter().enumerate() {
        if x.is_nan() {
            return Err(Error::NotANumber { index });
        }
        if x == f32::INFINITY {
            return Err(Error::PositiveInfinity { index });
        }
        max = max.max(x);
    }
    if max == f32::NEG_INFINITY { Err(Error::AllMasked) } else { Ok(max) }
}

fn weight(x: f32, max: f32, temperature: f64) -> f64 {
    if x == f32::NEG_INFINITY {
        return 0.0;
    }
    libm::exp((f64::from(x) - f64::from(max)) / temperature)
}

fn sum(terms: impl Iterator<Item = f64>) -> f64 {
    let mut total = Sum::default();
    terms.for_each(|x| total.add(x));
    total.get()
}

/// Neumaier's compensated sum (ZAMM 54, 1974).
#[derive(Default)]
struct Sum {
    sum: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, x: f64) {
        let total = self.sum + x;
        self.lost +=
            if self.sum.abs() >= x.abs() { (self.sum - total) + x } else { (x - total) + self.sum };
        self.sum = total;
    }

    fn get(&self) -> f64 {
        self.sum + self.lost
    }
}
