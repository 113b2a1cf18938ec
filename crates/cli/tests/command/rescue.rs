//! Damaged pools: every volume whose map is intact can be exported, unreadable bytes are listed exactly, and nothing is
//! written to the pool. Pools that another process has open: commands wait for that process, or name it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use ::sheave_base::rng::Rng;

use crate::sheave::{Dir, Said, no_io_uring};

const BLOCK: usize = 4096;

/// Kinds of metadata blocks, see `docs/reference/on-disk-format.md`.
const SUPERBLOCK: u8 = 1;
const JOURNAL: u8 = 2;
const LEAF: u8 = 3;
const INDEX: u8 = 4;
const TABLE: u8 = 5;
const LABEL: u8 = 6;
const SUMS: u8 = 7;

/// Makes a pool with the members `a.img` and `b.img` and two volumes of 3 MiB, and closes it.
fn pool(more: &str) -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    dir.ok(&format!("pool create a.img --size 16M {more}"));
    dir.ok("pool grow a.img --add b.img --size 16M");
    for (seed, name) in [(1, "v"), (2, "w")] {
        let mut bytes = vec![0; 3 << 20];
        Rng::new(seed).fill(&mut bytes);
        fs::write(dir.path(name), bytes).expect("an image");
        dir.ok(&format!("volume import {name} a.img+b.img#{name} --progress none"));
    }
    Some(dir)
}

/// Returns the places of all metadata blocks of one kind: the member's file, and the offset in it.
fn blocks(dir: &Dir, kind: u8) -> Vec<(&'static str, usize)> {
    let mut found = vec![];
    for member in ["a.img", "b.img"] {
        let bytes = fs::read(dir.path(member)).expect("a member");
        let is_it = |at: &usize| bytes[*at..].starts_with(b"SHVE") && bytes[at + 4..at + 6] == [kind, 0];
        found.extend((0..bytes.len()).step_by(BLOCK).filter(is_it).map(|at| (member, at)));
    }
    found
}

/// Exports a volume, and asserts that the export has not changed the pool.
fn rescue(dir: &Dir, name: &str, how: &str) -> Said {
    let members = || ["a.img", "b.img"].map(|member| fs::read(dir.path(member)).expect("a member"));
    let before = members();
    let said = dir.run(&format!("volume export a.img+b.img#{name} out --yes --json --progress none {how}"));
    assert!(members() == before, "{name} {how}: something was written");
    said
}

#[test]
fn every_volume_with_a_whole_map_comes_out_whatever_else_is_damaged() {
    let Some(dir) = pool("") else { return };
    let whole = ["a.img", "b.img"].map(|member| (member, fs::read(dir.path(member)).expect("a member")));
    let mut counts = [0; 3];
    for kind in [SUPERBLOCK, JOURNAL, LEAF, INDEX, LABEL] {
        let found = blocks(&dir, kind);
        assert!(!found.is_empty(), "kind {kind}");
        for (member, at) in found {
            let mut bytes = whole.iter().find(|(name, _)| *name == member).expect("known").1.clone();
            bytes[at + 90] ^= 4;
            fs::write(dir.path(member), bytes).expect("damaged");
            let mut came = 0;
            for name in ["v", "w"] {
                let said = rescue(&dir, name, "--rescue");
                if said.code == 0 {
                    assert!(fs::read(dir.path("out")).expect("exported") == fs::read(dir.path(name)).expect("there"));
                    assert_eq!(said.json()["bad"], serde_json::json!([]), "{}", said.out);
                    came += 1;
                } else {
                    assert!(said.err.contains(&format!("the map of volume '{name}' is damaged")), "{}", said.err);
                }
            }
            let of_a_map = kind == LEAF || kind == INDEX;
            assert!(came == 2 || of_a_map && came == 1, "kind {kind}, {member} at {at}: {came} came out");
            counts[came] += 1;
            if kind == LABEL {
                let said = dir.run("volume export a.img+b.img#v out --yes");
                assert!(said.code == 1 && said.err.contains("the label of member 1"), "{}", said.err);
                let unsure = rescue(&dir, "v", "--rescue").json()["unsure"].to_string();
                assert!(unsure.contains("the label of member 1") && unsure.contains("right device"), "{unsure}");
                let list = dir.ok("volume list a.img+b.img --rescue");
                assert!(list.out.contains("\nw ") && list.err.contains("warning: "), "{}{}", list.out, list.err);
            }
        }
        for (member, bytes) in &whole {
            fs::write(dir.path(member), bytes).expect("mended");
        }
    }
    assert!(counts[1] >= 4 && counts[2] >= 4, "{counts:?}: some maps were damaged, and others not");
}

