//! What `examples/decode.rs` does with a `.npy` file: rows, or one line that says what is wrong.

use std::fs;
use std::path::{Path, PathBuf};

use npyz::half::f16;

#[path = "../examples/support/npy.rs"]
mod npy;

use npy::{Rows, read_rows};

/// A `.npy` file, version 1, of whatever it is told to claim.
fn file(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    with_header(
        &format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"),
        data,
    )
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    // NumPy pads so that the data is aligned to 64 bytes.
    let padded =
        format!("{header:<width$}\n", width = (header.len() + 11).next_multiple_of(64) - 11);
    let length = u16::try_from(padded.len()).unwrap().to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], padded.as_bytes(), data].concat()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("decode_input_{name}.npy"))
}

/// Reads `bytes` as a file of its own.
fn read(name: &str, bytes: &[u8]) -> Result<Rows, String> {
    let path = path(name);
    fs::write(&path, bytes).unwrap();
    let rows = read_rows(&path);
    fs::remove_file(&path).unwrap();
    rows
}

const SIX: [f32; 6] = [0.0, -1.5, 2.25, f32::NEG_INFINITY, 1e-45, 3e38];

#[test]
fn reads_float32_rows() {
    let rows = read("f32", &file("'<f4'", "False", "(2, 3)", &f32s(&SIX))).unwrap();
    assert_eq!(rows, Rows { vocab: 3, data: SIX.to_vec() });
    assert!(rows.iter().eq([&SIX[..3], &SIX[3..]]));
}

#[test]
fn reads_one_row_from_one_dimension() {
    let rows = read("one", &file("'<f4'", "False", "(6,)", &f32s(&SIX))).unwrap();
    assert_eq!(rows, Rows { vocab: 6, data: SIX.to_vec() });
}

#[test]
fn reads_float16_without_loss() {
    // 65504 is the largest, 6e-8 the least; both and all between are exact in f32.
    let values = [f16::from_f32(1.5), f16::MAX, f16::from_bits(1), f16::NEG_INFINITY];
    let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let rows = read("f16", &file("'<f2'", "False", "(2, 2)", &data)).unwrap();
    let expected = vec![1.5, 65504.0, f32::exp2(-24.0), f32::NEG_INFINITY];
    assert_eq!(rows, Rows { vocab: 2, data: expected });
}

#[test]
fn reads_big_endian_and_later_versions() {
    let big: Vec<u8> = SIX.iter().flat_map(|x| x.to_be_bytes()).collect();
    let rows = read("big", &file("'>f4'", "False", "(2, 3)", &big)).unwrap();
    assert_eq!(rows.data, SIX);

    for version in [2, 3] {
        let mut bytes = file("'<f4'", "False", "(1, 6)", &f32s(&SIX));
        bytes[6] = version;
        bytes.splice(10..10, [0, 0]); // four bytes of length
        let rows = read(&format!("v{version}"), &bytes).unwrap();
        assert_eq!(rows, Rows { vocab: 6, data: SIX.to_vec() });
    }
}

/// Not the reader's business: the sampler names the index, and the other rows are still good.
#[test]
fn leaves_nan_to_the_sampler() {
    let rows = read("nan", &file("'<f4'", "False", "(1, 2)", &f32s(&[f32::NAN, 1.0]))).unwrap();
    assert!(rows.data[0].is_nan());
}

#[test]
fn reads_the_recordings_of_the_repository() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/logits");
    for name in ["story", "chat"] {
        let rows = read_rows(&folder.join(name).with_extension("npy")).unwrap();
        let json = fs::read(folder.join(name).with_extension("json")).unwrap();
        let notes: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let sampled = notes["sampled_ids"].as_array().unwrap();
        assert_eq!((rows.vocab, rows.iter().len()), (49152, sampled.len()));
        for (row, id) in rows.iter().zip(sampled) {
            assert!(row.iter().all(|x| x.is_finite()));
            // It was drawn, so it is likely: the row and the id belong together.
            let logit = row[id.as_u64().unwrap() as usize];
            assert!(row.iter().filter(|&&x| x > logit).count() < 1000);
        }
    }
}

