//! What to log of a decode loop: how spread out a step was, and how large the nuclei are.

use topmass_kernels::Scale;
use topmass_kernels::entropy::spread;

use crate::sampler::with_thread_sampler;
use crate::{Draw, Error, Kept, Params, Sampler};

/// One step, looked at without a draw.
///
/// ```
/// let stats = topmass::inspect(&[0.0; 16], topmass::Params::default())?;
/// assert!((stats.entropy - 16f64.ln()).abs() < 1e-12 && (stats.effective_support - 16.0).abs() < 1e-9);
/// assert_eq!((stats.kept, stats.retained_mass, stats.divergence), (16, 1.0, 0.0));
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepStats {
    /// Shannon entropy of the full softmax at the temperature, in nats, within `1e-13 * (1 + H)`.
    /// Masked tokens count for nothing.
    pub entropy: f64,
    /// `exp(entropy)`: as many equally likely tokens would be as hard to guess.
    pub effective_support: f64,
    /// How many tokens would be kept (`N`).
    pub kept: u32,
    /// The share of the full softmax that they hold (`M`).
    pub retained_mass: f64,
    /// Proved absolute bound on `retained_mass`.
    pub mass_error: f64,
    /// `ln(1/M)` in nats, see [`Draw::divergence`].
    pub divergence: f64,
}

/// What a step looks like: its entropy, and what the cuts would keep. Draws nothing.
///
/// Weighs the row in `f64` once more than [`sample_fused`](crate::sample_fused) would; same scratch,
/// same bits on every CPU. With `temperature <= 0` all mass lies on the argmax, and the entropy is
/// 0; with [`TemperatureAt::AfterCut`](crate::TemperatureAt::AfterCut) the entropy is that at
/// `temperature`, while the cut and its mass are those at temperature 1.
///
/// # Errors
/// As [`sample_fused`](crate::sample_fused).
///
/// ```
/// use topmass::{Params, inspect};
/// let logits = [0.82f32, 0.09, 0.04, 0.02, 0.015, 0.01, 0.005].map(f32::ln);
/// let stats = inspect(&logits, Params::default().with_top_p(0.9))?;
/// assert_eq!(stats.kept, 2);
/// assert!((stats.retained_mass - 0.91).abs() < 1e-6);
/// assert!((stats.entropy - 0.722).abs() < 1e-3 && (stats.effective_support - 2.06).abs() < 1e-2);
/// # Ok::<(), topmass::Error>(())
/// ```
pub fn inspect(logits: &[f32], params: Params) -> Result<StepStats, Error> {
    with_thread_sampler(|sampler| sampler.inspect(logits, params))
}

impl Sampler {
    /// [`inspect`] with this sampler's scratch.
    ///
    /// # Errors
    /// As [`inspect`].
    ///
    /// ```
    /// # use topmass::{Params, Sampler};
    /// let stats = Sampler::new().inspect(&[1.5; 8], Params::default().with_top_k(1))?;
    /// assert!((stats.effective_support - 8.0).abs() < 1e-12); // ties share a fate:
    /// assert_eq!((stats.kept, stats.divergence), (8, 0.0)); // top-k keeps all eight
    /// # Ok::<(), topmass::Error>(())
    /// ```
    pub fn inspect(&mut self, logits: &[f32], params: Params) -> Result<StepStats, Error> {
        let nucleus = self.nucleus(logits, params)?;
        let entropy = if params.temperature <= 0.0 {
            0.0
        } else {
            let found =
                spread(self.isa, logits, &Scale::new(params.temperature), nucleus.survivors.max);
            let total = found.total.to_f64();
            libm::log(total) + std::f64::consts::LN_2 * found.exponents.to_f64() / total
        };
        let Kept { kept, retained_mass, mass_error } = nucleus.kept;
        Ok(StepStats {
            entropy,
            effective_support: libm::exp(entropy),
            kept,
            retained_mass,
            mass_error,
            divergence: -libm::log(retained_mass) + 0.0,
        })
    }
}

impl Sampler {
    /// How many cuts each rung of the proof decided so far: those of `top_p` of the row's mass, and
    /// draws without a cut. A cut by `top_k` or `min_p` alone needs no rung, and is not counted.
    ///
    /// ```
    /// # use topmass::{Params, Sampler};
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
    /// let mut sampler = Sampler::new();
    /// sampler.sample(&[3.0, 1.0, 0.0], Params::default().with_top_p(0.9), &mut rng)?;
    /// assert_eq!(sampler.rungs().quick, 1);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn rungs(&self) -> Rungs {
        self.rungs
    }
}

