//! The fast path against the `f64` oracle, on every tier: random rows of every kind, real rows,
//! and settings chosen to sit on the boundaries.
//!
//! `TOPMASS_ROWS` scales the random rows, `TOPMASS_LOGITS` names a folder of more `.npy` rows.
//! The long run: `cargo test --release --test oracle -- --ignored --nocapture`.

mod support;

use std::path::{Path, PathBuf};

use support::oracle::{Masses, Row, Tally};
use support::rows::{
    SHAPES, Shape, Source, below, choices, fitted, flat, params, pick, source, uniform,
};
use support::{LAST_U, env_count, read_rows, samplers};
use topmass::{Params, Sampler};

/// One random row at random parameters, half of the time with a cut on a boundary.
fn random_row(
    samplers: &mut [Sampler],
    tally: &mut Tally,
    (kind, shape): (&str, Shape),
    v: usize,
    seed: u64,
) {
    tally.context = format!("{kind}, V = {v}, seed {seed}");
    let rng = &mut source(seed);
    let logits = shape(rng, v);
    let row = Row::new(&logits);
    let mut params = params(rng, v);
    let masses = Masses::new(&row, params);
    match below(rng, 6) {
        _ if params.temperature <= 0.0 => {}
        0 | 1 => params.top_p = masses.awkward_top_p(rng, params),
        2 => params.min_p = masses.awkward_min_p(rng),
        _ => {}
    }
    let expected = masses.expect(params);
    let us = expected.draws(rng);
    if seed.is_multiple_of(7) {
        expected.agrees_with_reference(&logits, &us[..3]);
    }
    tally.compare(samplers, &logits, &expected, &us);
}

/// Lengths from 1 to 5,000, as many below 100 as above.
fn any_length(rng: &mut Source) -> usize {
    5_000f64.powf(uniform(rng)) as usize
}

fn random_rows(name: &str, rows: usize) {
    let (mut samplers, mut tally) = (samplers(), Tally::default());
    let rng = &mut source(rows as u64);
    for n in 0..rows {
        let v = any_length(rng);
        random_row(&mut samplers, &mut tally, SHAPES[n % SHAPES.len()], v, n as u64);
    }
    tally.finish(name);
}

#[test]
fn mixed_rows() {
    random_rows("mixed rows", env_count("TOPMASS_ROWS", 1_000));
}

#[test]
#[ignore = "100,000 rows: run in release"]
fn a_hundred_thousand_rows() {
    random_rows("100,000 rows", env_count("TOPMASS_ROWS", 100_000).max(100_000));
}

fn large_rows(name: &str, lengths: &[usize], shapes: &[(&str, Shape)]) {
    let (mut samplers, mut tally) = (samplers(), Tally::default());
    let mut seed = 0;
    for &shape in shapes {
        for &v in lengths {
            for _ in 0..3 {
                seed += 1;
                random_row(&mut samplers, &mut tally, shape, v, seed);
            }
        }
    }
    tally.finish(name);
}

/// Exact sets at the vocabularies of real models.
#[test]
fn large_vocabularies() {
    large_rows("large rows", &[32_000], &SHAPES[..10]);
    large_rows("larger rows", &[49_152, 128_256, 151_936, 262_144], &[("fitted", fitted as Shape)]);
    large_rows("larger flat rows", &[128_256, 262_144], &[("flat", flat as Shape)]);
}

#[test]
#[ignore = "every shape at every vocabulary: run in release"]
fn every_shape_at_large_vocabularies() {
    large_rows("large rows", &[32_000, 49_152, 128_256, 151_936, 262_144], SHAPES);
}