#[test]
fn names_the_file_and_what_it_expected() {
    let data = f32s(&SIX);
    let good = |shape| file("'<f4'", "False", shape, &data);
    let dtype = |descr| file(descr, "False", "(2, 3)", &data);
    let deep = "[".repeat(60);
    let mut huge_header = good("(2, 3)");
    huge_header[6] = 2;
    huge_header[8..12].fill(0xff);
    let mut version_9 = good("(2, 3)");
    version_9[6] = 9;

    let cases: &[(&str, Vec<u8>, &str)] = &[
        ("empty", vec![], "ends inside its header"),
        ("text", b"0.1 0.2 0.3\n".to_vec(), "not a .npy file"),
        ("npz", b"PK\x03\x04 and an archive".to_vec(), "not a .npy file"),
        ("magic only", b"\x93NUMPY\x01\x00".to_vec(), "ends inside its header"),
        ("cut header", good("(2, 3)")[..50].to_vec(), "ends inside its header"),
        ("huge header", huge_header, "4294967295 bytes of header"),
        ("version", version_9, ".npy version 9"),
        ("no dict", with_header("(1, 2)", &data), "plain array"),
        ("no python", with_header("{'descr': '<f4', 'shape': (2, 3)", &data), "plain array"),
        ("no shape", with_header("{'descr': '<f4', 'fortran_order': False}", &data), "plain array"),
        (
            "no dtype",
            with_header("{'fortran_order': False, 'shape': (2, 3)}", &data),
            "plain array",
        ),
        ("not utf-8", [b"\x93NUMPY\x01\x00\x01\x00\xff", &data[..]].concat(), "plain array"),
        ("nested", good(&deep), "plain array"), // exponential time in npyz alone
        ("record", dtype("[('a', '<f4')]"), "plain array"),
        ("f64", dtype("'<f8'"), "dtype '<f8'"),
        ("i32", dtype("'<i4'"), "dtype '<i4'"),
        ("object", dtype("'|O'"), "dtype '|O'"),
        ("nonsense", dtype("'banana'"), "plain array"),
        ("Fortran", file("'<f4'", "True", "(2, 3)", &data), "Fortran order"),
        ("0-D", good("()"), "shape []"),
        ("3-D", good("(1, 2, 3)"), "shape [1, 2, 3]"),
        ("no rows", good("(0, 3)"), "holds nothing"),
        ("no columns", good("(3, 0)"), "holds nothing"),
        ("none", good("(0,)"), "holds nothing"),
        ("negative", good("(-2, 3)"), "plain array"),
        ("fraction", good("(2.0, 3)"), "plain array"),
        ("past u64", good("(18446744073709551616, 3)"), "plain array"),
        ("overflow", good("(4294967296, 4294967297)"), "overflows"),
        ("overflow, 0", good("(0, 18446744073709551615, 3)"), "overflows"),
        ("vast", good("(1000000, 1000000000000)"), "ends after 6 logits"),
        ("cut data", good("(2, 4)"), "ends after 6 logits"),
        ("cut logit", good("(2, 3)")[..128 + 23].to_vec(), "ends after 5 logits"),
        ("cut f16", file("'<f2'", "False", "(13,)", &data), "ends after 12 logits"),
        ("no data", good("(2, 3)")[..128].to_vec(), "ends after 0 logits"),
        ("more data", good("(5,)"), "more data"),
        ("one byte more", [good("(2, 3)"), vec![0]].concat(), "more data"),
    ];
    for (name, bytes, what) in cases {
        let message = read(name, bytes).expect_err(name);
        println!("{message}");
        let file = path(name).display().to_string();
        assert!(message.starts_with(&format!("{file}: ")), "{name}: {message}");
        assert!(message.contains(what), "{name}: {message}");
        assert!(message.contains("expected"), "{name}: {message}");
        assert_eq!(message.lines().count(), 1, "{name}: {message}");
    }
}

#[test]
fn names_a_file_that_cannot_be_read() {
    for path in [path("absent"), PathBuf::from(env!("CARGO_TARGET_TMPDIR"))] {
        let message = read_rows(&path).unwrap_err();
        println!("{message}");
        assert!(message.starts_with(&format!("{}: cannot ", path.display())), "{message}");
    }
}

/// Any byte of the header, any damage: rows of the right number or an error, never a panic.
#[test]
fn survives_damage() {
    let good = file("'<f4'", "False", "(2, 3)", &f32s(&SIX));
    for at in 0..128 {
        for damage in *b"\x00\x09 '(),-019<>[]_f{}\xff" {
            let mut bytes = good.clone();
            bytes[at] = damage;
            if let Ok(rows) = read("damage", &bytes) {
                assert!(matches!((rows.vocab, rows.data.len()), (3 | 6, 6)), "{at} {damage}");
            }
        }
    }
}
