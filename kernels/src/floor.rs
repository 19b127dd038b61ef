//! The physical floors that a step is measured against: a row's bare maximum, and a bare sum of
//! exponentials with the maximum known. No step uses them; the benchmarks do.

use crate::exp::{Exp32, Scale};
use crate::lanes::{Kernel, Lanes};
use crate::row::{BLOCK, Blocks, blocks};
use crate::scan::{max8, sum8};
use crate::tier::Isa;

/// The maximum of a row without NaN, and nothing else.
///
/// ```
/// use topmass_kernels::{Isa, Tier, floor::bare_max};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// assert_eq!(bare_max(isa, &[1.0, 3.0, 2.0]), 3.0);
/// ```
#[must_use]
pub fn bare_max(isa: Isa, row: &[f32]) -> f32 {
    isa.run(BareMax { row })
}

struct BareMax<'a> {
    row: &'a [f32],
}

impl Kernel for BareMax<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let mut padded = [0.0; BLOCK];
        let row = Blocks::new(self.row, &mut padded);
        let mut max = [l.splat(f32::NEG_INFINITY); 2];
        for b in 0..blocks(self.row.len()) {
            for pair in row.get(b).as_chunks::<2>().0 {
                max = [l.max(max[0], max8(l, &pair[0])), l.max(max[1], max8(l, &pair[1]))];
            }
        }
        l.reduce_max(l.max(max[0], max[1]))
    }
}

/// The sum of `exp((x - max) / T)`, `f32` within 128 elements, with the crate's close exponential.
///
/// # Panics
/// Where `max / T` is beyond 3e5 or so.
///
/// ```
/// use topmass_kernels::{Isa, Scale, Tier, floor::bare_exp_sum};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// assert!((bare_exp_sum(isa, &[0.0; 7], &Scale::new(1.0), 0.0) - 7.0).abs() < 1e-6);
/// ```
#[must_use]
pub fn bare_exp_sum(isa: Isa, row: &[f32], scale: &Scale, max: f32) -> f64 {
    let origin = scale.origin(max).expect("a maximum that f32 can count from");
    isa.run(BareExpSum { row, scale, origin }) * scale.largest_unit(origin, max)
}

struct BareExpSum<'a> {
    row: &'a [f32],
    scale: &'a Scale,
    origin: f32,
}

impl Kernel for BareExpSum<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f64 {
        let exp = Exp32::<L, true>::new(l, self.scale, self.origin);
        let mut padded = [0.0; BLOCK];
        let row = Blocks::new(self.row, &mut padded);
        let mut total = l.splat_d(0.0);
        for b in 0..blocks(self.row.len()) {
            for chunk in row.get(b) {
                total = l.add_d(total, l.widen(sum8(l, &exp, chunk)));
            }
        }
        l.reduce_add(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::laws::{Random, tiers};

    #[test]
    fn floors_read_the_whole_row() {
        let mut random = Random(3);
        let row: Vec<f32> = (0..3 * BLOCK + 77).map(|_| random.unit() as f32 * 9.0).collect();
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        for temperature in [0.7, 2.0] {
            let weight = |x: f32| ((f64::from(x) - f64::from(max)) / f64::from(temperature)).exp();
            let exact: f64 = row.iter().map(|&x| weight(x)).sum();
            for isa in tiers() {
                assert_eq!(bare_max(isa, &row), max);
                let sum = bare_exp_sum(isa, &row, &Scale::new(temperature), max);
                assert!((sum / exact - 1.0).abs() < 1e-6, "{sum}, not {exact}");
            }
        }
    }
}
