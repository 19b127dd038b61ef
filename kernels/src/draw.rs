//! Over the survivors of a cut, in index order: their masses, and their probabilities.

use crate::exp::{Exp64, Scale, weigh};
use crate::fixed::{Mass, MassLanes, Parts};
use crate::lanes::{Kernel, LANES, Lanes};
use crate::row::{BLOCK, Blocks, Cut, blocks};
use crate::scan::Traces;
use crate::select::Packed;
use crate::threshold::Weighed;
use crate::tier::Isa;

/// What a [`split`] of the row found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// The whole row's mass.
    pub total: Mass,
    /// What lies above the bracket.
    pub above: Weighed,
    /// How many elements lie inside the bracket.
    pub inside: u64,
    /// Whether they fitted.
    pub packed: bool,
}

/// Weighs the whole row in `f64`, adds up what lies above `high` per block, and packs what lies
/// between `low` and `high`, both included. One read of the row, `O(V)`, about ten operations an
/// element more than the `f32` scan.
///
/// ```
/// use topmass_kernels::{Isa, Mass, Scale, Tier, draw::split, select::Packed};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let row = [0.0, 2.0, 1.0, 2.0, f32::NEG_INFINITY];
/// let (mut masses, mut packed) = (Vec::new(), Packed::default());
/// let split = split(isa, &row, &Scale::new(1.0), 2.0, (1.0, 1.5), 9, &mut masses, &mut packed);
/// assert_eq!((split.above.count, split.above.mass), (2, Mass::of_weight(1.0).times(2)));
/// assert_eq!(packed.indices(), [2]);
/// ```
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments, named at the call")]
pub fn split(
    isa: Isa,
    row: &[f32],
    scale: &Scale,
    max: f32,
    (low, high): (f32, f32),
    capacity: usize,
    block_masses: &mut Vec<Mass>,
    packed: &mut Packed,
) -> Split {
    packed.reset(capacity);
    block_masses.clear();
    block_masses.resize(blocks(row.len()), Mass::ZERO);
    let split = isa.run(SplitRow { row, scale, max, low, high, capacity, block_masses, packed });
    packed.finish();
    split
}

struct SplitRow<'a> {
    row: &'a [f32],
    scale: &'a Scale,
    max: f32,
    low: f32,
    high: f32,
    capacity: usize,
    block_masses: &'a mut [Mass],
    packed: &'a mut Packed,
}

impl Kernel for SplitRow<'_> {
    type Output = Split;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Split {
        let exp = Exp64::new(l, self.scale, self.max);
        let (low, high) = (l.splat(self.low), l.splat(self.high));
        let mut padded = [0.0; BLOCK];
        let blocks = Blocks::new(self.row, &mut padded);
        let mut split =
            Split { total: Mass::ZERO, above: Weighed::default(), inside: 0, packed: true };
        for (b, block_mass) in self.block_masses.iter_mut().enumerate() {
            let mut total = MassLanes::new(l);
            let mut above = MassLanes::new(l);
            for (v, x) in blocks.get(b).as_flattened().iter().enumerate() {
                let x = l.load(x);
                let parts = Parts::of(l, exp.weight(l, x));
                total.add_parts(l, parts);
                split.above.count += above.add_where(l, l.gt(x, high), parts);
                // Without asking whether there are any: that would be a guess.
                let between = l.and(l.ge(x, low), l.ge(high, x));
                split.inside += u64::from(l.bits(between).count_ones());
                let first = b * BLOCK + v * LANES;
                split.packed =
                    split.packed && self.packed.push(l, between, x, first, self.capacity);
            }
            *block_mass = above.mass(l);
            split.above.mass = split.above.mass.plus(*block_mass);
            split.total = split.total.plus(total.mass(l));
        }
        split
    }
}

