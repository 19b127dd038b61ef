//! Every operation of every tier against its law, on values that break careless ones.

use super::{Kernel, LANES, Lanes, Vector};
use crate::tier::{Isa, Tier};

/// The tiers of this machine. `TOPMASS_REQUIRE_TIER` (names, separated by commas) makes a tier
/// that would be skipped a failure.
pub(crate) fn tiers() -> Vec<Isa> {
    let tiers = Tier::available();
    let required = std::env::var("TOPMASS_REQUIRE_TIER").unwrap_or_default();
    for name in required.split(',').filter(|name| !name.is_empty()) {
        let tier: Tier = name.parse().expect("TOPMASS_REQUIRE_TIER names tiers");
        assert!(tiers.contains(&tier), "this machine lacks the required tier {tier}");
    }
    tiers.into_iter().map(|t| Isa::new(t).expect("available")).collect()
}

/// A small generator: the kernels depend on no rng.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 * f64::powi(2.0, -53)
    }
}

const SPECIAL: [f32; 14] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    f32::MIN_POSITIVE,
    1e-45,
    -1e-45,
    16_777_216.0,
    -12_345.678,
    0.1,
    1e20,
    -1e-20,
    12_583_039.0,
];

/// Vectors of special values, of neighbours and of random bits (no NaN, no infinity).
fn vectors() -> Vec<Vector> {
    let mut random = Random(7);
    let mut all = Vec::new();
    for round in 0..400 {
        all.push(std::array::from_fn(|i| match round % 4 {
            0 => SPECIAL[(random.next() % SPECIAL.len() as u64) as usize],
            1 => (random.unit() * 40.0 - 20.0) as f32,
            2 => f32::from_bits((1.0f32.to_bits()) + (random.next() % 8) as u32 + i as u32),
            _ => {
                let x = f32::from_bits(random.next() as u32);
                if x.is_finite() && x.abs() < 1e18 { x } else { 0.25 }
            }
        }));
    }
    all
}

/// What every operation gives for three vectors, as bits.
struct AllOps<'a>(&'a Vector, &'a Vector, &'a Vector);

impl Kernel for AllOps<'_> {
    type Output = Vec<(&'static str, Vec<u64>)>;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Self::Output {
        let (a, b, c) = (l.load(self.0), l.load(self.1), l.load(self.2));
        let mut out = Vec::new();
        let a_wide = self.0.map(f64::from);
        let mut f = |name, x: L::F| {
            let mut lanes = [0.0; LANES];
            l.store(x, &mut lanes);
            out.push((name, lanes.map(|x| u64::from(x.to_bits())).to_vec()));
        };
        f("load", a);
        f("splat", l.splat(self.0[3]));
        f("index_bits", l.index_bits(u32::MAX - 3));
        f("add", l.add(a, b));
        f("sub", l.sub(a, b));
        f("mul", l.mul(a, b));
        f("fma", l.fma(a, b, c));
        // Adding 0.0 leaves the sign of a zero maximum out of it.
        f("max", l.add(l.max(a, b), l.splat(0.0)));
        f("shl23", l.shl23(a));
        f("only", l.only(l.gt(a, b), c));
        f("narrow", l.narrow(l.widen(a)));
        f("narrow rounds", l.narrow(l.fma_d(l.widen(a), l.splat_d(1.0 / 3.0), l.widen(b))));
        let mut m = |name, m: L::M| out.push((name, vec![u64::from(l.bits(m))]));
        m("ge", l.ge(a, b));
        m("gt", l.gt(a, b));
        m("and", l.and(l.ge(a, b), l.ge(b, c)));
        let mask = l.gt(a, b);
        let mut front = [0.0; LANES];
        l.compress(mask, c, &mut front);
        let kept = l.bits(mask).count_ones() as usize;
        let front = front[..kept].iter().map(|x| u64::from(x.to_bits())).collect();
        out.push(("compress", front));
        let (x, y, z) = (l.widen(a), l.widen(b), l.splat_d(1.0 / 3.0));
        let mut d = |name, x: L::D| {
            let mut lanes = [0.0; LANES];
            l.store_d(x, &mut lanes);
            out.push((name, lanes.map(f64::to_bits).to_vec()));
        };
        d("widen", x);
        d("load_d", l.load_d(&a_wide));
        d("add_d", l.add_d(x, z));
        d("sub_d", l.sub_d(x, y));
        d("mul_d", l.mul_d(x, z));
        d("fma_d", l.fma_d(l.mul_d(x, z), l.mul_d(y, z), l.widen(c)));
        d("max_d", l.add_d(l.max_d(x, y), l.splat_d(0.0)));
        d("shl52", l.shl52(x));
        d("keep", l.keep(mask, z));
        let acc = l.add_bits(l.add_bits(l.zero_a(), x), y);
        out.push(("add_bits", vec![l.total(acc)]));
        out.push(("reduce_max", vec![u64::from((l.reduce_max(a) + 0.0).to_bits())]));
        out.push(("reduce_add", vec![l.reduce_add(l.widen(a)).to_bits()]));
        out
    }
}

