//! Reads rows of logits from a NumPy `.npy` file, or says in one line why it cannot.
//!
//! [`npyz`] does the reading, but its header parser trusts the file, which may be anybody's:
//! [`check_plain`] goes first.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use npyz::half::f16;
use npyz::{NpyFile, NpyHeader, Order};

/// NumPy's own limit (`max_header_size`); the header of a plain array takes 118 bytes.
const MAX_HEADER: usize = 10_000;

const SHAPE: &str = "expected [rows, vocab] or [vocab]";

const NOT_PLAIN: &str = "header that is not a plain array's, expected \
    {'descr': '<f4', 'fortran_order': False, 'shape': (rows, vocab)}";

/// Rows of logits, one after the other. At least one row of at least one logit.
#[derive(Debug, PartialEq)]
pub struct Rows {
    /// Logits in a row.
    pub vocab: usize,
    /// All rows, row-major.
    pub data: Vec<f32>,
}

impl Rows {
    /// The rows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[f32]> {
        self.data.chunks_exact(self.vocab)
    }
}

/// Reads a C-order `.npy` file of float32 or float16, of shape `[rows, vocab]` or `[vocab]`.
///
/// # Errors
/// One line that names the file, what is wrong with it and what was expected. Memory grows with
/// what the file holds, never with what its header claims.
pub fn read_rows(path: &Path) -> Result<Rows, String> {
    File::open(path)
        .map_err(|e| format!("cannot open it, expected a .npy file: {e}"))
        .and_then(|file| parse(BufReader::new(file)))
        .map_err(|why| format!("{}: {why}", path.display()))
}

pub fn parse(mut file: impl BufRead) -> Result<Rows, String> {
    let header = read_header(&mut file)?;
    let shape = header.shape().to_vec();
    let (rows, vocab) = match shape[..] {
        [vocab] => (1, vocab),
        [rows, vocab] => (rows, vocab),
        _ => return Err(format!("shape {shape:?}, {SHAPE}")),
    };
    if rows == 0 || vocab == 0 {
        return Err(format!("shape {shape:?} holds nothing, {SHAPE}"));
    }
    let vocab =
        usize::try_from(vocab).map_err(|_| format!("shape {shape:?} overflows, {SHAPE}"))?;
    if header.order() == Order::Fortran {
        return Err("Fortran order, expected C order (numpy.ascontiguousarray makes it so)".into());
    }

    let npy = NpyFile::with_header(header, &mut file);
    let data = match npy.try_data::<f32>() {
        Ok(values) => collect(values, &shape),
        Err(npy) => match npy.try_data::<f16>() {
            Ok(values) => collect(values, &shape),
            Err(npy) => {
                let dtype = npy.dtype().descr();
                Err(format!("dtype {dtype}, expected float32 ('<f4') or float16 ('<f2')"))
            }
        },
    }?;
    match file.fill_buf() {
        Ok([]) => Ok(Rows { vocab, data }),
        Ok(_) => Err(format!("more data than shape {shape:?}, expected no more")),
        Err(e) => Err(cannot_read(&e)),
    }
}

fn collect<T: Into<f32>>(
    values: impl Iterator<Item = io::Result<T>>,
    shape: &[u64],
) -> Result<Vec<f32>, String> {
    let mut data = Vec::new();
    for value in values {
        match value {
            Ok(x) => data.push(x.into()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
                let (found, needed) = (data.len(), shape.iter().product::<u64>());
                return Err(format!(
                    "ends after {found} logits, expected {needed}, shape {shape:?}"
                ));
            }
            Err(e) => return Err(cannot_read(&e)),
        }
    }
    Ok(data)
}

fn read_header(file: &mut impl Read) -> Result<NpyHeader, String> {
    let mut head = take(file, 8)?;
    if !head.starts_with(b"\x93NUMPY") {
        return Err("not a .npy file, expected what numpy.save writes".into());
    }
    let length_bytes = match head[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(format!(".npy version {version}, expected 1, 2 or 3")),
    };
    let length = take(file, length_bytes)?;
    let little_endian = length.iter().rev();
    let bytes = little_endian.fold(0, |n, &byte| n << 8 | usize::from(byte));
    if bytes > MAX_HEADER {
        return Err(format!("{bytes} bytes of header, expected at most {MAX_HEADER}"));
    }
    let text = take(file, bytes)?;
    check_plain(&text)?;
    head.extend(length);
    head.extend(text);
    NpyHeader::from_reader(&head[..]).map_err(|_| NOT_PLAIN.into())
}

/// Whether the header looks like a plain array's: one dict and one tuple of sizes, so nothing
/// nested, on which `npyz` would take exponential time; and sizes whose product does not overflow,
/// which `npyz` would panic on or, in a release build, not notice.
fn check_plain(header: &[u8]) -> Result<(), String> {
    let text = str::from_utf8(header).map_err(|_| NOT_PLAIN)?;
    if !text.matches(['{', '[', '(']).eq(["{", "("]) {
        return Err(NOT_PLAIN.into());
    }
    let (_, rest) = text.split_once('(').ok_or(NOT_PLAIN)?;
    let (sizes, _) = rest.split_once(')').ok_or(NOT_PLAIN)?;
    let mut product = 1_u64;
    for size in sizes.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let size: u64 = size.parse().map_err(|_| NOT_PLAIN)?;
        product = product
            .checked_mul(size.max(1))
            .ok_or_else(|| format!("shape {sizes:?} overflows, {SHAPE}"))?;
    }
    Ok(())
}

fn take(file: &mut impl Read, bytes: usize) -> Result<Vec<u8>, String> {
    let mut taken = vec![0; bytes];
    file.read_exact(&mut taken).map_err(|e| match e.kind() {
        io::ErrorKind::UnexpectedEof => "ends inside its header, expected a whole .npy file".into(),
        _ => cannot_read(&e),
    })?;
    Ok(taken)
}

fn cannot_read(e: &io::Error) -> String {
    format!("cannot read it: {e}")
}
