//! What a run was like: the summary, and a row for each step.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;
use topmass::Tier;

use crate::decode::Step;
use crate::record::WholeFile;
use crate::sampling::Drawn;

/// Nearest rank: always one of the values; 0 where there are none.
#[must_use]
pub fn quantile(q: f64, values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Where the time of a run went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Steps after the prompt: the first one's time is the prompt's.
    pub steps: usize,
    /// The engine's time for the prompt, and the first token's sampling.
    pub prompt: Duration,
    /// Tokens a second after the prompt.
    pub tokens_per_second: f64,
    /// The sampler's median over all steps, in microseconds.
    pub sampling_median: f64,
    /// Its 0.99 quantile.
    pub sampling_p99: f64,
    /// The sampler's part of the time after the prompt.
    pub share: f64,
}

impl Times {
    /// Of `(forward, sampling)` of each step.
    #[must_use]
    pub fn of(steps: &[(Duration, Duration)]) -> Self {
        let later = steps.get(1..).unwrap_or_default();
        let sampling: f64 = later.iter().map(|s| s.1.as_secs_f64()).sum();
        let total = sampling + later.iter().map(|s| s.0.as_secs_f64()).sum::<f64>();
        let of_total = |part: f64| if total > 0.0 { part / total } else { 0.0 };
        let samplings = || steps.iter().map(|s| micros(s.1));
        Times {
            steps: later.len(),
            prompt: steps.first().map(|s| s.0 + s.1).unwrap_or_default(),
            tokens_per_second: of_total(later.len() as f64),
            sampling_median: quantile(0.5, samplings()),
            sampling_p99: quantile(0.99, samplings()),
            share: of_total(sampling),
        }
    }
}

/// The figures of a run, for people.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Tokens drawn.
    pub tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Where the time went.
    pub times: Times,
    /// The sampler's instruction set.
    pub tier: Tier,
    /// Median and 0.99 quantile of the number of kept tokens.
    pub kept: (f64, f64),
    /// The least and the greatest mass kept.
    pub mass: (f64, f64),
    /// In bits, of the whole softmax at the temperature used.
    pub mean_surprise: f64,
    /// The part of the steps on which one token was kept.
    pub decided: f64,
}

impl Summary {
    /// Of the steps of a run.
    #[must_use]
    pub fn of(steps: &[Step<Drawn>], prompt_tokens: usize, tier: Tier) -> Self {
        let times: Vec<_> = steps.iter().map(|s| (s.forward, s.sampling)).collect();
        let kept = |q| quantile(q, steps.iter().map(|s| f64::from(s.drawn.kept)));
        let mass = |q| quantile(q, steps.iter().map(|s| s.drawn.retained_mass));
        let mean = |of: fn(&Drawn) -> f64| {
            steps.iter().map(|s| of(&s.drawn)).sum::<f64>() / steps.len().max(1) as f64
        };
        Summary {
            tokens: steps.len(),
            prompt_tokens,
            times: Times::of(&times),
            tier,
            kept: (kept(0.5), kept(0.99)),
            mass: (mass(0.0), mass(1.0)),
            mean_surprise: mean(|d| d.surprise_bits),
            decided: mean(|d| f64::from(u8::from(d.kept == 1))),
        }
    }

    /// `2^mean surprise`.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.mean_surprise.exp2()
    }

    /// Name and value of each figure.
    #[must_use]
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let Times { prompt, tokens_per_second, sampling_median, sampling_p99, share, .. } =
            self.times;
        vec![
            (
                "tokens",
                format!(
                    "{} at {tokens_per_second:.1} a second, after {} of prompt in {:.2} s",
                    self.tokens,
                    self.prompt_tokens,
                    prompt.as_secs_f64()
                ),
            ),
            (
                "sampling",
                format!(
                    "median {sampling_median:.1} us, p99 {sampling_p99:.1} us, {:.3} % of a step ({})",
                    100.0 * share,
                    self.tier
                ),
            ),
            (
                "N kept",
                format!(
                    "median {}, p99 {}; 1 on {:.0} % of the steps",
                    self.kept.0,
                    self.kept.1,
                    100.0 * self.decided
                ),
            ),
            ("M mass", format!("{:.4} to {:.4}", self.mass.0, self.mass.1)),
            (
                "surprise",
                format!("mean {:.2} bits, perplexity {:.2}", self.mean_surprise, self.perplexity()),
            ),
        ]
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows().iter().try_for_each(|(name, value)| writeln!(f, "{name:<9} {value}"))
    }
}

/// How rows of steps are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Csv,
    JsonLines,
}

/// A file with a row for each step, CSV or JSON lines by its extension.
pub struct StatsFile {
    format: Format,
    file: WholeFile,
}

#[derive(Serialize)]
struct Row<'a> {
    step: usize,
    text: &'a str,
    token: u32,
    probability: f64,
    surprise_bits: f64,
    n: u32,
    m: f64,
    mu: Option<f64>,
    forward_us: f64,
    sampling_us: f64,
}

impl StatsFile {
    /// Starts the file.
    ///
    /// # Errors
    /// Where the extension is another, or the file cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let format = match path.extension().and_then(|e| e.to_str()) {
            Some("csv") => Format::Csv,
            Some("jsonl" | "ndjson" | "json") => Format::JsonLines,
            _ => bail!("{}: expected a name that ends in .csv or .jsonl", path.display()),
        };
        Ok(StatsFile { format, file: WholeFile::create(path)? })
    }

    /// Writes the steps, with the text that each completed.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn write(mut self, steps: &[Step<Drawn>], texts: &[String]) -> Result<()> {
        let rows = steps.iter().zip(texts).enumerate().map(|(step, (s, text))| {
            let Drawn { token, probability, surprise_bits, kept, retained_mass, mu } = s.drawn;
            Row {
                step,
                text,
                token,
                probability,
                surprise_bits,
                n: kept,
                m: retained_mass,
                mu,
                forward_us: micros(s.forward),
                sampling_us: micros(s.sampling),
            }
        });
        match self.format {
            Format::Csv => {
                let mut csv = csv::Writer::from_writer(&mut self.file);
                for row in rows {
                    csv.serialize(row)?;
                }
                csv.flush()?;
            }
            Format::JsonLines => {
                use std::io::Write;
                for row in rows {
                    writeln!(self.file, "{}", serde_json::to_string(&row)?)?;
                }
            }
        }
        self.file.finish()
    }
}
