//! From the maxima of groups to the few elements that can matter.

use bytemuck::cast_mut;

use crate::exp::{Exp32, Scale};
use crate::lanes::{Kernel, LANES, Lanes, Vector};
use crate::row::{BLOCK, Blocks, blocks, halfway};
use crate::scan::Traces;
use crate::threshold::Aim;
use crate::tier::Isa;

/// A threshold below which nothing is kept by a cut that aims at `aim`, as the maxima of groups
/// tell: those that reach it are as many, or as heavy, by themselves. `None` where all of them are
/// not, or where the exponents are too far from 0 for `f32` to weigh them.
///
/// Weighs `V / 64` maxima, or `V / 8` where those are too few, and looks at them about eight
/// times. `spread` is where to look first: how far below the maximum such a threshold may lie. It
/// changes the time and how far the threshold lies below the best one, nothing else; the weights
/// are quick ones, so a mass may be missed by 1e-4 of itself.
///
/// ```
/// use topmass_kernels::{Isa, Scale, Tier, scan::{Traces, scan}, select::reach, threshold::Aim};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let row: Vec<f32> = (0..100_000).map(|i| (i % 1000) as f32).collect();
/// let mut traces = Traces::default();
/// let max = scan(isa, &row, None, false, &mut traces).unwrap().max;
/// let aim = Aim { count: 200, mass: f64::INFINITY };
/// let t = reach(isa, &mut traces, &Scale::new(1.0), max, aim, 8.0).unwrap();
/// assert!(row.iter().filter(|&&x| x >= t).count() >= 200);
/// ```
#[must_use]
pub fn reach(
    isa: Isa,
    traces: &mut Traces,
    scale: &Scale,
    max: f32,
    aim: Aim,
    spread: f32,
) -> Option<f32> {
    let origin = scale.origin(max).filter(|_| scale.fits_f32());
    let aim = match origin {
        _ if aim.mass == f64::INFINITY => aim,
        // From one beyond the largest, as weights are counted below; f32 sums are a little off.
        Some(origin) => {
            Aim { mass: aim.mass / (2.0 * scale.largest_unit(origin, max)) * 1.0001, ..aim }
        }
        None => return None,
    };
    let Traces { chunk_max, block_max, weights, .. } = traces;
    let search = Reach { isa, scale, origin: origin.unwrap_or(0.0), max, aim, spread };
    // Where many of the groups have to reach it, each lets in many others: then there are better
    // ways to the cut.
    let coarse = search.among(block_max, weights, 4);
    coarse.or_else(|| search.among(chunk_max.as_flattened(), weights, 2))
}

struct Reach<'a> {
    isa: Isa,
    scale: &'a Scale,
    origin: f32,
    max: f32,
    aim: Aim,
    spread: f32,
}

impl Reach<'_> {
    /// The threshold among some maxima, where no more than one in `part` of them has to reach it.
    fn among(&self, maxima: &[Vector], weights: &mut [Vector], part: u64) -> Option<f32> {
        let &Reach { isa, scale, origin, max, aim, spread } = self;
        let most = (maxima.len() * LANES) as u64 / part;
        if aim.count > most && aim.mass == f64::INFINITY {
            return None;
        }
        let by_mass = aim.mass < f64::INFINITY;
        let weights = if by_mass {
            let weights = &mut weights[..maxima.len()];
            isa.run(WeighQuick { maxima, scale, origin: origin + 1.0, out: weights });
            &*weights
        } else {
            &[]
        };
        let look = |t: f32| {
            let (count, mass) = isa.run(SumGe { maxima, weights, t });
            (count, count >= aim.count || mass >= aim.mass)
        };
        // Not enough groups reach `high`; enough reach `low` once it is known.
        let (mut high, mut above_high) = (max.next_up(), 0);
        let mut step = spread.max(max.abs() * f32::EPSILON).max(f32::MIN_POSITIVE);
        let (mut low, mut above_low) = loop {
            let t = (max - step).max(f32::MIN);
            let (count, enough) = look(t);
            if enough {
                break (t, count);
            }
            if t == f32::MIN || count > most {
                return None;
            }
            (high, above_high) = (t, count);
            step *= 2.0;
        };
        for round in 0..24 {
            // A few more than needed cost less than another look.
            if above_low - above_high <= 8 + above_high / 4 {
                break;
            }
            // The middle of the values is quick on real rows; the middle of the keys halves what
            // is left on any.
            let t = if round % 3 < 2 { low / 2.0 + high / 2.0 } else { halfway(low, high) };
            if t <= low || t >= high {
                break;
            }
            match look(t) {
                (count, true) => (low, above_low) = (t, count),
                (count, false) => (high, above_high) = (t, count),
            }
        }
        (above_low <= most).then_some(low)
    }
}

struct WeighQuick<'a> {
    maxima: &'a [Vector],
    scale: &'a Scale,
    origin: f32,
    out: &'a mut [Vector],
}

