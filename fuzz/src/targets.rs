//! What each fuzz target does with its bytes: makes a question of them, and compares the answer.
//!
//! `tests/corpus.rs` replays the files of `tests/data/fuzz` through these functions on every
//! `cargo test`, so what bytes mean must not change.

use std::cell::RefCell;

use topmass::{
    Draw, Error, Mirostat, Params, Sampler, SurpriseBase, inspect, reference, sample_batch,
};

use crate::support::mirostat::{check, on_the_line};
use crate::support::oracle::{Masses, Row, Tally};
use crate::support::rows::{Source, normal, source, with_choices};
use crate::support::{Scripted, filter, samplers, support_of};
use crate::support::{brute, brute::Fate};

#[allow(dead_code)] // files are not read here, only bytes
#[path = "../../examples/support/npy.rs"]
mod npy_file;

/// Rows no longer than this: beyond what one selection holds, and over many blocks.
const LONGEST: usize = 12_000;
/// Rows up to here are asked every question on every tier; longer ones some, and seldom on the
/// portable tier, so that there is time for more of them.
const SHORT: usize = 1_000;

/// The bytes, read from the front; zeros where they have ended.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        array[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        array
    }

    fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn f32(&mut self) -> f32 {
        f32::from_le_bytes(self.array())
    }

    fn f64(&mut self) -> f64 {
        f64::from_le_bytes(self.array())
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// A share of 65,536 parts.
    fn share(&mut self) -> f64 {
        f64::from(self.u16()) / 65_536.0
    }

    /// What is left, `N` bytes at a time.
    fn rest<const N: usize>(&mut self) -> impl Iterator<Item = [u8; N]> {
        std::mem::take(&mut self.0).as_chunks().0.iter().copied()
    }
}

/// A few values of any bits, for rows with many ties.
fn palette(bytes: &mut Bytes) -> Vec<f32> {
    (0..=bytes.byte() % 16).map(|_| bytes.f32()).collect()
}

/// A row of logits: raw bits, or one of the shapes that a few bytes can say.
fn logits(bytes: &mut Bytes) -> Vec<f32> {
    let kind = bytes.byte() % 7;
    let mut row: Vec<f32> = match kind {
        0 => bytes.rest().map(f32::from_le_bytes).collect(),
        // A palette, a logit a byte.
        1 => {
            let colours = palette(bytes);
            bytes.rest().map(|[b]| colours[usize::from(b) % colours.len()]).collect()
        }
        // A palette, in runs of up to 16,257.
        2 => {
            let colours = palette(bytes);
            let runs = bytes.rest().map(|[colour, length]| {
                let length = usize::from(length);
                (colours[usize::from(colour) % colours.len()], 1 + length * length / 4)
            });
            runs.flat_map(|(x, n)| std::iter::repeat_n(x, n)).take(LONGEST).collect()
        }
        // Steps of a constant, out of order.
        3 => {
            let (start, step, count) = (bytes.f32(), bytes.f32(), usize::from(bytes.u16()));
            let stride = usize::from(bytes.byte()) * 2 + 1;
            let count = count.min(LONGEST);
            (0..count).map(|i| start + step * (i * stride % count) as f32).collect()
        }
        // Units in the last place away from one value.
        4 => {
            let start = bytes.f32().to_bits();
            bytes.rest().map(|[b]| f32::from_bits(start.wrapping_add(b.into()))).collect()
        }
        // bfloat16.
        5 => bytes.rest().map(|[a, b]| f32::from_le_bytes([0, 0, a, b])).collect(),
        // Normal deviates.
        _ => {
            let (rng, width) = (&mut source(bytes.byte().into()), bytes.f32());
            let count = usize::from(bytes.u16()).min(LONGEST);
            (0..count).map(|_| normal(rng) as f32 * width).collect()
        }
    };
    // The shapes that leave bytes over: single logits, at places.
    if matches!(kind, 3 | 6) {
        for [a, b, x @ ..] in bytes.rest::<6>() {
            let place = usize::from(u16::from_le_bytes([a, b]));
            if let Some(logit) = row.get_mut(place) {
                *logit = f32::from_le_bytes(x);
            }
        }
    }
    row
}

