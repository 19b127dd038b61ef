//! The step against its floors and the obvious ways to do it, in one run on one core:
//!
//! ```text
//! cargo bench --bench floors            # or: -- --seconds 5 --tier avx2
//! ```
//!
//! Rows rotate through at least 12 MB, so that each comes from where a decode loop's would. Every
//! answer is checked against the reference before anything is timed. The figures are medians; a
//! ratio is the median of the ratios of neighbouring measurements, which a noisy machine shifts
//! together.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use topmass::{Params, Sampler, Tier, reference};
use topmass_kernels::floor::{bare_exp_sum, bare_max};
use topmass_kernels::{Isa, Scale};

#[path = "../examples/support/npy.rs"]
mod npy;

const BYTES: usize = 12 << 20;

fn normal(rng: &mut impl Rng) -> f32 {
    let mut unit = || ((rng.next_u64() >> 11) as f64 + 0.5) * f64::exp2(-53.0);
    ((-2.0 * unit().ln()).sqrt() * (std::f64::consts::TAU * unit()).cos()) as f32
}

/// Rows fitted to those of SmolLM2-135M: a fixed part per token and a fresh one per row, a heavy
/// upper tail, a wandering mean, now and then a clear winner.
fn fitted(v: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<Vec<f32>> {
    let fixed: Vec<f32> = (0..v).map(|_| normal(rng)).collect();
    let mut mean = 2.5;
    let rows = (0..(BYTES / (4 * v)).clamp(8, 64)).map(|r| {
        let tail = 0.165 * (0.28 * normal(rng)).exp();
        mean = 2.5 + 0.6 * (mean - 2.5) + 3.3 * normal(rng);
        let mut row: Vec<f32> = fixed
            .iter()
            .map(|&b| {
                let z = 0.65f32.sqrt() * b + 0.35f32.sqrt() * normal(rng);
                mean + 4.0 * (z + tail * (z - 1.5).max(0.0).powi(2))
            })
            .collect();
        if r % 4 == 0 {
            let best = (0..v).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
            row[best] += 2.5;
        }
        row
    });
    rows.collect()
}

fn flat(v: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<Vec<f32>> {
    (0..(BYTES / (4 * v)).clamp(8, 64)).map(|_| (0..v).map(|_| normal(rng)).collect()).collect()
}

/// The committed real rows, repeated (each copy its own memory) to fill the rotation.
fn real() -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    for name in ["story", "chat"] {
        let path = format!("{}/tests/data/logits/{name}.npy", env!("CARGO_MANIFEST_DIR"));
        let file = npy::read_rows(Path::new(&path)).expect("the committed rows are readable");
        rows.extend(file.iter().map(<[f32]>::to_vec));
    }
    let once = rows.len();
    while rows.len() * rows[0].len() * 4 < BYTES {
        rows.push(rows[rows.len() % once].clone());
    }
    rows
}

fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x[x.len() / 2]
}

type Job<'a> = (String, Box<dyn FnMut(&[f32]) + 'a>);