#[test]
fn of_a_damaged_table_of_volumes_the_other_pages_come_out_and_what_is_missing_is_told() {
    let Some(dir) = pool("") else { return };
    // The long names fill the table of volumes, so that `v` and `z` are in different pages.
    for number in 0..26 {
        dir.ok(&format!("volume create a.img+b.img#{number:0>240} --size 1M"));
    }
    fs::copy(dir.path("w"), dir.path("z")).expect("copied");
    dir.ok("volume import z a.img+b.img#z --progress none");
    let mut found = vec![];
    // The pool has also older pages to which no superblock refers. Damage to those does no harm.
    for (member, at) in blocks(&dir, TABLE) {
        let whole = fs::read(dir.path(member)).expect("a member");
        let mut bytes = whole.clone();
        bytes[at + 90] ^= 4;
        fs::write(dir.path(member), bytes).expect("damaged");
        let plain = dir.run("volume list a.img+b.img");
        let is_used = plain.code != 0;
        let fix = plain.err.contains("a page of the volume table at byte") && plain.err.contains("--rescue");
        assert_eq!(fix, is_used, "{}", plain.err);
        let listed = dir.ok("volume list a.img+b.img --rescue");
        let came = ["v", "z"].map(|name| {
            let said = rescue(&dir, name, "--rescue");
            assert_eq!(
                said.code == 0,
                listed.out.contains(&format!("\n{name} ")),
                "{name}: {}{}",
                said.err,
                listed.out
            );
            if said.code == 0 {
                assert!(fs::read(dir.path("out")).expect("exported") == fs::read(dir.path(name)).expect("there"));
                let unsure = said.json()["unsure"].to_string();
                assert_eq!(
                    unsure.contains(" of the 29 volumes of the last checkpoint are missing"),
                    is_used,
                    "{unsure}"
                );
            } else {
                assert!(said.err.contains(" of the 29 volumes of the last checkpoint are missing"), "{}", said.err);
            }
            said.code == 0
        });
        assert_eq!(listed.err.contains(", with numbers from "), is_used, "{}", listed.err);
        if is_used {
            found.push(came);
        }
        fs::write(dir.path(member), whole).expect("mended");
    }
    assert!(found.contains(&[true, false]) && found.contains(&[false, true]), "{found:?}");
}

#[test]
fn with_a_damaged_page_of_checksums_everything_comes_out_unchecked() {
    let Some(dir) = pool("--checksum crc32c") else { return };
    let found = blocks(&dir, SUMS);
    assert!(!found.is_empty());
    for (member, at) in found {
        let whole = fs::read(dir.path(member)).expect("a member");
        let mut bytes = whole.clone();
        bytes[at + 90] ^= 4;
        fs::write(dir.path(member), bytes).expect("damaged");
        let said = rescue(&dir, "v", "");
        // The pool has also older pages to which no superblock refers. Damage to those does no harm.
        if said.code != 0 {
            assert!(said.err.contains("a page of checksums at byte"), "{}", said.err);
        }
        for name in ["v", "w"] {
            let rescued = rescue(&dir, name, "--rescue");
            assert_eq!(rescued.code, 0, "{}", rescued.err);
            assert!(fs::read(dir.path("out")).expect("exported") == fs::read(dir.path(name)).expect("there"));
            let unsure = rescued.json()["unsure"].to_string();
            assert_eq!(
                unsure.contains("a page of checksums") && unsure.contains("unchecked"),
                said.code != 0,
                "{unsure}"
            );
        }
        fs::write(dir.path(member), whole).expect("mended");
        if said.code != 0 {
            return;
        }
    }
    panic!("one of them is in use");
}

