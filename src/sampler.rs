//! The step, top to bottom: scan -> select -> threshold -> draw.

use std::cell::Cell;

use rand::Rng;
use topmass_kernels::draw::{kept_masses, locate, locate_in, write_probabilities};
use topmass_kernels::row::{BLOCK, blocks, halfway};
use topmass_kernels::scan::{Exponential, Normaliser, Scanned, Traces, scan};
use topmass_kernels::select::{Packed, first_at_least, nth_equal};
use topmass_kernels::threshold::Workspace;
use topmass_kernels::{Cut, Isa, Mass, Scale, Tier, weigh};

use crate::Error;
use crate::outcome::{Draw, Kept};
use crate::params::{MassBase, Params, Ties};
use crate::search::{Place, RATIO_ERROR, Rule, SAMPLE, Search, capacity};
use crate::telemetry::{Rung, Rungs};

/// Draws one token from one row of logits.
///
/// Keeps its scratch per thread: after the first row of a length it allocates nothing. One read
/// of the row where the nucleus is small, `O(V)` always, no sort. Draws one `next_u64` from
/// `rng`, none where `temperature <= 0`. The token and the kept set are those of
/// [`reference::sample`](crate::reference::sample) for the same `rng`; the bits of every field
/// are the same on every CPU.
///
/// # Errors
/// [`Error`] says what is wrong with the row or the parameters; nothing is then drawn from `rng`.
///
/// ```
/// use topmass::{Params, sample_fused};
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
/// let logits = [1.0, 4.0, 2.0, -3.0];
/// let params = Params::default().with_temperature(0.7).with_top_p(0.9);
/// let draw = sample_fused(&logits, params, &mut rng)?;
/// assert_eq!((draw.token, draw.kept), (1, 1));
/// # Ok::<(), topmass::Error>(())
/// ```
pub fn sample_fused<R: Rng + ?Sized>(
    logits: &[f32],
    params: Params,
    rng: &mut R,
) -> Result<Draw, Error> {
    with_thread_sampler(|sampler| sampler.sample(logits, params, rng))
}

/// Writes the renormalised probabilities of the kept tokens, 0 elsewhere.
///
/// Each is within 2^-23 of itself (the rounding to `f32`). Scratch and cost as [`sample_fused`],
/// plus writing the row.
///
/// # Errors
/// As [`sample_fused`]; [`Error::LengthMismatch`] where `probs` is not as long as `logits`. What
/// `probs` holds is then unspecified.
///
/// ```
/// use topmass::{Params, filter_fused};
/// let logits = [0.3f32.ln(), 0.25f32.ln(), 0.25f32.ln(), 0.12f32.ln(), 0.08f32.ln()];
/// let mut probs = [0.0; 5];
/// let kept = filter_fused(&logits, Params::default().with_top_p(0.6), &mut probs)?;
/// assert_eq!((kept.kept, probs[0], probs[3]), (3, 0.375, 0.0));
/// # Ok::<(), topmass::Error>(())
/// ```
pub fn filter_fused(logits: &[f32], params: Params, probs: &mut [f32]) -> Result<Kept, Error> {
    with_thread_sampler(|sampler| sampler.filter(logits, params, probs))
}

/// Runs `f` on this thread's sampler. An rng that samples while it is being drawn from finds none
/// and gets a new one, and so does a thread that samples while its locals are being dropped, or
/// whose last rng panicked.
pub(crate) fn with_thread_sampler<T>(f: impl FnOnce(&mut Sampler) -> T) -> T {
    thread_local!(static SAMPLER: Cell<Option<Box<Sampler>>> = const { Cell::new(None) });
    let mut sampler = SAMPLER.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let result = f(&mut sampler);
    // Not kept by a thread that ends.
    let _ = SAMPLER.try_with(|cell| cell.set(Some(sampler)));
    result
}

/// A sampler that owns its scratch.
///
/// After the first row of a length, neither [`sample`](Self::sample) nor [`filter`](Self::filter)
/// allocates. What a sampler saw before changes its speed, never a result.
///
/// ```
/// use topmass::{Params, Sampler};
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
/// let mut sampler = Sampler::new();
/// let draw = sampler.sample(&[0.0, 0.0, 9.0], Params::default().with_top_k(1), &mut rng)?;
/// assert_eq!((draw.token, draw.probability), (2, 1.0));
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    pub(crate) isa: Isa,
    /// How far below the maximum the last selection reached, in units of the temperature.
    pub(crate) spread: f32,
    pub(crate) traces: Traces,
    pub(crate) packed: Packed,
    pub(crate) weights: Vec<f64>,
    pub(crate) work: Workspace,
    pub(crate) block_masses: Vec<Mass>,
    pub(crate) sample: Vec<f32>,
    pub(crate) rungs: Rungs,
}

