//! Opens logs. Their first bytes tell the compression, not their names.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Bytes of a compressed file that are read at once.
const BUFFER: usize = 256 * 1024;

/// The bytes of a log, decompressed.
pub(crate) type Bytes = Box<dyn Read + Send>;

/// Bytes read of all files, as stored on disk.
pub(crate) type Progress = Arc<AtomicU64>;

/// Opens a file; `-` is standard input.
pub(crate) fn open(path: &Path, progress: &Progress) -> io::Result<Bytes> {
    let source: Bytes =
        if is_stdin(path) { Box::new(io::stdin()) } else { Box::new(File::open(path)?) };
    decompressed(Box::new(Counted { source, progress: Arc::clone(progress) }))
}

/// Whether this names standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Whether the file can be read twice.
pub(crate) fn is_seekable(path: &Path) -> bool {
    !is_stdin(path) && path.metadata().is_ok_and(|data| data.is_file())
}

fn decompressed(mut source: Bytes) -> io::Result<Bytes> {
    let mut head = Vec::with_capacity(ZSTD.len());
    source.by_ref().take(ZSTD.len() as u64).read_to_end(&mut head)?;
    let (gzip, zstd) = (head.starts_with(GZIP), head.starts_with(ZSTD));
    let whole = Cursor::new(head).chain(source);
    Ok(match (gzip, zstd) {
        (true, _) => Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER, whole))),
        (_, true) => Box::new(zstd::Decoder::with_buffer(BufReader::with_capacity(BUFFER, whole))?),
        _ => Box::new(whole),
    })
}

struct Counted {
    source: Bytes,
    progress: Progress,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.progress.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
