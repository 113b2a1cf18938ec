//! `sheave lab` from outside: its JSON, its page, what it refuses, and Ctrl-C.

use std::process::Stdio;
use std::time::Duration;

use crate::sheave::{Said, run, sheave};

/// One point, as short as it goes.
const SHORT: &str = "lab plug-clock --point bs=512,batch=8,depth=16 --rounds 2 --turn 5ms";

#[test]
fn one_point_gives_every_arm_with_its_change_and_its_command() {
    let said = run(&format!("{SHORT} --json"));
    assert_eq!(said.code, 0, "{}", said.err);
    let report = said.json();
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
    assert!(command.starts_with("sheave lab plug-clock --point bs=512,batch=8,depth=16,"), "{command}");
    // The command is one: it can be run again.
    let again = run(&format!("{} --json", command.trim_start_matches("sheave ")));
    assert_eq!((again.code, &again.json()["experiments"][0]["headline"][0]["point"]), (0, &row["point"]));
}

#[test]
fn the_page_is_one_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("lab.html");
    let said = run(&format!("{SHORT} --html {}", path.display()));
    assert_eq!(said.code, 0, "{}", said.err);
    let page = std::fs::read_to_string(&path).expect("the page is there");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("<svg") && page.contains("sheave lab plug-clock --point") && !page.contains("<script"));
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_runs() {
    let cases = [
        ("lab nosuch", 2, "nosuch"),
        ("lab all --point bs=512", 2, "one experiment"),
        ("lab bio-cache --point bs=512,depth=none", 2, "depth=none"),
        ("lab bio-cache --quick --sweep nosuch", 2, "no sweep"),
        ("lab bio-cache --quick --cpu 4000", 2, "CPU 4000"),
        ("lab bio-cache --quick --html /nonexistent/x.html", 1, "/nonexistent/x.html"),
        ("lab run-arm bio-cache nosuch --point bs=512 --ios 1", 2, "no arm"),
        ("lab run-arm nosuch before --point bs=512 --ios 1", 2, "no experiment"),
    ];
    for (line, code, says) in cases {
        let said = run(line);
        assert_eq!(said.code, code, "{line}: {}", said.err);
        assert!(said.err.contains(says) && said.out.is_empty(), "{line}: {}{}", said.out, said.err);
    }
}

#[test]
fn one_arm_runs_by_itself_as_many_ios_as_asked() {
    let said = run("lab run-arm bio-cache after --point bs=512,batch=32,depth=128 --ios 6400");
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.starts_with("6400 I/Os in "), "{}", said.out);
}

#[test]
fn ctrl_c_ends_it_with_what_there_is() {
    let mut command = sheave("lab all --rounds 1000 --turn 20ms --sweep none --instructions off --json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
    std::thread::sleep(Duration::from_secs(2));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("it is there");
    let said = Said::of(child.wait_with_output().expect("it ends"));
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(said.json()["interrupted"], true);
    assert!(said.err.contains("interrupted"), "{}", said.err);
}
