//! Temperature, top-p, top-k, min-p, and the choices that samplers make silently, named.

use crate::Error;

/// What happens to tokens whose logit equals a cut-off.
///
/// ```
/// use topmass::{Params, Ties, reference::kept_set};
/// let (row, params) = ([1.0, 1.0, 0.0, 1.0], Params::default().with_top_k(2));
/// assert_eq!(kept_set(&row, params)?, [0, 1, 3]);
/// assert_eq!(kept_set(&row, params.with_ties(Ties::LowestIndex))?, [0, 1]);
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ties {
    /// Equal logits share a fate, so the kept set does not depend on token ids. Top-k may keep
    /// more than `k`.
    #[default]
    Together,
    /// The stable sort's order decides: the lower index is kept first, so top-k keeps exactly `k`.
    LowestIndex,
}

/// Of which mass `top_p` is a share when top-k binds as well.
///
/// ```
/// use topmass::{MassBase, Params, reference::kept_set};
/// let row = [0.2f32, 0.1, 0.35, 0.35].map(f32::ln); // top-k: 0.7, and its first two hold .5 of it
/// let params = Params::default().with_top_k(2).with_top_p(0.45).with_ties(topmass::Ties::LowestIndex);
/// assert_eq!(kept_set(&row, params)?, [2, 3]); // .35 of the row is less than .45
/// assert_eq!(kept_set(&row, params.with_mass_base(MassBase::TopK))?, [2]); // .5 is not
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MassBase {
    /// Of the whole row's: both cuts look at the same probabilities and the tighter one wins.
    #[default]
    FullRow,
    /// Of the top-k set's, renormalised first.
    TopK,
}

/// Whether the cuts see the temperature.
///
/// ```
/// use topmass::{Params, TemperatureAt, reference::kept_set};
/// let (row, params) = ([2.0, 1.0, 0.0], Params::default().with_temperature(2.0).with_top_p(0.6));
/// assert_eq!(kept_set(&row, params)?, [0, 1]); // .506 at T = 2 is less than .6
/// assert_eq!(kept_set(&row, params.with_temperature_at(TemperatureAt::AfterCut))?, [0]); // .665
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TemperatureAt {
    /// Temperature first, then the cuts.
    #[default]
    BeforeCut,
    /// The cuts at temperature 1, then the temperature over the survivors. The retained mass is
    /// then the mass at temperature 1, where the cut was made.
    AfterCut,
}

/// How a row is turned into a token. `Default` draws from the plain softmax.
///
/// ```
/// use topmass::Params;
/// let params = Params::default().with_temperature(0.8).with_top_p(0.95).with_top_k(40);
/// assert_eq!((params.top_k, params.min_p), (40, 0.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Params {
    /// Divides the logits. `<= 0` is greedy: the lowest index of the maximum, no randomness. A tiny
    /// one, 1e-30 say, keeps all tokens tied at the maximum and draws among them, as `f64` would.
    pub temperature: f32,
    /// Nucleus: keep a token iff the mass strictly above it is below `top_p`. `>= 1` is off,
    /// `<= 0` keeps the argmax and its ties. `f64` because `0.8f32` is not `0.8`, and that moves
    /// the set at a tie with the boundary.
    pub top_p: f64,
    /// Keep the `top_k` largest logits (and ties, see [`Ties`]). 0 is off.
    pub top_k: u32,
    /// Keep tokens at least `min_p` times as likely as the most likely one. 0 is off.
    pub min_p: f64,
    /// Ties at a cut-off.
    pub ties: Ties,
    /// What `top_p` is a share of when top-k binds.
    pub mass_base: MassBase,
    /// Temperature before or after the cuts.
    pub temperature_at: TemperatureAt,
    /// Whether `retained_mass` is to be known to about 1e-13, for another reading of the row.
    /// Otherwise [`mass_error`](crate::Draw::mass_error) is at most 2e-5. Changes nothing else in
    /// the result, [`probability_error`](crate::Draw::probability_error) included.
    pub exact_mass: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            ties: Ties::Together,
            mass_base: MassBase::FullRow,
            temperature_at: TemperatureAt::BeforeCut,
            exact_mass: false,
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $field:ident: $ty:ty = $example:literal;)*) => {
        impl Params {
            $(
                $(#[$doc])*
                ///
                /// ```
                /// # use topmass::*;
                #[doc = concat!("let params = Params::default().", stringify!($name), "(", $example, ");")]
                #[doc = concat!("assert_eq!(params.", stringify!($field), ", ", $example, ");")]
                /// ```
                #[must_use]
                pub fn $name(self, $field: $ty) -> Self {
                    Params { $field, ..self }
                }
            )*
        }
    };
}