/// Adds up what a cut keeps, per block. Reads only chunks of the scanned row that the cut
/// reaches. The masses of all blocks together are returned.
///
/// ```
/// use topmass_kernels::{Cut, Isa, Mass, Scale, Tier, draw::kept_masses, scan::{Traces, scan}};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let row = [0.0, 2.0, 1.0, 2.0];
/// let mut traces = Traces::default();
/// let max = scan(isa, &row, None, false, &mut traces).unwrap().max;
/// let cut = Cut { value: 2.0, last_tie: 1 };
/// let mut masses = Vec::new();
/// let kept = kept_masses(isa, &row, &traces, &Scale::new(1.0), max, cut, &mut masses);
/// assert_eq!((kept, masses), (Mass::of_weight(1.0), vec![Mass::of_weight(1.0)]));
/// ```
pub fn kept_masses(
    isa: Isa,
    row: &[f32],
    traces: &Traces,
    scale: &Scale,
    max: f32,
    cut: Cut,
    block_masses: &mut Vec<Mass>,
) -> Mass {
    block_masses.clear();
    block_masses.resize(blocks(row.len()), Mass::ZERO);
    isa.run(KeptMasses { row, traces, scale, max, cut, block_masses })
}

struct KeptMasses<'a> {
    row: &'a [f32],
    traces: &'a Traces,
    scale: &'a Scale,
    max: f32,
    cut: Cut,
    block_masses: &'a mut [Mass],
}

impl Kernel for KeptMasses<'_> {
    type Output = Mass;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Mass {
        let exp = Exp64::new(l, self.scale, self.max);
        let mut padded = [0.0; BLOCK];
        let blocks = Blocks::new(self.row, &mut padded);
        let mut copy = [[[0.0; LANES]; 8]; 8];
        let mut total = Mass::ZERO;
        let outs = self.block_masses.iter_mut().zip(&self.traces.chunk_max);
        for (b, (block_mass, chunk_max)) in outs.enumerate() {
            let (block, low) = self.cut.on_block(blocks.get(b), b, &mut copy);
            let low = l.splat(low);
            let mut sum = MassLanes::new(l);
            for (chunk, maxima) in block.iter().zip(chunk_max) {
                if l.bits(l.ge(l.load(maxima), low)) == 0 {
                    continue;
                }
                for x in chunk {
                    let x = l.load(x);
                    sum.add(l, l.keep(l.ge(x, low), exp.weight(l, x)));
                }
            }
            *block_mass = sum.mass(l);
            total = total.plus(*block_mass);
        }
        total
    }
}

/// Writes `weight / mass` for what a cut keeps of the scanned row, 0 elsewhere. Each value is
/// within 2^-24 + 2^-50 of itself (the rounding to `f32`), where it is a normal number.
///
/// # Panics
/// Where `probs` is not as long as the row.
///
/// ```
/// use topmass_kernels::{Cut, Isa, Scale, Tier, draw::write_probabilities, scan::{Traces, scan}};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let row = [0.0, 2.0, 1.0, 2.0];
/// let mut traces = Traces::default();
/// let max = scan(isa, &row, None, false, &mut traces).unwrap().max;
/// let mut probs = [9.0; 4];
/// let cut = Cut { value: 2.0, last_tie: u32::MAX };
/// write_probabilities(isa, &row, &traces, &Scale::new(1.0), max, cut, 2.0, &mut probs);
/// assert_eq!(probs, [0.0, 0.5, 0.0, 0.5]);
/// ```
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments, named at the call")]
pub fn write_probabilities(
    isa: Isa,
    row: &[f32],
    traces: &Traces,
    scale: &Scale,
    max: f32,
    cut: Cut,
    mass: f64,
    probs: &mut [f32],
) {
    assert_eq!(row.len(), probs.len());
    isa.run(WriteProbabilities { row, traces, scale, max, cut, mass, probs });
}

struct WriteProbabilities<'a> {
    row: &'a [f32],
    traces: &'a Traces,
    scale: &'a Scale,
    max: f32,
    cut: Cut,
    mass: f64,
    probs: &'a mut [f32],
}

