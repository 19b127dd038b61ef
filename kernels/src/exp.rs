//! `2^y`: twice in `f32` for the normaliser, quick and close; once in `f64` for everything that
//! decides.
//!
//! All reduce `y = n + f`, `|f| <= 1/2`, by adding a constant whose unit in the last place is 1
//! and which also carries the exponent's bias, so that a shift turns the sum into `2^n`. Below the
//! smallest exponent the shifted bits are those of `+0.0`: weights underflow to zero, never to
//! a subnormal, and `-inf` gives exactly zero.

use crate::lanes::{Kernel, LANES, Lanes};
use crate::tier::Isa;

/// Minimax coefficients of `2^f` on `[-1/2, 1/2]`, relative error 7.5e-5.
const QUICK: [f32; 4] = [0.999_928_06, 0.693_260_97, 0.242_611_12, 0.055_171_67];

/// The same, with `(2^f - 1) / f` for its last five: relative error of `2^f` below 9.2e-8.
#[expect(clippy::approx_constant, reason = "near ln 2, and not it")]
const CLOSE: [f32; 6] =
    [1.0, 0.693_147, 0.240_222_42, 0.055_507_337, 0.009_671_513, 0.001_326_472_7];

/// `(2^f - 1) / f`, relative error of `2^f` below 2.3e-16.
#[expect(clippy::excessive_precision, reason = "the digits that the minimax search gave")]
const POLY64: [f64; 10] = [
    0.693_147_180_559_949_2,
    0.240_226_506_959_091_02,
    0.055_504_108_664_481_82,
    0.009_618_129_107_983_137,
    0.001_333_355_822_579_955_2,
    0.000_154_035_299_942_397_9,
    1.525_265_942_811_868_5e-5,
    1.321_565_359_990_150_3e-6,
    1.020_832_291_672_911e-7,
    7.038_178_534_448_984e-9,
];

/// 1.5 * 2^23 + 127 and 1.5 * 2^52 + 1023: rounding constants that carry the exponent's bias.
const MAGIC32: f32 = 12_583_039.0;
const MAGIC64: f64 = 6_755_399_441_056_767.0;

/// `log2(e)` as an unevaluated sum.
const LOG2_E: f64 = std::f64::consts::LOG2_E;
const LOG2_E_LOW: f64 = 2.035_527_374_093_103_3e-17;

/// A temperature, prepared: weights are `exp((x - max) / temperature) = 2^((x - max) * scale)`.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// `log2(e) / temperature` to about 106 bits.
    high: f64,
    low: f64,
    /// The same in `f32`.
    pub(crate) scale32: f32,
}

impl Scale {
    /// Prepares a temperature above 0, subnormal and infinite ones included.
    ///
    /// ```
    /// let scale = topmass_kernels::Scale::new(0.8);
    /// assert!(scale.fits_f32());
    /// ```
    #[must_use]
    pub fn new(temperature: f32) -> Scale {
        debug_assert!(temperature > 0.0);
        let t = f64::from(temperature);
        let (high, low) = if t == f64::INFINITY {
            // The limit: any finite difference of logits times this is 0 to the last bit of a
            // weight, and -inf still falls below the clamp.
            (f64::powi(2.0, -900), 0.0)
        } else {
            let high = LOG2_E / t;
            (high, (f64::mul_add(-high, t, LOG2_E) + LOG2_E_LOW) / t)
        };
        Scale { high, low, scale32: high as f32 }
    }

    /// Whether the `f32` kernel's error bound holds for this temperature.
    ///
    /// ```
    /// assert!(!topmass_kernels::Scale::new(1e-30).fits_f32());
    /// ```
    #[must_use]
    pub fn fits_f32(&self) -> bool {
        (1e-6..=1e6).contains(&self.high)
    }

    /// The relative error of `scale32`.
    pub(crate) fn error32(&self) -> f64 {
        (f64::from(self.scale32) / self.high - 1.0).abs()
    }

    /// The integer nearest to `x * scale32`, of which an [`Exp32`] counts exponents; `None` where
    /// it is too far from 0 for the reduction to be exact, or no number.
    #[inline(always)]
    pub(crate) fn origin(&self, x: f32) -> Option<f32> {
        let origin = (x * self.scale32).round();
        (origin.abs() <= ORIGIN_MAX).then_some(origin)
    }

