//! The rule: the literal algorithm against a brute-force second statement of it, the fast path
//! against both, and the contract's figures.

mod support;

use proptest::prelude::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use support::brute::{self, Fate};
use support::oracle::{Tally, compare_one};
use support::rows::{
    self, Shape, below, choices, five_integers, flat, pick, source, uniform, with_choices,
};
use support::{LAST_U, Scripted, bits_of, draw_at, filter, for_each_tier, samplers, support_of};
use topmass::{Mirostat, Params, Sampler, Ties, filter_fused, reference, sample_fused};

/// Holds the reference and every sampler against the brute-force rule on one row. Returns how many
/// tokens it could not decide.
fn against_brute_force(samplers: &mut [Sampler], logits: &[f32], params: Params, u: f64) -> usize {
    let fates = brute::fates(logits, params);
    let undecided = fates.iter().filter(|&&fate| fate == Fate::Undecidable).count();
    let kept = reference::kept_set(logits, params).expect("a good row");
    for (i, fate) in fates.iter().enumerate() {
        let is_kept = kept.contains(&i);
        let wrong = *fate == if is_kept { Fate::Dropped } else { Fate::Kept };
        assert!(
            !wrong,
            "token {i} is {fate:?}, the reference keeps {kept:?} of {logits:?}, {params:?}"
        );
    }
    let truth = brute::probabilities(logits, params, &kept);
    let found = reference::filter(logits, params).expect("a good row");
    for (i, (a, b)) in truth.iter().zip(&found).enumerate() {
        assert!(
            (a - b).abs() <= 1e-12,
            "probability {i}: {a} against {b} for {logits:?}, {params:?}"
        );
    }
    let token =
        if params.temperature <= 0.0 { kept.first().copied() } else { brute::token(&truth, u) };
    if let Some(token) = token {
        let draw = reference::sample(logits, params, &mut Scripted::at(u)).expect("a good row");
        assert_eq!(draw.token as usize, token, "u = {u}, {logits:?}, {params:?}");
        assert_eq!(draw.kept as usize, kept.len());
        assert!((draw.probability - truth[token]).abs() <= 1e-12);
    }
    if undecided > 0 {
        return undecided;
    }
    for sampler in samplers {
        let tier = sampler.tier();
        let (probs, outcome) = filter(sampler, logits, params).expect("a good row");
        assert_eq!(outcome.kept as usize, kept.len(), "{tier:?}, {logits:?}, {params:?}");
        for (i, (&found, &truth)) in probs.iter().zip(&truth).enumerate() {
            let close = (f64::from(found) - truth).abs() <= 2e-7 * truth;
            assert!(close, "{tier:?}: probs[{i}] = {found} for {truth}, {logits:?}, {params:?}");
        }
        if let Some(token) = token {
            let draw = draw_at(sampler, logits, params, u).expect("a good row");
            assert_eq!(draw.token as usize, token, "{tier:?}, u = {u}, {logits:?}, {params:?}");
        }
    }
    0
}

/// Contract, section 7: 3,000 batches of 4 rows, a third from five integer logits.
#[test]
fn twelve_thousand_small_rows() {
    let mut samplers = samplers();
    let mut rng = source(1);
    let mut excluded = 0;
    for n in 0..12_000 {
        let v = 1 + below(&mut rng, 39);
        let logits = if n % 3 == 0 { five_integers(&mut rng, v) } else { flat(&mut rng, v) };
        let mut params = Params::default()
            .with_temperature(pick(&mut rng, &[0.0, 0.5, 1.0, 2.0]))
            .with_top_p(0.05 + 0.95 * uniform(&mut rng));
        if n % 4 == 1 {
            params = params.with_top_k(1 + below(&mut rng, v + 3) as u32);
        }
        if n % 5 == 1 {
            params = params.with_min_p(uniform(&mut rng).powi(3));
        }
        if n % 2 == 1 {
            params = choices(&mut rng, params);
        }
        excluded += against_brute_force(&mut samplers, &logits, params, uniform(&mut rng));
    }
    println!("{excluded} tokens excluded");
    assert!(excluded <= 5, "{excluded} tokens excluded");
}