fn temperature(bytes: &mut Bytes) -> f32 {
    match bytes.byte() % 4 {
        0 => bytes.f32(),
        1 => bytes.pick(&[0.0, 1e-45, 1e-30, 1e-3, 40.0, f32::MAX, f32::INFINITY]),
        _ => bytes.pick(&[1.0, 0.7, 0.3, 1.5, 3.0]),
    }
}

/// Parameters, and whether `top_p` and `min_p` are to be moved to a boundary of the row.
fn params(bytes: &mut Bytes) -> (Params, bool) {
    let temperature = temperature(bytes);
    let how = bytes.byte();
    let top_p = match how % 4 {
        0 => bytes.f64(),
        1 => bytes.pick(&[0.0, 1e-8, 0.5, 0.9, 0.95, 0.999_999_9, 1.0, -1.0]),
        _ => bytes.share(),
    };
    let top_k = match how / 4 % 4 {
        0 => u32::from_le_bytes(bytes.array()),
        1 => u32::from(bytes.u16()),
        _ => 0,
    };
    let min_p = match how / 16 % 4 {
        0 => bytes.f64(),
        1 => bytes.share().powi(4),
        _ => 0.0,
    };
    let choices = bytes.byte();
    let params = Params::default()
        .with_temperature(temperature)
        .with_top_p(top_p)
        .with_top_k(top_k)
        .with_min_p(min_p)
        .with_exact_mass(choices & 8 != 0);
    let params = with_choices(params, [1, 2, 4].map(|bit| choices & bit != 0));
    (params, how & 0x80 != 0)
}

/// Which error a row deserves, said once more: parameters first, then the first bad logit.
fn row_error(logits: &[f32]) -> Option<Error> {
    if logits.is_empty() {
        return Some(Error::EmptyRow);
    }
    for (index, x) in logits.iter().enumerate() {
        if x.is_nan() {
            return Some(Error::NotANumber { index });
        }
        if *x == f32::INFINITY {
            return Some(Error::PositiveInfinity { index });
        }
    }
    let masked = logits.iter().all(|&x| x == f32::NEG_INFINITY);
    masked.then_some(Error::AllMasked)
}

fn error(logits: &[f32], params: Params) -> Option<Error> {
    let Params { temperature, top_p, min_p, .. } = params;
    let invalid = |name, value| Some(Error::InvalidParam { name, value });
    if temperature.is_nan() {
        return invalid("temperature", f64::from(temperature));
    }
    if top_p.is_nan() {
        return invalid("top_p", top_p);
    }
    if !(0.0..=1.0).contains(&min_p) {
        return invalid("min_p", min_p);
    }
    row_error(logits)
}

thread_local! {
    /// Samplers that have seen every input before: what they saw must not matter.
    static SAMPLERS: RefCell<Vec<Sampler>> = RefCell::new(samplers());
}

/// One row at one setting, on every tier: set, token, masses, probabilities, or the error.
pub fn row(bytes: &[u8]) {
    SAMPLERS.with_borrow_mut(|samplers| {
        let bytes = &mut Bytes(bytes);
        let (mut params, awkward) = params(bytes);
        let (seed, u) = (bytes.byte(), bytes.u64());
        let logits = logits(bytes);
        if let Some(expected) = error(&logits, params) {
            refused(samplers, &logits, params, &expected);
            return;
        }
        let rng = &mut source(seed.into());
        let row = Row::new(&logits);
        if params.temperature > 0.0 && awkward {
            let masses = Masses::new(&row, params);
            match params.min_p > 0.0 {
                true => params.min_p = masses.awkward_min_p(rng),
                false => params.top_p = masses.awkward_top_p(rng, params),
            }
        }
        let expected = Masses::new(&row, params).expect(params);
        let mut us = expected.draws(rng);
        if logits.len() > SHORT {
            us.drain(..7);
        }
        us.push((u >> 11) as f64 / (1u64 << 53) as f64);
        let samplers = fast_enough(samplers, logits.len(), seed);
        let mut tally = Tally::default();
        tally.compare(samplers, &logits, &expected, &us);
        tally.finish_quietly();
        if logits.len() <= SHORT {
            expected.agrees_with_reference(&logits, &us[us.len() - 2..]);
        }
        if logits.len() <= 60 {
            let (probs, _) = filter(&mut samplers[0], &logits, params).expect("a good row");
            agrees_with_brute_force(&logits, params, &probs);
        }
        inspected(&logits, params, &mut samplers[0], rng);
    });
}

