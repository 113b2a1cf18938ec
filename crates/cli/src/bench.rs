//! `sheave bench`: measures the speed of a device, or verifies that it keeps what is written to it.
//!
//! | module | holds |
//! |---|---|
//! | [`storage`] | the kind of device that a spec names |
//! | [`content`] | checks of files that a run would overwrite |
//! | [`plan`] | the arguments, checked in combination |
//! | [`subject`] | the device, or the volume and its pool, that a run drives |
//! | [`worker`] | threads that fill, run and read back together |
//! | [`compare`] | alternating turns of two sides |
//! | [`board`], [`progress`], [`report`](mod@report), [`io_error`] | progress and result |
//!
//! The loops, and the engines that they drive, are in `sheave-load`.

mod board;
mod compare;
mod content;
mod io_error;
mod plan;
mod progress;
mod report;
mod storage;
mod subject;
mod worker;

use std::sync::{Arc, mpsc};

use plan::Plan;
use report::{Measured, Report, VerifyReport};
use sheave::Ring;
use sheave_base::rng::Rng;
use sheave_base::sync::atomic::Ordering;
use sheave_base::trace::writer::TraceWriter;
use sheave_daemon::failure::Failure;
use sheave_daemon::trace;
use sheave_load::{SheaveEngine, signals, verify};
use storage::Target;
use subject::{RawPeer, Subject};
use worker::{Crew, Harvest};

use crate::args::BenchArgs;
use crate::output;
use crate::space::Warner;

/// Runs the command: plan, device, threads, report.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let mut plan = Plan::new(&args.clone().with_job()?)?;
    let subject = Subject::open(&plan)?;
    let mut warner = subject.warner(&plan);
    warner.iter_mut().for_each(Warner::look);
    let range = plan.range(subject.room(&plan)?, subject.block_bytes())?;
    plan.take_work(range);
    if let Some(path) = plan.args.says.as_ref().and_then(|says| says.invalidates.as_deref()) {
        content::drop_pages(path, range)?;
    }
    let stop = signals::stop_flag()?;
    let raw = RawPeer::of(&plan, range)?;
    let crew = Crew::new(plan, range, subject.device(), raw, run_id(), Arc::clone(&stop));
    let traces = traces(&crew.plan.args)?;
    let harvests = bring_in(&crew, &subject, traces);
    // Relaxed: all threads are joined, and the flag carries nothing but itself.
    let outcome = harvests.and_then(|harvests| report(&crew, &subject, harvests, stop.load(Ordering::Relaxed)));
    warner.iter_mut().for_each(Warner::look);
    // If the run failed too, its error is returned, since it explains more.
    let closed = subject.close();
    outcome.and(closed)
}

/// Creates a trace for each thread, if traces were asked for.
fn traces(args: &BenchArgs) -> Result<Vec<TraceWriter>, Failure> {
    let Some(directory) = &args.trace else { return Ok(Vec::new()) };
    trace::clear(directory)?;
    (0..args.threads).map(|thread| trace::create(directory, thread, trace::DEFAULT_BYTES)).collect()
}

/// Runs the threads and shows their progress.
fn bring_in(crew: &Crew, subject: &Subject, traces: Vec<TraceWriter>) -> Result<Vec<Harvest>, Failure> {
    let args = &crew.plan.args;
    let (alive, finished) = mpsc::channel();
    let mut traces = traces.into_iter();
    // From here on this thread shows the progress. Its CPU time so far does not belong to the run, so it is subtracted
    // too.
    crew.meter.note_reporter();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for index in 0..args.threads {
            let (alive, trace) = (alive.clone(), traces.next());
            let body = move || {
                let _bomb = ExitOnPanic;
                worker::work(
                    crew,
                    index,
                    || {
                        let ring = args.ring(subject.pieces(args.bs));
                        let attach = |ring: &mut Ring| {
                            ring.trace_to(trace);
                            subject.attach(ring)
                        };
                        let engine = SheaveEngine::built(ring, attach, &args.engine())?;
                        Ok(if args.nop { engine.with_nops() } else { engine })
                    },
                    alive,
                )
            };
            let thread = std::thread::Builder::new().name(format!("bench-{index}"));
            match thread.spawn_scoped(scope, body) {
                Ok(thread) => threads.push(thread),
                Err(err) => no_thread(&err),
            }
        }
        drop(alive);
        progress::watch(args, &crew.board, &crew.meter, &finished);
        let mut harvests = Vec::new();
        for thread in threads {
            harvests.push(thread.join().map_err(|_| Failure::run("a thread of the run panicked"))??);
        }
        Ok(harvests)
    })
}

/// Ends the process if a thread cannot be started, because the threads that run already wait at the gate for all of
/// them.
fn no_thread(err: &std::io::Error) -> ! {
    let failure = Failure::run(format!("cannot start a thread: {err}"));
    output::say(format_args!("{}", failure.fix("raise the limit of processes (ulimit -u), or use fewer --threads")));
    std::process::exit(1);
}

/// Ends the process when a thread panics, because the others would wait for it at the gate for ever.
struct ExitOnPanic;

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::exit(101);
        }
    }
}

fn report(crew: &Crew, subject: &Subject, harvests: Vec<Harvest>, interrupted: bool) -> Result<(), Failure> {
    let args = &crew.plan.args;
    let mut sum = Harvest::default();
    for harvest in harvests {
        sum.counts += harvest.counts;
        sum.tally += harvest.tally;
        sum.first_error = sum.first_error.or(harvest.first_error);
        sum.wrong = sum.wrong.or(harvest.wrong);
        sum.comparison = sum.comparison.or(harvest.comparison);
    }
    let measured = Measured { counts: sum.counts, spent: crew.spent(), latency: crew.latency() };
    let mut report = Report::new(&crew.plan, subject.name(), measured);
    report.interrupted = interrupted;
    report.notices = subject.notices(args.rw.reads(), crew.range);
    report.notices.extend(crew.plan.holes(crew.range));
    report.notices.extend(args.says.iter().flat_map(|says| says.notices.clone()));
    report.compare = sum.comparison;
    let error = sum.first_error.map(|error| io_error::explain(error, args.bs, size_now(crew, subject)));
    report.first_error = error.as_ref().map(|error| error.cause().to_owned());
    if args.verify {
        let wrong_block = sum.wrong.as_ref().map(verify::Wrong::json);
        report.verify = Some(VerifyReport { tally: sum.tally, wrong_block });
    }
    if args.json {
        output::json(&report)?;
    } else {
        output::text(&report.table());
    }
    if let Some(wrong) = sum.wrong {
        output::say(format_args!("sheave: {wrong}\n"));
        return Err(Failure::reported());
    }
    match error {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Returns the size of the device after the run. It is measured anew, because a driver may not have noticed that its
/// file was truncated.
fn size_now(crew: &Crew, subject: &Subject) -> u64 {
    let known = subject.size_bytes();
    match &crew.plan.target {
        Target::File(path) => match path.metadata() {
            Ok(meta) if meta.is_file() => known.min(meta.len()),
            _ => known,
        },
        _ => known,
    }
}

/// Returns a random identity for a verified run, which distinguishes its blocks from those of other runs.
fn run_id() -> u64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Rng::new(since_epoch.as_nanos() as u64 ^ (u64::from(std::process::id()) << 40)).draw()
}
