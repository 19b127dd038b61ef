//! The step's stages one by one, each on what the stage before it made of the row.

use topmass::{Params, Sampler, Tier, reference};
use topmass_kernels::draw::{kept_masses, locate, split, write_probabilities};
use topmass_kernels::entropy::spread;
use topmass_kernels::floor::{bare_exp_sum, bare_max};
use topmass_kernels::scan::{Exponential, Traces, scan};
use topmass_kernels::select::{Packed, first_at_least, pack, reach};
use topmass_kernels::threshold::{self, Found, Verdict, Weighed, Workspace, cut_off};
use topmass_kernels::{Cut, Isa, Mass, Scale, weigh};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stage {
    BareMax,
    BareMaxAndExpSum,
    Scan,
    ScanQuick,
    ScanClose,
    ScanCount,
    FirstAtLeast,
    Reach,
    Pack,
    Weigh,
    CutOff,
    KeptMasses,
    AllMasses,
    Split,
    Locate,
    WriteProbabilities,
    Entropy,
}

impl Stage {
    pub const ALL: [Stage; 17] = [
        Stage::BareMax,
        Stage::BareMaxAndExpSum,
        Stage::Scan,
        Stage::ScanQuick,
        Stage::ScanClose,
        Stage::ScanCount,
        Stage::FirstAtLeast,
        Stage::Reach,
        Stage::Pack,
        Stage::Weigh,
        Stage::CutOff,
        Stage::KeptMasses,
        Stage::AllMasses,
        Stage::Split,
        Stage::Locate,
        Stage::WriteProbabilities,
        Stage::Entropy,
    ];

    /// Whether it is the first to read the row.
    pub fn reads_first(self) -> bool {
        use Stage::*;
        matches!(self, BareMax | BareMaxAndExpSum | Scan | ScanQuick | ScanClose | ScanCount)
    }
}

/// As many elements are selected, where they weigh less than the nucleus.
const NEED: u64 = 512;
/// The nucleus that is cut.
const P: f64 = 0.9;
/// Where the draw lies.
const U: f64 = 0.5;

/// A row, and what its stages are told about it.
#[derive(Clone, Copy)]
pub struct Aim<'a> {
    row: &'a [f32],
    max: f32,
    low: f32,
    cut: Cut,
    total: f64,
}

/// The scratch of a sampler, aimed at one row after another.
pub struct Stages<'a> {
    isa: Isa,
    scale: Scale,
    aim: Aim<'a>,
    traces: Traces,
    packed: Packed,
    weights: Vec<f64>,
    work: Workspace,
    /// Those of the blocks' kept elements, and all of these together.
    masses: Vec<Mass>,
    kept: Mass,
    /// What no other stage starts from.
    scratch: (Vec<Mass>, Packed),
    probs: Vec<f32>,
}

impl<'a> Stages<'a> {
    /// # Panics
    /// Where this CPU lacks the tier.
    pub fn new(tier: Tier, v: usize) -> Self {
        Stages {
            isa: Isa::new(tier).unwrap_or_else(|| panic!("this CPU lacks {tier}")),
            scale: Scale::new(1.0),
            aim: Aim { row: &[], max: 0.0, low: 0.0, cut: Cut::NONE, total: 0.0 },
            traces: Traces::default(),
            packed: Packed::default(),
            weights: vec![0.0; v.next_multiple_of(16)],
            work: Workspace::default(),
            masses: Vec::new(),
            kept: Mass::ZERO,
            scratch: <(Vec<Mass>, Packed)>::default(),
            probs: vec![0.0; v],
        }
    }

