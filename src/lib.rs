//! Exact, fast, reproducible token sampling on the CPU. The [`guide`] explains the rule and the
//! figures.
#![forbid(unsafe_code)]

mod batch;
mod error;
pub mod mirostat;
mod outcome;
mod params;
pub mod reference;
mod sampler;
mod search;
mod telemetry;

pub use batch::{BatchError, sample_batch};
pub use error::Error;
pub use mirostat::{Mirostat, MirostatDraw, SurpriseBase};
pub use outcome::{Draw, Kept};
pub use params::{MassBase, Params, TemperatureAt, Ties};
pub use sampler::{Sampler, filter_fused, sample_fused};
pub use telemetry::{NucleusLog, StepStats, inspect};
pub use topmass_kernels::Tier;

/// The compiler, profile, target and compile-time target features that this crate was built with,
/// for reports. What runs is chosen at run time, see [`Tier`].
///
/// ```
/// assert!(topmass::build_info().contains("opt-level"));
/// ```
#[must_use]
pub fn build_info() -> &'static str {
    env!("TOPMASS_BUILD")
}

#[doc = include_str!("guide.md")]
pub mod guide {}