/// Makes a pool and kills the process that writes to it, so that some commits are only in the journal.
fn crashed() -> Option<Dir> {
    let dir = pool("")?;
    // A checkpoint just before the kill leaves nothing to replay. In that case there is another round.
    for round in 0..7 {
        // After a snapshot each overwrite is written to a new place, and that change goes into the journal.
        dir.ok(&format!("volume snapshot a.img+b.img#v s{round}"));
        let mut command =
            dir.command("bench vol:a.img+b.img#v --rw randwrite --bs 64K --dsync --overwrite --runtime 60s");
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        let begun = Instant::now();
        let journal = |dir: &Dir| fs::read(dir.path("a.img")).expect("a member")[8192..8192 + 64 * BLOCK].to_vec();
        let before = journal(&dir);
        while journal(&dir) == before && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(10 * round));
        child.kill().expect("killed");
        child.wait().expect("it ended");
        if dir.ok("pool info a.img+b.img --json").json()["recovered"] == true {
            return Some(dir);
        }
    }
    panic!("seven kills left nothing in the journal");
}

#[test]
fn an_unclean_journal_is_replayed_in_memory_and_its_damage_passed_over() {
    // If the journal has only one commit, damage to it looks like the end of the journal. In that case there is another
    // round.
    for _ in 0..10 {
        let Some(dir) = crashed() else { return };
        if replayed_and_passed_over(&dir) > 0 {
            return;
        }
    }
    panic!("damage before later commits is told");
}

/// Damages blocks of the journal one at a time. Returns the number of blocks whose damage was reported.
fn replayed_and_passed_over(dir: &Dir) -> usize {
    assert!(
        dir.ok("pool info a.img+b.img --json").json()["recovered"] == true,
        "nobody has written what was recovered"
    );
    let said = rescue(dir, "v", "");
    assert_eq!(said.code, 0, "{}", said.err);
    let replayed = fs::read(dir.path("out")).expect("exported");
    assert_eq!(rescue(dir, "w", "").code, 0);
    assert!(fs::read(dir.path("out")).expect("exported") == fs::read(dir.path("w")).expect("there"));
    // Each round damages one block of the journal.
    let whole = fs::read(dir.path("a.img")).expect("a member");
    let mut refused = 0;
    let journal = blocks(dir, JOURNAL);
    // Each block takes two commands, so at most eight blocks are damaged. The first block is always included.
    for (member, at) in journal.iter().copied().step_by(journal.len().div_ceil(8)) {
        let mut bytes = whole.clone();
        bytes[at + 90] ^= 4;
        fs::write(dir.path(member), bytes).expect("damaged");
        let plain = rescue(dir, "w", "");
        let rescued = rescue(dir, "w", "--rescue");
        assert_eq!(rescued.code, 0, "{}", rescued.err);
        assert!(fs::read(dir.path("out")).expect("exported") == fs::read(dir.path("w")).expect("there"));
        if plain.code != 0 {
            assert!(plain.err.contains("the journal at byte 8192 is damaged"), "{}", plain.err);
            assert!(rescued.json()["unsure"].to_string().contains("is missing"), "{}", rescued.out);
            refused += 1;
        }
    }
    fs::write(dir.path("a.img"), whole).expect("mended");
    // A recovery that writes gives the same content as the one in memory.
    dir.ok("volume create a.img+b.img#x --size 1M");
    assert!(dir.ok("pool info a.img+b.img --json").json()["recovered"] == false);
    assert_eq!(rescue(dir, "v", "").code, 0);
    assert!(fs::read(dir.path("out")).expect("exported") == replayed);
    refused
}

