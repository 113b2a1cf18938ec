//! `sheave volume`: commands that change whole volumes, and their output. The fields of the JSON are an interface, so
//! they must not change.

use std::fs;

use crate::sheave::{Dir, no_io_uring};
use serde_json::Value;

/// Makes a pool `p.img`, and an image `raw` of 1 MiB without a zero byte.
fn dir() -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    let noise: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8 | 1).collect();
    fs::write(dir.path("raw"), noise).expect("an image");
    Some(dir)
}

fn refused(dir: &Dir, line: &str, code: i32, words: &[&str]) {
    let said = dir.run(line);
    assert_eq!(said.code, code, "{line}: {}{}", said.out, said.err);
    for word in words {
        assert!(said.err.contains(word), "{line}: no `{word}` in\n{}", said.err);
    }
}

fn names(dir: &Dir) -> Vec<String> {
    let list = dir.ok("volume list p.img --json").json();
    let volumes = list["volumes"].as_array().expect("a list").iter();
    volumes.map(|volume| volume["name"].as_str().expect("a name").to_owned()).collect()
}

fn content(dir: &Dir, name: &str) -> Vec<u8> {
    dir.ok(&format!("volume export p.img#{name} content --yes --progress none"));
    fs::read(dir.path("content")).expect("exported")
}

#[test]
fn volumes_come_are_listed_and_go() {
    let Some(dir) = dir() else { return };
    // New volumes are empty (V12), and deleted volumes are gone when the command returns (V11).
    assert!(dir.ok("volume list p.img").out.contains("no volumes yet"));
    let made = dir.ok("volume create p.img#b --size 100G --json").json();
    assert_eq!(made["done"], "created");
    let volume = &made["volume"];
    assert_eq!((&volume["pool"], &volume["name"], &volume["snapshot"]), (&"p.img".into(), &"b".into(), &false.into()));
    assert_eq!((&volume["size_bytes"], &volume["origin"]), (&(100u64 << 30).into(), &Value::Null), "{volume}");
    for name in ["allocated_bytes", "shared_bytes", "unique_bytes", "written_bytes"] {
        assert_eq!(volume[name], 0, "{name} of {volume}");
    }
    assert!(volume["id"].is_u64() && volume["created"].as_u64() > Some(1_600_000_000), "{volume}");
    assert_eq!(dir.ok("volume info p.img#b --json").json(), *volume);
    dir.ok("volume create p.img#a --size 4k");
    assert_eq!(names(&dir), ["a", "b"]);
    let text = dir.ok("volume list p.img").out;
    assert!(text.starts_with("NAME") && text.contains("100 GiB") && text.lines().count() == 3, "{text}");
    assert!(dir.ok("volume info p.img#b").out.contains("100 GiB"));
    let gone = dir.ok("volume delete p.img#a p.img#b --json").json();
    assert_eq!((&gone["done"], &gone["deleted"]), (&"deleted".into(), &serde_json::json!(["a", "b"])), "{gone}");
    assert!(names(&dir).is_empty());
}

#[test]
fn wrong_names_and_sizes_are_told() {
    let Some(dir) = dir() else { return };
    dir.ok("volume create p.img#a --size 1M");
    refused(&dir, "volume create p.img#a --size 1M", 1, &["there is a volume 'a' already", "fix: "]);
    refused(&dir, "volume info p.img#none", 1, &["no volume 'none'", "sheave volume list"]);
    refused(&dir, "volume delete p.img#none --yes", 1, &["no volume 'none'"]);
    refused(&dir, "volume rename p.img#a -- -x", 2, &["begins with"]);
    refused(&dir, "volume create p.img --size 1M", 2, &["p.img#NAME"]);
    refused(&dir, "volume create p.img#x --size 1000", 2, &["multiple of 4096", "the next one is 4096"]);
    refused(&dir, "volume create p.img#x --size 0", 2, &["size of 0"]);
    refused(&dir, "volume create p.img#x", 2, &["--size"]);
    refused(&dir, "volume create p.img#x+y --size 1M", 2, &["'+' cannot be in a name"]);
    refused(&dir, "volume snapshot p.img#a a", 1, &["there is a volume 'a' already"]);
    refused(&dir, "volume list p.img#a", 2, &["wants a pool"]);
    refused(&dir, "volume delete p.img#a q.img#a", 2, &["another pool", "fix: "]);
    refused(&dir, "volume list ram:size=64M", 2, &["gone when this command ends"]);
    assert_eq!(names(&dir), ["a"]);
}

