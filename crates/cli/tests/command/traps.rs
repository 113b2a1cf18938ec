//! Traps for new operators: failures that looked like successes, and senseless commands that were carried out.

use std::fs;
use std::process::Stdio;

use crate::sheave::{Dir, Said, no_io_uring, run};

fn pool() -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    Some(dir)
}

#[track_caller]
fn refused(said: &Said, code: i32, words: &[&str]) {
    assert_eq!(said.code, code, "{}{}", said.out, said.err);
    for word in words {
        assert!(said.err.contains(word), "no `{word}` in\n{}", said.err);
    }
    assert!(!said.err.contains("panicked"), "{}", said.err);
}

#[test]
fn a_result_that_a_full_disk_does_not_take_is_a_failure() {
    let Some(dir) = pool() else { return };
    for line in [
        "pool info p.img",
        "pool info p.img --json",
        "volume list p.img --json",
        "volume create p.img#full --size 1M",
        "bench null:size=1M --ios 10",
        "doctor",
        "doctor --json",
        "--help",
        "bench --help",
        "--version",
    ] {
        let full = fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let said = Said::of(dir.command(line).stdout(full).stderr(Stdio::piped()).output().expect("the binary runs"));
        refused(&said, 1, &["stdout", "No space left", "fix: "]);
    }
    // The command was carried out although its output could not be written. A reader that closes the pipe is no
    // failure.
    assert!(dir.ok("volume list p.img").out.contains("full"));
    let said = dir.shell("$SHEAVE --help | true; exec $SHEAVE pool info p.img | head -c 1 > /dev/null");
    assert_eq!((said.code, said.err.as_str()), (0, ""));
    let said = dir.shell("$SHEAVE pool info nowhere.img 2> /dev/full");
    refused(&said, 1, &[]);
}

#[test]
fn an_empty_image_is_no_import() {
    let Some(dir) = pool() else { return };
    refused(&dir.run("volume import - p.img#v"), 1, &["stdin is empty", "fix: "]);
    refused(&dir.shell("false | $SHEAVE volume import - p.img#v"), 1, &["stdin is empty"]);
    fs::write(dir.path("empty"), b"").expect("written");
    refused(&dir.run("volume import empty p.img#v"), 1, &["empty is empty"]);
    assert!(dir.ok("volume list p.img --json").json()["volumes"].as_array().is_some_and(Vec::is_empty));
    // An empty image does not replace the data of a volume either.
    fs::write(dir.path("raw"), vec![7; 1 << 20]).expect("written");
    dir.ok("volume import raw p.img#v --progress none");
    refused(&dir.run("volume import - p.img#v --yes"), 1, &["stdin is empty"]);
    dir.ok("volume export p.img#v out --progress none");
    assert!(fs::read(dir.path("out")).expect("exported") == vec![7; 1 << 20]);
}

#[test]
fn a_pool_is_not_imported_into_itself() {
    let Some(dir) = pool() else { return };
    refused(&dir.run("volume import p.img p.img#self"), 1, &["p.img is in use", "even of this one"]);
    refused(&dir.shell("$SHEAVE volume import - 'p.img#self' < p.img"), 1, &["stdin is in use"]);
    std::os::unix::fs::symlink(dir.path("p.img"), dir.path("link")).expect("linked");
    refused(&dir.run("volume import link p.img#self"), 1, &["link is in use"]);
    assert!(dir.ok("volume list p.img --json").json()["volumes"].as_array().is_some_and(Vec::is_empty));
    dir.ok("pool create q.img --size 128M");
    dir.ok("volume import p.img q.img#copy --progress none");
}

#[test]
fn a_mark_that_is_all_of_the_pool_is_refused() {
    let Some(dir) = pool() else { return };
    refused(&dir.run("pool set p.img --low-water 1T"), 2, &["1 TiB", "64 MiB", "fix: "]);
    refused(&dir.run("pool set p.img --low-water 64M"), 2, &["64 MiB"]);
    let info = dir.ok("pool info p.img --json").json();
    assert_eq!((&info["low_water"], &info["recovered"]), (&"10%".into(), &false.into()), "nothing was changed: {info}");
    refused(&dir.run("pool create q.img --size 64M --low-water 65M"), 2, &["65 MiB"]);
    assert!(!dir.path("q.img").exists());
    dir.ok("pool set p.img --low-water 63M");
}

#[test]
fn a_file_that_is_no_pool_is_called_that() {
    let dir = Dir::new();
    fs::write(dir.path("text"), "a file of somebody\n".repeat(40)).expect("written");
    for line in
        ["pool info text", "pool check text", "volume list text", "volume create text#v --size 1M", "pool scrub text"]
    {
        let said = dir.run(line);
        refused(&said, 1, &["text is not the file of a pool", "fix: check the path"]);
        assert!(!said.err.contains("grow") && !said.err.contains("larger"), "{}", said.err);
    }
    assert_eq!(fs::metadata(dir.path("text")).expect("there").len(), 760);
}

