//! Diffs between snapshots: an import gives the exact content. Only a volume that has the diff's first snapshot accepts
//! it. An import that ends early leaves nothing.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use ::sheave_base::rng::Rng;
use ::sheave_vol::rbd_diff::{END, Header, Identity, Reader, Version, begin, data, zeroes};

use crate::sheave::{Dir, no_io_uring};

const MIB: u64 = 1 << 20;

/// Builds a diff by hand. Each range is start, length, and the seed of its data or `None` for zeroes.
fn diff(version: Version, header: &Header, ranges: &[(u64, u64, Option<u64>)]) -> Vec<u8> {
    let mut bytes = begin(version, header);
    for (pos, len, seed) in ranges {
        match seed {
            Some(seed) => {
                bytes.extend(data(version, *pos, *len));
                let at = bytes.len();
                bytes.resize(at + *len as usize, 0);
                Rng::new(*seed).fill(&mut bytes[at..]);
            }
            None => bytes.extend(zeroes(version, *pos, *len)),
        }
    }
    bytes.extend(END);
    bytes
}

fn names(from: Option<&str>, to: &str, size: u64) -> Header {
    Header { from: from.map(Into::into), to: Some(to.into()), size, ..Header::default() }
}

/// Imports a hand-made diff into `p.img#v`, which makes the next snapshot.
fn change(dir: &Dir, header: &Header, ranges: &[(u64, u64, Option<u64>)]) {
    fs::write(dir.path("by-hand"), diff(Version::V1, header, ranges)).expect("a diff");
    dir.ok("volume import-diff by-hand p.img#v --progress none");
}

/// Makes a pool `p.img` with a volume of 16 MiB and the snapshots a, b (written, punched, odd ranges), c (made smaller)
/// and d (made larger, rolled back to a and written). Also makes an empty pool `q.img` with other units and checksums.
fn pools() -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 128M --block 16K");
    dir.ok("pool create q.img --size 128M --checksum crc32c");
    change(&dir, &names(None, "a", 16 * MIB), &[(0, 4 * MIB, Some(1)), (8 * MIB, MIB, Some(2))]);
    change(
        &dir,
        &names(Some("a"), "b", 16 * MIB),
        &[
            (1000, 100, Some(3)),
            (8192, 12288, None),
            (MIB - 7, 2 * MIB, Some(4)),
            (4 * MIB - 1, 4098, None),
            (15 * MIB, 4096, Some(5)),
        ],
    );
    change(&dir, &names(Some("b"), "c", 3 * MIB + 4096), &[(0, 4096, Some(6))]);
    change(&dir, &names(Some("c"), "grown", 16 * MIB), &[(12 * MIB, 8192, Some(7))]);
    dir.ok("volume rollback p.img#v a --yes");
    change(&dir, &names(Some("a"), "d", 16 * MIB), &[(9 * MIB - 4096, 8192, Some(8))]);
    Some(dir)
}

fn content(dir: &Dir, place: &str) -> Vec<u8> {
    dir.ok(&format!("volume export {place} content --yes --progress none"));
    fs::read(dir.path("content")).expect("exported")
}

#[track_caller]
fn assert_refused(dir: &Dir, line: &str, words: &[&str]) {
    let said = dir.run(line);
    assert_eq!(said.code, 1, "{line}\n{}{}", said.out, said.err);
    for word in words.iter().chain(&["fix: "]) {
        assert!(said.err.contains(word), "{line}: no `{word}` in\n{}", said.err);
    }
}

