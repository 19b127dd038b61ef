//! From the maxima of groups to the few elements that can matter.

use bytemuck::cast_mut;

use crate::lanes::{Kernel, LANES, Lanes, Vector};
use crate::row::{BLOCK, Blocks, halfway};
use crate::scan::Traces;
use crate::tier::Isa;

/// A threshold that at least `need` elements of the scanned row reach, found on the maxima of its
/// groups; `f32::MIN` (which every unmasked element reaches) where there are too few groups.
///
/// Looks at `V / 64` maxima (`V / 8` for a large `need`) about eight times. `spread` is where to look first: how far below the
/// maximum such a threshold may lie. It changes the time and how many more elements than `need`
/// reach the threshold, nothing else.
///
/// ```
/// use topmass_kernels::{Isa, Tier, scan::{Traces, scan}, select::reach};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let row: Vec<f32> = (0..100_000).map(|i| (i % 1000) as f32).collect();
/// let mut traces = Traces::default();
/// let max = scan(isa, &row, None, false, &mut traces).unwrap().max;
/// let t = reach(isa, &traces, max, 200, 8.0);
/// assert!(row.iter().filter(|&&x| x >= t).count() >= 200);
/// ```
#[must_use]
pub fn reach(isa: Isa, traces: &Traces, max: f32, need: usize, spread: f32) -> f32 {
    let coarse = &traces.block_max[..];
    let maxima =
        if 4 * need <= LANES * coarse.len() { coarse } else { traces.chunk_max.as_flattened() };
    let count = |t: f32| isa.run(CountGe { maxima, t });
    // Invariant: fewer than `need` groups reach `high`; at least `need` reach `low` once it is
    // known to be enough.
    let mut high = max.next_up();
    let mut step = spread.max(max.abs() * f32::EPSILON).max(f32::MIN_POSITIVE);
    let mut low = loop {
        let t = (max - step).max(f32::MIN);
        let n = count(t);
        if n >= need {
            if n <= 2 * need {
                return t;
            }
            break t;
        }
        if t == f32::MIN {
            return f32::MIN;
        }
        high = t;
        step *= 2.0;
    };
    for round in 0..24 {
        // The middle of the values is quick on real rows; the middle of the keys halves what is
        // left on any.
        let t = if round % 2 == 0 { low / 2.0 + high / 2.0 } else { halfway(low, high) };
        if t <= low || t >= high {
            break;
        }
        match count(t) {
            n if n < need => high = t,
            n if n <= 2 * need => return t,
            _ => low = t,
        }
    }
    low
}

struct CountGe<'a> {
    maxima: &'a [Vector],
    t: f32,
}

impl Kernel for CountGe<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> usize {
        let t = l.splat(self.t);
        self.maxima.iter().map(|x| l.bits(l.ge(l.load(x), t)).count_ones() as usize).sum()
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
    isa.run(Pack { row, traces, low, capacity, packed })
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
        for (b, chunk_max) in self.traces.chunk_max.iter().enumerate() {
            for (c, maxima) in chunk_max.iter().enumerate() {
                if l.bits(l.ge(l.load(maxima), low)) == 0 {
                    continue;
                }
                for (v, x) in blocks.get(b)[c].iter().enumerate() {
                    let x = l.load(x);
                    let m = l.ge(x, low);
                    let first = b * BLOCK + (c * 8 + v) * LANES;
                    if l.bits(m) != 0 && !self.packed.push(l, m, x, first, self.capacity) {
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
