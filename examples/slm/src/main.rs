//! A small language model on this CPU, every token sampled by topmass.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use topmass::{Mirostat, Params, Sampler, Ties};
use topmass_slm::compare::compare;
use topmass_slm::decode::{End, Limits, decode};
use topmass_slm::engine::{Engine, candle::Candle};
use topmass_slm::model::Gguf;
use topmass_slm::record::{Recorder, WholeFile};
use topmass_slm::report::Page;
use topmass_slm::sampling::{Drawn, Rule, TokenSampler};
use topmass_slm::stats::{StatsFile, Summary};
use topmass_slm::tokenizer::Tokenizer;

/// Continues a prompt with a small language model, on the CPU, every token sampled by topmass.
///
/// The text goes to standard output as it comes, the rest to standard error. N is how many tokens
/// were kept, M the share of the probability that they hold, surprise -log2 of the drawn token's
/// probability in the whole softmax. The model is SmolLM2-135M-Instruct, which scripts/fetch-model
/// brings, or any GGUF of a llama with --model. TOPMASS_TIER=portable (avx2, avx512, neon) forces
/// an instruction set of the sampler: the text stays the same.
#[derive(Parser)]
#[command(name = "slm", allow_negative_numbers = true)]
struct Args {
    /// What to say to the model
    #[arg(long, short)]
    prompt: String,

    /// Continue the prompt as it is, instead of putting it into the model's chat template
    #[arg(long)]
    raw: bool,

    /// A system message for the chat template [default: the template's own]
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// A GGUF file [default: what scripts/fetch-model brought]
    #[arg(long, value_name = "FILE.gguf")]
    model: Option<PathBuf>,

    /// What runs the model
    #[arg(long, value_enum, default_value_t)]
    engine: EngineName,

    /// Divides the logits: below 1 sharpens, above 1 flattens, 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f32,

    /// Keep the likeliest tokens until they hold this share of the probability (1: all)
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f64,

    /// Keep the K likeliest tokens (0: off)
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: u32,

    /// Keep tokens at least this many times as likely as the likeliest (0: off)
    #[arg(long, value_name = "RATIO", default_value_t = 0.0)]
    min_p: f64,

    /// What happens to tokens as likely as the last one kept
    #[arg(long, value_enum, default_value_t)]
    ties: TiesName,

    /// Hold the surprise at --tau bits instead of cutting by top-p, top-k or min-p
    #[arg(long, value_enum, conflicts_with_all = ["top_p", "top_k", "min_p", "ties"])]
    mirostat: Option<MirostatVersion>,

    /// Mirostat's target, in bits
    #[arg(long, default_value_t = 3.0, requires = "mirostat")]
    tau: f64,

    /// Mirostat's learning rate
    #[arg(long, default_value_t = 0.1, requires = "mirostat")]
    eta: f64,

    /// Seed of the random numbers: the same seed gives the same text
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Stop after so many tokens
    #[arg(long, value_name = "N", default_value_t = 200)]
    max_tokens: usize,

    /// Write a row per step: .csv or .jsonl
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,

    /// Write a page with the text coloured by surprise, and plots
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Write the logits, for `cargo run --release --example decode -- --logits FILE.npy`
    #[arg(long, value_name = "FILE.npy")]
    record: Option<PathBuf>,