setters! {
    /// Sets the temperature; `<= 0` is greedy.
    with_temperature: temperature: f32 = "0.7";
    /// Sets the nucleus mass; `>= 1` is off.
    with_top_p: top_p: f64 = "0.9";
    /// Sets the number of tokens that survive; 0 is off.
    with_top_k: top_k: u32 = "40";
    /// Sets the least probability relative to the most likely token's; 0 is off.
    with_min_p: min_p: f64 = "0.05";
    /// Sets what happens to ties at a cut-off.
    with_ties: ties: Ties = "Ties::LowestIndex";
    /// Sets what `top_p` is a share of when top-k binds.
    with_mass_base: mass_base: MassBase = "MassBase::TopK";
    /// Sets whether the cuts see the temperature.
    with_temperature_at: temperature_at: TemperatureAt = "TemperatureAt::AfterCut";
    /// Sets whether the retained mass is measured in `f64`.
    with_exact_mass: exact_mass: bool = "true";
}

/// The rules of other engines, read in their sources. An engine whose rule is reproduced here need
/// not be reproducible itself: what it leaves to chance is said with each.
impl Params {
    /// Hugging Face Transformers: temperature, then top-k, then top-p, then min-p.
    ///
    /// `TopKLogitsWarper` drops what is below the `k`-th largest score, so ties at it stay
    /// ([`Ties::Together`]); `TopPLogitsWarper` takes the softmax of what top-k left
    /// ([`MassBase::TopK`]) and drops the lower tail while its sum is at most `1 - top_p`, which is
    /// the rule of this crate; `MinPLogitsWarper` keeps `P_i >= min_p * P_max`. All see the scores
    /// after `TemperatureLogitsWarper` ([`TemperatureAt::BeforeCut`]). In `generation/utils.py` top-k
    /// is 50 unless it is set.
    ///
    /// Not reproducible there: which of the tokens tied at top-p's boundary stay (`torch.sort`
    /// without `stable=True`; here all do), and the running sum, in the type of the scores.
    ///
    /// Source: `src/transformers/generation/logits_process.py`, `generation/utils.py`
    /// (`_get_logits_processor`).
    ///
    /// ```
    /// use topmass::{MassBase, Params};
    /// let params = Params::hugging_face(0.7, 50, 0.9, 0.0);
    /// assert_eq!((params.top_k, params.mass_base), (50, MassBase::TopK));
    /// ```
    #[must_use]
    pub fn hugging_face(temperature: f32, top_k: u32, top_p: f64, min_p: f64) -> Params {
        Params {
            temperature,
            top_k,
            top_p,
            min_p,
            ties: Ties::Together,
            mass_base: MassBase::TopK,
            temperature_at: TemperatureAt::BeforeCut,
            exact_mass: false,
        }
    }

    /// llama.cpp with its default chain: top-k, then top-p, then min-p, and the temperature last
    /// ([`TemperatureAt::AfterCut`]). Of the samplers between them (penalties, DRY, top-n-sigma,
    /// typical-p, XTC) all are off by default or not the business of one row.
    ///
    /// `llama_sampler_top_k_impl` keeps exactly `k` of a partial sort ([`Ties::LowestIndex`]);
    /// `llama_sampler_top_p_apply` takes the softmax of those ([`MassBase::TopK`]) and keeps the
    /// first tokens up to the one at which the sum reaches `top_p`; `llama_sampler_min_p_apply`
    /// keeps logits from `max + ln(min_p)` up; `llama_sampler_temp_impl` then divides what is left,
    /// or, at `temperature <= 0`, takes the first maximum.
    ///
    /// Not reproducible there: which of tied tokens come first (the sort is not stable, and takes
    /// buckets for large `k`), and the `float` sum, in the order of that sort. `top_p` and `min_p`
    /// are `float` there: `0.9f32 as f64` says the same.
    ///
    /// Source: `src/llama-sampling.cpp` (now `src/llama-sampler.cpp`), `common/common.h`
    /// (`common_params_sampling::samplers`).
    ///
    /// ```
    /// use topmass::{Params, TemperatureAt, Ties};
    /// let params = Params::llama_cpp(0.8, 40, 0.95, 0.05);
    /// assert_eq!((params.ties, params.temperature_at), (Ties::LowestIndex, TemperatureAt::AfterCut));
    /// ```
    #[must_use]
    pub fn llama_cpp(temperature: f32, top_k: u32, top_p: f64, min_p: f64) -> Params {
        Params {
            temperature,
            top_k,
            top_p,
            min_p,
            ties: Ties::LowestIndex,
            mass_base: MassBase::TopK,
            temperature_at: TemperatureAt::AfterCut,
            exact_mass: false,
        }
    }

