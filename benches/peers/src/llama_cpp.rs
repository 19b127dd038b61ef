//! llama.cpp's sampler chain. The only file with unsafe code.

use llama_cpp_sys_2::{
    llama_sampler, llama_sampler_apply, llama_sampler_chain_add,
    llama_sampler_chain_default_params, llama_sampler_chain_init, llama_sampler_free,
    llama_sampler_init_dist, llama_sampler_init_min_p, llama_sampler_init_mirostat,
    llama_sampler_init_mirostat_v2, llama_sampler_init_temp, llama_sampler_init_top_k,
    llama_sampler_init_top_p, llama_sampler_reset, llama_token_data, llama_token_data_array,
};

use crate::rows::Rows;
use crate::{Case, Peer, Rule, Sample};

pub const PEERS: [Peer; 2] = [
    Peer {
        name: "llama.cpp",
        does: "top-k, top-p of the softmax of what it left, min-p, then T; f32 sums; ties by the \
               order of an unstable sort; Mirostat v1 rounds k down; filling its token array counts",
        rule: Rule::LlamaCpp,
        exact: false,
        part: false,
        new: |case, rows| {
            Some(Box::new(LlamaCpp {
                chain: Some(Chain::new(case, rows.v)),
                ..LlamaCpp::fill(rows, case)
            }))
        },
    },
    Peer {
        name: "  of which filling its array",
        does: "12 bytes a token: id, logit and room for a probability",
        rule: Rule::LlamaCpp,
        exact: false,
        part: true,
        new: |case, rows| Some(Box::new(LlamaCpp::fill(rows, case))),
    },
];

/// A chain of samplers, owned.
struct Chain(*mut llama_sampler);

impl Chain {
    fn new(case: Case, v: usize) -> Chain {
        let v = i32::try_from(v).expect("a row that llama.cpp can take");
        // SAFETY: plain constructors without preconditions; each returns an object that the chain
        // owns from `chain_add` on, and `Drop` frees the chain.
        unsafe {
            let chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
            let samplers = match case {
                Case::TopP => vec![llama_sampler_init_top_p(0.9, 1), llama_sampler_init_dist(5)],
                Case::Chain => vec![
                    llama_sampler_init_top_k(40),
                    llama_sampler_init_top_p(0.95, 1),
                    llama_sampler_init_min_p(0.05, 1),
                    llama_sampler_init_temp(0.8),
                    llama_sampler_init_dist(5),
                ],
                Case::Temperature => vec![llama_sampler_init_temp(0.8), llama_sampler_init_dist(5)],
                Case::MirostatV1 => vec![llama_sampler_init_mirostat(v, 5, 3.0, 0.1, 100)],
                Case::MirostatV2 => vec![llama_sampler_init_mirostat_v2(5, 3.0, 0.1)],
            };
            for sampler in samplers {
                llama_sampler_chain_add(chain, sampler);
            }
            Chain(chain)
        }
    }

    /// Cuts the array and selects from it. How many are left, and the position of the token.
    fn apply(&mut self, data: &mut [llama_token_data]) -> (usize, usize) {
        let (start, size) = (data.as_mut_ptr(), data.len());
        let mut array = llama_token_data_array { data: start, size, selected: -1, sorted: false };
        // SAFETY: the chain is alive; `array` describes `data`, which is initialised and not used
        // by anybody else meanwhile. llama.cpp works in place and only ever lowers `size`.
        unsafe { llama_sampler_apply(self.0, &mut array) };
        assert!(array.data == start && array.size <= size);
        (array.size, usize::try_from(array.selected).expect("a selected token"))
    }

    /// Puts Mirostat's controller back to 2 tau, where ours starts.
    fn reset(&mut self) {
        // SAFETY: the chain is alive.
        unsafe { llama_sampler_reset(self.0) };
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: made by `llama_sampler_chain_init`, and freed here only.
        unsafe { llama_sampler_free(self.0) };
    }
}

struct LlamaCpp<'a> {
    rows: &'a Rows,
    case: Case,
    /// None: only the array is filled.
    chain: Option<Chain>,
    data: Vec<llama_token_data>,
    left: usize,
}

impl<'a> LlamaCpp<'a> {
    fn fill(rows: &'a Rows, case: Case) -> Self {
        LlamaCpp { rows, case, chain: None, data: Vec::with_capacity(rows.v), left: 0 }
    }
}

impl Sample for LlamaCpp<'_> {
    fn sample(&mut self, i: usize) -> u32 {
        let logits = self.rows.row(i).iter().zip(0..);
        self.data.clear();
        self.data.extend(logits.map(|(&logit, id)| llama_token_data { id, logit, p: 0.0 }));
        let Some(chain) = &mut self.chain else { return self.data.len() as u32 };
        if matches!(self.case, Case::MirostatV1 | Case::MirostatV2) {
            chain.reset();
        }
        let (left, selected) = chain.apply(&mut self.data);
        self.left = left;
        self.data[selected].id as u32
    }

    fn kept(&self) -> Option<Vec<u32>> {
        self.chain.as_ref()?;
        Some(self.data[..self.left].iter().map(|token| token.id as u32).collect())
    }
}
