//! Masses as integers, so that a sum is exact and its order cannot matter.
//!
//! A weight `w` in `[0, 1]` is rounded once to a multiple of 2^-92. Sums of such multiples are
//! exact in a `u128` for up to 2^35 weights: any blocking, any lane count and any order of the row
//! give the same integer. (The idea of pre-rounding to a common grid is that of Demmel and Nguyen,
//! "Fast Reproducible Floating-Point Summation", ARITH 2013.)
//!
//! In lanes it costs six operations: `w + 1` holds the multiple of 2^-52 in its mantissa, the rest
//! plus 1.5 * 2^-40 holds the multiple of 2^-92, and the bit patterns are added as integers.

use crate::lanes::{LANES, Lanes};

/// A mass in units of 2^-92 of the largest weight.
///
/// ```
/// use topmass_kernels::Mass;
/// let third = Mass::of_weight(1.0 / 3.0);
/// assert_eq!(third.to_f64(), 1.0 / 3.0);
/// assert!(third.plus(third) < Mass::of_weight(1.0));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mass(u128);

/// Binary places of a mass, of its upper part, and of the difference.
const PLACES: i32 = 92;
const LOW_PLACES: u32 = 40;
/// 1.5 * 2^-40: adding it rounds to multiples of 2^-92.
const LOW_MAGIC: f64 = 1.5 / (1u64 << LOW_PLACES) as f64;

impl Mass {
    /// Nothing.
    pub const ZERO: Mass = Mass(0);
    /// The smallest mass above nothing.
    pub const UNIT: Mass = Mass(1);
    /// More than any row holds.
    pub const MAX: Mass = Mass(u128::MAX);

    /// The mass of one weight in `[0, 1]`, rounded to the grid.
    #[inline]
    #[must_use]
    pub fn of_weight(w: f64) -> Mass {
        let t = w + 1.0;
        let low = (w - (t - 1.0)) + LOW_MAGIC;
        let bits = |x: f64, magic: f64| x.to_bits().wrapping_sub(magic.to_bits());
        Mass::of_parts(bits(t, 1.0), bits(low, LOW_MAGIC))
    }

    /// From sums of the two bit patterns, the magic constants taken out again.
    #[inline]
    fn of_parts(high: u64, low: u64) -> Mass {
        let high = u128::from(high) << LOW_PLACES;
        Mass(high.wrapping_add_signed(i128::from(low.cast_signed())))
    }

    /// The smallest mass that is not below a finite number from 0 to 2^35.
    #[must_use]
    pub fn at_least(x: f64) -> Mass {
        // The product is exact: a power of two.
        Mass((x * f64::powi(2.0, PLACES)).ceil() as u128)
    }

    /// The nearest `f64`.
    #[must_use]
    pub fn to_f64(self) -> f64 {
        self.0 as f64 * f64::powi(2.0, -PLACES)
    }

    /// `count` times this mass.
    #[must_use]
    pub fn times(self, count: u64) -> Mass {
        Mass(self.0 * u128::from(count))
    }

    /// The sum.
    #[inline]
    #[must_use]
    pub fn plus(self, other: Mass) -> Mass {
        Mass(self.0 + other.0)
    }

    /// The difference; nothing where `other` is larger.
    #[inline]
    #[must_use]
    pub fn minus(self, other: Mass) -> Mass {
        Mass(self.0.saturating_sub(other.0))
    }

    /// What each of `count` equal parts of this mass has.
    #[must_use]
    pub fn each_of(self, count: u64) -> Mass {
        Mass(self.0 / u128::from(count.max(1)))
    }

    /// `fraction * self`, exact, rounded down to the grid, for a fraction in `[0, 1)`.
    ///
    /// For a mass `m`, `m > fraction * self` exactly where `m > self.share(fraction)`; as a
    /// fraction is below 1, the share of any mass but nothing is below that mass.
    #[must_use]
    pub fn share(self, fraction: f64) -> Mass {
        debug_assert!((0.0..1.0).contains(&fraction));
        let bits = fraction.to_bits();
        let exponent = (bits >> 52).max(1) as u32;
        let hidden = u64::from(bits >> 52 != 0) << 52;
        let mantissa = u128::from(bits & ((1 << 52) - 1) | hidden);
        // fraction = mantissa * 2^-shift, mantissa below 2^53, shift at least 53.
        let shift = 1075 - exponent;
        // The product in two halves, high * 2^64 + low: self is below 2^127.
        let low = mantissa * (self.0 & u128::from(u64::MAX));
        let high = mantissa * (self.0 >> 64) + (low >> 64);
        let low = low & u128::from(u64::MAX);
        Mass(match shift {
            0..64 => high << (64 - shift) | low >> shift,
            64..192 => high >> (shift - 64),
            _ => 0,
        })
    }
}

