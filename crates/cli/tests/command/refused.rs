//! More than two hundred command lines that are invalid or impossible. Each has the right exit code, prints the reason
//! on stderr, prints nothing on stdout unless it has `--json`, and changes nothing. The list is `refused/table.txt`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sheave::{Dir, Said, no_io_uring};

const TABLE: &str = include_str!("refused/table.txt");

/// Returns the rows of the table: exit code, text that stderr must contain, command line.
fn rows() -> Vec<(i32, &'static str, &'static str)> {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut parts = line.splitn(3, " | ");
        let mut next = || parts.next().unwrap_or_else(|| panic!("`{line}` is no row of three"));
        (next().parse().expect("an exit code"), next(), next())
    });
    rows.collect()
}

/// Length of a file, and seconds and nanoseconds of its last change.
type Look = (u64, i64, i64);

/// Collects every file below a directory.
fn files(dir: &Path, found: &mut BTreeMap<String, Look>) {
    for entry in fs::read_dir(dir).expect("a directory").flatten() {
        let meta = entry.metadata().expect("it is there");
        found.insert(entry.path().display().to_string(), (meta.len(), meta.ctime(), meta.ctime_nsec()));
        if meta.is_dir() {
            files(&entry.path(), found);
        }
    }
}

fn snapshot(dir: &Dir) -> BTreeMap<String, Look> {
    let mut found = BTreeMap::new();
    files(&dir.path(""), &mut found);
    found
}

/// Returns the content of the pool as users see it. Opening a pool for writing changes its file, but not this content.
fn content(dir: &Dir) -> (String, Vec<u8>, String) {
    let list = dir.ok("volume list p.img --json").out;
    let exported = dir.shell("$SHEAVE volume export 'p.img#v' - 2> /dev/null | cksum").out.into_bytes();
    let info = dir.ok("pool info p.img --json").json();
    (list, exported, format!("{} {} {}", info["low_water"], info["size_bytes"], info["recovered"]))
}

fn prepare() -> Dir {
    let dir = Dir::new();
    fs::write(dir.path("image"), (0..4_u64 << 20).map(|at| (at * at / 7) as u8).collect::<Vec<_>>()).expect("written");
    fs::write(dir.path("raw"), vec![0x5a; 1 << 20]).expect("written");
    fs::write(dir.path("text"), "a file of somebody\n".repeat(40)).expect("written");
    fs::write(dir.path("small"), vec![1; 4096]).expect("written");
    fs::write(dir.path("odd"), vec![1; 4097]).expect("written");
    fs::write(dir.path("none"), b"").expect("written");
    fs::create_dir(dir.path("dir")).expect("made");
    for line in [
        "pool create p.img --size 64M",
        "volume import raw p.img#v --progress none",
        "volume snapshot p.img#v s",
        "volume create p.img#empty --size 8M",
        "volume create p.img#small --size 1M",
    ] {
        dir.ok(line);
    }
    fs::remove_file(dir.path("raw")).expect("removed");
    dir
}

#[test]
fn every_refusal_has_its_code_says_why_and_changes_nothing() {
    if no_io_uring() {
        return;
    }
    let dir = prepare();
    let (mut before, held) = (snapshot(&dir), content(&dir));
    let pool = dir.path("p.img").display().to_string();
    let (mut wrong, rows) = (Vec::new(), rows());
    assert!(rows.len() >= 200, "{} rows", rows.len());
    for (code, word, line) in rows {
        let said: Said = dir.run(line);
        let mut complain = |what: &str| wrong.push(format!("{line}: {what}\n  {} {}", said.code, said.err.trim_end()));
        if said.code != code {
            complain(&format!("exit code {}, expected {code}", said.code));
        }
        if !said.err.contains(word) {
            complain(&format!("stderr lacks `{word}`"));
        }
        let is_told = !line.contains("--json") || said.json()["error"]["exit_code"] == code;
        if said.out.is_empty() == line.contains("--json") || !is_told || said.err.contains("panicked") {
            complain(&format!("stdout `{}`, or a panic", said.out));
        }
        // The help page for a command without arguments begins with the description of the command.
        let opens = ["sheave: ", "error: "].iter().any(|start| said.err.starts_with(start));
        if !opens && !said.err.contains("Usage: ") {
            complain("stderr does not begin with who speaks");
        }
        // Errors of drivers about a spec or a path contain advice on what would be right.
        let advises = ["fix: ", ". ", "; ", ": give ", ": use ", ": write ", ": add ", ": the limit is "];
        if said.err.starts_with("sheave: ") && !advises.iter().any(|words| said.err.contains(words)) {
            complain("no fix");
        }
        let mut after = snapshot(&dir);
        if after.get(&pool) != before.get(&pool) {
            if content(&dir) != held {
                complain("the pool has another content");
            }
            after = snapshot(&dir);
            before.insert(pool.clone(), after.get(&pool).copied().unwrap_or_default());
        }
        if after != before {
            let changed: Vec<_> = after.iter().filter(|(name, look)| before.get(*name) != Some(look)).collect();
            complain(&format!("files changed: {changed:?}"));
            before = after;
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}
