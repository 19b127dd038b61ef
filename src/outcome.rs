//! What a step gives back.

/// One drawn token, with the figures worth logging.
///
/// ```
/// use topmass::{Params, sample_fused};
/// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
/// let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
/// let row = [0.82f32, 0.09, 0.04, 0.02, 0.015, 0.01, 0.005].map(f32::ln);
/// let draw = sample_fused(&row, Params::default().with_top_p(0.9), &mut rng)?;
/// assert!(draw.token < 2 && draw.kept == 2);
/// assert!((draw.retained_mass - 0.91).abs() < draw.mass_error + 1e-7); // the logits are f32
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Draw {
    /// The token's index in the row.
    pub token: u32,
    /// Its probability among the kept tokens (they sum to 1), at the temperature drawn with.
    pub probability: f64,
    /// Proved absolute bound on `probability`: a few units in the last place where the kept
    /// tokens were weighed in `f64`, wider where a draw over the whole row was decided in `f32`.
    pub probability_error: f64,
    /// How many tokens were kept (`N`).
    pub kept: u32,
    /// The share of the full softmax that the kept tokens hold (`M`): the figure to log.
    pub retained_mass: f64,
    /// Proved absolute bound on `retained_mass`: at most `7.5e-5 * M * (1 - M) + 1e-6`, and so
    /// 2e-5, as only what is not kept was weighed approximately. About 1e-13 with
    /// [`exact_mass`](crate::Params::exact_mass), for rows of up to 1,024 tokens and where more
    /// than 2,048 are kept.
    pub mass_error: f64,
}

impl Draw {
    /// Surprise of the token in bits, `-log2(probability)`, within the kept set.
    ///
    /// ```
    /// use topmass::{Params, reference};
    /// use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    /// let draw = reference::sample(&[0.0, 0.0, 0.0, 0.0], Params::default(), &mut rng)?;
    /// assert_eq!(draw.surprise_bits(), 2.0);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn surprise_bits(&self) -> f64 {
        -libm::log2(self.probability) + 0.0
    }

    /// The token's probability in the full softmax, `probability * retained_mass`.
    ///
    /// ```
    /// # use topmass::{Params, reference};
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    /// let two_of_four = Params::default().with_top_k(2);
    /// let draw = reference::sample(&[1.0, 0.0, 0.0, 1.0], two_of_four, &mut rng)?;
    /// assert_eq!(draw.probability, 0.5);
    /// assert!((draw.full_probability() - 0.5 / (1.0 + (-1.0f64).exp())).abs() < 1e-12);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn full_probability(&self) -> f64 {
        self.probability * self.retained_mass
    }

    /// `ln(1/M)` in nats: the Kullback-Leibler divergence of the renormalised kept set from the
    /// full softmax.
    ///
    /// ```
    /// # use topmass::{Params, reference};
    /// # use rand_xoshiro::{Xoshiro256PlusPlus, rand_core::SeedableRng};
    /// # let mut rng = Xoshiro256PlusPlus::seed_from_u64(1);
    /// let draw = reference::sample(&[1.0, 0.0], Params::default().with_top_k(1), &mut rng)?;
    /// assert!((draw.divergence() - (1.0 + (-1.0f64).exp()).ln()).abs() < 1e-12);
    /// # Ok::<(), topmass::Error>(())
    /// ```
    #[must_use]
    pub fn divergence(&self) -> f64 {
        -libm::log(self.retained_mass) + 0.0
    }
}

/// What a filter kept.
///
/// ```
/// use topmass::{Params, filter_fused};
/// let kept = filter_fused(&[7.0; 3], Params::default().with_top_p(0.5), &mut [0.0; 3])?;
/// assert_eq!((kept.kept, kept.retained_mass), (3, 1.0)); // ties share a fate
/// # Ok::<(), topmass::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Kept {
    /// How many tokens were kept (`N`).
    pub kept: u32,
    /// The share of the full softmax that they hold (`M`).
    pub retained_mass: f64,
    /// Proved absolute bound on `retained_mass`, see [`Draw::mass_error`].
    pub mass_error: f64,
}
