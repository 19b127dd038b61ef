//! AArch64 Advanced SIMD: a vector is four `float32x4_t`. No `unsafe`: pulp's token is the proof
//! of support.

use std::arch::aarch64::{float32x4_t, float64x2_t, uint32x4_t, uint64x2_t};
use std::array::from_fn;

use bytemuck::cast;

use super::{LANES, Lanes, Vector};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Neon(pub(crate) pulp::aarch64::Neon);

/// For each mask of 4 lanes, the bytes of the lanes it names (then of lane 0).
static COMPRESS: [[u8; 16]; 16] = {
    let mut table = [[0; 16]; 16];
    let mut m = 0;
    while m < 16 {
        let (mut i, mut n) = (0, 0);
        while i < 4 {
            if m >> i & 1 == 1 {
                let mut byte = 0;
                while byte < 4 {
                    table[m][4 * n + byte] = (4 * i + byte) as u8;
                    byte += 1;
                }
                n += 1;
            }
            i += 1;
        }
        m += 1;
    }
    table
};

impl Neon {
    /// Lanes `2i` and `2i + 1` of a mask as a mask of 64-bit lanes.
    #[inline(always)]
    fn wide(self, m: [uint32x4_t; 4], i: usize) -> uint64x2_t {
        let (m, neon) = (m[i / 2], self.0.neon);
        cast(if i.is_multiple_of(2) { neon.vzip1q_u32(m, m) } else { neon.vzip2q_u32(m, m) })
    }
}

impl Lanes for Neon {
    type F = [float32x4_t; 4];
    type D = [float64x2_t; 8];
    type M = [uint32x4_t; 4];
    type A = uint64x2_t;

    #[inline(always)]
    fn load(self, x: &Vector) -> Self::F {
        cast(*x)
    }
    #[inline(always)]
    fn store(self, x: Self::F, out: &mut Vector) {
        *out = cast(x);
    }
    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [self.0.neon.vdupq_n_f32(x); 4]
    }
    #[inline(always)]
    fn index_bits(self, base: u32) -> Self::F {
        let base = self.0.neon.vdupq_n_u32(base);
        from_fn(|i| {
            let i = 4 * i as u32;
            cast(self.0.neon.vaddq_u32(base, cast([i, i + 1, i + 2, i + 3])))
        })
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| self.0.neon.vaddq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| self.0.neon.vsubq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| self.0.neon.vmulq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| self.0.neon.vfmaq_f32(c[i], a[i], b[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| self.0.neon.vmaxq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn shl23(self, a: Self::F) -> Self::F {
        from_fn(|i| cast(self.0.neon.vshlq_n_u32::<23>(cast(a[i]))))
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> Self::M {
        from_fn(|i| self.0.neon.vcgeq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn gt(self, a: Self::F, b: Self::F) -> Self::M {
        from_fn(|i| self.0.neon.vcgtq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn and(self, a: Self::M, b: Self::M) -> Self::M {
        from_fn(|i| self.0.neon.vandq_u32(a[i], b[i]))
    }
    #[inline(always)]
    fn bits(self, m: Self::M) -> u32 {
        let quad = |i: usize| {
            let weighted = self.0.neon.vandq_u32(m[i], cast([1u32, 2, 4, 8]));
            self.0.neon.vaddvq_u32(weighted) << (4 * i)
        };
        quad(0) | quad(1) | quad(2) | quad(3)
    }
    #[inline(always)]
    fn only(self, m: Self::M, a: Self::F) -> Self::F {
        from_fn(|i| cast(self.0.neon.vandq_u32(m[i], cast(a[i]))))
    }
    #[inline(always)]
    fn compress(self, m: Self::M, a: Self::F, out: &mut Vector) {
        let bits = self.bits(m);
        let mut n = 0;
        for (i, quad) in a.into_iter().enumerate() {
            let m = bits >> (4 * i) & 0xf;
            let front = self.0.neon.vqtbl1q_u8(cast(quad), cast(COMPRESS[m as usize]));
            out[n..n + 4].copy_from_slice(&cast::<_, [f32; 4]>(front));
            n += m.count_ones() as usize;
        }
    }

    #[inline(always)]
    fn widen(self, a: Self::F) -> Self::D {
        from_fn(|i| {
            let quad = a[i / 2];
            if i.is_multiple_of(2) {
                self.0.neon.vcvt_f64_f32(self.0.neon.vget_low_f32(quad))
            } else {
                self.0.neon.vcvt_high_f64_f32(quad)
            }
        })
    }
    #[inline(always)]
    fn narrow(self, a: Self::D) -> Self::F {
        from_fn(|i| {
            let low = self.0.neon.vcvt_f32_f64(a[2 * i]);
            self.0.neon.vcvt_high_f32_f64(low, a[2 * i + 1])
        })
    }
    #[inline(always)]
    fn load_d(self, x: &[f64; LANES]) -> Self::D {
        cast(*x)
    }
    #[inline(always)]
    fn store_d(self, x: Self::D, out: &mut [f64; LANES]) {
        *out = cast(x);
    }
    #[inline(always)]
    fn splat_d(self, x: f64) -> Self::D {
        [self.0.neon.vdupq_n_f64(x); 8]
    }
    #[inline(always)]
    fn add_d(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| self.0.neon.vaddq_f64(a[i], b[i]))
    }
    #[inline(always)]
    fn sub_d(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| self.0.neon.vsubq_f64(a[i], b[i]))
    }
    #[inline(always)]
    fn mul_d(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| self.0.neon.vmulq_f64(a[i], b[i]))
    }
    #[inline(always)]
    fn fma_d(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        from_fn(|i| self.0.neon.vfmaq_f64(c[i], a[i], b[i]))
    }
    #[inline(always)]
    fn max_d(self, a: Self::D, b: Self::D) -> Self::D {
        from_fn(|i| self.0.neon.vmaxq_f64(a[i], b[i]))
    }
    #[inline(always)]
    fn shl52(self, a: Self::D) -> Self::D {
        from_fn(|i| cast(self.0.neon.vshlq_n_u64::<52>(cast(a[i]))))
    }
    #[inline(always)]
    fn keep(self, m: Self::M, a: Self::D) -> Self::D {
        from_fn(|i| cast(self.0.neon.vandq_u64(cast(a[i]), self.wide(m, i))))
    }
    #[inline(always)]
    fn zero_a(self) -> Self::A {
        self.0.neon.vdupq_n_u64(0)
    }
    #[inline(always)]
    fn add_bits(self, acc: Self::A, x: Self::D) -> Self::A {
        x.into_iter().fold(acc, |sum, d| self.0.neon.vaddq_u64(sum, cast(d)))
    }
    #[inline(always)]
    fn total(self, acc: Self::A) -> u64 {
        let [low, high]: [u64; 2] = cast(acc);
        low.wrapping_add(high)
    }
}
