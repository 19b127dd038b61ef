//! The cut-off among packed elements: a guess, and its proof.
//!
//! ```text
//! guess   halve the range of values, each time adding up count and mass above the middle in f64,
//!         until few elements are left: sort those, go down one by one
//! prove   the exact count and mass above the guess, and at it: the verdict above must be Keep,
//!         below Drop
//! else    (a guess that f64 sums put wrong)
//!   range = the keys of the elements
//!   loop: add up count and mass per bucket of the range (256 of them, equal widths of key)
//!         go down the buckets while the verdict at a bucket's end is Keep
//!         the bucket where it no longer is holds the cut: it is the next range
//!   until it has few elements: sort those, go down value by value
//! ```
//! The bucket of a key is a shift: it is computed one way only, every element falls into exactly
//! one, and a bucket may hold any number of ties. `O(n)` per level, at most four levels.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use crate::fixed::{Mass, MassLanes, Parts};
use crate::lanes::{Kernel, LANES, Lanes, Vector};
use crate::row::{BLOCK, halfway, key, unkey};
use crate::tier::Isa;

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
    guess: Vec<(f32, f64)>,
}

impl Default for Workspace {
    fn default() -> Self {
        Workspace {
            buckets: Vec::with_capacity(BUCKETS as usize),
            few: Vec::with_capacity(FEW),
            guess: Vec::with_capacity(FEW),
        }
    }
}

/// Where a cut should lie: the first element with so much above it is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aim {
    /// So many elements.
    pub count: u64,
    /// So much mass, in units of the largest weight.
    pub mass: f64,
}

/// Finds the cut among some elements of a row, given their weights.
///
/// `above` is what lies above all of them; `verdict` says whether an element is kept from what
/// lies strictly above it, and must be monotone: once it is not `Keep` it never is again.
/// `aim` is about where it changes (counted from the top of these elements); it changes the time,
/// not the result. `complete` says that nothing below the elements could be kept anyway.
/// The elements are filled up with `-inf` to whole vectors of 16, the weights with anything.
///
/// # Panics
/// Where the elements are not filled up, or the weights are fewer.
///
/// ```
/// use topmass_kernels::{Isa, Tier};
/// use topmass_kernels::threshold::{Aim, Found, Verdict, Weighed, Workspace, cut_off};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let top_1 = |above: Weighed| if above.count < 1 { Verdict::Keep } else { Verdict::Drop };
/// let (mut values, weights) = ([f32::NEG_INFINITY; 16], [0.1; 16]);
/// values[..4].copy_from_slice(&[1.0, 5.0, 2.0, 5.0]);
/// let (above, aim) = (Weighed::default(), Aim { count: 1, mass: f64::INFINITY });
/// let found = cut_off(isa, &values, &weights, above, true, aim, top_1, &mut Workspace::default());
/// let Found::At(lowest) = found else { panic!() };
/// assert_eq!((lowest.value, lowest.ties.count), (5.0, 2));
/// ```
#[expect(clippy::too_many_arguments, reason = "a kernel's arguments, named at the call")]
pub fn cut_off(
    isa: Isa,
    values: &[f32],
    weights: &[f64],
    above: Weighed,
    complete: bool,
    aim: Aim,
    verdict: impl Fn(Weighed) -> Verdict,
    work: &mut Workspace,
) -> Found {
    match verdict(above) {
        Verdict::Keep => {}
        Verdict::Drop => return Found::Above,
        Verdict::Unsure => return Found::Unsure,
    }
    let Some(value) = guess(isa, values, weights, aim, work) else { return Found::Unsure };
    let (more, ties) = above_and_at(isa, values, weights, value);
    let lowest = Lowest { value, above: above.plus(more), ties };
    let masked = values.iter().rev().take(LANES).filter(|&&x| x == f32::NEG_INFINITY).count();
    let last = more.count + ties.count == (values.len() - masked) as u64;
    match (verdict(lowest.above), verdict(lowest.above.plus(ties))) {
        (Verdict::Unsure, _) => Found::Unsure,
        // With nothing below, nobody asks whether it would be kept.
        (Verdict::Keep, Verdict::Drop) => Found::At(lowest),
        (Verdict::Keep, _) if last && complete => Found::At(lowest),
        (Verdict::Keep, Verdict::Keep) if last => Found::Below(lowest),
        (Verdict::Keep, Verdict::Unsure) => Found::Unsure,
        _ => by_buckets(values, weights, above, complete, verdict, work),
    }
}

