//! Conversion of a fio job file into a point of an experiment.
//!
//! The lab has its own devices, memory and turns, so that `filename`, `size`, `direct`, `fixedbufs`, `cpus_allowed` and
//! the length of a job have no effect, as docs/reference/jobs.md explains. Other options that no experiment can follow
//! are refused.

use std::path::Path;

use sheave_load::Job;

use crate::{LabError, Point};

/// Reads a job file and returns the point that it describes.
pub fn point(experiment: &str, path: &Path) -> Result<Point, LabError> {
    of(experiment, &Job::open(path)?)
}

fn of(experiment: &str, job: &Job) -> Result<Point, LabError> {
    let asks = [
        (job.rate.is_some(), "rate_iops"),
        (job.seed.is_some(), "randseed"),
        (job.dsync, "sync=dsync"),
        (job.mix != 50, "rwmixread"),
        (job.complete != job.batch, "another batch of completions than of submissions"),
    ];
    if let Some((_, option)) = asks.iter().find(|(asked, _)| *asked) {
        return Err(LabError::usage(format!("[{}] has {option}, which no experiment has", job.name))
            .fix("leave it out, or run the job with sheave bench"));
    }
    let point =
        Point { bs: job.bs, batch: job.batch, depth: job.depth, threads: job.threads, rw: job.rw, ..Point::default() };
    let refuse = |what: &str, fix: &str| Err(LabError::usage(format!("[{}]: {what}", job.name)).fix(fix));
    match (experiment, job.poll) {
        ("dio-completion" | "bio-cache" | "plug-clock", true) | ("in-flight", false) => Ok(point),
        ("dio-completion", false) => Ok(point.with("ends", "interrupt")),
        ("bio-cache", false) => Ok(point.with("ends", "unpolled")),
        ("plug-clock", false) => refuse("plug-clock polls, and the job does not", "add hipri=1"),
        ("in-flight", true) => refuse("in-flight does not poll, and the job does", "leave hipri out"),
        _ => refuse(&format!("{experiment} does no job of fio's"), "use --point"),
    }
}

#[cfg(test)]
mod tests;
