//! What the decode loop takes beside the engine: the heap's peak over a run in which the engine is
//! a recording, and takes nothing itself.

use std::path::Path;

use anyhow::Result;
use topmass::{Params, Sampler};
use topmass_slm::decode::{End, Limits, decode};
use topmass_slm::engine::Engine;
use topmass_slm::sampling::{Drawn, Rule, TokenSampler};

#[path = "../../support/npy.rs"]
mod npy;

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

struct Replay {
    rows: npy::Rows,
    fed: usize,
}

impl Engine for Replay {
    type Own = ();
    const NAME: &'static str = "replay";
    fn context(&self) -> usize {
        usize::MAX
    }
    fn reset(&mut self) {
        self.fed = 0;
    }
    fn feed(&mut self, tokens: &[u32]) -> Result<()> {
        self.fed += tokens.len();
        Ok(())
    }
    fn logits<T>(&self, read: impl FnOnce(&[f32]) -> T) -> Result<T> {
        let rows = self.rows.iter();
        let index = self.fed % rows.len();
        Ok(read(rows.into_iter().nth(index).expect("a row")))
    }
    fn own_sampler(&self, _: &Rule, _: u64) -> Result<()> {
        Ok(())
    }
    fn own_sample(&self, (): &mut ()) -> Result<u32> {
        Ok(0)
    }
}

#[test]
fn less_than_two_megabytes_beside_the_engine() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/logits/story.npy");
    let mut engine = Replay { rows: npy::read_rows(&path).expect("the recording"), fed: 0 };
    let limits = Limits { max_tokens: 1000, end_tokens: &[] };

    let profiler = dhat::Profiler::builder().testing().build();
    let rule = Rule::Cut(Params::default().with_temperature(0.8).with_top_p(0.95));
    let mut sampler = TokenSampler::new(rule, 0, Sampler::new());
    let mut steps = Vec::new();
    let end = decode(
        &mut engine,
        &[1, 2, 3],
        &limits,
        |drawn: &Drawn| drawn.token,
        |engine| Ok(engine.logits(|row| sampler.draw(row))??),
        |_, step| {
            steps.push(step.clone());
            Ok(true)
        },
    );
    let peak = dhat::HeapStats::get().max_bytes;
    drop(profiler);

    assert_eq!((end.expect("decodes"), steps.len()), (End::MaxTokens, 1000));
    println!("peak of 1000 steps over 49,152 logits: {} KB", peak / 1000);
    assert!(peak < 2_000_000, "{peak} bytes");
}
