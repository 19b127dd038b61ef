//! One trip through memory: maxima, and the normaliser with a proved bound.
//!
//! ```text
//! origin = the first block's maximum, in units of the exponent
//! for each block of 1,024:
//!     the maxima of its groups, kept    (16 groups of 8 per chunk, 16 of 64 per block)
//!     sum of 2^(x scale - origin)       (f32 within 8 elements of a lane, f64 beyond)
//!     a maximum far beyond the origin becomes the origin, and the block is summed anew
//! normaliser = sum over blocks of sum * 2^(the block's origin - max * scale)
//! ```
//! An origin is an integer: to count from another changes no bit of a weight but its exponent, and
//! so the maximum need not be known beforehand.

use crate::exp::{Exp32, Scale, power_of_2};
use crate::fixed::Mass;
use crate::lanes::{Kernel, LANES, Lanes, Portable, Vector};
use crate::row::{BLOCK, Blocks, Chunk, blocks};
use crate::threshold::{Weighed, Weights, sum_above_and_at};
use crate::tier::Isa;

/// What a scan leaves behind for the later stages. Reused from row to row: it allocates only
/// when a row is longer than any before.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    /// Per block and chunk, 16 maxima of 8 elements each (lane `i` of the chunk's vectors).
    pub(crate) chunk_max: Vec<[Vector; 8]>,
    /// Per block, 16 maxima of 64 elements each.
    pub(crate) block_max: Vec<Vector>,
    /// Per block, the origin that its exponents were counted from.
    origin: Vec<f32>,
    /// Per block, its mass relative to the row's maximum.
    block_mass: Vec<f64>,
    /// Room for weights of the maxima.
    pub(crate) weights: Vec<Vector>,
}

impl Traces {
    /// Per block, its mass in units of the largest weight, as the `f32` scan found it. All of
    /// these together, and each sum of the first few, are off by at most
    /// [`Normaliser::error`].
    #[must_use]
    pub fn block_masses(&self) -> &[f64] {
        &self.block_mass
    }

    fn resize(&mut self, len: usize) {
        let n = blocks(len);
        self.chunk_max.resize(n, [[0.0; LANES]; 8]);
        self.block_max.resize(n, [0.0; LANES]);
        self.origin.resize(n, 0.0);
        self.block_mass.resize(n, 0.0);
        self.weights.resize(8 * n, [0.0; LANES]);
    }
}

/// Which of the two exponentials in `f32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exponential {
    /// Within 7.5e-5, at little more than the price of reading the row.
    Quick,
    /// Within 2e-7.
    Close,
}

/// The sum of all weights `exp((x - max) / T)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normaliser {
    /// The sum.
    pub value: f64,
    /// Proved absolute bound on it.
    pub error: f64,
    /// The part of the bound that is each weight's own: relative.
    exponential: f64,
    /// The rest of it.
    rest: f64,
    /// The origin of the row's maximum, and what brings weights counted from there to its unit.
    origin: f32,
    unit: f64,
}

impl Normaliser {
    /// The same, better known by the exact mass of some elements: only the others' weights are
    /// still in doubt. The elements are those `above` and `ties` of those at a value, as
    /// [`above_and_at`](crate::threshold::above_and_at) found them; all of them are in `values`,
    /// which is filled up to whole vectors.
    ///
    /// ```
    /// use topmass_kernels::{Isa, Scale, Tier, weigh};
    /// use topmass_kernels::scan::{Exponential, Traces, scan};
    /// use topmass_kernels::threshold::above_and_at;
    /// let isa = Isa::new(Tier::detected()).unwrap();
    /// let row: Vec<f32> = (0..400).map(|i| -(i as f32)).collect();
    /// let scale = Scale::new(1.0);
    /// let how = Some((&scale, Exponential::Quick));
    /// let z = scan(isa, &row, how, false, &mut Traces::default()).unwrap().normaliser.unwrap();
    /// let (head, mut weights) = (&row[..16], [0.0; 16]);
    /// weigh(isa, head, &scale, 0.0, &mut weights);
    /// let (above, at) = above_and_at(isa, head, &weights, -9.0);
    /// let better = z.knowing(isa, head, &scale, -9.0, at.count, above.plus(at).mass);
    /// let all = 1.0 / (1.0 - (-1.0f64).exp());
    /// assert!(better.error < z.error / 50.0 && (better.value - all).abs() <= better.error);
    /// ```
    #[must_use]
    pub fn knowing(
        self,
        isa: Isa,
        values: &[f32],
        scale: &Scale,
        lowest: f32,
        ties: u64,
        exact: Mass,
    ) -> Normaliser {
        let Normaliser { origin, .. } = self;
        let (above, at) = if self.exponential == QUICK {
            isa.run(Approximate::<false> { values, scale, origin, lowest })
        } else {
            isa.run(Approximate::<true> { values, scale, origin, lowest })
        };
        let head = above.mass.plus(at.mass.each_of(at.count).times(ties));
        // The masses are halves, see there.
        let others = (self.value - 2.0 * self.unit * head.to_f64()).max(0.0);
        let error = self.exponential * others + self.rest;
        Normaliser { value: exact.to_f64() + others, error, ..self }
    }
}

