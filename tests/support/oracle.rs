//! The oracle at speed, and the comparison of the fast path with it.
//!
//! The same answers as `topmass::reference` (which [`Expected::agrees_with_reference`] checks on a
//! subset), with one sort a row and prefix sums, so that thirty settings cost little more than one.
//! It also knows which questions `f64` cannot answer: it answers each one twice, with the mass
//! compared moved down and up by [`BLUR`]; where the two differ the question is left out and
//! counted, and only the range is checked.

use topmass::{Draw, Kept, MassBase, Params, Sampler, TemperatureAt, Ties, reference};

use super::rows::{Source, below, pick, uniform};
use super::{LAST_U, Scripted, bits_of, draw_at, filter};

const BLUR: f64 = 1e-12;

/// Bounds that are promised must also be worth something.
const WORST_MASS_ERROR: f64 = 2e-5;
const WORST_EXACT_MASS_ERROR: f64 = 1e-12;
const WORST_PROBABILITY_ERROR: f64 = 1e-4;

/// Where more tokens are kept, the mass is promised to be exact.
const EXACT_FROM: u32 = 2_048;

/// What the oracle itself may be off by, relatively: rounded weights, summed in twice the precision,
/// and a rounded quotient. Less than the bounds that it is to check.
const ORACLE_ERROR: f64 = 4.0 * f64::EPSILON;

/// A row and its sorted order.
pub struct Row<'a> {
    logits: &'a [f32],
    max: f32,
    /// Unmasked tokens, most likely first, ties by index.
    order: Vec<u32>,
}

impl<'a> Row<'a> {
    pub fn new(logits: &'a [f32]) -> Self {
        let x = |i: u32| logits[i as usize];
        let mut order: Vec<u32> =
            (0..logits.len() as u32).filter(|&i| x(i) > f32::NEG_INFINITY).collect();
        order.sort_unstable_by(|&a, &b| x(b).partial_cmp(&x(a)).expect("no NaN").then(a.cmp(&b)));
        Row { logits, max: x(order[0]), order }
    }

    fn weight(&self, i: u32, temperature: f64) -> f64 {
        ((f64::from(self.logits[i as usize]) - f64::from(self.max)) / temperature).exp()
    }
}

/// A row's masses at the temperature of the cuts.
pub struct Masses<'a> {
    row: &'a Row<'a>,
    temperature: f64,
    /// `above[n]`: the mass of the `n` most likely.
    above: Vec<f64>,
}

impl<'a> Masses<'a> {
    pub fn new(row: &'a Row<'a>, params: Params) -> Self {
        let temperature = cut_temperature(params);
        let above = prefix_sums(row.order.iter().map(|&i| row.weight(i, temperature)));
        Masses { row, temperature, above }
    }

    fn total(&self) -> f64 {
        self.above[self.row.order.len()]
    }

    /// The end of the run of ties that reaches position `n - 1`, or `n` where ties part.
    fn with_ties(&self, n: usize, ties: Ties) -> usize {
        let order = &self.row.order;
        let x = |position: usize| self.row.logits[order[position] as usize];
        let mut end = n;
        while ties == Ties::Together && end > 0 && end < order.len() && x(end) == x(end - 1) {
            end += 1;
        }
        end
    }

    /// How many are kept, with the masses compared moved by `blur`.
    fn count(&self, params: Params, blur: f64) -> usize {
        let len = self.row.order.len();
        let mut n_k = len;
        if params.top_k > 0 && (params.top_k as usize) < len {
            n_k = self.with_ties(params.top_k as usize, params.ties);
        }
        let mut n_p = len;
        if params.top_p < 1.0 {
            let base = match params.mass_base {
                MassBase::FullRow => self.total(),
                MassBase::TopK => self.above[n_k],
            };
            let target = params.top_p * base + blur * self.total();
            let reached = self.above[..len].partition_point(|&mass| mass < target);
            n_p = self.with_ties(reached.max(1), params.ties);
        }
        let mut n_min = len;
        if params.min_p > 0.0 {
            let least = params.min_p * (1.0 - blur);
            let passes = |&i: &u32| self.row.weight(i, self.temperature) >= least;
            n_min = self.row.order.partition_point(passes).max(self.with_ties(1, Ties::Together));
        }
        n_k.min(n_p).min(n_min)
    }