    /// vLLM (its engine V1): temperature, then min-p, then top-k and top-p together.
    ///
    /// `Sampler.sample` divides by the temperature first ([`TemperatureAt::BeforeCut`]; below 1e-5
    /// it is greedy). `apply_top_k_top_p` drops logits below the `k`-th largest, so ties at it stay
    /// ([`Ties::Together`]), and of the softmax of the rest ([`MassBase::TopK`]) the lower tail while
    /// its sum is at most `1 - top_p`. `MinPLogitsProcessor` keeps `P_i >= min_p * P_max`.
    ///
    /// One difference: min-p goes first there, so that with both, `top_p` is a share of what min-p
    /// and top-k left. Here min-p has no say in the mass.
    ///
    /// Not reproducible there: which of the tokens tied at top-p's boundary stay (an unstable sort,
    /// or the pivot of a Triton kernel; here all do), the `f32` sums, and where FlashInfer is
    /// installed the set itself, which its rejection sampling never forms.
    ///
    /// Source: `vllm/v1/sample/sampler.py`, `vllm/v1/sample/ops/topk_topp_sampler.py`,
    /// `vllm/v1/sample/logits_processor/builtin.py`.
    ///
    /// ```
    /// use topmass::{Params, Ties};
    /// let params = Params::vllm(1.0, 20, 0.95, 0.0);
    /// assert_eq!((params.top_p, params.ties), (0.95, Ties::Together));
    /// ```
    #[must_use]
    pub fn vllm(temperature: f32, top_k: u32, top_p: f64, min_p: f64) -> Params {
        Params {
            temperature,
            top_k,
            top_p,
            min_p,
            ties: Ties::Together,
            mass_base: MassBase::TopK,
            temperature_at: TemperatureAt::BeforeCut,
            exact_mass: false,
        }
    }

    /// candle's `LogitsProcessor` with `Sampling::TopKThenTopP` (and, with `top_k = 0` or
    /// `top_p = 1`, its other variants). It has no min-p.
    ///
    /// The softmax at the temperature ([`TemperatureAt::BeforeCut`]) is not renormalised after
    /// top-k: `sample_topk_topp` sums the row's own probabilities until they reach `top_p`
    /// ([`MassBase::FullRow`]). It keeps exactly `k` tokens and, of a stable sort, exactly those up
    /// to the one that reaches `top_p` ([`Ties::LowestIndex`]). `top_p <= 0` is off there, and so
    /// it is here. `LogitsProcessor::new` takes temperatures below 1e-7 for greedy.
    ///
    /// Not reproducible there: which of the tokens tied at the `k`-th stay
    /// (`select_nth_unstable_by`), and the `f32` sum. `Sampling::ArgMax` took the last of equal
    /// maxima in some versions; here it is the first.
    ///
    /// Source: `candle-transformers/src/generation/mod.rs`.
    ///
    /// ```
    /// use topmass::{MassBase, Params};
    /// let params = Params::candle(0.8, 40, 0.95);
    /// assert_eq!((params.mass_base, params.min_p), (MassBase::FullRow, 0.0));
    /// ```
    #[must_use]
    pub fn candle(temperature: f32, top_k: u32, top_p: f64) -> Params {
        Params {
            temperature,
            top_k,
            top_p: if top_p <= 0.0 { 1.0 } else { top_p },
            min_p: 0.0,
            ties: Ties::LowestIndex,
            mass_base: MassBase::FullRow,
            temperature_at: TemperatureAt::BeforeCut,
            exact_mass: false,
        }
    }
}

impl Params {
    /// Checks what a row cannot change.
    ///
    /// # Errors
    /// [`Error::InvalidParam`] where a number is NaN, or `min_p` lies outside `[0, 1]`.
    ///
    /// ```
    /// use topmass::{Error, Params};
    /// let bad = Params::default().with_min_p(-0.5).validate();
    /// assert_eq!(bad, Err(Error::InvalidParam { name: "min_p", value: -0.5 }));
    /// ```
    pub fn validate(&self) -> Result<(), Error> {
        let invalid = |name, value| Err(Error::InvalidParam { name, value });
        if self.temperature.is_nan() {
            return invalid("temperature", f64::from(self.temperature));
        }
        if self.top_p.is_nan() {
            return invalid("top_p", self.top_p);
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return invalid("min_p", self.min_p);
        }
        Ok(())
    }

    /// The temperature at which the cuts look at the row.
    pub(crate) fn cut_temperature(&self) -> f32 {
        match self.temperature_at {
            TemperatureAt::BeforeCut => self.temperature,
            TemperatureAt::AfterCut => 1.0,
        }
    }

    /// Top-k for a row of `len` logits, where it can bind.
    pub(crate) fn top_k_of(&self, len: usize) -> Option<usize> {
        let k = self.top_k as usize;
        (k > 0 && k < len).then_some(k)
    }
}
