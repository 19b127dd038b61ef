//! Mirostat: a controller that holds the surprise of a text at a target, token by token.
//!
//! Basu, Ramachandran, Keskar and Varshney, "Mirostat: A Neural Text Decoding Algorithm that
//! Directly Controls Perplexity", ICLR 2021 (arXiv 2007.14966). A fixed top-p or top-k lets the
//! surprise of a long text drift: down into repetition ("the boredom trap") or up into incoherence
//! ("the confusion trap"). Mirostat cuts each row at a surprise `mu` instead, and moves `mu`
//! against the error it sees:
//!
//! ```text
//! S  = -log2 P(token)           surprise of the drawn token, in bits
//! mu = mu - eta * (S - tau)     target tau in bits, learning rate eta; mu starts at 2 * tau
//! ```
//! Summed over a text of `n` tokens, `mean S = tau + (mu_first - mu_last) / (eta * n)`: as long as
//! `mu` stays in bounds the mean surprise tends to `tau`, and the perplexity to `2^tau`. It does so
//! where `tau` lies between what the rows have to give at least (the surprise of their likeliest
//! tokens) and at most (their entropy in bits, at the temperature used), on the average. Outside,
//! `mu` runs away, down with only the likeliest token kept or up with everything kept, and is as
//! long on its way back.
//!
//! **Version 2** cuts at `mu` itself: it keeps the tokens with `-log2 P_i <= mu`, at least the
//! likeliest and its ties. `P` is the full softmax, `-log2 P_i = log2 Z + (max x - x_i) / (T ln 2)`,
//! so the rule is a threshold on the logit.
//!
//! **Version 1** (the paper's Algorithm 1) takes the row for Zipf's law, `p_i ~ i^-s`, estimates `s`
//! from the `m = 100` likeliest tokens ([`zipf_exponent`]) and keeps the top `k` of which such a
//! law would have the wanted surprise ([`truncation_k`]); ties together, so that a row of equals
//! keeps all of them.
//!
//! ```
//! use topmass::Mirostat;
//! use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
//! let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
//! let mut mirostat = Mirostat::v2(3.0, 0.1); // one for each sequence
//! let logits: Vec<f32> = (1..=1000).map(|rank| -1.1 * (rank as f32).ln()).collect();
//! let mut bits = 0.0;
//! for _ in 0..2000 {
//!     bits += mirostat.sample(&logits, 1.0, &mut rng)?.surprise_bits;
//! }
//! assert!((bits / 2000.0 - 3.0).abs() < 0.05);
//! # Ok::<(), topmass::Error>(())
//! ```

use rand::Rng;
use topmass_kernels::draw::kept_masses;
use topmass_kernels::scan::{Exponential, Scanned};
use topmass_kernels::select::pack;
use topmass_kernels::{Cut, Scale};

use crate::Error;
use crate::params::Params;
use crate::sampler::{Sampler, Survivors, lowest_passing, uniform, with_thread_sampler};
use crate::search::{Boundary, Place, RATIO_ERROR, Rule, Search};

/// Of how many of the likeliest tokens the Zipf exponent is estimated (the paper's `m`).
///
/// ```
/// assert_eq!(topmass::mirostat::ZIPF_TOKENS, 100);
/// ```
pub const ZIPF_TOKENS: usize = 100;

/// Of which distribution the surprise of a drawn token is taken.
///
/// ```
/// use topmass::SurpriseBase;
/// assert_eq!(SurpriseBase::default(), SurpriseBase::Full);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum SurpriseBase {
    /// The full softmax: what the model said (the paper).
    #[default]
    Full,
    /// The kept tokens, renormalised: what was drawn from (llama.cpp). Less than the other by
    /// `log2(1/M)`, `M` being the mass kept.
    Kept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) enum Version {
    V1,
    V2,
}