/// Settings that an `f32` sum cannot decide, over and over on the same rows: `top_p` at the masses
/// above many tokens, `min_p` at many tokens, `u` at many partial sums.
#[test]
fn boundaries() {
    let (mut samplers, mut tally) = (samplers(), Tally::default());
    let rng = &mut source(5);
    for (n, &(kind, shape)) in SHAPES.iter().enumerate() {
        for v in [5, 100, 3_000] {
            tally.context = format!("{kind}, V = {v}, row {n}");
            let logits = shape(rng, v);
            let row = Row::new(&logits);
            let plain = Params::default().with_temperature(pick(rng, &[0.7, 1.0, 2.0]));
            let masses = Masses::new(&row, plain);
            for round in 0..12 {
                let mut params = plain;
                if round % 3 == 2 {
                    params = choices(rng, params)
                        .with_top_k(1 + below(rng, v) as u32)
                        .with_temperature_at(plain.temperature_at);
                }
                if round % 2 == 0 {
                    params.top_p = masses.awkward_top_p(rng, params);
                } else {
                    params.min_p = masses.awkward_min_p(rng);
                }
                let expected = masses.expect(params);
                let us = expected.draws(rng);
                expected.agrees_with_reference(&logits, &us);
                tally.compare(&mut samplers, &logits, &expected, &us);
            }
        }
    }
    assert!(tally.excluded_share() < 0.4, "too much is left out: {}", tally.excluded_share());
    tally.finish("boundaries");
}

/// Settings at random leave nothing out.
#[test]
fn hardly_anything_is_excluded() {
    let (mut samplers, mut tally) = (samplers(), Tally::default());
    let rng = &mut source(6);
    for n in 0..60 {
        let logits = if n % 2 == 0 { fitted(rng, 2_000) } else { flat(rng, 2_000) };
        let params = Params::default().with_top_p(0.05 + 0.94 * uniform(rng));
        let expected = Masses::new(&Row::new(&logits), params).expect(params);
        let us: Vec<f64> = (0..10).map(|_| uniform(rng)).collect();
        tally.compare(&mut samplers, &logits, &expected, &us);
    }
    assert_eq!(tally.excluded_share(), 0.0);
    tally.finish("at random");
}

fn npy_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a folder entry").path());
    let mut files: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "npy")).collect();
    files.sort();
    assert!(!files.is_empty(), "no .npy in {}", folder.display());
    files
}

/// Every row of the repository (every fourth in debug) and of `TOPMASS_LOGITS`, at the settings that
/// the issue names and at an awkward one.
#[test]
fn real_rows() {
    let step = if cfg!(debug_assertions) { 4 } else { 1 };
    let mut files = npy_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logits"));
    if let Some(folder) = std::env::var_os("TOPMASS_LOGITS") {
        files.extend(npy_files(Path::new(&folder)));
    }
    let mut samplers = samplers();
    let (mut named, mut awkward) = (Tally::default(), Tally::default());
    let rng = &mut source(8);
    for path in files {
        let rows = read_rows(&path);
        println!("{}: {} rows", path.display(), rows.len());
        for (n, logits) in rows.iter().enumerate().step_by(step) {
            let row = Row::new(logits);
            named.context = format!("{} row {n}", path.display());
            awkward.context.clone_from(&named.context);
            for temperature in [0.3, 0.7, 1.0, 1.5, 3.0] {
                let params = Params::default().with_temperature(temperature);
                let masses = Masses::new(&row, params);
                for top_p in [0.5, 0.9, 0.95, 0.99, 0.9999, 1.0] {
                    let expected = masses.expect(params.with_top_p(top_p));
                    let us = [uniform(rng), uniform(rng), LAST_U];
                    if n % 6 == 0 && temperature == 1.0 {
                        expected.agrees_with_reference(logits, &us[..1]);
                    }
                    named.compare(&mut samplers, logits, &expected, &us);
                }
                let top_p = masses.awkward_top_p(rng, params);
                let expected = masses.expect(params.with_top_p(top_p));
                let us = expected.draws(rng);
                awkward.compare(&mut samplers, logits, &expected, &us);
            }
        }
    }
    named.finish("real rows");
    awkward.finish("real rows on a boundary");
}
