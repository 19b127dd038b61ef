//! The step against its floors, in one run on one core:
//!
//! ```text
//! cargo bench --bench floors            # or: -- --rows "fitted 128256" --tier all --json FILE
//! ```
//!
//! The floors are the row's bare maximum, which reads the row and does nothing else, and that plus
//! a bare sum of exponentials, what any softmax must pay at least. Every answer is checked against
//! the reference before anything is timed. The figures are medians; a ratio is the median of the
//! ratios of neighbouring measurements, which a noisy machine shifts together. `--rows worst`
//! shows rows built to be expensive, `--rows cold` what a step takes after other work has had the
//! caches, as in a decode loop.

use std::hint::black_box;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use topmass::{Params, Tier, reference};
use topmass_kernels::floor::{bare_exp_sum, bare_max};
use topmass_kernels::{Isa, Scale};

use cases::{Step, cases};
use measure::{Job, Options, header, time};
use rows::{KINDS, Rows, VOCABS, real, synthetic};

#[path = "support/cases.rs"]
mod cases;
#[path = "support/measure.rs"]
mod measure;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/worst.rs"]
mod worst;

/// Rows that are checked against the reference, of each kind.
const CHECKED: usize = 2;
/// The length of the worst rows.
const WORST_V: usize = 128_256;

fn main() {
    let options = Options::parse();
    println!("{}", header());
    let mut figures = Vec::new();
    let mut step = |rows: Rows| {
        for tier in options.tiers() {
            figures.extend(on_rows(&rows, tier, options.budget()));
        }
    };
    if options.wants("real 49152") {
        step(real());
    }
    for kind in KINDS {
        for v in VOCABS {
            if options.wants(&format!("{kind} {v}")) {
                step(synthetic(kind, v));
            }
        }
    }
    if options.wants("worst") {
        for tier in options.tiers() {
            figures.extend(on_worst_rows(tier, options.budget()));
        }
    }
    if options.wants("cold") {
        let rows = real();
        for tier in options.tiers() {
            figures.extend(on_cold_rows(&rows, tier));
        }
    }
    options.write(figures);
}

/// One table: the floors, the step's cases and the scalar reference.
fn on_rows(rows: &Rows, tier: Tier, budget: Duration) -> Vec<Value> {
    let cases = cases();
    let runnable = || cases.iter().filter(|(_, step)| step.runs_on(tier));
    runnable().for_each(|(_, step)| step.check(tier, rows, CHECKED));

    let isa = Isa::new(tier).unwrap_or_else(|| panic!("this CPU lacks {tier}"));
    let scale = Scale::new(1.0);
    let mut jobs = vec![
        Job::new("bare maximum", rows, |i| _ = black_box(bare_max(isa, rows.row(i)))),
        Job::new("bare maximum + bare exp sum", rows, |i| {
            let row = rows.row(i);
            black_box(bare_exp_sum(isa, row, &scale, bare_max(isa, row)));
        }),
    ];
    jobs.extend(runnable().map(|&(name, step)| Job {
        name: name.into(),
        rows,
        at_once: step.at_once(),
        run: step.run(tier, rows),
    }));
    let mut rng = rows::shapes::source(2);
    let p9 = Params::default().with_top_p(0.9);
    jobs.push(Job::new("scalar reference, top-p .9", rows, move |i| {
        black_box(reference::sample(rows.row(i), p9, &mut rng).expect("a good row"));
    }));

    let times = time(&mut jobs, budget);
    println!("\n{} rows, V = {}, {} of them, tier {tier}", rows.kind, rows.v, rows.len());
    println!("{:42} {:>9} {:>7} {:>9} {:>8}", "", "us", "ns/V", "/ maximum", "/ max+exp");
    let lines = jobs.iter().zip(&times).map(|(job, t)| {
        let (us, per_v) = (t.median(), t.median() * 1e3 / rows.v as f64);
        let (over_max, over_exp) = (t.over(&times[0]), t.over(&times[1]));
        println!("{:42} {us:9.1} {per_v:7.3} {over_max:9.2} {over_exp:8.2}", job.name);
        json!({
            "rows": rows.kind, "v": rows.v, "tier": tier.name(), "case": job.name, "us": us,
            "ns_per_logit": per_v, "over_maximum": over_max, "over_maximum_and_exp_sum": over_exp,
        })
    });
    lines.collect()
}

/// Another table: how many times a peaked row each candidate costs. They have rows of their own,
/// of the same number.
fn on_worst_rows(tier: Tier, budget: Duration) -> Vec<Value> {
    let peaked = synthetic("fitted", WORST_V);
    let candidates = worst::candidates(WORST_V);
    let p9 = Step::Sample(Params::default().with_top_p(0.9));
    let mut jobs = vec![Job::new("fitted, top-p .9", &peaked, p9.run(tier, &peaked))];
    for worst::Candidate { name, params, rows } in &candidates {
        assert_eq!(rows.len(), peaked.len());
        let step = Step::Sample(*params);
        step.check(tier, rows, 1);
        jobs.push(Job::new(*name, rows, step.run(tier, rows)));
    }
    let times = time(&mut jobs, 4 * budget);

    let mut lines: Vec<_> = jobs.iter().zip(&times).collect();
    lines.sort_by(|(_, a), (_, b)| b.over(&times[0]).total_cmp(&a.over(&times[0])));
    println!("\nworst rows, V = {WORST_V}, tier {tier}");
    println!("{:52} {:>9} {:>9}", "", "us", "/ peaked");
    let lines = lines.into_iter().map(|(job, t)| {
        let (us, over) = (t.median(), t.over(&times[0]));
        println!("{:52} {us:9.1} {over:9.2}", job.name);
        json!({ "rows": "worst", "v": WORST_V, "tier": tier.name(), "case": job.name, "us": us,
                "over_peaked": over })
    });
    lines.collect()
}

/// A third one: the caches are filled with something else before each row is read or sampled.
fn on_cold_rows(rows: &Rows, tier: Tier) -> Vec<Value> {
    const BYTES: usize = 96 << 20;
    let other = vec![1u64; BYTES / 8];
    let isa = Isa::new(tier).unwrap_or_else(|| panic!("this CPU lacks {tier}"));
    let mut step = Step::Sample(Params::default().with_top_p(0.9)).run(tier, rows);
    let mut us = [const { Vec::new() }; 4];
    for i in 0..rows.len() {
        let mut timed = |case: usize, run: &mut dyn FnMut()| {
            let start = Instant::now();
            run();
            us[case].push(start.elapsed().as_secs_f64() * 1e6);
        };
        let evict = || black_box(other.iter().fold(0u64, |sum, x| sum.wrapping_add(*x)));
        evict();
        timed(0, &mut || _ = black_box(bare_max(isa, rows.row(i))));
        timed(1, &mut || _ = black_box(bare_max(isa, rows.row(i))));
        evict();
        timed(2, &mut || step(i));
        timed(3, &mut || step(i));
    }
    println!("\nreal rows after {} MB of other memory, V = {}, tier {tier}", BYTES >> 20, rows.v);
    let names = ["bare maximum", "bare maximum again", "top-p .9", "top-p .9, the same row again"];
    let lines = names.into_iter().zip(us).map(|(name, us)| {
        let us = measure::median(us);
        println!("{name:42} {us:9.1}");
        json!({ "rows": "cold", "v": rows.v, "tier": tier.name(), "case": name, "us": us })
    });
    lines.collect()
}
