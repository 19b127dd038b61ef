//! Which tier runs: the best one, or the one that `TOPMASS_TIER` names. Decided once per process,
//! so each question is asked of a process of its own: this program, told to run [`child`] alone.

use std::process::Command;

use topmass::{Params, Sampler, Tier, sample_fused};

mod support;

/// Says which tier runs by default, twice, and where a row is drawn.
#[test]
#[ignore = "run by the others, with TOPMASS_TIER set"]
fn child() {
    let draw = sample_fused(&[0.0, 1.0], Params::default(), &mut support::Scripted::at(0.5));
    assert!(draw.is_ok());
    println!("\ntier: {} {}", Tier::detected(), Sampler::new().tier());
}

/// The tier that a process runs with `TOPMASS_TIER=value`, and what it says on standard error.
fn tier_of(value: Option<&str>) -> (String, Vec<String>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--ignored", "--exact", "child", "--nocapture"]).env_remove("TOPMASS_TIER");
    if let Some(value) = value {
        command.env("TOPMASS_TIER", value);
    }
    let output = command.output().expect("this program runs");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let tier = said.lines().find_map(|line| line.strip_prefix("tier: ")).expect("a tier");
    let errors = String::from_utf8_lossy(&output.stderr);
    (tier.to_owned(), errors.lines().map(str::to_owned).collect())
}

fn twice(tier: Tier) -> String {
    format!("{tier} {tier}")
}

#[test]
fn the_best_tier_runs_unless_another_is_named() {
    let available = Tier::available();
    assert!(available.is_sorted(), "best last: {available:?}");
    let best = available[available.len() - 1];
    for unset in [None, Some("")] {
        assert_eq!(tier_of(unset), (twice(best), vec![]));
    }
    for &tier in &available {
        let name = tier.name().to_uppercase();
        assert_eq!(tier_of(Some(&name)), (twice(tier), vec![]));
    }
}

#[test]
fn a_name_that_cannot_be_obeyed_is_told_once() {
    let available = Tier::available();
    let best = available[available.len() - 1];
    let absent = Tier::ALL.into_iter().find(|tier| !available.contains(tier)).expect("x86 or Arm");
    for name in ["banana", absent.name()] {
        let (tier, errors) = tier_of(Some(name));
        assert_eq!(tier, twice(best));
        assert!(errors.len() == 1 && errors[0].contains(name), "{errors:?}");
        assert!(errors[0].contains(best.name()), "{errors:?}");
    }
}