/// The controller of one sequence: its target, and where it stands.
///
/// Cloning forks the sequence. With the feature `serde` it can be stored and resumed, as exactly as
/// the format keeps an `f64` (`serde_json` needs its feature `float_roundtrip` for the last bit). See
/// the [module](self) for the algorithm.
///
/// ```
/// use topmass::{Mirostat, SurpriseBase};
/// let mirostat = Mirostat::v1(5.0, 0.1).with_surprise_base(SurpriseBase::Kept);
/// assert_eq!((mirostat.tau(), mirostat.eta(), mirostat.mu()), (5.0, 0.1, 10.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Mirostat {
    pub(crate) version: Version,
    tau: f64,
    eta: f64,
    mu: f64,
    surprise_base: SurpriseBase,
}

/// One token drawn by [`Mirostat`].
///
/// ```
/// use topmass::Mirostat;
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
/// let draw = Mirostat::v2(3.0, 0.1).sample(&[0.0; 4], 1.0, &mut rng)?;
/// assert_eq!((draw.kept, draw.probability, draw.surprise_bits), (4, 0.25, 2.0));
/// assert_eq!(draw.mu, 6.0 - 0.1 * (2.0 - 3.0));
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct MirostatDraw {
    /// The token's index in the row.
    pub token: u32,
    /// Its probability among the kept tokens (they sum to 1).
    pub probability: f64,
    /// Its surprise `S` in bits, by the controller's [`SurpriseBase`].
    pub surprise_bits: f64,
    /// Proved absolute bound on `surprise_bits`: below 2e-6 where `f32` can count the exponents,
    /// near 1e-13 with [`SurpriseBase::Kept`].
    pub surprise_error: f64,
    /// How many tokens were kept.
    pub kept: u32,
    /// The exponent `s` that version 1 estimated; `None` from version 2 and where greedy.
    pub zipf_exponent: Option<f64>,
    /// Where the controller stands after this token, in bits.
    pub mu: f64,
}

impl Mirostat {
    /// Version 1: `k` from a Zipf estimate. `tau` in bits, from 0; `eta` from 0, often .1. What
    /// they are is checked when a row is sampled.
    ///
    /// ```
    /// use topmass::{Error, Mirostat};
    /// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
    /// let refused = Mirostat::v1(-3.0, 0.1).sample(&[1.0, 2.0], 1.0, &mut rng);
    /// assert_eq!(refused, Err(Error::InvalidParam { name: "tau", value: -3.0 }));
    /// ```
    #[must_use]
    pub fn v1(tau: f64, eta: f64) -> Self {
        Mirostat::new(Version::V1, tau, eta)
    }

    /// Version 2: a threshold on the surprise. Parameters as for [`v1`](Self::v1).
    ///
    /// ```
    /// use topmass::Mirostat;
    /// assert_eq!(Mirostat::v2(3.0, 0.1).mu(), 6.0);
    /// ```
    #[must_use]
    pub fn v2(tau: f64, eta: f64) -> Self {
        Mirostat::new(Version::V2, tau, eta)
    }

    fn new(version: Version, tau: f64, eta: f64) -> Self {
        let mu = finite(2.0 * tau);
        Mirostat { version, tau, eta, mu, surprise_base: SurpriseBase::Full }
    }

    /// Sets of which distribution the surprise is taken.
    ///
    /// ```
    /// use topmass::{Mirostat, SurpriseBase};
    /// let mirostat = Mirostat::v2(3.0, 0.1).with_surprise_base(SurpriseBase::Kept);
    /// assert_eq!(mirostat.surprise_base(), SurpriseBase::Kept);
    /// ```
    #[must_use]
    pub fn with_surprise_base(self, surprise_base: SurpriseBase) -> Self {
        Mirostat { surprise_base, ..self }
    }

    /// Sets where the controller stands, in bits: to resume a sequence.
    ///
    /// ```
    /// use topmass::Mirostat;
    /// assert_eq!(Mirostat::v2(3.0, 0.1).with_mu(4.5).mu(), 4.5);
    /// ```
    #[must_use]
    pub fn with_mu(self, mu: f64) -> Self {
        Mirostat { mu, ..self }
    }