const QUICK: f64 = Exp32::<Portable, false>::ERROR;
const CLOSE: f64 = Exp32::<Portable, true>::ERROR;

/// What a scan found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scanned {
    /// The largest logit; `-inf` where all are masked.
    pub max: f32,
    /// How many logits are not `-inf`; only where it was asked for.
    pub unmasked: usize,
    /// The normaliser, where it was asked for and `f32` can tell it.
    pub normaliser: Option<Normaliser>,
}

/// Scans a row. `None` where it holds a NaN or `+inf`.
///
/// With a scale, also the normaliser, by the exponential named; with `count`, also how many
/// logits are unmasked. `O(V)`, one read of the row.
///
/// ```
/// use topmass_kernels::{Isa, Scale, Tier, scan::{Exponential, Traces, scan}};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let row: Vec<f32> = (0..5000).map(|i| (i % 100) as f32 / 10.0).collect();
/// let scale = Scale::new(1.0);
/// let how = Some((&scale, Exponential::Close));
/// let found = scan(isa, &row, how, true, &mut Traces::default()).unwrap();
/// let exact: f64 = row.iter().map(|&x| (f64::from(x) - f64::from(found.max)).exp()).sum();
/// let z = found.normaliser.unwrap();
/// assert_eq!((found.max, found.unmasked), (9.9, 5000));
/// assert!((z.value - exact).abs() <= z.error && z.error < 1e-6 * exact);
/// ```
pub fn scan(
    isa: Isa,
    row: &[f32],
    how: Option<(&Scale, Exponential)>,
    count: bool,
    traces: &mut Traces,
) -> Option<Scanned> {
    traces.resize(row.len());
    if let Some((scale, exponential)) = how.filter(|(scale, _)| scale.fits_f32()) {
        let figures = match exponential {
            Exponential::Quick => run::<false, true>(isa, row, scale, count, traces),
            Exponential::Close => run::<true, true>(isa, row, scale, count, traces),
        };
        match figures {
            Figures::Found { max, unmasked } => {
                let normaliser = normaliser(row.len(), scale, exponential, max, traces);
                return Some(Scanned { max, unmasked, normaliser });
            }
            Figures::Unclean => return None,
            Figures::TooFar => {}
        }
    }
    match run::<false, false>(isa, row, &Scale::new(1.0), count, traces) {
        Figures::Found { max, unmasked } => Some(Scanned { max, unmasked, normaliser: None }),
        Figures::Unclean | Figures::TooFar => None,
    }
}

fn run<const CLOSELY: bool, const EXP: bool>(
    isa: Isa,
    row: &[f32],
    scale: &Scale,
    count: bool,
    traces: &mut Traces,
) -> Figures {
    if count {
        isa.run(Scan::<CLOSELY, EXP, true> { row, scale, traces })
    } else {
        isa.run(Scan::<CLOSELY, EXP, false> { row, scale, traces })
    }
}

