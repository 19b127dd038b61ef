//! `inspect`, `NucleusLog`, and what a sampler keeps from its rows: speed, never a result.

use std::path::Path;

use rand::Rng;
use support::oracle::draw_bits;
use support::rows::{Source, below, source, uniform};
use support::samplers;
use topmass::{Error, NucleusLog, Params, Sampler, StepStats, TemperatureAt, Tier, inspect};

mod support;

/// On every tier, which must agree to the last bit.
fn stats(logits: &[f32], params: Params) -> StepStats {
    let expected = inspect(logits, params).unwrap();
    for mut sampler in samplers() {
        let found = sampler.inspect(logits, params).unwrap();
        assert_eq!(found.entropy.to_bits(), expected.entropy.to_bits(), "{}", sampler.tier());
        assert_eq!(found, expected, "{}", sampler.tier());
    }
    expected
}

fn near(a: f64, b: f64, within: f64) {
    assert!((a - b).abs() <= within, "{a} {b}");
}

#[test]
fn the_figures_of_a_peaked_and_of_an_open_step() {
    let params = Params::default().with_top_p(0.9);
    let peaked = [0.82f32, 0.09, 0.04, 0.02, 0.015, 0.01, 0.005].map(f32::ln);
    let s = stats(&peaked, params);
    assert_eq!(s.kept, 2);
    near(s.retained_mass, 0.91, 1e-6);
    near(s.entropy, 0.722, 5e-4);
    near(s.effective_support, 2.06, 5e-3);
    near(s.divergence, -(0.91f64.ln()), 1e-6);
    assert!(s.mass_error > 0.0 && s.mass_error < 2e-5);

    let mut open =
        vec![0.11, 0.10, 0.095, 0.09, 0.085, 0.08, 0.075, 0.07, 0.065, 0.06, 0.055, 0.05];
    open.extend([0.005; 13]);
    let open: Vec<f32> = open.iter().map(|p: &f32| p.ln()).collect();
    let s = stats(&open, params);
    assert_eq!(s.kept, 12);
    near(s.retained_mass, 0.935, 1e-6);
    near(s.entropy, 2.706, 5e-4);
    near(s.effective_support, 14.96, 5e-3);
}

#[test]
fn masked_tokens_count_for_nothing() {
    let mut rng = source(3);
    for vocab in [1usize, 2, 17, 1000, 5000] {
        let row: Vec<f32> = (0..vocab).map(|_| (8.0 * uniform(&mut rng)) as f32).collect();
        let masked: Vec<f32> = row.iter().flat_map(|&x| [f32::NEG_INFINITY, x]).collect();
        for t in [0.0, 0.5, 1.0, 1e-30, 1e30] {
            let params = Params::default().with_temperature(t);
            let (full, masked) = (stats(&row, params), stats(&masked, params));
            assert_eq!((full.entropy, full.kept), (masked.entropy, masked.kept));
            assert!(full.entropy >= 0.0 && full.entropy <= (vocab as f64).ln() + 1e-12);
        }
    }
    let one = stats(&[f32::NEG_INFINITY, -7.5, f32::NEG_INFINITY], Params::default());
    assert_eq!((one.entropy, one.effective_support, one.kept, one.divergence), (0.0, 1.0, 1, 0.0));
    assert!(one.divergence.is_sign_positive(), "not -0");
}

#[test]
fn entropy_at_extreme_temperatures() {
    let row = [3.0, 3.0, 1.0, 0.0];
    let at = |t| stats(&row, Params::default().with_temperature(t));
    assert_eq!((at(0.0).entropy, at(0.0).kept), (0.0, 1), "greedy: all mass on one token");
    near(at(1e-30).entropy, 2f64.ln(), 1e-15);
    near(at(1e30).entropy, 4f64.ln(), 1e-15);
    near(at(f32::INFINITY).entropy, 4f64.ln(), 1e-15);
    // The cut sees temperature 1, the entropy the temperature.
    let after = Params::default().with_temperature(1e30).with_top_p(0.5);
    let after = stats(&row, after.with_temperature_at(TemperatureAt::AfterCut));
    near(after.entropy, 4f64.ln(), 1e-15);
    assert_eq!(after.kept, 2);
}

