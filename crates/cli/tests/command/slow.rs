//! `sheave slow`: the list of slow I/O that a daemon keeps, its output, and the limit above which I/O is slow.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};

#[test]
fn slow_io_of_a_daemon_is_listed_followed_and_limited() {
    let Some(dir) = pools() else { return };
    let mut daemon = Daemon::start(&dir, BOTH);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    let none = "no slow I/O is kept: none took longer than 1 s, or was unusual\n";
    assert_eq!(ask_ok(&dir, "slow").out, none);
    ask_ok(&dir, "slow --limit 1ns");
    let mut follow = dir.command("slow --follow --json");
    let mut follow = follow.env("SHEAVE_RUNTIME_DIR", dir.path("run")).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(follow.stdout.take().expect("piped")).lines();
    // A new limit applies to all I/O after a second, and on a busy machine somewhat later.
    let until = Instant::now() + Duration::from_secs(60);
    let is_kept = |kind: &str| {
        let all = ask_ok(&dir, "slow --json").json();
        all["ios"].as_array().expect("a list").iter().any(|io| io["kind"] == kind)
    };
    while !is_kept("read") || !is_kept("write") {
        assert!(Instant::now() < until, "no I/O is slow");
        assert_eq!(client.write(0, &[1; 4096]), Some(0));
        assert!(client.read(0, 4096).is_some());
    }
    for block in 0..8 {
        assert_eq!(client.write(block << 20, &[1; 4096]), Some(0));
        assert!(client.read(block << 20, 4096).is_some());
    }
    let first: serde_json::Value = serde_json::from_str(&lines.next().expect("one").expect("read")).expect("JSON");
    follow.kill().expect("killed");
    follow.wait().expect("ended");
    assert_eq!((&first["export"], &first["length"]), (&json!("va"), &json!(4096)), "{first}");
    let all = ask_ok(&dir, "slow --json").json();
    let ios = all["ios"].as_array().expect("a list").clone();
    assert!(ios.len() >= 8 && all["limit_ns"] == 1, "{all}");
    for io in &ios {
        let split = io["split"].as_object().expect("an object");
        let parts: u64 = split.values().map(|ns| ns.as_u64().expect("ns")).sum();
        assert_eq!(io["latency_ns"], parts, "{io}");
        let longest = format!("{}_ns", io["longest"].as_str().expect("a stage"));
        assert!(split.values().all(|ns| ns.as_u64() <= split[&longest].as_u64()), "{io}");
        assert_eq!((&io["on_device"], &io["usual_p999_ns"]), (&json!(false), &json!(null)), "{io}");
    }
    let offset = |kind: &str| ios.iter().rfind(|io| io["kind"] == kind).map(|io| io["offset"].clone());
    assert_eq!((offset("read"), offset("write")), (Some(json!(7 << 20)), Some(json!(7 << 20))));
    let text = ask_ok(&dir, "slow").out;
    assert!(text.lines().last().expect("a line").contains("Z  read of 4 KiB at 7 MiB of a#v took "), "{text}");
    // The configuration has no limit, so the reload sets the default of one second again.
    daemon.signal("-HUP");
    daemon.until_it_says("event=reloaded");
    assert_eq!(ask_ok(&dir, "slow --json").json()["limit_ns"], 1_000_000_000);
    assert_eq!(ask(&dir, "slow --limit soon").code, 2);
    daemon.end();
}

#[test]
fn the_limit_of_the_configuration_holds_from_the_start() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, &BOTH.replace("threads = 2", "threads = 2\nslow_limit = \"1ns\""));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "vb").expect("it is served");
    assert!(client.read(0, 4096).is_some());
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    let text = ask_ok(&dir, "slow").out;
    assert!(
        text.contains("write of 4 KiB at 0 B of ") && text.contains("too few before it to say what is usual"),
        "{text}"
    );
    drop(client);
    ask_ok(&dir, "export remove vb --force");
    assert!(ask_ok(&dir, "slow").out.contains("of what is served no more took"), "an export that is gone has no name");
    daemon.end();
    let mut refused = dir.command("serve --config c.toml");
    std::fs::write(dir.path("c.toml"), BOTH.replace("threads = 2", "threads = 2\nslow_limit = \"soon\""))
        .expect("written");
    let said = crate::sheave::Said::of(refused.output().expect("it runs"));
    assert!(said.code != 0 && said.err.contains("slow_limit is a time"), "{}", said.err);
}
