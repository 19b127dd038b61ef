//! A batch is its rows: nothing that stands beside a row changes it.

mod support;

use rand::Rng;
use support::oracle::draw_bits;
use support::rows::{Source, below, normal, source, uniform};
use topmass::{Draw, Error, Params, filter_fused, reference, sample_batch, sample_fused};

type Outcome = Result<Draw, Error>;

fn no_draws(rows: usize) -> Vec<Outcome> {
    vec![Err(Error::EmptyRow); rows]
}

/// Every bit of a draw, and the error where there is none.
fn bits(outcome: &Outcome) -> Result<[u64; 6], Error> {
    outcome.clone().map(|draw| draw_bits(&draw))
}

#[derive(Clone)]
struct Row {
    logits: Vec<f32>,
    params: Params,
    rng: Source,
}

/// Rows of every kind, some of them bad.
fn rows(seed: u64, count: usize, vocab: usize) -> Vec<Row> {
    let mut rng = source(seed);
    let row = |i| {
        let scale = [0.1, 1.0, 3.0, 8.0][below(&mut rng, 4)];
        let mut logits: Vec<f32> = (0..vocab).map(|_| scale * normal(&mut rng) as f32).collect();
        match i % 8 {
            1 => logits.iter_mut().for_each(|x| *x = x.round()),
            3 => logits.iter_mut().step_by(2).for_each(|x| *x = f32::NEG_INFINITY),
            5 => logits.fill([f32::NAN, f32::NEG_INFINITY, f32::INFINITY][below(&mut rng, 3)]),
            _ => {}
        }
        let mut params = Params::default()
            .with_temperature([0.0, 0.5, 1.0, 2.0][below(&mut rng, 4)])
            .with_top_p([0.1, 0.5, 0.9, 0.99, 1.0][below(&mut rng, 5)])
            .with_top_k([0, 0, 5, 50][below(&mut rng, 4)])
            .with_min_p([0.0, 0.0, 0.02][below(&mut rng, 3)]);
        if i % 8 == 7 {
            params.min_p = f64::NAN;
        }
        Row { logits, params, rng: source(seed ^ (i as u64) << 32) }
    };
    (0..count).map(row).collect()
}

/// The batch's outcomes, and what each rng returns next.
fn run(rows: &[Row], vocab: usize) -> Vec<(Result<[u64; 6], Error>, u64)> {
    let logits: Vec<f32> = rows.iter().flat_map(|row| row.logits.iter().copied()).collect();
    let params: Vec<Params> = rows.iter().map(|row| row.params).collect();
    let mut rngs: Vec<Source> = rows.iter().map(|row| row.rng.clone()).collect();
    let mut draws = no_draws(rows.len());
    sample_batch(&logits, vocab, &params, &mut rngs, &mut draws).unwrap();
    draws.iter().map(bits).zip(rngs.iter_mut().map(Rng::next_u64)).collect()
}

/// The same, one row at a time.
fn alone(rows: &[Row]) -> Vec<(Result<[u64; 6], Error>, u64)> {
    let one = |row: &Row| {
        let mut rng = row.rng.clone();
        let draw = sample_fused(&row.logits, row.params, &mut rng);
        (bits(&draw), rng.next_u64())
    };
    rows.iter().map(one).collect()
}

#[test]
fn a_row_is_what_it_is_alone() {
    for (seed, vocab) in [(1, 0), (2, 1), (3, 17), (4, 100), (5, 3000)] {
        let rows = rows(seed, 48, vocab);
        let alone = alone(&rows);
        assert_eq!(run(&rows, vocab), alone, "V = {vocab}");
        if vocab > 1 {
            assert!(alone.iter().any(|(draw, _)| draw.is_err()));
            assert!(alone.iter().filter(|(draw, _)| draw.is_ok()).count() > 30);
        }
    }
}

