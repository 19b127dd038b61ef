//! Rows side by side, each as if it were alone.

use std::fmt;

use rand::Rng;
#[cfg(feature = "rayon")]
use rayon::prelude::*;

use crate::{Draw, Error, Params, sample_fused};

/// Slices of a batch that do not fit together. Nothing was drawn.
///
/// ```
/// use topmass::{Error, Params, sample_batch};
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let mut rngs = [Xoshiro256PlusPlus::seed_from_u64(1)];
/// let mut draws = [Err(Error::EmptyRow)];
/// let refused = sample_batch(&[0.0; 5], 4, &[Params::default()], &mut rngs, &mut draws).unwrap_err();
/// assert_eq!(refused.to_string(), "logits has 5 elements where the batch's draws need 4");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchError {
    /// Which argument has the wrong length: `"params"`, `"rngs"` or `"logits"`.
    pub name: &'static str,
    /// What its length should be, for as many rows as there are `draws`; `usize::MAX` where that
    /// is more than memory can hold.
    pub expected: usize,
    /// What it is.
    pub found: usize,
}

impl fmt::Display for BatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BatchError { name, expected, found } = self;
        write!(f, "{name} has {found} elements where the batch's draws need {expected}")
    }
}

impl std::error::Error for BatchError {}

/// Draws one token for each row of a row-major `[B, vocab]` batch, `B` being `draws.len()`.
///
/// Row `i` gets what [`sample_fused`] gives for it alone, with `params[i]` and `rngs[i]`: neither
/// the other rows nor their order nor the number of threads changes a bit of it. A row that is
/// refused is an `Err` in `draws` and leaves its rng alone; the others are drawn. So with
/// `vocab = 0` every row is [`Error::EmptyRow`], and a batch without rows is `Ok`.
///
/// With the feature `rayon`, the threads of the current `rayon` pool share the rows. Scratch is
/// per thread: after the first row of a length, a thread allocates nothing for a row.
///
/// # Errors
/// [`BatchError`] where the slices' lengths do not fit together. Then no rng is advanced, and
/// `draws` is as it was.
///
/// ```
/// use topmass::{Error, Params, sample_batch};
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let logits = [1.0, 5.0, 0.0, f32::NAN, 0.0, 0.0, 9.0, 0.0, 0.0];
/// let params = [Params::default().with_top_k(1); 3];
/// let mut rngs = [1, 2, 3].map(Xoshiro256PlusPlus::seed_from_u64);
/// let mut draws = [const { Err(Error::EmptyRow) }; 3];
/// sample_batch(&logits, 3, &params, &mut rngs, &mut draws)?;
/// let tokens = draws.map(|draw| draw.map(|d| d.token));
/// assert_eq!(tokens, [Ok(1), Err(Error::NotANumber { index: 0 }), Ok(0)]);
/// # Ok::<(), topmass::BatchError>(())
/// ```
pub fn sample_batch<R: Rng + Send>(
    logits: &[f32],
    vocab: usize,
    params: &[Params],
    rngs: &mut [R],
    draws: &mut [Result<Draw, Error>],
) -> Result<(), BatchError> {
    let rows = draws.len();
    let lengths = [
        ("params", rows, params.len()),
        ("rngs", rows, rngs.len()),
        ("logits", rows.saturating_mul(vocab), logits.len()),
    ];
    for (name, expected, found) in lengths {
        if expected != found {
            return Err(BatchError { name, expected, found });
        }
    }

    // Not `chunks_exact`: it has no rows of length 0.
    let row = |i: usize| &logits[i * vocab..][..vocab];
    #[cfg(not(feature = "rayon"))]
    for (i, ((draw, rng), params)) in draws.iter_mut().zip(rngs).zip(params).enumerate() {
        *draw = sample_fused(row(i), *params, rng);
    }
    #[cfg(feature = "rayon")]
    draws
        .par_iter_mut()
        .zip(rngs)
        .zip(params)
        .enumerate()
        .with_min_len(TASK / vocab.max(1))
        .for_each(|(i, ((draw, rng), params))| *draw = sample_fused(row(i), *params, rng));
    Ok(())
}

/// Logits that are worth handing to another thread: a few microseconds of work.
#[cfg(feature = "rayon")]
const TASK: usize = 1 << 14;