#[test]
fn sizes_have_fractions() {
    let Some(dir) = pool() else { return };
    dir.ok("volume create p.img#v --size 1.5G");
    assert_eq!(dir.ok("volume info p.img#v --json").json()["size_bytes"], 3_u64 << 29);
    assert_eq!(run("bench null:size=1.5G --ios 10 --json --progress none").json()["ios"], 10);
    refused(&dir.run("volume create p.img#w --size 0.1G"), 2, &["whole number of bytes"]);
}

#[test]
fn failed_ios_are_no_speed() {
    let report = run("bench fault:error=1,over=null:size=1M --ios 1000 --max-errors 10k --json --progress none").json();
    assert_eq!((&report["ios"], &report["errors"]), (&1000.into(), &1000.into()), "{report}");
    for name in ["iops", "bytes_per_sec", "ns_per_io", "cpu_ns_per_io"] {
        assert_eq!(report[name], 0.0, "{name}: {report}");
    }
    let half =
        run("bench fault:error=0.5,over=null:size=1M --ios 10000 --max-errors 10k --json --progress none").json();
    let [ios, errors, seconds, iops] =
        ["ios", "errors", "seconds", "iops"].map(|name| half[name].as_f64().expect("a number"));
    assert!(errors > 4_000.0 && (iops * seconds - (ios - errors)).abs() < 1.0, "{half}");
}

#[test]
fn with_json_a_failure_is_an_object() {
    let Some(dir) = pool() else { return };
    for (line, code, kind) in [
        ("pool info nowhere.img --json", 1, "failed"),
        ("pool set p.img --low-water 1T --json", 2, "usage"),
        ("volume info p.img#nobody --json", 1, "failed"),
        ("volume map p.img#nobody --json", 1, "failed"),
        ("volume create p.img#v --size 0 --json", 2, "usage"),
        ("volume create p.img#v --json", 2, "usage"),
        ("bench nothing:x --json", 2, "usage"),
        ("bench --json", 2, "usage"),
        ("bench null:size=1M --depth 0 --json", 2, "usage"),
        ("pool sing --json", 2, "usage"),
        ("lab all --json", 2, "usage"),
    ] {
        let said = dir.run(line);
        refused(&said, code, &[]);
        let error = &said.json()["error"];
        assert_eq!((&error["exit_code"], &error["kind"]), (&code.into(), &kind.into()), "{line}: {error}");
        let cause = error["cause"].as_str().unwrap_or_default();
        assert!(!cause.is_empty() && !cause.starts_with("error:"), "{line}: {error}");
        assert!(said.err.contains(cause.split(':').next().unwrap_or_default()), "{line}: {error}\n{}", said.err);
    }
    // If the result itself contains the failure, it is the only object that is printed.
    let said = run("bench fault:error=1,over=null:size=1M --ios 10 --json --progress none");
    assert_eq!(said.code, 1);
    assert!(said.json()["first_error"].is_string() && said.json().get("error").is_none(), "{}", said.out);
    assert_eq!(dir.run("pool info nowhere.img").out, "", "only with --json");
}

#[test]
fn options_without_an_effect_are_refused() {
    for (line, words) in [
        ("bench null:size=1M --pairs 9", &["--pairs", "--compare"][..]),
        ("bench null:size=1M --block 4k", &["--block", "vol:"]),
        ("bench ram:size=1M --checksum crc32c", &["--checksum", "vol:"]),
        ("bench vol:p.img#v --block 64k", &["--block", "vol:"]),
        ("bench ram:size=1M --rw randread --dsync", &["--dsync", "randwrite"]),
        ("bench null:size=1M --stats off --stamp-age 0", &["--stamp-age", "--stats"]),
        ("bench null:size=1M --pin=off --cpu 0", &["--cpu", "--pin"]),
        ("bench ram:size=1M --nop", &["--nop", "null:"]),
        ("bench null:size=1M --nop --rw randwrite", &["--nop", "writes"]),
        ("bench null:size=1M --depth 4 --batch-complete 5", &["--batch-complete 5", "--depth 4"]),
        ("bench null:size=1M --mix 70", &["--mix", "randrw"]),
        ("bench null:size=1M --verify=yes", &["--verify"]),
        ("bench null:size=1M,direct=on", &["direct"]),
        ("bench ram:size=1M,latency=1us", &["latency"]),
    ] {
        refused(&run(line), 2, words);
    }
}

#[test]
fn a_pool_is_opened_where_no_proc_is_mounted() {
    let Some(dir) = pool() else { return };
    if sheave_testkit::require("unshare").is_none() {
        return;
    }
    let without = |line: &str| {
        dir.shell(&format!("exec unshare --mount sh -c 'mount -t tmpfs none /proc && exec $SHEAVE {line}'"))
    };
    if without("--version").code != 0 {
        return sheave_testkit::skip("this container forbids namespaces of mounts: run it as root, privileged");
    }
    for line in ["volume create p.img#v --size 1M", "volume list p.img", "pool check p.img"] {
        let said = without(line);
        assert_eq!(said.code, 0, "{line}: {}{}", said.out, said.err);
    }
}