/// Brings the masses of the blocks to the unit of the largest weight, and adds them up.
fn normaliser(
    len: usize,
    scale: &Scale,
    exponential: Exponential,
    max: f32,
    traces: &mut Traces,
) -> Option<Normaliser> {
    let origin = scale.origin(max)?;
    let unit = scale.largest_unit(origin, max);
    let mut value = 0.0;
    for (mass, &from) in traces.block_mass.iter_mut().zip(&traces.origin) {
        *mass *= power_of_2(from - origin) * unit;
        value += *mass;
    }
    let exponential = match exponential {
        Exponential::Quick => QUICK,
        Exponential::Close => CLOSE,
    };
    let rest = rest_of_error(value, len, scale);
    Some(Normaliser { value, error: exponential * value + rest, exponential, rest, origin, unit })
}

/// Bound on the absolute error of a normaliser summed by [`Scan`], and of each partial sum, apart
/// from the error of the exponential itself.
///
/// A weight `2^-y` is off by `y * ln 2 * error32` of itself for the rounding of the scale. Summed
/// over the row, that needs the mean of `y` under the softmax, which is its entropy in bits less
/// `log2 Z`, and so at most `log2 V`. A tree of 8 in `f32` has 3 roundings. 2 % pays for the
/// products of errors and the `f64` steps; weights below 2^-126 were taken for 0.
fn rest_of_error(value: f64, len: usize, scale: &Scale) -> f64 {
    let ulp = f64::EPSILON * f64::powi(2.0, 28); // 2^-24
    let len = len as f64;
    let argument = log2_above(len) * std::f64::consts::LN_2 * scale.error32();
    1.02 * (argument + 3.0 * ulp) * value + len * f64::powi(2.0, -126)
}

/// An upper bound on `log2`, from the exponent alone.
fn log2_above(x: f64) -> f64 {
    let exponent = (x.to_bits() >> 52) as i32 - 1023;
    f64::from(exponent + 1)
}

enum Figures {
    Found {
        max: f32,
        unmasked: usize,
    },
    /// There is a NaN or `+inf`.
    Unclean,
    /// Exponents are too far from 0 for `f32`, or there is a NaN or `+inf`.
    TooFar,
}

struct Scan<'a, const CLOSELY: bool, const EXP: bool, const COUNT: bool> {
    row: &'a [f32],
    scale: &'a Scale,
    traces: &'a mut Traces,
}

/// How far a block's maximum may lie beyond the origin before that moves, in binary places.
const BEYOND: f32 = 64.0;

impl<const CLOSELY: bool, const EXP: bool, const COUNT: bool> Kernel
    for Scan<'_, CLOSELY, EXP, COUNT>
{
    type Output = Figures;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Figures {
        let masked = l.splat(f32::NEG_INFINITY);
        let infinity = l.splat(f32::INFINITY);
        let mut padded = [0.0; BLOCK];
        let blocks = Blocks::new(self.row, &mut padded);
        let mut max = masked;
        let mut unmasked = 0;
        let mut total = 0.0;
        let mut clean = l.ge(masked, masked);
        // The first maximum lies beyond this.
        let mut origin = 0.0;
        let mut exp = Exp32::<L, CLOSELY>::new(l, self.scale, origin);
        let mut limit = masked;

        let traces = self.traces;
        let outs = traces.chunk_max.iter_mut().zip(&mut traces.block_max);
        let outs = outs.zip(traces.origin.iter_mut().zip(&mut traces.block_mass));
        for (b, ((chunk_max, block_max), (block_origin, block_mass))) in outs.enumerate() {
            let block = blocks.get(b);
            let mut largest = masked;
            let mut sum = l.splat_d(0.0);
            for (chunk, out) in block.iter().zip(chunk_max) {
                let group = max8(l, chunk);
                l.store(group, out);
                largest = l.max(largest, group);
                if EXP {
                    sum = l.add_d(sum, l.widen(sum8(l, &exp, chunk)));
                } else {
                    // The sum of exp would show NaN and +inf; without it they must be looked for.
                    for vector in chunk {
                        clean = l.and(clean, l.gt(infinity, l.load(vector)));
                    }
                }
                if COUNT {
                    unmasked += count_above(l, chunk, masked);
                }
            }
            l.store(largest, block_max);
            max = l.max(max, largest);

            if EXP {
                if l.bits(l.gt(largest, limit)) != 0 {
                    let largest = l.reduce_max(largest);
                    let Some(from) = self.scale.origin(largest) else { return Figures::TooFar };
                    origin = from;
                    exp = Exp32::new(l, self.scale, origin);
                    limit = l.splat((origin + BEYOND) / self.scale.scale32);
                    sum = l.splat_d(0.0);
                    for chunk in block {
                        sum = l.add_d(sum, l.widen(sum8(l, &exp, chunk)));
                    }
                }
                *block_origin = origin;
                *block_mass = l.reduce_add(sum);
                total += *block_mass;
            }
        }
        // A NaN makes its own weight NaN, and so the total; +inf is too far from any origin.
        let clean = if EXP { !f64::is_nan(total) } else { l.bits(clean) == 0xffff };
        if clean { Figures::Found { max: l.reduce_max(max), unmasked } } else { Figures::Unclean }
    }
}

