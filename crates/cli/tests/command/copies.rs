//! Import and export: the content is kept byte for byte, zeroes take no space, and an interrupted copy leaves the pool
//! intact.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::sheave::{Dir, Said, no_io_uring};
use ::sheave_base::rng::Rng;
use rustix::process::Signal;

/// Writes an image of 24 MiB and 1234 bytes: several kinds of data between holes, and some zeroes that are written.
fn image(dir: &Dir, name: &str) -> Vec<u8> {
    let len = (24 << 20) + 1234;
    let mut bytes = vec![0; len];
    let mut rng = Rng::new(1);
    for (start, end) in [(0, 4096), (1 << 20, (3 << 20) + 77), (10 << 20, 10 << 20 | 1), (23 << 20, len)] {
        rng.fill(&mut bytes[start..end]);
    }
    let file = fs::File::create(dir.path(name)).expect("a file");
    file.set_len(len as u64).expect("grown");
    for (number, piece) in bytes.chunks(1 << 16).enumerate() {
        // Zeroes in the first MiB are written, all others are left as holes.
        if number < 16 || piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(piece, (number << 16) as u64).expect("written");
        }
    }
    bytes
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}

fn pool() -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    Some(dir)
}

#[test]
fn what_goes_in_comes_out_and_zeroes_take_no_space() {
    let Some(dir) = pool() else { return };
    // Reads return the written data (V1), also after a flush (V3) and a close of the pool (V13). Places that were never
    // written read as zeroes (V17).
    let bytes = image(&dir, "raw");
    let done = dir.ok("volume import raw p.img#v --json --progress none").json();
    assert_eq!((&done["done"], &done["image_bytes"]), (&"imported".into(), &bytes.len().into()), "{done}");
    let blocks = bytes.chunks(4096).filter(|block| block.iter().any(|byte| *byte != 0)).count() as u64;
    // The last block ends behind the image. The bytes behind the image are written, but do not count as copied.
    let beyond = (4096 - bytes.len() as u64 % 4096) % 4096;
    assert_eq!(done["copied_bytes"], blocks * 4096 - beyond, "{done}");
    let volume = &done["volume"];
    assert_eq!((&volume["name"], &volume["written_bytes"]), (&"v".into(), &(blocks * 4096).into()), "{volume}");
    assert_eq!(volume["size_bytes"], padded(bytes.clone()).len(), "{volume}");
    let out = dir.ok("volume export p.img#v out --json --progress none").json();
    assert_eq!((&out["done"], &out["copied_bytes"]), (&"exported".into(), &(blocks * 4096).into()), "{out}");
    assert!(fs::read(dir.path("out")).expect("exported") == padded(bytes.clone()));
    let meta = fs::metadata(dir.path("out")).expect("exported");
    assert!(meta.blocks() * 512 < meta.len() / 2, "{} blocks of 512: holes stay holes", meta.blocks());
    // Copies through pipes keep the content too. An export to a pipe has to write the zeroes.
    let piped = dir.shell("cat raw | \"$SHEAVE\" volume import - p.img#piped --progress none");
    assert_eq!(piped.code, 0, "{}", piped.err);
    let out = dir.shell("\"$SHEAVE\" volume export p.img#piped - --progress none | cat > out2");
    assert_eq!(out.code, 0, "{}", out.err);
    assert!(fs::read(dir.path("out2")).expect("exported") == padded(bytes));
    let info = dir.ok("volume info p.img#piped --json").json();
    assert_eq!(info["written_bytes"], blocks * 4096, "{info}");
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
}

#[test]
fn progress_for_programs_is_json_lines_on_stderr() {
    let Some(dir) = pool() else { return };
    fs::write(dir.path("raw"), vec![1; 1 << 20]).expect("an image");
    let said = dir.shell("(cat raw; sleep 5.3; cat raw) | \"$SHEAVE\" volume import - p.img#v --json");
    assert_eq!(said.json()["image_bytes"], 2 << 20, "{}", said.err);
    let line: serde_json::Value = serde_json::from_str(said.err.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&line["phase"], &line["total_bytes"]), (&"import".into(), &serde_json::Value::Null), "{line}");
    assert!(line["bytes"].as_u64() > Some(1 << 20) && line["bytes_per_sec"].as_f64() > Some(0.0), "{line}");
}

#[test]
fn an_import_over_data_leaves_none_of_it() {
    let Some(dir) = pool() else { return };
    // Discarded ranges read as zeroes (V4).
    fs::write(dir.path("old"), vec![0xee; 25 << 20]).expect("an image");
    dir.ok("volume import old p.img#v");
    let bytes = image(&dir, "raw");
    dir.ok("volume import raw p.img#v --yes");
    dir.ok("volume export p.img#v out");
    let mut wanted = bytes;
    wanted.resize(25 << 20, 0);
    assert!(fs::read(dir.path("out")).expect("exported") == wanted);
    let info = dir.ok("volume info p.img#v --json").json();
    assert!(info["allocated_bytes"].as_u64() < Some(5 << 20), "the space came back: {info}");
}

