//! Diffs, upgrades and watches of a pool that a daemon holds. Commands that need the pool closed are refused, and the
//! error says how to get it closed.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::control::call;
use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools, served_ok};
use crate::sheave::{Dir, Said};

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
    // The commands are refused with the reason, and leave no file.
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
    // An import into a volume with a connected client needs --force.
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
    // The commands give the same results without a daemon.
    assert_eq!(held.out, dir.ok("volume diff a.img#mon a.img#tue --json").out);
    dir.ok("volume export-diff a.img#tue --from mon again.diff");
    assert!(std::fs::read(dir.path("tue.diff")).expect("read") == std::fs::read(dir.path("again.diff")).expect("read"));
}

/// An export to a pipe that nobody reads keeps one of two volumes open.
#[test]
fn volumes_are_deleted_together_or_none_of_them_is() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    served_ok(&dir, "volume create a.img#first --size 1M");
    let mut export = dir.command("volume export a.img#v - --progress none");
    export.env("SHEAVE_RUNTIME_DIR", dir.path("run")).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut export = export.spawn().expect("it runs");
    let mut pipe = export.stdout.take().expect("a pipe");
    pipe.read_exact(&mut [0]).expect("it has begun");
    let refused = ask(&dir, "volume delete a.img#first a.img#v --yes --force");
    assert!(refused.code == 1 && refused.err.contains("volume 'v' is in use: it is open"), "{}", refused.err);
    assert!(!refused.err.contains("deleted before"), "{}", refused.err);
    let names = || {
        let listed = ask_ok(&dir, "volume list a.img --json").json();
        let rows = listed["volumes"].as_array().expect("rows").clone();
        rows.iter().map(|row| row["name"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["\"first\"", "\"v\""]);
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_some(), "its export has come back");
    std::io::copy(&mut pipe, &mut std::io::sink()).expect("read");
    assert!(export.wait().expect("it ends").success());
    // A volume that is named twice is deleted once.
    let asked = json!({ "pool": "a", "volumes": ["v", "first", "v"], "force": true });
    let reply = call(&dir, "io.sheave.Control.DeleteVolumes", &asked);
    assert!(reply["error"].is_null() && reply["parameters"]["freed_bytes"].is_u64(), "{reply}");
    assert_eq!(names(), [""; 0]);
    daemon.end();
}

#[test]
fn what_wants_a_closed_pool_is_refused_with_the_way_to_close_it() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    for (line, words) in [
        ("pool check a.img", "sheave pool scrub 'a.img' verifies a pool that is served"),
        ("pool check a.img --repair --yes", "a check wants a pool that nobody changes"),
        ("pool grow a.img --size 256M", "one file or device more can be added now: --add"),
        ("pool grow a.img", "a pool takes in a file or device that has grown while it is closed"),
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
    assert!(!dir.path("out.raw").exists());
    let upgraded = served_ok(&dir, "pool upgrade a.img --json").json();
    assert_eq!(upgraded["upgrades"].as_array().map(Vec::len), Some(0));
    served_ok(&dir, "pool upgrade a.img --dry-run");
    // Does what the error says: removes the pool from the configuration and reloads.
    std::fs::write(dir.path("c.toml"), BOTH.split("[[pool]]").next().expect("its head")).expect("written");
    let mut daemon = daemon;
    daemon.signal("-HUP");
    daemon.until_it_says("event=reloaded");
    ask_ok(&dir, "pool grow a.img --size 256M");
    ask_ok(&dir, "pool check a.img");
    daemon.end();
}

