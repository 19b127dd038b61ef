//! The same prompt decoded with other samplers, and where the time goes.

use std::fmt::Write;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use topmass::Sampler;

use crate::decode::{Limits, Step, decode};
use crate::engine::Engine;
use crate::sampling::{Drawn, Rule, TokenSampler};
use crate::stats::Times;

/// Decodes the prompt as far as `steps` go, with the scalar reference and with the engine's own
/// sampler, and sets the times side by side.
///
/// # Errors
/// Where the engine fails.
pub fn compare<E: Engine>(
    engine: &mut E,
    prompt: &[u32],
    rule: &Rule,
    seed: u64,
    steps: &[Step<Drawn>],
    go_on: &dyn Fn() -> bool,
) -> Result<String> {
    let times: Vec<_> = steps.iter().map(|s| (s.forward, s.sampling)).collect();
    let topmass = Times::of(&times);
    let mut notes = String::new();

    let mut literal = TokenSampler::new(rule.clone(), seed, Sampler::new());
    let (tokens, reference) = timed(engine, prompt, steps.len(), "reference", go_on, |engine| {
        Ok(engine.logits(|row| literal.draw_literally(row))??.token)
    })?;
    let equal = tokens.iter().zip(steps).take_while(|(t, s)| **t == s.drawn.token).count();
    writeln!(notes, "the reference drew the same tokens on {equal} of {} steps", tokens.len())?;

    let mut rows = vec![("topmass", topmass), ("scalar reference", reference)];
    match engine.own_sampler(rule, seed) {
        Ok(mut own) => {
            let (_, times) = timed(engine, prompt, steps.len(), E::NAME, go_on, |engine| {
                engine.own_sample(&mut own)
            })?;
            rows.push((E::NAME, times));
            writeln!(notes, "{}'s own sampler has other random numbers: another text", E::NAME)?;
        }
        Err(why) => writeln!(notes, "{}'s own sampler did not run: {why}", E::NAME)?,
    }

    let mut table = format!(
        "{:<16} {:>11} {:>11} {:>10} {:>11} {:>9}\n",
        "sampler", "median (us)", "p99 (us)", "x topmass", "% of a step", "tokens/s"
    );
    for (name, times) in rows {
        let Times { sampling_median: median, sampling_p99: p99, share, tokens_per_second, .. } =
            times;
        let ratio = median / topmass.sampling_median;
        let percent = 100.0 * share;
        writeln!(
            table,
            "{name:<16} {median:>11.1} {p99:>11.1} {ratio:>10.1} {percent:>11.3} {tokens_per_second:>9.1}"
        )?;
    }
    Ok(table + &notes)
}

/// Decodes `tokens` tokens, whatever they are, and says which and how long each step took.
fn timed<E: Engine>(
    engine: &mut E,
    prompt: &[u32],
    tokens: usize,
    name: &'static str,
    go_on: &dyn Fn() -> bool,
    sample: impl FnMut(&E) -> Result<u32>,
) -> Result<(Vec<u32>, Times)> {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}")?;
    let bar = ProgressBar::new(tokens as u64).with_style(style).with_message(name);
    // No end token: all samplers go equally far.
    let limits = Limits { max_tokens: tokens, end_tokens: &[] };
    let mut drawn = Vec::new();
    let mut times = Vec::new();
    let watch = |_: &E, step: &Step<u32>| {
        drawn.push(step.drawn);
        times.push((step.forward, step.sampling));
        bar.inc(1);
        Ok(go_on())
    };
    decode(engine, prompt, &limits, |&token| token, sample, watch)?;
    bar.finish_and_clear();
    Ok((drawn, Times::of(&times)))
}