/// The laws, in plain Rust.
fn expected(a: &Vector, b: &Vector, c: &Vector) -> Vec<(&'static str, Vec<u64>)> {
    let f = |op: &dyn Fn(usize) -> f32| (0..LANES).map(|i| u64::from(op(i).to_bits())).collect();
    let d = |op: &dyn Fn(usize) -> f64| (0..LANES).map(|i| op(i).to_bits()).collect();
    let m = |op: &dyn Fn(usize) -> bool| vec![(0..LANES).fold(0, |m, i| m | u64::from(op(i)) << i)];
    let x = |i: usize| f64::from(a[i]);
    let y = |i: usize| f64::from(b[i]);
    let z = 1.0 / 3.0;
    let bits = |v: &Vector| v.iter().fold(0u64, |s, x| s.wrapping_add(f64::from(*x).to_bits()));
    let tree = {
        let mut s: Vec<f64> = (0..LANES).map(x).collect();
        while s.len() > 1 {
            let half = s.len() / 2;
            s = (0..half).map(|i| s[i] + s[i + half]).collect();
        }
        s[0]
    };
    vec![
        ("load", f(&|i| a[i])),
        ("splat", f(&|_| a[3])),
        ("index_bits", f(&|i| f32::from_bits((u32::MAX - 3).wrapping_add(i as u32)))),
        ("add", f(&|i| a[i] + b[i])),
        ("sub", f(&|i| a[i] - b[i])),
        ("mul", f(&|i| a[i] * b[i])),
        ("fma", f(&|i| a[i].mul_add(b[i], c[i]))),
        ("max", f(&|i| a[i].max(b[i]) + 0.0)),
        ("shl23", f(&|i| f32::from_bits(a[i].to_bits() << 23))),
        ("only", f(&|i| if a[i] > b[i] { c[i] } else { 0.0 })),
        ("narrow", f(&|i| a[i])),
        ("narrow rounds", f(&|i| x(i).mul_add(z, y(i)) as f32)),
        ("ge", m(&|i| a[i] >= b[i])),
        ("gt", m(&|i| a[i] > b[i])),
        ("and", m(&|i| a[i] >= b[i] && b[i] >= c[i])),
        (
            "compress",
            (0..LANES).filter(|&i| a[i] > b[i]).map(|i| u64::from(c[i].to_bits())).collect(),
        ),
        ("widen", d(&x)),
        ("load_d", d(&x)),
        ("add_d", d(&|i| x(i) + z)),
        ("sub_d", d(&|i| x(i) - y(i))),
        ("mul_d", d(&|i| x(i) * z)),
        ("fma_d", d(&|i| (x(i) * z).mul_add(y(i) * z, f64::from(c[i])))),
        ("max_d", d(&|i| x(i).max(y(i)) + 0.0)),
        ("shl52", d(&|i| f64::from_bits(x(i).to_bits() << 52))),
        ("keep", d(&|i| if a[i] > b[i] { z } else { 0.0 })),
        ("add_bits", vec![bits(a).wrapping_add(bits(b))]),
        ("reduce_max", f(&|_| a.iter().fold(f32::MIN, |m, &x| m.max(x)) + 0.0)[..1].to_vec()),
        ("reduce_add", vec![tree.to_bits()]),
    ]
}

#[test]
fn every_operation_keeps_its_law_on_every_tier() {
    let vectors = vectors();
    for isa in tiers() {
        println!("tier {}", isa.tier());
        for abc in vectors.windows(3) {
            let (a, b, c) = (&abc[0], &abc[1], &abc[2]);
            for (got, want) in isa.run(AllOps(a, b, c)).into_iter().zip(expected(a, b, c)) {
                assert_eq!(got, want, "tier {}, {a:?} {b:?} {c:?}", isa.tier());
            }
        }
    }
}