#[test]
fn permuting_splitting_and_inserting_change_no_row() {
    let vocab = 1500;
    let rows = rows(11, 40, vocab);
    let whole = run(&rows, vocab);
    let mut rng = source(12);
    for round in 0..20 {
        // Fisher-Yates.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, below(&mut rng, i + 1));
        }
        let permuted: Vec<Row> = order.iter().map(|&i| rows[i].clone()).collect();
        let expected: Vec<_> = order.iter().map(|&i| whole[i].clone()).collect();
        assert_eq!(run(&permuted, vocab), expected);

        let at = below(&mut rng, rows.len() + 1);
        let mut parts = run(&rows[..at], vocab);
        parts.extend(run(&rows[at..], vocab));
        assert_eq!(parts, whole);

        let mut inserted = rows.clone();
        inserted.insert(at, self::rows(100 + round, 8, vocab)[round as usize % 8].clone());
        let mut outcome = run(&inserted, vocab);
        let _ = outcome.remove(at);
        assert_eq!(outcome, whole);
    }
}

/// The case `one-bad-row` (flashinfer#2402).
#[test]
fn one_bad_row_harms_no_other() {
    let vocab = 300;
    let mut rows = rows(21, 3, vocab);
    for row in &mut rows {
        row.params = Params::default().with_top_p(0.9);
    }
    rows[1].logits.fill(f32::NAN);
    let outcome = run(&rows, vocab);
    assert_eq!(outcome[1].0, Err(Error::NotANumber { index: 0 }));
    assert_eq!(outcome[1].1, rows[1].rng.clone().next_u64(), "a refused row advances no rng");
    let alone = alone(&rows);
    assert!(alone[0].0.is_ok() && alone[2].0.is_ok());
    assert_eq!((&outcome[0], &outcome[2]), (&alone[0], &alone[2]));
}

#[test]
fn wrong_lengths_draw_nothing() {
    let vocab = 4;
    let cases = [
        ("params", 12, 2, 3, 3, 3),
        ("params", 12, 4, 3, 3, 3),
        ("rngs", 12, 3, 2, 3, 3),
        ("rngs", 12, 3, 4, 3, 3),
        ("logits", 11, 3, 3, 3, 12),
        ("logits", 13, 3, 3, 3, 12),
        ("logits", 0, 3, 3, 3, 12),
        ("logits", 4, 0, 0, 0, 0),
        // The rows agree among themselves: `draws` is the odd one, and the first other is named.
        ("params", 12, 3, 3, 4, 4),
    ];
    for (name, logits, params, rngs, rows, expected) in cases {
        let found = if name == "params" {
            params
        } else if name == "rngs" {
            rngs
        } else {
            logits
        };
        let logits = vec![0.5; logits];
        let params = vec![Params::default(); params];
        let mut rngs: Vec<Source> = (0..rngs as u64).map(source).collect();
        let mut draws = vec![Err(Error::AllMasked); rows];
        let error = sample_batch(&logits, vocab, &params, &mut rngs, &mut draws).unwrap_err();
        assert_eq!((error.name, error.expected, error.found), (name, expected, found));
        assert!(error.to_string().contains(name));
        assert!(rngs.iter().enumerate().all(|(i, rng)| *rng == source(i as u64)));
        assert!(draws.iter().all(|draw| *draw == Err(Error::AllMasked)));
    }
    // More than memory holds, without overflow.
    let error = sample_batch(
        &[],
        usize::MAX,
        &[Params::default(); 2],
        &mut [0, 1].map(source),
        &mut no_draws(2),
    );
    assert_eq!(error.map_err(|e| (e.name, e.expected, e.found)), Err(("logits", usize::MAX, 0)));
}

#[test]
fn nothing_to_do() {
    let none: &mut [Source] = &mut [];
    for vocab in [0, 1, 1000, usize::MAX] {
        assert_eq!(sample_batch(&[], vocab, &[], none, &mut []), Ok(()));
    }
    // Rows of no logits are rows all the same.
    let mut draws = vec![Err(Error::AllMasked); 2];
    let mut rngs = [1, 2].map(source);
    assert_eq!(sample_batch(&[], 0, &[Params::default(); 2], &mut rngs, &mut draws), Ok(()));
    assert_eq!(draws, [Err(Error::EmptyRow), Err(Error::EmptyRow)]);
    assert_eq!(rngs, [1, 2].map(source));
}

