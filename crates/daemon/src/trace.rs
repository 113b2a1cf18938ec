//! Traces of a daemon: their location, start, end and export formats.
//!
//! Owns the directory, which is beside the control socket and has its name, with one file for each reactor. Starting a
//! trace replaces an earlier one. Ending it, or the daemon, leaves the files, and removes only an empty directory. So
//! there is at most one trace, of the size that was requested. The file format is in [`sheave_base::trace`].

pub mod blk;
pub mod chrome;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sheave_base::trace::reader;
use sheave_base::trace::writer::TraceWriter;
use sheave_base::trace::{CAPACITY, ENTRY_BYTES, EXTENSION};
use sheave_serve::Server;

use crate::api::types as t;
use crate::failure::Failure;

/// Default size of the entries of a reactor.
pub const DEFAULT_BYTES: u64 = 2 << 20;

/// Returns the directory for traces of the daemon with this control socket.
#[must_use]
pub fn directory(control: &Path) -> PathBuf {
    control.with_extension(EXTENSION)
}

/// Creates that directory.
pub(crate) fn prepare(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Creates the trace of a ring in a directory.
///
/// # Errors
///
/// The file cannot be created.
pub fn create(directory: &Path, ring: u32, bytes: u64) -> Result<TraceWriter, Failure> {
    let path = directory.join(format!("{ring}.{EXTENSION}"));
    TraceWriter::create(&path, ring, bytes)
        .map_err(|error| Failure::run(format!("cannot make the trace {}: {error}", path.display())))
}

/// Creates the directory of traces, or removes the traces in it.
///
/// # Errors
///
/// The directory cannot be created, or a file not removed.
pub fn clear(directory: &Path) -> Result<(), Failure> {
    let failed = |error| Failure::run(format!("cannot make the directory {}: {error}", directory.display()));
    prepare(directory).map_err(failed)?;
    for path in reader::files(directory).map_err(failed)? {
        fs::remove_file(path).map_err(failed)?;
    }
    Ok(())
}

/// `StartTrace`.
pub(crate) fn start(server: &Server, directory: Option<&Path>, start: &t::StartTrace) -> Result<t::Traced, Failure> {
    let directory =
        directory.ok_or_else(|| Failure::run("a daemon without a control socket has no place for traces"))?;
    let bytes = start.size_bytes.unwrap_or(DEFAULT_BYTES);
    let bounds = CAPACITY.start() * ENTRY_BYTES as u64..=CAPACITY.end() * ENTRY_BYTES as u64;
    if !bounds.contains(&bytes) {
        return Err(Failure::usage(format!("a trace of {bytes} bytes a reactor cannot be"))
            .fix("take 16K at least, and 1G at most"));
    }
    // An earlier trace is stopped before its files are removed.
    stop(server)?;
    clear(directory)?;
    let reactors = u32::try_from(server.reactors()).unwrap_or(u32::MAX);
    let traces = (0..reactors).map(|ring| create(directory, ring, bytes)).collect::<Result<Vec<_>, _>>()?;
    let entries = traces.first().map_or(0, TraceWriter::capacity);
    answered(server.trace(traces))?;
    Ok(t::Traced { directory: directory.to_string_lossy().into_owned(), reactors: reactors.into(), entries })
}

/// `StopTrace`.
pub(crate) fn stop(server: &Server) -> Result<(), Failure> {
    answered(server.trace(Vec::new()))
}

fn answered(all: bool) -> Result<(), Failure> {
    if all { Ok(()) } else { Err(Failure::run("a reactor did not answer within 5 seconds").fix("try it again")) }
}