    /// The surprise aimed at, in bits a token.
    ///
    /// ```
    /// assert_eq!(topmass::Mirostat::v2(3.0, 0.1).tau(), 3.0);
    /// ```
    #[must_use]
    pub fn tau(&self) -> f64 {
        self.tau
    }

    /// How much of an error is corrected at once.
    ///
    /// ```
    /// assert_eq!(topmass::Mirostat::v2(3.0, 0.1).eta(), 0.1);
    /// ```
    #[must_use]
    pub fn eta(&self) -> f64 {
        self.eta
    }

    /// Where the controller stands: the surprise in bits at which it cuts the next row.
    ///
    /// ```
    /// assert_eq!(topmass::Mirostat::v2(3.0, 0.1).mu(), 6.0);
    /// ```
    #[must_use]
    pub fn mu(&self) -> f64 {
        self.mu
    }

    /// Of which distribution the surprise is taken.
    ///
    /// ```
    /// use topmass::{Mirostat, SurpriseBase};
    /// assert_eq!(Mirostat::v2(3.0, 0.1).surprise_base(), SurpriseBase::Full);
    /// ```
    #[must_use]
    pub fn surprise_base(&self) -> SurpriseBase {
        self.surprise_base
    }

    /// Draws one token from one row of logits, and moves `mu`.
    ///
    /// Keeps its scratch per thread, and allocates nothing once that is large enough. `O(V)`, no
    /// sort of the row. Draws one `next_u64` from `rng`, none where `temperature <= 0`. The
    /// token and the kept set are those of [`reference::mirostat`](crate::reference::mirostat) for
    /// the same `mu` and the same `rng`; the bits of every field are the same on every CPU.
    ///
    /// With [`SurpriseBase::Full`] the surprise is `log2` of a normaliser summed in `f32`, within
    /// [`surprise_error`](MirostatDraw::surprise_error), about a millionth of a bit. `mu` takes
    /// that over: it moves within `eta * surprise_error` of where it should. Such errors do not
    /// add up, as `mu` is a controller's state and what it is off by is corrected by the surprises
    /// that it brings about; and no cut is less exact for it, each being that of the `mu` that
    /// stands. Weighing the row in `f64` instead would cost twice the time for digits that
    /// `eta` and a random draw make void. With [`SurpriseBase::Kept`] only the kept tokens'
    /// weights enter `S`, and those are exact.
    ///
    /// Where `temperature <= 0` the likeliest token (the lowest index of the maximum) has
    /// probability 1, as in the limit: `S` is 0, and `mu` rises by `eta * tau`. However far `mu`
    /// runs, it stays finite.
    ///
    /// # Errors
    /// [`Error`] says what is wrong with the row, `temperature`, `tau`, `eta` or `mu`; `mu` is then
    /// what it was, and nothing is drawn from `rng`.
    ///
    /// ```
    /// use topmass::{Error, Mirostat};
    /// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
    /// let mut mirostat = Mirostat::v2(3.0, 0.1);
    /// let draw = mirostat.sample(&[2.0, 9.0, 1.0], 0.8, &mut rng)?;
    /// assert_eq!(draw.token, 1);
    /// assert!(draw.mu > 6.0); // less surprise than wanted: the next cut is looser
    /// let mu = mirostat.mu();
    /// assert_eq!(mirostat.sample(&[], 0.8, &mut rng), Err(Error::EmptyRow));
    /// assert_eq!(mirostat.mu(), mu);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    pub fn sample<R: Rng + ?Sized>(
        &mut self,
        logits: &[f32],
        temperature: f32,
        rng: &mut R,
    ) -> Result<MirostatDraw, Error> {
        with_thread_sampler(|sampler| self.sample_with(sampler, logits, temperature, rng))
    }

    /// [`sample`](Self::sample) with a given sampler's scratch, on its tier. Which sampler it is
    /// changes no result.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    ///
    /// ```
    /// use topmass::{Mirostat, Sampler, Tier};
    /// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
    /// let mut sampler = Sampler::with_tier(Tier::Portable)?;
    /// let draw = Mirostat::v1(3.0, 0.1).sample_with(&mut sampler, &[0.0; 1000], 1.0, &mut rng)?;
    /// assert_eq!((draw.kept, draw.zipf_exponent), (1000, Some(0.0)));
    /// # Ok::<(), topmass::Error>(())
    /// ```
    pub fn sample_with<R: Rng + ?Sized>(
        &mut self,
        sampler: &mut Sampler,
        logits: &[f32],
        temperature: f32,
        rng: &mut R,
    ) -> Result<MirostatDraw, Error> {
        self.validate(temperature)?;
        let (full, v2) = (self.surprise_base == SurpriseBase::Full, self.version == Version::V2);
        let scale = (temperature > 0.0).then(|| Scale::new(temperature));
        // A surprise wants the normaliser close; for the threshold of version 2 alone quick will do.
        let exponential = if full { Exponential::Close } else { Exponential::Quick };
        let how = scale.as_ref().filter(|_| v2 || full).map(|scale| (scale, exponential));
        let scanned = sampler.scan_row(logits, how, !v2)?;
        let Scanned { max, unmasked, normaliser } = scanned;
        let Some(scale) = scale else {
            let token = sampler.first_max(logits, max);
            return Ok(self.drawn(token, 1.0, (0.0, 0.0), 1, None));
        };

        let row = Row { logits, max, temperature, scale: &scale };
        let normaliser = match normaliser {
            None if full => {
                let value = row.total(sampler);
                Some((value, RATIO_ERROR * value))
            }
            // The largest weight is 1, and so the total at least that.
            found => found.map(|n| (n.value.max(1.0), n.error)),
        };
        let (found, place, zipf_exponent) = if v2 {
            let bounds = normaliser.map(|(value, error)| ((value - error).max(1.0), value + error));
            let (found, place) = row.within(sampler, self.mu, bounds);
            (found, place, None)
        } else {
            let s = row.zipf_exponent(sampler, unmasked);
            let k = truncation_k(s, self.mu, unmasked).round().clamp(1.0, unmasked as f64);
            let (found, place) = row.top(sampler, k as usize);
            (found, place, Some(s))
        };

        let cut = Cut { value: found.lowest.value, last_tie: u32::MAX };
        let survivors = Survivors { max, cut, place, mass: Some(found.kept().mass) };
        let params = Params::default().with_temperature(temperature);
        let u = uniform(rng);
        let (token, weight, mass) = sampler.draw_kept(logits, params, &scale, &survivors, u);
        let mass = mass.to_f64();
        let (of, error) = normaliser.filter(|_| full).unwrap_or((mass, RATIO_ERROR * mass));
        let bits = row.surprise(logits[token as usize], of);
        let error = error / (of - error) * std::f64::consts::LOG2_E + ROUNDING * (1.0 + bits);
        let kept = found.kept().count as u32;
        Ok(self.drawn(token, weight / mass, (bits, error), kept, zipf_exponent))
    }

    /// Moves `mu` by what was drawn.
    pub(crate) fn drawn(
        &mut self,
        token: u32,
        probability: f64,
        (surprise_bits, surprise_error): (f64, f64),
        kept: u32,
        zipf_exponent: Option<f64>,
    ) -> MirostatDraw {
        self.mu = finite(self.mu - self.eta * (surprise_bits - self.tau));
        let mu = self.mu;
        MirostatDraw { token, probability, surprise_bits, surprise_error, kept, zipf_exponent, mu }
    }

    /// Checks what a row cannot change.
    pub(crate) fn validate(&self, temperature: f32) -> Result<(), Error> {
        let parameters =
            [("tau", self.tau, 0.0), ("eta", self.eta, 0.0), ("mu", self.mu, f64::MIN)];
        if temperature.is_nan() {
            return Err(Error::InvalidParam { name: "temperature", value: f64::from(temperature) });
        }
        match parameters.into_iter().find(|(_, x, least)| !(*least..=f64::MAX).contains(x)) {
            Some((name, value, _)) => Err(Error::InvalidParam { name, value }),
            None => Ok(()),
        }
    }
}

