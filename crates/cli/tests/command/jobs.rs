//! `sheave bench --job`: the fio job files of the repository run, and options that are not supported are refused.

use std::fs;

use std::process::Command;

use serde_json::Value;

use crate::sheave::{Dir, Said, no_io_uring};

/// Returns the path of a job file of the repository.
fn job(name: &str) -> String {
    format!("{}/../../jobs/{name}.fio", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_jobs_of_the_threads_run_on_another_device() {
    let dir = Dir::new();
    for (name, spec, depth, threads) in [
        ("bio-cache", "null:size=1T", 128, 1),
        ("plug-clock", "null:size=1T", 128, 1),
        ("dio-completion-polled", "ram:size=16M", 1, 1),
        ("dio-completion", "ram:size=16M", 16, 1),
        ("in-flight", "null:size=1T", 1, 80),
    ] {
        let line = format!("bench --job {} {spec} --ios 8000 --json --progress none", job(name));
        let report = dir.ok(&line).json();
        assert_eq!((&report["ios"], &report["errors"]), (&8000.into(), &0.into()), "{name}: {report}");
        assert_eq!((&report["depth"], &report["threads"]), (&depth.into(), &threads.into()), "{name}: {report}");
        let writes = if name.starts_with("dio") { 8000 } else { 0 };
        assert_eq!(report["writes"], writes, "{name}: {report}");
    }
}

#[test]
fn a_job_has_its_own_file() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let text = "[global]\nioengine=io_uring\nfilename=img\nsize=1M\n[a]\nrw=write\nbs=64k\n";
    fs::write(dir.path("job.fio"), text).expect("written");
    let report = dir.ok("bench --job job.fio --json --progress none").json();
    assert_eq!((&report["writes"], &report["bs"]), (&16.into(), &65536.into()), "the size ends it: {report}");
    assert_eq!(fs::metadata(dir.path("img")).expect("it was made").len(), 1 << 20);
}

#[test]
fn a_job_is_refused_with_its_line_and_beside_what_it_decides() {
    let dir = Dir::new();
    fs::write(dir.path("job.fio"), "[a]\nioengine=io_uring\nstonwall\n").expect("written");
    let said = dir.run("bench --job job.fio null:");
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("job.fio, line 3, [a]: there is no option stonwall"), "{}", said.err);
    assert!(said.err.contains("known are filename, "), "{}", said.err);
    fs::write(dir.path("job.fio"), "[a]\nioengine=io_uring\nthinktime=5\n").expect("written");
    let said = dir.run("bench --job job.fio null:");
    assert!(said.code == 2 && said.err.contains("thinktime is refused: a run is paced by rate_iops"), "{}", said.err);
    fs::write(dir.path("job.fio"), "[a]\nfilename=/dev/none-of-that\nioengine=io_uring\nsize=1M\n").expect("written");
    let said = dir.run("bench --job job.fio");
    assert!(said.code == 2 && said.err.contains("[a]: this machine has no /dev/none-of-that"), "{}", said.err);
    assert!(said.err.contains("null:size=1T"), "{}", said.err);
    assert!(!std::path::Path::new("/dev/none-of-that").exists(), "it was made");
    fs::write(dir.path("job.fio"), "[a]\nioengine=io_uring\nnumber_ios=20\n").expect("written");
    let said = dir.run("bench --job job.fio");
    assert!(said.code == 2 && said.err.contains("names no file"), "{}", said.err);
    let said = dir.run("bench --job job.fio null: --batch 4");
    assert!(said.code == 2 && said.err.contains("--batch"), "{}", said.err);
    assert_eq!(dir.run("bench --depth 4").code, 2, "a run needs a device or a job");
}