/// The nucleus sizes and retained masses of many draws, in memory that does not grow.
///
/// Nucleus sizes are right-skewed: most steps are nearly decided, a few are wide open. So the mean
/// describes no step; look at the [`median`](Self::median) and at the 0.99
/// [`quantile`](Self::quantile).
///
/// Sizes below 1,024 are counted exactly; above, 64 buckets to an octave are, so that a size comes
/// back within 1/128 of itself. The smallest and the largest size and everything about masses are
/// exact. 19 KiB, allocated at the first draw; recording is O(1).
///
/// ```
/// use topmass::{NucleusLog, Params, sample_fused};
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
/// let mut log = NucleusLog::new();
/// for open in [0.0, 0.1, 0.2, 6.0] {
///     let draw = sample_fused(&[6.0, open, 0.0, 0.0], Params::default().with_top_p(0.9), &mut rng)?;
///     log.record(&draw);
/// }
/// assert_eq!((log.len(), log.median(), log.quantile(0.99)), (4, Some(1), Some(2)));
/// assert!(log.min_mass() > Some(0.9));
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NucleusLog {
    sizes: Sizes,
    /// In units of 2^-53, so that the order of the draws cannot matter.
    mass: u128,
    masses: Option<(f64, f64)>,
}

impl NucleusLog {
    /// A log of nothing.
    ///
    /// ```
    /// # use topmass::NucleusLog;
    /// assert_eq!(NucleusLog::new().median(), None);
    /// ```
    #[must_use]
    pub fn new() -> Self {
        NucleusLog::default()
    }

    /// Adds a draw.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert_eq!(log.len(), 4);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    pub fn record(&mut self, draw: &Draw) {
        self.record_kept(draw.kept, draw.retained_mass);
    }

    /// Adds a step of which the size and the retained mass are known, from
    /// [`filter_fused`](crate::filter_fused) or [`inspect`].
    ///
    /// ```
    /// # use topmass::{NucleusLog, Params, inspect};
    /// let mut log = NucleusLog::new();
    /// let stats = inspect(&[0.0; 5], Params::default().with_top_p(0.5))?;
    /// log.record_kept(stats.kept, stats.retained_mass);
    /// assert_eq!((log.len(), log.median()), (1, Some(5)));
    /// # Ok::<(), topmass::Error>(())
    /// ```
    pub fn record_kept(&mut self, kept: u32, mass: f64) {
        self.sizes.record(kept);
        self.mass += u128::from((mass.clamp(0.0, 1.0) * UNITS) as u64);
        self.include(mass, mass);
    }

    /// Adds what another log holds: the same as if its draws had been recorded here.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// let mut total = NucleusLog::new();
    /// for thread in [&log, &log] {
    ///     total.merge(thread);
    /// }
    /// assert_eq!((total.len(), total.median()), (8, log.median()));
    /// # Ok::<(), topmass::Error>(())
    /// ```
    pub fn merge(&mut self, other: &NucleusLog) {
        self.sizes.merge(&other.sizes);
        self.mass += other.mass;
        if let Some((low, high)) = other.masses {
            self.include(low, high);
        }
    }

    fn include(&mut self, low: f64, high: f64) {
        let (least, most) = self.masses.unwrap_or((low, high));
        self.masses = Some((least.min(low), most.max(high)));
    }

    /// How many draws were recorded.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert_eq!(log.len(), 4);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> u64 {
        self.sizes.len
    }

    /// Whether no draw was recorded.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert!(!log.is_empty() && NucleusLog::new().is_empty());
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sizes.len == 0
    }

    /// The most frequent size (the smallest of them); from 1,024 on, a bucket counts as one size.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert_eq!(log.mode(), Some(1));
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn mode(&self) -> Option<u32> {
        self.sizes.mode()
    }

    /// The size that half of the draws do not exceed: `quantile(0.5)`.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert_eq!(log.median(), Some(1)); // sizes 1, 1, 2, 3
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn median(&self) -> Option<u32> {
        self.quantile(0.5)
    }

    /// The smallest size that at least a share `q` of the draws do not exceed; `q <= 0` gives the
    /// smallest, `q >= 1` the largest. `None` where nothing was recorded or `q` is NaN.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert_eq!((log.quantile(0.0), log.quantile(0.75), log.quantile(0.99)), (Some(1), Some(2), Some(3)));
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u32> {
        self.sizes.quantile(q)
    }

    /// The smallest retained mass.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert!((log.min_mass().unwrap() - 0.995).abs() < 1e-3);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn min_mass(&self) -> Option<f64> {
        self.masses.map(|(min, _)| min)
    }

    /// The mean retained mass, within 2^-52.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert!((log.mean_mass().unwrap() - 0.997).abs() < 1e-3);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn mean_mass(&self) -> Option<f64> {
        (!self.is_empty()).then(|| self.mass as f64 / UNITS / self.len() as f64)
    }

    /// The largest retained mass.
    ///
    /// ```
    /// # use topmass::*;
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let (mut log, mut rng) = (NucleusLog::new(), Xoshiro256PlusPlus::seed_from_u64(42));
    /// # let params = Params::default().with_top_p(0.9);
    /// for row in [[6.0, 0.0, 0.0], [6.0, 0.0, 0.0], [6.0, 5.0, 0.0], [6.0, 6.0, 6.0]] {
    ///     log.record(&sample_fused(&row, params, &mut rng)?);
    /// }
    /// assert_eq!(log.max_mass(), Some(1.0));
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn max_mass(&self) -> Option<f64> {
        self.masses.map(|(_, max)| max)
    }
}