/// The command opens a new member. Clients can write to its space at once, and commands find the pool by a name with
/// the new member.
#[test]
fn a_pool_gets_a_member_more_while_the_daemon_holds_it() {
    let Some(dir) = pools() else { return };
    let elsewhere = Dir::new();
    let more = elsewhere.path("more.img").display().to_string();
    let mut daemon = Daemon::start(&dir, BOTH);
    served_ok(&dir, "volume create a.img#big --size 160M");
    ask_ok(&dir, "export add a.img#big");
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "big").expect("it is served");
    let fill = |client: &mut Nbd, from: u64, end: u64| {
        (from..end).find(|at| client.write(at << 20, &vec![*at as u8 + 1; 1 << 20]) != Some(0))
    };
    let full_at = fill(&mut client, 0, 160).expect("128 MiB do not hold 160");
    // Refused commands leave no file and do not change the pool.
    for (line, words) in [
        (format!("pool grow a.img --add {more}"), "and no size to make it with"),
        (format!("pool grow a.img --add {more} --size 4k"), "more.img"),
        ("pool grow a.img --add a.img".into(), "is a member of a.img already"),
        ("pool grow a.img --add b.img".into(), "add --yes"),
        ("pool grow a.img --add b.img --yes".into(), "b.img is in use"),
        ("pool grow a.img --add ram:size=64M".into(), "a pool in memory"),
        (format!("pool grow a.img --add {more}+x.img --size 64M"), "one at a time"),
    ] {
        let refused = ask(&dir, &line);
        assert!(refused.code != 0 && refused.err.contains(words), "{line}: {}\n{}", refused.code, refused.err);
        assert!(!elsewhere.path("more.img").exists(), "{line} left its file");
    }
    let info = served_ok(&dir, "pool info a.img --json").json();
    assert_eq!((info["members"].as_array().map(Vec::len), &info["size_bytes"]), (Some(1), &(128 << 20).into()));
    let grown = served_ok(&dir, &format!("pool grow a.img --add {more} --size 64M --json"));
    assert_eq!(grown.json()["size_bytes"], 192 << 20, "{}", grown.err);
    let place = format!("a.img+{more}");
    assert_eq!(fill(&mut client, full_at, 160), None, "the client that waited for space has it");
    std::fs::write(dir.path("third.img"), vec![1; 32 << 20]).expect("written");
    let refused = ask(&dir, &format!("pool grow {place} --add third.img"));
    assert!(refused.code == 2 && refused.err.contains("holds data"), "{}", refused.err);
    let again = ask(&dir, &format!("pool grow {place} --add {more}"));
    assert!(again.code == 2 && again.err.contains("is a member of"), "{}", again.err);
    served_ok(&dir, &format!("pool grow {place} --add third.img --yes"));
    let third = dir.path("third.img").canonicalize().expect("there").display().to_string();
    let place = format!("{place}+{third}");
    assert_eq!(served_ok(&dir, &format!("pool info {place} --json")).json()["size_bytes"], 224 << 20);
    served_ok(&dir, &format!("pool scrub {place}"));
    a_reload_keeps_its_members(&dir, &mut daemon, &more);
    assert_eq!(client.write(0, &[1; 4096]), Some(0), "its clients have stayed");
    drop(client);
    daemon.end();
    dir.ok(&format!("pool check {place}"));
    // A daemon opens the pool whether its configuration names all members or only the first.
    let daemon = Daemon::start_again(&dir);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    drop(client);
    daemon.end();
    let daemon = Daemon::start(&dir, BOTH);
    let info = ask_ok(&dir, "pool info a.img --json").json();
    assert_eq!(info["size_bytes"], 224 << 20, "{info}");
    daemon.end();
}

/// Reloads with configurations that name all members of the pool, or some of them.
fn a_reload_keeps_its_members(dir: &Dir, daemon: &mut Daemon, more: &str) {
    // Each of these names means the same pool, so the reload changes and logs nothing about it.
    let told = daemon.said().matches("event=pool_").count();
    let all = format!("\"./a.img+{more}+third.img\"");
    for (at, path) in ["\"a.img\"", "\"a.img+third.img\"", "\"third.img\"", &all].into_iter().enumerate() {
        std::fs::write(dir.path("c.toml"), BOTH.replace("\"a.img\"", path)).expect("written");
        daemon.signal("-HUP");
        while daemon.said().matches("event=reloaded").count() <= at {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    assert_eq!(daemon.said().matches("event=pool_").count(), told, "there is nothing to say:\n{}", daemon.said());
    // With a file that is no member, the name means another pool.
    std::fs::write(dir.path("c.toml"), BOTH.replace("\"a.img\"", "\"a.img+nowhere.img\"")).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("event=pool_stays");
    std::fs::write(dir.path("c.toml"), BOTH.replace("\"a.img\"", &all)).expect("written");
    daemon.signal("-HUP");
    while daemon.said().matches("event=reloaded").count() < 6 {
        std::thread::sleep(Duration::from_millis(5));
    }
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

/// Several commands at once on one pool: an import reports its progress, and the other changes wait until it is done.
#[test]
fn several_commands_at_once_wait_for_their_turn_and_tell_their_progress() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    std::fs::write(dir.path("raw"), vec![1; 1 << 20]).expect("an image");
    let script = "(cat raw; sleep 5.3; cat raw) | \"$S\" volume import - a.img#slow --json";
    let mut import = Command::new("sh");
    import.args(["-c", script]).current_dir(dir.path("")).env("SHEAVE_RUNTIME_DIR", dir.path("run"));
    import.env("S", assert_cmd::cargo::cargo_bin!("sheave")).stdout(Stdio::piped()).stderr(Stdio::piped());
    let import = import.spawn().expect("it runs");
    let from = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let dir = &dir;
            scope.spawn(move || {
                served_ok(dir, &format!("volume create a.img#w{number} --size 1M"));
                served_ok(dir, &format!("volume snapshot a.img#w{number} s{number}"));
                served_ok(dir, &format!("volume snapshot a.img#v v{number}"));
                served_ok(dir, &format!("volume resize a.img#w{number} 2M"));
                served_ok(dir, &format!("volume delete a.img#s{number} --yes"));
            });
        }
    });
    assert!(from.elapsed() < Duration::from_secs(120), "{:?}", from.elapsed());
    let said = Said::of(import.wait_with_output().expect("it ends"));
    assert_eq!(said.json()["image_bytes"], 2 << 20, "{}", said.err);
    let told: Vec<serde_json::Value> = said.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert!(
        said.err.contains("is served: asking") && told.iter().any(|line| line["phase"] == "import"),
        "the daemon tells how far it is: {}",
        said.err
    );
    let listed = ask_ok(&dir, "volume list a.img --json").json();
    let names = listed["volumes"].as_array().expect("rows").iter().map(|row| row["name"].to_string());
    assert_eq!(names.filter(|name| name != "\"v\"").count(), 1 + 8 + 8, "{listed}");
    daemon.end();
    dir.ok("pool check a.img");
}