#[test]
fn sizes_that_do_not_fit_are_told() {
    let Some(dir) = pool() else { return };
    fs::write(dir.path("raw"), vec![1; 1 << 20]).expect("an image");
    let refused = |line: &str, code: i32, words: &[&str]| {
        let said = dir.run(line);
        assert_eq!(said.code, code, "{line}: {}{}", said.out, said.err);
        words.iter().for_each(|word| assert!(said.err.contains(word), "{line}: no `{word}` in\n{}", said.err));
    };
    refused("volume import raw p.img#v --size 512k", 2, &["less than the 1048576 bytes", "fix: "]);
    refused("volume import none p.img#v", 1, &["cannot read none", "fix: "]);
    dir.ok("volume import raw p.img#big --size 1G");
    dir.ok("volume create p.img#small --size 4k");
    refused("volume import raw p.img#small", 1, &["1048576 bytes", "sheave volume resize 'p.img#small' 1048576"]);
    refused("volume import raw p.img#small --size 1M", 2, &["--size is for a new volume"]);
    let said = dir.shell("\"$SHEAVE\" volume import - p.img#v --size 64k < raw");
    assert_eq!(said.code, 1);
    assert!(said.err.contains("longer than the volume"), "{}", said.err);
    refused("volume export p.img#big out/none", 1, &["cannot write", "fix: "]);
    fs::write(dir.path("there"), "x").expect("a file");
    refused("volume export p.img#big there", 2, &["there exists", "--yes"]);
    assert_eq!(fs::read(dir.path("there")).expect("kept"), b"x");
    refused("volume export p.img#big p.img --yes", 1, &["in use", "fix: "]);
    refused("volume export p.img#big - --json", 2, &["both want stdout"]);
    let list = dir.ok("volume list p.img --json").json();
    assert_eq!(list["volumes"].as_array().map(Vec::len), Some(2), "what failed left nothing: {list}");
}

#[test]
fn a_full_pool_ends_an_import_and_stays_whole() {
    let Some(dir) = pool() else { return };
    // In a full pool a write fails, and earlier data is intact (V15).
    fs::write(dir.path("raw"), vec![1; 8 << 20]).expect("an image");
    dir.ok("volume import raw p.img#first");
    fs::write(dir.path("large"), vec![2; 80 << 20]).expect("an image");
    let said = dir.run("volume import large p.img#second --progress none");
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    assert!(said.err.contains("ENOSPC") || said.err.contains("No space"), "{}", said.err);
    assert!(said.err.contains("sheave pool grow"), "{}", said.err);
    let list = dir.ok("volume list p.img --json").json();
    assert_eq!(list["volumes"].as_array().map(Vec::len), Some(1), "{list}");
    dir.ok("volume export p.img#first out");
    assert!(fs::read(dir.path("out")).expect("exported") == vec![1; 8 << 20]);
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
}

/// Starts an import from a pipe, writes 1 MiB into the pipe and keeps it open.
fn waiting_import(dir: &Dir) -> (std::process::Child, std::process::ChildStdin) {
    let mut child = dir
        .command("volume import - p.img#v --progress none")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(&vec![3; 3 << 20]).expect("it reads");
    std::thread::sleep(Duration::from_millis(400));
    (child, stdin)
}

#[test]
fn ctrl_c_sigterm_and_a_lost_terminal_end_an_import_without_a_trace() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        an_import_ends_without_a_trace(signal);
    }
}

fn an_import_ends_without_a_trace(signal: Signal) {
    let Some(dir) = pool() else { return };
    let (child, stdin) = waiting_import(&dir);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, signal).expect("it is there");
    let since = Instant::now();
    let said = Said::of(child.wait_with_output().expect("it ends"));
    drop(stdin);
    assert!(since.elapsed() < Duration::from_secs(5), "it took {:?}", since.elapsed());
    assert_eq!(said.code, 130, "{}{}", said.out, said.err);
    assert!(said.err.contains("p.img#v was not made"), "{}", said.err);
    let list = dir.ok("volume list p.img --json").json();
    assert_eq!(list["volumes"].as_array().map(Vec::len), Some(0), "{list}");
    let info = dir.ok("pool info p.img --json").json();
    assert_eq!((&info["data_bytes"], &info["recovered"]), (&0.into(), &false.into()), "{info}");
}

#[test]
fn a_killed_import_leaves_a_pool_that_opens() {
    let Some(dir) = pool() else { return };
    // The end of a process releases its lock (V20), and the next open recovers the pool (V18).
    fs::write(dir.path("raw"), vec![1; 1 << 20]).expect("an image");
    dir.ok("volume import raw p.img#first");
    let (mut child, stdin) = waiting_import(&dir);
    let busy = dir.run("pool info p.img");
    assert_eq!(busy.code, 1, "{}", busy.out);
    assert!(busy.err.contains(&format!("process {} (sheave)", child.id())), "{}", busy.err);
    child.kill().expect("it is there");
    child.wait().expect("it ended");
    drop(stdin);
    dir.ok("volume export p.img#first out");
    assert!(fs::read(dir.path("out")).expect("exported") == vec![1; 1 << 20]);
    let names = || {
        let list = dir.ok("volume list p.img --json").json();
        let of = |volume: &serde_json::Value| (volume["name"].to_string(), volume["interim"].to_string());
        list["volumes"].as_array().expect("a list").iter().map(of).collect::<Vec<_>>()
    };
    let row = |name: &str, interim: &str| (format!("\"{name}\""), interim.to_owned());
    assert_eq!(names(), [row("first", "null"), row("v.importing", "\"import\"")], "who looks deletes nothing");
    // A user's own volume may have such a name. It is not marked as interim, so nothing deletes it.
    dir.ok("volume create p.img#w.importing --size 1M");
    assert_eq!(names(), [row("first", "null"), row("w.importing", "null")]);
    dir.ok("volume import raw p.img#v");
    dir.ok("volume import raw p.img#w");
    let all = ["first", "v", "w", "w.importing"].map(|name| row(name, "null"));
    assert_eq!(names(), all);
    assert!(dir.ok("pool check p.img").out.ends_with("clean\n"));
}