/// The lowest of some elements that a cut at `aim` keeps, as far as `f64` sums tell; `None` of none.
/// The elements and the weights are filled up as for [`cut_off`].
///
/// # Panics
/// As [`cut_off`].
///
/// ```
/// use topmass_kernels::{Isa, Tier, threshold::{Aim, Workspace, guess}};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
/// let aim = Aim { count: 9, mass: 0.7 };
/// let lowest = guess(isa, &values, &[0.25; 16], aim, &mut Workspace::default());
/// assert_eq!(lowest, Some(13.0));
/// ```
#[must_use]
pub fn guess(
    isa: Isa,
    values: &[f32],
    weights: &[f64],
    aim: Aim,
    work: &mut Workspace,
) -> Option<f32> {
    isa.run(Guess { values, weights, aim, few: &mut work.guess }).map(|(lowest, _)| lowest)
}

/// What of some elements lies above a finite value, and what at it. The elements and the weights
/// are filled up as for [`cut_off`].
///
/// # Panics
/// As [`cut_off`].
///
/// ```
/// use topmass_kernels::{Isa, Mass, Tier, threshold::above_and_at};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let values: Vec<f32> = (0..16).map(|i| i as f32).collect();
/// let (above, at) = above_and_at(isa, &values, &[0.25; 16], 13.0);
/// assert_eq!((above.count, at.count, above.mass), (2, 1, Mass::of_weight(0.5)));
/// ```
#[must_use]
pub fn above_and_at(isa: Isa, values: &[f32], weights: &[f64], value: f32) -> (Weighed, Weighed) {
    isa.run(AboveAndAt { values, weights, value })
}

struct AboveAndAt<'a> {
    values: &'a [f32],
    weights: &'a [f64],
    value: f32,
}

impl Kernel for AboveAndAt<'_> {
    type Output = (Weighed, Weighed);

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Self::Output {
        sum_above_and_at(l, self.values, self.weights, self.value)
    }
}

/// The weights of elements, a vector at a time.
pub(crate) trait Weights<L: Lanes>: Copy {
    /// Of the `i`-th vector, which is `x`; in `[0, 1]`.
    fn of(self, l: L, x: L::F, i: usize) -> L::D;
}

impl<L: Lanes> Weights<L> for &[f64] {
    #[inline(always)]
    fn of(self, l: L, _: L::F, i: usize) -> L::D {
        l.load_d(&self.as_chunks().0[i])
    }
}

/// Whole vectors of elements.
#[inline(always)]
fn whole(values: &[f32]) -> &[Vector] {
    let (vectors, rest) = values.as_chunks();
    assert!(rest.is_empty(), "elements are filled up to whole vectors");
    vectors
}

#[inline(always)]
pub(crate) fn sum_above_and_at<L: Lanes>(
    l: L,
    values: &[f32],
    weights: impl Weights<L>,
    value: f32,
) -> (Weighed, Weighed) {
    let v = l.splat(value);
    let (mut above, mut at) = (Weighed::default(), Weighed::default());
    for (part, vectors) in whole(values).chunks(BLOCK / LANES).enumerate() {
        let mut masses = [MassLanes::new(l); 2];
        for (i, x) in vectors.iter().enumerate() {
            let x = l.load(x);
            let w = weights.of(l, x, part * (BLOCK / LANES) + i);
            let parts = Parts::of(l, w);
            above.count += masses[0].add_where(l, l.gt(x, v), parts);
            at.count += masses[1].add_where(l, l.ge(x, v), parts);
        }
        above.mass = above.mass.plus(masses[0].mass(l));
        at.mass = at.mass.plus(masses[1].mass(l));
    }
    (above, at.minus(above))
}

