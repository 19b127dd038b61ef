//! Text to tokens and back, with what the GGUF file holds.

use std::collections::HashMap;

use anyhow::{Context, Result, anyhow, bail};
use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::tokenizer::TokenizerFromGguf;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;

/// A tokenizer, the chat template beside it, and the tokens that end a text.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    chat_template: Option<String>,
    bos: String,
    eos: String,
    end: Vec<u32>,
    bytes: HashMap<char, u8>,
}

impl Tokenizer {
    /// Builds the tokenizer that the file describes. The second value is a warning, where the file
    /// asks for a way of splitting words that is not known here.
    ///
    /// # Errors
    /// Where it describes none, or one that is not a byte-level BPE.
    pub fn from_gguf(content: &Content) -> Result<(Self, Option<String>)> {
        let key = |name: &str| format!("tokenizer.{name}");
        let text = |name: &str| content.metadata.get(&key(name)).and_then(|v| v.to_string().ok());
        let kind = text("ggml.model").context("the file holds no tokenizer")?;
        if kind != "gpt2" {
            bail!("a tokenizer of kind {kind}, expected gpt2 (byte-level BPE)");
        }
        let mut inner = tokenizers::Tokenizer::from_gguf(content)?;

        // What candle's loader does not know it treats like GPT-2 with a space before the text.
        // The names are llama.cpp's.
        let byte_level = || ByteLevel::new(false, true, true).into();
        let pre = text("ggml.pre").map_or("default", String::as_str);
        let (pre_tokenizer, warning): (Option<PreTokenizerWrapper>, _) = match pre {
            "qwen2" | "smaug-bpe" | "lfm2" | "llama3" => (None, None),
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => {
                let digits = Digits::new(true).into();
                (Some(Sequence::new(vec![digits, byte_level()]).into()), None)
            }
            "gpt-2" | "mpt" | "olmo" | "phi-2" | "jais" => (Some(byte_level()), None),
            _ => (
                Some(byte_level()),
                Some(format!(
                    "pre-tokenizer {pre} is not known here, words are split like GPT-2's"
                )),
            ),
        };
        if pre_tokenizer.is_some() {
            inner.with_pre_tokenizer(pre_tokenizer);
        }

        let id = |name: &str| match content.metadata.get(&key(&format!("ggml.{name}_token_id")))? {
            Value::I32(id) => u32::try_from(*id).ok(),
            id => id.to_u32().ok(),
        };
        let token = |id: Option<u32>| id.and_then(|id| inner.id_to_token(id)).unwrap_or_default();
        // A file names one end token; a text may end with another, as a chat's turn does.
        let known = ["<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>"];
        let end = [id("eos"), id("eot")].into_iter().chain(known.map(|t| inner.token_to_id(t)));
        let end = end.flatten().collect();
        let (bos, eos) = (token(id("bos")), token(id("eos")));
        let chat_template = text("chat_template").cloned();
        Ok((Tokenizer { inner, chat_template, bos, eos, end, bytes: byte_alphabet() }, warning))
    }

    /// The tokens of a text; special tokens written out in it count as such.
    ///
    /// # Errors
    /// Where the tokenizer fails.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, add_special).map_err(|e| anyhow!(e))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The model's chat template around a user's message.
    ///
    /// # Errors
    /// Where the file has none or it fails.
    pub fn chat(&self, system: Option<&str>, user: &str) -> Result<String> {
        let template = self
            .chat_template
            .as_deref()
            .context("the model has no chat template, use --raw to continue the prompt as it is")?;
        let mut environment = Environment::new();
        // As Hugging Face's templates expect.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", |why: String| -> Result<String, _> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, why))
        });
        let message = |role, content| context! { role, content };
        let messages: Vec<_> = system
            .map(|text| message("system", text))
            .into_iter()
            .chain([message("user", user)])
            .collect();
        let rendered = environment.render_str(
            template,
            context! {
                messages,
                add_generation_prompt => true,
                bos_token => self.bos.as_str(),
                eos_token => self.eos.as_str(),
            },
        );
        rendered.context("the model's chat template failed, use --raw to go without it")
    }

    /// The tokens that end a text.
    #[must_use]
    pub fn end_tokens(&self) -> &[u32] {
        &self.end
    }

    /// How the vocabulary spells a token, for those that have no text.
    #[must_use]
    pub fn name(&self, token: u32) -> String {
        self.inner.id_to_token(token).unwrap_or_else(|| format!("[{token}]"))
    }

    /// Turns tokens into text as they come.
    #[must_use]
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, pending: Vec::new() }
    }

    /// A token's bytes, which need not be whole characters; none for a special token.
    fn bytes(&self, token: u32) -> impl Iterator<Item = u8> {
        let special = self.inner.get_added_vocabulary().is_special_token(&self.name(token));
        let name = if special { String::new() } else { self.name(token) };
        name.chars().filter_map(|c| self.bytes.get(&c).copied()).collect::<Vec<_>>().into_iter()
    }
}

/// Text of tokens as they come. A character whose bytes are spread over several tokens comes with
/// the last of them.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// The start of a character.
    pending: Vec<u8>,
}

impl TextStream<'_> {
    /// The text that a token completes, often its own, sometimes none.
    pub fn push(&mut self, token: u32) -> String {
        self.pending.extend(self.tokenizer.bytes(token));
        let mut text = String::new();
        for chunk in std::mem::take(&mut self.pending).utf8_chunks() {
            text += chunk.valid();
            // Bytes that may yet become a character; there can be none after them.
            if str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none()) {
                self.pending = chunk.invalid().to_vec();
            } else if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    /// What is left where the text ends inside a character.
    #[must_use]
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.pending).into_owned()
    }
}

/// The bytes behind the characters with which a byte-level vocabulary is spelled: printable ones
/// stand for themselves, the others have characters from 256 on.
fn byte_alphabet() -> HashMap<char, u8> {
    let mut others = (256..).filter_map(char::from_u32);
    (0..=255)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => (char::from(byte), byte),
            _ => (others.next().expect("68 characters follow 255"), byte),
        })
        .collect()
}