    pub fn expect(&self, params: Params) -> Expected {
        assert_eq!(cut_temperature(params), self.temperature);
        if params.temperature <= 0.0 {
            let token = self.row.order[0];
            return Expected::new(params, (1, 1), vec![token], vec![1.0], 1.0);
        }
        let n = self.count(params, 0.0);
        let mut kept = self.row.order[..n].to_vec();
        kept.sort_unstable();
        let temperature = f64::from(params.temperature);
        let weights = kept.iter().map(|&i| self.row.weight(i, temperature)).collect();
        let range = (self.count(params, -BLUR), self.count(params, BLUR));
        Expected::new(params, range, kept, weights, self.above[n] / self.total())
    }

    /// A `top_p` that a coarse sum cannot decide: at, or a little beside, the mass above some token.
    pub fn awkward_top_p(&self, rng: &mut Source, params: Params) -> f64 {
        let base = match params.mass_base {
            MassBase::FullRow => self.total(),
            MassBase::TopK => self.above[self.count(params.with_top_p(1.0).with_min_p(0.0), 0.0)],
        };
        let n = below(rng, self.row.order.len());
        let x = |i: u32| self.row.logits[i as usize];
        let first_tie = self.row.order.partition_point(|&i| x(i) > x(self.row.order[n]));
        self.above[pick(rng, &[n, first_tie])] / base + nudge(rng)
    }

    /// A `min_p` at, or a little beside, some token's.
    pub fn awkward_min_p(&self, rng: &mut Source) -> f64 {
        let i = self.row.order[below(rng, self.row.order.len().min(50))];
        (self.row.weight(i, self.temperature) * (1.0 + nudge(rng))).clamp(0.0, 1.0)
    }
}

/// What the oracle says of a row at some parameters.
pub struct Expected {
    params: Params,
    /// The least and the largest count of kept tokens that `f64` cannot rule out.
    range: (usize, usize),
    /// The tokens kept, in index order, and their weights.
    kept: Vec<u32>,
    weights: Vec<f64>,
    /// `sums[n]`: the weight of the first `n` of them.
    sums: Vec<f64>,
    mass: f64,
}

impl Expected {
    fn new(
        params: Params,
        range: (usize, usize),
        kept: Vec<u32>,
        weights: Vec<f64>,
        mass: f64,
    ) -> Self {
        let sums = prefix_sums(weights.iter().copied());
        Expected { params, range, kept, weights, sums, mass }
    }

    pub fn of(logits: &[f32], params: Params) -> Self {
        Masses::new(&Row::new(logits), params).expect(params)
    }

    pub fn decidable(&self) -> bool {
        self.range.0 == self.range.1
    }

    fn total(&self) -> f64 {
        self.sums[self.kept.len()]
    }

    fn probability(&self, position: usize) -> f64 {
        self.weights[position] / self.total()
    }

    /// The position of the token drawn where the sum must exceed `target`.
    fn position(&self, target: f64) -> usize {
        let last = self.weights.iter().rposition(|&w| w > 0.0).expect("the argmax is kept");
        (self.sums.partition_point(|&sum| sum <= target) - 1).min(last)
    }

    /// Positions of the first and the last token that may be drawn at `u`: one unless a partial
    /// sum comes within [`BLUR`].
    fn positions(&self, u: f64) -> (usize, usize) {
        let blur = BLUR * self.total();
        let target = u * self.total();
        (self.position((target - blur).max(0.0)), self.position(target + blur))
    }

    /// Draws worth comparing: the ends, the middle, anywhere, and beside partial sums.
    pub fn draws(&self, rng: &mut Source) -> Vec<f64> {
        let mut us = vec![0.0, 1.0 / (1u64 << 53) as f64, 0.5, uniform(rng), uniform(rng), LAST_U];
        for _ in 0..3 {
            let sum = self.sums[below(rng, self.sums.len())];
            us.push((sum / self.total() + nudge(rng)).clamp(0.0, LAST_U));
        }
        us
    }

