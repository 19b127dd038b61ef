//! The rungs of the proof: which one decides, and that it changes nothing but the bound on `M`.

mod support;

use std::path::Path;

use support::oracle::{Masses, Row, Tally};
use support::rows::{Source, below, fitted, flat, source, uniform};
use support::{draw_at, read_rows, samplers};
use topmass::{Params, Rungs, Sampler};

/// `1/i`: hundreds of tokens that each hold little more than a bound leaves open.
fn zipf(rng: &mut Source, v: usize) -> Vec<f32> {
    let mut logits: Vec<f32> = (1..=v).map(|i| -((i as f32).ln())).collect();
    support::rows::shuffle(rng, &mut logits);
    logits
}

fn real() -> Vec<Vec<f32>> {
    read_rows(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logits/story.npy"))
}

fn rows() -> Vec<Vec<f32>> {
    let rng = &mut source(11);
    let mut rows: Vec<_> = (0..4).map(|_| fitted(rng, 32_000)).collect();
    rows.push(zipf(rng, 20_000));
    rows.push(flat(rng, 5_000));
    rows.extend(real().into_iter().take(4));
    rows
}

/// The masses above each token, by the literal sum.
fn masses_above(logits: &[f32], temperature: f64) -> Vec<f64> {
    let mut sorted = logits.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let weights =
        sorted.iter().map(|&x| ((f64::from(x) - f64::from(sorted[0])) / temperature).exp());
    let mut above = vec![0.0];
    let mut sum = 0.0;
    above.extend(weights.map(|w| {
        sum += w;
        sum
    }));
    above.iter().map(|mass| mass / sum).collect()
}

fn figures(rungs: Rungs) -> [u64; 3] {
    [rungs.quick, rungs.close, rungs.exact]
}

fn total(rungs: Rungs) -> u64 {
    rungs.quick + rungs.close + rungs.exact
}

/// `top_p` so near the mass above a token that the quick bound, or the close one, or both leave the
/// token's fate open: every rung has to decide some, and what it decides is the oracle's.
#[test]
fn boundaries_inside_every_bound() {
    let (mut samplers, mut tally) = (samplers(), Tally::default());
    let rng = &mut source(12);
    let mut near = [Rungs::default(); 8];
    for (n, logits) in rows().iter().enumerate() {
        let row = Row::new(logits);
        let plain = Params::default();
        let masses = Masses::new(&row, plain);
        let above = masses_above(logits, 1.0);
        for (power, near) in near.iter_mut().enumerate() {
            for _ in 0..4 {
                let rank = 1 + below(rng, above.partition_point(|&mass| mass < 0.98));
                let sign = if uniform(rng) < 0.5 { -1.0 } else { 1.0 };
                let gap = sign * 10f64.powi(-3 - power as i32) * uniform(rng);
                let params = plain.with_top_p((above[rank] + gap).clamp(0.0, 1.0));
                let expected = masses.expect(params);
                let us = expected.draws(rng);
                tally.context = format!("row {n}, rank {rank}, gap {gap:e}");
                let before = samplers[0].rungs();
                tally.compare(&mut samplers, logits, &expected, &us);
                let after = samplers[0].rungs();
                near.quick += after.quick - before.quick;
                near.close += after.close - before.close;
                near.exact += after.exact - before.exact;
            }
        }
    }
    for (power, rungs) in near.iter().enumerate() {
        println!("within 1e-{}: {rungs:?}", 3 + power);
    }
    // Wide gaps are decided at once, narrow ones only by more.
    assert!(near[0].quick > total(near[0]) / 2, "{near:?}");
    assert!(near[7].exact > total(near[7]) / 2, "{near:?}");
    assert!(near.iter().map(|rungs| rungs.close).sum::<u64>() > 0, "{near:?}");
    // All tiers climb alike.
    let climbed: Vec<_> = samplers.iter().map(Sampler::rungs).collect();
    assert!(climbed.iter().all(|rungs| *rungs == climbed[0]), "{climbed:?}");
    tally.finish("boundaries inside every bound");
}

/// Asking for the mass in `f64` changes its bits and its bound, and nothing else.
#[test]
fn an_exact_mass_changes_nothing_else() {
    let rng = &mut source(13);
    let mut narrowed = 0;
    for logits in rows() {
        for params in [
            Params::default().with_top_p(0.9),
            Params::default().with_top_p(0.95).with_temperature(0.7),
            Params::default().with_top_p(0.6).with_temperature(1.5).with_top_k(300),
            Params::default().with_min_p(0.05),
            Params::default().with_top_k(40).with_top_p(0.95).with_min_p(0.05),
            Params::default().with_temperature(0.8),
        ] {
            for mut sampler in samplers() {
                let u = uniform(rng);
                let bounded = draw_at(&mut sampler, &logits, params, u).expect("a good row");
                let exact =
                    draw_at(&mut sampler, &logits, params.with_exact_mass(true), u).expect("good");
                let same = |d: topmass::Draw| (d.token, d.kept, d.probability.to_bits());
                assert_eq!(same(bounded), same(exact), "{params:?}");
                assert!(exact.mass_error < 1e-12, "{exact:?}");
                let off = (bounded.retained_mass - exact.retained_mass).abs();
                assert!(off <= bounded.mass_error + exact.mass_error, "{bounded:?} {exact:?}");
                // The bound that the docs state.
                let m = bounded.retained_mass;
                let stated = 7.5e-5 * m * (1.0 - m) + 1e-6;
                assert!(bounded.mass_error <= stated.min(2e-5), "{bounded:?}");
                narrowed += usize::from(exact.mass_error < bounded.mass_error);
            }
        }
    }
    assert!(narrowed > 0, "the two never differed");
}

/// Real rows at the settings that people use are decided at the first look.
#[test]
fn real_rows_are_decided_by_the_quick_rung() {
    for (temperature, top_p) in [(0.7, 0.9), (0.7, 0.95), (1.0, 0.9), (1.0, 0.95)] {
        let params = Params::default().with_temperature(temperature).with_top_p(top_p);
        let mut sampler = Sampler::new();
        for logits in real() {
            draw_at(&mut sampler, &logits, params, 0.3).expect("a good row");
        }
        let rungs = sampler.rungs();
        println!("T {temperature}, p {top_p}: {rungs:?}");
        assert!(rungs.quick * 10 >= total(rungs) * 8, "{rungs:?}");
    }
}

/// Draws without a cut are counted too, and those without need of any proof are not.
#[test]
fn what_is_counted() {
    let logits = fitted(&mut source(14), 20_000);
    let plain = Params::default();
    let count = |params: Params| {
        let mut sampler = Sampler::new();
        draw_at(&mut sampler, &logits, params, 0.3).expect("a good row");
        sampler.rungs()
    };
    assert_eq!(figures(count(plain)), [0, 1, 0]);
    // No f32 counts these exponents.
    assert_eq!(figures(count(plain.with_temperature(1e-30))), [0, 0, 1]);
    assert_eq!(count(plain.with_top_k(40)), Rungs::default());
    assert_eq!(count(plain.with_min_p(0.1)), Rungs::default());
    assert_eq!(count(plain.with_temperature(0.0)), Rungs::default());
}

/// Ties that fit into a selection by themselves, but not together with what lies above them, of
/// which a few are kept: the draw must not look for them where they no longer are.
#[test]
fn ties_that_do_not_fit_together_with_what_lies_above() {
    let (mut samplers, mut tally) = (samplers(), Tally::default());
    let rng = &mut source(15);
    for (above, ties, below_them) in [(500, 3_900, 600), (1_000, 3_500, 500), (90, 4_050, 5_000)] {
        for gap in [0.05, 0.5] {
            let mut logits: Vec<f32> = (0..above).map(|i| 1.0 + gap + i as f32 * 1e-4).collect();
            logits.extend(std::iter::repeat_n(1.0, ties));
            logits.extend((0..below_them).map(|i| 0.9 - i as f32 * 1e-5));
            support::rows::shuffle(rng, &mut logits);
            let masses = masses_above(&logits, 1.0);
            let row = Row::new(&logits);
            for kept in [above + 1, above + 300, above + 900] {
                let top_p = (masses[kept - 1] + masses[kept]) / 2.0;
                let params =
                    Params::default().with_top_p(top_p).with_ties(topmass::Ties::LowestIndex);
                let expected = Masses::new(&row, params).expect(params);
                let us = expected.draws(rng);
                tally.context = format!("{above} above {ties}, {kept} kept");
                tally.compare(&mut samplers, &logits, &expected, &us);
            }
        }
    }
    tally.finish("ties that do not fit");
}
