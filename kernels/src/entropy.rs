//! How spread out a row is: the normaliser, and the mean exponent under it.

use crate::exp::{Exp64, Scale};
use crate::fixed::{Mass, MassLanes};
use crate::lanes::{Kernel, Lanes};
use crate::row::{BLOCK, Blocks, blocks};
use crate::tier::Isa;

/// The two sums that make an entropy. With weights `w = 2^-y`:
/// `H = ln(total) + ln 2 * exponents / total`, in nats.
///
/// Both are sums of integers, so no order and no tier changes a bit of them. A weight is off by
/// `WEIGHT_ERROR` of itself and a term of `exponents` by 2^-52 more; the logarithms of `V` up to
/// 2^32 then keep the error of `H` below `1e-13 * (1 + H)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Sum of `w`, the largest being 1.
    pub total: Mass,
    /// Sum of `w * y`. Masked tokens add nothing.
    pub exponents: Mass,
}

/// Weighs the whole row in `f64`. One read of the row, `O(V)`; `max` is its largest logit, finite.
///
/// ```
/// use topmass_kernels::{Isa, Mass, Scale, Tier, entropy::spread};
/// let isa = Isa::new(Tier::detected()).unwrap();
/// let row = [1.0, f32::NEG_INFINITY, 1.0, 1.0];
/// let spread = spread(isa, &row, &Scale::new(0.5), 1.0);
/// assert_eq!((spread.total, spread.exponents), (Mass::of_weight(1.0).times(3), Mass::ZERO));
/// ```
#[must_use]
pub fn spread(isa: Isa, row: &[f32], scale: &Scale, max: f32) -> Spread {
    isa.run(SpreadOf { row, scale, max })
}

struct SpreadOf<'a> {
    row: &'a [f32],
    scale: &'a Scale,
    max: f32,
}

impl Kernel for SpreadOf<'_> {
    type Output = Spread;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Spread {
        let exp = Exp64::new(l, self.scale, self.max);
        let mut padded = [0.0; BLOCK];
        let rows = Blocks::new(self.row, &mut padded);
        let mut spread = Spread { total: Mass::ZERO, exponents: Mass::ZERO };
        for b in 0..blocks(self.row.len()) {
            let mut total = MassLanes::new(l);
            let mut exponents = MassLanes::new(l);
            for x in rows.get(b).as_flattened() {
                let x = l.load(x);
                let w = exp.weight(l, x);
                total.add(l, w);
                // y * 2^-y is at most .54, so it is summed like a weight.
                exponents.add(l, l.mul_d(w, exp.exponent(l, x)));
            }
            spread.total = spread.total.plus(total.mass(l));
            spread.exponents = spread.exponents.plus(exponents.mass(l));
        }
        spread
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::laws::{Random, tiers};

    fn entropy(spread: Spread) -> f64 {
        let z = spread.total.to_f64();
        z.ln() + std::f64::consts::LN_2 * spread.exponents.to_f64() / z
    }

    /// By `-sum p ln p`, compensated.
    fn exact(row: &[f32], temperature: f32, max: f32) -> f64 {
        let z = |&x: &f32| match x {
            f32::NEG_INFINITY => f64::NEG_INFINITY, // also at an infinite temperature
            _ => (f64::from(x) - f64::from(max)) / f64::from(temperature),
        };
        let sum = |terms: &mut dyn Iterator<Item = f64>| {
            let (mut sum, mut lost) = (0.0f64, 0.0);
            for x in terms {
                let total = sum + x;
                lost += if sum.abs() >= x.abs() { (sum - total) + x } else { (x - total) + sum };
                sum = total;
            }
            sum + lost
        };
        let total = sum(&mut row.iter().map(|x| z(x).exp()));
        let term = |x: &f32| {
            let (z, p) = (z(x), z(x).exp() / total);
            if p == 0.0 { 0.0 } else { p * (total.ln() - z) }
        };
        sum(&mut row.iter().map(term))
    }

    #[test]
    fn entropy_is_within_its_bound_and_the_same_on_every_tier() {
        let mut random = Random(5);
        let mut worst = 0.0f64;
        for (len, span) in [
            (1, 1.0),
            (2, 0.0),
            (15, 3.0),
            (17, 30.0),
            (1000, 0.01),
            (1024, 10.0),
            (1025, 300.0),
            (5000, 20.0),
            (60_001, 12.0),
            (200_000, 0.5),
        ] {
            for temperature in [1.0, 0.7, 2.5, 0.01, 1e-30, 1e30, f32::INFINITY] {
                let row: Vec<f32> = (0..len)
                    .map(|i| match i % 7 {
                        3 => f32::NEG_INFINITY,
                        _ => (random.unit() * span - 17.3) as f32,
                    })
                    .collect();
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let scale = Scale::new(temperature);
                let mut first = None;
                for isa in tiers() {
                    let found = spread(isa, &row, &scale, max);
                    assert_eq!(found, *first.get_or_insert(found), "tier {}", isa.tier());
                }
                let found = entropy(first.expect("the portable tier always runs"));
                let exact = exact(&row, temperature, max);
                let error = (found - exact).abs() / (1.0 + exact);
                worst = worst.max(error);
                assert!(error < 1e-13, "{len} {span} {temperature}: {found} {exact}");
            }
        }
        println!("largest error of an entropy, as a share of 1 + H: {worst:e}");
    }

    #[test]
    fn equal_tokens_have_the_logarithm_of_their_count() {
        for n in [1usize, 2, 15, 1024, 1025, 40_000] {
            let row = vec![-3.25; n];
            for isa in tiers() {
                let found = spread(isa, &row, &Scale::new(0.7), -3.25);
                assert_eq!((found.total.to_f64(), found.exponents), (n as f64, Mass::ZERO));
            }
        }
    }
}
