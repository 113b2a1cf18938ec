//! The guarantees of `--json`: one object, the documented names, consistent figures.

use crate::sheave::{no_io_uring, run};

#[test]
fn the_object_has_the_promised_names() {
    let report = run("bench null:size=1G --bs 512 --depth 16 --batch 4 --ios 10000 --json --progress none").json();
    assert_eq!(report["device"], "null:size=1G");
    assert_eq!(report["rw"], "randread");
    for (name, value) in [("bs", 512), ("depth", 16), ("batch", 4), ("threads", 1), ("ios", 10_000), ("errors", 0)] {
        assert_eq!(report[name], value, "{name}");
    }
    for name in ["iops", "bytes_per_sec", "ns_per_io", "cpu_ns_per_io", "p50_ns", "p99_ns", "p999_ns"] {
        assert!(report[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {}", report[name]);
    }
    let near = |left: &str, right: f64| {
        let left = report[left].as_f64().unwrap_or(f64::NAN);
        assert!((left / right - 1.0).abs() < 1e-6, "{left} is not {right}");
    };
    let iops = report["iops"].as_f64().unwrap_or(f64::NAN);
    near("bytes_per_sec", iops * 512.0);
    near("ns_per_io", 1e9 / iops);
    assert!(report["p50_ns"].as_u64() <= report["p99_ns"].as_u64());
    assert!(report["p99_ns"].as_u64() <= report["p999_ns"].as_u64());
    assert!(report.get("compare").is_none());
}

#[test]
fn what_was_turned_off_is_told() {
    let line = "bench null:size=1G --bs 512 --depth 16 --batch 4 --ios 10000 --json --progress none";
    let plain = run(line).json();
    assert!(plain.get("stamp_age").is_none());
    let off = run(&format!("{line} --stamp-age 0")).json();
    assert_eq!(off["stamp_age"], "0ns");
    assert_eq!((&off["ios"], &off["errors"]), (&10_000.into(), &0.into()));
    let other = run(&format!("{line} --stamp-age unbounded")).json();
    assert_eq!(other["stamp_age"], "unbounded");
}

#[test]
fn nops_and_separate_batches_are_told() {
    let line = "bench null:size=1G --depth 32 --batch 32 --ios 10000 --json --progress none";
    let plain = run(line).json();
    assert_eq!((&plain["nop"], &plain["batch_complete"]), (&false.into(), &32.into()));
    let nops = run(&format!("{line} --nop --batch-complete 16")).json();
    assert_eq!((&nops["nop"], &nops["batch"], &nops["batch_complete"]), (&true.into(), &32.into(), &16.into()));
    assert_eq!((&nops["ios"], &nops["errors"], &nops["reads"]), (&10_000.into(), &0.into(), &0.into()));
    assert_eq!(nops["bytes_per_sec"], 0.0);
    let text = run("bench null:size=1G --nop --depth 32 --batch 32 --batch-complete 16 --ios 1000 --progress none");
    assert!(text.out.contains("NOPs, depth 32, batch 32 in, 16 out"), "{}", text.out);
}

/// The CPU time was once reported as 0 if the start of the program had taken more CPU time than the run.
#[test]
fn a_run_that_mostly_waits_has_a_cpu_time_of_its_own() {
    let report = run("bench null:size=1G,latency=100ms --depth 1 --batch 1 --ios 8 --json --progress none").json();
    let cpu_ns = report["cpu_ns_per_io"].as_f64().unwrap_or(f64::NAN);
    assert!(cpu_ns > 100.0, "{cpu_ns}: eight sleeps and wake-ups");
}

#[test]
fn a_comparison_has_the_promised_names() {
    if no_io_uring() {
        return;
    }
    let line = "bench null:size=1G --bs 512 --compare kernel --runtime 300ms --pairs 3 --json --progress none";
    let report = run(line).json();
    let compare = &report["compare"];
    assert!(compare["name"].as_str().is_some_and(|name| name.contains("NOP")), "{compare}");
    assert_eq!(compare["pairs"], 3);
    for name in ["iops", "cpu_ns_per_io", "ratio_iops", "ratio_cpu"] {
        assert!(compare[name].as_f64().is_some_and(|value| value > 0.0), "{name}: {compare}");
    }
    assert!(compare["ratio_iops_95"].is_null() && compare["interval_coverage"].is_null(), "of three pairs: {compare}");
    let compare = &run(&line.replace("--pairs 3", "--pairs 6")).json()["compare"];
    assert_eq!(compare["interval_coverage"], 0.96875);
    assert!(compare["interval_method"].as_str().is_some_and(|method| method.contains("order statistics")), "{compare}");
    for name in ["ratio_iops", "ratio_cpu"] {
        let [low, high] = [0, 1].map(|end| compare[format!("{name}_95")][end].as_f64().expect("an end"));
        let middle = compare[name].as_f64().expect("a median");
        assert!(0.0 < low && low <= middle && middle <= high, "{name}: {compare}");
    }
}

#[test]
fn a_file_is_compared_with_itself() {
    if no_io_uring() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let spec = format!("file:{},size=4M", dir.path().join("a.img").display());
    let line = format!("bench {spec} --rw randwrite --compare kernel --runtime 300ms --pairs 3 --json --progress none");
    let report = run(&line).json();
    assert_eq!(report["errors"], 0, "{report}");
    assert!(report["compare"]["ratio_iops"].as_f64().is_some_and(|ratio| ratio > 0.01), "{report}");
}

#[test]
fn memory_is_compared_with_copying() {
    let report = run("bench ram:size=4M --compare memcpy --runtime 300ms --pairs 3 --json --progress none").json();
    assert!(report["compare"]["ratio_iops"].as_f64().is_some_and(|ratio| ratio > 0.0), "{report}");
}

#[test]
fn threads_share_the_ios_and_a_mix_is_a_mix() {
    let line = "bench ram:size=4M --rw randrw --mix 75 --threads 3 --ios 9001 --json --progress none";
    let report = run(line).json();
    assert_eq!(report["ios"], 9001);
    let (reads, writes) = (report["reads"].as_u64().unwrap_or(0), report["writes"].as_u64().unwrap_or(0));
    assert_eq!(reads + writes, 9001);
    assert!((6500..7000).contains(&reads), "{reads} reads of 9001");
}

#[test]
fn progress_for_programs_is_json_lines_on_stderr() {
    let said = run("bench null:size=1G --runtime 6s --rate 1000 --json");
    assert!(said.json()["ios"].as_u64().is_some_and(|ios| (5_000..6_100).contains(&ios)), "{}", said.out);
    let line = said.err.lines().next().expect("a line after five seconds");
    let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(line["phase"], "run");
    assert!(line["eta_s"].as_f64().is_some_and(|eta| eta < 3.0), "{line}");
}

#[test]
fn doctor_tells_each_check() {
    let dir = tempfile::tempdir().expect("a directory");
    let said = run(&format!("doctor {} --json", dir.path().display()));
    let report = said.json();
    let checks = report["checks"].as_array().expect("a list");
    for name in ["kernel", "io_uring", "memlock", "open files", "CPUs", "clock", "path", "O_DIRECT", "IOPOLL"] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name} is missing");
    }
    for check in checks {
        assert!(check["status"] == "ok" || check["fix"].is_string(), "no fix: {check}");
    }
    assert_eq!(said.code, i32::from(report["status"] == "fail"));
}

#[test]
fn doctor_fails_on_a_path_that_is_not_there() {
    let said = run("doctor /nowhere/at/all");
    assert_eq!(said.code, 1);
    assert!(said.out.contains("does not exist") && said.out.contains("fix: "), "{}", said.out);
}
