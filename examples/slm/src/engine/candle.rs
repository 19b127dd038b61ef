//! candle's quantised llama: pure Rust, the default.

use std::fs::File;
use std::io::{BufReader, Cursor};

use anyhow::{Context, Result, bail, ensure};
use candle_core::quantized::gguf_file::{self, Content};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Storage, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};
use candle_transformers::models::quantized_llama::{MAX_SEQ_LEN, ModelWeights};
use indicatif::ProgressBar;
use topmass::Params;

use super::Engine;
use crate::model::Gguf;
use crate::sampling::Rule;

/// Block types whose products are scalar code in candle (0.11), and which are therefore stored as
/// `Q8_0` on loading: more bytes, but several times as fast. It has half of a 127th of a block's
/// largest weight as its error, well below that of 4 or 5 bits.
const SLOW: [GgmlDType; 3] = [GgmlDType::Q4_1, GgmlDType::Q5_0, GgmlDType::Q5_1];

/// A loaded model and where it is in the text.
pub struct Candle {
    model: ModelWeights,
    context: usize,
    fed: usize,
    logits: Option<Tensor>,
}

impl Candle {
    /// Loads the weights; `progress` counts bytes of the file.
    ///
    /// # Errors
    /// Where the file's architecture is not llama, or the file is damaged.
    pub fn load(gguf: Gguf, progress: &ProgressBar) -> Result<Self> {
        let Gguf { content, file, .. } = gguf;
        let text = |key: &str| content.metadata.get(key).and_then(|v| v.to_string().ok());
        let number = |key: &str| content.metadata.get(key).and_then(|v| v.to_u32().ok());
        match text("general.architecture").map(String::as_str) {
            Some("llama") => {}
            other => bail!(
                "architecture {}, expected llama (SmolLM2, Llama 3, TinyLlama, ...)",
                other.unwrap_or("unknown")
            ),
        }
        let trained = number("llama.context_length").map_or(MAX_SEQ_LEN, |n| n as usize);
        let model = if content.tensor_infos.values().any(|t| SLOW.contains(&t.ggml_dtype)) {
            let mut faster = Cursor::new(requantized(&content, progress, file)?);
            let content = Content::read(&mut faster)?;
            ModelWeights::from_gguf(content, &mut faster, &Device::Cpu)
        } else {
            ModelWeights::from_gguf(content, &mut progress.wrap_read(file), &Device::Cpu)
        };
        Ok(Candle { model: model?, context: trained.min(MAX_SEQ_LEN), fed: 0, logits: None })
    }
}

/// The model as a GGUF file in memory, with its slow blocks as `Q8_0`.
fn requantized(
    content: &Content,
    progress: &ProgressBar,
    mut file: BufReader<File>,
) -> Result<Vec<u8>> {
    let mut tensors = Vec::with_capacity(content.tensor_infos.len());
    for (name, info) in &content.tensor_infos {
        let stored = content.tensor(&mut file, name, &Device::Cpu)?;
        progress.inc(stored.storage_size_in_bytes() as u64);
        let tensor = if SLOW.contains(&info.ggml_dtype) {
            QTensor::quantize(&stored.dequantize(&Device::Cpu)?, GgmlDType::Q8_0)?
        } else {
            stored
        };
        tensors.push((name.as_str(), tensor));
    }
    // The engine reads the model's figures, and not the tokenizer.
    let metadata: Vec<_> = content
        .metadata
        .iter()
        .filter(|(key, _)| !key.starts_with("tokenizer."))
        .map(|(key, value)| (key.as_str(), value))
        .collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let mut bytes = Cursor::new(Vec::new());
    gguf_file::write(&mut bytes, &metadata, &tensors)?;
    Ok(bytes.into_inner())
}

impl Engine for Candle {
    type Own = LogitsProcessor;

    const NAME: &'static str = "candle";

    fn context(&self) -> usize {
        self.context
    }

    fn reset(&mut self) {
        self.model.clear_kv_cache();
        (self.fed, self.logits) = (0, None);
    }

    fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        let input = Tensor::new(tokens, &Device::Cpu)?.unsqueeze(0)?;
        self.logits = Some(self.model.forward(&input, self.fed)?.squeeze(0)?);
        self.fed += tokens.len();
        Ok(())
    }

    fn logits<T>(&self, read: impl FnOnce(&[f32]) -> T) -> Result<T> {
        let logits = self.logits.as_ref().context("nothing was fed")?;
        let (storage, layout) = logits.storage_and_layout();
        let (start, end) = layout.contiguous_offsets().context("logits in pieces")?;
        match &*storage {
            Storage::Cpu(cpu) => Ok(read(&cpu.as_slice()?[start..end])),
            _ => bail!("logits on a device"),
        }
    }

    fn own_sampler(&self, rule: &Rule, seed: u64) -> Result<LogitsProcessor> {
        let Rule::Cut(Params { temperature, top_p, top_k, min_p, .. }) = *rule else {
            bail!("candle has no Mirostat");
        };
        ensure!(min_p == 0.0, "candle has no min-p");
        let (p, k, temperature) = (top_p, top_k as usize, f64::from(temperature));
        let sampling = match (temperature > 0.0, top_k > 0, top_p < 1.0) {
            (false, ..) => Sampling::ArgMax,
            (true, false, false) => Sampling::All { temperature },
            (true, true, false) => Sampling::TopK { k, temperature },
            (true, false, true) => Sampling::TopP { p, temperature },
            (true, true, true) => Sampling::TopKThenTopP { k, p, temperature },
        };
        Ok(LogitsProcessor::from_sampling(seed, sampling))
    }

    fn own_sample(&self, own: &mut LogitsProcessor) -> Result<u32> {
        Ok(own.sample(self.logits.as_ref().context("nothing was fed")?)?)
    }
}