/// Bound on the rounding of a surprise, as a share of 1 + S.
const ROUNDING: f64 = 4.0 * f64::EPSILON;

/// The nearest finite number; NaN is left to the validation.
fn finite(x: f64) -> f64 {
    x.clamp(f64::MIN, f64::MAX)
}

/// A scanned row at a temperature.
struct Row<'a> {
    logits: &'a [f32],
    max: f32,
    temperature: f32,
    scale: &'a Scale,
}

impl Row<'_> {
    /// `-log2(exp((x - max) / T) / mass)`. Each step is monotone, so the whole is a threshold on
    /// `x`; equal logits give the exact `log2` of their number.
    fn surprise(&self, x: f32, mass: f64) -> f64 {
        let below = (f64::from(self.max) - f64::from(x)) / f64::from(self.temperature);
        libm::log2(mass) + below * std::f64::consts::LOG2_E
    }

    /// The exact normaliser.
    fn total(&self, sampler: &mut Sampler) -> f64 {
        let Sampler { isa, traces, block_masses, .. } = sampler;
        let &Row { logits, max, scale, .. } = self;
        kept_masses(*isa, logits, traces, scale, max, Cut::NONE, block_masses).to_f64()
    }

    fn search<'s>(&'s self, sampler: &'s mut Sampler) -> Search<'s> {
        let &Row { logits, max, temperature, scale } = self;
        Search::new(sampler, logits, max, temperature, scale, None)
    }

    /// The `k` largest logits, and the ties of the last.
    fn top(&self, sampler: &mut Sampler, k: usize) -> (Boundary, Place) {
        let top_k = if k < self.logits.len() { k as u64 } else { u64::MAX };
        self.search(sampler).run(Rule { top_k, ..Rule::OFF })
    }

    /// The tokens whose surprise is at most `mu` where the normaliser is the lower bound, given
    /// that the upper one keeps the same; else by the exact normaliser.
    fn within(
        &self,
        sampler: &mut Sampler,
        mu: f64,
        bounds: Option<(f64, f64)>,
    ) -> (Boundary, Place) {
        let floor = |total: f64| lowest_passing(self.max, |x| self.surprise(x, total) <= mu);
        let (least, most) = bounds.unwrap_or_else(|| {
            let total = self.total(sampler);
            (total, total)
        });
        let (floor, sure) = (floor(least), floor(most));
        let mut search = self.search(sampler);
        search.set_floor(floor);
        let (found, place) = search.run(Rule::OFF);
        // Where the kept tokens are not packed, the lowest value found is the floor itself.
        if floor == sure || found.lowest.value >= sure {
            return (found, place);
        }
        self.within(sampler, mu, None)
    }

    /// [`zipf_exponent`] of the row, from differences of logits: a normaliser would cancel out.
    fn zipf_exponent(&self, sampler: &mut Sampler, unmasked: usize) -> f64 {
        let n = unmasked.min(ZIPF_TOKENS);
        let (found, place) = self.top(sampler, n);
        let lowest = found.lowest.value;
        let Sampler { isa, traces, packed, .. } = sampler;
        if !matches!(place, Place::Packed) {
            let fits = pack(*isa, self.logits, traces, lowest.next_up(), ZIPF_TOKENS, packed);
            debug_assert!(fits);
        }
        // What lies above the lowest of them, fewer than n; the others are its ties.
        let mut top = [lowest; ZIPF_TOKENS];
        let above = packed.values().iter().filter(|&&x| x > lowest);
        top.iter_mut().zip(above).for_each(|(slot, &x)| *slot = x);
        top[..n].sort_unstable_by(|a, b| b.total_cmp(a));
        let temperature = f64::from(self.temperature);
        slope(top[..n].windows(2).map(|x| (f64::from(x[0]) - f64::from(x[1])) / temperature))
    }
}

