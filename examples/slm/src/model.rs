//! The model's file: where it is, and what its header says.

use std::env;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::quantized::gguf_file::Content;

/// The default model's file, as `scripts/fetch-model` names it.
pub const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";

/// Where `scripts/fetch-model` puts the default model.
#[must_use]
pub fn cached() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .unwrap_or_else(|| ".cache".into());
    cache.join("topmass").join(FILE)
}

/// An open GGUF file, its header read.
pub struct Gguf {
    /// Where it lies.
    pub path: PathBuf,
    /// The header.
    pub content: Content,
    /// The file, for the tensors.
    pub file: BufReader<File>,
}

impl Gguf {
    /// Opens the file and reads its header.
    ///
    /// # Errors
    /// Where there is no such file, with the command that brings the default model; where it is
    /// not a GGUF.
    pub fn open(path: Option<&Path>) -> Result<Self> {
        let cached = cached();
        ensure!(
            path.is_some() || cached.exists(),
            "no model at {}\n\
             bring it with: bash scripts/fetch-model (98 MB), or name another GGUF with --model",
            cached.display()
        );
        let path = path.map_or(cached, Path::to_path_buf);
        let shown = path.display();
        let file = File::open(&path).with_context(|| format!("cannot open {shown}"))?;
        let mut file = BufReader::new(file);
        let content = Content::read(&mut file).map_err(|e| {
            // What follows the first line is candle's backtrace.
            let why = e.to_string();
            let why = why.lines().next().unwrap_or_default().to_owned();
            anyhow!("{shown} is not a GGUF model, or it is damaged: {why}")
        })?;
        Ok(Gguf { path, content, file })
    }
}
