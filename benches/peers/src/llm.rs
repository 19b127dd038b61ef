//! The crate `llm-samplers`.

use llm_samplers::prelude::*;
use rand_08::SeedableRng;
use rand_08::rngs::StdRng;

use crate::rows::Rows;
use crate::{Case, Peer, Rule, Sample};

pub const PEER: Peer = Peer {
    name: "llm-samplers",
    does: "as llama.cpp, after a stable sort of the row in every case; the formula of Mirostat v1 is \
           not the paper's; filling its Logits counts",
    rule: Rule::LlamaCpp,
    exact: false,
    part: false,
    new: |case, rows| Llm::new(case, rows),
};

struct Llm<'a> {
    rows: &'a Rows,
    case: Case,
    chain: SamplerChain,
    resources: SimpleSamplerResources,
    kept: Logits,
}

impl<'a> Llm<'a> {
    #[allow(clippy::new_ret_no_self)] // the table wants it boxed
    fn new(case: Case, rows: &'a Rows) -> Option<Box<dyn Sample + 'a>> {
        let rng = StdRng::seed_from_u64(5);
        Some(Box::new(Llm {
            rows,
            case,
            chain: chain(case, rows.v),
            resources: SimpleSamplerResources::new(Some(Box::new(rng)), None),
            kept: Logits::default(),
        }))
    }
}

fn chain(case: Case, v: usize) -> SamplerChain {
    let draw = SampleRandDistrib::new();
    match case {
        Case::TopP => SamplerChain::new() + SampleTopP::new(0.9, 1) + draw,
        Case::Chain => {
            let cuts = SamplerChain::new() + SampleTopK::new(40, 1) + SampleTopP::new(0.95, 1);
            cuts + SampleMinP::new(0.05, 1) + SampleTemperature::new(0.8) + draw
        }
        Case::Temperature => SamplerChain::new() + SampleTemperature::new(0.8) + draw,
        Case::MirostatV1 => SamplerChain::new() + SampleMirostat1::new(v, 3.0, 0.1),
        Case::MirostatV2 => SamplerChain::new() + SampleMirostat2::new(3.0, 0.1),
    }
}

impl Sample for Llm<'_> {
    fn sample(&mut self, i: usize) -> u32 {
        // A controller that stands at 2 tau, as ours does.
        if matches!(self.case, Case::MirostatV1 | Case::MirostatV2) {
            self.chain = chain(self.case, self.rows.v);
        }
        let row = self.rows.row(i).iter().copied();
        self.kept = Logits::try_from_iter(row).expect("a good row");
        let token = self.chain.sample_token(&mut self.resources, &mut self.kept);
        token.expect("a good row").expect("a token")
    }

    fn kept(&self) -> Option<Vec<u32>> {
        Some(self.kept.iter().map(|logit| logit.token_id).collect())
    }
}