#[test]
fn a_chain_of_diffs_makes_a_copy_across_cuts_growth_and_rollbacks() {
    let Some(dir) = pools() else { return };
    let mut before = None;
    for name in ["a", "b", "c", "grown", "d"] {
        let from = before.map_or(String::new(), |before| format!("--from {before}"));
        let done = dir.ok(&format!("volume export-diff p.img#{name} {name}.diff {from} --json --progress none")).json();
        assert_eq!(done["from"], before.map_or(serde_json::Value::Null, Into::into), "{done}");
        let done = dir.ok(&format!("volume import-diff {name}.diff q.img#copy --json --progress none")).json();
        assert_eq!((&done["done"], &done["to"]), (&"imported".into(), &name.into()), "{done}");
        assert!(done["warnings"].as_array().is_some_and(Vec::is_empty), "{done}");
        let wanted = content(&dir, &format!("p.img#{name}"));
        assert!(content(&dir, "q.img#copy") == wanted, "{name}");
        assert!(content(&dir, &format!("q.img#{name}")) == wanted, "{name}");
        let taken = |pool: &str| dir.ok(&format!("volume info {pool}#{name} --json")).json()["created"].clone();
        assert_eq!(taken("p.img"), taken("q.img"), "{name}");
        let again = dir.ok(&format!("volume import-diff {name}.diff q.img#copy --json --progress none")).json();
        assert_eq!(again["done"], "present", "{again}");
        before = Some(name);
    }
    // The hand-made diff with odd ranges gives exactly the expected bytes.
    let (a, b) = (content(&dir, "p.img#a"), content(&dir, "p.img#b"));
    let mut wanted = a;
    for (pos, len, seed) in [(1000, 100, Some(3)), (8192, 12288, None), (MIB - 7, 2 * MIB, Some(4))] {
        let range = &mut wanted[pos as usize..(pos + len) as usize];
        match seed {
            Some(seed) => Rng::new(seed).fill(range),
            None => range.fill(0),
        }
    }
    wanted[4 * MIB as usize - 1..][..4098].fill(0);
    Rng::new(5).fill(&mut wanted[15 * MIB as usize..][..4096]);
    assert!(b == wanted);
    let names: Vec<String> = listed(&dir, "q.img");
    assert_eq!(names, ["a", "b", "c", "copy", "d", "grown"]);
    for pool in ["p.img", "q.img"] {
        assert!(dir.ok(&format!("pool check {pool}")).out.ends_with("clean\n"));
    }
}

fn listed(dir: &Dir, pool: &str) -> Vec<String> {
    let all = dir.ok(&format!("volume list {pool} --json")).json();
    let name = |volume: &serde_json::Value| volume["name"].as_str().expect("a name").to_owned();
    all["volumes"].as_array().expect("a list").iter().map(name).collect()
}

#[test]
fn a_diff_goes_onto_what_it_begins_at_alone() {
    let Some(dir) = pools() else { return };
    dir.ok("volume export-diff p.img#a a.diff");
    dir.ok("volume export-diff p.img#b b.diff --from a");
    dir.ok("volume export-diff p.img#b b1.diff --from a --format v1");
    dir.ok("volume export-diff p.img#c c.diff --from b");
    assert_refused(&dir, "volume import-diff b.diff q.img#copy", &["no volume 'copy'"]);
    dir.ok("volume import-diff a.diff q.img#copy");
    let before = content(&dir, "q.img#copy");
    assert_refused(&dir, "volume import-diff c.diff q.img#copy", &["no snapshot 'b'"]);
    assert_refused(&dir, "volume import-diff a.diff q.img#copy --as other", &["begins at nothing"]);
    // The target has a snapshot with the name of the base, but it is another snapshot.
    let other = diff(Version::V1, &names(None, "x", 16 * MIB), &[(0, 4096, Some(9))]);
    fs::write(dir.path("x.diff"), other).expect("a diff");
    dir.ok("volume import-diff x.diff q.img#x-volume");
    assert_refused(&dir, "volume import-diff b.diff q.img#x-volume --base x", &["another snapshot"]);
    // The volume has changed since its snapshot.
    let more = diff(Version::V1, &names(Some("a"), "e", 16 * MIB), &[(0, 4096, Some(9))]);
    fs::write(dir.path("e.diff"), more).expect("a diff");
    dir.ok("volume clone q.img#a changed");
    let said = dir.ok("volume import-diff e.diff q.img#changed");
    assert!(said.err.contains("warning: ") && said.err.contains("cannot be verified"), "{}", said.err);
    assert_refused(&dir, "volume import-diff b.diff q.img#changed", &["has changed since", "volume rollback"]);
    assert!(content(&dir, "q.img#copy") == before);
    // A diff of version 1 identifies snapshots only by name, which gives a warning. `--base` and `--as` replace the
    // names.
    dir.ok("volume rename q.img#a monday");
    let said = dir.ok("volume import-diff b1.diff q.img#copy --base monday --as tuesday --json --progress none");
    assert_eq!(said.json()["warnings"].as_array().map(Vec::len), Some(1), "{}", said.out);
    assert!(content(&dir, "q.img#tuesday") == content(&dir, "p.img#b"));
    assert_refused(&dir, "volume import-diff c.diff q.img#copy --base tuesday --as e", &["'e' already", "--as"]);
    let said = dir.run("volume export-diff p.img#b x --from v");
    assert!(said.code == 2 && said.err.contains("is a volume"), "{}", said.err);
    assert!(dir.run("volume diff p.img#b q.img#e").err.contains("different pools"));
}

