//! `sheave bench vol:`: measures and verifies a volume, and compares it with its raw device.

use std::fs;

use crate::sheave::{Dir, no_io_uring, run};

#[test]
fn a_volume_in_memory_is_made_and_keeps_every_block() {
    // Every read returns the block that was written last (V1).
    let line = "bench vol:ram:size=64M --range 16M --rw randrw --verify --ios 20000 --json --progress none";
    let report = run(line).json();
    assert_eq!((&report["device"], &report["errors"]), (&"vol:ram:size=64M#bench".into(), &0.into()), "{report}");
    assert_eq!((&report["verify"]["wrong"], &report["ios"]), (&0.into(), &20_000.into()), "{report}");
    let line =
        "bench vol:ram:size=64M#mine --block 4k --range 8M --rw randwrite --dsync --ios 500 --json --progress none";
    let report = run(line).json();
    assert_eq!((&report["device"], &report["writes"]), (&"vol:ram:size=64M#mine".into(), &500.into()), "{report}");
}

#[test]
fn large_ios_of_many_units_are_whole() {
    let line = "bench vol:ram:size=128M --block 4k --range 64M --rw write --bs 1M --depth 32 --ios 64 --json";
    assert_eq!(run(line).json()["errors"], 0);
}

#[test]
fn what_thinness_adds_is_told() {
    for spec in ["vol:null:size=1G", "vol:ram:size=64M"] {
        let line = format!("bench {spec} --range 16M --rw randwrite --compare raw --pairs 3 --runtime 150ms --json");
        let report = run(&line).json();
        let compare = &report["compare"];
        assert!(compare["name"].as_str().is_some_and(|name| name.starts_with("raw ")), "{report}");
        assert_eq!((&compare["pairs"], &report["errors"]), (&3.into(), &0.into()), "{report}");
        for name in ["ns_per_io", "more_ns_per_io", "more_cpu_ns_per_io", "ratio_iops", "ratio_cpu"] {
            assert!(compare[name].is_f64(), "{name}: {compare}");
        }
    }
    let text = run("bench vol:null: --range 16M --compare raw --pairs 1 --runtime 50ms --progress none").out;
    assert!(text.contains("which is  ") && text.contains("ns of wall time"), "{text}");
}

#[test]
fn a_volume_of_a_file_is_measured_and_its_data_is_kept_from_harm() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    dir.ok("volume create p.img#v --size 8M");
    let report = dir.ok("bench vol:p.img#v --rw randread --ios 100 --json --progress none").json();
    assert!(report["notices"].to_string().contains("never written"), "{report}");
    let report = dir.ok("bench vol:p.img#v --rw randrw --verify --ios 2000 --json --progress none").json();
    assert_eq!(report["verify"]["wrong"], 0, "{report}");
    let said = dir.run("bench vol:p.img#v --rw randwrite --ios 10");
    assert_eq!(said.code, 2, "{}", said.out);
    assert!(said.err.contains("holds 8 MiB of data") && said.err.contains("--overwrite"), "{}", said.err);
    let line = "bench vol:p.img#v --rw randwrite --overwrite --compare raw --pairs 2 --runtime 100ms --json";
    let report = dir.ok(line).json();
    assert!(report["compare"]["name"].as_str().is_some_and(|name| name.contains("p.img.raw-")), "{report}");
    let left: Vec<_> =
        fs::read_dir(dir.path("")).expect("a directory").flatten().map(|file| file.file_name()).collect();
    assert_eq!(left, ["p.img"], "the raw file is gone");
    dir.ok("volume snapshot p.img#v s");
    let said = dir.run("bench vol:p.img#s --rw randwrite --overwrite --ios 10");
    assert!(said.code == 2 && said.err.contains("is a snapshot"), "{}", said.err);
    let info = dir.ok("pool info p.img --json").json();
    assert_eq!(info["recovered"], false, "the bench closed the pool: {info}");
    dir.ok("pool check p.img");
}

#[test]
fn what_was_never_written_is_told_of_the_range_that_is_read() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    // The first half of the file is a hole, the second half is data.
    let half = 32 << 20;
    let sparse = fs::File::create(dir.path("sparse")).expect("made");
    std::os::unix::fs::FileExt::write_all_at(&sparse, &vec![7; half], half as u64).expect("written");
    sparse.sync_all().expect("synced");
    dir.ok("pool create p.img --size 128M");
    dir.ok("volume create p.img#v --size 64M");
    dir.ok("volume import sparse p.img#v");
    let notices = |spec: &str, range: &str| {
        let line = format!("bench {spec} --rw randread --range {range} --ios 100 --json --progress none");
        dir.ok(&line).json()["notices"].to_string()
    };
    let of_volume = |range| notices("vol:p.img#v", range);
    assert!(of_volume("16M").contains("100 % of the range was never written"), "{}", of_volume("16M"));
    assert!(of_volume("64M").contains("50 % of the range was never written"), "{}", of_volume("64M"));
    let of_file = |range| notices("file:sparse", range);
    assert!(of_file("16M").contains("100 % of the range is holes"), "{}", of_file("16M"));
    assert!(of_file("64M").contains("50 % of the range is holes"), "{}", of_file("64M"));
    // The data comes first here and the hole behind the range, so the hole does not count.
    fs::write(dir.path("begun"), vec![7; 16 << 20]).expect("written");
    fs::OpenOptions::new().write(true).open(dir.path("begun")).and_then(|file| file.set_len(64 << 20)).expect("grown");
    dir.ok("volume create p.img#w --size 64M");
    dir.ok("volume import begun p.img#w");
    let (volume, file) = (notices("vol:p.img#w", "16M"), notices("file:begun", "16M"));
    assert!(!volume.contains("never written") && !file.contains("holes"), "{volume} {file}");
}

#[test]
fn volumes_that_are_not_there_and_comparisons_that_make_no_sense() {
    let dir = Dir::new();
    for (line, code, word) in [
        ("bench vol:p.img#v", 1, "no such file"),
        ("bench vol:p.img", 2, "vol:POOL#NAME"),
        ("bench vol:ram:size=64M --range 1G", 2, "free bytes"),
        ("bench vol:ram:size=64M --compare kernel", 2, "--compare raw"),
        ("bench ram:size=64M --compare raw", 2, "vol:ram:size=1G"),
        ("bench vol:null: --verify", 2, "keeps nothing"),
        ("bench vol:ram:size=64M --block 3k", 2, "power of two"),
    ] {
        let said = dir.run(line);
        assert_eq!(said.code, code, "{line}: {}{}", said.out, said.err);
        assert!(said.err.contains(word), "{line}: no `{word}` in\n{}", said.err);
    }
}