/// The batch test of the source: the fate of every token by the rule, one token at a time.
#[test]
fn three_thousand_batches_of_four_rows() {
    let mut rng = source(2024);
    let (mut tokens, mut excluded, mut worst) = (0usize, 0usize, 0.0f64);
    for batch in 0..3000 {
        let vocab = 1 + below(&mut rng, 39);
        let rows: Vec<Vec<f32>> = (0..4)
            .map(|_| {
                let tied = batch % 3 == 0;
                let mut logit = || {
                    if tied { below(&mut rng, 5) as f32 } else { 3.0 * normal(&mut rng) as f32 }
                };
                (0..vocab).map(|_| logit()).collect()
            })
            .collect();
        let params: Vec<Params> = (0..4)
            .map(|_| {
                Params::default()
                    .with_temperature([0.0, 0.5, 1.0, 2.0][below(&mut rng, 4)])
                    .with_top_p(0.05 + 0.95 * uniform(&mut rng))
            })
            .collect();
        let mut rngs: Vec<Source> = (0..4).map(|i| source(4 * batch + i)).collect();
        let mut draws = no_draws(4);
        sample_batch(&rows.concat(), vocab, &params, &mut rngs, &mut draws).unwrap();

        for ((logits, &params), draw) in rows.iter().zip(&params).zip(&draws) {
            let draw = draw.as_ref().unwrap();
            let mut probs = vec![f32::NAN; vocab];
            let kept = filter_fused(logits, params, &mut probs).unwrap();
            let by_reference = reference::filter(logits, params).unwrap();
            assert_eq!((kept.kept, kept.retained_mass), (draw.kept, draw.retained_mass));
            assert!(probs[draw.token as usize] > 0.0, "{draw:?}: a filtered token");

            let max = logits.iter().copied().fold(f32::MIN, f32::max);
            let t = f64::from(params.temperature);
            let w: Vec<f64> = if t == 0.0 {
                let argmax = logits.iter().position(|&x| x == max).unwrap();
                (0..vocab).map(|i| if i == argmax { 1.0 } else { 0.0 }).collect()
            } else {
                logits.iter().map(|&x| ((f64::from(x) - f64::from(max)) / t).exp()).collect()
            };
            let z: f64 = w.iter().sum();
            let mut undecided = false;
            let mut fates = vec![false; vocab];
            for i in 0..vocab {
                tokens += 1;
                let above: f64 = (0..vocab).filter(|&j| w[j] > w[i]).map(|j| w[j]).sum();
                if (above / z - params.top_p).abs() < 1e-12 {
                    excluded += 1;
                    undecided = true;
                    fates[i] = probs[i] > 0.0;
                    continue;
                }
                fates[i] = above < params.top_p * z;
                assert_eq!(probs[i] > 0.0, fates[i], "{logits:?} {params:?} token {i}");
                assert_eq!(by_reference[i] > 0.0, fates[i], "reference: {params:?} token {i}");
            }
            let total: f64 = (0..vocab).filter(|&i| fates[i]).map(|i| w[i]).sum();
            for i in (0..vocab).filter(|&i| fates[i] && !undecided) {
                let p = w[i] / total;
                assert!((by_reference[i] - p).abs() < 1e-12, "{} {p}", by_reference[i]);
                let error = (f64::from(probs[i]) / by_reference[i] - 1.0).abs();
                worst = worst.max(error);
                assert!(error < 2e-7, "{} {p}", probs[i]);
            }
        }
    }
    println!(
        "{tokens} tokens, {excluded} at the boundary excluded, largest relative error of filter_fused {worst:e}"
    );
    assert!(excluded < 100);
}

#[cfg(feature = "rayon")]
#[test]
fn one_thread_or_many() {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    for (seed, count, vocab) in [(31, 64, 20_000), (32, 1000, 50), (33, 7, 0)] {
        let rows = rows(seed, count, vocab);
        let one = pool(1).install(|| run(&rows, vocab));
        assert_eq!(one, alone(&rows));
        for threads in [2, 3, 5] {
            let pool = pool(threads);
            for _ in 0..3 {
                assert_eq!(pool.install(|| run(&rows, vocab)), one, "{threads} threads");
            }
        }
    }
}
