//! With the real model, which scripts/fetch-model brings. Skipped, and said so, where it is not
//! there; TOPMASS_REQUIRE_MODEL=1 makes that a failure.

use std::{env, fs};

use indicatif::ProgressBar;
use topmass::{Mirostat, Params, Sampler, Tier};
use topmass_slm::decode::{Limits, decode};
use topmass_slm::engine::{Engine, candle::Candle};
use topmass_slm::model::{Gguf, cached};
use topmass_slm::sampling::{Drawn, Rule, TokenSampler};
use topmass_slm::tokenizer::Tokenizer;

fn model(test: &str) -> Option<Gguf> {
    if cached().exists() {
        return Some(Gguf::open(None).expect("the fetched model opens"));
    }
    let why = format!("{test}: no model, bring it with: bash scripts/fetch-model");
    assert!(env::var_os("TOPMASS_REQUIRE_MODEL").is_none(), "{why}");
    println!("skipped: {why}");
    None
}

fn tokenizer(gguf: &Gguf) -> Tokenizer {
    let (tokenizer, warning) = Tokenizer::from_gguf(&gguf.content).expect("its tokenizer");
    assert_eq!(warning, None);
    tokenizer
}

fn recorded(name: &str) -> serde_json::Value {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/logits");
    let json = fs::read(format!("{folder}/{name}.json")).expect("the recording's notes");
    serde_json::from_slice(&json).expect("JSON")
}

fn draws(
    engine: &mut impl Engine,
    prompt: &[u32],
    mut sampler: TokenSampler,
    max_tokens: usize,
) -> Vec<Drawn> {
    let mut drawn = Vec::new();
    decode(
        engine,
        prompt,
        &Limits { max_tokens, end_tokens: &[] },
        |drawn: &Drawn| drawn.token,
        |engine| Ok(engine.logits(|row| sampler.draw(row))??),
        |_, step| {
            drawn.push(step.drawn);
            Ok(true)
        },
    )
    .expect("decodes");
    drawn
}

fn text(tokenizer: &Tokenizer, drawn: &[Drawn]) -> String {
    let mut stream = tokenizer.stream();
    let mut text: String = drawn.iter().map(|d| stream.push(d.token)).collect();
    text += &stream.finish();
    text
}

#[test]
fn ids_are_those_of_the_recorded_prompts() {
    let Some(gguf) = model("ids") else { return };
    let tokenizer = tokenizer(&gguf);
    for name in ["chat", "story"] {
        let notes = recorded(name);
        let prompt = notes["prompt"].as_str().expect("a prompt");
        let ids = tokenizer.encode(prompt, true).expect("encodes");
        assert_eq!(serde_json::json!(ids), notes["prompt_ids"], "{name}");
    }
    // The chat prompt is the template's work.
    let notes = recorded("chat");
    let chat = notes["prompt"].as_str().expect("a prompt");
    let user = chat.split("user\n").nth(1).and_then(|s| s.split("<|im_end|>").next());
    assert_eq!(tokenizer.chat(None, user.expect("a message")).expect("renders"), chat);
    // Digits stand alone, and nothing is put before the text.
    let names = |text: &str| {
        let ids = tokenizer.encode(text, true).expect("encodes");
        ids.into_iter().map(|id| tokenizer.name(id)).collect::<Vec<_>>()
    };
    assert_eq!(names("In 1984 "), ["In", "Ġ", "1", "9", "8", "4", "Ġ"]);
}

#[test]
fn text_comes_back_in_whole_characters() {
    let Some(gguf) = model("streaming") else { return };
    let tokenizer = tokenizer(&gguf);
    let said = "naïve 日本語 👩‍🚀\n\t<b> done";
    let ids = tokenizer.encode(said, false).expect("encodes");
    let mut stream = tokenizer.stream();
    let pieces: Vec<_> = ids.iter().map(|&id| stream.push(id)).collect();
    assert_eq!(pieces.concat() + &stream.finish(), said);
    assert!(pieces.iter().any(String::is_empty), "a character of several tokens");
    // Where the text ends inside a character, that shows.
    let mut stream = tokenizer.stream();
    let first = tokenizer.encode("👩", false).expect("encodes")[0];
    assert_eq!((stream.push(first).as_str(), stream.finish().as_str()), ("", "\u{FFFD}"));
}

#[test]
fn decodes() {
    let Some(gguf) = model("decoding") else { return };
    let tokenizer = tokenizer(&gguf);
    let mut engine = Candle::load(gguf, &ProgressBar::hidden()).expect("loads");
    let sampler = |rule: &Rule, tier| {
        TokenSampler::new(rule.clone(), 7, Sampler::with_tier(tier).expect("an available tier"))
    };

    let greedy = Rule::Cut(Params::default().with_temperature(0.0));
    let prompt = tokenizer.encode("One, two, three, four,", true).expect("encodes");
    let drawn = draws(&mut engine, &prompt, sampler(&greedy, Tier::detected()), 8);
    assert_eq!(text(&tokenizer, &drawn), " five, six, seven, eight,");

    // The same seed, the same text: again, on every tier, and by the literal algorithm.
    let chat = tokenizer.chat(None, "Name three colours.").expect("renders");
    let prompt = tokenizer.encode(&chat, false).expect("encodes");
    for rule in [
        Rule::Cut(Params::default().with_temperature(0.9).with_top_p(0.95).with_min_p(0.01)),
        Rule::Mirostat(Mirostat::v2(3.0, 0.1), 1.0),
    ] {
        let first = draws(&mut engine, &prompt, sampler(&rule, Tier::detected()), 24);
        for tier in Tier::available() {
            let again = draws(&mut engine, &prompt, sampler(&rule, tier), 24);
            assert_eq!(first, again, "{tier}");
        }
        let mut literal = sampler(&rule, Tier::Portable);
        let mut tokens = Vec::new();
        decode(
            &mut engine,
            &prompt,
            &Limits { max_tokens: 24, end_tokens: &[] },
            |drawn: &Drawn| drawn.token,
            |engine| Ok(engine.logits(|row| literal.draw_literally(row))??),
            |_, step| {
                tokens.push(step.drawn.token);
                Ok(true)
            },
        )
        .expect("decodes");
        assert_eq!(first.iter().map(|d| d.token).collect::<Vec<_>>(), tokens);
    }

    // A prompt that does not fit is refused before the engine sees it.
    let long = vec![1; engine.context() + 1];
    let limits = Limits { max_tokens: 1, end_tokens: &[] };
    for bad in [&[][..], &long] {
        let refused =
            decode(&mut engine, bad, &limits, |&t| t, |_| Ok(0), |_, _| Ok(true)).unwrap_err();
        assert!(refused.to_string().contains("prompt"), "{refused}");
    }
}