/// The exponent `s` of Zipf's law `p_i ~ i^-s` that fits probabilities in descending order best:
/// the least-squares slope of `t_i = ln(p_i / p_{i+1})` over `b_i = ln((i + 1) / i)` through the
/// origin, `s = sum(t_i b_i) / sum(b_i^2)` (Basu et al., equation for Algorithm 1).
///
/// Looks at the first [`ZIPF_TOKENS`] of them, and ends at one that is not above 0. Fewer than two
/// have no slope: 0, like equal ones.
///
/// ```
/// use topmass::mirostat::zipf_exponent;
/// let zipf: Vec<f64> = (1..=1000).map(|i| f64::from(i).powf(-1.2)).collect(); // any scale does
/// assert!((zipf_exponent(&zipf) - 1.2).abs() < 1e-12);
/// assert_eq!(zipf_exponent(&[0.25; 4]), 0.0);
/// ```
#[must_use]
pub fn zipf_exponent(probabilities: &[f64]) -> f64 {
    let pairs = probabilities.windows(2).take(ZIPF_TOKENS - 1).take_while(|p| p[1] > 0.0);
    slope(pairs.map(|p| libm::log(p[0]) - libm::log(p[1])))
}

fn slope(t: impl Iterator<Item = f64>) -> f64 {
    let (mut tb, mut bb) = (0.0, 0.0);
    for (i, t) in (1..).zip(t) {
        let b = libm::log(f64::from(i + 1) / f64::from(i));
        tb += t * b;
        bb += b * b;
    }
    if bb > 0.0 { tb / bb } else { 0.0 }
}

