//! Kernels of the crate `topmass`: rows of floats in, figures out. No rng, no policy.
//!
//! Every kernel is written once, over sixteen logical lanes, and instantiated for each [`Tier`];
//! every tier gives the same bits. A row is worked through in blocks of 1,024 elements; the last
//! block is padded with `-inf`, which weighs nothing and passes no threshold, so that no kernel
//! has a tail of its own.
//!
//! The data flow one way: [`scan`] reads the row, [`select`] finds the few elements that matter,
//! [`threshold`] cuts among them, [`draw`] goes over the survivors. [`entropy`] stands beside them.

#![forbid(unsafe_code)]

pub mod draw;
pub mod entropy;
mod exp;
mod fixed;
pub mod floor;
mod lanes;
pub mod row;
pub mod scan;
pub mod select;
pub mod threshold;
mod tier;

pub use exp::{Scale, WEIGHT_ERROR, weigh};
pub use fixed::Mass;
pub use row::Cut;
pub use tier::{Isa, Tier, UnknownTier};
