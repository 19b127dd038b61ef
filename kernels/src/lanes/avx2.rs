//! AVX2 and FMA: a vector is two `__m256`. No `unsafe`: pulp's token is the proof of support.

use std::arch::x86_64::{__m256, __m256d, __m256i, _CMP_GE_OQ, _CMP_GT_OQ};

use bytemuck::cast;
use pulp::x86::V3;

use super::{LANES, Lanes, Vector};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(pub(crate) V3);

/// For each mask of 8 lanes, the lanes it names (then anything), one byte each.
static COMPRESS: [[u8; 8]; 256] = {
    let mut table = [[0; 8]; 256];
    let mut m = 0;
    while m < 256 {
        let (mut i, mut n) = (0, 0);
        while i < 8 {
            if m >> i & 1 == 1 {
                table[m][n] = i;
                n += 1;
            }
            i += 1;
        }
        m += 1;
    }
    table
};

impl Avx2 {
    #[inline(always)]
    fn compress8(self, m: u32, a: __m256) -> [f32; 8] {
        let lanes = cast([u64::from_le_bytes(COMPRESS[(m & 0xff) as usize]), 0]);
        let lanes = self.0.avx2._mm256_cvtepu8_epi32(lanes);
        cast(self.0.avx2._mm256_permutevar8x32_ps(a, lanes))
    }
}

impl Lanes for Avx2 {
    type F = [__m256; 2];
    type D = [__m256d; 4];
    type M = [__m256; 2];
    type A = __m256i;

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
        [self.0.avx._mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    fn index_bits(self, base: u32) -> Self::F {
        let base = self.0.avx._mm256_set1_epi32(base.cast_signed());
        let at = |i: [i32; 8]| cast(self.0.avx2._mm256_add_epi32(base, cast(i)));
        [at([0, 1, 2, 3, 4, 5, 6, 7]), at([8, 9, 10, 11, 12, 13, 14, 15])]
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        let f = |i| self.0.avx._mm256_add_ps(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        let f = |i| self.0.avx._mm256_sub_ps(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        let f = |i| self.0.avx._mm256_mul_ps(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let f = |i| self.0.fma._mm256_fmadd_ps(a[i], b[i], c[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        let f = |i| self.0.avx._mm256_max_ps(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn shl23(self, a: Self::F) -> Self::F {
        let f = |i: usize| cast(self.0.avx2._mm256_slli_epi32::<23>(cast(a[i])));
        [f(0), f(1)]
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> Self::M {
        let f = |i| self.0.avx._mm256_cmp_ps::<_CMP_GE_OQ>(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn gt(self, a: Self::F, b: Self::F) -> Self::M {
        let f = |i| self.0.avx._mm256_cmp_ps::<_CMP_GT_OQ>(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn and(self, a: Self::M, b: Self::M) -> Self::M {
        let f = |i| self.0.avx._mm256_and_ps(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn bits(self, m: Self::M) -> u32 {
        let f = |i| self.0.avx._mm256_movemask_ps(m[i]).cast_unsigned();
        f(0) | f(1) << 8
    }
    #[inline(always)]
    fn only(self, m: Self::M, a: Self::F) -> Self::F {
        let f = |i| self.0.avx._mm256_and_ps(m[i], a[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn compress(self, m: Self::M, a: Self::F, out: &mut Vector) {
        let m = self.bits(m);
        let low = (m & 0xff).count_ones() as usize;
        out[..8].copy_from_slice(&self.compress8(m, a[0]));
        out[low..low + 8].copy_from_slice(&self.compress8(m >> 8, a[1]));
    }

    #[inline(always)]
    fn widen(self, a: Self::F) -> Self::D {
        let low = |x| self.0.avx._mm256_cvtps_pd(self.0.avx._mm256_castps256_ps128(x));
        let high = |x| self.0.avx._mm256_cvtps_pd(self.0.avx._mm256_extractf128_ps::<1>(x));
        [low(a[0]), high(a[0]), low(a[1]), high(a[1])]
    }
    #[inline(always)]
    fn narrow(self, a: Self::D) -> Self::F {
        let f = |i| {
            let low = self.0.avx._mm256_cvtpd_ps(a[i]);
            let high = self.0.avx._mm256_cvtpd_ps(a[i + 1]);
            self.0.avx._mm256_insertf128_ps::<1>(self.0.avx._mm256_castps128_ps256(low), high)
        };
        [f(0), f(2)]
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
        [self.0.avx._mm256_set1_pd(x); 4]
    }
    #[inline(always)]
    fn add_d(self, a: Self::D, b: Self::D) -> Self::D {
        let f = |i| self.0.avx._mm256_add_pd(a[i], b[i]);
        [f(0), f(1), f(2), f(3)]
    }
    #[inline(always)]
    fn sub_d(self, a: Self::D, b: Self::D) -> Self::D {
        let f = |i| self.0.avx._mm256_sub_pd(a[i], b[i]);
        [f(0), f(1), f(2), f(3)]
    }
    #[inline(always)]
    fn mul_d(self, a: Self::D, b: Self::D) -> Self::D {
        let f = |i| self.0.avx._mm256_mul_pd(a[i], b[i]);
        [f(0), f(1), f(2), f(3)]
    }
    #[inline(always)]
    fn fma_d(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        let f = |i| self.0.fma._mm256_fmadd_pd(a[i], b[i], c[i]);
        [f(0), f(1), f(2), f(3)]
    }
    #[inline(always)]
    fn max_d(self, a: Self::D, b: Self::D) -> Self::D {
        let f = |i| self.0.avx._mm256_max_pd(a[i], b[i]);
        [f(0), f(1), f(2), f(3)]
    }
    #[inline(always)]
    fn shl52(self, a: Self::D) -> Self::D {
        let f = |i: usize| cast(self.0.avx2._mm256_slli_epi64::<52>(cast(a[i])));
        [f(0), f(1), f(2), f(3)]
    }
    #[inline(always)]
    fn keep(self, m: Self::M, a: Self::D) -> Self::D {
        let low = |x| self.0.avx._mm256_castps256_ps128(x);
        let high = |x| self.0.avx._mm256_extractf128_ps::<1>(x);
        let f = |i: usize, half| {
            let wide: __m256d = cast(self.0.avx2._mm256_cvtepi32_epi64(cast(half)));
            self.0.avx._mm256_and_pd(a[i], wide)
        };
        [f(0, low(m[0])), f(1, high(m[0])), f(2, low(m[1])), f(3, high(m[1]))]
    }
    #[inline(always)]
    fn zero_a(self) -> Self::A {
        self.0.avx._mm256_setzero_si256()
    }
    #[inline(always)]
    fn add_bits(self, acc: Self::A, x: Self::D) -> Self::A {
        let add = |a, b| self.0.avx2._mm256_add_epi64(a, b);
        add(acc, add(add(cast(x[0]), cast(x[1])), add(cast(x[2]), cast(x[3]))))
    }
    #[inline(always)]
    fn total(self, acc: Self::A) -> u64 {
        let lanes: [u64; 4] = cast(acc);
        lanes.iter().fold(0, |sum, &x| sum.wrapping_add(x))
    }
}
