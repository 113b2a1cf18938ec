//! `sheave trace`: starts and stops traces of a daemon, and exports their files, with or without a daemon.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sheave_base::trace::reader::{Trace, TraceError};
use sheave_base::units::fmt_count;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;
use sheave_daemon::paths;
use sheave_daemon::trace::{blk, chrome, directory};

use super::commands::{connect, done};
use crate::args::trace::{TraceArgs, TraceCommand};

/// Runs the command.
pub fn run(args: &TraceArgs) -> Result<(), Failure> {
    let control = args.control.as_deref();
    match &args.command {
        TraceCommand::Start { size } => {
            let start = t::StartTrace { size_bytes: Some(*size) };
            let traced: t::Traced = connect(control)?.call("StartTrace", &start)?;
            let t::Traced { directory, reactors, entries } = traced;
            let value = json!({ "done": "started", "directory": directory, "reactors": reactors, "entries": entries });
            let entries = fmt_count(entries);
            let words = format!("tracing {reactors} reactors, the last {entries} requests each, in {directory}\n");
            done(args.json, &value, &words)
        }
        TraceCommand::Stop => {
            let Value::Object(_) = connect(control)?.call("StopTrace", &t::Nothing {})? else { return Ok(()) };
            done(args.json, &json!({ "done": "stopped" }), "the trace has ended\n")
        }
        TraceCommand::Export { blktrace, chrome, from } => {
            let from = from.clone().map_or_else(|| of_daemon(control), Ok)?;
            let traces = Trace::read_all(&from).map_err(|why| unreadable(&why))?;
            let mut files = Vec::new();
            if let Some(base) = blktrace {
                export_blk(&traces, base, &mut files)?;
            }
            if let Some(path) = chrome {
                written(path, &mut files, |out| chrome::write(&traces, blk::first_ns(&traces), out))?;
            }
            told(args.json, &traces, &files)
        }
    }
}

fn unreadable(why: &TraceError) -> Failure {
    Failure::run(why.to_string())
        .fix("name a trace, or a directory of them, with --from; 'sheave trace start' makes one")
}

/// Returns the directory with the traces of the daemon at this socket. Without a socket, returns the only directory
/// that has traces.
fn of_daemon(control: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(control) = control {
        return Ok(directory(control));
    }
    let is_trace = |path: &PathBuf| path.is_dir() && path.extension().is_some_and(|end| end == "trace");
    let has_some =
        |path: &PathBuf| is_trace(path) && sheave_base::trace::reader::files(path).is_ok_and(|f| !f.is_empty());
    let entries = paths::directories().into_iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten();
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(has_some).collect();
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(_), false) => {
            Err(Failure::usage("there are traces of several servers").fix("choose with --control or --from"))
        }
        (None, _) => Err(Failure::run("there is no trace in the runtime directory")
            .fix("begin one with 'sheave trace start', or name one with --from")),
    }
}

/// Prints what the traces contained, and the files that were written.
fn told(as_json: bool, traces: &[Trace], files: &[PathBuf]) -> Result<(), Failure> {
    let of = |trace: &Trace| json!({ "ring": trace.ring, "entries": trace.entries.len(), "lost": trace.lost });
    let value = json!({ "done": "exported", "traces": traces.iter().map(of).collect::<Vec<_>>(), "files": files });
    let mut words = String::new();
    for trace in traces {
        let (entries, lost) = (fmt_count(trace.entries.len() as u64), fmt_count(trace.lost));
        words += &format!("ring {}: {entries} requests; {lost} before them are gone\n", trace.ring);
    }
    files.iter().for_each(|path| words += &format!("wrote {}\n", path.display()));
    done(as_json, &value, &words)
}

/// Writes a file for each ring.
fn export_blk(traces: &[Trace], base: &Path, files: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let (devices, first) = (blk::devices(traces), blk::first_ns(traces));
    for (number, trace) in traces.iter().enumerate() {
        let mut path = base.as_os_str().to_owned();
        path.push(format!(".blktrace.{number}"));
        written(Path::new(&path), files, |out| blk::write(trace, &devices, first, out))?;
    }
    Ok(())
}

fn written(
    path: &Path,
    files: &mut Vec<PathBuf>,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Failure> {
    let failed = |error| Failure::run(format!("cannot write {}: {error}", path.display()));
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    write(&mut out).and_then(|()| out.flush()).map_err(failed)?;
    files.push(path.to_owned());
    Ok(())
}