/// The tiers to ask: the portable one comes first.
fn fast_enough(samplers: &mut [Sampler], len: usize, seed: u8) -> &mut [Sampler] {
    let skipped = usize::from(len > SHORT && !seed.is_multiple_of(8) && samplers.len() > 1);
    &mut samplers[skipped..]
}

fn refused(samplers: &mut [Sampler], logits: &[f32], params: Params, expected: &Error) {
    let rng = &mut Scripted::new(&[0]);
    for sampler in samplers {
        assert_eq!(sampler.sample(logits, params, rng).as_ref(), Err(expected));
        assert_eq!(filter(sampler, logits, params).as_ref(), Err(expected));
    }
    assert_eq!(reference::sample(logits, params, rng).as_ref(), Err(expected));
    assert_eq!(inspect(logits, params).as_ref(), Err(expected));
    assert_eq!(rng.calls, 0, "a refused row advances no rng");
}

fn agrees_with_brute_force(logits: &[f32], params: Params, probs: &[f32]) {
    // A probability may round to 0, so only the dropped can be told for certain.
    let kept = support_of(probs);
    for (i, fate) in brute::fates(logits, params).into_iter().enumerate() {
        match fate {
            Fate::Dropped => assert!(!kept.contains(&i), "token {i} is kept: {params:?}"),
            Fate::Kept if params.temperature >= 1.0 && logits[i] > -50.0 => {
                let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                assert!(max - logits[i] > 80.0 || kept.contains(&i), "token {i} is dropped");
            }
            Fate::Kept | Fate::Undecidable => {}
        }
    }
}

