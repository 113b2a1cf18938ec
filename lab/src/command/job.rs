//! Conversion of a fio job file into a point of an experiment.
//!
//! The lab has its own devices, memory and turns. Therefore `filename`, `size`, `direct`, `fixedbufs`, `cpus_allowed`
//! and the length of a job have no effect, as docs/reference/jobs.md explains. Other options that no experiment can
//! follow are refused.

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
mod tests {
    use super::*;
    use crate::exp;

    fn file(name: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../jobs/{name}.fio"))
    }

    #[test]
    fn the_jobs_of_the_threads_are_points_of_their_experiments() {
        for (id, name, expected) in [
            ("bio-cache", "bio-cache", "bs=512,batch=32,depth=128,threads=1,rw=randread"),
            ("plug-clock", "plug-clock", "bs=512,batch=32,depth=128,threads=1,rw=randread"),
            ("in-flight", "in-flight", "bs=4096,batch=1,depth=1,threads=80,rw=randread"),
            ("dio-completion", "dio-completion-polled", "bs=4096,batch=1,depth=1,threads=1,rw=randwrite"),
            ("dio-completion", "dio-completion", "bs=4096,batch=1,depth=16,threads=1,rw=randwrite,ends=interrupt"),
        ] {
            let point = point(id, &file(name)).expect(name);
            assert_eq!(point.to_string(), expected);
            let experiment = exp::ALL.iter().find(|experiment| experiment.id() == id).expect("it is one");
            experiment.admit(&point).expect(name);
            let row = experiment.headline().into_iter().any(|row| row.point == point);
            assert!(row || id == "in-flight", "{name} is a row of the thread's table");
        }
    }

    #[test]
    fn what_an_experiment_cannot_do_is_refused() {
        let job = |lines: &str| Job::parse("my.fio", &format!("[a]\nioengine=io_uring\n{lines}\n")).expect(lines);
        for (id, lines, why) in [
            ("io-wq", "", "no job of fio's"),
            ("plug-clock", "", "polls"),
            ("in-flight", "hipri", "does not poll"),
            ("bio-cache", "rate_iops=5", "rate_iops"),
            ("bio-cache", "iodepth=8\niodepth_batch=4", "batch of completions"),
            ("bio-cache", "randseed=5", "randseed"),
            ("dio-completion", "sync=dsync", "sync=dsync"),
            ("bio-cache", "rw=randrw\nnorandommap\nrwmixread=70", "rwmixread"),
        ] {
            let error = of(id, &job(lines)).expect_err(lines);
            assert!(error.cause.contains(why) && error.fix.is_some() && error.usage, "{error}");
        }
        assert_eq!(of("bio-cache", &job("")).expect("a point").text("ends"), Some("unpolled"));
    }
}
