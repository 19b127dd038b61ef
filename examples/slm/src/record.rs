//! Files that are whole or not there: logits as `.npy`, and the writer that the others use.

use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::NamedTempFile;

/// A file that gets its name when it is finished, so that no half of it is ever there.
pub struct WholeFile {
    path: PathBuf,
    file: BufWriter<NamedTempFile>,
}

impl WholeFile {
    /// Opens a nameless file beside `path`.
    ///
    /// # Errors
    /// Where the folder cannot be written to, or `path` is a folder.
    pub fn create(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        ensure!(!path.is_dir(), "{}: it is a folder", cannot());
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let mut builder = tempfile::Builder::new();
        // Readable by whom any other new file is.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let file = builder.tempfile_in(folder.unwrap_or(Path::new("."))).with_context(cannot)?;
        Ok(WholeFile { path: path.into(), file: BufWriter::new(file) })
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// Where what is left cannot be written.
    pub fn finish(self) -> Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        let file = self.file.into_inner().map_err(|e| e.into_error()).with_context(cannot)?;
        file.persist(&self.path).with_context(cannot)?;
        Ok(())
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Bytes of a `.npy` header with room for any shape; a multiple of 64, as the format wants it.
const HEADER: usize = 128;

/// Rows of logits for a `.npy` file, f32 of shape `[rows, vocab]`, written as they come.
pub struct Recorder {
    file: WholeFile,
    rows: usize,
    vocab: usize,
}

impl Recorder {
    /// Starts a file.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn create(path: &Path) -> Result<Self> {
        let mut file = WholeFile::create(path)?;
        file.write_all(&[0; HEADER])?;
        Ok(Recorder { file, rows: 0, vocab: 0 })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn push(&mut self, row: &[f32]) -> Result<()> {
        for logit in row {
            self.file.write_all(&logit.to_le_bytes())?;
        }
        self.rows += 1;
        self.vocab = row.len();
        Ok(())
    }

    /// Writes the header and gives the file its name.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn finish(mut self) -> Result<()> {
        let (rows, vocab) = (self.rows, self.vocab);
        let dict =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {vocab}), }}");
        let rest = HEADER - 10;
        self.file.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(b"\x93NUMPY\x01\x00")?;
        self.file.write_all(&(rest as u16).to_le_bytes())?;
        writeln!(self.file, "{dict:<width$}", width = rest - 1)?;
        self.file.finish()
    }
}
