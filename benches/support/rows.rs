//! The rows that every bench runs on: seeded or recorded, and so many of each kind that they
//! rotate through at least 12 MB, as a decode loop's come from beyond the nearest caches.

use std::path::{Path, PathBuf};

use shapes::{Shape, Source};

#[allow(dead_code)] // the examples use more of it
#[path = "../../examples/support/npy.rs"]
mod npy;
#[allow(dead_code)] // the tests use more of it
#[path = "../../tests/support/rows.rs"]
pub mod shapes;

const BYTES: usize = 12 << 20;
/// Rows of a batch; the number of rows of each kind is a multiple of it.
pub const BATCH: usize = 8;

pub const VOCABS: [usize; 5] = [32_000, 49_152, 128_256, 151_936, 262_144];

/// What [`synthetic`] makes, most realistic first.
pub const KINDS: [&str; 6] = ["fitted", "hot", "flat", "tied", "ascending", "descending"];

/// Rows of one kind, one after the other in memory.
pub struct Rows {
    pub kind: String,
    pub v: usize,
    data: Vec<f32>,
}

impl Rows {
    /// Repeats the rows, each copy its own memory, until they are enough.
    pub fn new(kind: &str, v: usize, mut data: Vec<f32>) -> Rows {
        let once = data.len() / v;
        let enough = enough(v).max(once.next_multiple_of(BATCH));
        data.reserve(enough * v - data.len());
        for i in once..enough {
            let start = (i - once) * v;
            data.extend_from_within(start..start + v);
        }
        Rows { kind: kind.into(), v, data }
    }

    pub fn len(&self) -> usize {
        self.data.len() / self.v
    }

    pub fn row(&self, i: usize) -> &[f32] {
        self.rows(i, 1)
    }

    /// `n` rows in a row.
    pub fn rows(&self, first: usize, n: usize) -> &[f32] {
        &self.data[first * self.v..][..n * self.v]
    }

    pub fn name(&self) -> String {
        format!("{} {}", self.kind, self.v)
    }
}

fn enough(v: usize) -> usize {
    BYTES.div_ceil(4 * v).next_multiple_of(BATCH)
}

/// Different rows of one shape.
pub fn of_shape(kind: &str, shape: impl Fn(&mut Source, usize) -> Vec<f32>, v: usize) -> Rows {
    let mut rng = shapes::source(1);
    let data = (0..enough(v)).flat_map(|_| shape(&mut rng, v)).collect();
    Rows::new(kind, v, data)
}

/// One of [`KINDS`].
pub fn synthetic(kind: &str, v: usize) -> Rows {
    let shape: Shape = match kind {
        "fitted" => shapes::fitted,
        "hot" => hot,
        "flat" => shapes::flat,
        "tied" => shapes::sixteenths,
        "ascending" => shapes::ascending,
        "descending" => shapes::descending,
        _ => panic!("{kind} is not one of {KINDS:?}"),
    };
    of_shape(kind, shape, v)
}

/// What a model's rows look like at T = 1.5.
fn hot(rng: &mut Source, v: usize) -> Vec<f32> {
    shapes::fitted(rng, v).iter().map(|x| x / 1.5).collect()
}

/// The committed rows of a language model, or all of the folder that `TOPMASS_LOGITS` names.
///
/// # Panics
/// Where they cannot be read, or have different lengths.
pub fn real() -> Rows {
    let folder = match std::env::var_os("TOPMASS_LOGITS") {
        Some(folder) => PathBuf::from(folder),
        None => committed(),
    };
    let entries = folder.read_dir().unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut files: Vec<_> = paths.filter(|p| p.extension().is_some_and(|e| e == "npy")).collect();
    files.sort();
    let (mut v, mut data) = (0, Vec::new());
    for file in files {
        let rows = npy::read_rows(&file).unwrap_or_else(|why| panic!("{why}"));
        assert!(v == 0 || v == rows.vocab, "{}: rows of another length", file.display());
        v = rows.vocab;
        data.extend(rows.data);
    }
    assert!(v > 0, "no .npy in {}", folder.display());
    Rows::new("real", v, data)
}

/// In the root of the workspace, which is not every package's.
fn committed() -> PathBuf {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let found = folders.find_map(|up| Some(up.join("tests/data/logits")).filter(|x| x.is_dir()));
    found.expect("the workspace has its rows")
}
