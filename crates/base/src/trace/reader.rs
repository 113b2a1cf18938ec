//! Reads the trace of a program that runs, has ended, or was killed, with plain calls of read(2).
//!
//! Owns the selection of valid entries. It leaves out damaged ones, and those that the writer may have begun to replace
//! while they were read or when it was killed. Trusts nothing in the file (T2 of the parent): memory is bounded by the
//! length of the file and by [`CAPACITY`].

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::{
    CAPACITY, ENTRY_BYTES, EXTENSION, Entry, HEAD_AT, HEADER_BYTES, MAGIC, MAX_RUN, NAME_BYTES, NAMES, NAMES_AT,
    VERSION,
};

/// Number of oldest entries that a writer may be replacing.
const MARGIN: u64 = MAX_RUN as u64;
/// Largest number of files that are read from a directory.
const MAX_FILES: usize = 4096;

/// Reason why a trace cannot be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Error of the system call.
        source: io::Error,
    },
    /// The file is not a trace.
    #[error("{path} is no trace: {why}")]
    NoTrace {
        /// The file.
        path: PathBuf,
        /// Mismatch that was found.
        why: &'static str,
    },
}

/// Content of a trace file.
#[derive(Clone, Debug)]
pub struct Trace {
    pub ring: u32,
    /// Process that wrote it.
    pub pid: u32,
    /// Time of day at [`Trace::coarse_ns`], in ns since 1970.
    pub wall_ns: u64,
    /// The same moment by the coarse clock, which entries use.
    pub coarse_ns: u64,
    /// Names of devices, by number; empty for a device without one.
    pub devices: Vec<String>,
    /// Entries, the oldest first.
    pub entries: Vec<Entry>,
    /// Number of entries that were written and have been replaced, or are damaged.
    pub lost: u64,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`TraceError`].
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let failed = |source| TraceError::Io { path: path.into(), source };
        // O_NONBLOCK: otherwise opening a fifo with that name would wait for a writer.
        let options = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(options).open(path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        let no = |why| TraceError::NoTrace { path: path.into(), why };
        if !meta.is_file() {
            return Err(no("it is not a regular file"));
        }
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => no("it is too short"),
            _ => failed(error),
        })?;
        let capacity = check(&header).map_err(no)?;
        let first = word(&header, HEAD_AT);
        let room = meta.len().saturating_sub(HEADER_BYTES as u64) / ENTRY_BYTES as u64;
        let raw = read_up_to(&file, (capacity.min(room) as usize) * ENTRY_BYTES).map_err(failed)?;
        let mut head = [0; 8];
        file.read_exact_at(&mut head, HEAD_AT as u64).map_err(failed)?;
        let last = u64::from_ne_bytes(head).max(first);
        let (entries, lost) = entries(&raw, capacity, first, last);
        Ok(Trace {
            ring: half(&header, 24),
            pid: half(&header, 28),
            wall_ns: word(&header, 32),
            coarse_ns: word(&header, 40),
            devices: (0..NAMES).map(|at| name(&header[NAMES_AT + at * NAME_BYTES..][..NAME_BYTES])).collect(),
            entries,
            lost,
        })
    }

    /// Reads a file, or all traces in a directory, sorted by the numbers of their rings.
    ///
    /// # Errors
    ///
    /// [`TraceError`]; also if the directory has no trace.
    pub fn read_all(path: &Path) -> Result<Vec<Trace>, TraceError> {
        if !path.is_dir() {
            return Ok(vec![Trace::read(path)?]);
        }
        let mut paths = files(path).map_err(|source| TraceError::Io { path: path.into(), source })?;
        paths.truncate(MAX_FILES);
        let mut traces = paths.iter().map(|path| Trace::read(path)).collect::<Result<Vec<_>, _>>()?;
        if traces.is_empty() {
            return Err(TraceError::NoTrace { path: path.into(), why: "there is no *.trace in it" });
        }
        traces.sort_by_key(|trace| trace.ring);
        Ok(traces)
    }
}

/// Returns the paths of the traces in a directory.
///
/// # Errors
///
/// Errors of the system calls.
pub fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_trace = |path: &PathBuf| path.extension().is_some_and(|extension| extension == EXTENSION) && is_ours(path);
    let paths = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    Ok(paths.into_iter().filter(is_trace).collect())
}

/// Returns true if a file begins like a trace, or is all zero because its trace was just created. Other files belong to
/// someone else, whatever their names.
fn is_ours(path: &Path) -> bool {
    let mut begins = [0; 8];
    let is_file = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file());
    let read = is_file && File::open(path).is_ok_and(|file| file.read_exact_at(&mut begins, 0).is_ok());
    read && [MAGIC, 0].contains(&u64::from_ne_bytes(begins))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    word(bytes, at) as u32
}

fn name(bytes: &[u8]) -> String {
    let many = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..many]).into_owned()
}

fn check(header: &[u8]) -> Result<u64, &'static str> {
    if word(header, 0) != MAGIC {
        return Err("it does not begin as one");
    }
    if half(header, 8) != VERSION || half(header, 12) != ENTRY_BYTES as u32 {
        return Err("it is of another version");
    }
    let capacity = word(header, 16);
    if !CAPACITY.contains(&capacity) || !capacity.is_power_of_two() {
        return Err("its capacity makes no sense");
    }
    Ok(capacity)
}

/// Reads up to `many` bytes of entries, fewer at the end of the file.
fn read_up_to(file: &File, many: usize) -> io::Result<Vec<u8>> {
    let (mut bytes, mut at) = (vec![0; many], 0);
    while at < many {
        match file.read_at(&mut bytes[at..], (HEADER_BYTES + at) as u64) {
            Ok(0) => break,
            Ok(got) => at += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(at);
    Ok(bytes)
}

/// Returns the entries that were complete when `first` entries had been written and were not replaced before `last` had
/// been, and the number of written entries that are not among them.
fn entries(raw: &[u8], capacity: u64, first: u64, last: u64) -> (Vec<Entry>, u64) {
    // Nothing is replaced until the file is full.
    let replaced = last.saturating_add(MARGIN).saturating_sub(capacity);
    let begin = replaced.min(first).max(first.saturating_sub(capacity));
    let entry = |number: u64| {
        let at = (number % capacity) as usize * ENTRY_BYTES;
        let bytes = raw.get(at..at + ENTRY_BYTES)?;
        Entry::from_words(std::array::from_fn(|part| word(bytes, part * 8)))
    };
    let entries: Vec<_> = (begin..first).filter_map(entry).collect();
    let lost = first - entries.len() as u64;
    (entries, lost)
}