    /// `2^(origin - max * scale32)`: turns weights counted from the origin of the largest logit
    /// into shares of the largest weight. Relative error below 1e-15.
    pub(crate) fn largest_unit(&self, origin: f32, max: f32) -> f64 {
        // Exact: the product has 48 bits, and the difference is at most 1/2 and a little.
        let y = f64::from(origin) - f64::from(max) * f64::from(self.scale32);
        let p = POLY64.iter().rev().fold(0.0, |p, c| f64::mul_add(p, y, *c));
        f64::mul_add(p, y, 1.0)
    }
}

/// `2^n` for `n` from -1022 to 0, 0 below.
pub(crate) fn power_of_2(n: f32) -> f64 {
    if n < -1022.0 { 0.0 } else { f64::from_bits(((1023.0 + n) as u64) << 52) }
}

/// Largest origin: up to there `floor` is within 1/8 of where its product with the scale should lie.
const ORIGIN_MAX: f32 = 524_288.0;

/// `2^(x * scale - origin)` in `f32`, quick (`CLOSELY` false) or close.
#[derive(Clone, Copy)]
pub(crate) struct Exp32<L: Lanes, const CLOSELY: bool> {
    scale: L::F,
    floor: L::F,
    magic: L::F,
}

impl<L: Lanes, const CLOSELY: bool> Exp32<L, CLOSELY> {
    /// `origin` comes from [`Scale::origin`], for a scale that [`Scale::fits_f32`].
    #[inline(always)]
    pub(crate) fn new(l: L, scale: &Scale, origin: f32) -> Self {
        Exp32 {
            scale: l.splat(scale.scale32),
            floor: l.splat((origin - 127.0) / scale.scale32),
            // Both are integers, and the difference is below 2^24.
            magic: l.splat(MAGIC32 - origin),
        }
    }

    /// The weight of `x`, where `x * scale - origin` is below 127; NaN where `x` is.
    ///
    /// Relative error at most [`error`](Self::ERROR) and `y * ln 2 * error32`, `y` the absolute
    /// value of `x * scale`: the reduction is fused, and rounds but `f`. Exponents below -126.5
    /// give 0, and from there to -126 half a unit of 2^-149 comes on top. Weights for different
    /// origins are the same numbers times a power of two, as long as they are no smaller.
    #[inline(always)]
    pub(crate) fn weight(&self, l: L, x: L::F) -> L::F {
        let x = l.max(self.floor, x);
        let t = l.fma(x, self.scale, self.magic);
        let f = l.fma(x, self.scale, l.sub(self.magic, t));
        let coefficients: &[f32] = if CLOSELY { &CLOSE } else { &QUICK };
        let [rest @ .., highest] = coefficients else { unreachable!("both have some") };
        let mut p = l.splat(*highest);
        for c in rest.iter().rev() {
            p = l.fma(p, f, l.splat(*c));
        }
        l.mul(p, l.shl23(t))
    }

    /// Bound on the relative error of `2^f`, the reduction included.
    ///
    /// Close: polynomial 9.2e-8, the last step's rounding 6e-8, the steps before it 1.7e-8,
    /// coefficients 9e-9, `f` rounded to 2^-26 1e-8: 1.88e-7. Quick: polynomial 7.48e-5, and 1e-7
    /// for the rest. `exp32_is_within_its_bound_everywhere` tries every exponent: 1.64e-7, 7.49e-5.
    pub(crate) const ERROR: f64 = if CLOSELY { 2e-7 } else { 7.5e-5 };
}

/// What [`exp64`](Exp64::weight) needs besides the row.
#[derive(Clone, Copy)]
pub(crate) struct Exp64<L: Lanes> {
    max: L::D,
    high: L::D,
    low: L::D,
    floor: L::D,
    magic: L::D,
    one: L::D,
}

impl<L: Lanes> Exp64<L> {
    #[inline(always)]
    pub(crate) fn new(l: L, scale: &Scale, max: f32) -> Self {
        Exp64 {
            max: l.splat_d(f64::from(max)),
            high: l.splat_d(scale.high),
            low: l.splat_d(scale.low),
            floor: l.splat_d(-1023.0 / scale.high),
            magic: l.splat_d(MAGIC64),
            one: l.splat_d(1.0),
        }
    }

    /// `2^((x - max) * scale)` for `x <= max`: exactly 1 at the maximum, at most 1 elsewhere, 0
    /// below 2^-1022. Relative error at most [`WEIGHT_ERROR`].
    #[inline(always)]
    pub(crate) fn weight(&self, l: L, x: L::F) -> L::D {
        let d = l.max_d(self.floor, l.sub_d(l.widen(x), self.max));
        let t = l.fma_d(d, self.high, self.magic);
        let minus_n = l.sub_d(self.magic, t);
        let f = l.fma_d(d, self.low, l.fma_d(d, self.high, minus_n));
        let mut p = l.splat_d(POLY64[9]);
        for c in POLY64[..9].iter().rev() {
            p = l.fma_d(p, f, l.splat_d(*c));
        }
        let p = l.fma_d(p, f, self.one);
        l.mul_d(p, l.shl52(t))
    }