#[test]
fn inspect_says_what_a_draw_would() {
    let mut rng = source(5);
    for vocab in [1usize, 5, 300, 4000] {
        let row: Vec<f32> = (0..vocab).map(|_| (12.0 * uniform(&mut rng)) as f32).collect();
        for params in [
            Params::default(),
            Params::default().with_top_p(0.9).with_temperature(0.7),
            Params::default().with_top_k(3),
            Params::default().with_temperature(0.0),
            Params::llama_cpp(0.8, 40, 0.95, 0.05),
        ] {
            let s = stats(&row, params);
            let draw = Sampler::new().sample(&row, params, &mut rng).unwrap();
            assert_eq!(
                (s.kept, s.retained_mass, s.mass_error, s.divergence),
                (draw.kept, draw.retained_mass, draw.mass_error, draw.divergence())
            );
        }
    }
    assert_eq!(inspect(&[], Params::default()), Err(Error::EmptyRow));
    assert_eq!(inspect(&[f32::NEG_INFINITY; 3], Params::default()), Err(Error::AllMasked));
    let nan = inspect(&[0.0, f32::NAN], Params::default());
    assert_eq!(nan, Err(Error::NotANumber { index: 1 }));
    assert!(inspect(&[0.0], Params::default().with_min_p(2.0)).is_err());
}

/// A size and a mass.
type Step = (u32, f64);

/// Skewed sizes up to a large vocabulary's.
fn steps(seed: u64, count: usize) -> Vec<Step> {
    let mut rng = source(seed);
    let mut one = || (262_144f64.powf(uniform(&mut rng).powi(2)) as u32, uniform(&mut rng));
    (0..count).map(|_| one()).collect()
}

fn log(steps: &[Step]) -> NucleusLog {
    let mut log = NucleusLog::new();
    steps.iter().for_each(|&(kept, mass)| log.record_kept(kept, mass));
    log
}

#[test]
fn the_log_says_what_a_sorted_list_would() {
    let steps = steps(1, 20_000);
    let log = log(&steps);
    let mut sizes: Vec<u32> = steps.iter().map(|&(kept, _)| kept).collect();
    sizes.sort_unstable();
    assert_eq!((log.len(), log.is_empty()), (20_000, false));
    for q in [0.0, 1e-9, 0.01, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0] {
        let rank = ((q * 20_000.0f64).ceil() as usize).max(1);
        let (found, exact) = (log.quantile(q).unwrap(), sizes[rank - 1]);
        assert!(found.abs_diff(exact) <= exact / 128, "{q}: {found} {exact}");
        assert!(exact >= 1024 || found == exact, "{q}: {found} {exact}");
    }
    assert_eq!(log.median(), log.quantile(0.5));
    assert_eq!((log.quantile(-1.0), log.quantile(2.0)), (log.quantile(0.0), log.quantile(1.0)));
    assert_eq!(log.quantile(f64::NAN), None);
    let count = |size| sizes.iter().filter(|&&s| s == size).count();
    let most = (1..=sizes[19_999]).map(count).max().unwrap();
    assert_eq!(count(log.mode().unwrap()), most);

    let masses = steps.iter().map(|&(_, mass)| mass);
    near(log.mean_mass().unwrap(), masses.clone().sum::<f64>() / 20_000.0, 1e-12);
    assert_eq!(log.min_mass(), masses.clone().reduce(f64::min));
    assert_eq!(log.max_mass(), masses.reduce(f64::max));
}

#[test]
fn merging_is_as_if_recorded_together() {
    let steps = steps(2, 1000);
    let whole = log(&steps);
    let mut rng = source(9);
    for parts in [1, 2, 7, 1500] {
        let mut logs = vec![NucleusLog::new(); parts];
        for &(kept, mass) in &steps {
            logs[below(&mut rng, parts)].record_kept(kept, mass);
        }
        let mut merged = NucleusLog::new();
        logs.iter().for_each(|log| merged.merge(log));
        assert_eq!(merged, whole, "{parts} parts");
    }
    let mut with_nothing = whole.clone();
    with_nothing.merge(&NucleusLog::new());
    assert_eq!(with_nothing, whole);
}

#[test]
fn a_log_of_little() {
    let empty = NucleusLog::new();
    assert!(empty.is_empty());
    assert_eq!((empty.mode(), empty.quantile(0.5), empty.mean_mass()), (None, None, None));
    // One size comes back as itself, however large.
    for size in [0, 1, 1023, 1024, 151_936, u32::MAX] {
        let one = log(&[(size, 0.5); 3]);
        assert_eq!(
            (one.mode(), one.median(), one.quantile(0.99)),
            (Some(size), Some(size), Some(size))
        );
        assert_eq!(
            (one.min_mass(), one.mean_mass(), one.max_mass()),
            (Some(0.5), Some(0.5), Some(0.5))
        );
    }
    // Nonsense must not panic.
    let _ = log(&[(1, f64::NAN), (2, -1.0), (3, f64::INFINITY)]).mean_mass();
}

