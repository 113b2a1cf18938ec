//! Snapshots that are named after their volume, snapshots of several volumes at one moment, and increments that are
//! sent twice. Each test runs without a daemon and with one.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::daemon::{Daemon, Nbd, ask, served_ok};
use crate::sheave::{Dir, Said, no_io_uring};

/// Makes two pools. The first has these volumes, each with different data.
fn pools(volumes: &[&str]) -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    for pool in ["a", "b"] {
        dir.ok(&format!("pool create {pool}.img --size 128M"));
    }
    for (number, name) in volumes.iter().enumerate() {
        fs::write(dir.path("raw"), vec![number as u8 + 1; 1 << 20]).expect("an image");
        dir.ok(&format!("volume import raw a.img#{name} --size 8M --progress none"));
    }
    fs::create_dir(dir.path("run")).expect("made");
    Some(dir)
}

const SERVED: &str = r#"
listen = ["unix:nbd.sock"]

[[pool]]
name = "a"
path = "a.img"

[[pool]]
name = "b"
path = "b.img"

[[export]]
pool = "a"
volume = "vm1"

[[export]]
pool = "a"
volume = "vm2"
"#;

/// Runs commands, without a daemon or with one that must carry them out.
struct Way<'a>(&'a Dir, Option<Daemon>);

impl Way<'_> {
    fn run(&self, line: &str) -> Said {
        if self.1.is_some() { ask(self.0, line) } else { self.0.run(line) }
    }

    #[track_caller]
    fn ok(&self, line: &str) -> Said {
        if self.1.is_some() { served_ok(self.0, line) } else { self.0.ok(line) }
    }

    #[track_caller]
    fn refused(&self, line: &str, words: &[&str]) {
        let said = self.run(line);
        assert!(said.code == 1 || said.code == 2, "{line}: {}{}", said.out, said.err);
        for word in words.iter().chain(&["fix: "]) {
            assert!(said.err.contains(word), "{line}: no `{word}` in\n{}", said.err);
        }
    }

    /// Returns name and origin of each volume and snapshot.
    fn listed(&self, pool: &str) -> Vec<(String, Value)> {
        let all = self.ok(&format!("volume list {pool} --json")).json();
        let one = |volume: &Value| (volume["name"].as_str().expect("a name").to_owned(), volume["origin"].clone());
        all["volumes"].as_array().expect("a list").iter().map(one).collect()
    }

    fn names(&self, pool: &str) -> Vec<String> {
        self.listed(pool).into_iter().map(|(name, _)| name).collect()
    }
}

