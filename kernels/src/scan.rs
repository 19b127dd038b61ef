//! One trip through memory: maxima, and the normaliser with a proved bound.
//!
//! ```text
//! for each block of 1,024:              (4 KiB: it is read from memory once, and stays in L1)
//!     the maxima of its groups, kept    (16 groups of 8 per chunk, 16 of 64 per block)
//!     reference = max(reference, the block's maximum)
//!     sum of exp((x - reference) / T)   (f32 within the block)
//! normaliser = sum over blocks of sum * exp((reference - max) / T)   (f64)
//! ```

use crate::exp::{EXP32_ERROR, Exp32, Scale, weigh};
use crate::lanes::{Kernel, LANES, Lanes, Vector};
use crate::row::{BLOCK, Blocks, Chunk, blocks};
use crate::tier::Isa;

/// What a scan leaves behind for the later stages. Reused from row to row: it allocates only
/// when a row is longer than any before.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    /// Per block and chunk, 16 maxima of 8 elements each (lane `i` of the chunk's vectors).
    pub(crate) chunk_max: Vec<[Vector; 8]>,
    /// Per block, 16 maxima of 64 elements each.
    pub(crate) block_max: Vec<Vector>,
    /// Per block, the maximum up to it.
    reference: Vec<f32>,
    /// Per block, its mass relative to the row's maximum.
    block_mass: Vec<f64>,
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
        self.reference.resize(n, 0.0);
        self.block_mass.resize(n, 0.0);
    }
}

/// The sum of all weights `exp((x - max) / T)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normaliser {
    /// The sum.
    pub value: f64,
    /// Proved absolute bound on it.
    pub error: f64,
}

/// What a scan found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scanned {
    /// The largest logit; `-inf` where all are masked.
    pub max: f32,
    /// How many logits are not `-inf`; only where it was asked for.
    pub unmasked: usize,
    /// The normaliser, where a scale was given.
    pub normaliser: Option<Normaliser>,
}

/// Scans a row. `None` where it holds a NaN or `+inf`.
///
/// With a `scale` (for which [`Scale::fits_f32`] holds), also the normaliser; with `count`, also
/// how many logits are unmasked. `O(V)`, one read of the row.
///
/// ```
/// use topmass_kernels::{Isa, Scale, Tier, scan::{Traces, scan}};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let row: Vec<f32> = (0..5000).map(|i| (i % 100) as f32 / 10.0).collect();
/// let found = scan(isa, &row, Some(&Scale::new(1.0)), true, &mut Traces::default()).unwrap();
/// let exact: f64 = row.iter().map(|&x| (f64::from(x) - f64::from(found.max)).exp()).sum();
/// let z = found.normaliser.unwrap();
/// assert_eq!((found.max, found.unmasked), (9.9, 5000));
/// assert!((z.value - exact).abs() <= z.error && z.error < 3e-6 * exact);
/// ```
pub fn scan(
    isa: Isa,
    row: &[f32],
    scale: Option<&Scale>,
    count: bool,
    traces: &mut Traces,
) -> Option<Scanned> {
    traces.resize(row.len());
    let figures = match (scale, count) {
        (Some(scale), true) => isa.run(Scan::<true, true> { row, scale, traces }),
        (Some(scale), false) => isa.run(Scan::<true, false> { row, scale, traces }),
        (None, true) => isa.run(Scan::<false, true> { row, scale: &Scale::new(1.0), traces }),
        (None, false) => isa.run(Scan::<false, false> { row, scale: &Scale::new(1.0), traces }),
    }?;
    let normaliser = scale.map(|scale| {
        // References lie at or below the maximum; those of blocks before the first unmasked
        // token are -inf and weigh nothing, like the blocks themselves.
        let mut factors = [0.0; 64];
        let mut value = 0.0;
        for (masses, references) in
            traces.block_mass.chunks_mut(64).zip(traces.reference.chunks(64))
        {
            let factors = &mut factors[..masses.len()];
            weigh(isa, references, scale, figures.max, factors);
            for (mass, factor) in masses.iter_mut().zip(factors) {
                *mass *= *factor;
                value += *mass;
            }
        }
        Normaliser { value, error: error_bound(value, row.len(), scale) }
    });
    Some(Scanned { max: figures.max, unmasked: figures.unmasked, normaliser })
}

