//! Instructions that the step and its stages take, counted by Callgrind on fixed rows:
//!
//! ```text
//! bash scripts/bench-instructions            # installs what it needs; fails above a limit
//! bash scripts/bench-instructions --write    # writes benches/instructions.txt anew
//! ```
//!
//! Counts do not depend on how busy the machine is, so a limit a few percent above the present
//! count can be hard. Valgrind hides AVX-512 from the program: it is the AVX2 tier that is
//! counted, on any CPU that has it.

#![allow(missing_docs)] // the macros write public items

use std::hint::black_box;

use iai_callgrind::{
    Callgrind, EventKind, LibraryBenchmarkConfig, library_benchmark, library_benchmark_group, main,
};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use topmass::{MassBase, Mirostat, Params, Sampler, Tier};

use stages::{Stage, Stages};

#[allow(dead_code)] // those of `step`, too
#[path = "support/stages.rs"]
mod stages;

const TIER: Tier = Tier::Avx2;
const V: usize = 49_152;
/// The counts, as `--write` found them: lines of a name and a number.
const COUNTS: &str = include_str!("instructions.txt");
/// What may come on top, in percent.
const MARGIN: u64 = 3;

type Job = Box<dyn FnMut()>;

macro_rules! count {
    ($($name:ident)*) => {
        #[library_benchmark]
        $(#[bench::$name(args = (stringify!($name)), setup = job, config = limit(stringify!($name)))])*
        fn instructions(mut job: Job) -> Job {
            job();
            job
        }
    };
}

count! {
    greedy temperature top_p top_p_flat top_p_tied chain chain_of_top_k min_p
    mirostat_v1 mirostat_v2 filter
    bare_max scan scan_quick scan_close scan_count reach pack weigh cut_off kept_masses all_masses split locate
    write_probabilities entropy
}

library_benchmark_group!(name = step; benchmarks = instructions);
main!(library_benchmark_groups = step);

/// Without a count, or where `TOPMASS_LIMITS` is `off`, there is no limit.
fn limit(name: &str) -> LibraryBenchmarkConfig {
    let mut callgrind = Callgrind::with_args(["--cache-sim=no"]);
    let line = COUNTS.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    if let Some(count) = line.filter(|_| std::env::var_os("TOPMASS_LIMITS").is_none()) {
        let count: u64 = count.parse().expect("a count");
        callgrind.hard_limits([(EventKind::Ir, count + count * MARGIN / 100)]);
    }
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(callgrind);
    config
}

/// A job that was done once: scratch is there, and dispatch has been decided.
fn job(name: &str) -> Job {
    let p = Params::default();
    let p9 = p.with_top_p(0.9);
    let chain = p.with_temperature(0.8).with_top_k(40).with_top_p(0.95).with_min_p(0.05);
    let mut job = match name {
        "greedy" => sample(real(), p.with_temperature(0.0)),
        "temperature" => sample(real(), p),
        "top_p" => sample(real(), p9),
        "top_p_flat" => sample(flat(), p9),
        "top_p_tied" => sample(tied(), p9),
        "chain" => sample(real(), chain),
        "chain_of_top_k" => sample(real(), chain.with_mass_base(MassBase::TopK)),
        "min_p" => sample(real(), p.with_min_p(0.05)),
        "mirostat_v1" => mirostat(Mirostat::v1),
        "mirostat_v2" => mirostat(Mirostat::v2),
        "filter" => {
            let (mut sampler, row, mut probs) = (sampler(), real(), vec![0.0; V]);
            Box::new(move || _ = black_box(sampler.filter(&row, p9, &mut probs)))
        }
        "bare_max" => stage(Stage::BareMax),
        "scan" => stage(Stage::Scan),
        "scan_quick" => stage(Stage::ScanQuick),
        "scan_close" => stage(Stage::ScanClose),
        "scan_count" => stage(Stage::ScanCount),
        "reach" => stage(Stage::Reach),
        "pack" => stage(Stage::Pack),
        "weigh" => stage(Stage::Weigh),
        "cut_off" => stage(Stage::CutOff),
        "kept_masses" => stage(Stage::KeptMasses),
        "all_masses" => stage(Stage::AllMasses),
        "split" => stage(Stage::Split),
        "locate" => stage(Stage::Locate),
        "write_probabilities" => stage(Stage::WriteProbabilities),
        "entropy" => stage(Stage::Entropy),
        _ => panic!("no job {name}"),
    };
    job();
    job
}

fn sampler() -> Sampler {
    Sampler::with_tier(TIER).unwrap_or_else(|e| panic!("{e}"))
}

fn sample(row: Vec<f32>, params: Params) -> Job {
    let (mut sampler, mut rng) = (sampler(), Xoshiro256PlusPlus::seed_from_u64(7));
    Box::new(move || _ = black_box(sampler.sample(&row, params, &mut rng).expect("a good row")))
}

fn mirostat(new: fn(f64, f64) -> Mirostat) -> Job {
    let (mut sampler, row) = (sampler(), real());
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    Box::new(move || {
        let draw = new(3.0, 0.1).sample_with(&mut sampler, &row, 1.0, &mut rng);
        black_box(draw.expect("a good row"));
    })
}

fn stage(stage: Stage) -> Job {
    let mut stages = Stages::new(TIER, V);
    let aim = stages.find(real().leak());
    stages.start(aim, stage);
    Box::new(move || _ = black_box(stages.run(stage)))
}

/// The last row of the committed story: the end of a plain little-endian file.
fn real() -> Vec<f32> {
    let file = include_bytes!("../tests/data/logits/story.npy");
    let (numbers, _) = file[file.len() - 4 * V..].as_chunks();
    numbers.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

/// About N(0, 1), from integers alone: the sum of four uniform ones.
fn flat() -> Vec<f32> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(7);
    let mut row = || {
        let bits = rng.next_u64();
        let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
        (sum as f32 - 131_070.0) / 37_837.0
    };
    (0..V).map(|_| row()).collect()
}

/// The same in multiples of 1/16.
fn tied() -> Vec<f32> {
    flat().iter().map(|x| (x * 32.0).round() / 16.0).collect()
}
