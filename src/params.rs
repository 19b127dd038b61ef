//! Temperature, top-p, top-k, min-p, and the choices that samplers make silently, named.

use crate::Error;

/// What happens to tokens whose logit equals a cut-off.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MassBase {
    /// Of the whole row's: both cuts look at the same probabilities and the tighter one wins.
    #[default]
    FullRow,
    /// Of the top-k set's, renormalised first.
    TopK,
}

/// Whether the cuts see the temperature.
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
pub struct Params {
    /// Divides the logits. `<= 0` is greedy: the lowest index of the maximum, no randomness.
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