#[test]
fn what_did_not_change_is_not_read() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 256M --checksum crc32c --block 4K");
    change(&dir, &names(None, "a", 128 * MIB), &[(0, 64 * MIB, Some(1))]);
    // Every hundredth block is changed.
    let ranges: Vec<(u64, u64, Option<u64>)> = (0..16384).step_by(100).map(|at| (at * 4096, 4096, Some(at))).collect();
    change(&dir, &names(Some("a"), "b", 128 * MIB), &ranges);
    let wanted = content(&dir, "p.img#b");
    let told: serde_json::Value =
        serde_json::from_str(&dir.ok("volume diff p.img#a p.img#b --json").out).expect("JSON");
    assert_eq!(told.as_array().map(Vec::len), Some(ranges.len()), "{told}");
    // All unchanged data is damaged, so that a read of it fails.
    let map: serde_json::Value = serde_json::from_str(&dir.ok("volume map p.img#b --json").out).expect("JSON");
    let file = fs::OpenOptions::new().write(true).open(dir.path("p.img")).expect("the pool");
    for extent in map.as_array().expect("a list").iter().filter(|extent| extent["data"] == true) {
        if extent["start"].as_u64().expect("a place") / 4096 % 100 == 0 {
            continue;
        }
        let (at, len) = (extent["offset"].as_u64().expect("there"), extent["length"].as_u64().expect("there"));
        file.write_all_at(&vec![0xee; len as usize], at).expect("rotten");
    }
    drop(file);
    let done = dir.ok("volume export-diff p.img#b b.diff --from a --json --progress none").json();
    assert_eq!(done["copied_bytes"], ranges.len() as u64 * 4096, "{done}");
    assert_ne!(dir.run("volume export p.img#b rotten --progress none").code, 0, "reading all of it does fail");
    let whole = diff(Version::V1, &names(None, "a", 128 * MIB), &[(0, 64 * MIB, Some(1))]);
    fs::write(dir.path("whole"), whole).expect("a diff");
    dir.ok("pool create q.img --size 256M");
    dir.ok("volume import-diff whole q.img#v");
    // Version 1 compares only names: the copy of the snapshot may have another time of creation than the original.
    dir.ok("volume export-diff p.img#b b1.diff --from a --format v1");
    dir.ok("volume import-diff b1.diff q.img#v");
    assert!(content(&dir, "q.img#v") == wanted);
}

/// After a snapshot, fifty writes of one block each copy whole groups of blocks. The copied blocks are not in the diff.
#[test]
fn an_increment_is_as_large_as_what_changed() {
    if no_io_uring() {
        return;
    }
    for options in ["", "--checksum crc32c"] {
        let dir = Dir::new();
        dir.ok(&format!("pool create p.img --size 256M {options}"));
        change(&dir, &names(None, "a", 64 * MIB), &[(0, 64 * MIB, Some(1))]);
        // The blocks are so far from each other that each is in another group.
        let ranges: Vec<(u64, u64, Option<u64>)> =
            (0..50).map(|at| (at * MIB + at * 4096, 4096, Some(100 + at))).collect();
        change(&dir, &names(Some("a"), "b", 64 * MIB), &ranges);
        let told: serde_json::Value =
            serde_json::from_str(&dir.ok("volume diff p.img#a p.img#b --json --progress none").out).expect("JSON");
        let changed: u64 = told.as_array().expect("a list").iter().filter_map(|extent| extent["length"].as_u64()).sum();
        assert_eq!(changed, 50 * 4096, "{told}");
        let done = dir.ok("volume export-diff p.img#b b.diff --from a --json --progress none").json();
        assert_eq!((&done["copied_bytes"], &done["zero_bytes"]), (&(50 * 4096).into(), &0.into()), "{done}");
        let copied = 50 * 4 * 65536;
        let differ = if options.is_empty() { 0 } else { 50 * 4096 };
        assert_eq!(done["compared_bytes"], 2 * (copied - differ), "{done}");
        let bytes = fs::metadata(dir.path("b.diff")).expect("a diff").len();
        assert!(bytes as f64 <= 1.05 * (50.0 * 4096.0), "{bytes} bytes");
        dir.ok("pool create q.img --size 256M");
        dir.ok("volume export-diff p.img#a a.diff");
        dir.ok("volume import-diff a.diff q.img#v");
        dir.ok("volume import-diff b.diff q.img#v");
        assert!(content(&dir, "q.img#b") == content(&dir, "p.img#b"), "what the diff leaves out was the same");
    }
}

