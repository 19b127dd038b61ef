//! The main job: replay real decode steps, one row of logits in, one token out, one line a step.
//!
//! ```text
//! cargo run --release --example decode
//! cargo run --release --example decode -- --temperature 0.7 --top-p 0.95 --logits mine.npy
//! ```

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use serde_json::Value;
use topmass::{Draw, Params, Rungs, Sampler, Tier, reference};

#[path = "support/npy.rs"]
mod npy;

/// Replay real decode steps: one row of logits in, one token out, one line a step.
///
/// Each row is what a model said at one step of a text. The token drawn here is not fed back: the
/// next row continues the text as it was recorded. Every step is checked against the literal
/// algorithm (softmax in f64, full sort, prefix sum) and timed against it.
///
/// N is how many tokens top-p, top-k and min-p kept; M is the share of the whole probability that
/// they hold; ln(1/M) is what cutting the rest cost, in nats; surprise is -log2 of the drawn
/// token's probability among the kept.
///
/// Exit code: 0, 1 where a step differs from the literal algorithm, 2 where the input is at fault.
#[derive(Parser)]
#[command(name = "decode", verbatim_doc_comment, allow_negative_numbers = true)]
struct Args {
    /// Divides the logits: below 1 sharpens, above 1 flattens, 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 1.0)]
    temperature: f32,

    /// Keep the likeliest tokens until they hold this share of the probability (1: all)
    #[arg(long, value_name = "P", default_value_t = 0.9)]
    top_p: f64,

    /// Keep the K likeliest tokens, and ties with the last of them (0: off)
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,

    /// Keep tokens at least this many times as likely as the likeliest (0: off)
    #[arg(long, value_name = "RATIO", default_value_t = 0.0)]
    min_p: f64,

    /// Seed of the random numbers: the same seed draws the same tokens, on every machine
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Instruction set: portable, avx2, avx512 or neon [default: the best that this CPU has]
    #[arg(long)]
    tier: Option<Tier>,

    /// Your own logits, before temperature: float32 or float16, shape [rows, vocab] or [vocab]
    /// [default: the recordings in tests/data/logits]
    #[arg(long, value_name = "FILE.npy", verbatim_doc_comment)]
    logits: Option<PathBuf>,

    /// Replay only the first N rows of each file
    #[arg(long, value_name = "N")]
    rows: Option<NonZeroUsize>,
}

/// How often each row is timed. Odd, so that the median is one of the times, and enough for it to
/// shrug off the first, cold pass.
const PASSES: usize = 15;
/// The same for the reference, which takes milliseconds a row.
const REFERENCE_PASSES: usize = 3;

/// Columns for a line of prompt.
const LINE: usize = 98;

const HEADER: &str = "
 step    token  probability       N         M   ln(1/M)  surprise (bits)  time (us)  tier";

fn main() -> ExitCode {
    match run(&Args::parse(), &mut io::stdout().lock()) {
        Ok(code) => code,
        Err(e) if is_closed_pipe(&*e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("decode: {e}");
            ExitCode::from(2)
        }
    }
}