/// The figures of the whole softmax, by their definitions.
fn inspected(logits: &[f32], params: Params, sampler: &mut Sampler, rng: &mut Source) {
    let stats = sampler.inspect(logits, params).expect("a good row");
    let draw = sampler.sample(logits, params, rng).expect("a good row");
    let masses = |d: Draw| (d.kept, d.retained_mass.to_bits(), d.mass_error.to_bits());
    let same = (stats.kept, stats.retained_mass.to_bits(), stats.mass_error.to_bits());
    assert_eq!(same, masses(draw), "{params:?}");
    if params.temperature <= 0.0 {
        return;
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let z = |x: f32| (f64::from(x) - f64::from(max)) / f64::from(params.temperature);
    let unmasked = || logits.iter().filter(|&&x| x > f32::NEG_INFINITY);
    let total: f64 = unmasked().map(|&x| z(x).exp()).sum();
    let terms = unmasked().filter(|&&x| z(x) > -745.0).map(|&x| z(x) * z(x).exp());
    let entropy = total.ln() - terms.sum::<f64>() / total;
    let off = (stats.entropy - entropy).abs();
    assert!(off <= 1e-9 * (1.0 + entropy), "entropy {} for {entropy}", stats.entropy);
}

/// Rows side by side are the rows alone; wrong lengths draw nothing.
pub fn batch(bytes: &[u8]) {
    let bytes = &mut Bytes(bytes);
    let (rows, vocab) = (usize::from(bytes.byte() % 9), usize::from(bytes.u16()) % 3_000);
    let wrong = bytes.byte();
    let settings: Vec<Params> = (0..rows).map(|_| params(bytes).0).collect();
    let seeds: Vec<u64> = (0..rows).map(|_| bytes.byte().into()).collect();
    let few = logits(bytes);
    let mut all: Vec<f32> = few.iter().copied().cycle().take(rows * vocab).collect();
    all.resize(rows * vocab, 0.0);

    let mut rngs: Vec<Source> = seeds.iter().copied().map(source).collect();
    let untouched = Err(Error::RowTooLong { len: 77 });
    let mut draws = vec![untouched.clone(); rows];
    // One of the slices too long or too short by a little.
    let mut params = settings.clone();
    match wrong % 8 {
        0 => all.push(0.0),
        1 if rows > 0 => drop(params.pop()),
        2 if rows > 0 => drop(rngs.pop()),
        3 if rows > 0 => drop(draws.pop()),
        _ => {}
    }
    let fits = params.len() == draws.len()
        && rngs.len() == draws.len()
        && all.len() == draws.len() * vocab;
    let result = sample_batch(&all, vocab, &params, &mut rngs, &mut draws);
    assert_eq!(result.is_ok(), fits);
    if !fits {
        assert!(draws.iter().all(|draw| *draw == untouched));
        assert!(rngs.iter().zip(&seeds).all(|(rng, &seed)| *rng == source(seed)));
        return;
    }
    let mut sampler = Sampler::new();
    for (i, draw) in draws.iter().enumerate() {
        let (row, mut rng) = (&all[i * vocab..][..vocab], source(seeds[i]));
        let alone = sampler.sample(row, params[i], &mut rng);
        assert_eq!((draw, &rngs[i]), (&alone, &rng), "row {i}");
        assert_eq!(draw.as_ref().err(), error(row, params[i]).as_ref(), "row {i}");
    }
}

/// A few steps of a controller, each compared with the literal one; then with any numbers at all.
pub fn mirostat(bytes: &[u8]) {
    SAMPLERS.with_borrow_mut(|samplers| {
        let bytes = &mut Bytes(bytes);
        let how = bytes.byte();
        let raw = how & 4 != 0;
        let figure = |bytes: &mut Bytes| if raw { bytes.f64() } else { bytes.share() * 16.0 };
        let (tau, eta, mu) = (figure(bytes), figure(bytes) / 8.0, figure(bytes) * 2.0);
        let v2 = how & 1 != 0;
        let base = [SurpriseBase::Full, SurpriseBase::Kept][usize::from(how >> 1 & 1)];
        let controller = if v2 { Mirostat::v2(tau, eta) } else { Mirostat::v1(tau, eta) };
        let mut controller = controller.with_mu(mu).with_surprise_base(base);
        let (temperature, steps) = (temperature(bytes), bytes.byte() % 4);
        let logits = logits(bytes);

        let wrong = |name, value| Some(Error::InvalidParam { name, value });
        let expected = match () {
            () if temperature.is_nan() => wrong("temperature", f64::from(temperature)),
            () if !(tau.is_finite() && tau >= 0.0) => wrong("tau", tau),
            () if !(eta.is_finite() && eta >= 0.0) => wrong("eta", eta),
            () if !mu.is_finite() => wrong("mu", mu),
            () => row_error(&logits),
        };
        if let Some(expected) = expected {
            let (before, rng) = (controller.clone(), &mut Scripted::new(&[0]));
            for sampler in samplers {
                let refused = controller.sample_with(sampler, &logits, temperature, rng);
                assert_eq!(refused, Err(expected.clone()));
            }
            let refused = reference::mirostat(&mut controller, &logits, temperature, rng);
            assert_eq!(refused, Err(expected));
            // NaN parameters are not equal to themselves.
            assert_eq!(format!("{controller:?}"), format!("{before:?}"));
            assert_eq!(rng.calls, 0);
            return;
        }
        let samplers = fast_enough(samplers, logits.len(), how >> 3);
        for seed in 0..=steps {
            if temperature > 0.0 && on_the_line(&controller, v2, &logits, temperature) {
                return;
            }
            let draw = check(samplers, &controller, &logits, temperature, seed.into());
            assert!(draw.mu.is_finite());
            controller = controller.with_mu(draw.mu);
        }
    });
}

/// The example's reader: rows that hold what the header says, or one line.
pub fn npy(bytes: &[u8]) {
    match npy_file::parse(bytes) {
        Ok(rows) => {
            assert!(rows.vocab > 0 && !rows.data.is_empty());
            assert!(rows.data.len().is_multiple_of(rows.vocab));
            // Two bytes at least for each, after the header.
            assert!(rows.data.len() * 2 <= bytes.len());
            // The rows it gives can be asked anything.
            let first = rows.iter().next().expect("a row");
            let answer = inspect(first, Params::default());
            assert_eq!(answer.err(), row_error(first));
        }
        Err(line) => assert!(!line.is_empty() && !line.contains('\n'), "{line:?}"),
    }
}