impl Kernel for WeighQuick<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let exp = Exp32::<L, false>::new(l, self.scale, self.origin);
        for (x, out) in self.maxima.iter().zip(self.out) {
            l.store(exp.weight(l, l.load(x)), out);
        }
    }
}

/// How many maxima reach a threshold, and how heavy they are where weights are given.
struct SumGe<'a> {
    maxima: &'a [Vector],
    weights: &'a [Vector],
    t: f32,
}

impl Kernel for SumGe<'_> {
    type Output = (u64, f64);

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> (u64, f64) {
        let t = l.splat(self.t);
        let mut count = 0;
        let mut mass = l.splat(0.0);
        if self.weights.is_empty() {
            for x in self.maxima {
                count += u64::from(l.bits(l.ge(l.load(x), t)).count_ones());
            }
        }
        for (x, w) in self.maxima.iter().zip(self.weights) {
            let reached = l.ge(l.load(x), t);
            count += u64::from(l.bits(reached).count_ones());
            mass = l.add(mass, l.only(reached, l.load(w)));
        }
        (count, l.reduce_add(l.widen(mass)))
    }
}

/// Elements of a row, packed in index order.
#[derive(Clone, Debug, Default)]
pub struct Packed {
    values: Vec<f32>,
    indices: Vec<u32>,
    len: usize,
}

impl Packed {
    /// The logits.
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values[..self.len]
    }

    /// The logits, filled up with `-inf` to whole vectors.
    #[must_use]
    pub fn padded(&self) -> &[f32] {
        &self.values[..self.len.next_multiple_of(LANES)]
    }

    /// Their positions in the row, ascending.
    #[must_use]
    pub fn indices(&self) -> &[u32] {
        &self.indices[..self.len]
    }

    /// Makes room for `capacity` elements.
    pub fn reserve(&mut self, capacity: usize) {
        // A whole vector is stored wherever there is room for one element.
        let room = capacity + LANES;
        if self.values.len() < room {
            self.values.resize(room, 0.0);
            self.indices.resize(room, 0);
        }
    }

    /// Forgets the elements, and makes room for `capacity` others.
    pub(crate) fn reset(&mut self, capacity: usize) {
        self.reserve(capacity);
        self.len = 0;
    }

    /// Fills up the last vector.
    pub(crate) fn finish(&mut self) {
        self.values[self.len..self.len.next_multiple_of(LANES)].fill(f32::NEG_INFINITY);
    }

    /// Appends the lanes of `x` that `m` names; false where `capacity` would be passed.
    #[inline(always)]
    pub(crate) fn push<L: Lanes>(
        &mut self,
        l: L,
        m: L::M,
        x: L::F,
        first_index: usize,
        capacity: usize,
    ) -> bool {
        let n = l.bits(m).count_ones() as usize;
        if self.len + n > capacity {
            return false;
        }
        let (at, end) = (self.len, self.len + LANES);
        let values = self.values[at..end].as_chunks_mut().0;
        l.compress(m, x, &mut values[0]);
        let indices = self.indices[at..end].as_chunks_mut().0;
        l.compress(
            m,
            l.index_bits(first_index as u32),
            cast_mut::<[u32; LANES], _>(&mut indices[0]),
        );
        self.len += n;
        true
    }
}

/// Packs every element of the scanned row that is at least `low` (above `-inf`). False where
/// there are more than `capacity`.
///
/// ```
/// use topmass_kernels::{Isa, Tier, scan::{Traces, scan}, select::{Packed, pack}};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let (mut traces, mut packed) = (Traces::default(), Packed::default());
/// let row = [1.0, 5.0, 2.0, 5.0];
/// scan(isa, &row, None, false, &mut traces);
/// assert!(pack(isa, &row, &traces, 2.0, 10, &mut packed));
/// assert_eq!((packed.values(), packed.indices()), (&[5.0, 2.0, 5.0][..], &[1, 2, 3][..]));
/// ```
pub fn pack(
    isa: Isa,
    row: &[f32],
    traces: &Traces,
    low: f32,
    capacity: usize,
    packed: &mut Packed,
) -> bool {
    packed.reset(capacity);
    let all = isa.run(Pack { row, traces, low, capacity, packed });
    packed.finish();
    all
}

struct Pack<'a> {
    row: &'a [f32],
    traces: &'a Traces,
    low: f32,
    capacity: usize,
    packed: &'a mut Packed,
}

impl Kernel for Pack<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let low = l.splat(self.low);
        let mut padded = [0.0; BLOCK];
        let blocks = Blocks::new(self.row, &mut padded);
        let maxima = self.traces.chunk_max.iter().zip(&self.traces.block_max);
        for (b, (chunk_max, block_max)) in maxima.enumerate() {
            if l.bits(l.ge(l.load(block_max), low)) == 0 {
                continue;
            }
            // Which chunks have such elements, without a branch on each: that would be a guess.
            let mut chunks = 0;
            for (c, maxima) in chunk_max.iter().enumerate() {
                chunks |= u32::from(l.bits(l.ge(l.load(maxima), low)) != 0) << c;
            }
            while chunks != 0 {
                let c = chunks.trailing_zeros() as usize;
                chunks &= chunks - 1;
                for (v, x) in blocks.get(b)[c].iter().enumerate() {
                    let x = l.load(x);
                    let first = b * BLOCK + (c * 8 + v) * LANES;
                    if !self.packed.push(l, l.ge(x, low), x, first, self.capacity) {
                        return false;
                    }
                }
            }
        }
        true
    }
}

