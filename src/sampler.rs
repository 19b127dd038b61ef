//! The step, top to bottom: scan -> select -> threshold -> draw.

use std::cell::Cell;

use rand::Rng;
use topmass_kernels::draw::{kept_masses, locate, split, write_probabilities};
use topmass_kernels::row::{BLOCK, halfway};
use topmass_kernels::scan::{Normaliser, Scanned, Traces, scan};
use topmass_kernels::select::{Packed, first_at_least, pack, reach};
use topmass_kernels::threshold::{Found, Lowest, Verdict, Weighed, Workspace, cut_off};
use topmass_kernels::{Cut, Isa, Mass, Scale, Tier, WEIGHT_ERROR, weigh};

use crate::Error;
use crate::outcome::{Draw, Kept};
use crate::params::{MassBase, Params, Ties};

/// How many elements are selected first.
const FIRST: usize = 256;
/// A nucleus of up to this many tokens is looked for among selected elements, and its mass is
/// reported as the `f32` scan found it; a larger one is measured in `f64` over the whole row. The
/// line depends on the row alone, so the reported bits do too.
const LIMIT: usize = 2048;
/// Bound on the relative error of a ratio of two masses.
const RATIO_ERROR: f64 = 4.0 * WEIGHT_ERROR;

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
/// and gets a new one.
fn with_thread_sampler<T>(f: impl FnOnce(&mut Sampler) -> T) -> T {
    thread_local!(static SAMPLER: Cell<Option<Box<Sampler>>> = const { Cell::new(None) });
    let mut sampler = SAMPLER.take().unwrap_or_default();
    let result = f(&mut sampler);
    SAMPLER.set(Some(sampler));
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
    isa: Isa,
    /// How far below the maximum the last selection reached, in units of the temperature.
    spread: f32,
    traces: Traces,
    packed: Packed,
    weights: Vec<f64>,
    work: Workspace,
    block_masses: Vec<Mass>,
    sample: Vec<f32>,
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
        Isa::new(tier)
            .map(Sampler::on)
            .ok_or(Error::UnsupportedTier { tier })
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
            return Ok(nucleus.draw(nucleus.cut.last_tie, 1.0, 0.0));
        }
        // 53 bits: u = (next_u64 >> 11) * 2^-53.
        let u = (rng.next_u64() >> 11) as f64 * (f64::EPSILON / 2.0);
        let scale = Scale::new(params.temperature);
        if let Place::Scanned(normaliser) = nucleus.place
            && let Some((index, weight)) =
                self.draw_scanned(logits, &scale, &nucleus, normaliser, u)
        {
            let probability = weight / normaliser.value;
            let error = normaliser.error / (normaliser.value - normaliser.error) + RATIO_ERROR;
            return Ok(nucleus.draw(index as u32, probability, probability * error));
        }
        let mass = self.weigh_kept(logits, params, &scale, &nucleus);
        let threshold = mass.share(u);
        let (index, weight) = match nucleus.place {
            Place::Packed => self.draw_packed(nucleus.cut, threshold),
            Place::Scanned(_) | Place::Row | Place::Split => {
                let (cut, masses) = (nucleus.cut, &self.block_masses);
                locate(
                    self.isa,
                    logits,
                    &scale,
                    nucleus.max,
                    cut,
                    masses,
                    threshold,
                )
                .map(|(index, weight)| (index as u32, weight))
            }
        }
        .expect("u < 1, so the sum of all kept masses exceeds the threshold");
        let probability = weight / mass.to_f64();
        Ok(nucleus.draw(index, probability, probability * RATIO_ERROR))
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
            return Err(Error::LengthMismatch {
                expected: logits.len(),
                found: probs.len(),
            });
        }
        let nucleus = self.nucleus(logits, params)?;
        if params.temperature <= 0.0 {
            probs.fill(0.0);
            probs[nucleus.cut.last_tie as usize] = 1.0;
        } else {
            let scale = Scale::new(params.temperature);
            let mass = self.weigh_kept(logits, params, &scale, &nucleus).to_f64();
            let (isa, traces) = (self.isa, &self.traces);
            write_probabilities(
                isa,
                logits,
                traces,
                &scale,
                nucleus.max,
                nucleus.cut,
                mass,
                probs,
            );
        }
        Ok(nucleus.kept)
    }

    /// What is kept of a row: everything but the draw.
    fn nucleus(&mut self, row: &[f32], params: Params) -> Result<Nucleus, Error> {
        params.validate()?;
        if row.is_empty() {
            return Err(Error::EmptyRow);
        }
        if u32::try_from(row.len()).is_err() {
            return Err(Error::RowTooLong { len: row.len() });
        }
        let greedy = params.temperature <= 0.0;
        let top_k = params.top_k_of(row.len()).filter(|_| !greedy);
        let cuts = !greedy && (top_k.is_some() || params.top_p < 1.0 || params.min_p > 0.0);
        let temperature = if cuts {
            params.cut_temperature()
        } else {
            params.temperature
        };
        let scale = (!greedy).then(|| Scale::new(temperature));

        let scale32 = scale.as_ref().filter(|s| s.fits_f32());
        let scanned = scan(self.isa, row, scale32, !greedy && !cuts, &mut self.traces);
        let Scanned {
            max,
            unmasked,
            normaliser,
        } = scanned.ok_or_else(|| fault(row))?;
        if max == f32::NEG_INFINITY {
            return Err(Error::AllMasked);
        }
        let Some(scale) = scale else {
            let argmax = first_at_least(self.isa, row, &self.traces, max);
            let last_tie = argmax.expect("the maximum is in the row") as u32;
            return Ok(Nucleus {
                max,
                cut: Cut {
                    value: max,
                    last_tie,
                },
                kept: Kept {
                    kept: 1,
                    retained_mass: 1.0,
                    mass_error: 0.0,
                },
                place: Place::Row,
            });
        };
        if !cuts {
            return Ok(Nucleus {
                max,
                cut: Cut::NONE,
                kept: Kept {
                    kept: unmasked as u32,
                    retained_mass: 1.0,
                    mass_error: 0.0,
                },
                place: normaliser.map_or(Place::Row, Place::Scanned),
            });
        }

        let scanned = normaliser.map_or(Total::Unknown, Total::Within);
        let mut search = Search {
            row,
            temperature,
            scale: &scale,
            max,
            floor: min_p_floor(params.min_p, temperature, max),
            scanned,
            normaliser: scanned,
            together: params.ties == Ties::Together,
            packed: 0,
            sampler: self,
        };
        let rule = Rule {
            top_k: top_k.map_or(u64::MAX, |k| k as u64),
            share: (params.top_p < 1.0).then_some(params.top_p),
            of: None,
        };
        let (found, place) = match (params.mass_base, top_k) {
            (MassBase::TopK, Some(_)) if rule.share.is_some() => {
                // The top-k set is what min-p has no say in.
                let floor = std::mem::replace(&mut search.floor, f32::MIN);
                let (top_k, _) = search.run(Rule {
                    share: None,
                    ..rule
                });
                if floor > f32::MIN {
                    (search.floor, search.packed) = (floor, 0);
                }
                search.run(Rule {
                    of: Some(top_k.kept().mass),
                    ..rule
                })
            }
            _ => search.run(rule),
        };
        let kept = found.kept();
        let (retained_mass, mass_error) = search.total_for(rule, &found).ratio(kept.mass);
        let last_tie = if found.kept_ties < found.lowest.ties.count {
            // Only LowestIndex splits ties.
            nth_tie(row, found.lowest.value, found.kept_ties)
        } else {
            u32::MAX
        };
        Ok(Nucleus {
            max,
            cut: Cut {
                value: found.lowest.value,
                last_tie,
            },
            kept: Kept {
                kept: kept.count as u32,
                retained_mass,
                mass_error,
            },
            place,
        })
    }

    /// Weighs the kept tokens at the temperature of the draw, in the place where the draw looks
    /// for them. Their mass together.
    fn weigh_kept(
        &mut self,
        row: &[f32],
        params: Params,
        scale: &Scale,
        nucleus: &Nucleus,
    ) -> Mass {
        let &Nucleus {
            max, cut, place, ..
        } = nucleus;
        let same_temperature = params.cut_temperature() == params.temperature;
        let elements = self.packed.values().iter().zip(self.packed.indices());
        match place {
            Place::Packed => {
                if !same_temperature {
                    weigh(
                        self.isa,
                        self.packed.values(),
                        scale,
                        max,
                        &mut self.weights,
                    );
                }
                elements
                    .zip(&self.weights)
                    .filter(|((x, index), _)| cut.keeps(**x, **index))
                    .fold(Mass::ZERO, |sum, (_, &w)| sum.plus(Mass::of_weight(w)))
            }
            Place::Split if same_temperature => {
                for ((&x, &index), &w) in elements.zip(&self.weights) {
                    if cut.keeps(x, index) {
                        let mass = &mut self.block_masses[index as usize / BLOCK];
                        *mass = mass.plus(Mass::of_weight(w));
                    }
                }
                self.block_masses
                    .iter()
                    .fold(Mass::ZERO, |sum, &mass| sum.plus(mass))
            }
            Place::Split | Place::Row | Place::Scanned(_) => {
                let Sampler {
                    isa,
                    traces,
                    block_masses,
                    ..
                } = self;
                kept_masses(*isa, row, traces, scale, max, cut, block_masses)
            }
        }
    }

    /// The draw where everything is kept, by the `f32` masses of the blocks and the exact weights
    /// of one block. `None` where the bound on the normaliser leaves the token open.
    fn draw_scanned(
        &mut self,
        row: &[f32],
        scale: &Scale,
        nucleus: &Nucleus,
        normaliser: Normaliser,
        u: f64,
    ) -> Option<(usize, f64)> {
        // The partial sum that ends with an element is compared with u * Z, and both are off by
        // at most the bound: below `low` it does not exceed, from `high` on it does.
        let target = u * normaliser.value;
        let slack = 2.0 * normaliser.error + 1e-12 * normaliser.value;
        let (low, high) = (target - slack, target + slack);
        let mut below = 0.0;
        let (b, _) = self
            .traces
            .block_masses()
            .iter()
            .enumerate()
            .find(|&(_, &mass)| {
                let beyond = below + mass > low;
                if !beyond {
                    below += mass;
                }
                beyond
            })?;
        let start = b * BLOCK;
        let block = &row[start..row.len().min(start + BLOCK)];
        self.weights.resize(block.len(), 0.0);
        weigh(self.isa, block, scale, nucleus.max, &mut self.weights);
        for (i, &w) in self.weights.iter().enumerate() {
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

    /// The first kept element, in index order, at which the sum of kept masses exceeds
    /// `threshold`, and its weight.
    fn draw_packed(&self, cut: Cut, threshold: Mass) -> Option<(u32, f64)> {
        let mut below = Mass::ZERO;
        let elements = self.packed.values().iter().zip(self.packed.indices());
        elements.zip(&self.weights).find_map(|((&x, &index), &w)| {
            if cut.keeps(x, index) {
                below = below.plus(Mass::of_weight(w));
            }
            (below > threshold).then_some((index, w))
        })
    }
}

/// What a row keeps, and where its weights are.
struct Nucleus {
    max: f32,
    cut: Cut,
    kept: Kept,
    place: Place,
}

impl Nucleus {
    fn draw(&self, token: u32, probability: f64, probability_error: f64) -> Draw {
        let Kept {
            kept,
            retained_mass,
            mass_error,
        } = self.kept;
        Draw {
            token,
            probability,
            probability_error,
            kept,
            retained_mass,
            mass_error,
        }
    }
}

/// Where the kept tokens are to be found.
#[derive(Clone, Copy)]
enum Place {
    /// Among the packed elements, weighed at the temperature of the cut.
    Packed,
    /// Everything is kept, and the scan knows the masses of the blocks within a bound.
    Scanned(Normaliser),
    /// Those above the bracket are summed per block; those inside it are packed and weighed.
    Split,
    /// In the row.
    Row,
}

/// What the normaliser is known to be.
#[derive(Clone, Copy)]
enum Total {
    Unknown,
    Within(Normaliser),
    Exact(Mass),
}

impl Total {
    /// Lower and upper bound, where there are any.
    fn bounds(self) -> Option<(Mass, Mass)> {
        match self {
            Total::Unknown => None,
            Total::Within(Normaliser { value, error }) => Some((
                Mass::at_least((value - error).max(0.0)),
                Mass::at_least(value + error),
            )),
            Total::Exact(mass) => Some((mass, mass)),
        }
    }

    /// What share of it a mass is, and the bound on that.
    fn ratio(self, mass: Mass) -> (f64, f64) {
        let mass = mass.to_f64();
        let (value, error) = match self {
            Total::Unknown => (f64::NAN, f64::INFINITY),
            Total::Within(Normaliser { value, error }) => (value, error),
            Total::Exact(total) => (total.to_f64(), 0.0),
        };
        // No share exceeds 1: where the bound lets the quotient do so, 1 is nearer to the truth.
        let ratio = (mass / value).min(1.0);
        (ratio, ratio * (error / (value - error) + RATIO_ERROR))
    }
}

/// Which tokens survive top-k and top-p; the floor of min-p stands beside it.
#[derive(Clone, Copy)]
struct Rule {
    top_k: u64,
    /// `top_p` where it is below 1.
    share: Option<f64>,
    /// Of which mass; of the whole row's where none is given.
    of: Option<Mass>,
}

impl Rule {
    /// The verdict on a token from what lies strictly above it, as a function.
    fn verdict(self, total: Total) -> impl Fn(Weighed) -> Verdict + Copy {
        let bounds = match self.of {
            Some(mass) => Some((mass, mass)),
            None => total.bounds(),
        };
        // Nothing lies above the maximum, and it is always kept: the target is above 0.
        // The product is the oracle's, rounded to f64 like its.
        let target = |p: f64, of: Mass| Mass::at_least(p.max(0.0) * of.to_f64()).max(Mass::UNIT);
        let (low, high) = match (self.share, bounds) {
            (None, _) => (Mass::MAX, Mass::MAX),
            (Some(p), Some((low, high))) => (target(p, low), target(p, high)),
            (Some(_), None) => (Mass::UNIT, Mass::MAX),
        };
        move |above: Weighed| {
            if above.count >= self.top_k || above.mass >= high {
                Verdict::Drop
            } else if above.mass < low {
                Verdict::Keep
            } else {
                Verdict::Unsure
            }
        }
    }
}

/// The lowest kept value, and how many of its ties are kept.
#[derive(Clone, Copy)]
struct Boundary {
    lowest: Lowest,
    kept_ties: u64,
}

impl Boundary {
    /// Everything that is kept.
    fn kept(&self) -> Weighed {
        let Lowest { above, ties, .. } = self.lowest;
        let each = ties.mass.each_of(ties.count);
        Weighed {
            count: above.count + self.kept_ties,
            mass: above.mass.plus(each.times(self.kept_ties)),
        }
    }
}

/// The bounds do not tell on which side of the boundary a token lies.
struct Unsure;

impl Boundary {
    /// All ties at the lowest kept value, or as many as a stable sort would keep.
    fn new(
        lowest: Lowest,
        together: bool,
        verdict: impl Fn(Weighed) -> Verdict,
    ) -> Result<Boundary, Unsure> {
        let all = Boundary {
            lowest,
            kept_ties: lowest.ties.count,
        };
        if together {
            return Ok(all);
        }
        let after = |kept_ties| verdict(Boundary { kept_ties, ..all }.kept());
        // The first tie is kept; the verdict is monotone.
        let (mut kept, mut beyond) = (1, all.kept_ties + 1);
        while beyond - kept > 1 {
            let middle = kept + (beyond - kept) / 2;
            match after(middle - 1) {
                Verdict::Keep => kept = middle,
                Verdict::Drop => beyond = middle,
                Verdict::Unsure => return Err(Unsure),
            }
        }
        Ok(Boundary {
            kept_ties: kept,
            ..all
        })
    }
}

/// The search for the cut of one row.
struct Search<'a> {
    row: &'a [f32],
    temperature: f32,
    scale: &'a Scale,
    max: f32,
    /// The smallest logit that min-p lets through; `f32::MIN` where it is off.
    floor: f32,
    /// The normaliser as the scan found it, and the best that is known.
    scanned: Total,
    normaliser: Total,
    together: bool,
    /// How many of the largest elements are known to be packed; `usize::MAX` for all that min-p
    /// lets through.
    packed: usize,
    sampler: &'a mut Sampler,
}

