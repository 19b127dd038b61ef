//! The contract's edges, every one on every tier.

mod support;

use proptest::prelude::*;
use support::oracle::{Expected, Tally, compare_one};
use support::rows::{self, all_equal, band_at_ten, fitted, flat, source, with_choices};
use support::{LAST_U, Scripted, draw_at, filter, for_each_tier, samplers, support_of};
use topmass::{Draw, Error, Params, Sampler, TemperatureAt, Tier, Ties, reference};

const MASK: f32 = f32::NEG_INFINITY;

/// Quiet and signalling, both signs, least and largest payload.
const NANS: [u32; 6] =
    [0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xff80_0001, 0x7fff_ffff, 0xffff_ffff];

/// Every way through the step: everything kept, each cut, greedy.
fn ways() -> Vec<Params> {
    let default = Params::default();
    vec![
        default,
        default.with_top_p(0.9),
        default.with_top_k(3),
        default.with_min_p(0.01),
        default.with_temperature(0.0),
        default.with_temperature(0.7).with_top_p(0.99).with_top_k(50).with_min_p(1e-4),
    ]
}

/// `sample` and `filter` refuse the row with this error, and the rng stays where it is.
fn refuses(sampler: &mut Sampler, logits: &[f32], params: Params, error: &Error) {
    let mut rng = Scripted::at(0.5);
    let found = sampler.sample(logits, params, &mut rng);
    assert_eq!(found.as_ref(), Err(error), "V = {}, {params:?}", logits.len());
    assert_eq!(rng.calls, 0, "a refused row advanced the rng");
    let found = filter(sampler, logits, params);
    assert_eq!(
        found.as_ref().map(|(_, kept)| kept),
        Err(error),
        "V = {}, {params:?}",
        logits.len()
    );
}

fn accepts(sampler: &mut Sampler, logits: &[f32], params: Params) -> Draw {
    draw_at(sampler, logits, params, 0.5).unwrap_or_else(|e| panic!("{e}, {params:?}"))
}

/// Compares with the oracle, on all tiers, a list of rows at a list of settings.
fn matches_oracle(name: &str, rows: &[Vec<f32>], params: &[Params]) {
    let (mut samplers, mut tally) = (samplers(), Tally::default());
    for (n, row) in rows.iter().enumerate() {
        tally.context = format!("{name} row {n}, V = {}", row.len());
        for &params in params {
            compare_one(&mut samplers, row, params, &mut tally);
        }
    }
    tally.finish(name);
}