#[test]
fn an_import_that_is_killed_leaves_nothing_and_is_started_again() {
    let Some(dir) = pools() else { return };
    dir.ok("volume export-diff p.img#a a.diff");
    dir.ok("volume export-diff p.img#b b.diff --from a");
    dir.ok("volume import-diff a.diff q.img#copy");
    let before = content(&dir, "q.img#copy");
    let whole = fs::read(dir.path("b.diff")).expect("a diff");
    for kill in [true, false] {
        let mut command = dir.command("volume import-diff - q.img#copy --progress none");
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut stdin = child.stdin.take().expect("a pipe");
        // The pipe and the buffer of its reader hold less than this: when the write returns, the import has begun.
        stdin.write_all(&whole[..MIB as usize]).expect("written");
        if kill {
            child.kill().expect("killed");
        }
        drop(stdin);
        let output = child.wait_with_output().expect("it ended");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && (kill || said.contains("cut off")), "{said}");
        assert!(content(&dir, "q.img#copy") == before);
        let wanted: &[&str] = if kill { &["a", "copy", "copy.import-diff"] } else { &["a", "copy"] };
        assert_eq!(listed(&dir, "q.img"), wanted, "kill: {kill}");
        // The next command that opens the pool for writing removes the interim volume.
        dir.ok("pool set q.img --low-water 5%");
        assert_eq!(listed(&dir, "q.img"), ["a", "copy"]);
    }
    dir.ok("volume import-diff b.diff q.img#copy");
    assert!(content(&dir, "q.img#copy") == content(&dir, "p.img#b"));
    assert_eq!(listed(&dir, "q.img"), ["a", "b", "copy"]);
    // The rollback gives the state after a kill that came between the new snapshot and the change of the volume. The
    // next import does the rest.
    dir.ok("volume rollback q.img#copy a --yes");
    let done = dir.ok("volume import-diff b.diff q.img#copy --json --progress none").json();
    assert_eq!((&done["done"], &done["copied_bytes"]), (&"finished".into(), &0.into()), "{done}");
    assert!(content(&dir, "q.img#copy") == content(&dir, "p.img#b"));
    dir.ok("volume delete q.img#copy --yes");
    assert_eq!(dir.ok("volume import-diff a.diff q.img#copy --json --progress none").json()["done"], "finished");
    assert!(content(&dir, "q.img#copy") == before);
}

/// Returns the diff with the time of creation of both snapshots set to `created`, and their identities changed by
/// `changed`.
fn taken_at(bytes: &[u8], created: u64, changed: impl Fn(Identity) -> Identity) -> Vec<u8> {
    let (_, header) = Reader::begin(bytes).expect("a diff");
    let rest = &bytes[begin(Version::V2, &header).len()..];
    let identity = |of: Option<Identity>| of.map(|of| changed(of.created(created)));
    let (from_identity, to_identity) = (identity(header.from_identity), identity(header.to_identity));
    [begin(Version::V2, &Header { from_identity, to_identity, ..header }).as_slice(), rest].concat()
}

