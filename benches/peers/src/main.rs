//! The step beside other samplers, on the same rows in one run on one core:
//!
//! ```text
//! bash scripts/bench-peers            # or: -- --rows "fitted 128256" --json FILE
//! ```
//!
//! Each peer is a feature of this package. Every peer draws a token; what it has to build from the
//! row for that counts, unless a decode loop on it has it anyway (candle's tensor). Its time stands
//! beside ours for the same rule and for our default one; its kept set, where it shows it, is
//! compared with ours on every row that is timed.

use std::hint::black_box;

use clap::Parser;
use serde_json::{Value, json};
use topmass::Tier;

use measure::{Job, Options, Times, header, time};
use ours::Ours;
use rows::{Rows, real, synthetic};

#[cfg(feature = "candle")]
mod candle;
#[cfg(feature = "llama-cpp")]
mod llama_cpp;
#[cfg(feature = "llm-samplers")]
mod llm;
mod ours;
mod plain;

#[path = "../../support/measure.rs"]
mod measure;
#[allow(dead_code)] // the other benches use more of it
#[path = "../../support/rows.rs"]
mod rows;

/// What every peer is asked to do, where it can.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    /// .9 of the row's mass at T = 1.
    TopP,
    /// Top-k 40, top-p .95, min-p .05, T = .8.
    Chain,
    /// T = .8.
    Temperature,
    /// Tau = 3, eta = .1, mu = 6.
    MirostatV1,
    MirostatV2,
}

impl Case {
    const ALL: [(Case, &str); 5] = [
        (Case::TopP, "top-p .9"),
        (Case::Chain, "top-k 40, top-p .95, min-p .05, T .8"),
        (Case::Temperature, "temperature .8"),
        (Case::MirostatV1, "Mirostat v1, tau 3, mu 6"),
        (Case::MirostatV2, "Mirostat v2, tau 3, mu 6"),
    ];
}

/// Another sampler, set up for one case on some rows.
trait Sample {
    /// Draws a token from the row of that number.
    fn sample(&mut self, i: usize) -> u32;
    /// The tokens that the last draw was made among, where the peer tells.
    fn kept(&self) -> Option<Vec<u32>>;
}

/// Whose rule of ours is the peer's.
#[allow(dead_code)] // a peer that is left out leaves its rule
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    Default,
    LlamaCpp,
    Candle,
}

struct Peer {
    name: &'static str,
    /// As its source has it.
    does: &'static str,
    rule: Rule,
    /// Whether it finds the set that the definition gives in `f64`, by its construction.
    exact: bool,
    /// Whether this is but a part of the peer before it, shown apart.
    part: bool,
    /// None where it has no such case.
    new: for<'a> fn(Case, &'a Rows) -> Option<Box<dyn Sample + 'a>>,
}

fn peers() -> Vec<Peer> {
    let mut peers = Vec::new();
    #[cfg(feature = "llama-cpp")]
    peers.extend(llama_cpp::PEERS);
    #[cfg(feature = "candle")]
    peers.push(candle::PEER);
    #[cfg(feature = "llm-samplers")]
    peers.push(llm::PEER);
    peers.extend(plain::PEERS);
    peers
}

fn main() {
    let options = Options::parse();
    println!("{}\n", header());
    println!("Rules, as in the sources; exact: finds the set of the definition in f64.");
    for Peer { name, does, exact, .. } in peers() {
        println!("{name:28} {}{does}", if exact { "exact: " } else { "" });
    }
    let mut figures = Vec::new();
    let mut on = |rows: Rows| {
        for tier in options.tiers() {
            for (case, title) in Case::ALL {
                figures.extend(on_rows(&rows, tier, case, title, &options));
            }
        }
    };
    if options.wants("real 49152") {
        on(real());
    }
    for (kind, v) in [("fitted", 128_256), ("flat", 128_256)] {
        if options.wants(&format!("{kind} {v}")) {
            on(synthetic(kind, v));
        }
    }
    options.write(figures);
}

