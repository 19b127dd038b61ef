//! What the decode loop asks of an engine, and the engines.

use anyhow::Result;

use crate::sampling::Rule;

pub mod candle;
#[cfg(feature = "llama-cpp")]
pub mod llama_cpp;

/// A model that reads tokens and says how likely each next token is.
pub trait Engine {
    /// The sampler that comes with the engine, which `--compare` measures.
    type Own;

    /// For messages.
    const NAME: &'static str;

    /// How many tokens fit, prompt included.
    fn context(&self) -> usize;

    /// Forgets everything that was fed.
    fn reset(&mut self);

    /// Reads tokens that continue what was fed before.
    ///
    /// # Errors
    /// Where the engine fails.
    fn feed(&mut self, tokens: &[u32]) -> Result<()>;

    /// Hands out the logits after the last token, where they lie in the engine: nothing is copied.
    ///
    /// # Errors
    /// Where the engine has none, nothing having been fed.
    fn logits<T>(&self, read: impl FnOnce(&[f32]) -> T) -> Result<T>;

    /// The engine's own sampler, set to the same rule as near as it can be.
    ///
    /// # Errors
    /// Says what it has no setting for.
    fn own_sampler(&self, rule: &Rule, seed: u64) -> Result<Self::Own>;

    /// Draws a token with the engine's own sampler.
    ///
    /// # Errors
    /// Where it fails.
    fn own_sample(&self, own: &mut Self::Own) -> Result<u32>;
}