/// Whether whoever read the table has seen enough (`| head`).
fn is_closed_pipe(e: &(dyn Error + 'static)) -> bool {
    e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

fn run(args: &Args, out: &mut impl Write) -> Result<ExitCode, Box<dyn Error>> {
    let params = Params::default()
        .with_temperature(args.temperature)
        .with_top_p(args.top_p)
        .with_top_k(args.top_k)
        .with_min_p(args.min_p);
    params.validate().map_err(|e| format!("{e}, see --help"))?;
    let mut sampler = args.tier.map_or_else(|| Ok(Sampler::new()), sampler_on)?;
    let tier = sampler.tier();
    let recordings = match &args.logits {
        Some(path) => vec![Recording::of_file(path)?],
        None => vec![Recording::shipped("story")?, Recording::shipped("chat")?],
    };

    if cfg!(debug_assertions) {
        writeln!(out, "A debug build, whose times mean nothing: add --release.\n")?;
    }
    let mut summary = Summary::default();
    let mut first_refusal = None;
    for Recording { name, about, rows } in &recordings {
        let limit = args.rows.map_or(usize::MAX, NonZeroUsize::get);
        let selected: Vec<_> = rows.iter().take(limit).collect();
        let (count, all, vocab) = (selected.len(), rows.iter().len(), rows.vocab);
        writeln!(out, "{name}: {count} of {all} rows of {vocab} logits\n{about}{HEADER}")?;

        // `sample_fused` is all that a decode loop needs; a `Sampler` can be held to a tier, and
        // counts what proved its cuts.
        let fast = |row: &[f32], rng: &mut _| sampler.sample(row, params, rng);
        let literal = |row: &[f32], rng: &mut _| reference::sample(row, params, rng);
        let seeded = || Xoshiro256PlusPlus::seed_from_u64(args.seed);
        let steps = replay(PASSES, &selected, &mut seeded(), fast);
        // Lazily, so that a long recording prints as it goes.
        let mut rng = seeded();
        let expected =
            selected.iter().flat_map(|row| replay(REFERENCE_PASSES, &[row], &mut rng, literal));
        for (index, (step, expected)) in steps.into_iter().zip(expected).enumerate() {
            summary.add(&step, &expected);
            match step.result {
                Ok(draw) => writeln!(
                    out,
                    "{index:>5} {:>8} {:>12.6} {:>7} {:>9.6} {:>9.6} {:>16.3} {:>10.1}  {tier}",
                    draw.token,
                    draw.probability,
                    draw.kept,
                    draw.retained_mass,
                    draw.divergence(),
                    draw.surprise_bits(),
                    step.micros,
                )?,
                Err(e) => {
                    writeln!(out, "{index:>5}  refused: {e}")?;
                    first_refusal.get_or_insert(format!("{name}: step {index}: {e}"));
                }
            }
        }
        writeln!(out)?;
    }
    summary.rungs = sampler.rungs();
    summary.print(args, out)?;

    match first_refusal {
        _ if summary.mismatches > 0 => Ok(ExitCode::FAILURE),
        Some(first) => {
            Err(format!("{first}, expected numbers or -inf ({} refused)", summary.refused).into())
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

fn sampler_on(tier: Tier) -> Result<Sampler, String> {
    Sampler::with_tier(tier).map_err(|e| {
        let names: Vec<_> = Tier::available().iter().map(Tier::to_string).collect();
        format!("{e}, expected one of {}", names.join(", "))
    })
}

/// One row, sampled.
struct Step {
    result: Result<Draw, topmass::Error>,
    /// Median over the passes.
    micros: f64,
}

/// Samples the rows one after the other, as a decode loop does, `passes` times over from the same
/// state of the rng, so that every pass draws the same tokens. Leaves the rng as one pass does.
fn replay(
    passes: usize,
    rows: &[&[f32]],
    rng: &mut Xoshiro256PlusPlus,
    mut sample: impl FnMut(&[f32], &mut Xoshiro256PlusPlus) -> Result<Draw, topmass::Error>,
) -> Vec<Step> {
    let start = rng.clone();
    let mut micros = vec![Vec::with_capacity(passes); rows.len()];
    let mut results = Vec::new();
    for _ in 0..passes {
        *rng = start.clone();
        results.clear();
        for (row, micros) in rows.iter().zip(&mut micros) {
            let now = Instant::now();
            let result = black_box(sample(black_box(row), rng));
            micros.push(now.elapsed().as_secs_f64() * 1e6);
            results.push(result);
        }
    }
    let steps = results.into_iter().zip(micros);
    steps.map(|(result, micros)| Step { result, micros: quantile(0.5, &micros) }).collect()
}

/// Nearest rank: always one of the values. 0 where there are none.
fn quantile(q: f64, values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[derive(Default)]
struct Summary {
    draws: Vec<Draw>,
    micros: Vec<f64>,
    reference_micros: Vec<f64>,
    ratios: Vec<f64>,
    refused: usize,
    mismatches: usize,
    rungs: Rungs,
}

impl Summary {
    fn add(&mut self, step: &Step, reference: &Step) {
        let same = match (&step.result, &reference.result) {
            (Ok(a), Ok(b)) => (a.token, a.kept) == (b.token, b.kept),
            (a, b) => a == b,
        };
        self.mismatches += usize::from(!same);
        match step.result {
            Ok(draw) => {
                self.draws.push(draw);
                self.micros.push(step.micros);
                self.reference_micros.push(reference.micros);
                self.ratios.push(reference.micros / step.micros);
            }
            Err(_) => self.refused += 1,
        }
    }

    fn print(&self, args: &Args, out: &mut impl Write) -> io::Result<()> {
        let figures = |of: fn(&Draw) -> f64| self.draws.iter().map(of).collect::<Vec<_>>();
        let kept = figures(|draw| draw.kept.into());
        let mass = figures(|draw| draw.retained_mass);
        let surprise = figures(Draw::surprise_bits);
        let (drawn, rows) = (self.draws.len(), self.draws.len() + self.refused);
        let median = |values| quantile(0.5, values);

        let Args { temperature: t, top_p: p, top_k: k, min_p, seed, .. } = args;
        writeln!(out, "{drawn} drawn at T {t}, top-p {p}, top-k {k}, min-p {min_p}, seed {seed}")?;
        if drawn > 0 {
            let (n, n99) = (median(&kept), quantile(0.99, &kept));
            writeln!(out, "  N         median {n}, p99 {n99}")?;
            let (least, most) = (quantile(0.0, &mass), quantile(1.0, &mass));
            writeln!(out, "  M         {least:.6} to {most:.6}")?;
            let mean = surprise.iter().sum::<f64>() / drawn as f64;
            writeln!(out, "  surprise  mean {mean:.3} bits")?;
            let (fast, reference) = (median(&self.micros), median(&self.reference_micros));
            let ratio = median(&self.ratios);
            writeln!(out, "  time      median {fast:.1} us a step")?;
            writeln!(
                out,
                "  reference median {reference:.1} us a step (scalar, f64, full sort), {ratio:.1} times as long"
            )?;
        }
        let Rungs { quick, close, exact, .. } = self.rungs;
        if quick + close + exact > 0 {
            // Every pass over the rows is the same.
            let [quick, close, exact] = [quick, close, exact].map(|n| n / PASSES as u64);
            writeln!(
                out,
                "  proved    by the quick bound {quick}, the close one {close}, in f64 {exact}"
            )?;
        }
        let mismatches = self.mismatches;
        writeln!(
            out,
            "  check     mismatches of token or N with the reference: {mismatches} of {rows}"
        )
    }
}

/// Rows to replay and what they are.
struct Recording {
    name: String,
    /// Lines for the reader, each ended.
    about: String,
    rows: npy::Rows,
}

impl Recording {
    fn of_file(path: &Path) -> Result<Self, String> {
        let rows = npy::read_rows(path)?;
        Ok(Recording { name: path.display().to_string(), about: String::new(), rows })
    }

    /// One of the repository's own, with the text that its rows continue.
    fn shipped(name: &str) -> Result<Self, String> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logits").join(name);
        let rows = npy::read_rows(&path.with_extension("npy"))?;
        let json = path.with_extension("json");
        let notes: Value = fs::read(&json)
            .map_err(|e| e.to_string())
            .and_then(|bytes| serde_json::from_slice(&bytes).map_err(|e| e.to_string()))
            .map_err(|e| format!("{}: {e}", json.display()))?;
        let note = |key: &str| notes[key].as_str().unwrap_or_default();

        let mut about = format!("{}, {}, after this text:\n", note("model"), note("title"));
        for line in [note("prompt"), note("preceding_text")].concat().lines() {
            // The end of a line that is too long is what the model continues.
            let cut = line.chars().count().saturating_sub(LINE);
            let end: String = line.chars().skip(cut).collect();
            about += &match end.split_once(' ') {
                Some((_, words)) if cut > 0 => format!("  ... {words}\n"),
                _ => format!("  {end}\n"),
            };
        }
        about += &format!("which went on, when recorded:\n  {}\n", note("sampled_text").trim());
        Ok(Recording { name: format!("tests/data/logits/{name}.npy"), about, rows })
    }
}