/// Calls `each` once without a daemon and once with a daemon. Checks both pools afterwards.
fn both_ways(volumes: &[&str], each: impl Fn(&Dir, Way<'_>)) {
    for served in [false, true] {
        let Some(dir) = pools(volumes) else { return };
        let daemon = served.then(|| Daemon::start(&dir, SERVED));
        each(&dir, Way(&dir, daemon));
        for pool in ["a.img", "b.img"] {
            assert!(dir.ok(&format!("pool check {pool}")).out.ends_with("clean\n"));
        }
    }
}

#[test]
fn several_volumes_are_frozen_at_one_moment_or_none_is() {
    both_ways(&["vm1", "vm2", "vm3"], |_, way| {
        let made = way.ok("volume snapshot a.img#vm1 vm2 a.img#vm3 --at monday --json").json();
        assert_eq!(
            (&made["done"], &made["at"], &made["pool"]),
            (&json!("snapshots"), &json!("monday"), &json!("a.img"))
        );
        let volumes = made["volumes"].as_array().expect("a list");
        let field = |name: &str| volumes.iter().map(|volume| volume[name].clone()).collect::<Vec<_>>();
        assert_eq!(field("name"), ["vm1@monday", "vm2@monday", "vm3@monday"]);
        assert_eq!(field("origin"), ["vm1", "vm2", "vm3"]);
        assert!(field("created").iter().all(|created| *created == volumes[0]["created"]), "{made}");
        let all = ["vm1", "vm1@monday", "vm2", "vm2@monday", "vm3", "vm3@monday"];
        assert_eq!(way.names("a.img"), all);
        // If one name is taken or one volume does not exist, no snapshot is made, and the error has the name.
        way.ok("volume delete a.img#vm1@monday vm3@monday --yes");
        for (volumes, words) in [
            ("vm1 vm2 vm3 --at monday", ["'vm2@monday' already", "no snapshot was made"]),
            ("vm1 vm4 --at x", ["no volume 'vm4'", "no snapshot was made"]),
            ("vm1 vm1 --at x", ["'vm1' stands there twice", "no snapshot was made"]),
            ("vm1 vm2@monday --at x", ["'vm2@monday' is a snapshot", "name its volume"]),
            ("vm1 b.img#vm2 --at x", ["is in another pool than a.img#vm1", "of its own"]),
            ("vm1 a.img#vm2", ["their snapshots have no name", "--at"]),
            ("vm1 vm2 vm3", ["their snapshots have no name", "--at"]),
            ("vm1", ["has no name", "a.img#vm1@monday"]),
            ("vm1 vm2@x", ["'vm2@x' would be a snapshot of 'vm2'", "'vm1@x'"]),
        ] {
            way.refused(&format!("volume snapshot a.img#{volumes}"), &words);
        }
        let wrong = way.run("volume snapshot a.img#vm1 --at a/b");
        assert!(wrong.code == 2 && wrong.err.contains("cannot be in a name"), "{}", wrong.err);
        assert_eq!(way.names("a.img"), ["vm1", "vm2", "vm2@monday", "vm3"]);
        let said = way.ok("volume snapshot a.img#vm1 vm3 --at @monday").out;
        assert_eq!(said, "snapshots: vm1@monday, vm3@monday; of one moment\n");
    });
}

#[test]
fn a_snapshot_is_named_after_its_volume_in_every_command() {
    both_ways(&["vm1", "vm2"], |dir, way| {
        let made = way.ok("volume snapshot a.img#vm1@mon --json").json();
        assert_eq!((&made["done"], &made["volume"]["name"]), (&json!("snapshot"), &json!("vm1@mon")));
        way.ok("volume snapshot a.img#vm2 @mon");
        way.ok("volume snapshot a.img#vm1 pool-wide");
        way.ok("volume clone a.img#vm1@mon try-it");
        way.ok("volume rename a.img#vm2@mon @monday");
        way.refused("volume clone a.img#vm1 vm1@clone", &["without '@'"]);
        way.refused("volume create a.img#vm1@new --size 1M", &["without '@'"]);
        let listed = way.listed("a.img");
        let origin = |name: &str| listed.iter().find(|one| one.0 == name).map(|one| one.1.clone());
        assert_eq!(origin("try-it"), Some(json!("vm1@mon")));
        assert_eq!((origin("vm2@monday"), origin("pool-wide")), (Some(json!("vm2")), Some(json!("vm1"))));
        assert_eq!(way.ok("volume list a.img --of vm1 --names").out, "vm1@mon\npool-wide\n", "the oldest first");
        assert_eq!(way.ok("volume list a.img --kind volume --names").out, "try-it\nvm1\nvm2\n");
        assert_eq!(way.ok("volume list a.img --kind snapshot --names").out, "pool-wide\nvm1@mon\nvm2@monday\n");
        way.refused("volume list a.img --of nobody", &["no volume 'nobody'"]);
        let text = way.ok("volume list a.img").out;
        let names: Vec<&str> =
            text.lines().map(|line| line.trim_end().split("  snapshot").next().expect("one")).collect();
        let place = |name: &str| names.iter().position(|line| line.trim_end() == name);
        assert!(place("  vm1@mon") < place("  pool-wide") && place("  vm1@mon").is_some(), "{text}");
        assert!(text.lines().all(|line| line.contains("CREATED") || line.contains(" 20")), "{text}");
        // The snapshots and the export of a volume that is renamed follow the new name.
        if way.1.is_some() {
            way.ok("volume info a.img#vm1@mon");
            let said = ask(dir, "export add a.img#vm1@mon");
            assert_eq!(said.code, 0, "{}", said.err);
        }
        way.ok("volume rename a.img#vm1 web");
        assert_eq!(way.names("a.img"), ["pool-wide", "try-it", "vm2", "vm2@monday", "web", "web@mon"]);
        if way.1.is_some() {
            let exports = ask(dir, "export list --json").json();
            let volume = |name: &str| {
                let all = exports["exports"].as_array().expect("a list").iter();
                all.into_iter().find(|export| export["name"] == name).map(|export| export["volume"].clone())
            };
            assert_eq!((volume("vm1@mon"), volume("vm1")), (Some(json!("web@mon")), Some(json!("web"))), "{exports}");
            assert!(Nbd::connect(&dir.path("nbd.sock"), "vm1@mon").is_some(), "it is served on");
            assert_eq!(ask(dir, "export remove vm1@mon").code, 0);
        }
        way.ok("volume rollback a.img#web @mon --yes");
        way.refused("volume rollback a.img#vm2 web@mon --yes", &["cannot be rolled back"]);
        // The snapshots of a deleted volume stay. They do not belong to a new volume of the same name.
        way.ok("volume delete a.img#web --yes");
        way.ok("volume create a.img#web --size 8M");
        assert!(way.listed("a.img").contains(&("web@mon".into(), Value::Null)));
        way.refused("volume rollback a.img#web @mon --yes", &["cannot be rolled back"]);
        way.refused("volume snapshot a.img#web@mon", &["'web@mon' already"]);
        assert_eq!(way.ok("volume list a.img --of web --names").out, "");
    });
}

/// Runs a line of bash with `pipefail`. `$S` is the path of the binary.
fn piped(dir: &Dir, served: bool, line: &str) -> Said {
    let mut command = Command::new("bash");
    command.args(["-ec", &format!("set -o pipefail; {line}")]).current_dir(dir.path(""));
    command.env("S", assert_cmd::cargo::cargo_bin!("sheave"));
    let run = if served { dir.path("run") } else { "".into() };
    Said::of(command.env("SHEAVE_RUNTIME_DIR", run).output().expect("bash runs"))
}

/// Sends an increment from pool `a.img` to pool `b.img` through a pipe.
fn send(dir: &Dir, way: &Way<'_>, (from, to, volume): (&str, &str, &str)) -> Said {
    let line = format!(
        "\"$S\" volume export-diff a.img#{volume}@{to} {from} - --progress none | \
         \"$S\" volume import-diff - b.img#{volume} --json --progress none"
    );
    piped(dir, way.1.is_some(), &line)
}

/// Sends an increment, and asserts that this succeeds. Returns the result of the import.
#[track_caller]
fn sent(dir: &Dir, way: &Way<'_>, increment: (&str, &str, &str)) -> Value {
    let said = send(dir, way, increment);
    assert_eq!(said.code, 0, "{increment:?}: {}{}", said.out, said.err);
    assert!(!said.err.contains("Broken pipe"), "{}", said.err);
    said.json()
}

/// Replaces the content of a volume.
fn fill(dir: &Dir, way: &Way<'_>, place: &str, bytes: &[u8]) {
    fs::write(dir.path("raw"), bytes).expect("an image");
    way.ok(&format!("volume import raw {place} --yes --force --progress none"));
}

#[test]
fn a_repeated_increment_ends_well_under_pipefail() {
    both_ways(&["vm1", "vm2"], |dir, way| {
        // The data is larger than a pipe and than the reader's buffer.
        fill(dir, &way, "a.img#vm1", &(0..4 << 20).map(|at: u32| (at >> 12) as u8 | 1).collect::<Vec<_>>());
        way.ok("volume snapshot a.img#vm1 vm2 --at mon");
        for volume in ["vm1", "vm2"] {
            let done = sent(dir, &way, ("", "mon", volume));
            assert_eq!((&done["done"], &done["to"]), (&json!("imported"), &json!(format!("{volume}@mon"))));
            let again = sent(dir, &way, ("", "mon", volume));
            assert_eq!((&again["done"], &again["warnings"]), (&json!("present"), &json!([])));
        }
        fill(dir, &way, "a.img#vm1", &vec![77; 3 << 20]);
        way.ok("volume snapshot a.img#vm1 vm2 --at tue");
        for done in ["imported", "present", "present"] {
            for volume in ["vm1", "vm2"] {
                let said = sent(dir, &way, ("--from @mon", "tue", volume));
                assert_eq!((&said["done"], &said["from"]), (&json!(done), &json!(format!("{volume}@mon"))), "{said}");
            }
        }
        // The copy has newer snapshots by now. The old increment still counts as present.
        assert_eq!(sent(dir, &way, ("", "mon", "vm1"))["done"], "present");
        // The snapshots of the copy have an origin too, so a retention according to the origin works.
        let all = way.listed("b.img");
        let of_theirs = |(name, origin): &(String, Value)| name.split_once('@').is_none_or(|one| origin == one.0);
        assert!(all.len() == 6 && all.iter().all(of_theirs), "{all:?}");
        assert_eq!(way.ok("volume list b.img --of vm1 --names").out, "vm1@mon\nvm1@tue\n");
        for name in ["vm1", "vm1@mon", "vm1@tue"] {
            way.ok(&format!("volume export a.img#{name} one --yes --progress none"));
            way.ok(&format!("volume export b.img#{name} other --yes --progress none"));
            assert!(fs::read(dir.path("one")).expect("read") == fs::read(dir.path("other")).expect("read"), "{name}");
        }
    });
}

/// An increment that is present is reported as such. If its stream is cut off, there is a warning. An increment that
/// does not fit is still refused.
#[test]
fn what_is_present_is_told_and_what_fails_fails() {
    both_ways(&["vm1"], |dir, way| {
        fill(dir, &way, "a.img#vm1", &vec![77; 3 << 20]);
        way.ok("volume snapshot a.img#vm1@mon");
        sent(dir, &way, ("", "mon", "vm1"));
        way.ok("volume export-diff a.img#vm1@mon mon.diff --progress none");
        assert_eq!(way.ok("volume import-diff mon.diff b.img#vm1 --json --progress none").json()["done"], "present");
        let served = way.1.is_some();
        let cut = "head -c 500000 mon.diff | \"$S\" volume import-diff - b.img#vm1 --json --progress none";
        let cut = piped(dir, served, cut);
        let json = cut.json();
        assert_eq!((cut.code, &json["done"]), (0, &json!("present")), "{}", cut.err);
        assert!(json["warnings"][0].as_str().is_some_and(|word| word.contains("cut off")), "{json}");
        // The copy was overwritten: it neither equals the diff's last snapshot, nor has newer snapshots.
        fill(dir, &way, "b.img#vm1", &[5; 1 << 20]);
        let changed = send(dir, &way, ("", "mon", "vm1"));
        let words = changed.err.contains("has changed since its snapshot 'vm1@mon'");
        assert!(changed.code == 1 && words, "{}{}", changed.out, changed.err);
    });
}

/// A snapshot named after its volume (`vm1@mon`) is named after the target volume by an import (`web@mon`), and so is a
/// snapshot whose base has such a name. Other snapshots keep their names. Diffs of version 1 have only the part behind
/// the `@`.
#[test]
fn names_in_diffs_are_those_of_the_volume_that_they_go_into() {
    let Some(dir) = pools(&["vm1"]) else { return };
    let import = |line: &str| dir.ok(&format!("volume import-diff {line} --json --progress none")).json()["to"].clone();
    for name in ["old", "vm1@mon", "vm1@tue", "wed"] {
        dir.ok(&format!("volume snapshot a.img#vm1 {name}"));
    }
    let mut from = String::new();
    for name in ["old", "vm1@mon", "vm1@tue", "wed"] {
        for version in ["v1", "v2"] {
            let file = format!("{}-{version}", name.replace('@', "-"));
            dir.ok(&format!("volume export-diff a.img#{name} {file} {from} --format {version} --progress none"));
        }
        from = format!("--from {name}");
    }
    // The name without a volume stays, the name with a volume is changed, and `wed` follows the name of its base.
    assert_eq!(import("old-v2 b.img#web"), "old");
    assert_eq!(import("vm1-mon-v2 b.img#web"), "web@mon");
    assert_eq!(import("vm1-tue-v2 b.img#web"), "web@tue");
    assert_eq!(import("wed-v2 b.img#web"), "web@wed", "its base is called after the volume");
    // The diffs of version 1 have the names `mon` and `tue`. --as and --base replace these names.
    assert_eq!(import("old-v1 b.img#db --as @old"), "db@old");
    assert_eq!(import("vm1-mon-v1 b.img#db"), "db@mon", "from old, which is db@old here");
    assert_eq!(import("vm1-tue-v1 b.img#db --base @mon --as tue"), "tue");
    assert_eq!(import("wed-v1 b.img#db --base tue --as @wed"), "db@wed");
    let bytes = fs::read(dir.path("vm1-tue-v1")).expect("read");
    assert!(!bytes[..30].contains(&b'@'), "no name of Ceph has an '@'");
    let wrong = dir.run("volume import-diff old-v2 b.img#x --as x@y@z");
    assert!(wrong.code == 2 && wrong.err.contains("two '@'"), "{}", wrong.err);
}