    /// The `y` of the weight `2^-y`, finite; 1023 or a little less where the weight is 0.
    #[inline(always)]
    pub(crate) fn exponent(&self, l: L, x: L::F) -> L::D {
        let d = l.max_d(self.floor, l.sub_d(l.widen(x), self.max));
        l.mul_d(l.sub_d(l.splat_d(0.0), d), self.high)
    }
}

/// Bound on the relative error of a weight in `f64`: polynomial 2.2e-16, the last step's rounding
/// 1.1e-16, the steps before it and the coefficients 6e-17, the reduction 8e-17: 4.7e-16, and half
/// as much again to spare. Where the difference of two logits is no `f64` (their magnitudes are
/// more than 29 binary places apart), half a unit of 2^-52 of the exponent comes on top, as in any
/// other `f64` softmax.
pub const WEIGHT_ERROR: f64 = 4.0 * f64::EPSILON;

/// `out[i] = exp((x[i] - max) / temperature)` in `f64`; every `x[i] <= max`, `-inf` gives 0.
///
/// # Panics
/// Where the slices differ in length.
///
/// ```
/// use topmass_kernels::{Isa, Scale, Tier, weigh};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let mut w = [0.0; 3];
/// weigh(isa, &[3.0, 2.0, f32::NEG_INFINITY], &Scale::new(1.0), 3.0, &mut w);
/// assert_eq!((w[0], w[2]), (1.0, 0.0));
/// assert!((w[1] - (-1.0f64).exp()).abs() < 1e-16);
/// ```
pub fn weigh(isa: Isa, x: &[f32], scale: &Scale, max: f32, out: &mut [f64]) {
    isa.run(Weigh { x, scale, max, out });
}

struct Weigh<'a> {
    x: &'a [f32],
    scale: &'a Scale,
    max: f32,
    out: &'a mut [f64],
}