impl Default for Sampler {
    fn default() -> Self {
        Sampler::new()
    }
}

impl Sampler {
    /// A sampler on the tier that [`Tier::detected`] names.
    ///
    /// ```
    /// use topmass::{Sampler, Tier};
    /// assert_eq!(Sampler::new().tier(), Tier::detected());
    /// ```
    #[must_use]
    pub fn new() -> Self {
        let isa = Isa::new(Tier::detected()).expect("a detected tier is available");
        Sampler::on(isa)
    }

    /// A sampler on a given tier.
    ///
    /// # Errors
    /// [`Error::UnsupportedTier`] where this CPU lacks it.
    ///
    /// ```
    /// use topmass::{Sampler, Tier};
    /// assert_eq!(Sampler::with_tier(Tier::Portable)?.tier(), Tier::Portable);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    pub fn with_tier(tier: Tier) -> Result<Self, Error> {
        Isa::new(tier).map(Sampler::on).ok_or(Error::UnsupportedTier { tier })
    }

    fn on(isa: Isa) -> Self {
        Sampler {
            isa,
            spread: 8.0,
            traces: Traces::default(),
            packed: Packed::default(),
            weights: Vec::new(),
            work: Workspace::default(),
            block_masses: Vec::new(),
            sample: Vec::new(),
            rungs: Rungs::default(),
        }
    }

    /// The tier that this sampler runs on.
    ///
    /// ```
    /// # use topmass::{Sampler, Tier};
    /// assert!(Tier::available().contains(&Sampler::new().tier()));
    /// ```
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.isa.tier()
    }

    /// [`sample_fused`] with this sampler's scratch.
    ///
    /// # Errors
    /// As [`sample_fused`].
    ///
    /// ```
    /// # use topmass::{Error, Params, Sampler};
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
    /// let masked = [f32::NEG_INFINITY; 4];
    /// let refused = Sampler::new().sample(&masked, Params::default(), &mut rng);
    /// assert_eq!(refused, Err(Error::AllMasked));
    /// ```
    pub fn sample<R: Rng + ?Sized>(
        &mut self,
        logits: &[f32],
        params: Params,
        rng: &mut R,
    ) -> Result<Draw, Error> {
        let nucleus = self.nucleus(logits, params)?;
        if params.temperature <= 0.0 {
            return Ok(nucleus.draw(nucleus.survivors.cut.last_tie, 1.0, 0.0));
        }
        let u = uniform(rng);
        let scale = Scale::new(params.temperature);
        let survivors = &nucleus.survivors;
        if let Place::Scanned(normaliser) = survivors.place
            && let Some((index, weight)) =
                self.draw_scanned(logits, &scale, survivors.max, normaliser, u)
        {
            self.rungs.record(Rung::Close);
            // The largest weight is 1, and so their sum at least that.
            let probability = weight / normaliser.value.max(1.0);
            let error = normaliser.error / (normaliser.value - normaliser.error) + RATIO_ERROR;
            return Ok(nucleus.draw(index as u32, probability, probability * error));
        }
        if survivors.mass.is_none() {
            self.rungs.record(Rung::Exact);
        }
        let (index, weight, mass) = self.draw_kept(logits, params, &scale, survivors, u);
        let probability = weight / mass.to_f64();
        Ok(nucleus.draw(index, probability, probability * RATIO_ERROR))
    }

    /// The draw among the kept tokens: which one, its weight, and the mass of all of them.
    pub(crate) fn draw_kept(
        &mut self,
        row: &[f32],
        params: Params,
        scale: &Scale,
        survivors: &Survivors,
        u: f64,
    ) -> (u32, f64, Mass) {
        let mass = self.weigh_kept(row, params, scale, survivors);
        let threshold = mass.share(u);
        let &Survivors { max, cut, place, .. } = survivors;
        let (index, weight) = match place {
            Place::Packed => self.draw_packed(cut, threshold),
            Place::Split if params.cut_temperature() == params.temperature => {
                let (block, below) = self.block_of_split(cut, threshold);
                locate_in(self.isa, row, scale, max, cut, block, below, threshold)
                    .map(|(index, weight)| (index as u32, weight))
            }
            Place::Scanned(_) | Place::Row | Place::Split => {
                locate(self.isa, row, scale, max, cut, &self.block_masses, threshold)
                    .map(|(index, weight)| (index as u32, weight))
            }
        }
        .expect("u < 1, so the sum of all kept masses exceeds the threshold");
        (index, weight, mass)
    }

    /// [`filter_fused`] with this sampler's scratch.
    ///
    /// # Errors
    /// As [`filter_fused`].
    ///
    /// ```
    /// # use topmass::{Error, Params, Sampler};
    /// let mut probs = [0.0; 3];
    /// let refused = Sampler::new().filter(&[1.0, 2.0], Params::default(), &mut probs);
    /// assert_eq!(refused, Err(Error::LengthMismatch { expected: 2, found: 3 }));
    /// ```
    pub fn filter(
        &mut self,
        logits: &[f32],
        params: Params,
        probs: &mut [f32],
    ) -> Result<Kept, Error> {
        if probs.len() != logits.len() {
            return Err(Error::LengthMismatch { expected: logits.len(), found: probs.len() });
        }
        let Nucleus { survivors, kept } = self.nucleus(logits, params)?;
        let Survivors { max, cut, .. } = survivors;
        if params.temperature <= 0.0 {
            probs.fill(0.0);
            probs[cut.last_tie as usize] = 1.0;
        } else {
            let scale = Scale::new(params.temperature);
            let mass = self.weigh_kept(logits, params, &scale, &survivors).to_f64();
            let (isa, traces) = (self.isa, &self.traces);
            write_probabilities(isa, logits, traces, &scale, max, cut, mass, probs);
        }
        Ok(kept)
    }

    /// Makes room for a row, once per length: about 4.3 bytes per logit, and 64 KiB for short rows.
    fn reserve(&mut self, len: usize) {
        let capacity = capacity(len);
        if self.weights.len() < capacity {
            // The last vector is filled up.
            self.weights.resize(capacity.next_multiple_of(16), 0.0);
            self.packed.reserve(capacity);
        }
        // `reserve` counts from the length.
        self.sample.clear();
        self.sample.reserve(SAMPLE);
        self.block_masses.clear();
        self.block_masses.reserve(blocks(len));
    }

    /// What is kept of a row: everything but the draw.
    pub(crate) fn nucleus(&mut self, row: &[f32], params: Params) -> Result<Nucleus, Error> {
        params.validate()?;
        let greedy = params.temperature <= 0.0;
        let top_k = params.top_k_of(row.len()).filter(|_| !greedy);
        let cuts = !greedy && (top_k.is_some() || params.top_p < 1.0 || params.min_p > 0.0);
        let temperature = if cuts { params.cut_temperature() } else { params.temperature };
        let scale = (!greedy).then(|| Scale::new(temperature));

        // Without a cut, the draw looks for its place in partial sums, and needs them close.
        let exponential = if cuts { Exponential::Quick } else { Exponential::Close };
        let how = scale.as_ref().map(|scale| (scale, exponential));
        let scanned = self.scan_row(row, how, !greedy && !cuts)?;
        let Scanned { max, unmasked, normaliser } = scanned;
        let Some(scale) = scale else {
            let last_tie = self.first_max(row, max);
            let cut = Cut { value: max, last_tie };
            return Ok(Nucleus {
                survivors: Survivors { max, cut, place: Place::Row, mass: None },
                kept: Kept { kept: 1, retained_mass: 1.0, mass_error: 0.0 },
            });
        };
        if !cuts {
            let place = normaliser.map_or(Place::Row, Place::Scanned);
            return Ok(Nucleus {
                survivors: Survivors { max, cut: Cut::NONE, place, mass: None },
                kept: Kept { kept: unmasked as u32, retained_mass: 1.0, mass_error: 0.0 },
            });
        }

        let mut search = Search::new(self, row, max, temperature, &scale, normaliser)
            .together(params.ties == Ties::Together);
        let floor = min_p_floor(params.min_p, temperature, max);
        let rule = Rule {
            top_k: top_k.map_or(u64::MAX, |k| k as u64),
            share: (params.top_p < 1.0).then_some(params.top_p),
            of: None,
        };
        let rule = match (params.mass_base, top_k, rule.share) {
            // The top-k set, in which min-p has no say, is what p is a share of.
            (MassBase::TopK, Some(_), Some(_)) => {
                let (top_k, _) = search.run(Rule { share: None, ..rule });
                Rule { of: Some(top_k.kept().mass), ..rule }
            }
            _ => rule,
        };
        search.set_floor(floor);
        let (found, mut place) = search.run(rule);
        let kept = found.kept();
        let rung = search.rung();
        let (retained_mass, mass_error) = search.retained(&found, &mut place, params.exact_mass);
        if rule.is_by_mass() {
            self.rungs.record(rung);
        }
        let last_tie = if found.kept_ties < found.lowest.ties.count {
            // Only LowestIndex splits ties.
            let last = nth_equal(self.isa, row, found.lowest.value, found.kept_ties);
            last.expect("as many ties as were counted") as u32
        } else {
            u32::MAX
        };
        let cut = Cut { value: found.lowest.value, last_tie };
        Ok(Nucleus {
            survivors: Survivors { max, cut, place, mass: Some(kept.mass) },
            kept: Kept { kept: kept.count as u32, retained_mass, mass_error },
        })
    }

    /// The scan of a row that can be drawn from; with a normaliser where a scale is given that
    /// `f32` can work with.
    pub(crate) fn scan_row(
        &mut self,
        row: &[f32],
        how: Option<(&Scale, Exponential)>,
        count: bool,
    ) -> Result<Scanned, Error> {
        if row.is_empty() {
            return Err(Error::EmptyRow);
        }
        if u32::try_from(row.len()).is_err() {
            return Err(Error::RowTooLong { len: row.len() });
        }
        self.reserve(row.len());
        let scanned = scan(self.isa, row, how, count, &mut self.traces);
        let scanned = scanned.ok_or_else(|| fault(row))?;
        if scanned.max == f32::NEG_INFINITY {
            return Err(Error::AllMasked);
        }
        Ok(scanned)
    }

    /// The lowest index of the scanned row's maximum.
    pub(crate) fn first_max(&self, row: &[f32], max: f32) -> u32 {
        let argmax = first_at_least(self.isa, row, &self.traces, max);
        argmax.expect("the maximum is in the row") as u32
    }

    /// Weighs the kept tokens at the temperature of the draw, in the place where the draw looks
    /// for them. Their mass together.
    fn weigh_kept(
        &mut self,
        row: &[f32],
        params: Params,
        scale: &Scale,
        survivors: &Survivors,
    ) -> Mass {
        let &Survivors { max, cut, place, mass } = survivors;
        let same_temperature = params.cut_temperature() == params.temperature;
        match (place, mass) {
            (Place::Packed | Place::Split, Some(mass)) if same_temperature => mass,
            (Place::Packed, _) => {
                if !same_temperature {
                    let values = self.packed.values();
                    weigh(self.isa, values, scale, max, &mut self.weights[..values.len()]);
                }
                self.kept_packed(cut).fold(Mass::ZERO, |sum, (_, mass)| sum.plus(mass))
            }
            (Place::Split | Place::Row | Place::Scanned(_), _) => {
                let Sampler { isa, traces, block_masses, .. } = self;
                kept_masses(*isa, row, traces, scale, max, cut, block_masses)
            }
        }
    }

    /// The block in which the sum of kept masses first exceeds `threshold`, and the sum before it.
    fn block_of_split(&self, cut: Cut, threshold: Mass) -> (usize, Mass) {
        let mut packed = self.kept_packed(cut).peekable();
        let mut below = Mass::ZERO;
        for (block, &above) in self.block_masses.iter().enumerate() {
            let mut end = below.plus(above);
            while let Some((_, mass)) = packed.next_if(|&(i, _)| i as usize / BLOCK == block) {
                end = end.plus(mass);
            }
            if end > threshold {
                return (block, below);
            }
            below = end;
        }
        (self.block_masses.len(), below)
    }

    /// The draw where everything is kept, by the `f32` masses of the blocks and the exact weights
    /// of one block. `None` where the bound on the normaliser leaves the token open.
    fn draw_scanned(
        &mut self,
        row: &[f32],
        scale: &Scale,
        max: f32,
        normaliser: Normaliser,
        u: f64,
    ) -> Option<(usize, f64)> {
        // The partial sum that ends with an element is compared with u * Z, and both are off by
        // at most the bound: below `low` it does not exceed, from `high` on it does.
        let target = u * normaliser.value;
        let slack = 2.0 * normaliser.error + 1e-12 * normaliser.value;
        let (low, high) = (target - slack, target + slack);
        let mut below = 0.0;
        let (b, _) = self.traces.block_masses().iter().enumerate().find(|&(_, &mass)| {
            let beyond = below + mass > low;
            if !beyond {
                below += mass;
            }
            beyond
        })?;
        let start = b * BLOCK;
        let block = &row[start..row.len().min(start + BLOCK)];
        let weights = &mut self.weights[..block.len()];
        weigh(self.isa, block, scale, max, weights);
        for (i, &w) in weights.iter().enumerate() {
            below += w;
            if below > high {
                return Some((start + i, w));
            }
            if below >= low {
                return None;
            }
        }
        None
    }

    /// The packed elements in index order, those that are not kept with no mass.
    fn kept_packed(&self, cut: Cut) -> impl Iterator<Item = (u32, Mass)> {
        let elements = self.packed.values().iter().zip(self.packed.indices());
        elements.zip(&self.weights).map(move |((&x, &index), &w)| {
            // A selection, not a branch: which elements are kept is hard to predict.
            (index, Mass::of_weight(if cut.keeps(x, index) { w } else { 0.0 }))
        })
    }

    /// The first kept element, in index order, at which the sum of kept masses exceeds
    /// `threshold`, and its weight.
    fn draw_packed(&self, cut: Cut, threshold: Mass) -> Option<(u32, f64)> {
        let mut below = Mass::ZERO;
        let position = self.kept_packed(cut).position(|(_, mass)| {
            below = below.plus(mass);
            below > threshold
        })?;
        Some((self.packed.indices()[position], self.weights[position]))
    }
}