#[test]
fn snapshots_clones_and_rollback_keep_what_they_froze() {
    let Some(dir) = dir() else { return };
    // Snapshot (V6), clone (V7), rollback (V8) and delete (V11) are checked by the content of the volumes.
    let first = fs::read(dir.path("raw")).expect("the image");
    dir.ok("volume import raw p.img#v");
    let snapshot = dir.ok("volume snapshot p.img#v s --json").json();
    assert_eq!((&snapshot["done"], &snapshot["volume"]["snapshot"]), (&"snapshot".into(), &true.into()), "{snapshot}");
    assert_eq!((&snapshot["volume"]["name"], &snapshot["volume"]["origin"]), (&"s".into(), &"v".into()), "{snapshot}");
    let cloned = dir.ok("volume clone p.img#s c --json").json();
    assert_eq!((&cloned["done"], &cloned["volume"]["origin"]), (&"cloned".into(), &"s".into()), "{cloned}");
    let shared = &dir.ok("volume info p.img#v --json").json();
    assert_eq!((&shared["shared_bytes"], &shared["unique_bytes"]), (&(1 << 20).into(), &0.into()), "{shared}");
    let picture = dir.ok("pool info p.img").out;
    let line = picture.lines().find(|line| line.contains("S shared")).expect("a legend");
    assert!(line.contains("1 MiB"), "{picture}");
    let second: Vec<u8> = first.iter().map(|byte| !byte | 1).collect();
    fs::write(dir.path("raw2"), &second).expect("an image");
    refused(&dir, "volume import raw2 p.img#v", 2, &["holds 1 MiB of data", "--yes"]);
    refused(&dir, "volume import raw2 p.img#s --yes", 1, &["is a snapshot"]);
    dir.ok("volume import raw2 p.img#v --yes");
    assert!(content(&dir, "v") == second && content(&dir, "s") == first && content(&dir, "c") == first);
    refused(&dir, "volume rollback p.img#v s", 2, &["is lost", "--yes"]);
    let rolled = dir.ok("volume rollback p.img#v s --yes --json").json();
    assert_eq!((&rolled["done"], &rolled["volume"]["name"]), (&"rolled back".into(), &"v".into()));
    assert!(content(&dir, "v") == first);
    refused(&dir, "volume delete p.img#s", 2, &["s in p.img holds 1 MiB of data", "--yes"]);
    dir.ok("volume delete p.img#s --yes");
    assert!(content(&dir, "c") == first && content(&dir, "v") == first);
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
    let freed = dir.ok("volume delete p.img#c p.img#v --yes --json").json();
    assert!(freed["freed_bytes"].as_u64() >= Some(1 << 20), "{freed}");
}

#[test]
fn a_volume_gets_another_name_and_another_size() {
    let Some(dir) = dir() else { return };
    // The test covers resize (V9) and rename (V10).
    let image = fs::read(dir.path("raw")).expect("the image");
    dir.ok("volume import raw p.img#v");
    let renamed = dir.ok("volume rename p.img#v w --json").json();
    assert_eq!((&renamed["done"], &renamed["volume"]["name"]), (&"renamed".into(), &"w".into()));
    assert_eq!(names(&dir), ["w"]);
    let size = |line: &str| dir.ok(line).json()["volume"]["size_bytes"].as_u64();
    assert_eq!(size("volume resize p.img#w 2M --json"), Some(2 << 20));
    let grown = content(&dir, "w");
    assert!(grown[..1 << 20] == image[..] && grown[1 << 20..].iter().all(|byte| *byte == 0));
    refused(&dir, "volume resize p.img#w 512k", 2, &["shrinks from 2 MiB to 512 KiB", "--yes"]);
    refused(&dir, "volume resize p.img#w -4M --yes", 2, &["leaves nothing", "fix: "]);
    assert_eq!(size("volume resize p.img#w -1536k --yes --json"), Some(512 << 10));
    assert_eq!(size("volume resize p.img#w +512k --json"), Some(1 << 20));
    let cut = content(&dir, "w");
    assert!(
        cut[..512 << 10] == image[..512 << 10] && cut[512 << 10..].iter().all(|byte| *byte == 0),
        "V9: not the old"
    );
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
}

