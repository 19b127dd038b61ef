//! Draws in number: they follow the distribution they are drawn from, each is independent of the
//! others, and every token kept can be drawn.
//!
//! A verdict that cannot fail says nothing. So each is passed on topmass and on a literal sampler
//! with the faults that samplers have in the field, and every fault has to be caught.
//!
//! All seeds are fixed, and with them the verdicts. The best tier stands for all of them: that
//! each draws the same bits is for other tests to show (`golden`, `oracle`).

mod support;

use std::array;
use std::f64::consts::PI;

use rand::Rng;
use support::rows::{Source, shuffle, source};
use support::{LAST_U, Scripted, bits_of};
use topmass::{Error, Params, Sampler, Ties, reference, sample_batch};

/// What goes wrong in a sampler.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// `u` has 24 bits, like a uniform `f32`.
    Bits24,
    /// `u` has 32 bits.
    Bits32,
    /// `u` lies in `(0, 1]`.
    UpToOne,
    /// The first token whose sum reaches the threshold, where it has to exceed it.
    AtLeast,
    /// Probabilities whose sum is short of 1 by rounding: no token is left for the largest `u`.
    IndexV,
    /// The running sum is an `f32`.
    F32Cdf,
    /// `u` is a share of the whole row; what was cut away goes to the last token.
    NotRenormalised,
    /// The token after the one that is drawn.
    OffByOne,
    /// Summed up from the most likely token on, not by index.
    SortedOrder,
    /// The nucleus ends before the token that carries the sum across `p`.
    DropsCrossing,
    /// The nucleus ends one token later.
    KeepsOneMore,
    /// Ties are cut by their index.
    SplitsTies,
    /// Cut at the temperature, and drawn without it.
    ForgetsTemperature,
    /// A token takes two `next_u64`.
    TakesTwo,
    /// Two tokens share each `u`.
    SameTwice,
    /// The rows of a batch share one `u`.
    SharedU,
    /// A row repeats its neighbour's `u` a step later, as if seeded with row + step.
    RowPlusStep,
}

const BATCH: usize = 8;
type Rngs = [Source; BATCH];
type Draw<'a> = Box<dyn FnMut(&mut dyn Rng) -> usize + 'a>;
type Step = Box<dyn FnMut(&mut Rngs) -> [usize; BATCH]>;

/// A sampler on trial.
#[derive(Clone, Copy)]
enum Subject {
    Topmass,
    Literal(Fault),
}

impl Subject {
    /// Draws from a row.
    fn of_row(self, row: &[f32], params: Params) -> Draw<'_> {
        match self {
            Subject::Topmass => {
                let mut sampler = Sampler::new();
                Box::new(move |rng| sampler.sample(row, params, rng).unwrap().token as usize)
            }
            Subject::Literal(fault) => {
                let mut literal = Literal::new(row, params, fault);
                Box::new(move |rng| literal.draw(rng))
            }
        }
    }

    /// Draws from a batch in which every row is the same.
    fn of_batch(self, row: &[f32], params: Params) -> Step {
        match self {
            Subject::Topmass => {
                let (rows, vocab) = (row.repeat(BATCH), row.len());
                Box::new(move |rngs| {
                    let mut draws = [const { Err(Error::EmptyRow) }; BATCH];
                    sample_batch(&rows, vocab, &[params; BATCH], rngs, &mut draws).unwrap();
                    draws.map(|draw| draw.unwrap().token as usize)
                })
            }
            Subject::Literal(fault) => {
                let mut rows: [_; BATCH] = array::from_fn(|_| Literal::new(row, params, fault));
                let mut words = [0; BATCH];
                Box::new(move |rngs| match fault {
                    Fault::SharedU => {
                        let word = rngs[0].next_u64();
                        array::from_fn(|r| rows[r].token(word))
                    }
                    Fault::RowPlusStep => {
                        words.rotate_left(1);
                        words[BATCH - 1] = rngs[0].next_u64();
                        array::from_fn(|r| rows[r].token(words[r]))
                    }
                    _ => array::from_fn(|r| rows[r].draw(&mut rngs[r])),
                })
            }
        }
    }
}

/// The inverse of the cumulative distribution, with or without a fault.
struct Literal {
    fault: Fault,
    /// The tokens as they are summed up.
    order: Vec<usize>,
    /// The kept mass up to each, itself included.
    sums: Vec<f64>,
    total: f64,
    /// The last position that has mass.
    last: usize,
    held: Option<u64>,
}

