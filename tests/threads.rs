//! Many threads at once, threads that fail, and what the types promise to them.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::fmt::Debug;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use rand::Rng;
use topmass::{
    BatchError, Draw, Error, Kept, Mirostat, MirostatDraw, NucleusLog, Params, Rungs, Sampler,
    StepStats, SurpriseBase, Tier, UnknownTier, filter_fused, sample_fused,
};

mod support;

use support::rows::{Source, choices, fitted, five_integers, flat, pick, source};

const THREADS: usize = 8;
const STEPS: usize = if cfg!(debug_assertions) { 60 } else { 400 };

/// Rows that take different ways, and settings for each.
fn work() -> Vec<(Vec<f32>, Params)> {
    let rng = &mut source(31);
    let settings = [
        Params::default().with_top_p(0.9),
        Params::default().with_temperature(0.8).with_top_k(40).with_top_p(0.95).with_min_p(0.05),
        Params::default(),
        Params::default().with_top_p(0.999_999),
    ];
    let mut work = Vec::new();
    for v in [1, 50, 1_024, 5_000, 20_000] {
        for shape in [fitted, flat, five_integers] {
            let params = pick(rng, &settings);
            work.push((shape(rng, v), choices(rng, params)));
        }
    }
    work
}

/// A thread's draws, with all their bits, by `sample`.
fn decode(
    work: &[(Vec<f32>, Params)],
    seed: u64,
    mut sample: impl FnMut(&[f32], Params, &mut Source) -> Result<Draw, Error>,
) -> Vec<Result<Draw, Error>> {
    let mut rng = source(seed);
    let steps = work.iter().cycle().skip(seed as usize).take(STEPS);
    steps.map(|(row, params)| sample(row, *params, &mut rng)).collect()
}

/// By the per-thread path and by samplers of their own, all at once, on shared rows and `&Params`:
/// every thread draws what it would draw alone.
#[test]
fn threads_do_not_meet() {
    let work = work();
    let mut sampler = Sampler::new();
    let alone: Vec<_> = (0..THREADS as u64)
        .map(|seed| decode(&work, seed, |row, params, rng| sampler.sample(row, params, rng)))
        .collect();
    let start = Barrier::new(2 * THREADS);
    thread::scope(|scope| {
        for (seed, alone) in (0..).zip(&alone) {
            let (work, start) = (&work, &start);
            scope.spawn(move || {
                start.wait();
                assert!(decode(work, seed, sample_fused) == *alone, "thread {seed}");
            });
            scope.spawn(move || {
                let mut sampler = Sampler::new();
                start.wait();
                let draws = decode(work, seed, |row, params, rng| sampler.sample(row, params, rng));
                assert!(draws == *alone, "thread {seed}, by its own sampler");
            });
        }
    });
}

/// A sampler made here, used there, and used here again.
#[test]
fn a_sampler_moves_between_threads() {
    let work = work();
    let mut sampler = Sampler::new();
    let expected = decode(&work, 1, |row, params, rng| sampler.sample(row, params, rng));
    let moved = thread::spawn(move || {
        let work = self::work();
        let draws = decode(&work, 1, |row, params, rng| sampler.sample(row, params, rng));
        (sampler, draws)
    });
    let (mut sampler, draws) = moved.join().expect("the thread is well");
    assert!(draws == expected);
    let again = decode(&work, 1, |row, params, rng| sampler.sample(row, params, rng));
    assert!(again == expected);
}

/// An rng that panics in the middle of a draw.
struct Panics;

impl rand::TryRng for Panics {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        panic!("as asked")
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        panic!("as asked")
    }

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
        panic!("as asked")
    }
}

/// A panic spoils nothing: not for other threads, not for the next row of the thread that caught
/// it, not for the sampler that it went through.
#[test]
fn a_panic_poisons_nothing() {
    let work = work();
    let expected = decode(&work, 2, sample_fused);
    let caught = |f: &mut dyn FnMut()| {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
        let message = result.expect_err("the rng panics");
        assert_eq!(message.downcast_ref::<&str>(), Some(&"as asked"));
    };
    thread::scope(|scope| {
        let dead = scope.spawn(|| sample_fused(&work[5].0, Params::default(), &mut Panics));
        assert!(dead.join().is_err());
        let well = scope.spawn(|| decode(&work, 2, sample_fused));
        assert!(well.join().expect("another thread's panic is not its own") == expected);
    });
    caught(&mut || drop(sample_fused(&work[7].0, Params::default(), &mut Panics)));
    assert!(decode(&work, 2, sample_fused) == expected);

    let mut sampler = Sampler::new();
    for (row, params) in &work {
        caught(&mut || drop(sampler.sample(row, *params, &mut Panics)));
    }
    let draws = decode(&work, 2, |row, params, rng| sampler.sample(row, params, rng));
    assert!(draws == expected);
}

