//! The portable tier: arrays, which the compiler may vectorise as far as the target allows.

use std::array::from_fn;

use super::{LANES, Lanes, Vector};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Portable;

/// `a * b + c` rounded once, without the library call that a CPU without FMA would need.
///
/// The product of two `f32` is exact in `f64`; the sum is then rounded to odd, which makes the
/// second rounding (to `f32`) the only one that counts (Boldo and Melquiond, IEEE TC 57, 2008).
#[inline(always)]
fn fma32(a: f32, b: f32, c: f32) -> f32 {
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    to_odd(sum, two_sum_error(product, c, sum)) as f32
}

/// Whether the target multiplies and adds in one instruction.
const HAS_FMA: bool = cfg!(any(
    target_feature = "fma",
    target_arch = "aarch64",
    target_arch = "riscv64",
    target_arch = "powerpc64",
    target_arch = "s390x"
));

/// The same in `f64`, where the product is no longer exact: it is kept as a sum of two.
#[inline(always)]
fn fma64(a: f64, b: f64, c: f64) -> f64 {
    if HAS_FMA {
        return a.mul_add(b, c);
    }
    let product = a * b;
    let (a_high, a_low) = halves(a);
    let (b_high, b_low) = halves(b);
    // Dekker's product: `product + rest` is exact.
    let rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
    let low = c + rest;
    let low_lost = two_sum_error(c, rest, low);
    let high = product + low;
    let high_lost = two_sum_error(product, low, high);
    let lost = low_lost + high_lost;
    high + to_odd(lost, two_sum_error(low_lost, high_lost, lost))
}

/// Veltkamp's splitting into two halves of 26 bits.
#[inline(always)]
fn halves(a: f64) -> (f64, f64) {
    let scaled = 134_217_729.0 * a;
    let high = scaled - (scaled - a);
    (high, a - high)
}

/// Knuth's TwoSum: what `sum`, the rounded `a + b`, is short of the exact sum.
#[inline(always)]
fn two_sum_error(a: f64, b: f64, sum: f64) -> f64 {
    let b_part = sum - a;
    (a - (sum - b_part)) + (b - b_part)
}

/// `sum + lost`, of which `sum` is the nearest, rounded to odd.
#[inline(always)]
fn to_odd(sum: f64, lost: f64) -> f64 {
    let bits = sum.to_bits();
    let step = if (lost > 0.0) == (sum > 0.0) { 1u64 } else { u64::MAX };
    f64::from_bits(if lost != 0.0 && bits & 1 == 0 { bits.wrapping_add(step) } else { bits })
}

#[inline(always)]
fn mask(f: impl Fn(usize) -> bool) -> u32 {
    (0..LANES).fold(0, |m, i| m | (u32::from(f(i)) << i))
}

impl Lanes for Portable {
    type F = Vector;
    type D = [f64; LANES];
    type M = u32;
    type A = u64;

    #[inline(always)]
    fn load(self, x: &Vector) -> Vector {
        *x
    }
    #[inline(always)]
    fn store(self, x: Vector, out: &mut Vector) {
        *out = x;
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Vector {
        [x; LANES]
    }
    #[inline(always)]
    fn index_bits(self, base: u32) -> Vector {
        from_fn(|i| f32::from_bits(base.wrapping_add(i as u32)))
    }
    #[inline(always)]
    fn add(self, a: Vector, b: Vector) -> Vector {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Vector, b: Vector) -> Vector {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Vector, b: Vector) -> Vector {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn fma(self, a: Vector, b: Vector, c: Vector) -> Vector {
        // Rounding twice, to f64 and then to f32, differs from rounding once only where the f64 sum
        // looks halfway between two f32, or where the result is subnormal.
        let mut rare = 0;
        let sum: Self::D = from_fn(|i| f64::from(a[i]) * f64::from(b[i]) + f64::from(c[i]));
        for x in sum {
            // Integers, not truth values: these the compiler turns into vectors.
            rare |= ((x.to_bits() & 0x1fff_ffff) ^ 0x1000_0000).wrapping_sub(1) >> 63;
            rare |= u64::from((x != 0.0) & (x.abs() < f64::from(f32::MIN_POSITIVE)));
        }
        if rare != 0 { from_fn(|i| fma32(a[i], b[i], c[i])) } else { self.narrow(sum) }
    }
    #[inline(always)]
    fn max(self, a: Vector, b: Vector) -> Vector {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn shl23(self, a: Vector) -> Vector {
        from_fn(|i| f32::from_bits(a[i].to_bits() << 23))
    }
    #[inline(always)]
    fn ge(self, a: Vector, b: Vector) -> u32 {
        mask(|i| a[i] >= b[i])
    }
    #[inline(always)]
    fn gt(self, a: Vector, b: Vector) -> u32 {
        mask(|i| a[i] > b[i])
    }
    #[inline(always)]
    fn and(self, a: u32, b: u32) -> u32 {
        a & b
    }
    #[inline(always)]
    fn bits(self, m: u32) -> u32 {
        m
    }
    #[inline(always)]
    fn only(self, m: u32, a: Vector) -> Vector {
        from_fn(|i| if m >> i & 1 == 1 { a[i] } else { 0.0 })
    }
    #[inline(always)]
    fn compress(self, m: u32, a: Vector, out: &mut Vector) {
        let mut n = 0;
        for (i, x) in a.into_iter().enumerate() {
            // `n <= i < LANES`: the remainder tells the compiler so.
            out[n % LANES] = x;
            n += (m >> i & 1) as usize;
        }
    }

    #[inline(always)]
    fn widen(self, a: Vector) -> Self::D {
        from_fn(|i| f64::from(a[i]))
    }
    #[inline(always)]
    fn narrow(self, a: Self::D) -> Vector {
        from_fn(|i| a[i] as f32)
    }
    #[inline(always)]
    fn load_d(self, x: &[f64; LANES]) -> [f64; LANES] {
        *x
    }
    #[inline(always)]
    fn store_d(self, x: Self::D, out: &mut [f64; LANES]) {
        *out = x;
    }
    #[inline(always)]
    fn splat_d(self, x: f64) -> Self::D {
        [x; LANES]
    }
    #[inline(always)]
    fn add_d(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub_d(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul_d(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn fma_d(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        from_fn(|i| fma64(a[i], b[i], c[i]))
    }
    #[inline(always)]
    fn max_d(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn shl52(self, a: Self::D) -> Self::D {
        from_fn(|i| f64::from_bits(a[i].to_bits() << 52))
    }
    #[inline(always)]
    fn keep(self, m: u32, a: Self::D) -> Self::D {
        from_fn(|i| if m >> i & 1 == 1 { a[i] } else { 0.0 })
    }
    #[inline(always)]
    fn zero_a(self) -> u64 {
        0
    }
    #[inline(always)]
    fn add_bits(self, acc: u64, x: Self::D) -> u64 {
        x.iter().fold(acc, |sum, d| sum.wrapping_add(d.to_bits()))
    }
    #[inline(always)]
    fn total(self, acc: u64) -> u64 {
        acc
    }
}
