//! AVX-512: a vector is one `__m512`. No `unsafe`: pulp's token is the proof of support.

use std::arch::x86_64::{__m512, __m512d, __m512i, __mmask16, _CMP_GE_OQ, _CMP_GT_OQ};

use bytemuck::cast;
use pulp::x86::V4;

use super::{LANES, Lanes, Vector};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(pub(crate) V4);

impl Lanes for Avx512 {
    type F = __m512;
    type D = [__m512d; 2];
    type M = __mmask16;
    type A = __m512i;

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
        self.0.avx512f._mm512_set1_ps(x)
    }
    #[inline(always)]
    fn index_bits(self, base: u32) -> Self::F {
        let base = self.0.avx512f._mm512_set1_epi32(base.cast_signed());
        let iota: __m512i = cast([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        cast(self.0.avx512f._mm512_add_epi32(base, iota))
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        self.0.avx512f._mm512_add_ps(a, b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        self.0.avx512f._mm512_sub_ps(a, b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        self.0.avx512f._mm512_mul_ps(a, b)
    }
    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.0.avx512f._mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        self.0.avx512f._mm512_max_ps(a, b)
    }
    #[inline(always)]
    fn shl23(self, a: Self::F) -> Self::F {
        cast(self.0.avx512f._mm512_slli_epi32::<23>(cast(a)))
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> Self::M {
        self.0.avx512f._mm512_cmp_ps_mask::<_CMP_GE_OQ>(a, b)
    }
    #[inline(always)]
    fn gt(self, a: Self::F, b: Self::F) -> Self::M {
        self.0.avx512f._mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)
    }
    #[inline(always)]
    fn and(self, a: Self::M, b: Self::M) -> Self::M {
        a & b
    }
    #[inline(always)]
    fn bits(self, m: Self::M) -> u32 {
        u32::from(m)
    }
    #[inline(always)]
    fn only(self, m: Self::M, a: Self::F) -> Self::F {
        self.0.avx512f._mm512_maskz_mov_ps(m, a)
    }
    #[inline(always)]
    fn compress(self, m: Self::M, a: Self::F, out: &mut Vector) {
        // In a register, then stored: the compressing store is slow on Zen 4.
        self.store(self.0.avx512f._mm512_maskz_compress_ps(m, a), out);
    }

    #[inline(always)]
    fn widen(self, a: Self::F) -> Self::D {
        let low = self.0.avx512f._mm512_castps512_ps256(a);
        let high = self.0.avx512dq._mm512_extractf32x8_ps::<1>(a);
        [self.0.avx512f._mm512_cvtps_pd(low), self.0.avx512f._mm512_cvtps_pd(high)]
    }
    #[inline(always)]
    fn narrow(self, a: Self::D) -> Self::F {
        let f = |i| self.0.avx512f._mm512_cvtpd_ps(a[i]);
        let low = self.0.avx512f._mm512_castps256_ps512(f(0));
        self.0.avx512dq._mm512_insertf32x8::<1>(low, f(1))
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
        [self.0.avx512f._mm512_set1_pd(x); 2]
    }
    #[inline(always)]
    fn add_d(self, a: Self::D, b: Self::D) -> Self::D {
        let f = |i| self.0.avx512f._mm512_add_pd(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn sub_d(self, a: Self::D, b: Self::D) -> Self::D {
        let f = |i| self.0.avx512f._mm512_sub_pd(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn mul_d(self, a: Self::D, b: Self::D) -> Self::D {
        let f = |i| self.0.avx512f._mm512_mul_pd(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn fma_d(self, a: Self::D, b: Self::D, c: Self::D) -> Self::D {
        let f = |i| self.0.avx512f._mm512_fmadd_pd(a[i], b[i], c[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn max_d(self, a: Self::D, b: Self::D) -> Self::D {
        let f = |i| self.0.avx512f._mm512_max_pd(a[i], b[i]);
        [f(0), f(1)]
    }
    #[inline(always)]
    fn shl52(self, a: Self::D) -> Self::D {
        let f = |i: usize| cast(self.0.avx512f._mm512_slli_epi64::<52>(cast(a[i])));
        [f(0), f(1)]
    }
    #[inline(always)]
    fn keep(self, m: Self::M, a: Self::D) -> Self::D {
        let [low, high] = m.to_le_bytes();
        let f = |k, i: usize| self.0.avx512f._mm512_maskz_mov_pd(k, a[i]);
        [f(low, 0), f(high, 1)]
    }
    #[inline(always)]
    fn zero_a(self) -> Self::A {
        self.0.avx512f._mm512_setzero_si512()
    }
    #[inline(always)]
    fn add_bits(self, acc: Self::A, x: Self::D) -> Self::A {
        let add = |a, b| self.0.avx512f._mm512_add_epi64(a, b);
        add(acc, add(cast(x[0]), cast(x[1])))
    }
    #[inline(always)]
    fn total(self, acc: Self::A) -> u64 {
        let lanes: [u64; 8] = cast(acc);
        lanes.iter().fold(0, |sum, &x| sum.wrapping_add(x))
    }
}
