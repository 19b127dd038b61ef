//! The closed loop of Mirostat: surprise held at a target, on real decode steps and on synthetic
//! ones.
//!
//! ```text
//! cargo run --release --example mirostat
//! cargo run --release --example mirostat -- --version 1 --tau 4 --eta 0.05 --steps 5000
//! ```

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{Mirostat, MirostatDraw, Sampler, SurpriseBase};

#[path = "support/npy.rs"]
mod npy;

/// Watch Mirostat hold the surprise of a text at a target.
///
/// The rows of a set are gone through in a circle, one token drawn from each. The token is not fed
/// back to a model: what the loop controls is the surprise, not the text. The plot shows mu (m)
/// and the mean surprise of each stretch of steps (o) in bits; the line (|) is tau.
///
/// What can be held lies between the surprise of the likeliest tokens and the entropy of the rows,
/// on the average, and both hang on the temperature. Outside, mu runs away.
///
/// Exit code: 0, 2 where the input is at fault.
#[derive(Parser)]
#[command(name = "mirostat", verbatim_doc_comment, allow_negative_numbers = true)]
struct Args {
    /// The surprise to hold, in bits; may be given several times
    #[arg(long, default_values_t = [2.0, 3.0, 5.0])]
    tau: Vec<f64>,

    /// How much of an error is corrected at once
    #[arg(long, default_value_t = 0.1)]
    eta: f64,

    /// 1: k from a Zipf estimate; 2: a threshold on the surprise
    #[arg(long, value_name = "1|2", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    version: u8,

    /// Surprise by the full softmax, or among the kept tokens
    #[arg(long, value_enum, default_value_t = Base::Full)]
    base: Base,

    /// Divides the logits [default: what gives the rows a mean entropy of 1.5 bits above tau]
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,

    /// Tokens to draw
    #[arg(long, value_name = "N", default_value = "3000")]
    steps: NonZeroUsize,