    /// The literal algorithm says the same.
    pub fn agrees_with_reference(&self, logits: &[f32], us: &[f64]) {
        let kept = reference::kept_set(logits, self.params).expect("a good row");
        if self.decidable() {
            assert!(
                kept.iter().map(|&i| i as u32).eq(self.kept.iter().copied()),
                "{:?}",
                self.params
            );
            let probs = reference::filter(logits, self.params).expect("a good row");
            for (n, &i) in self.kept.iter().enumerate() {
                let difference = (probs[i as usize] - self.probability(n)).abs();
                assert!(difference <= 1e-12, "token {i}: off by {difference:e}");
            }
        }
        for &u in us {
            let mut rng = Scripted::new(&[bits_of(u)]);
            let draw = reference::sample(logits, self.params, &mut rng).expect("a good row");
            let (first, last) = self.positions(u);
            if self.decidable() {
                assert!(
                    (self.kept[first]..=self.kept[last]).contains(&draw.token),
                    "u = {u}: {draw:?}"
                );
                assert!((draw.retained_mass - self.mass).abs() <= 1e-12, "{draw:?}");
            }
        }
    }
}

/// What a comparison found.
#[derive(Default)]
pub struct Tally {
    /// Said in front of every mismatch: how to make the row again.
    pub context: String,
    rows: usize,
    draws: usize,
    excluded_sets: usize,
    excluded_draws: usize,
    mismatches: Vec<String>,
}

impl Tally {
    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.mismatches.push(format!("{}: {}", self.context, what()));
        }
    }

    /// The share of sets and draws that the oracle could not decide.
    pub fn excluded_share(&self) -> f64 {
        (self.excluded_sets + self.excluded_draws) as f64 / (self.rows + self.draws) as f64
    }

    /// Prints the result and fails on any mismatch, or where nothing was compared.
    pub fn finish(self, name: &str) {
        println!(
            "{name}: {} rows, {} draws, {} mismatches, {} sets and {} draws excluded",
            self.rows,
            self.draws,
            self.mismatches.len(),
            self.excluded_sets,
            self.excluded_draws
        );
        assert!(self.draws > self.excluded_draws, "nothing was compared");
        self.finish_quietly();
    }

    /// Fails on any mismatch.
    pub fn finish_quietly(self) {
        let shown: Vec<&str> = self.mismatches.iter().take(20).map(String::as_str).collect();
        assert!(shown.is_empty(), "{} mismatches:\n{}", self.mismatches.len(), shown.join("\n"));
    }

    /// Compares every sampler with the oracle, and with the first one bit for bit.
    pub fn compare(
        &mut self,
        samplers: &mut [Sampler],
        logits: &[f32],
        expected: &Expected,
        us: &[f64],
    ) {
        self.rows += 1;
        self.excluded_sets += usize::from(!expected.decidable());
        let mut first: Option<(Vec<Draw>, Vec<f32>, Kept)> = None;
        for sampler in samplers {
            let (probs, kept) = filter(sampler, logits, expected.params).expect("a good row");
            self.check_filter(expected, &probs, kept, sampler);
            let mut draws = Vec::with_capacity(us.len());
            for &u in us {
                let draw = draw_at(sampler, logits, expected.params, u).expect("a good row");
                self.check_draw(expected, u, draw, sampler);
                draws.push(draw);
            }
            match &first {
                None => first = Some((draws, probs, kept)),
                Some((draws0, probs0, kept0)) => {
                    let same = draws0.iter().zip(&draws).all(|(a, b)| draw_bits(a) == draw_bits(b));
                    self.expect(same, || {
                        format!("{:?} draws other bits: {draws:?}, {draws0:?}", sampler.tier())
                    });
                    let same = probs0.iter().zip(&probs).all(|(a, b)| a.to_bits() == b.to_bits());
                    self.expect(same && *kept0 == kept, || {
                        format!("{:?} filters to other bits", sampler.tier())
                    });
                }
            }
        }
    }

    fn check_mass(&mut self, expected: &Expected, (kept, mass, error): (u32, f64, f64), by: &str) {
        let (least, most) = expected.range;
        let counted = (least..=most).contains(&(kept as usize));
        let params = expected.params;
        self.expect(counted, || format!("{by}: {kept} kept, not {least}..={most}, {params:?}"));
        let exact = params.exact_mass || kept > EXACT_FROM;
        let worst = if exact { WORST_EXACT_MASS_ERROR } else { WORST_MASS_ERROR };
        self.expect((0.0..=worst).contains(&error), || format!("{by}: M within {error}"));
        if kept as usize == expected.kept.len() {
            let off = (mass - expected.mass).abs();
            self.expect(off <= error + ORACLE_ERROR, || {
                format!("{by}: M = {mass} within {error} is off by {off:e}, {params:?}")
            });
        }
    }

    fn check_filter(&mut self, expected: &Expected, probs: &[f32], kept: Kept, sampler: &Sampler) {
        let by = format!("filter on {:?}", sampler.tier());
        self.check_mass(expected, (kept.kept, kept.retained_mass, kept.mass_error), &by);
        if !expected.decidable() {
            return;
        }
        let params = expected.params;
        let mut truth = vec![None; probs.len()];
        for (n, &i) in expected.kept.iter().enumerate() {
            truth[i as usize] = Some(expected.probability(n));
        }
        for (i, (&found, truth)) in probs.iter().zip(truth).enumerate() {
            let holds = match truth {
                // A kept token's probability may underflow; a dropped one's is zero, not -0.
                Some(p) => (f64::from(found) - p).abs() <= 2e-7 * p + f64::from(f32::MIN_POSITIVE),
                None => found.to_bits() == 0,
            };
            if !holds {
                self.expect(false, || {
                    format!("{by}: probs[{i}] = {found:e} for {truth:?}, {params:?}")
                });
                break;
            }
        }
    }

    fn check_draw(&mut self, expected: &Expected, u: f64, draw: Draw, sampler: &Sampler) {
        self.draws += 1;
        let by = format!("u = {u:?} on {:?}", sampler.tier());
        self.check_mass(expected, (draw.kept, draw.retained_mass, draw.mass_error), &by);
        if !expected.decidable() {
            self.excluded_draws += 1;
            return;
        }
        let params = expected.params;
        let (first, last) = expected.positions(u);
        self.excluded_draws += usize::from(first != last);
        let Ok(position) = expected.kept.binary_search(&draw.token) else {
            return self
                .expect(false, || format!("{by}: drew a dropped token, {draw:?}, {params:?}"));
        };
        self.expect((first..=last).contains(&position), || {
            let (a, b) = (expected.kept[first], expected.kept[last]);
            format!("{by}: drew {}, not {a}..={b}, {params:?}", draw.token)
        });
        let p = expected.probability(position);
        let off = (draw.probability - p).abs();
        let bounded =
            (0.0..=WORST_PROBABILITY_ERROR * p + 1e-300).contains(&draw.probability_error);
        self.expect(
            bounded && draw.probability > 0.0 && off <= draw.probability_error + ORACLE_ERROR * p,
            || format!("{by}: probability off by {off:e} from {p:e}, {draw:?}, {params:?}"),
        );
    }
}