/// Two different snapshots can have the same name, second, size and changed ranges, for example if one is deleted and
/// taken again within a second. Only the random part of the identity distinguishes them.
#[test]
fn another_snapshot_of_the_same_second_and_places_is_another_one() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    ["p", "q", "c", "d"].iter().for_each(|pool| _ = dir.ok(&format!("pool create {pool}.img --size 64M")));
    for (pool, seed) in [("p", 1), ("q", 2)] {
        let bytes = diff(Version::V1, &names(None, "s", 4 * MIB), &[(0, MIB, Some(seed))]);
        fs::write(dir.path("by-hand"), bytes).expect("a diff");
        dir.ok(&format!("volume import-diff by-hand {pool}.img#v"));
        fs::write(dir.path("raw"), vec![seed as u8; 8192]).expect("an image");
        dir.ok(&format!("volume import raw {pool}.img#v --yes"));
        dir.ok(&format!("volume snapshot {pool}.img#v t"));
        for (diff, of) in [("s", "s"), ("t", "t --from s")] {
            dir.ok(&format!("volume export-diff {pool}.img#{} {pool}-{diff}.diff{}", &of[..1], &of[1..]));
            let bytes = fs::read(dir.path(&format!("{pool}-{diff}.diff"))).expect("a diff");
            fs::write(dir.path(&format!("{pool}-{diff}")), taken_at(&bytes, 1000, |identity| identity))
                .expect("written");
            let old = taken_at(&bytes, 1000, |identity| identity.unique(None));
            fs::write(dir.path(&format!("{pool}-{diff}-old")), old).expect("written");
        }
    }
    dir.ok("volume import-diff p-s c.img#v");
    let first = content(&dir, "c.img#v");
    assert_refused(&dir, "volume import-diff q-s c.img#v", &["'s' already, and it is not this one"]);
    assert_refused(&dir, "volume import-diff q-t c.img#v", &["'s' here is another snapshot"]);
    assert_refused(&dir, "volume import-diff q-t c.img#v --base s", &["'s' here is another snapshot"]);
    assert!(content(&dir, "c.img#v") == first);
    // A diff that was exported from the copy works as well as one from the original.
    dir.ok("volume export-diff c.img#s c-s");
    dir.ok("volume import-diff c-s d.img#v");
    for pool in ["c", "d"] {
        let again = dir.ok(&format!("volume import-diff p-s {pool}.img#v --json --progress none")).json();
        assert_eq!((&again["done"], &again["warnings"]), (&"present".into(), &serde_json::json!([])), "{again}");
        let done = dir.ok(&format!("volume import-diff p-t {pool}.img#v --json --progress none")).json();
        assert_eq!((&done["done"], &done["warnings"]), (&"imported".into(), &serde_json::json!([])), "{done}");
        assert!(content(&dir, &format!("{pool}.img#v")) == content(&dir, "p.img#t"));
        let list = dir.ok(&format!("volume list {pool}.img --json")).json();
        let of = |name: &str, what: &str| {
            let found = list["volumes"].as_array().expect("a list").iter().find(|volume| volume["name"] == name);
            found.expect("is there")[what].clone()
        };
        assert_eq!((of("s", "origin"), of("t", "origin")), ("v".into(), "v".into()), "{list}");
        let info = |name: &str| dir.ok(&format!("volume info p.img#{name} --json")).json()["identity"].clone();
        assert_eq!((of("s", "identity"), of("t", "identity")), (info("s"), info("t")));
        assert_ne!(info("s"), info("t"));
    }
    // Diffs of older programs contain no identity. A snapshot with the same name, time and size is accepted as the
    // base, with a warning.
    dir.ok("volume delete d.img#t --yes");
    dir.ok("volume rollback d.img#v s --yes");
    let done = dir.ok("volume import-diff p-t-old d.img#v --json --progress none").json();
    let warned = done["warnings"].to_string();
    assert!(warned.contains("'s' is taken for the snapshot") && warned.contains("no identity"), "{done}");
}

/// Users may give their volumes the names that interim volumes have.
#[test]
fn volumes_called_as_an_interim_one_stay_as_they_are() {
    let Some(dir) = pools() else { return };
    let long = format!("{}.import-diff", "x".repeat(245 - 12));
    let all = ["copy.import-diff", "copy.import-diff.to", &long, &"x".repeat(255)];
    dir.ok("volume export-diff p.img#a a.diff");
    dir.ok("volume export-diff p.img#v v.diff --from a");
    for (target, snapshot) in [("copy", "a"), (long.as_str(), "along")] {
        dir.ok(&format!("volume import-diff a.diff q.img#{target} --as {snapshot}"));
        for name in all.into_iter().filter(|name| *name != long) {
            let _ = dir.run(&format!("volume create q.img#{name} --size 1M"));
        }
        dir.ok(&format!("volume import-diff v.diff q.img#{target} --base {snapshot}"));
        assert!(content(&dir, &format!("q.img#{target}")) == content(&dir, "p.img#v"));
    }
    let mut wanted: Vec<&str> = all.into_iter().chain(["a", "along", "copy"]).collect();
    wanted.sort_unstable();
    assert_eq!(listed(&dir, "q.img"), wanted);
}