/// An rng that samples another row while it is being drawn from.
struct Samples(Source);

impl rand::TryRng for Samples {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        unreachable!("the contract draws with next_u64")
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        let inner = sample_fused(&[1.0; 3_000], Params::default().with_top_p(0.5), &mut self.0);
        assert_eq!(inner.map(|draw| draw.kept), Ok(3_000));
        Ok(1 << 63)
    }

    fn try_fill_bytes(&mut self, _: &mut [u8]) -> Result<(), Self::Error> {
        unreachable!("the contract draws with next_u64")
    }
}

#[test]
fn an_rng_may_sample() {
    for (row, params) in work() {
        let plain = sample_fused(&row, params, &mut support::Scripted::new(&[1 << 63]));
        assert_eq!(sample_fused(&row, params, &mut Samples(source(1))), plain);
    }
}

/// A step in the destructor of a thread-local, when the thread's own sampler may be gone.
#[test]
fn a_thread_may_sample_while_it_ends() {
    type Result = Mutex<Option<std::result::Result<Draw, Error>>>;
    struct AtTheEnd(Arc<Result>);
    impl Drop for AtTheEnd {
        fn drop(&mut self) {
            *self.0.lock().expect("not poisoned") = Some(one_step());
        }
    }
    fn one_step() -> std::result::Result<Draw, Error> {
        sample_fused(&[0.0, 3.0, 1.0], Params::default().with_top_p(0.9), &mut source(3))
    }
    thread_local!(static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) });

    for before in [false, true] {
        let result = Arc::new(Result::default());
        let theirs = Arc::clone(&result);
        thread::spawn(move || {
            // Destructors run in some order: the sampler's before this one's, or after.
            if before {
                one_step().expect("a good row");
            }
            LAST.set(Some(AtTheEnd(theirs)));
            one_step().expect("a good row");
        })
        .join()
        .expect("the thread is well");
        assert_eq!(*result.lock().expect("not poisoned"), Some(one_step()));
    }
}

/// Any rng will do, also one that is only known by its trait.
#[test]
fn an_rng_without_a_type() {
    let (row, params) = (&[0.0, 1.0, 2.0], Params::default());
    let dynamic: &mut dyn Rng = &mut source(4);
    let mut same = source(4);
    assert_eq!(sample_fused(row, params, dynamic), sample_fused(row, params, &mut same));
    assert_eq!(Sampler::new().sample(row, params, dynamic), sample_fused(row, params, &mut same));
    let draw = Mirostat::v2(3.0, 0.1).sample(row, 1.0, dynamic);
    assert_eq!(draw, Mirostat::v2(3.0, 0.1).sample(row, 1.0, &mut same));
    assert!(filter_fused(row, params, &mut [0.0; 3]).is_ok());
}

/// What the contract says of the types, for the compiler to check.
#[test]
fn types_are_what_they_promise() {
    fn plain<T: Copy + Debug + PartialEq + Send + Sync + Unpin + 'static>() {}
    plain::<Params>();
    plain::<Draw>();
    plain::<Kept>();
    plain::<StepStats>();
    plain::<Tier>();
    plain::<MirostatDraw>();
    plain::<SurpriseBase>();
    plain::<Rungs>();
    fn error<T: Clone + Debug + PartialEq + StdError + Send + Sync + 'static>() {}
    error::<Error>();
    error::<BatchError>();
    error::<UnknownTier>();
    fn state<T: Clone + Debug + Send + Sync + Unpin + 'static>() {}
    state::<Sampler>();
    state::<NucleusLog>();
    state::<Mirostat>();
    let boxed: Box<dyn StdError + Send + Sync> = Error::AllMasked.into();
    assert_eq!(boxed.to_string(), "every logit is -inf: nothing can be drawn");
}