/// 2^53: a mass in `[0, 1]` as an integer.
const UNITS: f64 = 9_007_199_254_740_992.0;

/// Sizes below this are counted one by one.
const EXACT: u32 = 1 << EXACT_BITS;
const EXACT_BITS: u32 = 10;
/// Larger ones in `2^OCTAVE_BITS` buckets to an octave.
const OCTAVE_BITS: u32 = 6;
const BUCKETS: usize = EXACT as usize + ((u32::BITS - EXACT_BITS) << OCTAVE_BITS) as usize;

/// The bucket of a size.
fn bucket(size: u32) -> usize {
    if size < EXACT {
        return size as usize;
    }
    let octave = size.ilog2();
    let part = (size >> (octave - OCTAVE_BITS)) - (1 << OCTAVE_BITS);
    (EXACT + ((octave - EXACT_BITS) << OCTAVE_BITS) + part) as usize
}

/// The middle of a bucket's sizes.
fn middle(bucket: usize) -> u32 {
    let bucket = bucket as u32;
    if bucket < EXACT {
        return bucket;
    }
    let octave = EXACT_BITS + ((bucket - EXACT) >> OCTAVE_BITS);
    let part = (bucket - EXACT) % (1 << OCTAVE_BITS) + (1 << OCTAVE_BITS);
    let width = 1 << (octave - OCTAVE_BITS);
    part * width + (width - 1) / 2
}

/// How often each size occurred.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sizes {
    /// Empty, or one count per bucket.
    counts: Vec<u64>,
    len: u64,
    smallest: u32,
    largest: u32,
}

impl Sizes {
    fn record(&mut self, size: u32) {
        self.include(size, size);
        self.counts[bucket(size)] += 1;
        self.len += 1;
    }

    fn merge(&mut self, other: &Sizes) {
        if other.len == 0 {
            return;
        }
        self.include(other.smallest, other.largest);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.len += other.len;
    }

    fn include(&mut self, smallest: u32, largest: u32) {
        if self.len == 0 {
            self.counts.resize(BUCKETS, 0);
            (self.smallest, self.largest) = (smallest, largest);
        }
        self.smallest = self.smallest.min(smallest);
        self.largest = self.largest.max(largest);
    }

    fn size(&self, bucket: usize) -> u32 {
        middle(bucket).clamp(self.smallest, self.largest)
    }

    fn mode(&self) -> Option<u32> {
        let most = *self.counts.iter().max()?;
        self.counts.iter().position(|&count| count == most).map(|bucket| self.size(bucket))
    }

    fn quantile(&self, q: f64) -> Option<u32> {
        if self.len == 0 || q.is_nan() {
            return None;
        }
        if q <= 0.0 {
            return Some(self.smallest);
        }
        if q >= 1.0 {
            return Some(self.largest);
        }
        let rank = ((q * self.len as f64).ceil() as u64).clamp(1, self.len);
        let mut below = 0;
        let found = self.counts.iter().position(|&count| {
            below += count;
            below >= rank
        });
        found.map(|bucket| self.size(bucket))
    }
}

/// What proved a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    Quick,
    Close,
    Exact,
}

/// How many cuts by mass (and draws over the whole row) each rung decided, since a [`Sampler`] was
/// made. See [`Sampler::rungs`].
///
/// ```
/// let topmass::Rungs { quick, close, exact, .. } = topmass::Sampler::new().rungs();
/// assert_eq!([quick, close, exact], [0, 0, 0]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rungs {
    /// By the quick exponential for what is not kept: one reading of the row.
    pub quick: u64,
    /// By the close exponential: a second reading, where a cut left the first one's bound.
    pub close: u64,
    /// By weighing the row in `f64`.
    pub exact: u64,
}

impl Rungs {
    pub(crate) fn record(&mut self, rung: Rung) {
        *match rung {
            Rung::Quick => &mut self.quick,
            Rung::Close => &mut self.close,
            Rung::Exact => &mut self.exact,
        } += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        assert_eq!(bucket(u32::MAX), BUCKETS - 1);
        for octave in 0..32 {
            for size in
                [1u32 << octave, (1 << octave) + (1 << octave) / 3, u32::MAX >> (31 - octave)]
            {
                let found = middle(bucket(size));
                assert!(found.abs_diff(size) <= size / 128, "{size}: {found}");
                assert!(size >= EXACT || found == size);
                assert!(bucket(size.saturating_add(size / 64 + 1)) >= bucket(size));
            }
        }
        assert!((0..BUCKETS).all(|b| bucket(middle(b)) == b));
        // In the middle, the lower one of two.
        for of in (0..1 << 18).collect::<Vec<u32>>().chunk_by(|&a, &b| bucket(a) == bucket(b)) {
            assert_eq!(middle(bucket(of[0])), of[(of.len() - 1) / 2], "{of:?}");
        }
    }

    #[test]
    fn the_mode_is_the_first_of_the_commonest() {
        let mut sizes = Sizes::default();
        for size in [7, 3, 9, 2, 3, 7, 2000] {
            sizes.record(size);
        }
        assert_eq!(sizes.mode(), Some(3));
    }
}
