//! What can be wrong with a row, a parameter or a request.

use std::fmt;

use topmass_kernels::Tier;

/// Why a row was refused. A refused row draws nothing and advances no rng.
///
/// Two errors are equal when they say the same thing: an invalid parameter that is NaN equals
/// itself.
///
/// ```
/// use topmass::{Error, Params, filter_fused};
/// let mut probs = [0.0; 3];
/// let bad = filter_fused(&[1.0, f32::NAN, 2.0], Params::default(), &mut probs);
/// assert_eq!(bad, Err(Error::NotANumber { index: 1 }));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// The row has no logits.
    EmptyRow,
    /// Every logit is `-inf`: there is nothing to draw.
    AllMasked,
    /// The first logit that is NaN or `+inf` is a NaN.
    NotANumber {
        /// Its position in the row.
        index: usize,
    },
    /// The first logit that is NaN or `+inf` is `+inf`.
    PositiveInfinity {
        /// Its position in the row.
        index: usize,
    },
    /// A parameter is NaN or out of its range.
    InvalidParam {
        /// The field of [`Params`](crate::Params), or the argument.
        name: &'static str,
        /// What was given.
        value: f64,
    },
    /// Two slices that must agree do not.
    LengthMismatch {
        /// What the length should be.
        expected: usize,
        /// What it is.
        found: usize,
    },
    /// The row has more logits than a token id (`u32`) can name.
    RowTooLong {
        /// How many.
        len: usize,
    },
    /// This CPU lacks what the tier asks for.
    UnsupportedTier {
        /// The tier that was asked for.
        tier: Tier,
    },
}

impl PartialEq for Error {
    fn eq(&self, other: &Self) -> bool {
        use Error::*;
        match (self, other) {
            (EmptyRow, EmptyRow) | (AllMasked, AllMasked) => true,
            (NotANumber { index: a }, NotANumber { index: b })
            | (PositiveInfinity { index: a }, PositiveInfinity { index: b })
            | (RowTooLong { len: a }, RowTooLong { len: b }) => a == b,
            (InvalidParam { name: a, value: x }, InvalidParam { name: b, value: y }) => {
                a == b && (x == y || (x.is_nan() && y.is_nan()))
            }
            (
                LengthMismatch { expected: a, found: x },
                LengthMismatch { expected: b, found: y },
            ) => a == b && x == y,
            (UnsupportedTier { tier: a }, UnsupportedTier { tier: b }) => a == b,
            _ => false,
        }
    }
}

impl Eq for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::EmptyRow => f.write_str("the row of logits is empty"),
            Error::AllMasked => f.write_str("every logit is -inf: nothing can be drawn"),
            Error::NotANumber { index } => write!(f, "the logit at index {index} is NaN"),
            Error::PositiveInfinity { index } => write!(f, "the logit at index {index} is +inf"),
            Error::InvalidParam { name, value } => write!(f, "{name} = {value} is not allowed"),
            Error::LengthMismatch { expected, found } => {
                write!(f, "a slice has {found} elements where {expected} are needed")
            }
            Error::RowTooLong { len } => {
                write!(f, "the row has {len} logits, more than a u32 token id can name")
            }
            Error::UnsupportedTier { tier } => {
                write!(f, "this CPU does not support the tier {tier}")
            }
        }
    }
}

impl std::error::Error for Error {}