/// Sums that look halfway between two numbers and are not: a product rounded first decides for the
/// even one. Each in every lane; the others are ordinary, 0 or the same.
#[test]
fn a_fused_product_rounds_once_on_every_tier() {
    struct Fma<'a>([&'a Vector; 3], [[f64; LANES]; 3]);
    impl Kernel for Fma<'_> {
        type Output = (Vector, [f64; LANES]);
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> Self::Output {
            let ([a, b, c], [x, y, z]) = (self.0.map(|v| l.load(v)), self.1.map(|v| l.load_d(&v)));
            let (mut single, mut double) = ([0.0; LANES], [0.0; LANES]);
            l.store(l.fma(a, b, c), &mut single);
            l.store_d(l.fma_d(x, y, z), &mut double);
            (single, double)
        }
    }
    let exp2 = |n| f64::exp2(f64::from(n));
    let (ulp, tiny) = (exp2(-23), exp2(-127));
    // 97 * 172,961 = 2^24 + 1 is halfway; so, between subnormal numbers, is 2^-150, and
    // (1 - ulp)(1 + ulp) / 2^150 is 2^-196 less.
    let mut single: Vec<[f64; 3]> = vec![
        [exp2(-75) * (1.0 - ulp), exp2(-75) * (1.0 + ulp), tiny + exp2(-149)],
        [exp2(-75), exp2(-75), tiny],
        [exp2(-75), exp2(-75), tiny + exp2(-149)],
        [1.0, exp2(-149), -exp2(-149)],
    ];
    // (1 - u)(1 + u) = 1 - u^2; 536,838,145 * 536,903,681 = 2^58 + 1.
    let u = exp2(-52);
    let above = [536_838_145.0 * exp2(-29), 536_903_681.0 * exp2(-29)];
    let mut double: Vec<[f64; 3]> = Vec::new();
    for scale in [exp2(-20), 1.0, exp2(20)] {
        for c in [0.0, exp2(-40), -exp2(-40), exp2(-26), 1.0, -1.0, 2.0, -2.0] {
            single.push([97.0, 172_961.0 * scale, c * scale]);
        }
        for c in [exp2(53), exp2(53) + 2.0, exp2(53) + 4.0, exp2(54) + 4.0, 1.0, -1.0] {
            double.push([(1.0 - u) * scale, 1.0 + u, c * scale]);
            double.push([above[0] * scale, above[1], c * scale]);
        }
    }
    for isa in tiers() {
        for i in 0..single.len() * LANES * 24 {
            let (lane, signs, others, i) =
                (i % LANES, i / LANES % 8, i / LANES / 8 % 3, i / LANES / 24);
            let place = |hard: [f64; 3]| {
                std::array::from_fn(|j| {
                    let sign = if signs >> j & 1 == 1 { -1.0 } else { 1.0 };
                    let hard = sign * hard[j];
                    std::array::from_fn(|at| {
                        if at == lane { hard } else { [at as f64, 0.0, hard][others] }
                    })
                })
            };
            let wide: [[f64; LANES]; 3] = place(double[i % double.len()]);
            let [a, b, c] = place(single[i]).map(|x: [f64; LANES]| x.map(|x| x as f32));
            let (f, d) = isa.run(Fma([&a, &b, &c], wide));
            let at = || format!("tier {}, lane {lane}: {:?} {:?}", isa.tier(), [a, b, c], wide);
            for at_lane in 0..LANES {
                let want = a[at_lane].mul_add(b[at_lane], c[at_lane]);
                assert_eq!(f[at_lane].to_bits(), want.to_bits(), "{}", at());
                let [x, y, z] = wide.map(|v| v[at_lane]);
                assert_eq!(d[at_lane].to_bits(), x.mul_add(y, z).to_bits(), "{}", at());
            }
        }
    }
}

#[test]
fn nan_in_the_second_operand_of_max_stays_and_compares_false() {
    struct NanOps;
    impl Kernel for NanOps {
        type Output = (u32, u32);
        #[inline(always)]
        fn run<L: Lanes>(self, l: L) -> (u32, u32) {
            let (one, nan) = (l.splat(1.0), l.splat(f32::NAN));
            let max = l.max(one, nan);
            let any = l.bits(l.ge(max, max)) | l.bits(l.gt(one, nan)) | l.bits(l.ge(nan, one));
            (any, l.bits(l.ge(one, one)))
        }
    }
    for isa in tiers() {
        assert_eq!(isa.run(NanOps), (0, 0xffff), "tier {}", isa.tier());
    }
}
