//! Tests of the program as `cargo xtask lab` builds it.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::{Said, lab, run};

/// Options of the shortest run of one point.
const SHORT: &str = "plug-clock --point bs=512,batch=8,depth=16 --rounds 2 --turn 5ms";

/// Parses stdout as exactly one JSON object.
fn json(said: &Said) -> Value {
    match serde_json::from_str(&said.out) {
        Ok(Value::Object(object)) => Value::Object(object),
        other => panic!("not one JSON object: {other:?}\nstdout: {}\nstderr: {}", said.out, said.err),
    }
}

#[test]
fn one_point_gives_every_arm_with_its_change_and_its_command() {
    let said = run(&format!("{SHORT} --json"));
    assert_eq!(said.code, 0, "{}", said.err);
    let report = json(&said);
    assert_eq!(report["interrupted"], false);
    let experiment = &report["experiments"][0];
    assert_eq!(experiment["id"], "plug-clock");
    let row = &experiment["headline"][0];
    let arms = row["arms"].as_array().expect("arms");
    assert!(arms.len() >= 3 && arms[0]["change"].is_null(), "{row}");
    for arm in &arms[1..] {
        let change = &arm["change"];
        assert!(change["low"].as_f64() <= change["percent"].as_f64(), "{arm}");
        assert_eq!(arm["rounds"], 2, "{arm}");
    }
    let command = row["command"].as_str().expect("a command");
    assert!(command.starts_with("sheave-lab plug-clock --point bs=512,batch=8,depth=16,"), "{command}");
    // The command of the report can be run again.
    let again = run(&format!("{} --json", command.trim_start_matches("sheave-lab ")));
    assert_eq!((again.code, &json(&again)["experiments"][0]["headline"][0]["point"]), (0, &row["point"]));
}

#[test]
fn a_job_file_is_a_point_that_every_arm_does() {
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/../jobs/plug-clock.fio");
    let said = run(&format!("plug-clock --job {job} --rounds 2 --turn 5ms --json"));
    assert_eq!(said.code, 0, "{}", said.err);
    let row = &json(&said)["experiments"][0]["headline"][0];
    assert!(row["arms"].as_array().is_some_and(|arms| arms.len() >= 3), "{row}");
    let command = row["command"].as_str().expect("a command");
    assert!(command.contains("--point bs=512,batch=32,depth=128,threads=1,rw=randread"), "{command}");
}

#[test]
fn the_page_is_one_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("lab.html");
    let said = run(&format!("{SHORT} --html {}", path.display()));
    assert_eq!(said.code, 0, "{}", said.err);
    let page = std::fs::read_to_string(&path).expect("the page is there");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("sheave-lab plug-clock --point") && page.contains("id=\"data\""));
}

#[test]
fn a_page_is_made_again_of_a_report_that_was_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let said = run(&format!("{SHORT} --html {} --markdown {} --save {}", path("a"), path("b"), path("kept")));
    assert_eq!(said.code, 0, "{}", said.err);
    let said = run(&format!("--from {} --html {} --markdown {}", path("kept"), path("c"), path("d")));
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{}", said.err);
    let text = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("it is there");
    assert_eq!((text("a"), text("b")), (text("c"), text("d")));
    // The options that name output files are not part of the stored command.
    assert!(text("kept").contains(&format!("\"command\":\"sheave-lab {SHORT}\"")), "{}", text("kept"));
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let cases = [
        ("nosuch", 2, "nosuch"),
        ("all --point bs=512", 2, "one experiment"),
        ("all --job x.fio", 2, "one experiment"),
        ("bio-cache --job /none.fio", 2, "/none.fio"),
        ("bio-cache --job x.fio --point bs=512", 2, "cannot be used with"),
        ("--from /none.json --html /dev/null", 2, "/none.json"),
        ("--from /dev/null --html /dev/null", 2, "no report of a run"),
        ("--from /dev/null", 2, "--html FILE"),
        ("bio-cache --from /dev/null --html /dev/null", 2, "cannot be used with"),
        ("--from /dev/null --quick --html /dev/null", 2, "cannot be used with"),
        ("bio-cache --point bs=512,depth=none", 2, "depth=none"),
        ("bio-cache --quick --sweep nosuch", 2, "no sweep"),
        ("bio-cache --quick --cpu 4000", 2, "CPU 4000"),
        ("bio-cache --quick --html /nonexistent/x.html", 1, "/nonexistent/x.html"),
        ("bio-cache --point bs=512,dpth=4", 2, "bio-cache has no dpth=4"),
        ("io-wq --point bs=4096", 2, "io-wq has no bs"),
        ("plug-clock --point work=100,threads=2", 2, "one thread"),
        ("dio-completion --point rw=randwrite,ends=interrupt,device=ram", 2, "device="),
        ("run-arm in-flight before --point readers=often --ios 1", 2, "in-flight has no readers=often"),
        ("wq --work dance", 2, "sleep:TIME"),
        ("wq --work sleep:1ms --compare kernel", 2, "spins, sleeps"),
        ("wq --work sleep:1ms --arm ring", 2, "--arm stealing"),
        ("wq --depth 4 --batch 8", 2, "--depth"),
        ("wq --workers 0", 2, "1..=4096"),
        ("wq --worker-cpu 4000", 2, "CPU 4000"),
        ("run-arm bio-cache nosuch --point bs=512 --ios 1", 2, "no arm"),
        ("run-arm nosuch before --point bs=512 --ios 1", 2, "no experiment"),
    ];
    for (line, code, says) in cases {
        let said = run(line);
        assert_eq!(said.code, code, "{line}: {}", said.err);
        assert!(said.err.contains(says) && said.out.is_empty(), "{line}: {}{}", said.out, said.err);
    }
}