/// The lowest element that is kept, as far as `f64` sums tell; none of none.
struct Guess<'a> {
    values: &'a [f32],
    weights: &'a [f64],
    aim: Aim,
    few: &'a mut Vec<(f32, f64)>,
}

impl Kernel for Guess<'_> {
    /// And how often it looked at all of the elements.
    type Output = Option<(f32, u32)>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Option<(f32, u32)> {
        let Guess { values, weights, aim, few } = self;
        let vectors = whole(values);
        let (last, others) = vectors.split_last()?;
        let zero = l.splat(0.0);
        let (mut largest, mut least) = (l.load(last), l.splat(f32::NEG_INFINITY));
        // A filling's weight may be anything: the last vector's are left out, as this but guides.
        let mut mass = l.splat_d(0.0);
        for (i, x) in others.iter().enumerate() {
            let x = l.load(x);
            mass = l.add_d(mass, weights.of(l, x, i));
            largest = l.max(largest, x);
            least = l.max(least, l.sub(zero, x));
        }
        // The lowest kept one lies in low (not included) to high; above high is kept.
        let mut high = l.reduce_max(largest);
        // The last vector's filling is no element.
        let mut low = -l.reduce_max(least);
        for &x in last {
            low = if x < low && x > f32::NEG_INFINITY { x } else { low };
        }
        low = low.next_down();
        let elements = values.len() - last.iter().filter(|&&x| x == f32::NEG_INFINITY).count();
        // What lies above each of them.
        let all = (elements as u64, l.reduce_add(mass));
        let (mut above_high, mut above_low) = ((0, 0.0), all);
        let mut round = 0u32;
        while above_low.0 - above_high.0 > FEW as u64 {
            if round >= 16 && round.is_multiple_of(8) {
                // Ties cannot be parted: is all that is left one value?
                let inside = values.iter().filter(|&&x| x > low && x <= high);
                let (mut least, mut largest) = (high, low);
                for &x in inside {
                    least = if x < least { x } else { least };
                    largest = if x > largest { x } else { largest };
                }
                if least == largest {
                    return Some((largest, round));
                }
                (low, high) = (least.next_down(), largest);
            }
            // Where the aim lies between the two, were the values spread evenly; a few elements to
            // this side of it, then to that, so that only those few are left where they are. In
            // turn with the middle of the values, at last with the middle of the keys, which
            // halves what is left whatever the values.
            let left = (above_low.0 - above_high.0) as f64;
            let share = if aim.mass < f64::INFINITY {
                (aim.mass - above_high.1) / (above_low.1 - above_high.1)
            } else {
                (aim.count - above_high.0) as f64 / left
            };
            let few = FEW as f64 / 3.0 / left;
            let at =
                |share: f64| (f64::from(high) - (f64::from(high) - f64::from(low)) * share) as f32;
            let middle = match round % 3 {
                1 => at(share - few),
                2 => at(share + few),
                _ if round < 12 => low / 2.0 + high / 2.0,
                _ => halfway(low, high),
            };
            round += 1;
            if !(middle > low && middle < high) {
                if low.next_up() >= high {
                    return Some((high, round));
                }
                continue;
            }
            let m = l.splat(middle);
            let (mut count, mut mass) = (0, l.splat_d(0.0));
            for (i, x) in vectors.iter().enumerate() {
                let x = l.load(x);
                let over = l.gt(x, m);
                count += u64::from(l.bits(over).count_ones());
                mass = l.add_d(mass, l.keep(over, weights.of(l, x, i)));
            }
            let mass = l.reduce_add(mass);
            if count >= aim.count || mass >= aim.mass {
                (low, above_low) = (middle, (count, mass));
            } else {
                (high, above_high) = (middle, (count, mass));
            }
        }
        few.clear();
        let (l_low, l_high) = (l.splat(low), l.splat(high));
        for (i, x) in vectors.iter().enumerate() {
            let x = l.load(x);
            let mut inside = l.bits(l.and(l.gt(x, l_low), l.ge(l_high, x)));
            while inside != 0 {
                let at = i * LANES + inside.trailing_zeros() as usize;
                few.push((values[at], weights[at]));
                inside &= inside - 1;
            }
        }
        few.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        let (mut count, mut mass) = above_high;
        let mut lowest = high;
        for ties in few.chunk_by(|a, b| a.0 == b.0) {
            if count >= aim.count || mass >= aim.mass {
                break;
            }
            lowest = ties[0].0;
            for (_, w) in ties {
                count += 1;
                mass += w;
            }
        }
        Some((lowest, round))
    }
}