/// Compares every tier with the oracle on one row and returns the tally.
pub fn compare_one(samplers: &mut [Sampler], logits: &[f32], params: Params, tally: &mut Tally) {
    let expected = Expected::of(logits, params);
    let mut rng = super::rows::source(logits.len() as u64);
    let us = expected.draws(&mut rng);
    tally.compare(samplers, logits, &expected, &us);
}

/// Every bit of a draw.
pub fn draw_bits(draw: &Draw) -> [u64; 6] {
    [
        u64::from(draw.token),
        draw.probability.to_bits(),
        draw.probability_error.to_bits(),
        u64::from(draw.kept),
        draw.retained_mass.to_bits(),
        draw.mass_error.to_bits(),
    ]
}

fn cut_temperature(params: Params) -> f64 {
    match params.temperature_at {
        TemperatureAt::BeforeCut => f64::from(params.temperature),
        TemperatureAt::AfterCut => 1.0,
    }
}

/// Nothing, or a little more than [`BLUR`], up to what an `f32` sum loses.
fn nudge(rng: &mut Source) -> f64 {
    let size = pick(rng, &[0.0, 2e-12, 5e-12, 1e-10, 1e-8, 1e-6]);
    if uniform(rng) < 0.5 { size } else { -size }
}

/// `[0, a, a + b, ..]`, each to the last bit or so: twice the precision inside (Knuth's TwoSum).
fn prefix_sums(terms: impl Iterator<Item = f64>) -> Vec<f64> {
    let (mut high, mut low) = (0.0f64, 0.0f64);
    let mut sums = vec![0.0];
    for x in terms {
        let sum = high + x;
        let rounded = sum - high;
        low += (high - (sum - rounded)) + (x - rounded);
        high = sum;
        sums.push(high + low);
    }
    sums
}
