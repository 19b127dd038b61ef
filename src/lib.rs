//! Exact, fast, reproducible token sampling on the CPU.
#![forbid(unsafe_code)]

mod error;
pub mod mirostat;
mod outcome;
mod params;
pub mod reference;
mod sampler;
mod search;

pub use error::Error;
pub use mirostat::{Mirostat, MirostatDraw, SurpriseBase};
pub use outcome::{Draw, Kept};
pub use params::{MassBase, Params, TemperatureAt, Ties};
pub use sampler::{Sampler, filter_fused, sample_fused};
pub use topmass_kernels::Tier;
