//! `sheave bench --job`: the fio job files of the repository run, and what a file cannot have is refused.

use std::fs;

use crate::sheave::{Dir, no_io_uring};

/// A file of the repository.
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
        // The CPUs are those of the thread's machine; a run with another list has to name as many as there are threads.
        let cpu = if name.starts_with("dio") { "--cpu 0" } else { "" };
        let line = format!("bench --job {} {spec} {cpu} --ios 8000 --json --progress none", job(name));
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
    let text = "[global]\nfilename=img\nsize=1M\n[a]\nrw=write\nbs=64k\nnumber_ios=20\n";
    fs::write(dir.path("job.fio"), text).expect("written");
    let report = dir.ok("bench --job job.fio --json --progress none").json();
    assert_eq!((&report["writes"], &report["bs"]), (&20.into(), &65536.into()), "{report}");
    assert_eq!(fs::metadata(dir.path("img")).expect("it was made").len(), 1 << 20);
}

#[test]
fn a_job_is_refused_with_its_line_and_beside_what_it_decides() {
    let dir = Dir::new();
    fs::write(dir.path("job.fio"), "[a]\nnumber_ios=20\nstonewall\n").expect("written");
    let said = dir.run("bench --job job.fio null:");
    assert_eq!(said.code, 2, "{}", said.err);
    assert!(said.err.contains("job.fio, line 3, [a]: there is no option stonewall"), "{}", said.err);
    assert!(said.err.contains("known are filename, "), "{}", said.err);
    fs::write(dir.path("job.fio"), "[a]\nnumber_ios=20\n").expect("written");
    let said = dir.run("bench --job job.fio");
    assert!(said.code == 2 && said.err.contains("names no file"), "{}", said.err);
    let said = dir.run("bench --job job.fio null: --depth 4");
    assert!(said.code == 2 && said.err.contains("--depth"), "{}", said.err);
    assert_eq!(dir.run("bench --depth 4").code, 2, "a run needs a device or a job");
}