    /// Decode again with the engine's own sampler and with topmass's scalar reference
    #[arg(long)]
    compare: bool,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum EngineName {
    #[default]
    Candle,
    #[cfg(feature = "llama-cpp")]
    LlamaCpp,
}

#[derive(Clone, Copy, Default, ValueEnum)]
enum TiesName {
    /// They share its fate
    #[default]
    Together,
    /// The lowest ids stay
    LowestIndex,
}

#[derive(Clone, Copy, ValueEnum)]
enum MirostatVersion {
    V1,
    V2,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if e.downcast_ref::<io::Error>().is_some_and(is_closed_pipe) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("slm: {e:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether whoever read the text has seen enough (`| head`).
fn is_closed_pipe(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::BrokenPipe
}

fn run(args: &Args) -> Result<()> {
    let rule = rule(args)?;
    ensure!(args.max_tokens > 0, "--max-tokens 0 asks for nothing, expected at least 1");
    ensure!(!args.prompt.is_empty(), "the prompt is empty");
    let gguf = Gguf::open(args.model.as_deref())?;
    let shown = gguf.path.display().to_string();
    let (tokenizer, warning) = Tokenizer::from_gguf(&gguf.content).context(shown.clone())?;
    if let Some(warning) = warning {
        eprintln!("slm: {warning}: the ids of the prompt may differ from the model's own");
    }
    let text = match args.raw {
        true => args.prompt.clone(),
        false => tokenizer.chat(args.system.as_deref(), &args.prompt)?,
    };
    let prompt = tokenizer.encode(&text, args.raw)?;

    match args.engine {
        EngineName::Candle => {
            let bar = loading(&gguf)?;
            let mut engine = Candle::load(gguf, &bar).context(shown)?;
            bar.finish_and_clear();
            talk(args, &rule, &mut engine, &tokenizer, &prompt)
        }
        #[cfg(feature = "llama-cpp")]
        EngineName::LlamaCpp => {
            let model = topmass_slm::engine::llama_cpp::Model::load(&gguf.path)?;
            talk(
                args,
                &rule,
                &mut model.engine(prompt.len() + args.max_tokens)?,
                &tokenizer,
                &prompt,
            )
        }
    }
}

fn rule(args: &Args) -> Result<Rule> {
    let ties = match args.ties {
        TiesName::Together => Ties::Together,
        TiesName::LowestIndex => Ties::LowestIndex,
    };
    let params = Params::default()
        .with_temperature(args.temperature)
        .with_top_p(args.top_p)
        .with_top_k(args.top_k)
        .with_min_p(args.min_p)
        .with_ties(ties);
    params.validate().context("see --help")?;
    let Some(version) = args.mirostat else { return Ok(Rule::Cut(params)) };
    let mirostat = match version {
        MirostatVersion::V1 => Mirostat::v1(args.tau, args.eta),
        MirostatVersion::V2 => Mirostat::v2(args.tau, args.eta),
    };
    Ok(Rule::Mirostat(mirostat, args.temperature))
}

fn loading(gguf: &Gguf) -> Result<ProgressBar> {
    let bar = ProgressBar::new(gguf.file.get_ref().metadata()?.len());
    bar.set_style(ProgressStyle::with_template("loading {wide_bar} {bytes}/{total_bytes}")?);
    Ok(bar)
}

/// Everything that is asked of a loaded engine.
fn talk<E: Engine>(
    args: &Args,
    rule: &Rule,
    engine: &mut E,
    tokenizer: &Tokenizer,
    prompt: &[u32],
) -> Result<()> {
    // Opened before the work: a name that cannot be written is better known at once.
    let stats = args.stats.as_deref().map(StatsFile::create).transpose()?;
    let report = args.report.as_deref().map(WholeFile::create).transpose()?;
    let mut recorder = args.record.as_deref().map(Recorder::create).transpose()?;

    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupted);
    ctrlc::set_handler(move || {
        // The second one means it.
        if flag.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    })?;
    let go_on = || !interrupted.load(Ordering::Relaxed);

    let limits = Limits { max_tokens: args.max_tokens, end_tokens: tokenizer.end_tokens() };
    let sampler = || TokenSampler::new(rule.clone(), args.seed, Sampler::new());
    let mut topmass = sampler();
    let (mut steps, mut texts) = (Vec::new(), Vec::new());
    let mut stream = tokenizer.stream();
    let mut out = io::stdout().lock();
    let end = decode(
        engine,
        prompt,
        &limits,
        |drawn: &Drawn| drawn.token,
        |engine| Ok(engine.logits(|row| topmass.draw(row))??),
        |engine, step| {
            if let Some(recorder) = &mut recorder {
                engine.logits(|row| recorder.push(row))??;
            }
            let text = stream.push(step.drawn.token);
            write!(out, "{text}")?;
            out.flush()?;
            texts.push(text);
            steps.push(step.clone());
            Ok(go_on())
        },
    )?;
    writeln!(out, "{}", stream.finish())?;

    let summary = Summary::of(&steps, prompt.len(), Sampler::new().tier());
    let why = match end {
        End::EndToken => "the model ended it",
        End::MaxTokens => "--max-tokens",
        End::ContextFull => "the model's context is full",
        End::Stopped => "interrupted",
    };
    eprint!("\n{summary}{:<9} {why}\n", "end");

    if let Some(recorder) = recorder {
        recorder.finish()?;
    }
    if let Some(stats) = stats {
        stats.write(&steps, &texts)?;
    }
    if let Some(mut file) = report {
        let names: Vec<_> = steps.iter().map(|s| tokenizer.name(s.drawn.token)).collect();
        let how = format!("{}, seed {}, {}", describe(rule), args.seed, E::NAME);
        let page = Page {
            prompt: &args.prompt,
            how: &how,
            end: why,
            summary: &summary,
            steps: &steps,
            texts: &texts,
            names: &names,
        };
        file.write_all(page.html()?.as_bytes())?;
        file.finish()?;
    }
    if args.compare && go_on() {
        eprint!("\n{}", compare(engine, prompt, rule, args.seed, &steps, &go_on)?);
    }
    Ok(())
}

fn describe(rule: &Rule) -> String {
    match rule {
        Rule::Cut(Params { temperature, top_p, top_k, min_p, .. }) => {
            format!("temperature {temperature}, top-p {top_p}, top-k {top_k}, min-p {min_p}")
        }
        Rule::Mirostat(mirostat, temperature) => {
            let (tau, eta) = (mirostat.tau(), mirostat.eta());
            format!("Mirostat, tau {tau}, eta {eta}, temperature {temperature}")
        }
    }
}