/// A table: our step by our default rule and by the peers' rules, and the peers that have the case.
fn on_rows(rows: &Rows, tier: Tier, case: Case, title: &str, options: &Options) -> Vec<Value> {
    let (mut set_up, mut rules) = (Vec::new(), vec![Rule::Default]);
    for peer in peers() {
        if let Some(sample) = (peer.new)(case, rows) {
            set_up.push((peer, sample));
        }
    }
    for (peer, _) in &set_up {
        if !rules.contains(&peer.rule) {
            rules.push(peer.rule);
        }
    }

    let equal: Vec<_> = set_up
        .iter_mut()
        .map(|(peer, sample)| {
            let equal = |rule| equal_sets(sample.as_mut(), &Ours::new(case, rule), tier, rows);
            [peer.rule, Rule::Default].map(equal)
        })
        .collect();
    let mut jobs: Vec<_> = rules
        .iter()
        .map(|rule| Ours::new(case, *rule).job(&format!("topmass, rule: {rule:?}"), tier, rows))
        .collect();
    let peers: Vec<_> = set_up
        .into_iter()
        .map(|(peer, mut sample)| {
            jobs.push(Job::new(peer.name, rows, move |i| _ = black_box(sample.sample(i))));
            peer
        })
        .collect();
    let times = time(&mut jobs, options.budget());
    let (ours, theirs) = times.split_at(rules.len());
    let over_same_rule = |peer: &Peer, t: &Times| {
        let same = rules.iter().position(|rule| *rule == peer.rule).expect("every rule is here");
        t.over(&ours[same])
    };

    println!("\n{title}: {} rows, V = {}, {} of them, tier {tier}", rows.kind, rows.v, rows.len());
    println!("{:32} {:>9} {:>9} {:>9}  sets equal to ours", "", "us", "/ ours,", "/ ours,");
    println!("{:32} {:>9} {:>9} {:>9}  its rule, default", "", "", "its rule", "default");
    for (job, t) in jobs.iter().zip(ours) {
        println!("{:32} {:9.1} {:9} {:9.2}", job.name, t.median(), "", t.over(&ours[0]));
    }
    let figures = peers.iter().zip(theirs).zip(&equal).map(|((peer, t), equal)| {
        let (us, same, default) = (t.median(), over_same_rule(peer, t), t.over(&ours[0]));
        let sets = match equal {
            [Some(same), Some(default)] => format!("{same}, {default} of {}", rows.len()),
            _ => "not shown".into(),
        };
        println!("{:32} {us:9.1} {same:9.1} {default:9.1}  {sets}", peer.name);
        json!({
            "rows": rows.kind, "v": rows.v, "tier": tier.name(), "case": title, "peer": peer.name,
            "us": us, "over_ours_by_its_rule": same, "over_ours_by_default": default,
            "equal_sets_by_its_rule": equal[0], "equal_sets_by_default": equal[1],
            "row_count": rows.len(), "ours_us": ours[0].median(),
        })
    });
    let figures = figures.collect();
    for (whom, wanted, least) in targets(case, &rows.kind) {
        let them = peers.iter().zip(theirs).filter(|(peer, _)| !peer.part && wanted(peer));
        let ratios = them.map(|(peer, t)| over_same_rule(peer, t));
        if let Some(ratio) = ratios.min_by(f64::total_cmp) {
            let outcome = if ratio >= least { "met" } else { "MISSED" };
            println!("target: {least} times as fast as {whom}, by its rule: {ratio:.1}, {outcome}");
        }
    }
    figures
}

/// On how many rows the peer's kept set is ours, where it tells.
fn equal_sets(peer: &mut dyn Sample, ours: &Ours, tier: Tier, rows: &Rows) -> Option<usize> {
    let mut equal = 0;
    for i in 0..rows.len() {
        let token = peer.sample(i);
        let mut kept = peer.kept()?;
        assert!(kept.contains(&token), "a token outside of the kept set");
        kept.sort_unstable();
        equal += usize::from(kept == ours.kept(tier, rows.row(i)));
    }
    Some(equal)
}

/// Of whom we want to be how many times the speed, by the peer's rule.
type Target = (&'static str, fn(&Peer) -> bool, f64);

fn targets(case: Case, kind: &str) -> Vec<Target> {
    let llama: fn(&Peer) -> bool = |peer| peer.name == "llama.cpp";
    match case {
        Case::TopP if kind == "flat" => {
            vec![("select_nth", |peer| peer.name.starts_with("select_nth") && peer.exact, 30.0)]
        }
        Case::TopP => {
            vec![("the fastest exact peer", |peer| peer.exact, 25.0), ("llama.cpp", llama, 40.0)]
        }
        Case::Chain => vec![("llama.cpp", llama, 8.0)],
        Case::Temperature => vec![("the fastest peer", |_| true, 6.0)],
        Case::MirostatV1 | Case::MirostatV2 => vec![("the fastest peer", |_| true, 150.0)],
    }
}