/// The approximate masses of elements, halved, counted from the origin of the row's maximum.
struct Approximate<'a, const CLOSELY: bool> {
    values: &'a [f32],
    scale: &'a Scale,
    origin: f32,
    lowest: f32,
}

impl<const CLOSELY: bool> Kernel for Approximate<'_, CLOSELY> {
    type Output = (Weighed, Weighed);

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Self::Output {
        // From one beyond the largest, so that no weight exceeds 1.
        let exp = Exp32::<L, CLOSELY>::new(l, self.scale, self.origin + 1.0);
        sum_above_and_at(l, self.values, exp, self.lowest)
    }
}

impl<L: Lanes, const CLOSELY: bool> Weights<L> for Exp32<L, CLOSELY> {
    #[inline(always)]
    fn of(self, l: L, x: L::F, _: usize) -> L::D {
        l.widen(self.weight(l, x))
    }
}

// Functions, not closures: only a function can be told to be inlined, and what is not inlined
// into the region compiled for the tier calls every intrinsic as a function.

/// The maximum of each lane.
#[inline(always)]
pub(crate) fn max8<L: Lanes>(l: L, [a, b, c, d, e, f, g, h]: &Chunk) -> L::F {
    let low = l.max(max2(l, a, b), max2(l, c, d));
    l.max(low, l.max(max2(l, e, f), max2(l, g, h)))
}

#[inline(always)]
fn max2<L: Lanes>(l: L, a: &Vector, b: &Vector) -> L::F {
    l.max(l.load(a), l.load(b))
}

/// The sum of each lane's weights, by pairs, pairs of pairs and so on.
#[inline(always)]
pub(crate) fn sum8<L: Lanes, const CLOSELY: bool>(
    l: L,
    exp: &Exp32<L, CLOSELY>,
    [a, b, c, d, e, f, g, h]: &Chunk,
) -> L::F {
    let low = l.add(sum2(l, exp, a, b), sum2(l, exp, c, d));
    l.add(low, l.add(sum2(l, exp, e, f), sum2(l, exp, g, h)))
}

#[inline(always)]
fn sum2<L: Lanes, const CLOSELY: bool>(
    l: L,
    exp: &Exp32<L, CLOSELY>,
    a: &Vector,
    b: &Vector,
) -> L::F {
    l.add(exp.weight(l, l.load(a)), exp.weight(l, l.load(b)))
}

