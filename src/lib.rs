//! The sampling step of a language model's decode loop, on the CPU: one row of logits in, one
//! token out, in about the time it takes to read the row.
//!
//! ```
//! use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
//! use topmass::{Params, sample_fused};
//!
//! let logits: Vec<f32> = (0..32_000).map(|i| (i % 97) as f32 / 8.0).collect();
//! let params = Params::default().with_temperature(0.8).with_top_p(0.95).with_min_p(0.05);
//! let mut rng = Xoshiro256PlusPlus::seed_from_u64(42);
//! let draw = sample_fused(&logits, params, &mut rng)?;
//! assert!(draw.probability > 0.0 && draw.kept < 32_000);
//! # Ok::<(), topmass::Error>(())
//! ```
//!
//! * **Exact**: the kept set and the token are those of the definition in `f64`
//!   ([`mod@reference`]), ties included. A cut is proved by bounds; where they leave it open, the
//!   row is weighed again in `f64`.
//! * **Fast**: `O(V)`, no sort, no allocation after the first row; AVX-512, AVX2 and NEON chosen
//!   at run time ([`Tier`]).
//! * **Reproducible**: one seed, one token, and the same bits in every field of a [`Draw`], on
//!   every instruction set, in any batch, on any number of threads.
//! * **Honest**: every [`Draw`] carries the mass that was really kept and the bound it was proved
//!   to; a bad row is an [`Error`] that says where.
//!
//! The [`guide`] explains the rule, the figures and which knob to turn.
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
pub use telemetry::{NucleusLog, Rungs, StepStats, inspect};
pub use topmass_kernels::{Tier, UnknownTier};

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

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