impl Kernel for Weigh<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        assert_eq!(self.x.len(), self.out.len());
        let exp = Exp64::new(l, self.scale, self.max);
        let (vectors, tail) = self.x.as_chunks();
        let (out, out_tail) = self.out.as_chunks_mut();
        for (x, out) in vectors.iter().zip(out) {
            l.store_d(exp.weight(l, l.load(x)), out);
        }
        if !tail.is_empty() {
            let mut x = [f32::NEG_INFINITY; LANES];
            x[..tail.len()].copy_from_slice(tail);
            let mut w = [0.0; LANES];
            l.store_d(exp.weight(l, l.load(&x)), &mut w);
            out_tail.copy_from_slice(&w[..tail.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Vector;
    use crate::lanes::laws::{Random, tiers};

    struct Weigh32<'a, const CLOSELY: bool>(&'a [Vector], Scale, &'a mut [Vector]);

    impl<const CLOSELY: bool> Kernel for Weigh32<'_, CLOSELY> {
        type Output = ();
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let exp = Exp32::<L, CLOSELY>::new(l, &self.1, 0.0);
            for (x, out) in self.0.iter().zip(self.2) {
                l.store(exp.weight(l, l.load(x)), out);
            }
        }
    }

    #[test]
    fn powers_of_2() {
        for n in -1100..=0 {
            let exact = if n < -1022 { 0.0 } else { f64::powi(2.0, n) };
            assert_eq!(power_of_2(n as f32), exact, "{n}");
        }
    }

    fn error<const CLOSELY: bool>() -> f64 {
        Exp32::<crate::lanes::Portable, CLOSELY>::ERROR
    }

    /// `2^y`, `y` a `f32`, to a few units of 2^-52: the difference to the nearest integer is exact.
    fn exact(y: f32) -> f64 {
        f64::exp2(f64::from(y))
    }

    /// The largest relative error over the exponents with these bits, and the largest in units of
    /// the result's last place, on every tier, which must agree bit for bit. The scale is 1, so
    /// that the argument is not rounded.
    fn worst<const CLOSELY: bool>(bits: impl Iterator<Item = u32>) -> (f64, f64) {
        let scale = Scale { high: 1.0, low: 0.0, scale32: 1.0 };
        let (mut worst, mut worst_ulp) = (0.0f64, 0.0f64);
        let all: Vec<f32> = bits.map(f32::from_bits).collect();
        for part in all.chunks(1 << 16) {
            let mut x = part.to_vec();
            x.resize(part.len().next_multiple_of(LANES), 0.0);
            let x = x.as_chunks().0;
            let mut first: Option<Vec<Vector>> = None;
            for isa in tiers() {
                let mut w = vec![[0.0; LANES]; x.len()];
                isa.run(Weigh32::<CLOSELY>(x, scale, &mut w));
                let want = first.get_or_insert_with(|| w.clone());
                assert!(*want == w, "tier {} differs", isa.tier());
            }
            let w = first.expect("the portable tier always runs");
            for (&y, &w) in x.as_flattened().iter().zip(w.as_flattened()) {
                if y >= -126.0 {
                    let exact = exact(y);
                    let off = (f64::from(w) - exact).abs();
                    worst = worst.max(off / exact);
                    // A power of two below the exact value, times 2^-23: the bits of `exact` say it.
                    let ulp = f64::from_bits(exact.to_bits() >> 52 << 52) * f64::from(f32::EPSILON);
                    worst_ulp = worst_ulp.max(off / ulp);
                } else {
                    // The product may be subnormal: half a unit of 2^-149 comes on top.
                    let bound = error::<CLOSELY>() * exact(y) + f64::powi(2.0, -150);
                    assert!(w == 0.0 || (f64::from(w) - exact(y)).abs() <= bound, "2^{y} = {w}");
                    assert!(y >= -127.0 || w == 0.0, "2^{y} = {w}");
                }
            }
        }
        (worst, worst_ulp)
    }

    const ZERO: u32 = 0x8000_0000;
    const MINUS_140: u32 = 0xc30c_0000;

    fn check<const CLOSELY: bool>(parts: impl Iterator<Item = (u32, usize)>) {
        let all = parts.map(|(from, step)| {
            let end = if step == 1 { (from + PART).min(MINUS_140 + 1) } else { MINUS_140 + 1 };
            worst::<CLOSELY>((from..end).step_by(step))
        });
        let (worst, ulp) = all.fold((0.0, 0.0), |(a, b), (c, d)| (f64::max(a, c), f64::max(b, d)));
        println!("largest relative error {worst:e}, {ulp:.3} ULP, closely: {CLOSELY}");
        assert!(worst < error::<CLOSELY>());
        assert!(ulp < if CLOSELY { 3.0 } else { 1260.0 });
    }

    const PART: u32 = 1 << 22;

    #[test]
    fn exp32_is_within_its_bound() {
        check::<true>([(ZERO, 997)].into_iter());
        check::<false>([(ZERO, 997)].into_iter());
    }

    #[test]
    #[ignore = "every f32 from -0 to -140: about a minute in release"]
    fn exp32_is_within_its_bound_everywhere() {
        let parts = (ZERO..=MINUS_140).step_by(PART as usize).map(|from| (from, 1));
        check::<true>(parts.clone());
        check::<false>(parts);
    }

    /// The same weight, counted from anywhere: also where the sum of all is, and the head is not.
    #[test]
    fn an_origin_is_a_power_of_two() {
        struct At<'a>(&'a [Vector], Scale, f32, &'a mut [Vector]);
        impl Kernel for At<'_> {
            type Output = ();
            #[inline(always)]
            fn run<L: Lanes>(self, l: L) {
                let exp = Exp32::<L, false>::new(l, &self.1, self.2);
                for (x, out) in self.0.iter().zip(self.3) {
                    l.store(exp.weight(l, l.load(x)), out);
                }
            }
        }
        let mut random = Random(8);
        for temperature in [1.0, 0.7, 0.01, 30.0] {
            let scale = Scale::new(temperature);
            for base in [0.0f32, -20.0, 1000.0, 3600.0] {
                let mut at = |_| base - temperature * (30.0 * random.unit()) as f32;
                let x: [Vector; 4] = std::array::from_fn(|_| std::array::from_fn(&mut at));
                let origin = scale.origin(base).expect("near enough");
                for isa in tiers() {
                    let (mut near, mut far) = ([[0.0; LANES]; 4], [[0.0; LANES]; 4]);
                    isa.run(At(&x, scale, origin, &mut near));
                    isa.run(At(&x, scale, origin - 60.0, &mut far));
                    assert_eq!(near.map(|x| x.map(|w| w * f32::powi(2.0, 60))), far);
                    let largest = scale.largest_unit(origin, base);
                    for (x, w) in x.as_flattened().iter().zip(near.as_flattened()) {
                        let exact =
                            ((f64::from(*x) - f64::from(base)) / f64::from(temperature)).exp();
                        let error = (f64::from(*w) * largest / exact - 1.0).abs();
                        assert!(error < error_quick() + 45.0 * scale.error32(), "{error:e}");
                    }
                }
            }
        }
    }

    fn error_quick() -> f64 {
        error::<false>()
    }

    #[test]
    fn exp32_makes_nan_of_nan_and_nothing_of_minus_infinity() {
        let x = [[f32::NAN; LANES], [f32::NEG_INFINITY; LANES], [0.0; LANES]];
        for isa in tiers() {
            let mut w = [[9.0; LANES]; 3];
            isa.run(Weigh32::<false>(&x, Scale::new(1.0), &mut w));
            assert!(w[0].iter().all(|w| w.is_nan()));
            assert_eq!(w[1], [0.0; LANES]);
        }
    }

    /// The weights in `f64`, of which the largest logit is 0, on every tier, which must agree.
    fn weighed(x: &[f32], scale: &Scale) -> Vec<f64> {
        let mut first: Option<Vec<f64>> = None;
        for isa in tiers() {
            let mut w = vec![0.0; x.len()];
            weigh(isa, x, scale, 0.0, &mut w);
            assert!(*first.get_or_insert_with(|| w.clone()) == w, "tier {}", isa.tier());
        }
        first.expect("the portable tier always runs")
    }

    #[test]
    fn exp64_is_within_its_bound_and_never_above_1() {
        let mut random = Random(3);
        let mut worst = 0.0f64;
        for temperature in [1.0, 0.7, 0.3, 3.0, 1e-3, 1e3] {
            let scale = Scale::new(temperature);
            // At max = 0 the difference of logits is exact, and so is its quotient's numerator.
            let x: Vec<f32> = (0..20_000)
                .map(|i| match i % 4 {
                    0 => -(random.unit() as f32) * 700.0 * temperature,
                    1 => -(random.unit() as f32) * 2.0 * temperature,
                    2 => -f32::from_bits(random.next() as u32 >> 2) % (700.0 * temperature),
                    _ => -1.0 / (1u64 << (i % 64)) as f32,
                })
                .collect();
            for (&x, w) in x.iter().zip(weighed(&x, &scale)) {
                assert!(w <= 1.0);
                // exp(q + r), q the rounded quotient and r its error, both exact enough.
                let t = f64::from(temperature);
                let q = f64::from(x) / t;
                let r = f64::mul_add(-q, t, f64::from(x)) / t;
                let exact = q.exp() * (1.0 + r);
                worst = worst.max((w / exact - 1.0).abs());
            }
        }
        println!("largest relative error {worst:e}, that of the platform's exp included");
        assert!(worst <= WEIGHT_ERROR);
    }

    #[test]
    #[ignore = "every f32 from -0 to -708: minutes in release"]
    fn exp64_is_within_its_bound_everywhere() {
        let scale = Scale::new(1.0);
        let last = (-708.0f32).to_bits(); // below, the largest weights of a row are no normal numbers
        let (mut worst, mut ulp) = (0.0f64, 0.0f64);
        for from in (ZERO..=last).step_by(PART as usize) {
            let part: Vec<f32> = (from..(from + PART).min(last + 1)).map(f32::from_bits).collect();
            for (&x, w) in part.iter().zip(weighed(&part, &scale)) {
                let exact = f64::from(x).exp();
                let off = (w - exact).abs();
                worst = worst.max(off / exact);
                ulp = ulp.max(off / (f64::from_bits(exact.to_bits() >> 52 << 52) * f64::EPSILON));
                assert!(w <= 1.0);
            }
        }
        println!("largest relative error {worst:e}, {ulp:.3} ULP, the platform's own included");
        assert!(worst <= WEIGHT_ERROR && ulp <= 4.0);
    }

    #[test]
    fn extreme_temperatures_neither_overflow_nor_lose_the_mask() {
        for isa in tiers() {
            for t in [1e-45, 1e-30, f32::MIN_POSITIVE, 1e20, f32::MAX, f32::INFINITY] {
                let mut w = [9.0; 4];
                let x = [1.0, 0.0, f32::MIN, f32::NEG_INFINITY];
                weigh(isa, &x, &Scale::new(t), 1.0, &mut w);
                let flat = if t >= 1e20 { 1.0 } else { 0.0 };
                assert_eq!((w[0], w[1], w[3]), (1.0, flat, 0.0), "T = {t}");
                let far = if t == f32::INFINITY {
                    1.0
                } else if t == f32::MAX {
                    (-1.0f64).exp()
                } else {
                    0.0
                };
                assert!((w[2] - far).abs() < 1e-7, "T = {t}: {}", w[2]);
            }
        }
    }
}