/// How many elements exceed the lanes of `low`; quick where all do.
#[inline(always)]
fn count_above<L: Lanes>(l: L, chunk: &Chunk, low: L::F) -> usize {
    let mut all = l.gt(l.load(&chunk[0]), low);
    for x in &chunk[1..] {
        all = l.and(all, l.gt(l.load(x), low));
    }
    if l.bits(all) == 0xffff {
        return LANES * chunk.len();
    }
    let mut count = 0;
    for x in chunk {
        count += l.bits(l.gt(l.load(x), low)).count_ones() as usize;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::laws::{Random, tiers};

    /// Rows whose maxima come early, late, in steps that move the origin, near 0 and far from it.
    fn rows() -> Vec<Vec<f32>> {
        let mut random = Random(4);
        let mut noise = |len: usize, span: f64, base: f64| -> Vec<f32> {
            (0..len).map(|_| (base + span * random.unit()) as f32).collect()
        };
        let mut rows = vec![
            noise(1, 0.0, 3.0),
            noise(17, 8.0, -4.0),
            noise(1024, 30.0, 100.0),
            noise(5000, 0.1, -2000.0),
            noise(9000, 20.0, -10.0),
            noise(3000, 4000.0, -2000.0),
        ];
        let mut stairs = noise(5345, 6.0, 0.0);
        stairs.iter_mut().enumerate().for_each(|(i, x)| *x += 80.0 * (i / 1024) as f32);
        rows.push(stairs.iter().rev().copied().collect());
        rows.push(stairs);
        let mut masked = vec![f32::NEG_INFINITY; 4000];
        masked[3001] = -5.0;
        masked[3999] = 200.0;
        rows.push(masked);
        rows
    }

    #[test]
    fn a_normaliser_is_within_its_bound_on_every_tier() {
        let mut worst = [0.0f64; 2];
        for row in rows() {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for temperature in [1.0, 0.7, 0.05, 20.0] {
                let t = f64::from(temperature);
                let exact: f64 =
                    row.iter().map(|&x| ((f64::from(x) - f64::from(max)) / t).exp()).sum();
                let scale = Scale::new(temperature);
                for (how, worst) in
                    [Exponential::Quick, Exponential::Close].into_iter().zip(&mut worst)
                {
                    let mut first: Option<(Scanned, Vec<f64>)> = None;
                    for isa in tiers() {
                        let mut traces = Traces::default();
                        let found = scan(isa, &row, Some((&scale, how)), true, &mut traces);
                        let found = found.expect("a clean row");
                        assert_eq!(found.max, max);
                        let unmasked = row.iter().filter(|&&x| x > f32::NEG_INFINITY).count();
                        assert_eq!(found.unmasked, unmasked);
                        let masses = traces.block_masses().to_vec();
                        let first = first.get_or_insert_with(|| (found, masses.clone()));
                        assert_eq!(*first, (found, masses), "tier {}", isa.tier());
                    }
                    let (found, masses) = first.expect("the portable tier always runs");
                    let z = found.normaliser.expect("near enough for f32");
                    assert!(
                        (z.value - exact).abs() <= z.error,
                        "{how:?} {temperature} {exact} {z:?}"
                    );
                    *worst = worst.max(z.error / exact);
                    // So is every partial sum by blocks.
                    let (mut partial, mut literal) = (0.0, 0.0);
                    for (mass, block) in masses.iter().zip(row.chunks(BLOCK)) {
                        partial += mass;
                        let weight = |&x: &f32| ((f64::from(x) - f64::from(max)) / t).exp();
                        literal += block.iter().map(weight).sum::<f64>();
                        assert!((partial - literal).abs() <= z.error);
                    }
                }
            }
        }
        println!("bounds up to {worst:?} of the sum");
        assert!(worst[0] < 8e-5 && worst[1] < 1.2e-6);
    }

    #[test]
    fn exponents_too_far_from_0_leave_the_normaliser_out_and_nothing_else() {
        for isa in tiers() {
            let mut traces = Traces::default();
            let scale = Scale::new(0.001);
            for row in [vec![2e4, -2e4, 1e4], vec![-3e38; 2000], vec![f32::MIN, f32::MAX, 0.0]] {
                let how = Some((&scale, Exponential::Quick));
                let found = scan(isa, &row, how, false, &mut traces).expect("a clean row");
                assert_eq!(found.max, row.iter().copied().fold(f32::MIN, f32::max));
                assert_eq!(found.normaliser, None);
            }
            for bad in [f32::NAN, f32::INFINITY] {
                for at in [0, 15, 1023, 1024, 2500] {
                    let mut row = vec![-3e38; 2501];
                    row[at] = bad;
                    let how = Some((&scale, Exponential::Quick));
                    assert_eq!(scan(isa, &row, how, false, &mut traces), None, "{bad} at {at}");
                }
            }
        }
    }
}