/// The kept tokens of a row, and where their weights are.
pub(crate) struct Survivors {
    pub(crate) max: f32,
    pub(crate) cut: Cut,
    pub(crate) place: Place,
    /// Their mass at the temperature of the cut, where that is known.
    pub(crate) mass: Option<Mass>,
}

/// What a row keeps.
pub(crate) struct Nucleus {
    pub(crate) survivors: Survivors,
    pub(crate) kept: Kept,
}

impl Nucleus {
    fn draw(&self, token: u32, probability: f64, probability_error: f64) -> Draw {
        let Kept { kept, retained_mass, mass_error } = self.kept;
        Draw { token, probability, probability_error, kept, retained_mass, mass_error }
    }
}

/// 53 bits: `u = (next_u64 >> 11) * 2^-53`.
pub(crate) fn uniform<R: Rng + ?Sized>(rng: &mut R) -> f64 {
    (rng.next_u64() >> 11) as f64 * (f64::EPSILON / 2.0)
}

/// The smallest logit `x` with `exp((x - max) / temperature) >= min_p`; `f32::MIN` where that is
/// every unmasked one.
fn min_p_floor(min_p: f64, temperature: f32, max: f32) -> f32 {
    let log = libm::log(min_p); // -inf where min-p is off
    let passes = |x: f32| (f64::from(x) - f64::from(max)) / f64::from(temperature) >= log;
    lowest_passing(max, passes)
}

/// The smallest finite logit that passes, given that `max` does and whatever lies above one that
/// does. 32 tries at most, by halving the keys: a guess and a walk from there can be far apart
/// where logits or temperatures are huge.
pub(crate) fn lowest_passing(max: f32, passes: impl Fn(f32) -> bool) -> f32 {
    if passes(f32::MIN) {
        return f32::MIN;
    }
    let (mut below, mut lowest) = (f32::MIN, max);
    loop {
        let middle = halfway(below, lowest);
        // There is a key between those of 0 and the next number below, whose value is 0 again.
        if middle == below || middle == lowest {
            return lowest;
        }
        if passes(middle) {
            lowest = middle;
        } else {
            below = middle;
        }
    }
}

/// What is wrong with a row that holds a NaN or `+inf`.
fn fault(row: &[f32]) -> Error {
    let index = row.iter().position(|x| x.is_nan() || *x == f32::INFINITY);
    let index = index.expect("a row that is not clean has a NaN or +inf");
    if row[index].is_nan() {
        Error::NotANumber { index }
    } else {
        Error::PositiveInfinity { index }
    }
}