/// Positions where vectors, blocks and tails begin and end, in a row of `v`.
fn awkward_positions(v: usize) -> Vec<usize> {
    let near = |edge: usize| edge.saturating_sub(2)..edge + 2;
    let mut all: Vec<usize> = (0..34).chain(v.saturating_sub(34)..v).collect();
    all.extend([64, 128, 256, 512, 1024, 2048, 4096, 8192].into_iter().flat_map(near));
    all.retain(|&i| i < v);
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn nan_and_infinity_wherever_they_lie() {
    for_each_tier(|sampler| {
        for v in (1..=66).chain([127, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 5003]) {
            let mut row = if v % 2 == 0 { vec![0.0; v] } else { flat(&mut source(v as u64), v) };
            for at in awkward_positions(v) {
                let before = row[at];
                // Payloads and settings take turns.
                for turn in 0..2 {
                    row[at] = f32::from_bits(NANS[(at + 3 * turn) % NANS.len()]);
                    let params = ways()[(at + v + turn) % ways().len()];
                    refuses(sampler, &row, params, &Error::NotANumber { index: at });
                }
                row[at] = f32::INFINITY;
                let params = ways()[(at + v) % ways().len()];
                refuses(sampler, &row, params, &Error::PositiveInfinity { index: at });
                row[at] = before;
            }
        }
    });
}

#[test]
fn every_nan_is_seen_at_every_setting() {
    for_each_tier(|sampler| {
        for bits in NANS {
            for params in ways() {
                for at in [0, 7, 15, 16, 500, 992, 999] {
                    let mut row = vec![0.0; 1000];
                    row[7] = 5.0;
                    row[at] = f32::from_bits(bits);
                    refuses(sampler, &row, params, &Error::NotANumber { index: at });
                }
            }
        }
    });
}

#[test]
fn the_first_offender_is_named() {
    for_each_tier(|sampler| {
        for v in [2, 16, 17, 100, 1030, 4100] {
            for background in [0.0, 1e38, MASK] {
                for (first, second) in [(0, 1), (0, v - 1), (v / 2, v - 1), (v / 3, v / 2 + 1)] {
                    if first >= second || second >= v {
                        continue;
                    }
                    for (a, b) in [
                        (f32::NAN, f32::INFINITY),
                        (f32::INFINITY, -f32::NAN),
                        (-f32::NAN, f32::NAN),
                    ] {
                        let mut row = vec![background; v];
                        (row[first], row[second]) = (a, b);
                        let index = first;
                        let error = if a.is_nan() {
                            Error::NotANumber { index }
                        } else {
                            Error::PositiveInfinity { index }
                        };
                        refuses(sampler, &row, Params::default().with_top_p(0.9), &error);
                    }
                }
            }
        }
    });
}

#[test]
fn nothing_to_draw() {
    for_each_tier(|sampler| {
        for params in ways() {
            refuses(sampler, &[], params, &Error::EmptyRow);
            for v in [1, 8, 15, 16, 17, 1000, 5000] {
                refuses(sampler, &vec![MASK; v], params, &Error::AllMasked);
            }
        }
    });
}

#[test]
fn bad_parameters() {
    let default = Params::default();
    let nan = f64::NAN;
    let bad = [
        (default.with_temperature(f32::NAN), "temperature", nan),
        (default.with_top_p(-nan), "top_p", nan),
        (default.with_min_p(nan), "min_p", nan),
        (default.with_min_p(-1e-300), "min_p", -1e-300),
        (default.with_min_p(-1.0), "min_p", -1.0),
        (default.with_min_p(1.0 + f64::EPSILON), "min_p", 1.0 + f64::EPSILON),
        (default.with_min_p(f64::INFINITY), "min_p", f64::INFINITY),
        // Greedy needs no top_p, but a NaN is a mistake all the same.
        (default.with_temperature(0.0).with_top_p(nan), "top_p", nan),
    ];
    for_each_tier(|sampler| {
        for &(params, name, value) in &bad {
            refuses(sampler, &[1.0, 2.0, 3.0], params, &Error::InvalidParam { name, value });
        }
    });
}

#[test]
fn wrong_length_of_probs() {
    for_each_tier(|sampler| {
        for (v, n) in [(3, 2), (3, 4), (16, 0), (2000, 1999), (2000, 2001)] {
            let mut probs = vec![7.0; n];
            let found = sampler.filter(&vec![0.0; v], Params::default(), &mut probs);
            assert_eq!(found, Err(Error::LengthMismatch { expected: v, found: n }));
            assert!(probs.iter().all(|&p| p == 7.0), "a refused call wrote");
        }
    });
}

#[test]
fn one_token() {
    for_each_tier(|sampler| {
        for x in [0.0, -0.0, -1e30, f32::MIN, f32::MAX, 1e-45] {
            for params in ways() {
                for u in [0.0, 0.5, LAST_U] {
                    let draw = draw_at(sampler, &[x], params, u).expect("a good row");
                    assert_eq!((draw.token, draw.kept), (0, 1));
                    assert_eq!((draw.probability, draw.retained_mass), (1.0, 1.0));
                }
                assert_eq!(filter(sampler, &[x], params).expect("a good row").0, [1.0]);
            }
        }
    });
}

#[test]
fn every_short_length() {
    let rows: Vec<_> = (1..=300)
        .map(|v| if v % 3 == 0 { flat } else { fitted }(&mut source(v as u64), v))
        .collect();
    matches_oracle("1..=300", &rows, &ways());
}

#[test]
fn lengths_around_blocks() {
    let mut lengths = vec![];
    for unit in [16, 64, 128, 1024, 2048, 4096] {
        for multiple in [1, 2, 3, 5] {
            lengths.extend([unit * multiple - 1, unit * multiple, unit * multiple + 1]);
        }
    }
    let rows: Vec<_> = lengths.iter().map(|&v| fitted(&mut source(v as u64), v)).collect();
    let settings =
        [Params::default(), Params::default().with_top_p(0.95), Params::default().with_top_k(20)];
    matches_oracle("block edges", &rows, &settings);
}

#[test]
fn lengths_of_real_vocabularies() {
    let lengths = [31_999, 32_000, 32_001, 40_001, 151_936, 262_143, 262_144, 262_145];
    let rows: Vec<_> = lengths.iter().map(|&v| fitted(&mut source(v as u64), v)).collect();
    matches_oracle("vocabularies", &rows, &[Params::default(), Params::default().with_top_p(0.9)]);
    // The last token, alone in its vector or not, can be the only one and the first.
    for_each_tier(|sampler| {
        for v in lengths {
            let mut row = vec![-20.0; v];
            row[v - 1] = 20.0;
            let draw = draw_at(sampler, &row, Params::default().with_top_p(0.9), LAST_U)
                .expect("a good row");
            assert_eq!((draw.token as usize, draw.kept), (v - 1, 1));
        }
    });
}

#[test]
fn where_the_row_lies_in_memory_does_not_matter() {
    for_each_tier(|sampler| {
        for v in [1, 5, 16, 33, 1000, 1024, 5000] {
            let row = flat(&mut source(v as u64), v);
            for params in ways() {
                let truth = draw_at(sampler, &row, params, 0.3).expect("a good row");
                let (probs, kept) = filter(sampler, &row, params).expect("a good row");
                for shift in 0..17 {
                    let mut buffer = vec![f32::NAN; shift]; // a stray read is noticed
                    buffer.extend(&row);
                    buffer.push(f32::NAN);
                    let moved = &buffer[shift..shift + v];
                    assert_eq!(
                        draw_at(sampler, moved, params, 0.3),
                        Ok(truth),
                        "V = {v}, {shift} floats on"
                    );
                    let mut out = vec![9.0; v + 18];
                    assert_eq!(sampler.filter(moved, params, &mut out[shift..shift + v]), Ok(kept));
                    assert_eq!(out[shift..shift + v], probs[..]);
                    assert!(
                        out[..shift].iter().chain(&out[shift + v..]).all(|&x| x == 9.0),
                        "a stray write"
                    );
                }
            }
        }
    });
}

#[test]
fn top_p_edges() {
    let row: Vec<f32> =
        (0..3000).map(|i| if i == 40 || i == 2900 { 3.0 } else { (i % 7) as f32 * 0.25 }).collect();
    for_each_tier(|sampler| {
        for top_p in [0.0, -0.0, -1.0, f64::NEG_INFINITY, 1e-8, 1e-300, 5e-324] {
            let params = Params::default().with_top_p(top_p);
            assert_eq!(
                support_of(&filter(sampler, &row, params).expect("a good row").0),
                [40, 2900],
                "p = {top_p}"
            );
            let draw = accepts(sampler, &row, params.with_ties(Ties::LowestIndex));
            assert_eq!((draw.token, draw.kept, draw.probability), (40, 1, 1.0), "p = {top_p}");
        }
        for top_p in [1.0, 1.0 + f64::EPSILON, 2.0, f64::INFINITY] {
            let draw = accepts(sampler, &row, Params::default().with_top_p(top_p));
            assert_eq!((draw.kept as usize, draw.retained_mass), (row.len(), 1.0), "p = {top_p}");
        }
    });
    let rows = [row, flat(&mut source(1), 32_000), fitted(&mut source(2), 4_000), vec![0.0; 777]];
    let settings =
        [0.999_999_9, 1.0 - 1e-9, 1.0 - 1e-15, 0.5].map(|p| Params::default().with_top_p(p));
    matches_oracle("top_p", &rows, &settings);
}

/// `top_p = 1` keeps tokens whose mass no sum can hold.
#[test]
fn p_one_keeps_dust() {
    let mut row = vec![(1e-9f64).ln() as f32; 21];
    row[0] = 0.0;
    let deep: Vec<f32> = (0..2000).map(|i| if i == 1000 { 0.0 } else { -1e4 }).collect();
    for_each_tier(|sampler| {
        assert_eq!(accepts(sampler, &row, Params::default()).kept, 21);
        assert_eq!(accepts(sampler, &deep, Params::default()).kept, 2000);
        let draw = draw_at(sampler, &deep, Params::default(), LAST_U).expect("a good row");
        assert_eq!((draw.token, draw.probability), (1000, 1.0), "a token of weight 0 was drawn");
        let first = draw_at(sampler, &deep, Params::default(), 0.0).expect("a good row");
        assert_eq!(first.token, 1000, "a token of weight 0 was drawn");
    });
}

#[test]
fn top_k_edges() {
    for v in [1usize, 2, 16, 100, 2049] {
        let row: Vec<f32> = (0..v).map(|i| ((i * 7919) % v) as f32 * 0.01).collect(); // all differ
        for_each_tier(|sampler| {
            let k = |k: usize| Params::default().with_top_k(k as u32);
            for off in [0, v, v + 1, u32::MAX as usize] {
                let draw = accepts(sampler, &row, k(off));
                assert_eq!(
                    (draw.kept as usize, draw.retained_mass),
                    (v, 1.0),
                    "k = {off}, V = {v}"
                );
            }
            for on in [1, v / 2, v.saturating_sub(1)] {
                if (1..v).contains(&on) {
                    assert_eq!(accepts(sampler, &row, k(on)).kept as usize, on, "V = {v}");
                }
            }
        });
    }
    // Ties at the k-th place, all of them or the first; masked tokens do not fill places.
    let row = [1.0, 2.0, MASK, 2.0, 3.0, 2.0, -0.0, 0.0];
    for_each_tier(|sampler| {
        let mut kept = |k: u32, ties: Ties| {
            let params = Params::default().with_top_k(k).with_ties(ties);
            support_of(&filter(sampler, &row, params).expect("a good row").0)
        };
        assert_eq!(kept(1, Ties::Together), [4]);
        assert_eq!(kept(2, Ties::Together), [1, 3, 4, 5]);
        assert_eq!(kept(4, Ties::Together), [1, 3, 4, 5]);
        assert_eq!(kept(6, Ties::Together), [0, 1, 3, 4, 5, 6, 7]);
        assert_eq!(kept(2, Ties::LowestIndex), [1, 4]);
        assert_eq!(kept(3, Ties::LowestIndex), [1, 3, 4]);
        assert_eq!(kept(6, Ties::LowestIndex), [0, 1, 3, 4, 5, 6]);
        assert_eq!(kept(7, Ties::LowestIndex), [0, 1, 3, 4, 5, 6, 7]);
    });
}

#[test]
fn min_p_edges() {
    let row = [0.0, -1.0, 0.0, -700.0, -2.0, MASK, -1e4];
    for_each_tier(|sampler| {
        let mut kept = |min_p: f64| {
            let params = Params::default().with_min_p(min_p);
            let (_, kept) = filter(sampler, &row, params).expect("a good row");
            kept.kept
        };
        assert_eq!(kept(0.0), 6);
        assert_eq!(kept(-0.0), 6);
        assert_eq!(kept(1e-300), 4, "e^-700 is 9.86e-305");
        assert_eq!(kept(1e-304), 4, "e^-700 is 9.86e-305");
        assert_eq!(kept(1e-310), 5, "e^-700 is 9.86e-305, e^-1e4 is 0");
        assert_eq!(kept(0.3), 3);
        assert_eq!(kept(0.9), 2);
        assert_eq!(kept(1.0), 2, "the argmax and its ties survive");
    });
}

/// Thresholds that fall on 0, where a step to the next `f32` is the tiniest there is, and the
/// hottest temperatures, where every token is as likely as the first.
#[test]
fn min_p_thresholds_at_zero_and_at_infinity() {
    for max in [1.0f32, 0.5, 10.0, 1e-30] {
        let row =
            [max, 0.0, -0.0, 1e-45, -1e-45, 1e-20, -1e-20, -1e-8, max * 0.5, -max, -2.0 * max];
        for temperature in [1.0f32, 0.5, 3.0, f32::MAX, f32::INFINITY] {
            let at_zero = (-f64::from(max) / f64::from(temperature)).exp();
            let settings = [at_zero, at_zero * (1.0 - 1e-9), 0.5, 1.0 - 1e-9, 1.0]
                .map(|min_p| Params::default().with_temperature(temperature).with_min_p(min_p));
            matches_oracle("min_p", &[row.to_vec()], &settings);
        }
    }
    for_each_tier(|sampler| {
        let params = Params::default().with_temperature(f32::INFINITY).with_min_p(1.0);
        assert_eq!(accepts(sampler, &[1.0, f32::MIN, MASK, f32::MAX], params).kept, 3);
    });
}

/// Keys from one end of the `f32` range to the other.
#[test]
fn the_widest_rows() {
    let rows: Vec<Vec<f32>> = [f32::MAX, 1.0, 1e-45, -1e-45, -1e30]
        .map(|top| {
            (0..40)
                .map(|i| if i == 7 { top } else { f32::MIN + 2e35 * (i as f32).powi(2) })
                .collect()
        })
        .into();
    let mut settings = ways();
    settings.extend([0.0, 1e-8, 0.5].map(|p| Params::default().with_top_p(p)));
    settings.extend([1, 2, 30, 39].map(|k| Params::default().with_top_k(k).with_temperature(0.1)));
    matches_oracle("widest", &rows, &settings);
}

#[test]
fn greedy_takes_the_first_maximum() {
    let rows: [(&[f32], u32); 6] = [
        (&[1.0, 2.0], 1),
        (&[2.0, 2.0, 1.0], 0),
        (&[MASK, -3.0], 1),
        (&[-1.0, -0.0, 0.0, -0.0], 1),
        (&[-1.0, 0.0, -0.0], 1),
        (&[f32::MIN, MASK, f32::MIN], 0),
    ];
    for_each_tier(|sampler| {
        for temperature in [0.0, -0.0, -1.0, f32::MIN, f32::NEG_INFINITY, -1e-45] {
            // The cuts change nothing, whatever they are.
            for params in
                [Params::default(), Params::default().with_top_p(0.0).with_top_k(2).with_min_p(1.0)]
            {
                let params = params.with_temperature(temperature);
                for (row, token) in rows {
                    let draw = accepts(sampler, row, params);
                    assert_eq!((draw.token, draw.kept), (token, 1), "{row:?} at T = {temperature}");
                    assert_eq!((draw.probability, draw.retained_mass), (1.0, 1.0));
                    let (probs, _) = filter(sampler, row, params).expect("a good row");
                    assert_eq!(support_of(&probs), [token as usize]);
                    assert_eq!(probs[token as usize], 1.0);
                }
                // Long rows: the maximum twice, in any lane and block.
                for (first, second) in [
                    (0, 1),
                    (15, 16),
                    (16, 31),
                    (17, 1040),
                    (1023, 1024),
                    (3000, 3001),
                    (2999, 4998),
                ] {
                    let mut row = flat(&mut source(first as u64), 4999);
                    (row[first], row[second]) = (9.0, 9.0);
                    assert_eq!(accepts(sampler, &row, params).token as usize, first);
                }
            }
        }
    });
}

/// As cold as the smallest subnormal and as hot as infinity.
#[test]
fn temperature_edges() {
    let rows = [
        vec![1.0, 3.0, 2.0],
        vec![2.0, 2.0, 1.0],
        vec![MASK, 5.0, MASK, 5.0, 4.0],
        vec![f32::MAX, f32::MIN, 0.0, f32::MAX],
        vec![1e-45, 0.0, -1e-45],
        flat(&mut source(1), 2000),
        flat(&mut source(2), 5000),
        rows::huge(&mut source(3), 500),
        rows::masked(&mut source(4), 3000),
    ];
    let mut settings = vec![];
    for temperature in
        [1e-45, 1e-40, f32::MIN_POSITIVE, 1e-30, 1e-6, 1e6, 1e30, f32::MAX, f32::INFINITY]
    {
        for params in ways() {
            if params.temperature > 0.0 {
                settings.push(params.with_temperature(temperature));
                settings.push(
                    params
                        .with_temperature(temperature)
                        .with_temperature_at(TemperatureAt::AfterCut),
                );
            }
        }
    }
    matches_oracle("temperatures", &rows, &settings);
    for_each_tier(|sampler| {
        for cold in [1e-30, 1e-45, f32::MIN_POSITIVE] {
            let params = Params::default().with_temperature(cold);
            for u in [0.0, 0.5, LAST_U] {
                let draw = draw_at(sampler, &[1.0, 3.0, 2.0], params, u).expect("a good row");
                assert_eq!((draw.token, draw.probability), (1, 1.0));
            }
        }
        let (probs, _) =
            filter(sampler, &rows[2], Params::default().with_temperature(f32::INFINITY))
                .expect("good");
        let third = 1.0 / 3.0;
        assert_eq!(probs, [0.0, third, 0.0, third, third], "uniform over the unmasked");
    });
}

#[test]
fn masked_tokens_are_never_drawn() {
    let mut rng = source(9);
    for_each_tier(|sampler| {
        for v in [2, 17, 100, 1500] {
            let row = rows::masked(&mut rng, v);
            for params in ways() {
                let (probs, kept) = filter(sampler, &row, params).expect("a good row");
                for (i, &p) in probs.iter().enumerate() {
                    assert!(row[i] > MASK || p.to_bits() == 0, "probs[{i}] = {p}");
                }
                assert!(kept.kept as usize <= row.iter().filter(|&&x| x > MASK).count());
                for u in (0..20).map(|n| f64::from(n) / 20.0).chain([LAST_U]) {
                    let draw = draw_at(sampler, &row, params, u).expect("a good row");
                    assert!(row[draw.token as usize] > MASK && draw.probability > 0.0);
                }
            }
        }
        for u in [0.0, LAST_U] {
            assert_eq!(
                draw_at(sampler, &[MASK, 0.0], Params::default(), u).expect("good").token,
                1
            );
            assert_eq!(
                draw_at(sampler, &[0.0, MASK], Params::default(), u).expect("good").token,
                0
            );
        }
    });
}

/// Masked tokens count nowhere: taking them out changes nothing but the ids.
#[test]
fn masked_tokens_count_nowhere() {
    let row = rows::masked(&mut source(10), 600);
    let ids: Vec<usize> = (0..row.len()).filter(|&i| row[i] > MASK).collect();
    let short: Vec<f32> = ids.iter().map(|&i| row[i]).collect();
    assert!(short.len() < row.len());
    for_each_tier(|sampler| {
        for params in ways() {
            let (long, short) = (accepts(sampler, &row, params), accepts(sampler, &short, params));
            assert_eq!((long.token as usize, long.kept), (ids[short.token as usize], short.kept));
            assert!(
                (long.retained_mass - short.retained_mass).abs()
                    <= long.mass_error + short.mass_error
            );
            let error = long.probability_error + short.probability_error;
            assert!((long.probability - short.probability).abs() <= error);
        }
    });
}

#[test]
fn rows_of_every_shape() {
    let mut settings = ways();
    settings.push(Params::default().with_top_k(2048));
    settings.push(Params::default().with_top_p(0.1));
    for &(name, shape) in rows::SHAPES {
        let rows: Vec<_> =
            [1, 2, 31, 1_000, 4_100].iter().map(|&v| shape(&mut source(v as u64), v)).collect();
        matches_oracle(name, &rows, &settings);
    }
}

/// Rows whose logits fall into one coarse bin lost tokens elsewhere.
#[test]
fn narrow_bands_lose_nothing() {
    let logits: Vec<f32> =
        (0..16_385).map(|i| 1.0 + 0.2449 * ((i * 7919) % 16_385) as f32 / 16_385.0).collect();
    for_each_tier(|sampler| {
        assert_eq!(accepts(sampler, &logits, Params::default().with_top_k(2048)).kept, 2048);
    });
    let p = Params::default();
    matches_oracle(
        "narrow band",
        &[band_at_ten(&mut source(1), 40_000), all_equal(&mut source(2), 20_000)],
        &[
            p.with_top_k(1),
            p.with_top_k(64),
            p.with_top_k(2048),
            p.with_top_p(0.1),
            p.with_top_p(0.9),
        ],
    );
}

/// More ties than are packed (4,096 in a short row): the cut right above them, among them, right
/// below, at the floor of min-p, and with all of what lies below kept too.
#[test]
fn cuts_beside_more_ties_than_are_packed() {
    let rng = &mut source(12);
    let tie = 1.0f32;
    for (above, ties, below) in [(100, 4_200, 1_500), (2_000, 4_200, 20), (0, 4_200, 900)] {
        let spread = |rng: &mut _, from: f64| (from + rows::uniform(rng)) as f32;
        let mut row: Vec<f32> = (0..above).map(|_| spread(rng, 1.1)).collect();
        row.extend(std::iter::repeat_n(tie, ties));
        row.extend((0..below).map(|_| spread(rng, -0.1)));
        rows::shuffle(rng, &mut row);
        let max = row.iter().copied().fold(tie, f32::max);
        let weight = |x: f32| (f64::from(x) - f64::from(max)).exp();
        let mass =
            |least: f32| row.iter().filter(|&&x| x >= least).map(|&x| weight(x)).sum::<f64>();
        let (all, with_ties, over) = (mass(f32::MIN), mass(tie), mass(tie.next_up()));
        let p = Params::default();
        let mut settings = Vec::new();
        for edge in [over / all, with_ties / all, (over + with_ties) / 2.0 / all, 1.0 - 1e-12] {
            for off in [-1e-7, 1e-10, 1e-3] {
                settings.push(p.with_top_p((edge + off).clamp(0.0, 1.0)));
            }
        }
        for k in [above, above + 1, above + ties - 1, above + ties, above + ties + 1] {
            settings.push(p.with_top_k(k as u32));
        }
        // The ties are the last that min-p lets through; or somebody below them is.
        for floor in [weight(tie) * (1.0 - 1e-9), weight(tie - 0.3)] {
            let p = p.with_min_p(floor);
            for top_p in [0.5, with_ties / all, with_ties / all + 1e-7, 1.0 - 1e-12] {
                settings.push(p.with_top_p(top_p));
            }
            settings.extend([above + 1, above + ties, 5_500].map(|k| p.with_top_k(k as u32)));
        }
        for p in settings.iter_mut().skip(1).step_by(2) {
            *p = p.with_ties(Ties::LowestIndex);
        }
        if std::env::var_os("TOPMASS_SHORT").is_some() {
            let mut place = 0..;
            settings.retain(|_| place.next().is_some_and(|i: usize| i.is_multiple_of(5)));
        }
        matches_oracle("large ties", &[row], &settings);
    }
}

/// Equal tokens have exact sums, so the last of the 53 bits of `u` decides, and the eleven below it
/// do not.
#[test]
fn the_uniform_has_53_bits() {
    let half = 1u64 << 63;
    for v in [2, 64, 4096] {
        let row = vec![1.0; v];
        for (bits, token) in [(half - 1, v / 2 - 1), (half, v / 2), (half + 0x7ff, v / 2)] {
            let draw = |rng: &mut Scripted| reference::sample(&row, Params::default(), rng);
            let found = draw(&mut Scripted::new(&[bits])).expect("a good row");
            assert_eq!(found.token as usize, token, "V = {v}, {bits:#x}");
            for_each_tier(|sampler| {
                let mut rng = Scripted::new(&[bits]);
                let found = sampler.sample(&row, Params::default(), &mut rng).expect("a good row");
                assert_eq!(found.token as usize, token, "V = {v}, {bits:#x}, {:?}", sampler.tier());
            });
        }
    }
}

#[test]
fn every_one_of_equal_tokens_can_be_drawn() {
    const V: usize = 5_000;
    for_each_tier(|sampler| {
        for i in (0..V).step_by(61).chain([V - 1]) {
            let u = (i as f64 + 0.5) / V as f64;
            assert_eq!(
                draw_at(sampler, &[1.5; V], Params::default(), u).expect("good").token as usize,
                i
            );
        }
    });
}

#[test]
fn tiers_have_names_everywhere() {
    let available = Tier::available();
    assert!(available.contains(&Tier::Portable) && available.contains(&Tier::detected()));
    for tier in [Tier::Portable, Tier::Avx2, Tier::Avx512, Tier::Neon] {
        match Sampler::with_tier(tier) {
            Ok(sampler) => assert!(available.contains(&tier) && sampler.tier() == tier),
            Err(error) => {
                assert!(!available.contains(&tier));
                assert_eq!(error, Error::UnsupportedTier { tier });
            }
        }
    }
    samplers(); // a tier that TOPMASS_REQUIRE_TIER names is here
}

/// Any `f32`, the odd ones often.
fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite()),
        4 => -20.0f32..20.0,
        1 => prop::sample::select(vec![MASK, 0.0, -0.0, f32::MAX, f32::MIN, 1e-45, f32::MIN_POSITIVE]),
    ]
}