/// Times every job on every row in turn until the time is up: per job, microseconds a row.
fn time(jobs: &mut [Job<'_>], rows: &[Vec<f32>], budget: Duration) -> Vec<Vec<f64>> {
    let mut times = vec![Vec::new(); jobs.len()];
    let start = Instant::now();
    loop {
        for (job, times) in jobs.iter_mut().zip(&mut times) {
            for row in rows {
                let start = Instant::now();
                (job.1)(row);
                times.push(start.elapsed().as_secs_f64() * 1e6);
            }
        }
        if start.elapsed() > budget {
            return times;
        }
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let (mut seconds, mut tier) = (2.0, Tier::detected());
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_default();
        match arg.as_str() {
            "--seconds" => seconds = value().parse().expect("--seconds takes a number"),
            "--tier" => tier = value().parse().expect("--tier takes the name of a tier"),
            _ => {} // cargo passes --bench
        }
    }
    let isa = Isa::new(tier).unwrap_or_else(|| panic!("this CPU lacks {tier}"));
    println!("{}, tier {tier}, one core", topmass::build_info());

    let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    let p = Params::default();
    let chain = p.with_temperature(0.8).with_top_k(40).with_top_p(0.95).with_min_p(0.05);
    let cases = [
        ("greedy", p.with_temperature(0.0)),
        ("temperature 1", p),
        ("top-p .9", p.with_top_p(0.9)),
        ("top-p .9 at T .7", p.with_top_p(0.9).with_temperature(0.7)),
        ("top-p .9 at T 1.5", p.with_top_p(0.9).with_temperature(1.5)),
        ("top-k 40, top-p .95, min-p .05 at T .8", chain),
        ("min-p .05", p.with_min_p(0.05)),
    ];
    for (name, rows) in [
        ("real", real()),
        ("fitted", fitted(32_000, &mut rng)),
        ("fitted", fitted(128_256, &mut rng)),
        ("fitted", fitted(262_144, &mut rng)),
        ("flat N(0,1)", flat(128_256, &mut rng)),
    ] {
        let v = rows[0].len();
        let mut checked = Sampler::with_tier(tier).expect("available");
        for (case, params) in cases {
            let mut a = Xoshiro256PlusPlus::seed_from_u64(9);
            let mut b = a.clone();
            for row in rows.iter().take(3) {
                let fast = checked.sample(row, params, &mut a).expect("a good row");
                let slow = reference::sample(row, params, &mut b).expect("a good row");
                assert_eq!((fast.token, fast.kept), (slow.token, slow.kept), "{name} {case}");
            }
        }

        let scale = Scale::new(1.0);
        let mut jobs: Vec<Job<'_>> = vec![
            ("bare maximum".into(), Box::new(|r| _ = black_box(bare_max(isa, r)))),
            (
                "bare maximum + bare exp sum".into(),
                Box::new(|r| {
                    let max = bare_max(isa, r);
                    black_box(bare_exp_sum(isa, r, &scale, max));
                }),
            ),
        ];
        for (case, params) in cases {
            let mut sampler = Sampler::with_tier(tier).expect("available");
            let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
            let step = move |r: &[f32]| _ = black_box(sampler.sample(r, params, &mut rng));
            jobs.push((case.into(), Box::new(step)));
        }
        let mut copy = vec![0.0f32; v];
        jobs.push((
            "copy, select_nth_unstable(1024)".into(),
            Box::new(move |r| {
                copy.copy_from_slice(r);
                black_box(copy.select_nth_unstable_by(1024, |a, b| b.total_cmp(a)));
            }),
        ));
        let times = time(&mut jobs, &rows, Duration::from_secs_f64(seconds));

        // The slow ones, a few rows each.
        let mut copy = vec![0.0f32; v];
        let mut rng = Xoshiro256PlusPlus::seed_from_u64(2);
        let mut slow: Vec<Job<'_>> = vec![
            (
                "copy, full sort".into(),
                Box::new(move |r| {
                    copy.copy_from_slice(r);
                    copy.sort_unstable_by(|a, b| b.total_cmp(a));
                    black_box(&copy);
                }),
            ),
            (
                "scalar reference, top-p .9".into(),
                Box::new(move |r| {
                    let _ = black_box(reference::sample(r, p.with_top_p(0.9), &mut rng));
                }),
            ),
        ];
        let slow_times = time(&mut slow, &rows[..4], Duration::ZERO);

        println!("\n{name} rows, V = {v}, {} of them", rows.len());
        println!("{:42} {:>9} {:>7} {:>9} {:>8}", "", "us", "ns/V", "/ maximum", "/ max+exp");
        let all = jobs.iter().zip(&times).chain(slow.iter().zip(&slow_times));
        for ((job, _), t) in all {
            let ratio = |floor: &[f64]| median(t.iter().zip(floor).map(|(t, f)| t / f).collect());
            println!(
                "{job:42} {:9.1} {:7.3} {:9.2} {:8.2}",
                median(t.clone()),
                median(t.clone()) * 1e3 / v as f64,
                ratio(&times[0]),
                ratio(&times[1]),
            );
        }
    }
}