    /// Seed of the random numbers: the same seed draws the same tokens, on every machine
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Your own logits, before temperature: float32 or float16, shape [rows, vocab] or [vocab]
    /// [default: the recordings in tests/data/logits, and rows made up by Zipf's law]
    #[arg(long, value_name = "FILE.npy", verbatim_doc_comment)]
    logits: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Base {
    Full,
    Kept,
}

/// Lines of a plot, and its columns: so many bits wide.
const LINES: usize = 15;
const COLUMNS: usize = 60;

fn main() -> ExitCode {
    match run(&Args::parse(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the table has seen enough (`| head`).
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("mirostat: {e}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args, out: &mut impl Write) -> io::Result<()> {
    let mut summary = Vec::new();
    for Set { name, rows } in sets(args).map_err(io::Error::other)? {
        writeln!(out, "{name}: {} rows of {} logits\n", rows.len(), rows[0].len())?;
        for &tau in &args.tau {
            let temperature = args.temperature.unwrap_or_else(|| temperature_for(tau, &rows));
            let draws = draw(args, tau, temperature, &rows)
                .map_err(|e| io::Error::other(format!("{name}: {e}")))?;
            let [least, most] = mean_range(&rows, temperature);
            writeln!(
                out,
                "tau {tau}, eta {}, v{}, T {temperature:.2}: can hold {least:.2} to {most:.2} bits",
                args.eta, args.version
            )?;
            plot(tau, &draws, out)?;
            summary.push((name.clone(), tau, mean_surprise(&draws)));
        }
    }
    writeln!(out, "{:<32} {:>5} {:>8} {:>11} {:>8}", "", "tau", "mean S", "perplexity", "2^tau")?;
    for (name, tau, mean) in summary {
        let (perplexity, target) = (mean.exp2(), tau.exp2());
        writeln!(out, "{name:<32} {tau:>5} {mean:>8.3} {perplexity:>11.3} {target:>8.3}")?;
    }
    Ok(())
}

/// One token from each row, round and round.
fn draw(
    args: &Args,
    tau: f64,
    temperature: f32,
    rows: &[Vec<f32>],
) -> Result<Vec<MirostatDraw>, topmass::Error> {
    let mirostat = match args.version {
        1 => Mirostat::v1(tau, args.eta),
        _ => Mirostat::v2(tau, args.eta),
    };
    let mut mirostat = mirostat.with_surprise_base(match args.base {
        Base::Full => SurpriseBase::Full,
        Base::Kept => SurpriseBase::Kept,
    });
    let mut sampler = Sampler::new();
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(args.seed);
    let rows = rows.iter().cycle().take(args.steps.get());
    rows.map(|row| mirostat.sample_with(&mut sampler, row, temperature, &mut rng)).collect()
}

fn mean_surprise(draws: &[MirostatDraw]) -> f64 {
    draws.iter().map(|draw| draw.surprise_bits).sum::<f64>() / draws.len() as f64
}

/// A line for each stretch of steps: figures, and a mark for each in a column of bits.
fn plot(tau: f64, draws: &[MirostatDraw], out: &mut impl Write) -> io::Result<()> {
    let length = draws.len().div_ceil(LINES);
    let most = draws.iter().map(|draw| draw.mu).fold(2.0 * tau, f64::max).max(1.0);
    let column = |bits: f64| {
        let at = bits / most * (COLUMNS - 1) as f64;
        at.round().clamp(0.0, (COLUMNS - 1) as f64) as usize
    };
    let title = " steps up to   kept  mean S     mu  0";
    writeln!(out, "{title} {most:>w$.1} bits", w = COLUMNS - 7)?;
    for (i, stretch) in draws.chunks(length).enumerate() {
        let mean = mean_surprise(stretch);
        let mu = stretch.iter().map(|draw| draw.mu).sum::<f64>() / stretch.len() as f64;
        let mut kept: Vec<u32> = stretch.iter().map(|draw| draw.kept).collect();
        kept.sort_unstable();
        let mut line = [b' '; COLUMNS];
        line[column(tau)] = b'|';
        line[column(mu)] = b'm';
        line[column(mean)] = b'o';
        writeln!(
            out,
            "{:>12} {:>6} {mean:>7.3} {mu:>6.2}  {}",
            draws.len().min((i + 1) * length),
            kept[kept.len() / 2],
            String::from_utf8_lossy(&line).trim_end()
        )?;
    }
    writeln!(out)
}

/// Rows to draw from.
struct Set {
    name: String,
    rows: Vec<Vec<f32>>,
}

fn sets(args: &Args) -> Result<Vec<Set>, String> {
    let read = |path: &Path| -> Result<Vec<Vec<f32>>, String> {
        Ok(npy::read_rows(path)?.iter().map(<[f32]>::to_vec).collect())
    };
    if let Some(path) = &args.logits {
        return Ok(vec![Set { name: path.display().to_string(), rows: read(path)? }]);
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logits");
    let mut real = read(&folder.join("story.npy"))?;
    real.extend(read(&folder.join("chat.npy"))?);
    // Exponents and sizes of heads vary from step to step, as they do in a text.
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(args.seed);
    let mut unit = || (rng.next_u64() >> 11) as f64 * f64::exp2(-53.0);
    let zipf = (0..16)
        .map(|_| {
            let (s, offset) = (1.3 + 0.5 * unit(), 4.0 * unit());
            (1..=32_000).map(|rank| (-s * (f64::from(rank) + offset).ln()) as f32).collect()
        })
        .collect();
    Ok(vec![
        Set { name: "real: story and chat".into(), rows: real },
        Set { name: "synthetic: Zipf, s 1.3 to 1.8".into(), rows: zipf },
    ])
}

/// The surprise of the likeliest token and the mean surprise of a draw from the whole row, on the
/// average over the rows.
fn mean_range(rows: &[Vec<f32>], temperature: f32) -> [f64; 2] {
    let (mut least, mut most) = (0.0, 0.0);
    for row in rows {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let (mut total, mut expected) = (0.0, 0.0);
        for &x in row.iter().filter(|&&x| x > f32::NEG_INFINITY) {
            let z = (f64::from(x) - f64::from(max)) / f64::from(temperature);
            total += z.exp();
            expected += z * z.exp();
        }
        least += total.log2();
        most += total.log2() - expected / total * std::f64::consts::LOG2_E;
    }
    [least, most].map(|sum| sum / rows.len() as f64)
}

fn temperature_for(tau: f64, rows: &[Vec<f32>]) -> f32 {
    let (mut low, mut high) = (0.05f32, 20.0f32);
    for _ in 0..16 {
        let middle = (low * high).sqrt();
        let [_, entropy] = mean_range(rows, middle);
        *if entropy < tau + 1.5 { &mut low } else { &mut high } = middle;
    }
    high
}
