//! A Mirostat step against the literal controller.

use topmass::mirostat::truncation_k;
use topmass::{Mirostat, MirostatDraw, Sampler, SurpriseBase, reference};

use super::rows::source;

pub fn bits(draw: &MirostatDraw) -> (u32, u32, [u64; 5]) {
    let zipf = draw.zipf_exponent.map_or(u64::MAX, f64::to_bits);
    let figures = [draw.probability, draw.surprise_bits, draw.surprise_error, draw.mu];
    let [p, s, e, mu] = figures.map(f64::to_bits);
    (draw.token, draw.kept, [p, s, e, mu, zipf])
}

#[track_caller]
pub fn assert_close(fast: f64, literal: f64, tolerance: f64, what: &str) {
    assert!((fast - literal).abs() <= tolerance, "{what}: {fast} against {literal}");
}

/// One step on every tier and with the literal algorithm, from the same controller and rng.
/// Returns the literal one.
pub fn check(
    samplers: &mut [Sampler],
    controller: &Mirostat,
    row: &[f32],
    temperature: f32,
    seed: u64,
) -> MirostatDraw {
    let (mut literal, mut literal_rng) = (controller.clone(), source(seed));
    let expected = reference::mirostat(&mut literal, row, temperature, &mut literal_rng).unwrap();
    let mut first = None;
    for sampler in samplers {
        let (mut fast, mut fast_rng) = (controller.clone(), source(seed));
        let draw = fast.sample_with(sampler, row, temperature, &mut fast_rng).unwrap();
        let what = format!("{controller:?} T {temperature} V {} {}", row.len(), sampler.tier());
        assert_eq!((draw.token, draw.kept), (expected.token, expected.kept), "{what}");
        assert_eq!(fast_rng, literal_rng, "{what}");
        assert_eq!(draw.mu, fast.mu(), "{what}");

        let s = expected.surprise_bits;
        assert!((0.0..2e-6).contains(&draw.surprise_error), "{draw:?}");
        assert_close(draw.surprise_bits, s, draw.surprise_error + expected.surprise_error, &what);
        if controller.surprise_base() == SurpriseBase::Kept || temperature <= 0.0 {
            assert!(draw.surprise_error < 1e-12, "{draw:?}");
        }
        // A relative bound, where the f64 exponential of the literal algorithm has its digits.
        assert_close(draw.probability, expected.probability, 1e-13, &what);
        let moved = controller.eta() * (1.0 + s + controller.tau()) + expected.mu.abs();
        let off = controller.eta() * (draw.surprise_error + expected.surprise_error);
        assert_close(draw.mu, expected.mu, off + 4.0 * f64::EPSILON * moved, &what);
        match (draw.zipf_exponent, expected.zipf_exponent) {
            (Some(a), Some(b)) => assert_close(a, b, 1e-13 * (1.0 + b.abs()), &what),
            (a, b) => assert_eq!(a, b, "{what}"),
        }
        let bits = bits(&draw);
        assert_eq!(*first.get_or_insert(bits), bits, "the same bits on every tier: {what}");
    }
    expected
}

/// Whether the literal step decides by less than rounding errors: with version 2 a surprise at mu,
/// with version 1 a k halfway between integers.
pub fn on_the_line(mirostat: &Mirostat, v2: bool, row: &[f32], temperature: f32) -> bool {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let z = |x: f32| (f64::from(x) - f64::from(max)) / f64::from(temperature);
    let unmasked = || row.iter().filter(|&&x| x > f32::NEG_INFINITY);
    if v2 {
        let total: f64 = unmasked().map(|&x| z(x).exp()).sum();
        let off = |x: f32| (total.log2() - z(x) * std::f64::consts::LOG2_E - mirostat.mu()).abs();
        return unmasked().any(|&x| off(x) < 1e-11);
    }
    let mut p: Vec<f64> = unmasked().map(|&x| z(x)).collect();
    p.sort_by(|a, b| b.total_cmp(a));
    let (mut tb, mut bb) = (0.0, 0.0);
    for (i, pair) in (1..100).zip(p.windows(2)) {
        let b = (f64::from(i + 1) / f64::from(i)).ln();
        tb += (pair[0] - pair[1]) * b;
        bb += b * b;
    }
    let k = truncation_k(tb / bb, mirostat.mu(), p.len());
    k < p.len() as f64 && (k.fract() - 0.5).abs() < 1e-9 * k
}
