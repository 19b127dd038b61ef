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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_equal_where_they_say_the_same() {
        let param = |name, value| Error::InvalidParam { name, value };
        let all = [
            Error::EmptyRow,
            Error::AllMasked,
            Error::NotANumber { index: 1 },
            Error::NotANumber { index: 2 },
            Error::PositiveInfinity { index: 1 },
            Error::PositiveInfinity { index: 2 },
            Error::RowTooLong { len: 1 },
            Error::RowTooLong { len: 2 },
            param("top_p", 2.0),
            param("top_p", -1.0),
            param("top_p", f64::NAN),
            param("min_p", 2.0),
            param("min_p", f64::NAN),
            Error::LengthMismatch { expected: 1, found: 2 },
            Error::LengthMismatch { expected: 1, found: 3 },
            Error::LengthMismatch { expected: 2, found: 2 },
            Error::UnsupportedTier { tier: Tier::Neon },
            Error::UnsupportedTier { tier: Tier::Avx2 },
        ];
        for (i, a) in all.iter().enumerate() {
            for (j, b) in all.iter().enumerate() {
                assert_eq!(a == b, i == j, "{a:?} {b:?}");
                assert_eq!(a.to_string() == b.to_string(), i == j);
            }
        }
    }
}