#[test]
fn a_volume_grows_by_being_written_up_to_its_largest_size() {
    let Some(dir) = dir() else { return };
    // A write beyond the end makes the volume larger (V23). Such a volume can also be resized (V24).
    let made = dir.ok("volume create p.img#log --max-size 16M --json").json();
    let sizes = |volume: &Value| (volume["size_bytes"].as_u64(), volume["max_size_bytes"].as_u64());
    assert_eq!(sizes(&made["volume"]), (Some(0), Some(16 << 20)), "{made}");
    assert_eq!(content(&dir, "log"), b"", "nothing is there");
    refused(&dir, "bench vol:p.img#log --rw randread --ios 10", 2, &["has 0 B now", "--fill"]);
    let run = |line: &str| dir.ok(&format!("bench vol:p.img#log {line} --json --progress none")).json();
    assert_eq!(run("--rw write --range 4M --ios 1024 --bs 4k")["errors"], 0);
    let info = || dir.ok("volume info p.img#log --json").json();
    assert_eq!(sizes(&info()), (Some(4 << 20), Some(16 << 20)));
    dir.ok("volume snapshot p.img#log then");
    let report = run("--rw randread --range 8M --fill --overwrite --ios 100");
    assert_eq!((&report["errors"], sizes(&info()).0), (&0.into(), Some(8 << 20)), "{report}");
    assert_eq!(run("--rw randrw --verify --overwrite --ios 500 --bs 4k")["verify"]["wrong"], 0);
    refused(&dir, "bench vol:p.img#log --rw randrw --verify --overwrite --range 9M --ios 10", 2, &["has 8 MiB now"]);
    let text = dir.ok("volume list p.img").out;
    assert!(text.contains("GROWS TO") && text.contains("16 MiB"), "{text}");
    assert!(dir.ok("volume info p.img#log").out.contains("8 MiB, grows to 16 MiB"));
    assert!(!dir.ok("volume info p.img#then").out.contains("grows to"), "a snapshot does not");
    assert_eq!(
        sizes(&dir.ok("volume clone p.img#then other --json").json()["volume"]),
        (Some(4 << 20), Some(16 << 20))
    );
    // If both sizes change, the command changes them in the order that is valid.
    let resize = |line: &str| sizes(&dir.ok(&format!("volume resize p.img#log {line} --json")).json()["volume"]);
    assert_eq!(resize("--max-size 32M"), (Some(8 << 20), Some(32 << 20)));
    assert_eq!(resize("40M --max-size 64M"), (Some(40 << 20), Some(64 << 20)));
    assert_eq!(resize("4M --max-size 8M --yes"), (Some(4 << 20), Some(8 << 20)));
    assert_eq!(resize("0 --yes"), (Some(0), Some(8 << 20)));
    refused(&dir, "volume resize p.img#log 9M", 2, &["more than 8388608", "Raise its largest size"]);
    refused(&dir, "volume resize p.img#then --max-size 9M", 2, &["is a snapshot"]);
    refused(&dir, "volume resize p.img#log", 2, &["SIZE"]);
    refused(&dir, "volume create p.img#x --size 2M --max-size 1M", 2, &["2097152 bytes are more than 1048576"]);
    dir.ok("volume create p.img#fixed --size 1M");
    refused(&dir, "volume resize p.img#fixed --max-size 9M", 2, &["does not grow", "created with a largest size"]);
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
}

#[test]
fn a_map_tells_data_and_holes() {
    let Some(dir) = dir() else { return };
    let mut image = vec![0; 1 << 20];
    image[128 << 10..132 << 10].fill(1);
    fs::write(dir.path("sparse"), &image).expect("an image");
    dir.ok("volume import sparse p.img#v");
    let said = dir.ok("volume map p.img#v --json");
    let map: Vec<Value> = serde_json::from_str(&said.out).expect("a JSON array");
    let mut end = 0;
    for extent in &map {
        assert_eq!(extent["start"].as_u64(), Some(end), "{}", said.out);
        end += extent["length"].as_u64().expect("a length");
        assert_eq!(extent["data"].as_bool(), extent["zero"].as_bool().map(|zero| !zero), "{extent}");
        assert_eq!(extent["present"].as_bool(), Some(extent["offset"].is_u64()), "{extent}");
        assert_eq!(extent["depth"], 0);
    }
    assert_eq!(end, 1 << 20);
    let data: Vec<&Value> = map.iter().filter(|extent| extent["data"] == true).collect();
    assert_eq!(data.len(), 1, "{}", said.out);
    assert_eq!((&data[0]["start"], &data[0]["length"]), (&(128 << 10).into(), &4096.into()), "{}", said.out);
    let rest: Vec<&Value> = map.iter().filter(|extent| extent["unwritten"] == true).collect();
    assert_eq!(rest.len(), 1, "the rest of its unit: {}", said.out);
    assert_eq!(rest[0]["length"], 60 << 10);
    let part = dir.ok("volume map p.img#v --offset 128k --length 4k").out;
    assert!(part.contains("1 extents: 4 KiB of data"), "{part}");
    refused(&dir, "volume map p.img#v --offset 1M", 2, &["beyond the end", "fix: "]);
}
