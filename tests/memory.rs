//! Nothing outside of logits, probabilities and scratch is touched: all of them, and everything
//! else that a call allocates, lie against pages that may not be, on one side and then on the other.
//! And every answer is the one for the same row elsewhere in memory, which the oracle finds right.
//!
//! `TOPMASS_SHORT=1`, for emulators, and debug builds: every length still, but one row of it at one
//! setting, in turn.
//! `TOPMASS_FENCE=off` leaves the heap to a tool that watches it.
#![cfg(target_os = "linux")]

#[path = "../kernels/tests/support/fence.rs"]
mod fence;
mod support;

use fence::{Fence, Side, fenced, readable};
use support::oracle::{Expected, Tally};
use support::rows::{Shape, fitted, five_integers, flat, source};
use support::{LAST_U, Scripted, draw_at, samplers};
use topmass::{
    Draw, Error, Kept, MassBase, Mirostat, MirostatDraw, Params, Sampler, StepStats, SurpriseBase,
    TemperatureAt, Tier, Ties, reference, sample_batch,
};

#[global_allocator]
static ALLOCATOR: Fence = Fence;

const US: [f64; 2] = [0.4, LAST_U];

/// Peaked, flat, tied.
const SHAPES: [Shape; 3] = [fitted, flat, five_integers];

fn sides() -> &'static [Side] {
    if std::env::var("TOPMASS_FENCE").is_ok_and(|fence| fence == "off") {
        &[Side::Neither]
    } else {
        &[Side::Before, Side::After]
    }
}

fn tiers() -> Vec<Tier> {
    samplers().iter().map(Sampler::tier).collect()
}

/// Every way through the step.
fn settings() -> [Params; 13] {
    let p = Params::default();
    [
        p.with_top_p(0.9),
        p.with_temperature(0.8),
        p.with_temperature(0.0),
        p.with_top_k(7),
        p.with_min_p(0.02),
        p.with_temperature(0.7).with_top_p(0.95).with_top_k(40).with_min_p(1e-3),
        p.with_top_p(0.999_999_9),
        p.with_top_p(0.8).with_ties(Ties::LowestIndex),
        p.with_top_k(3).with_ties(Ties::LowestIndex),
        p.with_top_k(20).with_top_p(0.7).with_mass_base(MassBase::TopK),
        p.with_temperature(2.0).with_top_p(0.6).with_temperature_at(TemperatureAt::AfterCut),
        p.with_top_p(0.9).with_exact_mass(true),
        // More than scratch has room for, where that does not grow with the row yet.
        p.with_top_k(7000).with_ties(Ties::LowestIndex),
    ]
}

fn controllers() -> [Mirostat; 4] {
    let kept = SurpriseBase::Kept;
    [
        Mirostat::v1(3.0, 0.1),
        Mirostat::v2(3.0, 0.1),
        Mirostat::v1(6.0, 0.1).with_surprise_base(kept),
        Mirostat::v2(6.0, 0.1).with_surprise_base(kept),
    ]
}

/// `few` of them, at each turn those that follow, and so another one first: scratch is made for that.
fn some<T: Clone>(all: &[T], few: usize, turn: usize) -> Vec<T> {
    let short = cfg!(debug_assertions) || std::env::var_os("TOPMASS_SHORT").is_some();
    let few = if short { 1 } else { few };
    all.iter().cycle().skip(turn * few % all.len()).take(few).cloned().collect()
}

/// All that can be asked of a row at a setting.
#[derive(Debug, PartialEq)]
struct Step {
    draws: [Result<Draw, Error>; 2],
    /// The probabilities as bits.
    kept: Result<(Kept, Vec<u32>), Error>,
    stats: Result<StepStats, Error>,
}

type Answers = (Vec<Step>, Vec<[Result<MirostatDraw, Error>; 2]>);

