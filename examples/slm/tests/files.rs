//! What the program writes, read back.

use std::fs;
use std::time::Duration;

use topmass_slm::decode::Step;
use topmass_slm::record::Recorder;
use topmass_slm::report::Page;
use topmass_slm::sampling::Drawn;
use topmass_slm::stats::{StatsFile, Summary, Times, quantile};

#[path = "../../support/npy.rs"]
mod npy;

fn step(token: u32, kept: u32, surprise_bits: f64) -> Step<Drawn> {
    let drawn = Drawn {
        token,
        probability: (-surprise_bits).exp2(),
        surprise_bits,
        kept,
        retained_mass: 0.96,
        mu: None,
    };
    let (forward, sampling) = (Duration::from_millis(20), Duration::from_micros(40));
    Step { drawn, forward, sampling }
}

#[test]
fn a_recording_is_what_the_decode_example_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.npy");
    let mut recorder = Recorder::create(&path).expect("starts");
    assert!(!path.exists(), "no half file");
    let rows = [[1.5, f32::NEG_INFINITY, -2.0], [0.0, 3.25, 1e-30]];
    rows.iter().for_each(|row| recorder.push(row).expect("takes a row"));
    recorder.finish().expect("ends");
    let read = npy::read_rows(&path).expect("a .npy file");
    assert!(read.vocab == 3 && read.iter().eq(rows), "{read:?}");
    assert_eq!(fs::metadata(&path).expect("is there").len(), 128 + 24);
}

#[test]
fn stats_have_a_row_for_each_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let steps = [step(7, 1, 0.0), step(8, 50, 3.0)];
    let texts = ["a,\"b\"\n".to_string(), String::new()];
    let written = |name: &str| {
        let path = folder.path().join(name);
        StatsFile::create(&path).and_then(|f| f.write(&steps, &texts)).expect("writes");
        fs::read_to_string(path).expect("is there")
    };
    let csv = written("s.csv");
    assert!(csv.starts_with("step,text,token,probability,surprise_bits,n,m,mu,"), "{csv}");
    assert_eq!(csv::Reader::from_reader(csv.as_bytes()).records().count(), 2);
    let lines = written("s.jsonl");
    let rows: Vec<serde_json::Value> =
        lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((&rows[0]["text"], &rows[1]["n"]), (&"a,\"b\"\n".into(), &50.into()));
    assert!(StatsFile::create(&folder.path().join("s.txt")).is_err());
}

#[test]
fn the_page_escapes_what_the_model_says() {
    let steps = [step(1, 1, 0.0), step(2, 49_152, 12.0), step(3, 3, 1.5)];
    let texts = ["<script>".to_string(), "\n".into(), String::new()];
    let names = ["<script>", "Ċ", "<|im_end|>"].map(String::from);
    let summary = Summary::of(&steps, 4, topmass::Tier::Portable);
    let page = Page {
        prompt: "\"a\" & <b>",
        how: "",
        end: "",
        summary: &summary,
        steps: &steps,
        texts: &texts,
        names: &names,
    };
    let html = page.html().expect("a page");
    assert!(!html.contains("<script") && !html.contains("<b>") && html.contains("↵\n"), "{html}");
    assert_eq!(html.matches("<svg").count(), 4);
    for few in 0..3 {
        let page = Page { steps: &steps[..few], ..page };
        page.html().expect("a page of few steps");
    }
}

#[test]
fn figures() {
    assert_eq!(quantile(0.5, [3.0, 1.0, 2.0]), 2.0);
    assert_eq!(quantile(0.99, []), 0.0);
    let ms = Duration::from_millis;
    // The first step is the prompt's, and does not count as decoding.
    let times = Times::of(&[(ms(500), ms(9)), (ms(19), ms(1)), (ms(19), ms(1))]);
    assert_eq!((times.steps, times.sampling_median), (2, 1000.0));
    assert!((times.tokens_per_second - 50.0).abs() < 1e-9 && (times.share - 0.05).abs() < 1e-9);
}
