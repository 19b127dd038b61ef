//! The floor of min-p is found in bounded time, however large logits and temperature are.

use topmass::{Params, filter_fused};

fn kept(row: &[f32], temperature: f32, min_p: f64) -> u32 {
    let params = Params::default().with_temperature(temperature).with_min_p(min_p);
    let mut probs = vec![0.0; row.len()];
    filter_fused(row, params, &mut probs).unwrap().kept
}

/// `T * ln(min_p)` is `inf * 0`: a guess from it is NaN, and a walk from there has no end.
#[test]
fn infinite_temperature() {
    for min_p in [1.0, 0.5, 5e-324] {
        assert_eq!(kept(&[1.0, 2.0, 3.0, f32::NEG_INFINITY], f32::INFINITY, min_p), 3);
    }
}

/// The floor lies near 0, where half of all floats are, and none of them differs from another
/// once a maximum of 1e30 is taken from it.
#[test]
fn huge_logits() {
    let min_p = (-1.0f64).exp();
    // The weight of what lies near 0 is min_p to the last bit or next to it: in or out, together.
    assert!([1, 4].contains(&kept(&[1e30, 2.0, 0.0, -2.0, -1e30], 1e30, min_p)));
    assert_eq!(kept(&[f32::MAX, 0.0, f32::MIN], f32::MAX, min_p * 1.01), 1);
    assert_eq!(kept(&[-1e-45, f32::MIN], f32::MAX, min_p * 0.99), 2);
}

/// Halving from -1e-45 to 0 meets a key that belongs to neither.
#[test]
fn floors_at_zero() {
    for max in [0.0, -0.0] {
        assert_eq!(kept(&[max, -1e-45, -1.0], 1e-30, 1.0), 1);
        assert_eq!(kept(&[max, 0.0, -0.0, -1.0], 1e-45, 0.9), 3);
    }
}
