//! What one writes with the standard library alone.

use std::cmp::Ordering;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::rows::Rows;
use crate::{Case, Peer, Rule, Sample};

pub const PEERS: [Peer; 3] = [
    Peer {
        name: "select_nth, f64",
        does: "select_nth_unstable(1024), sorted head, f64 softmax of the row; ties together; \
               full sort where the head is too short. Temperature: no selection",
        rule: Rule::Default,
        exact: true,
        part: false,
        new: |case, rows| Plain::new(case, rows, 1024, weight),
    },
    Peer {
        name: "select_nth, f32",
        does: "the same with f32 exponentials, summed in f64",
        rule: Rule::Default,
        exact: false,
        part: false,
        new: |case, rows| Plain::new(case, rows, 1024, |x, max, t| ((x - max) / t).exp().into()),
    },
    Peer {
        name: "full sort, f64",
        does: "sort of the row's values, f64 softmax; ties together",
        rule: Rule::Default,
        exact: true,
        part: false,
        new: |case, rows| {
            let sorts = case != Case::Temperature;
            sorts.then(|| Plain::new(case, rows, usize::MAX, weight))?
        },
    },
];

fn weight(x: f32, max: f32, t: f32) -> f64 {
    ((f64::from(x) - f64::from(max)) / f64::from(t)).exp()
}

struct Plain<'a, W> {
    rows: &'a Rows,
    case: Case,
    /// Elements that are selected and sorted.
    head: usize,
    weight: W,
    copy: Vec<f32>,
    weights: Vec<f64>,
    kept: Vec<u32>,
    rng: Xoshiro256PlusPlus,
}

impl<'a, W: Fn(f32, f32, f32) -> f64 + 'a> Plain<'a, W> {
    #[allow(clippy::new_ret_no_self)] // the table wants it boxed
    fn new(case: Case, rows: &'a Rows, head: usize, weight: W) -> Option<Box<dyn Sample + 'a>> {
        if matches!(case, Case::MirostatV1 | Case::MirostatV2) {
            return None;
        }
        let (copy, weights, kept) = (Vec::new(), Vec::new(), Vec::new());
        let rng = Xoshiro256PlusPlus::seed_from_u64(5);
        Some(Box::new(Plain { rows, case, head, weight, copy, weights, kept, rng }))
    }
}

impl<W: Fn(f32, f32, f32) -> f64> Plain<'_, W> {
    /// The lowest kept logit among the `head` largest; None where it may lie lower.
    fn lowest(&mut self, row: &[f32], head: usize, total: f64, max: f32) -> Option<f32> {
        let (t, k, p, min_p) = match self.case {
            Case::Chain => (0.8, 40, 0.95, 0.05),
            _ => (1.0, usize::MAX, 0.9, 0.0),
        };
        let descending = |a: &f32, b: &f32| -> Ordering { b.total_cmp(a) };
        self.copy.clear();
        self.copy.extend_from_slice(row);
        let all = head >= row.len();
        if !all {
            self.copy.select_nth_unstable_by(head, descending);
            self.copy.truncate(head);
        }
        self.copy.sort_unstable_by(descending);
        let (mut above, mut lowest) = (0.0, max);
        for (i, &x) in self.copy.iter().enumerate() {
            let w = (self.weight)(x, max, t);
            // A tie of the last one that is kept is kept, too: only a new value may end it.
            if x < lowest && (i >= k || above >= p * total || w < min_p) {
                return Some(lowest);
            }
            (above, lowest) = (above + w, x);
        }
        all.then_some(lowest)
    }
}

impl<W: Fn(f32, f32, f32) -> f64> Sample for Plain<'_, W> {
    fn sample(&mut self, i: usize) -> u32 {
        let row = self.rows.row(i);
        let t = if self.case == Case::TopP { 1.0 } else { 0.8 };
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        self.weights.clear();
        self.weights.extend(row.iter().map(|x| (self.weight)(*x, max, t)));
        let total: f64 = self.weights.iter().sum();
        let u = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        if self.case == Case::Temperature {
            let mut below = 0.0;
            let drawn = self.weights.iter().position(|w| {
                below += w;
                below > u * total
            });
            return drawn.unwrap_or(row.len() - 1) as u32;
        }

        let lowest = self.lowest(row, self.head, total, max);
        let lowest = lowest.or_else(|| self.lowest(row, row.len(), total, max)).expect("all of it");
        self.kept.clear();
        let ids = row.iter().zip(0..).filter(|(x, _)| **x >= lowest).map(|(_, id)| id);
        self.kept.extend(ids);
        let weights = &self.weights;
        let mass: f64 = self.kept.iter().map(|i| weights[*i as usize]).sum();
        let mut below = 0.0;
        let drawn = self.kept.iter().find(|i| {
            below += weights[**i as usize];
            below > u * mass
        });
        *drawn.or(self.kept.last()).expect("the maximum is kept")
    }

    fn kept(&self) -> Option<Vec<u32>> {
        match self.case {
            Case::Temperature => Some((0..self.weights.len() as u32).collect()),
            _ => Some(self.kept.clone()),
        }
    }
}
