//! Inputs that once failed, and a few for each branch of the fuzz targets, through those targets.
//!
//! A new failure of `cargo fuzz run TARGET` leaves a file in `fuzz/artifacts/TARGET`: mend the
//! code, and copy the file to `tests/data/fuzz/TARGET` under a name that says what it was.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

mod support;
#[path = "../fuzz/src/targets.rs"]
mod targets;

fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/fuzz").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut failed = Vec::new();
    for path in &files {
        let bytes = fs::read(path).unwrap();
        if catch_unwind(AssertUnwindSafe(|| target(&bytes))).is_err() {
            failed.push(path.file_name().unwrap());
        }
    }
    println!("{name}: {} inputs, {} failed", files.len(), failed.len());
    assert!(!files.is_empty() && failed.is_empty(), "{failed:?}");
}

#[test]
fn row() {
    replay("row", targets::row);
}

#[test]
fn batch() {
    replay("batch", targets::batch);
}

#[test]
fn mirostat() {
    replay("mirostat", targets::mirostat);
}

#[test]
fn npy() {
    replay("npy", targets::npy);
}