fn any_params() -> impl Strategy<Value = Params> {
    let bits32 = any::<u32>().prop_map(f32::from_bits);
    let bits64 = || any::<u64>().prop_map(f64::from_bits);
    (
        prop_oneof![bits32, 0.1f32..3.0, Just(1.0)],
        prop_oneof![bits64(), 0.0..1.0, Just(1.0)],
        prop_oneof![any::<u32>(), 0u32..50, Just(0)],
        prop_oneof![bits64(), 0.0..1.0, Just(0.0)],
        any::<[bool; 3]>(),
    )
        .prop_map(|(temperature, top_p, top_k, min_p, flags)| {
            let params = Params::default().with_temperature(temperature).with_top_p(top_p);
            let params = params.with_top_k(top_k).with_min_p(min_p);
            with_choices(params, flags).with_exact_mass(flags[0] != flags[1])
        })
}

/// Refused with the reference's error, or drawn as the oracle draws.
fn like_the_reference(logits: &[f32], params: Params) {
    match reference::kept_set(logits, params) {
        Err(error) => for_each_tier(|sampler| refuses(sampler, logits, params, &error)),
        Ok(_) => {
            let mut tally = Tally::default();
            let expected = Expected::of(logits, params);
            let us = expected.draws(&mut source(1));
            expected.agrees_with_reference(logits, &us);
            tally.compare(&mut samplers(), logits, &expected, &us);
            tally.finish_quietly();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_500) })]

    #[test]
    fn any_finite_bits(logits in prop::collection::vec(any_logit(), 0..100), params in any_params()) {
        like_the_reference(&logits, params);
    }

    #[test]
    fn any_bits(bits in prop::collection::vec(any::<u32>(), 0..100), params in any_params()) {
        let logits: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        like_the_reference(&logits, params);
    }
}