/// Runs a job with the real fio. Returns the number of I/Os, the bytes, and the depth of nearly all I/Os.
fn fio(dir: &Dir, fio: &std::path::Path, lines: &str) -> (u64, u64, u64) {
    fs::write(dir.path("fio.fio"), format!("[a]\nioengine=null\n{lines}\n")).expect("written");
    let mut command = Command::new(fio);
    let said = command.args(["--output-format=json", "fio.fio"]).current_dir(dir.path("")).env("SIZE", "64k").output();
    let text = String::from_utf8(said.expect("fio starts").stdout).expect("text");
    let report = text.find('{').and_then(|at| serde_json::from_str::<Value>(&text[at..]).ok());
    let report = report.unwrap_or_else(|| panic!("{lines}: {text}"));
    let jobs = report["jobs"].as_array().expect("jobs");
    let sum = |field: &str| {
        let each =
            jobs.iter().flat_map(|job| ["read", "write"].map(|kind| job[kind][field].as_u64().expect("a number")));
        each.sum::<u64>()
    };
    let depth = jobs[0]["job options"]["iodepth"].as_str().map_or(1, |depth| depth.parse().expect("a number"));
    (sum("total_ios"), sum("io_bytes"), depth)
}

/// A job does as many I/Os and bytes as with the real fio, at the same depth.
#[test]
fn a_job_does_as_much_as_in_the_real_fio() {
    let Some(program) = sheave_testkit::require("fio") else { return };
    let dir = Dir::new();
    for lines in [
        "size=1M",
        "size=1M\nnumber_ios=5\niodepth=4",
        "size=1M\nnumber_ios=300",
        "size=1M\nloops=3",
        "size=1M\nloops=3\nnumber_ios=5",
        "size=1M\nio_size=2M ; more than once around",
        "size=1M\nio_size=10000\niodepth=16",
        "size=100000\nbs=8k # the last block is not whole",
        "size=400kib\nbs=4k",
        "size=1M\nbs=${SIZE}",
        "size=1M\nbs=4k${NOBODY_SETS_THIS}",
        "size=1M\nrw=randrw\nnorandommap\nrwmixread=70\niodepth=8",
        "size=1M\nrw=randwrite\nnorandommap=1\nnumjobs=2\ngroup_reporting\nthread",
        "size=1M\niodepth=8\niodepth_batch=4\niodepth_batch_complete=2",
        "size=1M\nruntime=1h\ndescription=ends before its time\nstonewall",
        "size=1M\nruntime=1h\ntime_based=0\nunit_base=8\nname=other",
        "size=64k\nruntime=1\nrate_iops=1000\nrandrepeat=1",
    ] {
        let theirs = fio(&dir, &program, lines);
        fs::write(dir.path("ours.fio"), format!("[a]\nioengine=io_uring\n{lines}\n")).expect("written");
        let mut command = dir.command("bench --job ours.fio null:size=1T --json --progress none");
        let said = Said::of(command.env("SIZE", "64k").output().expect("the binary runs"));
        assert_eq!(said.code, 0, "{lines}: {}", said.err);
        let report = said.json();
        let number = |field: &str| report[field].as_u64().expect("a number");
        assert_eq!((number("ios"), number("ios") * number("bs"), number("depth")), theirs, "{lines}: {report}");
    }
}

#[test]
fn cpus_that_this_machine_lacks_are_replaced_with_a_notice() {
    let dir = Dir::new();
    fs::write(dir.path("job.fio"), "[a]\nioengine=io_uring\nsize=1M\ncpus_allowed=4000\n").expect("written");
    let report = dir.ok("bench --job job.fio null:size=1T --json --progress none").json();
    let notice = report["notices"][0].as_str().expect("a notice");
    assert!(notice.contains("[a]: this process may not use all CPUs of [4000]"), "{report}");
    assert_eq!(report["ios"], 256, "{report}");
}

#[test]
fn a_depth_beside_a_job_takes_the_place_of_the_jobs() {
    let dir = Dir::new();
    for (depth, batch) in [(64, 32), (4, 4)] {
        let line = format!("bench --job {} null:size=1T --depth {depth} --ios 1000 --json", job("bio-cache"));
        let report = dir.ok(&line).json();
        assert_eq!((&report["depth"], &report["batch"]), (&depth.into(), &batch.into()), "{report}");
        assert_eq!((&report["ios"], &report["bs"]), (&1000.into(), &512.into()), "{report}");
    }
}
