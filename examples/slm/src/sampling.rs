//! One token from one row, by topmass or by its scalar reference.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;
use topmass::{Draw, Mirostat, MirostatDraw, Params, Sampler, reference};

/// How tokens are drawn.
#[derive(Clone, Debug)]
pub enum Rule {
    /// Top-p, top-k, min-p and temperature.
    Cut(Params),
    /// Mirostat, and its temperature.
    Mirostat(Mirostat, f32),
}

/// One drawn token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// The token's id.
    pub token: u32,
    /// Its probability in the whole softmax, at the temperature used.
    pub probability: f64,
    /// `-log2` of that.
    pub surprise_bits: f64,
    /// How many tokens were kept.
    pub kept: u32,
    /// The share of the whole softmax that they hold.
    pub retained_mass: f64,
    /// Where Mirostat's controller stands after this token.
    pub mu: Option<f64>,
}

impl From<Draw> for Drawn {
    fn from(draw: Draw) -> Self {
        let probability = draw.full_probability();
        Drawn {
            token: draw.token,
            probability,
            surprise_bits: -probability.log2() + 0.0, // no -0
            kept: draw.kept,
            retained_mass: draw.retained_mass,
            mu: None,
        }
    }
}

impl From<MirostatDraw> for Drawn {
    fn from(draw: MirostatDraw) -> Self {
        // Its surprise is that of the whole softmax (`SurpriseBase::Full`), its probability that
        // among the kept: their ratio is the mass.
        let probability = (-draw.surprise_bits).exp2();
        Drawn {
            token: draw.token,
            probability,
            surprise_bits: draw.surprise_bits,
            kept: draw.kept,
            retained_mass: (probability / draw.probability).min(1.0),
            mu: Some(draw.mu),
        }
    }
}

/// Draws the tokens of one text.
pub struct TokenSampler {
    rule: Rule,
    rng: Xoshiro256PlusPlus,
    sampler: Sampler,
}

impl TokenSampler {
    /// The same rule, seed and logits give the same tokens, whatever the sampler's tier.
    #[must_use]
    pub fn new(rule: Rule, seed: u64, sampler: Sampler) -> Self {
        TokenSampler { rule, rng: Xoshiro256PlusPlus::seed_from_u64(seed), sampler }
    }

    /// Draws with topmass.
    ///
    /// # Errors
    /// Where the row has a NaN or no finite logit.
    pub fn draw(&mut self, row: &[f32]) -> Result<Drawn, topmass::Error> {
        match &mut self.rule {
            Rule::Cut(params) => self.sampler.sample(row, *params, &mut self.rng).map(Drawn::from),
            Rule::Mirostat(mirostat, temperature) => mirostat
                .sample_with(&mut self.sampler, row, *temperature, &mut self.rng)
                .map(Drawn::from),
        }
    }

    /// Draws the same token by the literal algorithm: softmax in `f64`, full sort, prefix sum.
    ///
    /// # Errors
    /// As [`draw`](Self::draw).
    pub fn draw_literally(&mut self, row: &[f32]) -> Result<Drawn, topmass::Error> {
        match &mut self.rule {
            Rule::Cut(params) => reference::sample(row, *params, &mut self.rng).map(Drawn::from),
            Rule::Mirostat(mirostat, temperature) => {
                reference::mirostat(mirostat, row, *temperature, &mut self.rng).map(Drawn::from)
            }
        }
    }
}
