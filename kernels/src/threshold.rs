//! The cut-off among packed elements: buckets of the key, descended from the top.
//!
//! ```text
//! above = what is known to lie above all of the elements
//! range = the keys of the elements
//! loop: add up count and mass per bucket of the range (256 of them, equal widths of key)
//!       go down the buckets while the verdict at a bucket's end is Keep
//!       the bucket where it no longer is holds the cut: it is the next range
//! until it has few elements: sort those, go down value by value
//! ```
//! The bucket of a key is a shift: it is computed one way only, every element falls into exactly
//! one, and a bucket may hold any number of ties. `O(n)` per level, at most four levels.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use crate::fixed::Mass;
use crate::row::{key, unkey};

/// What a cut-off rule says of an element, from the count and the mass strictly above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The element is kept.
    Keep,
    /// It is not; nor is anything below it.
    Drop,
    /// The bounds on the masses do not tell.
    Unsure,
}

/// How many elements, and how much mass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weighed {
    /// How many.
    pub count: u64,
    /// How heavy they are together.
    pub mass: Mass,
}

impl Weighed {
    #[inline]
    fn add(&mut self, mass: Mass) {
        self.count += 1;
        self.mass = self.mass.plus(mass);
    }

    /// Both together.
    #[inline]
    #[must_use]
    pub fn plus(self, other: Weighed) -> Weighed {
        Weighed { count: self.count + other.count, mass: self.mass.plus(other.mass) }
    }

    /// What is left of this without `part` of it.
    #[must_use]
    pub fn minus(self, part: Weighed) -> Weighed {
        Weighed { count: self.count - part.count, mass: self.mass.minus(part.mass) }
    }
}

/// The lowest kept value, and what lies there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lowest {
    /// The value.
    pub value: f32,
    /// What lies strictly above it.
    pub above: Weighed,
    /// What equals it.
    pub ties: Weighed,
}

/// Where the cut lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Found {
    /// Here.
    At(Lowest),
    /// The first element itself is dropped.
    Above,
    /// Every element is kept, and the verdict on whatever lies below them is still `Keep`.
    Below(Lowest),
    /// A verdict that is needed is `Unsure`.
    Unsure,
}

/// Buckets of one level.
const BUCKETS: u32 = 256;
/// As few elements as are sorted.
const FEW: usize = 24;

/// Room for the search, a few KiB whatever the number of elements.
#[derive(Clone, Debug)]
pub struct Workspace {
    buckets: Vec<Weighed>,
    few: Vec<(u32, Mass)>,
}

impl Default for Workspace {
    fn default() -> Self {
        Workspace { buckets: Vec::with_capacity(BUCKETS as usize), few: Vec::with_capacity(FEW) }
    }
}

/// Finds the cut among some elements of a row, given their weights.
///
/// `above` is what lies above all of them; `verdict` says whether an element is kept from what
/// lies strictly above it, and must be monotone: once it is not `Keep` it never is again.
/// `complete` says that nothing below the elements could be kept anyway.
///
/// ```
/// use topmass_kernels::threshold::{Found, Verdict, Weighed, Workspace, cut_off};
/// let top_1 = |above: Weighed| if above.count < 1 { Verdict::Keep } else { Verdict::Drop };
/// let found = cut_off(&[1.0, 5.0, 2.0, 5.0], &[0.1; 4], Weighed::default(), true, top_1, &mut Workspace::default());
/// let Found::At(lowest) = found else { panic!() };
/// assert_eq!((lowest.value, lowest.ties.count), (5.0, 2));
/// ```
pub fn cut_off(
    values: &[f32],
    weights: &[f64],
    mut above: Weighed,
    complete: bool,
    verdict: impl Fn(Weighed) -> Verdict,
    work: &mut Workspace,
) -> Found {
    match verdict(above) {
        Verdict::Keep => {}
        Verdict::Drop => return Found::Above,
        Verdict::Unsure => return Found::Unsure,
    }
    let Workspace { buckets, few } = work;
    let keys = values.iter().map(|&x| key(x));
    let (Some(lowest), Some(highest)) = (keys.clone().min(), keys.clone().max()) else {
        return Found::Unsure;
    };
    let mut range = lowest..=highest;
    loop {
        let within = range.clone();
        let elements = keys.clone().zip(weights).filter(move |(k, _)| within.contains(k));
        let weighed = elements.map(|(k, &w)| (k, Mass::of_weight(w)));
        let inside;
        (range, inside) =
            descend(*range.start(), *range.end(), weighed.clone(), buckets, &mut above, &verdict);
        let end = Walk { above, bottom: lowest, complete, verdict: &verdict };
        if range.start() == range.end() {
            return end.down([(*range.start(), inside)]);
        }
        if inside.count <= FEW as u64 {
            few.clear();
            few.extend(weighed.filter(|(k, _)| range.contains(k)));
            few.sort_unstable_by_key(|&(k, _)| Reverse(k));
            return end.down(few.chunk_by(|a, b| a.0 == b.0).map(|ties| {
                let mut all = Weighed::default();
                ties.iter().for_each(|&(_, mass)| all.add(mass));
                (ties[0].0, all)
            }));
        }
    }
}

/// Adds up the elements in buckets of `low..=high`, and goes down to the bucket at whose end the
/// verdict is no longer Keep, or to the lowest. The keys of that bucket and what it holds; `above`
/// is then what lies above it.
fn descend(
    low: u32,
    high: u32,
    elements: impl Iterator<Item = (u32, Mass)>,
    buckets: &mut Vec<Weighed>,
    above: &mut Weighed,
    verdict: impl Fn(Weighed) -> Verdict,
) -> (RangeInclusive<u32>, Weighed) {
    let shift = (32 - (high - low).leading_zeros()).saturating_sub(BUCKETS.trailing_zeros());
    buckets.clear();
    buckets.resize(((high - low) >> shift) as usize + 1, Weighed::default());
    for (k, mass) in elements {
        buckets[((k - low) >> shift) as usize].add(mass);
    }
    let mut bucket = buckets.len() - 1;
    while bucket > 0 {
        let end = above.plus(buckets[bucket]);
        if verdict(end) != Verdict::Keep {
            break;
        }
        *above = end;
        bucket -= 1;
    }
    let low = low + ((bucket as u32) << shift);
    (low..=high.min(low.saturating_add((1 << shift) - 1)), buckets[bucket])
}

/// The end of the search: down the few values left, one by one.
struct Walk<V> {
    above: Weighed,
    /// The lowest key of all elements.
    bottom: u32,
    complete: bool,
    verdict: V,
}

impl<V: Fn(Weighed) -> Verdict> Walk<V> {
    fn down(self, groups: impl IntoIterator<Item = (u32, Weighed)>) -> Found {
        let mut above = self.above;
        let mut found = Found::Unsure;
        for (k, ties) in groups {
            let lowest = Lowest { value: unkey(k), above, ties };
            above = above.plus(ties);
            found = match (self.verdict)(above) {
                // With nothing below, nobody asks whether it would be kept.
                _ if k == self.bottom && self.complete => Found::At(lowest),
                Verdict::Keep => Found::Below(lowest),
                Verdict::Drop => return Found::At(lowest),
                Verdict::Unsure => return Found::Unsure,
            };
        }
        found
    }
}