/// Asks with scratch that is allocated for this row.
fn ask(tier: Tier, row: &[f32], settings: &[Params], controllers: &[Mirostat]) -> Answers {
    let mut sampler = Sampler::with_tier(tier).expect("an available tier");
    let mut probs = vec![f32::NAN; row.len()];
    let step = |&params: &Params| {
        let kept = sampler.filter(row, params, &mut probs);
        Step {
            draws: US.map(|u| draw_at(&mut sampler, row, params, u)),
            kept: kept.map(|kept| (kept, probs.iter().map(|p| p.to_bits()).collect())),
            stats: sampler.inspect(row, params),
        }
    };
    let steps = settings.iter().map(step).collect();
    let draw = |controller: &Mirostat| {
        US.map(|u| controller.clone().sample_with(&mut sampler, row, 1.0, &mut Scripted::at(u)))
    };
    (steps, controllers.iter().map(draw).collect())
}

/// Asks of a copy of the row against the fence, on every tier. There are `gap` floats between them,
/// which are NaN: reading one would show.
fn same_against_the_fence(
    row: &[f32],
    gap: usize,
    settings: &[Params],
    controllers: &[Mirostat],
    truth: &Answers,
) {
    for &side in sides() {
        let start = if side == Side::After { 0 } else { gap };
        for tier in tiers() {
            let found = fenced(side, || {
                let mut buffer = vec![f32::NAN; row.len() + gap];
                let copy = &mut buffer[start..start + row.len()];
                copy.copy_from_slice(row);
                ask(tier, copy, settings, controllers)
            });
            let place = format!("{side:?}, gap {gap}, {tier}, V = {}", row.len());
            for (n, params) in settings.iter().enumerate() {
                assert!(found.0[n] == truth.0[n], "{place}, {params:?}");
            }
            assert_eq!(found.1, truth.1, "{place}, {controllers:?}");
        }
    }
}

fn check(row: &[f32], gap: usize, turn: usize) {
    // The three rows of a length are asked at all of the settings.
    let (settings, controllers) = (some(&settings(), 5, turn), some(&controllers(), 2, turn));
    let truth = ask(Tier::Portable, row, &settings, &controllers);
    same_against_the_fence(row, gap, &settings, &controllers, &truth);

    let plain = Sampler::with_tier(Tier::Portable).expect("runs everywhere");
    let (mut plain, mut tally) = ([plain], Tally::default());
    tally.context = format!("V = {}", row.len());
    for params in settings {
        tally.compare(&mut plain, row, &Expected::of(row, params), &US);
    }
    tally.finish_quietly();
    let kept = |draw: &Result<MirostatDraw, Error>| draw.clone().map(|d| (d.token, d.kept));
    for (controller, draws) in controllers.into_iter().zip(&truth.1) {
        for (draw, u) in draws.iter().zip(US) {
            let rng = &mut Scripted::at(u);
            let right = reference::mirostat(&mut controller.clone(), row, 1.0, rng);
            assert_eq!(kept(draw), kept(&right), "V = {}, {controller:?}", row.len());
        }
    }
}

/// Every length up to 300, and those around blocks, up to where scratch begins to grow with the row.
fn lengths() -> impl Iterator<Item = usize> {
    let around = |n: usize| [n - 17, n - 1, n, n + 1, n + 17];
    let long = [5 * 4096 + 17, 5 * 4096 - 1, 8209, 8192];
    (1..=300).chain([1024, 2048, 4096].into_iter().flat_map(around)).chain(some(&long, 4, 0))
}

#[test]
fn every_length_against_the_fence() {
    for v in lengths() {
        for (i, shape) in some(&SHAPES, 3, v).into_iter().enumerate() {
            check(&shape(&mut source(v as u64), v), 0, v + i);
        }
    }
}