#[test]
fn one_arm_runs_by_itself_as_many_ios_as_asked() {
    let said = run("run-arm bio-cache after --point bs=512,batch=32,depth=128 --ios 6400");
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.starts_with("6400 I/Os in "), "{}", said.out);
}

#[test]
fn ctrl_c_ends_it_with_what_there_is() {
    let mut command = lab("all --rounds 1000 --turn 20ms --sweep none --instructions off --json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    sheave_testkit::process::wait_until_working(child.id(), Duration::from_secs(1));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
    let said = Said::of(child.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(json(&said)["interrupted"], true);
    assert!(said.err.contains("interrupted"), "{}", said.err);
}

/// Every arm completes at every point of the tables and the quick sweeps, data is right, and arms differ in their
/// counts. Checks decide, never a time.
#[test]
fn all_experiments_pass_their_checks() {
    let said = run("all --quick --rounds 1 --turn 10ms --json");
    assert_eq!(said.code, 0, "{}", said.err);
    let report = json(&said);
    let experiments = report["experiments"].as_array().expect("experiments");
    let ids: Vec<&str> = experiments.iter().filter_map(|experiment| experiment["id"].as_str()).collect();
    assert_eq!(ids, ["bio-cache", "dio-completion", "in-flight", "io-wq", "plug-clock"]);
    for experiment in experiments {
        let checks = experiment["checks"].as_array().expect("checks");
        assert!(!checks.is_empty() && checks.iter().all(|check| check["ok"] == true), "{checks:?}");
        assert!(experiment["verdict"]["holds"].is_string(), "{experiment}");
    }
}

#[test]
fn workers_have_the_promised_names() {
    for arm in ["ring", "stealing", "one-list", "flags-once", "sharded"] {
        let said = run(&format!("wq --arm {arm} --depth 16 --batch 4 --workers 2 --runtime 90ms --json"));
        let report = json(&said);
        assert_eq!((&report["arm"], &report["work"]), (&arm.into(), &"nop".into()));
        for (name, value) in [("depth", 16), ("batch", 4), ("threads", 1), ("workers", 2), ("errors", 0)] {
            assert_eq!(report[name], value, "{arm}: {name}");
        }
        for name in ["ios", "iops", "ns_per_io", "cpu_ns_per_io", "p50_ns", "start_p50_ns", "lock_hold_ns_per_io"] {
            assert!(report[name].as_f64().is_some_and(|value| value > 0.0), "{arm}: {name}: {report}");
        }
        let created = report["workers_created"].as_u64();
        assert!(created.is_some_and(|created| (1..=2).contains(&created)), "{arm}: {report}");
    }
    let line = "wq --work sleep:200us --hashed 3 --depth 8 --workers 4 --submitters 2 --runtime 90ms --json";
    let report = json(&run(line));
    assert_eq!((&report["arm"], &report["hashed"]), (&"stealing".into(), &3.into()), "{report}");
    assert!(report["ios"].as_u64().is_some_and(|ios| ios > 0), "{report}");
}

#[test]
fn workers_beside_those_of_the_kernel() {
    let said = run("wq --depth 16 --compare kernel --pairs 2 --runtime 90ms --json");
    if said.code != 0 && said.err.contains("io_uring") {
        sheave_testkit::skip("the kernel forbids io_uring here: `sheave doctor` tells why");
        return;
    }
    let report = json(&said);
    assert!(report["compare"]["ratio_iops"].as_f64().is_some_and(|ratio| ratio > 0.0), "{report}");
}