/// Bound on the absolute error of a normaliser summed by [`Scan`], and of each partial sum.
///
/// A weight `2^-y` is off by `EXP32_ERROR + y * ln 2 * (2^-24 + error32)` of itself. The second
/// part, summed over the row, needs the mean of `y` under the softmax, which is its entropy in
/// bits less `log2 Z`, and so at most `log2 V`. The sum within a block adds 3 + 7 roundings
/// (a tree of 8, then 8 in sequence from 0). 2 % pays for the products of errors and the `f64`
/// steps; weights below 2^-126 were taken for 0.
fn error_bound(value: f64, len: usize, scale: &Scale) -> f64 {
    let ulp = f64::EPSILON * f64::powi(2.0, 28); // 2^-24
    let len = len as f64;
    let argument = log2_above(len) * std::f64::consts::LN_2 * (ulp + scale.error32());
    let relative = EXP32_ERROR + argument + 10.0 * ulp;
    1.02 * relative * value + len * f64::powi(2.0, -126)
}

/// An upper bound on `log2`, from the exponent alone.
fn log2_above(x: f64) -> f64 {
    let exponent = (x.to_bits() >> 52) as i32 - 1023;
    f64::from(exponent + 1)
}

struct Figures {
    max: f32,
    unmasked: usize,
}

struct Scan<'a, const EXP: bool, const COUNT: bool> {
    row: &'a [f32],
    scale: &'a Scale,
    traces: &'a mut Traces,
}

impl<const EXP: bool, const COUNT: bool> Kernel for Scan<'_, EXP, COUNT> {
    type Output = Option<Figures>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Option<Figures> {
        let exp = Exp32::new(l, self.scale);
        let masked = l.splat(f32::NEG_INFINITY);
        let infinity = l.splat(f32::INFINITY);
        let mut padded = [0.0; BLOCK];
        let blocks = Blocks::new(self.row, &mut padded);
        let mut max = f32::NEG_INFINITY;
        let mut unmasked = 0;
        let mut total = 0.0;
        let mut clean = l.ge(masked, masked);

        let traces = self.traces;
        let outs = traces.chunk_max.iter_mut().zip(&mut traces.block_max);
        let outs = outs.zip(traces.reference.iter_mut().zip(&mut traces.block_mass));
        for (b, ((chunk_max, block_max), (reference, block_mass))) in outs.enumerate() {
            let block = blocks.get(b);

            let mut largest = masked;
            for (chunk, out) in block.iter().zip(chunk_max) {
                let group = max8(l, chunk);
                l.store(group, out);
                largest = l.max(largest, group);
                if !EXP {
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
            let largest = l.reduce_max(largest);
            max = if largest > max { largest } else { max };

            if EXP {
                *reference = max;
                // With nothing but masked tokens so far, any finite reference makes them weigh 0.
                let r = l.splat(if max == f32::NEG_INFINITY { 0.0 } else { max });
                let mut sum = l.splat(0.0);
                for chunk in block {
                    sum = l.add(sum, sum8(l, &exp, chunk, r));
                }
                *block_mass = l.reduce_add(sum);
                total += *block_mass;
            }
        }
        // A NaN or +inf makes its own difference to the reference, and so the total, NaN.
        let clean = if EXP { !f64::is_nan(total) } else { l.bits(clean) == 0xffff };
        clean.then_some(Figures { max, unmasked })
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
pub(crate) fn sum8<L: Lanes>(
    l: L,
    exp: &Exp32<L>,
    [a, b, c, d, e, f, g, h]: &Chunk,
    r: L::F,
) -> L::F {
    let low = l.add(sum2(l, exp, a, b, r), sum2(l, exp, c, d, r));
    l.add(low, l.add(sum2(l, exp, e, f, r), sum2(l, exp, g, h, r)))
}

#[inline(always)]
fn sum2<L: Lanes>(l: L, exp: &Exp32<L>, a: &Vector, b: &Vector, r: L::F) -> L::F {
    l.add(exp.weight(l, l.load(a), r), exp.weight(l, l.load(b), r))
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