#[test]
fn what_is_no_diff_is_told_and_changes_nothing() {
    let Some(dir) = pools() else { return };
    let header = names(Some("d"), "z", 16 * MIB);
    let good = diff(Version::V2, &header, &[(0, 8192, Some(1)), (MIB, 4096, None)]);
    let with = |version, ranges: &[(u64, u64, Option<u64>)]| diff(version, &header, ranges);
    let before = content(&dir, "p.img#v");
    let names_before = listed(&dir, "p.img");
    for (bytes, word) in [
        (Vec::new(), "cut off"),
        (b"rbd image v2\n 12345678901234567890".to_vec(), "does not begin"),
        (good[..good.len() - 1].to_vec(), "cut off"),
        (good[..5000].to_vec(), "cut off"),
        ([&good[..], b"e"].concat(), "something follows"),
        (with(Version::V1, &[(8192, 8192, None), (0, 4096, Some(1))]), "overlaps"),
        (with(Version::V1, &[(0, 8192, None), (4096, 4096, Some(1))]), "overlaps"),
        (with(Version::V2, &[(16 * MIB, 1, None)]), "beyond the size"),
        (with(Version::V2, &[(u64::MAX, u64::MAX, None)]), "beyond the size"),
        (diff(Version::V2, &names(Some("d"), "no/name", 16 * MIB), &[]), "no/name"),
    ] {
        fs::write(dir.path("bad"), bytes).expect("a file");
        let said = dir.run("volume import-diff bad p.img#v --progress none");
        assert!(said.code == 1 || said.code == 2, "{word}: {}{}", said.out, said.err);
        assert!(said.err.contains(word) && said.err.contains("fix: "), "{word}: {}", said.err);
        assert!(content(&dir, "p.img#v") == before, "{word}");
        assert_eq!(listed(&dir, "p.img"), names_before, "{word}");
    }
    // One size is too large for any pool, the other is no valid size of a volume.
    for size in [u64::MAX, 0] {
        fs::write(dir.path("bad"), diff(Version::V1, &names(Some("d"), "z", size), &[])).expect("a file");
        let said = dir.run("volume import-diff bad p.img#v --progress none");
        assert!(said.code != 0 && !said.err.contains("panicked"), "{size}: {}", said.err);
        assert_eq!(listed(&dir, "p.img"), names_before, "{size}");
    }
    fs::write(dir.path("good"), good).expect("a file");
    dir.ok("volume import-diff good p.img#v");
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
}

#[test]
fn ceph_merges_what_we_write_and_we_take_what_it_wrote() {
    let Some(rbd) = sheave_testkit::require("rbd") else { return };
    let Some(dir) = pools() else { return };
    dir.ok("volume export-diff p.img#a a.diff --format v1");
    dir.ok("volume export-diff p.img#b b.diff --from a --format v1");
    dir.ok("volume export-diff p.img#c c.diff --from b --format v1");
    dir.ok("volume export-diff p.img#d d.diff --from c --format v1");
    for (one, other, merged) in
        [("a.diff", "b.diff", "ab"), ("ab", "c.diff", "ac"), ("ac", "d.diff", "ad"), ("b.diff", "c.diff", "bc")]
    {
        let args = ["merge-diff", one, other, merged, "--no-progress"];
        let said = Command::new(&rbd).args(args).current_dir(dir.path("")).output().expect("rbd runs");
        assert!(said.status.success(), "{merged}: {}", String::from_utf8_lossy(&said.stderr));
    }
    for (name, merged, to) in [("x", "ab", "b"), ("y", "ac", "c"), ("z", "ad", "d")] {
        let done = dir.ok(&format!("volume import-diff {merged} q.img#{name} --as {name}-{to} --json --progress none"));
        assert_eq!((&done.json()["from"], &done.json()["format"]), (&serde_json::Value::Null, &"v1".into()));
        assert!(content(&dir, &format!("q.img#{name}")) == content(&dir, &format!("p.img#{to}")), "{merged}");
    }
    // A merged diff can be imported into a copy that has the first snapshot of the merged range.
    dir.ok("volume import-diff a.diff q.img#w");
    dir.ok("volume import-diff bc q.img#w --as w-c");
    assert!(content(&dir, "q.img#w") == content(&dir, "p.img#c"));
}

#[test]
fn a_diff_that_does_not_lead_to_what_it_names_is_refused() {
    let Some(dir) = pools() else { return };
    let identity =
        |layout| Identity::default().size(4 * MIB).written(8192).layout(layout).created(7).pool([1; 16]).volume(1);
    let header = Header { to_identity: Some(identity(1)), ..names(None, "x", 4 * MIB) };
    fs::write(dir.path("wrong.diff"), diff(Version::V2, &header, &[(0, 8192, Some(1))])).expect("a diff");
    let before = listed(&dir, "q.img");
    assert_refused(&dir, "volume import-diff wrong.diff q.img#copy", &["does not lead to the snapshot", "as it was"]);
    assert_eq!(listed(&dir, "q.img"), before, "and leaves nothing");
}