impl Search<'_> {
    /// Finds the boundary: among the largest elements where it lies there, else in the row.
    fn run(&mut self, rule: Rule) -> (Boundary, Place) {
        let top_k = usize::try_from(rule.top_k).unwrap_or(usize::MAX);
        let by_mass = rule.share.is_some() && rule.of.is_none();
        let needs = if by_mass {
            [top_k.min(FIRST), top_k.min(LIMIT)]
        } else {
            [top_k; 2]
        };
        for need in needs {
            if !self.select(need) {
                break;
            }
            loop {
                match self.among_packed(rule) {
                    Ok(Some(boundary)) => return (boundary, Place::Packed),
                    Ok(None) => break,
                    Err(Unsure) => self.exact_total(),
                }
            }
        }
        self.in_row(rule)
    }

    /// Packs and weighs at least `need` of the largest elements, or all that min-p lets through.
    /// False where they are too many.
    fn select(&mut self, need: usize) -> bool {
        if self.packed >= need {
            return true;
        }
        let Sampler {
            isa,
            spread,
            traces,
            packed,
            ..
        } = &mut *self.sampler;
        let capacity = capacity(self.row.len());
        let mut low = self.floor;
        if need <= capacity {
            let t = reach(*isa, traces, self.max, need, *spread * self.temperature);
            if t > f32::MIN {
                *spread = ((self.max - t) / self.temperature).clamp(1e-3, 1e3);
            }
            low = low.max(t);
        } else if low == f32::MIN && self.row.len() > capacity {
            return false;
        }
        let fits = pack(*isa, self.row, traces, low, capacity, packed);
        self.packed = match fits {
            false => 0,
            true if low <= self.floor => usize::MAX,
            true => need,
        };
        self.weigh_packed();
        fits
    }

    fn weigh_packed(&mut self) {
        let Sampler {
            isa,
            packed,
            weights,
            ..
        } = &mut *self.sampler;
        weights.resize(packed.values().len(), 0.0);
        weigh(*isa, packed.values(), self.scale, self.max, weights);
    }

    /// The boundary, where it lies among the packed elements.
    fn among_packed(&mut self, rule: Rule) -> Result<Option<Boundary>, Unsure> {
        let verdict = rule.verdict(self.normaliser);
        match self.cut_off(Weighed::default(), self.packed == usize::MAX, verdict) {
            Found::At(lowest) => Boundary::new(lowest, self.together, verdict).map(Some),
            Found::Below(_) | Found::Above => Ok(None),
            Found::Unsure => Err(Unsure),
        }
    }

    fn cut_off(
        &mut self,
        above: Weighed,
        complete: bool,
        verdict: impl Fn(Weighed) -> Verdict,
    ) -> Found {
        let Sampler {
            packed,
            weights,
            work,
            ..
        } = &mut *self.sampler;
        cut_off(packed.values(), weights, above, complete, verdict, work)
    }

    /// Makes the normaliser exact, where it is not yet.
    fn exact_total(&mut self) {
        if !matches!(self.normaliser, Total::Exact(_)) {
            let Sampler {
                isa,
                traces,
                block_masses,
                ..
            } = &mut *self.sampler;
            let all = Cut::NONE;
            let total = kept_masses(
                *isa,
                self.row,
                traces,
                self.scale,
                self.max,
                all,
                block_masses,
            );
            self.normaliser = Total::Exact(total);
        }
    }

    /// The normaliser to report: the scan's where it decides this boundary and the nucleus is
    /// small, else the exact one. Whatever the search came to know on its way does not count.
    fn total_for(&mut self, rule: Rule, found: &Boundary) -> Total {
        if found.kept().count <= LIMIT as u64 && self.scan_decides(rule, found) {
            return self.scanned;
        }
        self.exact_total();
        self.normaliser
    }

    fn scan_decides(&self, rule: Rule, found: &Boundary) -> bool {
        let Total::Within(_) = self.scanned else {
            return false;
        };
        let Boundary { lowest, .. } = *found;
        let verdict = rule.verdict(self.scanned);
        let below = |x: &f32| (self.floor..lowest.value).contains(x);
        verdict(lowest.above) == Verdict::Keep
            && Boundary::new(lowest, self.together, verdict).is_ok()
            && (verdict(lowest.above.plus(lowest.ties)) != Verdict::Unsure
                || !self.row.iter().any(below))
    }

    /// Finds the boundary by reading the row: a sample of it tells a bracket in which the cut
    /// should lie, one pass weighs what is above it and packs what is inside. A bracket that
    /// misses the cut still tells on which side it lies. After a few misses (an adversary's row)
    /// the bracket is halved by keys, which ends after 32 passes at most.
    fn in_row(&mut self, rule: Rule) -> (Boundary, Place) {
        self.packed = 0;
        // The cut lies in [lower, upper]; `known` lies above `upper`, `inside` in between.
        let (mut lower, mut upper) = (self.floor, self.max);
        let mut known = Weighed::default();
        let mut inside: Option<Mass> = None;
        for attempt in 0.. {
            let (low, high) = if rule.share.is_none() && rule.top_k == u64::MAX {
                (f32::INFINITY, self.floor.next_down())
            } else if attempt < SAMPLES && lower < upper {
                self.bracket(rule, attempt, (lower, upper), known, inside)
            } else {
                let middle = halfway(lower, upper);
                (middle, middle)
            };
            let Sampler {
                isa,
                packed,
                block_masses,
                ..
            } = &mut *self.sampler;
            let capacity = capacity(self.row.len());
            let mut pass = |bracket| {
                let (row, scale, max) = (self.row, self.scale, self.max);
                split(
                    *isa,
                    row,
                    scale,
                    max,
                    bracket,
                    capacity,
                    block_masses,
                    packed,
                )
            };
            let found = pass((low, high));
            self.normaliser = Total::Exact(found.total);
            let verdict = rule.verdict(self.normaliser);
            if verdict(found.above) != Verdict::Keep {
                inside = Some(found.above.mass.minus(known.mass));
                lower = high.next_up();
                continue;
            }
            if low > high {
                // Only min-p cuts: everything from the floor up was counted.
                let lowest = Lowest {
                    value: self.floor,
                    above: found.above,
                    ties: Weighed::default(),
                };
                return (
                    Boundary {
                        lowest,
                        kept_ties: 0,
                    },
                    Place::Split,
                );
            }
            let outcome = if found.packed {
                self.weigh_packed();
                self.cut_off(found.above, low <= self.floor, verdict)
            } else if low == high {
                // More ties than fit: they all weigh the same, and need not be packed.
                let with_ties = pass((f32::INFINITY, high.next_down())).above;
                let ties = with_ties.minus(found.above);
                let lowest = Lowest {
                    value: high,
                    above: found.above,
                    ties,
                };
                match verdict(with_ties) {
                    Verdict::Keep if low > self.floor => Found::Below(lowest),
                    _ => Found::At(lowest),
                }
            } else {
                // More than fit, though the bracket was narrow: the cut is known to lie below.
                upper = high;
                known = found.above;
                inside = None;
                continue;
            };
            match outcome {
                Found::At(lowest) => {
                    let Ok(boundary) = Boundary::new(lowest, self.together, verdict) else {
                        unreachable!("an exact normaliser leaves nothing open");
                    };
                    // The blocks' masses hold all ties that were too many to pack.
                    let all = boundary.kept_ties == lowest.ties.count;
                    return (
                        boundary,
                        if found.packed || all {
                            Place::Split
                        } else {
                            Place::Row
                        },
                    );
                }
                Found::Below(lowest) => {
                    known = lowest.above.plus(lowest.ties);
                    upper = low.next_down();
                    inside = None;
                }
                // Nothing was inside the bracket.
                Found::Above | Found::Unsure => {
                    known = found.above;
                    upper = low.next_down();
                    inside = None;
                }
            }
        }
        unreachable!("halving the keys ends")
    }

    /// A bracket that should hold the cut, from a sample of the elements in `range`.
    fn bracket(
        &mut self,
        rule: Rule,
        attempt: usize,
        range: (f32, f32),
        known: Weighed,
        inside: Option<Mass>,
    ) -> (f32, f32) {
        let (lower, upper) = range;
        let Sampler {
            isa,
            sample,
            weights,
            work,
            ..
        } = &mut *self.sampler;
        let share = sample_row(self.row, attempt, range, sample);
        if sample.is_empty() {
            let middle = halfway(lower, upper);
            return (middle, middle);
        }
        weights.resize(sample.len(), 0.0);
        weigh(*isa, sample, self.scale, self.max, weights);
        let sampled: f64 = weights.iter().sum();
        let heaviest = weights.iter().fold(0.0, |a: f64, &b| a.max(b));

        // Where the cut should lie in the sample: so many elements, so much mass.
        let want_count = rule.top_k.saturating_sub(known.count) as f64 * share;
        let inside = inside.or_else(|| {
            let (low, high) = self.normaliser.bounds()?;
            Some(low.plus(high).each_of(2).minus(known.mass))
        });
        let want_mass = rule.share.map_or(f64::INFINITY, |p| {
            let of = rule
                .of
                .or_else(|| self.normaliser.bounds().map(|(low, _)| low));
            // Without any normaliser, the sample has to stand in for it.
            let of = of.map_or(sampled / share, Mass::to_f64);
            let want = (p * of - known.mass.to_f64()).max(0.0);
            want * inside.map_or(share, |inside| {
                sampled / inside.to_f64().max(f64::MIN_POSITIVE)
            })
        });
        // Four standard deviations of a sum of so many, or so heavy, independent elements.
        let count_margin = 4.0 * want_count.sqrt() + 4.0;
        let mass_margin = 4.0 * (want_mass * heaviest).sqrt() + 4.0 * heaviest;
        let mut find = |sign: f64| {
            let count = want_count + sign * count_margin;
            let mass = want_mass
                + sign
                    * if want_mass.is_finite() {
                        mass_margin
                    } else {
                        0.0
                    };
            let keep = |a: Weighed| (a.count as f64) < count && a.mass.to_f64() < mass;
            let verdict = |a| {
                if keep(a) {
                    Verdict::Keep
                } else {
                    Verdict::Drop
                }
            };
            cut_off(sample, weights, Weighed::default(), false, verdict, work)
        };
        let high = match find(-1.0) {
            Found::At(lowest) | Found::Below(lowest) => lowest.value,
            Found::Above | Found::Unsure => upper,
        };
        let low = match find(1.0) {
            Found::At(lowest) => lowest.value,
            Found::Below(_) | Found::Above | Found::Unsure => lower,
        };
        (low, high)
    }
}