/// A row of `vocab` logits, peaked or flat or tied.
fn row(rng: &mut Source, vocab: usize) -> Vec<f32> {
    let scale = [0.01, 2.0, 10.0, 40.0][below(rng, 4)];
    let step = [0.0, 0.25][below(rng, 2)];
    let logit = |rng: &mut Source| {
        let x = scale * uniform(rng);
        (if step > 0.0 { (x / step).floor() * step } else { x }) as f32
    };
    (0..vocab).map(|_| logit(rng)).collect()
}

fn params(rng: &mut Source) -> Params {
    Params::default()
        .with_temperature([0.0, 0.5, 1.0, 1.0, 3.0][below(rng, 5)])
        .with_top_p([0.3, 0.9, 0.99, 0.9999, 1.0][below(rng, 5)])
        .with_top_k([0, 0, 0, 10, 700][below(rng, 5)])
        .with_min_p([0.0, 0.0, 0.0, 1e-3][below(rng, 4)])
}

/// Every bit of a draw is the same for a new sampler and for ones that saw only peaked rows, only
/// flat rows, or anything: what it keeps is how far the last selection reached.
#[test]
fn what_a_sampler_saw_changes_no_result() {
    let vocab = 6000;
    let mut rng = source(6);
    let flat: Vec<f32> = (0..vocab).map(|i| (i % 97) as f32 * 1e-4).collect();
    let peaked: Vec<f32> = (0..vocab).map(|i| -(i as f32)).collect();
    type History<'a> = &'a dyn Fn(&mut Sampler, &mut Source);
    let histories: [History; 4] = [
        &|_, _| {},
        &|sampler, rng| see(sampler, rng, &flat),
        &|sampler, rng| see(sampler, rng, &peaked),
        &|sampler, rng| {
            for _ in 0..150 {
                let vocab = 1 + below(rng, 9000);
                let (row, params) = (row(rng, vocab), params(rng));
                sampler.sample(&row, params, rng).unwrap();
            }
        },
    ];
    fn see(sampler: &mut Sampler, rng: &mut Source, row: &[f32]) {
        let params = Params::default().with_top_p(0.9);
        for _ in 0..130 {
            sampler.sample(row, params, rng).unwrap();
        }
    }
    for tier in Tier::available() {
        let mut samplers = histories.map(|history| {
            let mut sampler = Sampler::with_tier(tier).unwrap();
            history(&mut sampler, &mut rng);
            sampler
        });
        for round in 0..if cfg!(debug_assertions) { 20 } else { 600 } {
            let vocab = [vocab, 1 + below(&mut rng, 9000)][round % 2];
            let (row, params, seed) = (row(&mut rng, vocab), params(&mut rng), rng.next_u64());
            let mut expected = None;
            for sampler in &mut samplers {
                // What is kept in this loop is forgotten again.
                let mut sampler = sampler.clone();
                let mut rng = source(seed);
                let draw = sampler.sample(&row, params, &mut rng).unwrap();
                let stats = sampler.inspect(&row, params).unwrap();
                let mut probs = vec![f32::NAN; vocab];
                let kept = sampler.filter(&row, params, &mut probs).unwrap();
                let probs: Vec<u32> = probs.iter().map(|p| p.to_bits()).collect();
                let found = (draw_bits(&draw), stats, kept, probs);
                assert!(found == *expected.get_or_insert(found.clone()), "{tier}: {params:?}");
            }
        }
    }
}

/// Most steps of a model are nearly decided and a few are wide open, so the mean describes none.
#[test]
fn nucleus_sizes_of_a_model_are_right_skewed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logits");
    let mut rng = source(8);
    println!("   T     p  rows  mode  median   mean    p99    max  least M  mean M");
    for (t, p) in [(1.0, 0.9), (1.0, 0.95), (0.7, 0.9), (0.7, 0.95)] {
        let params = Params::default().with_temperature(t).with_top_p(p);
        let mut log = NucleusLog::new();
        let mut total = 0;
        for name in ["story", "chat"] {
            let rows = support::read_rows(&folder.join(name).with_extension("npy"));
            for row in &rows {
                let draw = Sampler::new().sample(row, params, &mut rng).unwrap();
                assert!(draw.retained_mass >= p);
                log.record(&draw);
                total += draw.kept;
            }
        }
        let mean = f64::from(total) / log.len() as f64;
        let [mode, median, p99, max] =
            [log.mode(), log.median(), log.quantile(0.99), log.quantile(1.0)].map(Option::unwrap);
        let (least, mean_mass) = (log.min_mass().unwrap(), log.mean_mass().unwrap());
        println!(
            "{t:>4} {p:>5} {:>5} {mode:>5} {median:>7} {mean:>6.1} {p99:>6} {max:>6}  {least:.5}  {mean_mass:.5}",
            log.len()
        );
        assert!(f64::from(median) < mean, "median {median}, mean {mean}");
        assert!(p99 >= 4 * median, "median {median}, p99 {p99}");
    }
}