impl Literal {
    fn new(row: &[f32], params: Params, fault: Fault) -> Self {
        let ties = if fault == Fault::SplitsTies { Ties::LowestIndex } else { params.ties };
        let mut kept = reference::kept_set(row, params.with_ties(ties)).unwrap();
        let by_index: Vec<usize> = (0..row.len()).collect();
        let mut by_logit = by_index.clone();
        by_logit.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        let (max, lowest) = (row[by_logit[0]], row[by_logit[kept.len() - 1]]);
        match fault {
            Fault::DropsCrossing if params.top_p < 1.0 && lowest < max => {
                kept.retain(|&i| row[i] > lowest);
            }
            Fault::KeepsOneMore => kept.extend(by_logit.get(kept.len())),
            _ => {}
        }

        let temperature =
            if fault == Fault::ForgetsTemperature { 1.0 } else { f64::from(params.temperature) };
        let weight = |i: usize| ((f64::from(row[i]) - f64::from(max)) / temperature).exp();
        let mut weights = vec![0.0; row.len()];
        kept.iter().for_each(|&i| weights[i] = weight(i));
        let order = if fault == Fault::SortedOrder { by_logit } else { by_index };
        let in_order = order.iter().map(|&i| weights[i]);
        let total = match fault {
            Fault::NotRenormalised => *partial_sums((0..row.len()).map(weight)).last().unwrap(),
            _ => *partial_sums(in_order.clone()).last().unwrap(),
        };
        let (sums, total) = match fault {
            Fault::IndexV => (in_order.scan(0.0, |s, w| Some(add(s, w / total))).collect(), 1.0),
            Fault::F32Cdf => {
                let sums = in_order.scan(0f32, |s, w| Some(f64::from(add(s, w as f32))));
                (sums.collect(), total)
            }
            _ => (partial_sums(in_order), total),
        };
        let last = order.iter().rposition(|&i| weights[i] > 0.0).unwrap();
        Literal { fault, order, sums, total, last, held: None }
    }

    fn draw(&mut self, rng: &mut dyn Rng) -> usize {
        let word = match (self.fault, self.held.take()) {
            (Fault::SameTwice, Some(word)) => word,
            (Fault::SameTwice, None) => *self.held.insert(rng.next_u64()),
            (Fault::TakesTwo, _) => rng.next_u64() ^ rng.next_u64(),
            _ => rng.next_u64(),
        };
        self.token(word)
    }

    fn token(&self, word: u64) -> usize {
        let u = match self.fault {
            Fault::Bits24 => (word >> 40) as f64 * f64::exp2(-24.0),
            Fault::Bits32 => (word >> 32) as f64 * f64::exp2(-32.0),
            Fault::UpToOne => ((word >> 11) + 1) as f64 * f64::exp2(-53.0),
            _ => (word >> 11) as f64 * f64::exp2(-53.0),
        };
        let threshold = u * self.total;
        let position = match self.fault {
            Fault::AtLeast => self.sums.partition_point(|&sum| sum < threshold),
            _ => self.sums.partition_point(|&sum| sum <= threshold),
        };
        match self.fault {
            Fault::IndexV => position,
            Fault::OffByOne => self.last.min(position + 1),
            _ => self.order[self.last.min(position)],
        }
    }
}

/// Adds to a running sum.
fn add<T: Copy + std::ops::AddAssign>(sum: &mut T, x: T) -> T {
    *sum += x;
    *sum
}

/// Kahan's sums: those of 129,280 equal weights would drift by half of one.
fn partial_sums(weights: impl Iterator<Item = f64>) -> Vec<f64> {
    let (mut sum, mut excess) = (0.0, 0.0);
    let next = |w: f64| {
        if w > 0.0 {
            let term = w - excess;
            let before = sum;
            sum += term;
            excess = (sum - before) - term;
        }
        sum
    };
    weights.map(next).collect()
}

/// What is asked, and in which unit it is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    /// Chi-square of the counts, in deviations.
    ChiSquare,
    /// Their total variation distance, in deviations.
    Variation,
    /// The most likely token's share, in deviations.
    TopShare,
    /// Total variation at evenly spaced `u`, as a share of what rounding to counts allows.
    EvenU,
    /// Tail tokens drawn at least once, and where, in deviations.
    Tail,
    /// Successive draws, in deviations.
    Serial,
    /// Rows of a batch, at the same step and at the next, in deviations.
    Batch,
    /// Tokens not drawn at the middle of their share of `u`.
    Reach,
    /// Wrong tokens where `u` meets the end of a share, or the end of all.
    Boundary,
    /// Wrong tokens for a list of `next_u64`, and calls too many.
    Words,
}