/// Samples of the row to try before the keys are halved.
const SAMPLES: usize = 3;
/// Vectors of 16 elements in a sample.
const SAMPLE_VECTORS: usize = 256;

/// Takes the elements in `range` from vectors spread evenly over the row, others at each attempt.
/// The share of the row that was looked at.
fn sample_row(row: &[f32], attempt: usize, range: (f32, f32), sample: &mut Vec<f32>) -> f64 {
    let (vectors, tail) = row.as_chunks::<16>();
    sample.clear();
    let mut seen = 0;
    let mut take = |vector: &[f32]| {
        seen += vector.len();
        sample.extend(vector.iter().filter(|x| (range.0..=range.1).contains(*x)));
    };
    if vectors.len() <= SAMPLE_VECTORS {
        vectors.iter().for_each(|v| take(v));
        take(tail);
    } else {
        // Odd multiples of a fraction of the step: no two attempts share their vectors.
        let part = (2 * attempt + 1) as f64 / (2 * SAMPLES) as f64;
        let step = vectors.len() as f64 / SAMPLE_VECTORS as f64;
        (0..SAMPLE_VECTORS).for_each(|i| take(&vectors[((i as f64 + part) * step) as usize]));
    }
    seen as f64 / row.len() as f64
}

/// Room for packed elements, of 16 bytes each, in a row of `len` logits of 4 bytes each.
fn capacity(len: usize) -> usize {
    (len / 4).max(2 * LIMIT)
}

/// The smallest logit `x` with `exp((x - max) / temperature) >= min_p`; `f32::MIN` where that is
/// every unmasked one.
fn min_p_floor(min_p: f64, temperature: f32, max: f32) -> f32 {
    if min_p <= 0.0 {
        return f32::MIN;
    }
    let (max, temperature, log) = (f64::from(max), f64::from(temperature), libm::log(min_p));
    let passes = |x: f32| (f64::from(x) - max) / temperature >= log;
    let mut x = ((max + temperature * log) as f32).clamp(f32::MIN, max as f32);
    while !passes(x) {
        x = x.next_up();
    }
    while x > f32::MIN && passes(x.next_down()) {
        x = x.next_down();
    }
    x
}

/// The index of the `n`-th element (from 1) that equals `value`.
fn nth_tie(row: &[f32], value: f32, n: u64) -> u32 {
    let mut left = n;
    let found = row.iter().position(|&x| {
        left -= u64::from(x == value);
        left == 0
    });
    found.expect("as many ties as were counted") as u32
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
