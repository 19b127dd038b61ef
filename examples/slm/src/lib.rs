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