/// How many tokens to keep so that a Zipf law of exponent `s` over `vocab` tokens has a surprise
/// of `mu` bits: `k = (eps 2^mu / (1 - vocab^-eps))^(1/s)`, `eps = s - 1` (Basu et al., Algorithm
/// 1), not rounded and not limited to `vocab`; [`Mirostat::sample`] rounds it to the nearest
/// integer from 1 to the number of unmasked tokens.
///
/// Finite wherever `s` and `mu` are numbers: at `s = 1` it is the limit `2^mu / ln(vocab)`. Where
/// `s <= 0` no token is less likely than another, and it is `vocab`; for a `vocab` up to 1 it is 1.
///
/// ```
/// use topmass::mirostat::truncation_k;
/// assert!((truncation_k(1.2, 4.0, 1000) - 3.3547).abs() < 5e-5);
/// assert_eq!(truncation_k(1.2, 6.0, 32_000).round(), 9.0);
/// assert!((truncation_k(1.0, 6.0, 1000) - 64.0 / 1000f64.ln()).abs() < 1e-12);
/// ```
#[must_use]
pub fn truncation_k(s: f64, mu: f64, vocab: usize) -> f64 {
    if vocab <= 1 || s == f64::INFINITY {
        return 1.0;
    }
    if s <= 0.0 {
        return vocab as f64;
    }
    // In logarithms, so that no intermediate overflows; expm1 keeps the digits near s = 1.
    let vocab = vocab as f64;
    let (ln_vocab, others) = (libm::log(vocab), vocab - 1.0);
    let ln_k = if s < 0.5 {
        // 1/factor tends to `others`: what goes to 0 with s is summed apart from what does not,
        // as the quotient by s would take the digits that a sum of the two has lost.
        let part = libm::log1p(vocab / others * libm::expm1(-s * ln_vocab)) - libm::log1p(-s);
        ((mu - libm::log2(others)) * std::f64::consts::LN_2 - part) / s
    } else {
        let eps = s - 1.0;
        let factor = if eps == 0.0 { 1.0 / ln_vocab } else { eps / -libm::expm1(-eps * ln_vocab) };
        (mu * std::f64::consts::LN_2 + libm::log(factor)) / s
    };
    libm::exp(ln_k).clamp(0.0, f64::MAX)
}
