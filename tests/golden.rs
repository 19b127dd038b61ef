//! One seed, one token, the same bits on every machine: a committed stream of draws that every
//! tier of every CPU must reproduce.
//!
//! `TOPMASS_GOLDEN=write cargo test --release --test golden` writes `tests/data/golden.txt` anew;
//! the difference is then there to be reviewed. `TOPMASS_GOLDEN_TIER` restricts the run to one tier,
//! `TOPMASS_GOLDEN_LONGEST` to rows of up to so many tokens.

use std::fmt::Write;
use std::path::Path;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{MassBase, Mirostat, Params, Sampler, SurpriseBase, TemperatureAt, Ties};

mod support;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/golden.txt");

type Kind = (&'static str, fn(u64) -> f32);

/// Rows from integers and exact divisions alone: no machine can round them differently.
const KINDS: [Kind; 7] = [
    ("flat", |h| (h % (1 << 20)) as f32 / 262_144.0),
    ("peaked", |h| {
        let (a, b, c) = (h % 1024, h / 1024 % 1024, h / 1_048_576 % 1024);
        (a * b / 64 * c / 1024) as f32 / 640.0
    }),
    ("tied", |h| (h % 64) as f32 / 16.0),
    ("narrow", |h| 1.0 + (h % (1 << 18)) as f32 / 1_048_576.0),
    ("masked", |h| if h % 3 == 0 { f32::NEG_INFINITY } else { (h % 4001) as f32 / 256.0 }),
    ("signed", |h| (h % 8191) as f32 / 1024.0 - 4.0),
    ("bf16", |h| f32::from_bits(((h % 40_000) as f32 / 2500.0).to_bits() & 0xffff_0000)),
];
const LENGTHS: [usize; 8] = [1, 17, 1000, 1024, 4097, 20_000, 49_152, 131_077];

/// SplitMix64's finaliser: a hash, so that a row needs no history.
fn hash(x: u64) -> u64 {
    let z = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn params() -> Vec<Params> {
    let p = Params::default();
    vec![
        p,
        p.with_temperature(0.7).with_top_p(0.9),
        p.with_temperature(1.5).with_top_p(0.95),
        p.with_top_p(0.5),
        p.with_top_p(0.999_999_9),
        p.with_top_k(40),
        p.with_temperature(0.8).with_top_k(40).with_top_p(0.95).with_min_p(0.05),
        p.with_min_p(0.05),
        p.with_temperature(0.0),
        p.with_temperature(1e-30).with_top_p(0.9),
        p.with_temperature(1e20).with_top_p(0.3),
        p.with_top_k(5000).with_ties(Ties::LowestIndex),
        p.with_top_k(300).with_top_p(0.8).with_mass_base(MassBase::TopK),
        p.with_temperature(2.0).with_top_p(0.6).with_temperature_at(TemperatureAt::AfterCut),
        p.with_top_p(0.7).with_ties(Ties::LowestIndex),
        p.with_top_p(0.9).with_exact_mass(true),
    ]
}

fn rows() -> Vec<(String, Vec<f32>)> {
    let mut rows: Vec<(String, Vec<f32>)> = Vec::new();
    for (k, (name, value)) in KINDS.into_iter().enumerate() {
        for v in LENGTHS {
            let seed = hash((k * 1_000_003 + v) as u64);
            let row = (0..v as u64).map(|i| value(hash(seed ^ i))).collect();
            rows.push((format!("{name} {v}"), row));
        }
    }
    for name in ["story", "chat"] {
        let path = format!("{}/tests/data/logits/{name}.npy", env!("CARGO_MANIFEST_DIR"));
        let recorded = support::read_rows(Path::new(&path)).into_iter().enumerate();
        rows.extend(recorded.map(|(i, row)| (format!("{name} {i}"), row)));
    }
    rows
}

fn bits(figures: &[f64]) -> String {
    figures.iter().map(|x| format!(" {:016x}", x.to_bits())).collect()
}

/// The draws of every row with every set of parameters, a line each; then, a line for each row, the
/// draws of Mirostat, what a filter writes, and the entropy.
fn stream(sampler: &mut Sampler, longest: usize) -> String {
    let mut lines = String::new();
    for (r, (name, row)) in rows().iter().enumerate().filter(|(_, (_, row))| row.len() <= longest) {
        for (p, params) in params().into_iter().enumerate() {
            let mut rng = Xoshiro256PlusPlus::seed_from_u64((r * 100 + p) as u64);
            let line = match sampler.sample(row, params, &mut rng) {
                Ok(d) => {
                    let figures =
                        [d.probability, d.probability_error, d.retained_mass, d.mass_error];
                    format!("token {} kept {}{}", d.token, d.kept, bits(&figures))
                }
                Err(e) => e.to_string(),
            };
            writeln!(lines, "{name} params {p}: {line}").expect("a String takes all");
        }
        writeln!(lines, "{name} rest: {}", rest(sampler, row, r as u64)).expect("as above");
    }
    lines
}

fn rest(sampler: &mut Sampler, row: &[f32], seed: u64) -> String {
    let mut line = String::new();
    for controller in [Mirostat::v1(3.0, 0.1), Mirostat::v2(3.0, 0.1)] {
        for base in [SurpriseBase::Full, SurpriseBase::Kept] {
            let mut controller = controller.clone().with_surprise_base(base);
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
            match controller.sample_with(sampler, row, 0.9, &mut rng) {
                Ok(d) => {
                    let figures = [d.probability, d.surprise_bits, d.surprise_error, d.mu];
                    let s = d.zipf_exponent.map_or(String::new(), |s| bits(&[s]));
                    line += &format!("token {} kept {}{}{s}, ", d.token, d.kept, bits(&figures));
                }
                Err(e) => return e.to_string(),
            }
        }
    }
    let params = Params::default().with_temperature(0.8).with_top_p(0.95);
    let (probs, _) = support::filter(sampler, row, params).expect("Mirostat took the row");
    let probs = probs.iter().fold(0, |h, p| hash(h ^ u64::from(p.to_bits())));
    let stats = sampler.inspect(row, params).expect("as above");
    line + &format!("filter {probs:016x} entropy{}", bits(&[stats.entropy]))
}

#[test]
fn every_tier_reproduces_the_committed_draws() {
    if std::env::var_os("TOPMASS_GOLDEN").is_some_and(|v| v == "write") {
        std::fs::write(FILE, stream(&mut Sampler::new(), usize::MAX))
            .expect("the file can be written");
    }
    let golden = std::fs::read_to_string(FILE).expect("tests/data/golden.txt is committed");
    let longest = support::env_count("TOPMASS_GOLDEN_LONGEST", usize::MAX);
    // As many lines for each row.
    let (rows, mut golden): (_, Vec<_>) = (rows(), golden.lines().collect());
    let each = golden.len() / rows.len();
    let mut line = 0..;
    golden.retain(|_| line.next().is_some_and(|i: usize| rows[i / each].1.len() <= longest));
    // Where each tier takes minutes (an emulator), one can be asked for.
    let only = std::env::var("TOPMASS_GOLDEN_TIER").unwrap_or_default();
    let mut ran = 0;
    for mut sampler in support::samplers() {
        let tier = sampler.tier();
        if !only.is_empty() && only != tier.name() {
            continue;
        }
        ran += 1;
        let got = stream(&mut sampler, longest);
        let differ: Vec<_> = got.lines().zip(&golden).filter(|(a, b)| a != *b).collect();
        assert_eq!(got.lines().count(), golden.len(), "tier {tier}");
        assert!(
            differ.is_empty(),
            "tier {tier}: {} of {} lines differ, the first: {:#?}",
            differ.len(),
            golden.len(),
            differ[0]
        );
        println!("golden draws: {} on {} {tier}", golden.len(), std::env::consts::ARCH);
    }
    assert!(ran > 0, "no tier of this machine is called {only:?}");
}
