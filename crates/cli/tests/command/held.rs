//! Diffs, upgrades and watches of a pool that a daemon holds, and what wants the pool closed: refused by a way out.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools, served_ok};

#[test]
fn diffs_are_made_and_taken_by_the_daemon_as_without_it() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(65536, &[1; 8192]), Some(0));
    served_ok(&dir, "volume snapshot a.img#v mon");
    assert_eq!(client.write(1 << 20, &[2; 4096]), Some(0));
    served_ok(&dir, "volume snapshot a.img#v tue");
    let held = served_ok(&dir, "volume diff a.img#mon a.img#tue --json");
    let first = served_ok(&dir, "volume export-diff a.img#mon mon.diff --json").json();
    assert_eq!((&first["copied_bytes"], &first["volume"]["name"]), (&8192.into(), &"mon".into()));
    served_ok(&dir, "volume export-diff a.img#tue --from mon tue.diff");
    served_ok(&dir, "volume export-diff a.img#tue --from mon --format v1 v1.diff");
    // Refused by name, and no file is left behind.
    for (line, words) in [
        ("volume export-diff a.img#tue --from v none.diff", "a diff begins at a snapshot"),
        ("volume export-diff a.img#tue --from no none.diff", "there is no volume 'no'"),
        ("volume diff a.img#no a.img#tue", "there is no volume 'no'"),
        ("volume import-diff tue.diff b.img#new", "the diff begins at 'mon'"),
        ("volume import-diff c.toml b.img#new", "it does not begin with"),
    ] {
        let refused = ask(&dir, line);
        assert!(
            refused.code != 0 && refused.err.contains(words) && refused.err.contains("fix: "),
            "{line}\n{}",
            refused.err
        );
    }
    assert!(!dir.path("none.diff").exists());
    let done = served_ok(&dir, "volume import-diff mon.diff b.img#new --json").json();
    assert_eq!((&done["done"], &done["to"], &done["format"]), (&"imported".into(), &"mon".into(), &"v2".into()));
    // Into a volume that has a client: not without --force.
    ask_ok(&dir, "export add b.img#new");
    let busy = Nbd::connect(&dir.path("nbd.sock"), "new").expect("it is served");
    let refused = ask(&dir, "volume import-diff tue.diff b.img#new");
    assert!(
        refused.code == 1 && refused.err.contains("has 1 client") && refused.err.contains("--force"),
        "{}",
        refused.err
    );
    assert_eq!(ask_ok(&dir, "volume list b.img --json").json()["volumes"].as_array().map(Vec::len), Some(3));
    served_ok(&dir, "volume import-diff tue.diff b.img#new --force");
    drop(busy);
    assert!(Nbd::connect(&dir.path("nbd.sock"), "new").is_some(), "its export has come back");
    served_ok(&dir, "volume export a.img#tue a.raw");
    served_ok(&dir, "volume export b.img#new b.raw");
    assert!(std::fs::read(dir.path("a.raw")).expect("read") == std::fs::read(dir.path("b.raw")).expect("read"));
    daemon.end();
    // The same without a daemon.
    assert_eq!(held.out, dir.ok("volume diff a.img#mon a.img#tue --json").out);
    dir.ok("volume export-diff a.img#tue --from mon again.diff");
    assert!(std::fs::read(dir.path("tue.diff")).expect("read") == std::fs::read(dir.path("again.diff")).expect("read"));
}

#[test]
fn what_wants_a_closed_pool_is_refused_with_the_way_to_close_it() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    for (line, words) in [
        ("pool check a.img", "sheave pool scrub 'a.img' verifies a pool that is served"),
        ("pool check a.img --repair --yes", "a check wants a pool that nobody changes"),
        ("pool grow a.img --size 256M", "a pool grows while it is closed"),
        ("pool grow a.img --add more.img --size 64M", "a pool grows while it is closed"),
        ("volume list a.img --rescue", "a rescue reads a pool that nobody has open"),
        ("volume export a.img#v out.raw --rescue", "a rescue reads a pool that nobody has open"),
    ] {
        let refused = ask(&dir, line);
        assert_eq!(refused.code, 1, "{line}\n{}", refused.err);
        for word in [words, "'sheave serve' (process ", "(its pool 'a')", "SIGHUP"] {
            assert!(refused.err.contains(word), "{line}: no {word}\n{}", refused.err);
        }
    }
    assert_eq!(std::fs::metadata(dir.path("a.img")).expect("there").len(), 128 << 20, "nothing has grown");
    assert!(!dir.path("more.img").exists() && !dir.path("out.raw").exists());
    let upgraded = served_ok(&dir, "pool upgrade a.img --json").json();
    assert_eq!(upgraded["upgrades"].as_array().map(Vec::len), Some(0));
    served_ok(&dir, "pool upgrade a.img --dry-run");
    // The way that it names.
    std::fs::write(dir.path("c.toml"), BOTH.split("[[pool]]").next().expect("its head")).expect("written");
    let mut daemon = daemon;
    daemon.signal("-HUP");
    daemon.until_it_says("event=reloaded");
    ask_ok(&dir, "pool grow a.img --size 256M");
    ask_ok(&dir, "pool check a.img");
    daemon.end();
}

#[test]
fn a_watch_tells_the_space_now_and_each_change() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let mut command = dir.command("pool watch a.img --json");
    command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut next =
        || -> serde_json::Value { serde_json::from_str(&lines.next().expect("a line").expect("read")).expect("JSON") };
    assert_eq!(next()["state"], "ok");
    ask_ok(&dir, "pool set a.img --low-water 126M");
    assert_eq!(next()["state"], "low");
    ask_ok(&dir, "pool set a.img --low-water off");
    assert_eq!(next()["state"], "ok");
    daemon.end();
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "the server has gone");
    let alone = dir.run("pool watch a.img");
    assert!(
        alone.code == 1 && alone.out.contains("a.img: ok, ") && alone.err.contains("no server has a.img"),
        "{}",
        alone.err
    );
}
