#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod compare;
pub mod decode;
pub mod engine;
pub mod model;
pub mod record;
pub mod report;
pub mod sampling;
pub mod stats;
pub mod tokenizer;

/// How to plug the crate into llama.cpp's bindings, compiled where they are.
#[cfg(all(doctest, feature = "llama-cpp"))]
#[doc = include_str!("../llama-cpp.md")]
struct LlamaCppReadme;