    /// # Panics
    /// Where the row cannot be sampled.
    pub fn find(&mut self, row: &'a [f32]) -> Aim<'a> {
        let mut sampler = Sampler::with_tier(self.isa.tier()).expect("available");
        let top_p = Params::default().with_top_p(P);
        sampler.filter(row, top_p, &mut self.probs).expect("a good row");
        let kept = row.iter().zip(&self.probs).filter(|(_, p)| **p > 0.0).map(|(x, _)| *x);
        let cut = Cut { value: kept.fold(f32::INFINITY, f32::min), last_tie: u32::MAX };
        self.aim = Aim { row, cut, ..self.aim };
        self.aim.max = self.run(Stage::ScanQuick) as f32;
        self.aim.total = self.run(Stage::AllMasses);
        self.aim.low = self.run(Stage::Reach) as f32;
        self.aim
    }

    /// Makes a row ready for a stage: does those before it.
    pub fn start(&mut self, aim: Aim<'a>, stage: Stage) {
        self.aim = aim;
        if !stage.reads_first() {
            for before in [Stage::ScanQuick, Stage::Pack, Stage::Weigh, Stage::KeptMasses] {
                self.run(before);
            }
        }
    }

    /// Does the stage over. What it found, as one number.
    pub fn run(&mut self, stage: Stage) -> f64 {
        let Stages { isa, aim: Aim { row, max, low, cut, total }, ref scale, .. } = *self;
        let traces = &mut self.traces;
        let mut scanned = |how: Option<Exponential>, count| {
            let how = how.map(|exponential| (scale, exponential));
            scan(isa, row, how, count, traces).expect("a good row")
        };
        let aim = threshold::Aim { count: NEED, mass: P * total };
        match stage {
            Stage::BareMax => bare_max(isa, row).into(),
            Stage::BareMaxAndExpSum => bare_exp_sum(isa, row, scale, bare_max(isa, row)),
            Stage::Scan => scanned(None, false).max.into(),
            Stage::ScanQuick => scanned(Some(Exponential::Quick), false).max.into(),
            Stage::ScanClose => scanned(Some(Exponential::Close), false).max.into(),
            Stage::ScanCount => scanned(None, true).unmasked as f64,
            Stage::FirstAtLeast => {
                first_at_least(isa, row, traces, max).expect("the maximum is there") as f64
            }
            Stage::Reach => {
                reach(isa, traces, scale, max, aim, 8.0).expect("so many there are").into()
            }
            Stage::Pack => {
                pack(isa, row, traces, low, row.len(), &mut self.packed);
                self.packed.values().len() as f64
            }
            Stage::Weigh => {
                let values = self.packed.padded();
                weigh(isa, values, scale, max, &mut self.weights[..values.len()]);
                self.weights[0]
            }
            Stage::CutOff => {
                let target = Mass::at_least(P * total);
                let drops = |above: Weighed| above.mass >= target;
                let verdict = |above| if drops(above) { Verdict::Drop } else { Verdict::Keep };
                let (values, weights) = (self.packed.padded(), &self.weights);
                let aim = threshold::Aim { count: u64::MAX, ..aim };
                let none = Weighed::default();
                match cut_off(isa, values, weights, none, false, aim, verdict, &mut self.work) {
                    Found::At(lowest) => lowest.value.into(),
                    // The nucleus is larger than what was selected.
                    _ => f64::NEG_INFINITY,
                }
            }
            Stage::KeptMasses => {
                self.kept = kept_masses(isa, row, traces, scale, max, cut, &mut self.masses);
                self.kept.to_f64()
            }
            Stage::AllMasses => {
                kept_masses(isa, row, traces, scale, max, Cut::NONE, &mut self.scratch.0).to_f64()
            }
            Stage::Split => {
                let bracket = (cut.value, cut.value);
                let (masses, packed) = &mut self.scratch;
                let found = split(isa, row, scale, max, bracket, row.len(), masses, packed);
                found.above.count as f64
            }
            Stage::Locate => {
                let threshold = self.kept.share(U);
                let found = locate(isa, row, scale, max, cut, &self.masses, threshold);
                found.expect("u is below 1").0 as f64
            }
            Stage::WriteProbabilities => {
                let mass = self.kept.to_f64();
                write_probabilities(isa, row, traces, scale, max, cut, mass, &mut self.probs);
                self.probs.iter().take(1).sum::<f32>().into()
            }
            Stage::Entropy => spread(isa, row, scale, max).total.to_f64(),
        }
    }

    /// Does the stage on the row that is aimed at, and compares what it found with what a plain
    /// loop finds.
    ///
    /// # Panics
    /// Where they differ.
    pub fn check(&mut self, stage: Stage) {
        let found = self.run(stage);
        let Aim { row, low, cut, .. } = self.aim;
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |x: &f32| (f64::from(*x) - f64::from(max)).exp();
        let at_least = |low: f32| row.iter().filter(move |x| **x >= low);
        let total: f64 = row.iter().map(weight).sum();
        let close = |a: f64, b: f64, error: f64| (a - b).abs() <= error * b;
        let good = match stage {
            Stage::BareMax | Stage::Scan | Stage::ScanQuick | Stage::ScanClose => {
                found == f64::from(max)
            }
            Stage::BareMaxAndExpSum => close(found, total, 1e-5),
            Stage::ScanCount => found == at_least(f32::MIN).count() as f64,
            Stage::FirstAtLeast => row.iter().position(|x| *x == max) == Some(found as usize),
            Stage::Reach => {
                let reached = at_least(found as f32);
                reached.clone().count() as u64 >= NEED
                    || reached.map(weight).sum::<f64>() >= 0.9999 * P * total
            }
            Stage::Pack => found == at_least(low).count() as f64,
            Stage::Weigh => {
                let mut pairs = self.packed.values().iter().zip(&self.weights);
                pairs.all(|(x, w)| close(*w, weight(x), 1e-13))
            }
            Stage::CutOff => found == f64::from(cut.value) || low > cut.value,
            Stage::KeptMasses => close(found, at_least(cut.value).map(weight).sum(), 1e-12),
            Stage::AllMasses | Stage::Entropy => close(found, total, 1e-11),
            Stage::Split => found == at_least(cut.value.next_up()).count() as f64,
            Stage::Locate => {
                let mut below = 0.0;
                let drawn = row.iter().position(|x| {
                    below += if *x >= cut.value { weight(x) } else { 0.0 };
                    below > U * self.kept.to_f64()
                });
                drawn == Some(found as usize)
            }
            Stage::WriteProbabilities => {
                let slow = reference::filter(row, Params::default().with_top_p(P));
                let slow = slow.expect("a good row");
                self.probs.iter().zip(slow).all(|(p, slow)| close((*p).into(), slow, 2e-7))
            }
        };
        assert!(good, "{stage:?} found {found}");
    }
}
