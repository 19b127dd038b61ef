//! Stamps what the benchmarks and examples report: compiler, profile, target and its features.

use std::env::var;
use std::process::Command;

fn main() {
    let rustc = var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    let get = |name| var(name).unwrap_or_default();
    println!(
        "cargo::rustc-env=TOPMASS_BUILD={}, {} (opt-level {}), {}, target features {}",
        version.unwrap_or_else(|_| "unknown compiler".into()),
        get("PROFILE"),
        get("OPT_LEVEL"),
        get("TARGET"),
        get("CARGO_CFG_TARGET_FEATURE"),
    );
    println!("cargo::rerun-if-changed=build.rs");
}