use Verdict::{Batch, Boundary, ChiSquare, EvenU, Reach, Serial, Tail, TopShare, Variation, Words};

const VERDICTS: [Verdict; 10] =
    [ChiSquare, Variation, TopShare, EvenU, Tail, Serial, Batch, Reach, Boundary, Words];

impl Verdict {
    fn limit(self) -> f64 {
        match self {
            ChiSquare | Variation | TopShare | Tail | Serial | Batch => 4.5,
            EvenU => 1.0,
            Reach | Boundary | Words => 0.0,
        }
    }
}

struct Finding {
    verdict: Verdict,
    what: String,
    value: f64,
}

impl Finding {
    /// NaN is a failure.
    fn fails(&self) -> bool {
        let passes = self.value.abs() <= self.verdict.limit();
        !passes
    }
}

/// How much is drawn.
#[derive(Clone, Copy)]
struct Effort {
    /// From each short row of which all is kept.
    whole: usize,
    /// From each that is cut, which takes topmass several times as long.
    cut: usize,
    /// For pairs of successive draws, and again for pairs of rows.
    pairs: usize,
    /// From the row of [`LONG`] tokens.
    long: usize,
    /// From nothing but the tails of two such rows.
    tail: usize,
    /// Every how many tokens of a tail are reached for.
    stride: usize,
}

/// Less in a debug build, whose draws are slow, and from shorter tails.
const FULL: Effort = if cfg!(debug_assertions) {
    Effort { whole: 50_000, cut: 50_000, pairs: 25_000, long: 2_000, tail: 1_000, stride: 13 }
} else {
    Effort {
        whole: 1_000_000,
        cut: 500_000,
        pairs: 250_000,
        long: 100_000,
        tail: 5_000,
        stride: 13,
    }
};

/// Enough to catch what is at fault.
const LESS: Effort = if cfg!(debug_assertions) {
    FULL
} else {
    Effort { whole: 200_000, cut: 200_000, pairs: 100_000, long: 20_000, tail: 5_000, stride: 101 }
};

const LONG: usize = if cfg!(debug_assertions) { 8_192 } else { 129_280 };

/// One 0 and a deep rest.
fn tail_heavy(depth: f32) -> Vec<f32> {
    let mut row = vec![depth; LONG];
    row[0] = 0.0;
    row
}

fn zipf(exponent: f32, v: usize) -> Vec<f32> {
    let mut row: Vec<f32> = (1..=v).map(|i| -exponent * (i as f32).ln()).collect();
    shuffle(&mut source(1), &mut row);
    row
}

fn nearly_flat(v: usize) -> Vec<f32> {
    (0..v).map(|i| ((i * 37) % v) as f32 * 1e-4).collect()
}

