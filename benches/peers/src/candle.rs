//! candle's `LogitsProcessor`.

use candle_core::{Device, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling};

use crate::rows::Rows;
use crate::{Case, Peer, Rule, Sample};

pub const PEER: Peer = Peer {
    name: "candle",
    does: "T, f32 softmax, top-k by select_nth (not renormalised), top-p by a stable sort of all \
           that is left and an f32 sum, ties by index; no min-p; kept set not shown. \
           The row's tensor is there before",
    rule: Rule::Candle,
    exact: false,
    part: false,
    new: |case, rows| Candle::new(case, rows),
};

struct Candle {
    processor: LogitsProcessor,
    rows: Vec<Tensor>,
}

impl Candle {
    #[allow(clippy::new_ret_no_self)] // the table wants it boxed
    fn new(case: Case, rows: &Rows) -> Option<Box<dyn Sample + '_>> {
        let sampling = match case {
            Case::TopP => Sampling::TopP { p: 0.9, temperature: 1.0 },
            Case::Chain => Sampling::TopKThenTopP { k: 40, p: 0.95, temperature: 0.8 },
            Case::Temperature => Sampling::All { temperature: 0.8 },
            Case::MirostatV1 | Case::MirostatV2 => return None,
        };
        let tensor = |i| Tensor::from_slice(rows.row(i), rows.v, &Device::Cpu).expect("a tensor");
        let rows = (0..rows.len()).map(tensor).collect();
        Some(Box::new(Candle { processor: LogitsProcessor::from_sampling(5, sampling), rows }))
    }
}

impl Sample for Candle {
    fn sample(&mut self, i: usize) -> u32 {
        self.processor.sample(&self.rows[i]).expect("a good row")
    }

    fn kept(&self) -> Option<Vec<u32>> {
        None
    }
}