impl Kernel for WriteProbabilities<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let exp = Exp64::new(l, self.scale, self.max);
        let factor = l.splat_d(1.0 / self.mass);
        let mut padded = [0.0; BLOCK];
        let blocks = Blocks::new(self.row, &mut padded);
        let mut copy = [[[0.0; LANES]; 8]; 8];
        self.probs.fill(0.0);
        for (b, (chunk_max, out)) in
            self.traces.chunk_max.iter().zip(self.probs.chunks_mut(BLOCK)).enumerate()
        {
            let (block, low) = self.cut.on_block(blocks.get(b), b, &mut copy);
            let low = l.splat(low);
            for (c, (chunk, maxima)) in block.iter().zip(chunk_max).enumerate() {
                if l.bits(l.ge(l.load(maxima), low)) == 0 {
                    continue;
                }
                let mut probs = [[0.0; LANES]; 8];
                for (x, p) in chunk.iter().zip(&mut probs) {
                    let x = l.load(x);
                    let w = l.keep(l.ge(x, low), exp.weight(l, x));
                    l.store(l.narrow(l.mul_d(w, factor)), p);
                }
                let probs = probs.as_flattened();
                let start = c * probs.len();
                let out = &mut out[start..];
                let n = probs.len().min(out.len());
                out[..n].copy_from_slice(&probs[..n]);
            }
        }
    }
}

/// Where in the row a partial sum of kept masses first exceeds `threshold`: the index, and that
/// element's weight. `masses` are the blocks' kept masses; `None` where their sum does not exceed it.
///
/// ```
/// use topmass_kernels::{Cut, Isa, Mass, Scale, Tier, draw::locate};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let one = Mass::of_weight(1.0);
/// let at = |t| locate(isa, &[2.0, 0.0, 2.0], &Scale::new(1.0), 2.0,
///     Cut { value: 2.0, last_tie: 9 }, &[one.plus(one)], t);
/// assert_eq!((at(Mass::ZERO), at(one)), (Some((0, 1.0)), Some((2, 1.0))));
/// ```
#[must_use]
pub fn locate(
    isa: Isa,
    row: &[f32],
    scale: &Scale,
    max: f32,
    cut: Cut,
    masses: &[Mass],
    threshold: Mass,
) -> Option<(usize, f64)> {
    let mut below = Mass::ZERO;
    let b = masses.iter().position(|&mass| {
        let beyond = below.plus(mass) > threshold;
        if !beyond {
            below = below.plus(mass);
        }
        beyond
    })?;
    locate_in(isa, row, scale, max, cut, b, below, threshold)
}

/// [`locate`] in one block, what lies before it weighing `below`.
///
/// ```
/// use topmass_kernels::{Cut, Isa, Mass, Scale, Tier, draw::locate_in};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let one = Mass::of_weight(1.0);
/// let cut = Cut { value: 2.0, last_tie: 9 };
/// let at = locate_in(isa, &[2.0, 0.0, 2.0], &Scale::new(1.0), 2.0, cut, 0, Mass::ZERO, one);
/// assert_eq!(at, Some((2, 1.0)));
/// ```
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments, named at the call")]
#[must_use]
pub fn locate_in(
    isa: Isa,
    row: &[f32],
    scale: &Scale,
    max: f32,
    cut: Cut,
    block: usize,
    mut below: Mass,
    threshold: Mass,
) -> Option<(usize, f64)> {
    let start = block * BLOCK;
    let block = &row[start..row.len().min(start + BLOCK)];
    let mut w = [0.0; BLOCK];
    weigh(isa, block, scale, max, &mut w[..block.len()]);
    block.iter().zip(w).enumerate().find_map(|(i, (&x, w))| {
        if cut.keeps(x, (start + i) as u32) {
            below = below.plus(Mass::of_weight(w));
        }
        (below > threshold).then_some((start + i, w))
    })
}