/// A row that ends at a page's end begins where its length has it. With a gap it begins elsewhere.
#[test]
fn every_start_near_the_fence() {
    for v in [1, 5, 16, 33, 300, 1023, 1025] {
        let row = fitted(&mut source(v as u64), v);
        let gaps: Vec<usize> = (1..=16).collect();
        some(&gaps, 16, v).into_iter().for_each(|gap| check(&row, gap, gap));
    }
}

/// Which index is at fault is looked for in the whole row.
#[test]
fn refused_rows_against_the_fence() {
    for v in lengths() {
        let row = flat(&mut source(v as u64), v);
        let with = |i: usize, x: f32| {
            let mut row = row.clone();
            row[i] = x;
            row
        };
        let refused = [
            (with(v - 1, f32::NAN), Error::NotANumber { index: v - 1 }),
            (with(0, f32::INFINITY), Error::PositiveInfinity { index: 0 }),
            (vec![f32::NEG_INFINITY; v], Error::AllMasked),
        ];
        // One will do: what is refused is refused before they differ.
        let (settings, controllers) = (some(&settings(), 1, v), some(&controllers(), 1, v));
        for (row, error) in some(&refused, 3, v) {
            let truth = ask(Tier::Portable, &row, &settings, &controllers);
            for Step { draws, kept, stats } in &truth.0 {
                assert!(draws.iter().all(|draw| draw.as_ref() == Err(&error)), "V = {v}");
                assert_eq!(
                    (kept.as_ref().err(), stats.as_ref().err()),
                    (Some(&error), Some(&error))
                );
            }
            assert!(truth.1.iter().flatten().all(|draw| draw.as_ref() == Err(&error)), "V = {v}");
            same_against_the_fence(&row, 0, &settings, &controllers, &truth);
        }
    }
}

/// On a thread of its own, whose scratch is new (with `rayon`, on those of the pool). A row that is
/// refused lies between others.
#[test]
fn batches_against_the_fence() {
    for v in lengths() {
        let params = some(&settings(), 4, v);
        let (mut rows, mut truth) = (vec![], vec![]);
        for (i, &params) in params.iter().enumerate() {
            let mut row = SHAPES[i % 3](&mut source(v as u64), v);
            if i == 1 {
                row[v - 1] = f32::NAN;
            }
            let sampler = &mut Sampler::with_tier(Tier::Portable).expect("runs everywhere");
            truth.push(draw_at(sampler, &row, params, US[0]));
            rows.extend(row);
        }
        for &side in sides() {
            let draw = || {
                let logits = rows.clone();
                let mut rngs: Vec<Scripted> = params.iter().map(|_| Scripted::at(US[0])).collect();
                let mut draws = vec![Err(Error::EmptyRow); params.len()];
                sample_batch(&logits, v, &params, &mut rngs, &mut draws).expect("lengths that fit");
                draws
            };
            let found = fenced(side, || std::thread::scope(|s| s.spawn(draw).join()));
            assert_eq!(found.expect("no panic"), truth, "{side:?}, V = {v}");
        }
    }
}

/// What the tests above rely on, without dying of it: the kernel refuses to read one byte further.
#[test]
fn the_fence_stands() {
    for side in [Side::Before, Side::After] {
        for len in [1, 2, 7, 300, 1024, 100_000] {
            let block = fenced(side, || vec![1.5f32; len]);
            let (first, last) =
                (block.as_ptr().cast::<u8>(), block.as_ptr_range().end.cast::<u8>());
            assert!(readable(first) && readable(last.wrapping_sub(1)), "{side:?}, {len} floats");
            let (outside, inside) = match side {
                Side::Before => (first.wrapping_sub(1), last),
                _ => (last, first.wrapping_sub(1)),
            };
            assert!(!readable(outside) && readable(inside), "{side:?}, {len} floats");
            drop(block);
            assert!(!readable(first), "{side:?}, {len} floats: freed");
        }
    }
    let block = vec![1.5f32; 300];
    assert!(readable(block.as_ptr_range().end.cast()), "no fence was asked for");
}