/// Adds up to 4,095 weights (2^12 of the largest would overflow 64 bits) in lanes.
#[derive(Clone, Copy)]
pub(crate) struct MassLanes<L: Lanes> {
    high: L::A,
    low: L::A,
    /// How often the magic constants were added.
    lanes: u64,
}

/// Weights as the two bit patterns that [`MassLanes`] adds up.
#[derive(Clone, Copy)]
pub(crate) struct Parts<L: Lanes> {
    high: L::D,
    low: L::D,
}

impl<L: Lanes> Parts<L> {
    #[inline(always)]
    pub(crate) fn of(l: L, w: L::D) -> Self {
        let one = l.splat_d(1.0);
        let high = l.add_d(w, one);
        let rest = l.sub_d(w, l.sub_d(high, one));
        Parts { high, low: l.add_d(rest, l.splat_d(LOW_MAGIC)) }
    }
}

impl<L: Lanes> MassLanes<L> {
    #[inline(always)]
    pub(crate) fn new(l: L) -> Self {
        MassLanes { high: l.zero_a(), low: l.zero_a(), lanes: 0 }
    }

    #[inline(always)]
    pub(crate) fn add(&mut self, l: L, w: L::D) {
        self.add_parts(l, Parts::of(l, w));
    }

    #[inline(always)]
    pub(crate) fn add_parts(&mut self, l: L, parts: Parts<L>) {
        self.high = l.add_bits(self.high, parts.high);
        self.low = l.add_bits(self.low, parts.low);
        self.lanes += LANES as u64;
    }

    /// Adds the lanes that `m` names. How many they are is told.
    #[inline(always)]
    pub(crate) fn add_where(&mut self, l: L, m: L::M, parts: Parts<L>) -> u64 {
        // A lane left out adds a zero's bits: none.
        self.high = l.add_bits(self.high, l.keep(m, parts.high));
        self.low = l.add_bits(self.low, l.keep(m, parts.low));
        let lanes = u64::from(l.bits(m).count_ones());
        self.lanes += lanes;
        lanes
    }

    #[inline(always)]
    pub(crate) fn mass(self, l: L) -> Mass {
        let n = self.lanes;
        let sum = |acc, magic: f64| l.total(acc).wrapping_sub(n.wrapping_mul(magic.to_bits()));
        Mass::of_parts(sum(self.high, 1.0), sum(self.low, LOW_MAGIC))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mass_is_the_weight_to_the_last_bit_that_f64_has() {
        for w in [0.0, 1.0, 0.5, 1.0 / 3.0, 1e-5, 0.999_999_999_999_999_9, 1e-12, 2f64.powi(-70)] {
            let error = (Mass::of_weight(w).to_f64() - w).abs();
            assert!(error <= 2f64.powi(-93) + w * f64::EPSILON / 2.0, "{w}: {error}");
        }
        assert_eq!(Mass::of_weight(1.0), Mass(1 << 92));
        assert_eq!(Mass::of_weight(2f64.powi(-93) * 0.99), Mass::ZERO);
    }

    #[test]
    fn shares_are_exact() {
        let total = Mass((7u128 << 92) + 12_345);
        assert_eq!(total.share(0.5), Mass(((7u128 << 92) + 12_345) / 2));
        assert_eq!(Mass(1 << 100).share(0.25), Mass(1 << 98));
        assert_eq!(total.share(0.0), Mass::ZERO);
        assert_eq!(total.share(5e-324), Mass::ZERO);
        assert_eq!(Mass::UNIT.share(1.0f64.next_down()), Mass::ZERO);
        assert_eq!(Mass(1 << 120).share(2f64.powi(-70)), Mass(1 << 50));
        // 0.9 is 8106479329266893 * 2^-53.
        let m = Mass(3u128 << 110);
        assert_eq!(m.share(0.9).0, (3u128 * 8_106_479_329_266_893) << 57);
        let m = Mass((3u128 << 53) + 5);
        assert_eq!(m.share(0.9).0, 3 * 8_106_479_329_266_893 + 4);
    }

    #[test]
    fn at_least_rounds_up() {
        assert_eq!(Mass::at_least(1.0), Mass(1 << 92));
        assert_eq!(Mass::at_least(2f64.powi(-92) * 1.5), Mass(2));
        assert_eq!(Mass::at_least(0.0), Mass::ZERO);
    }
    #[test]
    fn masses_reckon_like_integers() {
        let (a, b) = (Mass((5 << 92) + 7), Mass(3 << 90));
        assert_eq!(a.plus(b), Mass((5 << 92) + (3 << 90) + 7));
        assert_eq!(a.minus(b), Mass((5 << 92) - (3 << 90) + 7));
        assert_eq!(b.minus(a), Mass::ZERO);
        assert_eq!(a.times(3), Mass((15 << 92) + 21));
        assert_eq!(a.times(3).each_of(3), a);
        assert_eq!((a.times(0), a.each_of(0)), (Mass::ZERO, a));
    }
}