/// A name, the logits, the parameters, and how many draws.
type Row = (&'static str, Vec<f32>, Params, usize);

/// The counts of a token, or of neighbours that have few, and what is expected of it. `None` where
/// a token was drawn that has no probability.
fn bins(
    tokens: impl Iterator<Item = usize>,
    draws: usize,
    probs: &[f64],
) -> Option<Vec<(f64, f64)>> {
    let mut counts = vec![0u64; probs.len()];
    for token in tokens {
        if probs.get(token).is_none_or(|&p| p == 0.0) {
            return None;
        }
        counts[token] += 1;
    }
    let mut bins = vec![];
    let mut bin = (0.0, 0.0);
    for (&count, p) in counts.iter().zip(probs) {
        bin = (bin.0 + count as f64, bin.1 + p * draws as f64);
        if bin.1 >= 10.0 {
            bins.push(std::mem::take(&mut bin));
        }
    }
    let last = bins.last_mut().expect("enough draws for a bin");
    *last = (last.0 + bin.0, last.1 + bin.1);
    Some(bins)
}

/// Chi-square as a normal deviation, by Wilson and Hilferty (PNAS 17, 1931).
fn chi_square(bins: &[(f64, f64)]) -> f64 {
    let chi: f64 = bins.iter().map(|(n, expected)| (n - expected).powi(2) / expected).sum();
    let freedom = bins.len() as f64 - 1.0;
    let spread = 2.0 / (9.0 * freedom);
    ((chi / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Half the sum of the differences between shares and probabilities; its mean and its deviation
/// for independent draws, where the counts are about normal.
fn total_variation(bins: &[(f64, f64)]) -> (f64, f64, f64) {
    let draws: f64 = bins.iter().map(|bin| bin.1).sum();
    let found: f64 = bins.iter().map(|(n, expected)| (n - expected).abs()).sum();
    let variance = |expected: f64| expected * (1.0 - expected / draws);
    let mean: f64 = bins.iter().map(|bin| (variance(bin.1) * 2.0 / PI).sqrt()).sum();
    let square: f64 = bins.iter().map(|bin| variance(bin.1) * (1.0 - 2.0 / PI)).sum();
    let of = 2.0 * draws;
    (found / of, mean / of, square.sqrt() / of)
}

/// How the counts fit the probabilities.
fn shares(subject: Subject, rows: [Row; 4]) -> Vec<Finding> {
    let mut findings = vec![];
    for (seed, (name, row, params, draws)) in rows.into_iter().enumerate() {
        let probs = reference::filter(&row, params).unwrap();
        let mut rng = source(seed as u64);
        let mut draw = subject.of_row(&row, params);
        let top = (0..row.len()).fold(0, |top, i| if row[i] > row[top] { i } else { top });
        let mut of_top = 0.0;
        let tokens = (0..draws).map(|_| draw(&mut rng)).inspect(|&token| {
            of_top += f64::from(u8::from(token == top));
        });
        let bins = bins(tokens, draws, &probs);
        let expected = draws as f64 * probs[top];
        let share = (of_top - expected) / (expected * (1.0 - probs[top])).sqrt();
        let (chi, variation) = match bins {
            None => (f64::INFINITY, f64::INFINITY),
            // As in the tail of a debug build's few draws: nothing to compare.
            Some(bins) if bins.len() == 1 => (0.0, 0.0),
            Some(bins) => {
                let (found, mean, deviation) = total_variation(&bins);
                (chi_square(&bins), (found - mean) / deviation)
            }
        };
        let what = format!("{name}, {draws} draws");
        findings.extend([
            Finding { verdict: ChiSquare, what: what.clone(), value: chi },
            Finding { verdict: Variation, what: what.clone(), value: variation },
            Finding { verdict: TopShare, what, value: share },
        ]);
    }
    findings
}

fn whole(subject: Subject, effort: Effort) -> Vec<Finding> {
    let all = Params::default();
    let mut spike = vec![0.0; 50];
    spike[20] = 11.0;
    let geometric = (0..200).map(|i| i as f32 * 0.6f32.ln()).collect();
    let rows = [
        ("equal", vec![0.25; 1000], all, effort.whole),
        ("one of .999", spike, all, effort.whole),
        ("geometric .6, T = 1.5", geometric, all.with_temperature(1.5), effort.whole),
        ("one 0, the rest -18", tail_heavy(-18.0), all, effort.long),
    ];
    shares(subject, rows)
}

fn cut(subject: Subject, effort: Effort) -> Vec<Finding> {
    let p = |p| Params::default().with_top_p(p);
    let tied = (0..48).map(|i| -((i * 5 % 8) as f32) / 2.0).collect();
    let llama_cpp = Params::llama_cpp(2.0, 40, 0.95, 0.0);
    let rows = [
        ("nearly flat, p = .9", nearly_flat(100), p(0.9), effort.cut),
        ("Zipf 1.2, p = .95", zipf(1.2, 150), p(0.95), effort.cut),
        ("Zipf 1.5, k = 40 as llama.cpp, T = 2", zipf(1.5, 200), llama_cpp, effort.cut),
        ("tied by sixes, p = .8", tied, p(0.8), effort.cut),
    ];
    shares(subject, rows)
}

/// What a closure returns, as `next_u64`. The contract draws with that and nothing else.
struct Fed<F>(F);

impl<F: FnMut() -> u64> rand::TryRng for Fed<F> {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        unreachable!("the contract draws with next_u64")
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok((self.0)())
    }

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
        unreachable!("the contract draws with next_u64")
    }
}

/// The contract's three rows of five tokens, at random and evenly spaced `u`.
fn filtered_rows(subject: Subject, draws: usize) -> Vec<Finding> {
    let mut findings = vec![];
    for (weights, p, kept) in [
        ([0.30f32, 0.25, 0.25, 0.12, 0.08], 0.6, 3),
        ([0.50, 0.41, 0.05, 0.03, 0.01], 0.9, 2),
        ([0.40, 0.30, 0.15, 0.10, 0.05], 0.9, 4),
    ] {
        let row = weights.map(f32::ln);
        let params = Params::default().with_top_p(p);
        let probs = reference::filter(&row, params).unwrap();
        assert_eq!(probs.iter().filter(|&&p| p > 0.0).count(), kept);
        let variation = |rng: &mut dyn Rng| {
            let mut draw = subject.of_row(&row, params);
            let bins = bins((0..draws).map(|_| draw(rng)), draws, &probs);
            bins.map_or((f64::INFINITY, 0.0, 1.0), |bins| total_variation(&bins))
        };
        let (random, mean, deviation) = variation(&mut source(400));
        // The middles of equal parts of [0, 1).
        let mut middles = (0..draws).map(|n| (n as f64 + 0.5) / draws as f64).cycle();
        let (even, ..) = variation(&mut Fed(|| bits_of(middles.next().unwrap())));
        findings.extend([
            Finding {
                verdict: Variation,
                what: format!(
                    "{kept} of 5 tokens, {draws} draws: {random:.2e}, expected {mean:.2e}"
                ),
                value: (random - mean) / deviation,
            },
            Finding {
                verdict: EvenU,
                what: format!("{kept} of 5 tokens, {draws} draws: {even:.2e}"),
                value: even * draws as f64 / kept as f64,
            },
        ]);
    }
    findings
}

/// Nothing but tails: each token of the first has less than a step of a 24-bit `u`
/// (vllm#51367), each of the second less than one of 32 bits.
fn tails(subject: Subject, effort: Effort) -> Vec<Finding> {
    let mut findings = vec![];
    for (seed, depth) in [(18, -18.0), (24, -24.0)] {
        let row = tail_heavy(depth);
        let mut draw = subject.of_row(&row, Params::default());
        let tokens = (LONG - 1) as f64;
        let before = 1.0 / (1.0 + tokens * f64::from(depth).exp());
        // At random from there up.
        let (first, mut random) = (bits_of(before), source(seed));
        let span = u128::from(u64::MAX - first) + 1;
        let part = |word: u64| ((u128::from(word) * span) >> 64) as u64;
        let mut rng = Fed(|| first + part(random.next_u64()));
        let drawn: Vec<usize> = (0..effort.tail).map(|_| draw(&mut rng)).collect();

        let mut distinct = drawn.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let found = distinct.len() as f64;
        // Of n balls in k cells: the mean and the variance of the cells that have one.
        let n = effort.tail as i32;
        let empty = (1.0 - 1.0 / tokens).powi(n);
        let two_empty = (1.0 - 2.0 / tokens).powi(n);
        let expected = tokens * (1.0 - empty);
        let variance =
            tokens * (tokens - 1.0) * two_empty + tokens * empty - (tokens * empty).powi(2);
        let uniform: Vec<f64> =
            (0..LONG).map(|i| if i == 0 { 0.0 } else { 1.0 / tokens }).collect();
        let bins = bins(drawn.into_iter(), effort.tail, &uniform);
        findings.extend([
            Finding {
                verdict: Tail,
                what: format!("{depth}: {found} tokens in {n} draws, expected {expected:.1}"),
                value: (found - expected) / variance.sqrt(),
            },
            Finding {
                verdict: Tail,
                what: format!("{depth}: chi-square"),
                value: bins.map_or(f64::INFINITY, |bins| chi_square(&bins)),
            },
        ]);
    }
    findings
}

/// A row of 13 tokens, of which 11 are kept, for pairs of draws.
fn row_for_pairs() -> ([f32; 13], Params) {
    let mut row = array::from_fn(|i| -0.25 * i as f32);
    shuffle(&mut source(13), &mut row);
    (row, Params::default().with_top_p(0.95))
}

/// How pairs of draws depend on each other: chi-square over the pairs, and the correlation of the
/// tokens' places in the cumulative distribution, in deviations.
struct Pairs {
    probs: Vec<f64>,
    products: Vec<f64>,
    places: Vec<f64>,
}

impl Pairs {
    fn new(probs: Vec<f64>) -> Self {
        let products = probs.iter().flat_map(|p| probs.iter().map(move |q| p * q)).collect();
        // A token's place is the middle of its share, less 1/2, over its deviation.
        let cubes: f64 = probs.iter().map(|p| p.powi(3)).sum();
        let deviation = ((1.0 - cubes) / 12.0).sqrt();
        let sums = partial_sums(probs.iter().copied());
        let place = |(sum, p): (f64, &f64)| (sum - p / 2.0 - 0.5) / deviation;
        let places = sums.into_iter().zip(&probs).map(place).collect();
        Pairs { probs, products, places }
    }

    fn chi_square(&self, pairs: &[(usize, usize)]) -> f64 {
        let v = self.probs.len();
        let cells = pairs.iter().map(|&(a, b)| if a.max(b) < v { a * v + b } else { v * v });
        let bins = bins(cells, pairs.len(), &self.products);
        bins.map_or(f64::INFINITY, |bins| chi_square(&bins))
    }

    fn correlation(&self, pairs: impl ExactSizeIterator<Item = (usize, usize)>) -> f64 {
        let n = pairs.len() as f64;
        let place = |token: usize| self.places.get(token).copied().unwrap_or(f64::NAN);
        pairs.map(|(a, b)| place(a) * place(b)).sum::<f64>() / n.sqrt()
    }
}

/// How a draw depends on the ones before.
fn successive(subject: Subject, effort: Effort) -> Vec<Finding> {
    let (row, params) = row_for_pairs();
    let pairs = Pairs::new(reference::filter(&row, params).unwrap());
    let mut rng = source(8);
    let mut draw = subject.of_row(&row, params);
    let drawn: Vec<usize> = (0..effort.pairs).map(|_| draw(&mut rng)).collect();
    let mut findings = vec![];
    for lag in 1..=4 {
        let both = drawn.iter().copied().zip(drawn[lag..].iter().copied());
        let value = pairs.correlation(both);
        findings.push(Finding { verdict: Serial, what: format!("correlation at {lag}"), value });
    }
    // Pairs that share no draw: of an even and the next, of an odd and the next.
    for from in [0, 1] {
        let both: Vec<_> = drawn[from..].chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        let what = format!("chi-square of pairs from {from}");
        findings.push(Finding { verdict: Serial, what, value: pairs.chi_square(&both) });
    }
    findings
}

/// How the rows of a batch depend on each other.
fn side_by_side(subject: Subject, effort: Effort) -> Vec<Finding> {
    let (row, params) = row_for_pairs();
    let pairs = Pairs::new(reference::filter(&row, params).unwrap());
    let mut rngs: Rngs = array::from_fn(|r| source(r as u64));
    let mut draw = subject.of_batch(&row, params);
    let steps: Vec<[usize; BATCH]> = (0..effort.pairs / BATCH).map(|_| draw(&mut rngs)).collect();
    let mut findings = vec![];
    let mut find = |what, value| findings.push(Finding { verdict: Batch, what, value });
    for a in 0..BATCH {
        for b in 0..BATCH {
            let later = steps.iter().zip(&steps[1..]).map(|(step, next)| (step[a], next[b]));
            find(format!("correlation of {a} and the next {b}"), pairs.correlation(later));
            if a < b {
                let both: Vec<_> = steps.iter().map(|step| (step[a], step[b])).collect();
                find(format!("chi-square of {a} and {b}"), pairs.chi_square(&both));
                find(format!("correlation of {a} and {b}"), {
                    pairs.correlation(both.iter().copied())
                });
            }
        }
    }
    findings
}

/// Every token, or every so many, by a `u` in the middle of its share.
fn reach(subject: Subject, effort: Effort) -> Vec<Finding> {
    let all = Params::default();
    let rows = [
        ("equal", vec![1.5; 4096], all, 1),
        ("nearly flat, p = .9", nearly_flat(3000), all.with_top_p(0.9), 1),
        ("nearly flat and long, p = .9", nearly_flat(20_000), all.with_top_p(0.9), 19),
        (
            "Zipf 1.2, T = .8, p = .99",
            zipf(1.2, 5000),
            all.with_temperature(0.8).with_top_p(0.99),
            1,
        ),
        ("tail of -18", tail_heavy(-18.0), all, effort.stride),
        ("tail of -24", tail_heavy(-24.0), all, 5 * effort.stride),
    ];
    let missed = |(name, row, params, stride): (&str, Vec<f32>, Params, usize)| {
        let probs = reference::filter(&row, params).unwrap();
        let sums = partial_sums(probs.iter().copied());
        let mut draw = subject.of_row(&row, params);
        let tokens: Vec<usize> =
            (0..row.len()).step_by(stride).filter(|&i| probs[i] > 0.0).collect();
        let misses = |&&i: &&usize| draw(&mut Scripted::at(sums[i] - probs[i] / 2.0)) != i;
        let missed = tokens.iter().filter(misses).count();
        let what = format!("{name}: {missed} of {} tokens missed", tokens.len());
        Finding { verdict: Reach, what, value: missed as f64 }
    };
    rows.into_iter().map(missed).collect()
}

/// Where `u` is exactly the end of a share: it is the next token's.
fn boundaries(subject: Subject) -> Vec<Finding> {
    const STEP: f64 = 1.0 - LAST_U;
    let mut findings = vec![];
    let mut find = |what, row: &[f32], params, expected: &[(f64, usize)]| {
        let mut draw = subject.of_row(row, params);
        let wrong = |&&(u, token): &&(f64, usize)| draw(&mut Scripted::at(u)) != token;
        let value = expected.iter().filter(wrong).count() as f64;
        findings.push(Finding { verdict: Boundary, what, value });
    };

    // A power of two of equal tokens, and others between, before and behind that are not kept; the
    // last row keeps more than topmass packs.
    let top_p = |p| Params::default().with_top_p(p);
    for (equal, v, other, params) in [
        (4, 4, 0.0, Params::default()),
        (4, 15, f32::NEG_INFINITY, Params::default()),
        (4, 15, -9.0, top_p(0.9)),
        (1024, 4100, f32::NEG_INFINITY, Params::default()),
        (1024, 4100, -30.0, top_p(0.9)),
        (1024, 4100, -2.0, top_p(0.6)),
        (16_384, 32_770, -9.0, Params::default().with_min_p(0.5)),
    ] {
        let place = |n: usize| v / equal * n + usize::from(v > equal);
        let mut row = vec![other; v];
        (0..equal).for_each(|n| row[place(n)] = 0.0);
        let mut expected = vec![(0.0, place(0)), (LAST_U, place(equal - 1))];
        let every = equal.div_ceil(1024);
        for n in (every..equal).step_by(every) {
            let u = n as f64 / equal as f64;
            expected.extend([(u, place(n)), (u - STEP, place(n - 1))]);
        }
        let what = format!("{equal} equal of {v}, the others {other}");
        find(what, &row, params, &expected);
    }

    // The largest u where sums of rounded numbers fall short of the whole, and where the last
    // token has next to no mass.
    for v in [1, 3, 6, 10, 49, 1000] {
        let mut row = vec![0.3; v];
        find(format!("{v} equal"), &row, Params::default(), &[(LAST_U, v - 1)]);
        row.extend([-25.0, f32::NEG_INFINITY]);
        find(format!("{v} equal, one of -25"), &row, Params::default(), &[(LAST_U, v)]);
        row[v] = -9.0;
        let cut = Params::default().with_top_p(0.5);
        find(format!("{v} equal, one dropped"), &row, cut, &[(LAST_U, v - 1)]);
    }
    findings
}

/// One `next_u64` a token, in their order.
fn words(subject: Subject) -> Vec<Finding> {
    let us = [0.9, 0.1, 0.6, 0.3, 0.1, 0.6];
    let mut rng = Scripted::new(&us.map(bits_of));
    let mut draw = subject.of_row(&[-1.0; 4], Params::default());
    let wrong = us.iter().filter(|&&u| draw(&mut rng) != (u * 4.0) as usize).count();
    let calls = rng.calls.abs_diff(us.len());
    let what = format!("{wrong} wrong tokens, {calls} calls too many or too few");
    vec![Finding { verdict: Words, what, value: (wrong + calls) as f64 }]
}

fn independence(subject: Subject, effort: Effort) -> Vec<Finding> {
    let mut findings = successive(subject, effort);
    findings.extend(side_by_side(subject, effort));
    findings
}

fn mapping(subject: Subject, effort: Effort) -> Vec<Finding> {
    let mut findings = tails(subject, effort);
    findings.extend(reach(subject, effort));
    findings.extend(boundaries(subject));
    findings.extend(words(subject));
    findings
}

fn every_verdict(subject: Subject, effort: Effort) -> Vec<Finding> {
    let mut findings = whole(subject, effort);
    findings.extend(cut(subject, effort));
    findings.extend(filtered_rows(subject, effort.cut.min(400_000)));
    findings.extend(independence(subject, effort));
    findings.extend(mapping(subject, effort));
    findings
}

/// Prints the findings, and asserts that they pass.
fn pass(findings: &[Finding]) {
    for finding in findings {
        let Finding { verdict, what, value } = finding;
        let mark = if finding.fails() { "  FAILS" } else { "" };
        println!("{:<10} {value:+6.2}  {what}{mark}", format!("{verdict:?}"));
    }
    let failed: Vec<_> = findings.iter().filter(|finding| finding.fails()).collect();
    let names: Vec<_> = failed.iter().map(|f| format!("{:?} of {}", f.verdict, f.what)).collect();
    assert!(failed.is_empty(), "{} verdicts fail: {}", names.len(), names.join("; "));
}

#[test]
fn draws_of_whole_rows_follow_the_softmax() {
    pass(&whole(Subject::Topmass, FULL));
}

#[test]
fn draws_of_cut_rows_follow_the_renormalised_set() {
    pass(&cut(Subject::Topmass, FULL));
}

#[test]
fn four_hundred_thousand_draws_of_a_filtered_row() {
    pass(&filtered_rows(Subject::Topmass, FULL.cut.min(400_000)));
}

#[test]
fn draws_and_rows_are_independent() {
    pass(&independence(Subject::Topmass, FULL));
}

#[test]
fn each_u_draws_its_token() {
    pass(&mapping(Subject::Topmass, FULL));
}

/// Each fault with the verdicts that have to catch it; others may.
const CAUGHT: [(Fault, &[Verdict]); 18] = [
    (Fault::None, &[]),
    (Fault::Bits24, &[Tail, Reach]),
    (Fault::Bits32, &[Tail, Reach]),
    (Fault::UpToOne, &[Boundary]),
    (Fault::AtLeast, &[Boundary]),
    (Fault::IndexV, &[Boundary]),
    (Fault::F32Cdf, &[Tail, Reach]),
    (Fault::NotRenormalised, &[ChiSquare, Variation, EvenU]),
    (Fault::OffByOne, &[ChiSquare, Variation, EvenU, Reach, Boundary]),
    (Fault::SortedOrder, &[Reach]),
    (Fault::DropsCrossing, &[ChiSquare, Variation, EvenU]),
    (Fault::KeepsOneMore, &[ChiSquare, Variation, EvenU]),
    (Fault::SplitsTies, &[ChiSquare, Variation]),
    (Fault::ForgetsTemperature, &[ChiSquare, Variation]),
    (Fault::TakesTwo, &[Words]),
    (Fault::SameTwice, &[Serial]),
    (Fault::SharedU, &[Batch]),
    (Fault::RowPlusStep, &[Batch]),
];

#[test]
fn every_fault_is_caught() {
    println!("the worst figure of each verdict, * where it fails");
    println!("{:18} {}", "", VERDICTS.map(|v| format!("{:>10} ", format!("{v:?}"))).concat());
    let mut escaped = vec![];
    for (fault, by) in CAUGHT {
        let findings = every_verdict(Subject::Literal(fault), LESS);
        let mut line = format!("{:18}", format!("{fault:?}"));
        for verdict in VERDICTS {
            let of = findings.iter().filter(|finding| finding.verdict == verdict);
            let worst = of.clone().map(|f| f.value.abs()).fold(0.0, f64::max);
            let fails = of.clone().any(Finding::fails);
            line += &format!("{worst:10.4}{}", if fails { '*' } else { ' ' });
            let misjudged =
                if fault == Fault::None { fails } else { by.contains(&verdict) && !fails };
            if misjudged {
                escaped.push(format!("{verdict:?} of {fault:?}: {worst}"));
            }
        }
        println!("{line}");
        assert!(fault == Fault::None || !by.is_empty(), "no verdict for {fault:?}");
    }
    assert!(escaped.is_empty(), "unexpected: {}", escaped.join("; "));
}

/// `cargo test --release --test statistics -- --ignored --nocapture`: about ten minutes on
/// one core.
#[test]
#[ignore = "ten million draws a row"]
fn ten_million_draws() {
    let effort = Effort {
        whole: 10_000_000,
        cut: 10_000_000,
        pairs: 5_000_000,
        long: 1_000_000,
        tail: 20_000,
        stride: 7,
    };
    pass(&every_verdict(Subject::Topmass, effort));
}