/// Sums of quarters are exact: at an exact `u` the sum has to exceed it, not only reach it.
#[test]
fn a_sum_that_equals_u_is_not_enough() {
    let row = [f32::NEG_INFINITY, 0.0, 0.0, f32::NEG_INFINITY, 0.0, 0.0];
    let step = 1.0 / (1u64 << 53) as f64;
    let at =
        [(0.0, 1), (0.25 - step, 1), (0.25, 2), (0.5 - step, 2), (0.5, 4), (0.75, 5), (LAST_U, 5)];
    for (u, token) in at {
        let literal = reference::sample(&row, Params::default(), &mut Scripted::at(u)).unwrap();
        assert_eq!(literal.token, token, "u = {u}");
        for_each_tier(|sampler| {
            let draw = draw_at(sampler, &row, Params::default(), u).unwrap();
            assert_eq!(draw.token, token, "u = {u} on {}", sampler.tier());
        });
    }
}

fn any_choices() -> impl Strategy<Value = Params> {
    let numbers =
        (prop_oneof![Just(0.5f32), Just(1.0), Just(2.0)], 0.0f64..1.1, 0u32..45, 0.0f64..1.0);
    (numbers, any::<[bool; 5]>()).prop_map(|((temperature, top_p, top_k, min_p), flags)| {
        let mut params = Params::default().with_temperature(temperature).with_top_p(top_p);
        params.top_k = if flags[0] { top_k } else { 0 };
        params.min_p = if flags[1] { min_p } else { 0.0 };
        let choices = [flags[2], flags[3], flags[4]];
        with_choices(params, choices).with_exact_mass(flags[4] && flags[2])
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    #[test]
    fn small_rows_with_distinct_logits(
        logits in prop::collection::vec(-8.0f32..8.0, 1..40), params in any_choices(), u in 0.0..1.0,
    ) {
        against_brute_force(&mut samplers(), &logits, params, u);
    }

    #[test]
    fn small_rows_with_ties_and_masks(
        picks in prop::collection::vec(0usize..7, 1..40), params in any_choices(), u in 0.0..1.0,
    ) {
        let mut logits: Vec<f32> =
            picks.iter().map(|&i| [-2.0, -1.0, -0.0, 0.0, 1.0, 2.5, f32::NEG_INFINITY][i]).collect();
        logits[0] = logits[0].max(-2.0); // never all masked
        against_brute_force(&mut samplers(), &logits, params, u);
    }
}

fn ln(weights: &[f64]) -> Vec<f32> {
    weights.iter().map(|w| w.ln() as f32).collect()
}

/// The reference and every tier keep the first `n` tokens, holding `mass`.
fn keeps_first(logits: &[f32], params: Params, n: usize, mass: f64, tolerance: f64) {
    let kept = reference::kept_set(logits, params).expect("a good row");
    assert!(kept.iter().copied().eq(0..n), "the reference keeps {kept:?}");
    let draw = reference::sample(logits, params, &mut Scripted::at(0.0)).expect("a good row");
    assert!((draw.retained_mass - mass).abs() <= tolerance, "{draw:?}");
    for_each_tier(|sampler| {
        let (probs, outcome) = filter(sampler, logits, params).expect("a good row");
        assert!(support_of(&probs).into_iter().eq(0..n), "{:?}", support_of(&probs));
        assert_eq!(outcome.kept as usize, n);
        let draw = draw_at(sampler, logits, params, 0.0).expect("a good row");
        assert_eq!(draw.kept as usize, n);
        for found in [draw.retained_mass, outcome.retained_mass] {
            assert!((found - mass).abs() <= tolerance, "M = {found}, not {mass}");
        }
    });
}

/// The probabilities that the reference and every tier give.
fn all_probabilities(logits: &[f32], params: Params) -> Vec<Vec<f64>> {
    let mut all = vec![reference::filter(logits, params).expect("a good row")];
    for_each_tier(|sampler| {
        let (probs, _) = filter(sampler, logits, params).expect("a good row");
        all.push(probs.into_iter().map(f64::from).collect());
    });
    all
}

fn entropy(probs: &[f64]) -> f64 {
    -probs.iter().filter(|&&p| p > 0.0).map(|&p| p * p.ln()).sum::<f64>()
}

#[test]
fn a_peaked_distribution() {
    let weights = [0.82, 0.09, 0.04, 0.02, 0.015, 0.01, 0.005];
    let (logits, params) = (ln(&weights), Params::default().with_top_p(0.9));
    keeps_first(&logits, params, 2, 0.910, 1e-6);
    for probs in all_probabilities(&logits, params) {
        assert!((probs[0] - 0.9011).abs() < 5e-5 && (probs[1] - 0.0989).abs() < 5e-5, "{probs:?}");
    }
    for probs in all_probabilities(&logits, Params::default()) {
        assert!((entropy(&probs) - 0.722).abs() < 5e-4, "{}", entropy(&probs));
        assert!((entropy(&probs).exp() - 2.06).abs() < 5e-3);
    }
}

#[test]
fn a_flat_distribution() {
    let mut weights =
        vec![0.11, 0.10, 0.095, 0.09, 0.085, 0.08, 0.075, 0.07, 0.065, 0.06, 0.055, 0.05];
    weights.extend([0.005; 13]);
    let (logits, params) = (ln(&weights), Params::default().with_top_p(0.9));
    keeps_first(&logits, params, 12, 0.935, 1e-6);
    for probs in all_probabilities(&logits, params) {
        assert!((probs[0] - 0.1176).abs() < 5e-5, "{probs:?}");
    }
    for probs in all_probabilities(&logits, Params::default()) {
        assert!((entropy(&probs) - 2.706).abs() < 5e-4, "{}", entropy(&probs));
        assert!((entropy(&probs).exp() - 14.96).abs() < 5e-3);
    }
}

#[test]
fn ties_at_the_crossing_are_kept() {
    let (logits, params) = (ln(&[0.30, 0.25, 0.25, 0.12, 0.08]), Params::default().with_top_p(0.6));
    keeps_first(&logits, params, 3, 0.80, 1e-6);
    for probs in all_probabilities(&logits, params) {
        for (found, truth) in probs.iter().zip([0.375, 0.3125, 0.3125, 0.0, 0.0]) {
            assert!((found - truth).abs() < 1e-6, "{probs:?}");
        }
    }
    // By position instead: .30 + .25 < .6 keeps the third, .30 + .25 > .5 drops it.
    let by_position = params.with_ties(Ties::LowestIndex);
    keeps_first(&logits, by_position, 3, 0.80, 1e-6);
    keeps_first(&logits, by_position.with_top_p(0.5), 2, 0.55, 1e-6);
}

#[test]
fn the_set_does_not_depend_on_token_ids() {
    let params = Params::default().with_top_p(0.5);
    for place in 0..4 {
        let mut weights = [0.2; 4];
        weights[place] = 0.4;
        keeps_first(&ln(&weights), params, 4, 1.0, 1e-6);
    }
}

#[test]
fn geometric() {
    let logits: Vec<f32> = (0..500).map(|i| (f64::from(i) * 0.6f64.ln()) as f32).collect();
    for (p, n) in [(0.9, 5), (0.95, 6), (0.99, 10)] {
        keeps_first(&logits, Params::default().with_top_p(p), n, 1.0 - 0.6f64.powi(n as i32), 1e-6);
    }
}

#[test]
fn zipf() {
    const V: usize = 151_936;
    let weights: Vec<f64> = (1..=V).map(|i| (i as f64).powf(-1.5)).collect();
    let logits = ln(&weights);
    keeps_first(&logits, Params::default().with_top_p(0.9), 57, 0.9008, 5e-5);

    // The mass beyond n is 2 (n^-1/2 - V^-1/2); without its last term, the tail formula.
    let zeta = 2.612_375_348_685_488;
    let formula = |p: f64| (2.0 / ((1.0 - p) * zeta)).powi(2);
    assert!((formula(0.9) - 59.0).abs() < 0.5, "{}", formula(0.9));
    assert!((formula(0.99) / formula(0.9) - 100.0).abs() < 1e-9);
    let total: f64 = weights.iter().sum();
    let finite = (2.0 / (0.01 * total + 2.0 / (V as f64).sqrt())).powi(2);
    let n =
        reference::kept_set(&logits, Params::default().with_top_p(0.99)).expect("a good row").len();
    assert!((n as f64 / finite - 1.0).abs() < 0.01, "{n} kept, about {finite} expected");
    let mass = weights[..n].iter().sum::<f64>() / total;
    keeps_first(&logits, Params::default().with_top_p(0.99), n, mass, 1e-6);
}

/// An f32 running sum over 128,256 tokens ends short of 1 or passes it too early; `top_p = 1` must
/// not care, and neither must the last uniform.
#[test]
fn p_one_keeps_all() {
    const V: usize = 128_256;
    let params = Params::default().with_top_p(1.0);
    for (floor, ends_near) in [(-9.0, 0.99971), (-12.0, 1.00266), (-13.0, 0.99695)] {
        let mut logits = vec![floor; V];
        logits[0] = 0.0;
        let probs = reference::filter(&logits, params).expect("a good row");
        let running = probs.iter().fold(0.0f32, |sum, &p| sum + p as f32);
        assert!((running - ends_near).abs() < 1e-5, "the f32 running sum ends at {running}");
        keeps_first(&logits, params, V, 1.0, 0.0);
        for_each_tier(|sampler| {
            assert_eq!(
                draw_at(sampler, &logits, params, LAST_U).expect("a good row").token as usize,
                V - 1
            );
        });
    }
}

/// The reference's own bounds, against mpmath at 60 digits: a weight `e^z` in `f64` is off by about
/// as many units as `z` is large.
#[test]
fn the_reference_states_bounds_that_hold() {
    for (temperature, x, probability) in [
        (0.7, -23.7, 1.977_101_476_245_542_6e-15),
        (0.3, -9.9, 4.658_898_178_406_099e-15),
        (1.3, -30.1, 8.798_565_759_129_429e-11),
    ] {
        let params = Params::default().with_temperature(temperature);
        let draw = reference::sample(&[0.0, x], params, &mut Scripted::at(LAST_U));
        let draw = draw.expect("a good row");
        assert_eq!(draw.token, 1);
        let off = (draw.probability - probability).abs();
        assert!(off <= draw.probability_error, "{draw:?}: off by {off:e}");
        assert!(draw.probability_error < 1e-14 * probability, "{draw:?}");
    }
    for (temperature, x, vocab, top_k, mass) in [
        (0.7, -6.4, 10_000, 5_000, 0.741_554_474_452_606_7),
        (1.3, -13.7, 30_000, 20_000, 0.852_373_400_466_241_2),
        (0.3, -2.9, 20_000, 10_000, 0.720_527_152_312_124_6),
    ] {
        let mut logits = vec![x; vocab];
        logits[0] = 0.0;
        let params = Params::default()
            .with_temperature(temperature)
            .with_top_k(top_k)
            .with_ties(Ties::LowestIndex);
        let draw = reference::sample(&logits, params, &mut Scripted::at(0.0)).expect("a good row");
        assert_eq!(draw.kept, top_k);
        let off = (draw.retained_mass - mass).abs();
        assert!(off <= draw.mass_error, "{draw:?}: off by {off:e}");
        assert!(draw.mass_error < 1e-14, "{draw:?}");
    }
    for (temperature, x, vocab, surprise) in [
        (0.7, -23.7, 2, 48.845_534_502_916_49),
        (0.3, -9.9, 2, 47.608_932_623_045_18),
        (0.7, -6.4, 30_000, 15.263_945_367_499_512),
    ] {
        let mut logits = vec![x; vocab];
        logits[0] = 0.0;
        let mut controller = Mirostat::v2(3.0, 0.1).with_mu(1e6);
        let rng = &mut Scripted::at(LAST_U);
        let draw = reference::mirostat(&mut controller, &logits, temperature, rng);
        let draw = draw.expect("a good row");
        assert_eq!((draw.token as usize, draw.kept as usize), (vocab - 1, vocab));
        let off = (draw.surprise_bits - surprise).abs();
        assert!(off <= draw.surprise_error, "{draw:?}: off by {off:e}");
        assert!(draw.surprise_error < 1e-13, "{draw:?}");
    }
}

/// Where masses are exact in binary: the token whose mass before it equals `p` is not kept, the one
/// before it is, and at `p = 1` what no longer moves the sum is.
#[test]
fn p_is_met_exactly() {
    let (by_index, together) = (Ties::LowestIndex, Ties::Together);
    let params = |top_p: f64, ties| Params::default().with_top_p(top_p).with_ties(ties);
    for_each_tier(|sampler| {
        for (logits, params, n) in [
            (&[0.0, 0.0, 0.0, 0.0][..], params(0.5, by_index), 2),
            (&[0.0, 0.0, f32::NEG_INFINITY, -0.0, 0.0], params(0.75, by_index), 3),
            (&[0.0, 0.0, 0.0, 0.0], params(0.5, together), 4),
            (&[3.0, -40.0, -41.0], params(1.0 - 1e-16, by_index), 1),
            (&[3.0, -40.0, -41.0], params(1.0, by_index), 3),
            (&[3.0, -800.0, -900.0], params(1.0, together), 3),
            (&[3.0, -800.0, -900.0, -901.0], params(1.0, together).with_top_k(3), 3),
            (&[3.0, -97.0, -98.0, -200.0], params(1.0, together).with_min_p(1e-44), 3),
        ] {
            let kept = reference::kept_set(logits, params).expect("a good row");
            assert_eq!(kept.len(), n, "{logits:?}, {params:?}");
            let (_, outcome) = filter(sampler, logits, params).expect("a good row");
            assert_eq!(outcome.kept as usize, n, "{logits:?}, {params:?}");
        }
    });
}

/// 400,000 draws (fewer in debug) from five tokens of which three are kept, on the best tier; the
/// others repeat the first of them.
#[test]
fn draws_follow_the_distribution() {
    const DRAWS: usize = if cfg!(debug_assertions) { 100_000 } else { 400_000 };
    let logits = ln(&[0.12, 0.30, 0.25, 0.08, 0.25]);
    let params = Params::default().with_top_p(0.6);
    let tokens = |sampler: &mut Sampler, n: usize| -> Vec<usize> {
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(3);
        let mut token =
            || sampler.sample(&logits, params, &mut rng).expect("a good row").token as usize;
        (0..n).map(|_| token()).collect()
    };
    let mut samplers = samplers();
    let mut best = samplers.pop().expect("the portable tier at least");
    let drawn = tokens(&mut best, DRAWS);
    let mut counts = [0u32; 5];
    drawn.iter().for_each(|&token| counts[token] += 1);
    assert_eq!((counts[0], counts[3]), (0, 0), "a filtered token was drawn");
    let truth = [0.0, 0.375, 0.3125, 0.0, 0.3125];
    let pairs = counts.iter().zip(truth);
    let distance = pairs.map(|(&n, p)| (f64::from(n) / DRAWS as f64 - p).abs()).sum::<f64>() / 2.0;
    println!("total variation distance {distance:.1e}");
    // Its mean is 0.56 / sqrt(DRAWS).
    assert!(distance < 1.8 / (DRAWS as f64).sqrt(), "{counts:?}");
    for sampler in &mut samplers {
        assert_eq!(tokens(sampler, 10_000), drawn[..10_000], "{:?}", sampler.tier());
    }
}

/// The functions are the sampler, with scratch of their own.
#[test]
fn free_functions_agree_with_the_sampler() {
    let mut rng = source(11);
    let mut sampler = Sampler::new();
    for _ in 0..200 {
        let v = 1 + below(&mut rng, 3_000);
        let (_, shape) = pick(&mut rng, rows::SHAPES);
        let logits = shape(&mut rng, v);
        let params = rows::params(&mut rng, v);
        let u = uniform(&mut rng);
        let mut probs = vec![f32::NAN; v];
        let mut scripted = Scripted::new(&[bits_of(u)]);
        assert_eq!(
            sample_fused(&logits, params, &mut scripted),
            draw_at(&mut sampler, &logits, params, u)
        );
        let kept = filter_fused(&logits, params, &mut probs);
        assert_eq!(kept.map(|kept| (probs, kept)), filter(&mut sampler, &logits, params));
    }
}

/// The sampler's history never changes a result: small after large, peaked after flat.
#[test]
fn history_does_not_matter() {
    let mut rng = source(12);
    let peaked = Params::default().with_top_p(0.5);
    let mut tally = Tally::default();
    let mut used = samplers();
    for round in 0..6 {
        for (v, shape) in [(5_000, flat as Shape), (17, rows::fitted), (3_000, rows::fitted)] {
            tally.context = format!("round {round}, V = {v}");
            let logits = shape(&mut rng, v);
            let params = if round % 2 == 0 { peaked } else { peaked.with_top_p(0.999) };
            compare_one(&mut used, &logits, params, &mut tally);
            let u = uniform(&mut rng);
            for (fresh, used) in samplers().iter_mut().zip(&mut used) {
                assert_eq!(draw_at(fresh, &logits, params, u), draw_at(used, &logits, params, u));
            }
        }
    }
    tally.finish("history");
}
