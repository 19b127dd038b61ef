//! What the integration tests share: rows, rngs, tiers, a brute-force rule and an oracle.
#![allow(dead_code)] // each test binary uses its own part

pub mod brute;
pub mod mirostat;
pub mod oracle;
pub mod rows;

use std::convert::Infallible;
use std::path::Path;

use topmass::{Draw, Error, Kept, Params, Sampler, Tier};

/// An rng that returns a fixed list, over and over, and counts. The contract draws with
/// `next_u64` and nothing else, so the other methods fail the test.
pub struct Scripted {
    values: Vec<u64>,
    pub calls: usize,
}

impl Scripted {
    pub fn new(values: &[u64]) -> Self {
        assert!(!values.is_empty());
        Scripted { values: values.to_vec(), calls: 0 }
    }

    /// Returns a draw at `u` in `[0, 1)`.
    pub fn at(u: f64) -> Self {
        Scripted::new(&[bits_of(u)])
    }
}

impl rand::TryRng for Scripted {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        panic!("the contract draws with next_u64")
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.calls += 1;
        Ok(self.values[(self.calls - 1) % self.values.len()])
    }

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Infallible> {
        panic!("the contract draws with next_u64")
    }
}

/// The largest `u` that the contract's mapping can give.
pub const LAST_U: f64 = 1.0 - 1.0 / (1u64 << 53) as f64;

/// The `next_u64` that the contract maps to `u` rounded down to a multiple of 2^-53. The eleven
/// bits that the mapping must ignore are all set.
pub fn bits_of(u: f64) -> u64 {
    assert!((0.0..1.0).contains(&u));
    (((u * (1u64 << 53) as f64) as u64) << 11) | 0x7ff
}

/// A sampler of every tier that this machine has, best last.
///
/// # Panics
/// Where `TOPMASS_REQUIRE_TIER` (names, comma between) asks for one that is missing: a silently
/// skipped tier is a failure.
pub fn samplers() -> Vec<Sampler> {
    let available = Tier::available();
    let names: Vec<String> =
        available.iter().map(|tier| format!("{tier:?}").to_lowercase()).collect();
    let required = std::env::var("TOPMASS_REQUIRE_TIER").unwrap_or_default();
    for name in required.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        assert!(
            names.contains(&name.to_lowercase()),
            "tier {name} is required; here are {names:?}"
        );
    }
    assert!(available.contains(&Tier::Portable), "the portable tier runs everywhere");
    let with_tier = |tier| Sampler::with_tier(tier).expect("an available tier");
    available.into_iter().map(with_tier).collect()
}

/// Runs `test` on a sampler of every tier that this machine has.
pub fn for_each_tier(mut test: impl FnMut(&mut Sampler)) {
    for mut sampler in samplers() {
        test(&mut sampler);
    }
}

/// One draw at `u`, which must take exactly one `next_u64`; greedy and refused rows take none.
pub fn draw_at(
    sampler: &mut Sampler,
    logits: &[f32],
    params: Params,
    u: f64,
) -> Result<Draw, Error> {
    let mut rng = Scripted::at(u);
    let draw = sampler.sample(logits, params, &mut rng);
    let expected = usize::from(draw.is_ok() && params.temperature > 0.0);
    assert_eq!(rng.calls, expected, "calls of next_u64 for {draw:?}, {params:?}");
    draw
}

/// `filter`, with its probabilities.
pub fn filter(
    sampler: &mut Sampler,
    logits: &[f32],
    params: Params,
) -> Result<(Vec<f32>, Kept), Error> {
    let mut probs = vec![f32::NAN; logits.len()];
    let kept = sampler.filter(logits, params, &mut probs)?;
    Ok((probs, kept))
}

/// Where the probabilities are not zero.
pub fn support_of(probs: &[f32]) -> Vec<usize> {
    (0..probs.len()).filter(|&i| probs[i] != 0.0).collect()
}

/// The rows of a two-dimensional `f32` file.
pub fn read_rows(path: &Path) -> Vec<Vec<f32>> {
    let bytes = std::fs::read(path).expect("a readable file");
    let file = npyz::NpyFile::new(&bytes[..]).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let [_, v] = file.shape()[..] else { panic!("{}: {:?}", path.display(), file.shape()) };
    let data: Vec<f32> = file.into_vec().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    data.chunks_exact(v as usize).map(<[f32]>::to_vec).collect()
}

/// A count from the environment.
pub fn env_count(name: &str, default: usize) -> usize {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{name}={text}: {e}")),
        Err(_) => default,
    }
}
