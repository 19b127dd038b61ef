//! Sixteen logical `f32` lanes on every tier, and the few operations that the kernels need.
//!
//! A kernel written over [`Lanes`] gives the same bits on every tier, because every operation is
//! either correctly rounded per lane, or a bit operation, or its result does not depend on order.

mod portable;
pub(crate) use portable::Portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) use {avx2::Avx2, avx512::Avx512};

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;

#[cfg(test)]
pub(crate) mod laws;

/// Logical lanes of one vector.
pub(crate) const LANES: usize = 16;

/// A piece of a row that fills one vector.
pub(crate) type Vector = [f32; LANES];

/// A kernel is a struct of its arguments; `run` must be `#[inline(always)]`.
pub(crate) trait Kernel {
    type Output;
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// The vocabulary. Each method's line is its law; `a`, `b`, `c` stand for one lane.
pub(crate) trait Lanes: Copy {
    /// 16 `f32`.
    type F: Copy;
    /// 16 `f64`.
    type D: Copy;
    /// 16 truth values.
    type M: Copy;
    /// 64-bit integers of which only the sum modulo 2^64 means anything.
    type A: Copy;

    /// Lane `i` is `x[i]`.
    fn load(self, x: &Vector) -> Self::F;
    /// `out[i]` is lane `i`.
    fn store(self, x: Self::F, out: &mut Vector);
    /// Every lane is `x`.
    fn splat(self, x: f32) -> Self::F;
    /// The bits of lane `i` are `base + i` as `u32`, modulo 2^32.
    fn index_bits(self, base: u32) -> Self::F;
    /// `a + b`, rounded once.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`, rounded once.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`, rounded once.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once. No operand is infinite.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger; NaN where `b` is NaN; anything where `a` is NaN; a zero of either sign where
    /// both are zero.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The bits of `a` shifted left by 23: an integer in the low mantissa becomes an exponent.
    fn shl23(self, a: Self::F) -> Self::F;
    /// `a >= b`; false where either is NaN.
    fn ge(self, a: Self::F, b: Self::F) -> Self::M;
    /// `a > b`; false where either is NaN.
    fn gt(self, a: Self::F, b: Self::F) -> Self::M;
    /// Both.
    fn and(self, a: Self::M, b: Self::M) -> Self::M;
    /// Bit `i` is lane `i`; the upper 16 bits are 0.
    fn bits(self, m: Self::M) -> u32;
    /// `a` where `m`, `+0.0` elsewhere.
    fn only(self, m: Self::M, a: Self::F) -> Self::F;
    /// `out` begins with the lanes that `m` names, in order; anything behind them.
    fn compress(self, m: Self::M, a: Self::F, out: &mut Vector);

    /// `f64::from(a)`, exact.
    fn widen(self, a: Self::F) -> Self::D;
    /// `a as f32`, rounded to nearest even.
    fn narrow(self, a: Self::D) -> Self::F;
    /// Lane `i` is `x[i]`.
    fn load_d(self, x: &[f64; LANES]) -> Self::D;
    /// `out[i]` is lane `i`.
    fn store_d(self, x: Self::D, out: &mut [f64; LANES]);
    /// Every lane is `x`.
    fn splat_d(self, x: f64) -> Self::D;
    /// `a + b`, rounded once.
    fn add_d(self, a: Self::D, b: Self::D) -> Self::D;
    /// `a - b`, rounded once.
    fn sub_d(self, a: Self::D, b: Self::D) -> Self::D;
    /// `a * b`, rounded once.
    fn mul_d(self, a: Self::D, b: Self::D) -> Self::D;
    /// `a * b + c`, rounded once, for finite operands whose product neither over- nor underflows.
    fn fma_d(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D;
    /// The larger, for operands that are not NaN.
    fn max_d(self, a: Self::D, b: Self::D) -> Self::D;
    /// The bits of `a` shifted left by 52.
    fn shl52(self, a: Self::D) -> Self::D;
    /// `a` where `m`, `+0.0` elsewhere.
    fn keep(self, m: Self::M, a: Self::D) -> Self::D;
    /// Nothing yet.
    fn zero_a(self) -> Self::A;
    /// Adds the bits of all lanes of `x`, as integers modulo 2^64.
    fn add_bits(self, acc: Self::A, x: Self::D) -> Self::A;
    /// The sum so far, modulo 2^64.
    fn total(self, acc: Self::A) -> u64;

    /// The largest lane, where none is NaN; anything otherwise.
    #[inline(always)]
    fn reduce_max(self, a: Self::F) -> f32 {
        let mut x = [0.0; LANES];
        self.store(a, &mut x);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                x[i] = if x[i] > x[i + width] { x[i] } else { x[i + width] };
            }
            width /= 2;
        }
        x[0]
    }

    /// The sum of the lanes, by halves: `i + (i + 8)`, then 4, 2, 1 apart.
    #[inline(always)]
    fn reduce_add(self, a: Self::D) -> f64 {
        let mut x = [0.0; LANES];
        self.store_d(a, &mut x);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                x[i] += x[i + width];
            }
            width /= 2;
        }
        x[0]
    }
}