/// The lowest index at which the scanned row reaches `low`.
///
/// ```
/// use topmass_kernels::{Isa, Tier, scan::{Traces, scan}, select::first_at_least};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let mut traces = Traces::default();
/// let row = [1.0, 5.0, 2.0, 5.0];
/// let max = scan(isa, &row, None, false, &mut traces).unwrap().max;
/// assert_eq!(first_at_least(isa, &row, &traces, max), Some(1));
/// ```
#[must_use]
pub fn first_at_least(isa: Isa, row: &[f32], traces: &Traces, low: f32) -> Option<usize> {
    isa.run(FirstGe { row, traces, low })
}

struct FirstGe<'a> {
    row: &'a [f32],
    traces: &'a Traces,
    low: f32,
}

impl Kernel for FirstGe<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Option<usize> {
        let low = l.splat(self.low);
        let block = self.traces.block_max.iter().position(|x| l.bits(l.ge(l.load(x), low)) != 0)?;
        let start = block * BLOCK;
        let rest = &self.row[start..];
        rest.iter().position(|&x| x >= self.low).map(|i| start + i)
    }
}

/// The index of the `n`-th element (from 1) of a row that equals `value`, where there is one.
///
/// ```
/// use topmass_kernels::{Isa, Tier, select::nth_equal};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// assert_eq!(nth_equal(isa, &[5.0, 1.0, 5.0, 2.0], 5.0, 2), Some(2));
/// assert_eq!(nth_equal(isa, &[5.0, 1.0, 5.0, 2.0], 5.0, 3), None);
/// ```
#[must_use]
pub fn nth_equal(isa: Isa, row: &[f32], value: f32, n: u64) -> Option<usize> {
    isa.run(NthEqual { row, value, n })
}

struct NthEqual<'a> {
    row: &'a [f32],
    value: f32,
    n: u64,
}

impl Kernel for NthEqual<'_> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Option<usize> {
        let value = l.splat(self.value);
        let mut left = self.n;
        let mut padded = [0.0; BLOCK];
        let rows = Blocks::new(self.row, &mut padded);
        for b in 0..blocks(self.row.len()) {
            let mut here = 0;
            for x in rows.get(b).as_flattened() {
                let x = l.load(x);
                here += u64::from(l.bits(l.and(l.ge(x, value), l.ge(value, x))).count_ones());
            }
            if here >= left {
                let equals = self.row[b * BLOCK..].iter().enumerate();
                let mut equals = equals.filter(|(_, x)| **x == self.value);
                return equals.nth(left as usize - 1).map(|(i, _)| b * BLOCK + i);
            }
            left -= here;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::laws::{Random, tiers};
    use crate::scan::scan;

    /// No cut depends on the threshold that is reached; but one that lets in too few is asked for
    /// again, and one that lets in too many has them weighed for nothing.
    #[test]
    fn enough_is_reached_and_little_more() {
        let mut random = Random(9);
        let scale = Scale::new(0.7);
        for vocab in [20_000, 60_001, 128_256] {
            let deviate = |random: &mut Random| (0..6).map(|_| random.unit()).sum::<f64>() * 4.0;
            let row: Vec<f32> = (0..vocab).map(|_| deviate(&mut random) as f32).collect();
            let mut sorted = row.clone();
            sorted.sort_unstable_by(|a, b| b.total_cmp(a));
            let max = sorted[0];
            let weight = |x: f32| ((f64::from(x) - f64::from(max)) / 0.7).exp();
            for isa in tiers() {
                let mut traces = Traces::default();
                scan(isa, &row, None, false, &mut traces).unwrap();
                for want in [1, 5, 60, 700] {
                    let mass: f64 = sorted[..want].iter().map(|&x| weight(x)).sum();
                    for aim in [
                        Aim { count: want as u64, mass: f64::INFINITY },
                        Aim { count: u64::MAX, mass },
                        Aim { count: want as u64, mass: 1e9 },
                    ] {
                        for spread in [0.01, 3.0, 40.0] {
                            let t = reach(isa, &mut traces, &scale, max, aim, spread);
                            let t = t.expect("few enough");
                            let reached = sorted.partition_point(|&x| x >= t);
                            let what = format!("{aim:?} {spread} {vocab}: {reached}");
                            assert!(reached <= 10 + want + want * 6 / 5, "{what}");
                            assert!(reached >= want, "{what}");
                        }
                    }
                }
            }
        }
    }
}
