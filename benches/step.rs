//! Each stage of the step and the whole of it, per tier, kind of rows and length:
//!
//! ```text
//! cargo bench -p topmass-bench --bench step -- "avx2/fitted/128256"      # one table
//! cargo bench -p topmass-bench --bench step -- "/step/top-p .9$"
//! ```
//!
//! All of it takes an hour; a filter (a regular expression on `tier/rows/length/stage or step/name`)
//! takes what it matches, and makes no other rows. Each bench is checked against plain code or the
//! reference before it is timed. `cargo bench --bench floors` has the floors and ratios.

use std::cell::OnceCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use topmass::Tier;

use cases::cases;
use rows::{KINDS, Rows, VOCABS, real, synthetic};
use stages::{Stage, Stages};

#[path = "support/cases.rs"]
mod cases;
#[path = "support/rows.rs"]
mod rows;
#[path = "support/stages.rs"]
mod stages;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .configure_from_args();
    on_rows(&mut criterion, "real", 49_152, real);
    for kind in KINDS {
        for v in VOCABS {
            on_rows(&mut criterion, kind, v, || synthetic(kind, v));
        }
    }
    criterion.final_summary();
}

fn on_rows(criterion: &mut Criterion, kind: &str, v: usize, make: impl Fn() -> Rows) {
    // Made when a bench that the filter lets through asks for them.
    let rows = OnceCell::new();
    let rows = || rows.get_or_init(&make);
    for tier in Tier::available() {
        stages_on(criterion, &format!("{tier}/{kind}/{v}/stage"), tier, rows);
        steps_on(criterion, &format!("{tier}/{kind}/{v}/step"), tier, rows);
    }
}

fn stages_on<'a>(criterion: &mut Criterion, name: &str, tier: Tier, rows: impl Fn() -> &'a Rows) {
    let mut group = criterion.benchmark_group(name);
    let (mut stages, mut aims) = (None, Vec::new());
    for stage in Stage::ALL {
        let mut checked = false;
        group.bench_function(format!("{stage:?}"), |b| {
            let rows = rows();
            let stages = stages.get_or_insert_with(|| Stages::new(tier, rows.v));
            if aims.is_empty() {
                aims.extend((0..rows.len()).map(|i| stages.find(rows.row(i))));
            }
            if !checked {
                stages.start(aims[0], stage);
                stages.check(stage);
                checked = true;
            }
            // The stages before it are not timed, but leave the row where they leave it.
            b.iter_custom(|n| {
                let mut time = Duration::ZERO;
                for i in 0..n as usize {
                    stages.start(aims[i % aims.len()], stage);
                    let start = Instant::now();
                    black_box(stages.run(stage));
                    time += start.elapsed();
                }
                time
            });
        });
    }
}

fn steps_on<'a>(criterion: &mut Criterion, name: &str, tier: Tier, rows: impl Fn() -> &'a Rows) {
    let mut group = criterion.benchmark_group(name);
    for (case, step) in cases().into_iter().filter(|(_, step)| step.runs_on(tier)) {
        // A batch's time is that of its rows together.
        group.throughput(Throughput::Elements(step.at_once() as u64));
        let mut checked = false;
        group.bench_function(case, |b| {
            let rows = rows();
            if !checked {
                step.check(tier, rows, 1);
                checked = true;
            }
            let mut run = step.run(tier, rows);
            let mut i = 0;
            b.iter(|| {
                run(i);
                i = (i + step.at_once()) % rows.len();
            });
        });
    }
}
