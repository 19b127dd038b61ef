//! llama.cpp, by its Rust bindings: a second engine, behind the feature `llama-cpp`.

use std::num::NonZeroU32;
use std::path::Path;
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail, ensure};
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use topmass::Params;

use super::Engine;
use crate::sampling::Rule;

/// Loaded weights, from which engines are made.
pub struct Model {
    backend: LlamaBackend,
    model: LlamaModel,
}

impl Model {
    /// Loads a GGUF file.
    ///
    /// # Errors
    /// Where llama.cpp does not take it.
    pub fn load(path: &Path) -> Result<Self> {
        let mut backend = LlamaBackend::init()?;
        backend.void_logs();
        let model = LlamaModel::load_from_file(&backend, path, &LlamaModelParams::default())
            .with_context(|| format!("llama.cpp cannot load {}", path.display()))?;
        Ok(Model { backend, model })
    }

    /// An engine with room for `tokens`, or for as many as the model was trained on.
    ///
    /// # Errors
    /// Where there is no memory for them.
    pub fn engine(&self, tokens: usize) -> Result<LlamaCpp<'_>> {
        let trained = self.model.n_ctx_train();
        let size = u32::try_from(tokens).map_or(trained, |n| n.min(trained));
        let threads = available_parallelism().map_or(1, |n| n.get() as i32);
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(size))
            .with_n_batch(size)
            .with_n_threads(threads)
            .with_n_threads_batch(threads);
        let context = self.model.new_context(&self.backend, params)?;
        Ok(LlamaCpp { context, fed: false })
    }
}

/// One text in llama.cpp.
pub struct LlamaCpp<'a> {
    context: LlamaContext<'a>,
    fed: bool,
}

impl Engine for LlamaCpp<'_> {
    type Own = LlamaSampler;

    const NAME: &'static str = "llama.cpp";

    fn context(&self) -> usize {
        self.context.n_ctx() as usize
    }

    fn reset(&mut self) {
        self.context.clear_kv_cache();
        self.fed = false;
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        let tokens: Vec<_> = tokens.iter().map(|&id| LlamaToken::new(id as i32)).collect();
        self.context.decode(&mut LlamaBatch::get_one(&tokens)?)?;
        // Decoding may still run: its time is the engine's, not the sampler's.
        self.context.synchronize();
        self.fed = true;
        Ok(())
    }

    fn logits<T>(&self, read: impl FnOnce(&[f32]) -> T) -> Result<T> {
        ensure!(self.fed, "nothing was fed");
        Ok(read(self.context.get_logits_ith(-1)))
    }

    /// The order of llama.cpp's own programs: the cuts, then the temperature.
    fn own_sampler(&self, rule: &Rule, seed: u64) -> Result<LlamaSampler> {
        let Rule::Cut(Params { temperature, top_p, top_k, min_p, .. }) = *rule else {
            bail!("its Mirostat is not set up here");
        };
        let top_k = i32::try_from(top_k).unwrap_or(i32::MAX);
        Ok(LlamaSampler::chain_simple([
            LlamaSampler::top_k(top_k),
            LlamaSampler::top_p(top_p as f32, 1),
            LlamaSampler::min_p(min_p as f32, 1),
            LlamaSampler::temp(temperature),
            LlamaSampler::dist(seed as u32),
        ]))
    }

    fn own_sample(&self, own: &mut LlamaSampler) -> Result<u32> {
        ensure!(self.fed, "nothing was fed");
        Ok(own.sample(&self.context, -1).0 as u32)
    }
}