#[test]
fn bad_blocks_are_listed_to_the_byte() {
    let Some(dir) = pool("--checksum crc32c") else { return };
    let map: serde_json::Value = serde_json::from_str(&dir.ok("volume map a.img+b.img#v --json").out).expect("JSON");
    let first = &map[0];
    assert_eq!((&first["start"], first["data"].as_bool()), (&0.into(), Some(true)), "{map}");
    let on_pool = first["offset"].as_u64().expect("there") as usize;
    let mut bytes = fs::read(dir.path("a.img")).expect("a member");
    for (block, byte) in [(3, 17), (4, 4095), (9, 0)] {
        bytes[on_pool + block * BLOCK + byte] ^= 1;
    }
    fs::write(dir.path("a.img"), bytes).expect("rotten");
    let said = rescue(&dir, "v", "");
    assert!(said.code == 1 && said.err.contains("EILSEQ"), "{}", said.err);
    let said = rescue(&dir, "v", "--rescue");
    assert_eq!(said.code, 1, "not all of it came out: {}", said.err);
    let wanted = serde_json::json!([{"offset": 12288, "length": 8192}, {"offset": 36864, "length": 4096}]);
    assert_eq!((&said.json()["bad"], &said.json()["bad_bytes"]), (&wanted, &12288.into()), "{}", said.out);
    assert_eq!(said.json()["bad_ranges"], 2, "{}", said.out);
    let mut content = fs::read(dir.path("v")).expect("there");
    for at in [3, 4, 9] {
        content[at * BLOCK..][..BLOCK].fill(0);
    }
    assert!(fs::read(dir.path("out")).expect("exported") == content, "all else came out");
    let said = dir.run("volume export a.img+b.img#v out --yes --rescue=skip");
    assert!(said.code == 1 && said.out.contains("bad: 8192 bytes at byte 12288"), "{}", said.out);
    // A skipped range keeps the old content of a block device. In a new file it reads as zeroes.
    fs::write(dir.path("disk"), vec![0x77; content.len()]).expect("a disk");
    let device = dir.shell("losetup --find --show disk").out;
    if device.starts_with("/dev/") {
        let line = format!("volume export a.img+b.img#v {} --yes --rescue=skip", device.trim());
        let said = dir.run(&line);
        dir.shell(&format!("sync {0}; losetup --detach {0}", device.trim()));
        assert_eq!(said.code, 1, "{}", said.err);
        for at in [3, 4, 9] {
            content[at * BLOCK..][..BLOCK].fill(0x77);
        }
        assert!(fs::read(dir.path("disk")).expect("the disk") == content, "skipped is not written");
    } else {
        sheave_testkit::skip("no loop device can be set up here: run as root");
    }
    let said = dir.run("volume export a.img+b.img#v - --rescue=skip");
    assert!(said.code == 2 && said.err.contains("fix: --rescue=zero"), "{}", said.err);
}

/// Starts a process that has the pool open until its stdin ends.
fn holder(dir: &Dir) -> (std::process::Child, std::process::ChildStdin) {
    let mut command = dir.command("volume import - a.img+b.img#held --size 4M --progress none");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A pipe holds less than this: when the write returns, the import has begun.
    stdin.write_all(&vec![1; 1 << 20]).expect("written");
    (child, stdin)
}

#[test]
fn a_command_waits_for_a_pool_that_another_process_has() {
    let Some(dir) = pool("") else { return };
    let (mut child, stdin) = holder(&dir);
    // Reading commands are refused too, and the error names the process: a pool that is being written has no consistent
    // state to show.
    for line in ["volume list a.img+b.img", "volume create a.img+b.img#x --size 1M", "pool check a.img+b.img"] {
        let said = dir.run(line);
        let holder = format!("{}", child.id());
        assert!(said.code == 1 && said.err.contains("is in use") && said.err.contains(&holder), "{line}: {}", said.err);
    }
    let said = dir.run("volume create a.img+b.img#x --size 1M --wait=100ms");
    assert!(said.code == 1 && said.err.contains(", also after "), "{}", said.err);
    let lines = ["volume list a.img+b.img --wait=300s --json", "pool --wait check a.img+b.img"];
    let waiting = lines.map(|line| {
        let mut command = dir.command(line);
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        // The first line says that it waits.
        let mut first = String::new();
        BufReader::new(child.stderr.as_mut().expect("piped")).read_line(&mut first).expect("read");
        (child, first)
    });
    drop(stdin);
    child.wait().expect("it ended");
    for ((child, first), words) in waiting.into_iter().zip(["waiting, 300s at most: ", "waiting: "]) {
        assert!(first.contains(words) && first.contains("is in use"), "{first}");
        let said = Said::of(child.wait_with_output().expect("it ended"));
        assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    }
    dir.ok("volume create a.img+b.img#x --size 1M --wait");
}
