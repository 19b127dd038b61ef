//! Jobs side by side in one run, so that whatever else the machine does hits all of them: medians,
//! and medians of the ratios of neighbouring measurements.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::{Value, json};
use topmass::Tier;

use crate::rows::Rows;

/// How the figures are to be taken.
#[derive(Parser)]
pub struct Options {
    /// Seconds for each kind of rows.
    #[arg(long, default_value_t = 2.0)]
    pub seconds: f64,
    /// A tier's name, or all; the best of this CPU if not given.
    #[arg(long)]
    tier: Option<String>,
    /// Only rows whose name contains this: "fitted", "flat 128256".
    #[arg(long, default_value = "")]
    rows: String,
    /// Write the figures here, too.
    #[arg(long)]
    json: Option<PathBuf>,
    /// cargo passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    pub fn tiers(&self) -> Vec<Tier> {
        match self.tier.as_deref() {
            None => vec![Tier::detected()],
            Some("all") => Tier::available(),
            Some(name) => vec![name.parse().unwrap_or_else(|e| panic!("{e}"))],
        }
    }

    pub fn wants(&self, rows: &str) -> bool {
        rows.contains(&self.rows)
    }

    pub fn budget(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Writes the figures where they are wanted.
    pub fn write(&self, figures: Vec<Value>) {
        let Some(path) = &self.json else { return };
        let all = json!({ "build": topmass::build_info(), "cpu": cpu(), "figures": figures });
        let text = format!("{all:#}\n");
        std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// What the figures were taken on.
pub fn header() -> String {
    format!("{}\n{}, one core", topmass::build_info(), cpu())
}

fn cpu() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // No model name on AArch64.
    let line = info.lines().find(|l| l.starts_with("model name") || l.starts_with("CPU part"));
    let name = line.and_then(|l| l.split_once(':')).map(|(_, name)| name.trim());
    name.unwrap_or("unknown CPU").into()
}

/// Something to do with a row, given its number.
pub struct Job<'a> {
    pub name: String,
    pub rows: &'a Rows,
    /// How many rows a call takes.
    pub at_once: usize,
    pub run: Box<dyn FnMut(usize) + 'a>,
}

impl<'a> Job<'a> {
    pub fn new(name: impl Into<String>, rows: &'a Rows, run: impl FnMut(usize) + 'a) -> Self {
        Job { name: name.into(), rows, at_once: 1, run: Box::new(run) }
    }
}

/// Microseconds a row, by round and row.
pub struct Times(BTreeMap<usize, f64>);

impl Times {
    pub fn median(&self) -> f64 {
        median(self.0.values().copied().collect())
    }

    /// How many times as long as another job on the same row in the same round.
    pub fn over(&self, other: &Times) -> f64 {
        let both = self.0.iter().filter_map(|(slot, t)| Some(t / other.0.get(slot)?));
        median(both.collect())
    }
}

pub fn median(mut x: Vec<f64>) -> f64 {
    x.sort_by(f64::total_cmp);
    x.get(x.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What a job may take of a round, so that a slow one does not part the fast ones.
const TURN: Duration = Duration::from_millis(50);
/// Before each turn. Without it, whatever comes after a slow job takes up to twice as long (the bare
/// maximum of 128,256 logits 45 microseconds instead of 23, and so every ratio to it is too small);
/// one pass over the rows is not enough, 6 ms are. Scalar reads of the rows for as long do as well,
/// so it is not the vectors that are slow to start; what it is was not found out.
const WARM_UP: Duration = Duration::from_millis(10);

/// Does every job on every row (a slow one on a few rows, others in the next round) in turn, until
/// the time is up. Each runs untimed first, see [`WARM_UP`].
pub fn time(jobs: &mut [Job<'_>], budget: Duration) -> Vec<Times> {
    let mut times: Vec<_> = jobs.iter().map(|_| Times(BTreeMap::new())).collect();
    let mut next = vec![0; jobs.len()];
    let start = Instant::now();
    for round in 0.. {
        for ((job, times), next) in jobs.iter_mut().zip(&mut times).zip(&mut next) {
            let n = job.rows.len();
            let turn = Instant::now();
            for row in (0..n).step_by(job.at_once).cycle() {
                (job.run)(row);
                if turn.elapsed() > WARM_UP {
                    break;
                }
            }
            let turn = Instant::now();
            for _ in 0..n / job.at_once {
                let row = *next;
                *next = (row + job.at_once) % n;
                let start = Instant::now();
                (job.run)(row);
                let us = start.elapsed().as_secs_f64() * 1e6 / job.at_once as f64;
                times.0.extend((row..row + job.at_once).map(|row| (round * n + row, us)));
                if turn.elapsed() > TURN {
                    break;
                }
            }
        }
        if start.elapsed() > budget {
            break;
        }
    }
    times
}
