//! The decode loop: feed, sample, repeat.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::engine::Engine;

/// One token and what it took.
#[derive(Clone, Debug)]
pub struct Step<D> {
    /// What the sampler says of it.
    pub drawn: D,
    /// The engine's time for the logits; of the first step, for the whole prompt.
    pub forward: Duration,
    /// The sampler's time for the token.
    pub sampling: Duration,
}

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model said so.
    EndToken,
    /// As many tokens as were asked for.
    MaxTokens,
    /// No room left in the model's context.
    ContextFull,
    /// The caller said so.
    Stopped,
}

/// When to stop.
pub struct Limits<'a> {
    /// After this many tokens.
    pub max_tokens: usize,
    /// After one of these.
    pub end_tokens: &'a [u32],
}

/// Continues `prompt`. `sample` draws a token from the engine's logits, and is timed; `watch` sees
/// each step while its logits are still there, and says whether to go on.
///
/// # Errors
/// Where the prompt is empty or too long, and whatever the engine, `sample` or `watch` return.
pub fn decode<E: Engine, D>(
    engine: &mut E,
    prompt: &[u32],
    limits: &Limits<'_>,
    token_of: impl Fn(&D) -> u32,
    mut sample: impl FnMut(&E) -> Result<D>,
    mut watch: impl FnMut(&E, &Step<D>) -> Result<bool>,
) -> Result<End> {
    let context = engine.context();
    ensure!(!prompt.is_empty(), "the prompt is empty, expected at least one token");
    ensure!(
        prompt.len() <= context,
        "the prompt takes {} tokens, expected at most the {context} of the model's context",
        prompt.len()
    );
    engine.reset();
    let mut next = prompt.to_vec();
    let mut room = context - prompt.len();
    for step in 1.. {
        let start = Instant::now();
        engine.feed(&next)?;
        let fed = Instant::now();
        let drawn = sample(engine)?;
        let sampled = Instant::now();

        let token = token_of(&drawn);
        let go_on = watch(engine, &Step { drawn, forward: fed - start, sampling: sampled - fed })?;
        if limits.end_tokens.contains(&token) {
            return Ok(End::EndToken);
        }
        if step >= limits.max_tokens {
            return Ok(End::MaxTokens);
        }
        if !go_on {
            return Ok(End::Stopped);
        }
        if room == 0 {
            return Ok(End::ContextFull);
        }
        room -= 1;
        next.clear();
        next.push(token);
    }
    unreachable!("every step counts")
}