/// The cut, whatever the elements; `above` is known to be kept.
fn by_buckets(
    values: &[f32],
    weights: &[f64],
    mut above: Weighed,
    complete: bool,
    verdict: impl Fn(Weighed) -> Verdict,
    work: &mut Workspace,
) -> Found {
    let Workspace { buckets, few, .. } = work;
    let keys = values.iter().filter(|x| **x > f32::NEG_INFINITY).map(|&x| key(x));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::laws::{Random, tiers};

    /// A cut does not hang on the aim, which only says where to look: one that is far off makes the
    /// guess fail its proof, and the buckets find the cut.
    #[test]
    fn a_wrong_aim_changes_nothing() {
        let mut random = Random(6);
        let mut work = Workspace::default();
        for round in 0..60 {
            // Often no more than a vector.
            let n = 1 + (random.unit().powi(4) * 700.0) as usize;
            let ties = round % 3 == 0;
            let mut values: Vec<f32> = (0..n)
                .map(|_| {
                    let x = random.unit() * 9.0 - 4.0;
                    (if ties { x.round() } else { x }) as f32
                })
                .collect();
            let mut weights: Vec<f64> = values.iter().map(|&x| f64::from(x - 5.0).exp()).collect();
            values.resize(n.next_multiple_of(LANES), f32::NEG_INFINITY);
            weights.resize(values.len(), 0.7);
            let total: f64 = weights[..n].iter().sum();
            let right = Aim { count: 1 + (random.unit() * n as f64) as u64, mass: 0.8 * total };
            let mass = Mass::at_least(right.mass);
            let verdict = |above: Weighed| {
                let keep = above.count < right.count && above.mass < mass;
                if keep { Verdict::Keep } else { Verdict::Drop }
            };
            // The literal rule.
            let kept = values[..n].iter().filter(|&&x| {
                let above = values.iter().zip(&weights).filter(|(y, _)| **y > x);
                let (count, sum) = above
                    .fold((0, Mass::ZERO), |(n, m), (_, &w)| (n + 1, m.plus(Mass::of_weight(w))));
                verdict(Weighed { count, mass: sum }) == Verdict::Keep
            });
            let lowest = kept.copied().fold(f32::INFINITY, f32::min);
            let wrong = [
                right,
                Aim { count: 1, mass: 0.0 },
                Aim { count: u64::MAX, mass: f64::INFINITY },
                Aim { count: right.count / 2, mass: 0.1 * total },
                Aim { count: 0, mass: f64::NAN },
            ];
            for isa in tiers() {
                assert_eq!(guess(isa, &values, &weights, right, &mut work), Some(lowest));
                for aim in wrong {
                    let none = Weighed::default();
                    let found =
                        cut_off(isa, &values, &weights, none, true, aim, verdict, &mut work);
                    let Found::At(found) = found else { panic!("{found:?}") };
                    assert_eq!(found.value, lowest, "{aim:?} {} of {n}", isa.tier());
                    let (above, at) = above_and_at(isa, &values, &weights, lowest);
                    assert_eq!((found.above, found.ties), (above, at));
                }
            }
        }
    }

    /// Where nothing is dropped, or nothing known, and the guess looks elsewhere.
    #[test]
    fn all_kept_or_unsure() {
        let mut values = [f32::NEG_INFINITY; 112];
        (0..100).for_each(|i| values[i] = -((i * 37 % 100) as f32));
        let weights = [0.25; 112];
        let (none, mut work) = (Weighed::default(), Workspace::default());
        for isa in tiers() {
            for count in [0, 1, 50, 100, u64::MAX] {
                let aim = Aim { count, mass: f64::INFINITY };
                let mut found = |complete, limit: u64, then| {
                    let verdict = |above: Weighed| {
                        if above.count < limit { Verdict::Keep } else { then }
                    };
                    cut_off(isa, &values, &weights, none, complete, aim, verdict, &mut work)
                };
                let (above, ties) = above_and_at(isa, &values, &weights, -99.0);
                let last = Lowest { value: -99.0, above, ties };
                for limit in [101, u64::MAX] {
                    assert_eq!(found(true, limit, Verdict::Drop), Found::At(last), "{aim:?}");
                    assert_eq!(found(false, limit, Verdict::Drop), Found::Below(last), "{aim:?}");
                }
                // With nothing below, nobody asks.
                assert_eq!(found(true, 100, Verdict::Unsure), Found::At(last), "{aim:?}");
                for limit in [0, 1, 37, 99] {
                    assert_eq!(found(true, limit, Verdict::Unsure), Found::Unsure, "{aim:?}");
                }
                assert_eq!(found(false, 100, Verdict::Unsure), Found::Unsure, "{aim:?}");
                assert_eq!(found(true, 0, Verdict::Drop), Found::Above, "{aim:?}");
            }
        }
    }

    /// No cut depends on how often the guess looks at the elements; its time does. For each shape of
    /// their values: the looks on average, and at most.
    #[test]
    fn few_looks_are_needed() {
        type Shape = fn(f64) -> f64;
        let mut work = Workspace::default();
        let even = |u: f64| -20.0 * u;
        let tail = |u: f64| u.ln();
        let peak = |u: f64| -20.0 * u.powi(6);
        let apart = |u: f64| if u < 0.5 { -1e-3 * u } else { -1e9 * u };
        let far = |u: f64| -(60.0 * u - 30.0).exp();
        let ties = |u: f64| (-20.0 * u).round();
        let shapes: [(Shape, f64, u32); 6] = [
            (even, 4.3, 14),
            (tail, 6.1, 18),
            (peak, 13.3, 32),
            (apart, 14.1, 23),
            (far, 19.5, 32),
            (ties, 9.2, 18),
        ];
        for (shape, average, most) in shapes {
            for isa in tiers() {
                let mut random = Random(12);
                let (mut looks, mut guesses, mut longest) = (0, 0, 0);
                for n in [100usize, 700, 4000] {
                    let mut values: Vec<f32> =
                        (0..n).map(|_| shape(random.unit()) as f32).collect();
                    let mut weights: Vec<f64> =
                        values.iter().map(|&x| f64::from(x).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    values.resize(n.next_multiple_of(LANES), f32::NEG_INFINITY);
                    weights.resize(values.len(), 0.0);
                    for share in [0.01, 0.1, 0.5, 0.9, 0.99] {
                        let count = (share * n as f64) as u64;
                        for aim in [
                            Aim { count, mass: f64::INFINITY },
                            Aim { count: u64::MAX, mass: share * total },
                        ] {
                            let (values, weights, few) = (&values, &weights, &mut work.guess);
                            let found = isa.run(Guess { values, weights, aim, few: &mut *few });
                            assert!(few.len() <= FEW);
                            let (_, rounds) = found.expect("an element");
                            looks += rounds;
                            guesses += 1;
                            longest = longest.max(rounds);
                        }
                    }
                }
                let mean = f64::from(looks) / f64::from(guesses);
                assert!(mean <= average && longest <= most, "{most} {mean}, {longest}");
            }
        }
    }
}
