//! `sheave trace`: begins and ends traces of a daemon, and exports what is in their files, with or without one.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use sheave_base::trace::reader::{Trace, TraceError};
use sheave_base::units::fmt_count;
use sheave_daemon::api::{paths, types as t};
use sheave_daemon::failure::Failure;
use sheave_daemon::trace::{blk, chrome, directory};

use super::commands::connect;
use crate::args::trace::{TraceArgs, TraceCommand};
use crate::output;

/// The command.
pub fn run(args: &TraceArgs) -> Result<(), Failure> {
    let control = args.control.as_deref();
    match &args.command {
        TraceCommand::Start { size } => {
            let start = t::StartTrace { size_bytes: Some(*size) };
            let traced: t::Traced = connect(control)?.call("StartTrace", &start)?;
            let t::Traced { directory, reactors, entries } = traced;
            let entries = fmt_count(entries);
            output::text(&format!("tracing {reactors} reactors, the last {entries} requests each, in {directory}\n"));
            Ok(())
        }
        TraceCommand::Stop => {
            let Value::Object(_) = connect(control)?.call("StopTrace", &t::Nothing {})? else { return Ok(()) };
            output::text("the trace has ended\n");
            Ok(())
        }
        TraceCommand::Export { blktrace, chrome, from } => {
            let from = from.clone().map_or_else(|| of_daemon(control), Ok)?;
            let traces = Trace::read_all(&from).map_err(|why| unreadable(&why))?;
            tell(&traces);
            if let Some(base) = blktrace {
                export_blk(&traces, base)?;
            }
            match chrome {
                Some(path) => written(path, |out| chrome::write(&traces, blk::first_ns(&traces), out)),
                None => Ok(()),
            }
        }
    }
}

fn unreadable(why: &TraceError) -> Failure {
    Failure::run(why.to_string())
        .fix("name a trace, or a directory of them, with --from; 'sheave trace start' makes one")
}

/// Where the daemon with this socket has its traces, or the only one that has some.
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

fn tell(traces: &[Trace]) {
    for trace in traces {
        let (entries, lost) = (fmt_count(trace.entries.len() as u64), fmt_count(trace.lost));
        output::text(&format!("ring {}: {entries} requests; {lost} before them are gone\n", trace.ring));
    }
}

/// A file for each ring.
fn export_blk(traces: &[Trace], base: &Path) -> Result<(), Failure> {
    let (devices, first) = (blk::devices(traces), blk::first_ns(traces));
    for (number, trace) in traces.iter().enumerate() {
        let mut path = base.as_os_str().to_owned();
        path.push(format!(".blktrace.{number}"));
        written(Path::new(&path), |out| blk::write(trace, &devices, first, out))?;
    }
    Ok(())
}

fn written(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Failure> {
    let failed = |error| Failure::run(format!("cannot write {}: {error}", path.display()));
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    write(&mut out).and_then(|()| out.flush()).map_err(failed)?;
    output::text(&format!("wrote {}\n", path.display()));
    Ok(())
}
