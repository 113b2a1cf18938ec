//! Partitions by number and name, of tables that sgdisk and sfdisk have made.
#![cfg(not(shuttle))]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sheave_drivers::open_device;
use sheave_testkit::require;

/// Returns a file of 64 MiB.
fn image(dir: &Path) -> PathBuf {
    let path = dir.join("disk.img");
    std::fs::File::create(&path).expect("a file can be made").set_len(64 << 20).expect("as long");
    path
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the tool can be started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the start and length of a partition, by its spec, in sectors of 512 bytes.
fn place(which: &str, path: &Path) -> Result<(u64, u64), String> {
    let spec = format!("partition:{which},over=file:{}", path.display());
    let device = open_device(&spec).map_err(|error| error.to_string())?;
    let leg = &device.legs()[0];
    Ok((leg.offset, leg.sectors))
}

#[test]
fn a_gpt_of_sgdisk_and_its_backup() {
    let Some(sgdisk) = require("sgdisk") else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(dir.path());
    run(Command::new(&sgdisk)
        .args(["-n", "1:2048:+1M", "-c", "1:boot", "-n", "3:8192:0", "-c", "3:data, old"])
        .arg(&path));
    let told = |number: u32| {
        let info = run(Command::new(&sgdisk).arg(format!("--info={number}")).arg(&path));
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)).expect(name);
            line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).expect(name)
        };
        (field("First sector: "), field("Last sector: ") + 1 - field("First sector: "))
    };
    assert_eq!(place("1", &path), Ok(told(1)));
    assert_eq!(place("name=boot", &path), Ok((2048, 2048)));
    assert_eq!(place("3", &path), Ok(told(3)));
    assert!(place("2", &path).is_err_and(|why| why.contains("It has 1 (boot), 3 (data, old)")));
    // The table at the beginning is overwritten, as by a mistyped dd.
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opens");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 8192], 512).expect("written");
    assert_eq!(place("name=boot", &path), Ok((2048, 2048)), "by the backup");
}

#[test]
fn an_mbr_of_sfdisk_with_logical_partitions() {
    let Some(sfdisk) = require("sfdisk") else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(dir.path());
    let script = "label: dos\nstart=2048, size=2048, type=83\nstart=8192, size=65536, type=5\n\
                  start=10240, size=4096, type=83\nstart=20480, size=2048, type=83\n";
    let mut child = Command::new(sfdisk).arg("--quiet").arg(&path).stdin(Stdio::piped()).spawn().expect("starts");
    child.stdin.take().expect("piped").write_all(script.as_bytes()).expect("taken");
    assert!(child.wait().expect("ends").success());
    for (number, place_of_it) in [(1, (2048, 2048)), (5, (10240, 4096)), (6, (20480, 2048))] {
        assert_eq!(place(&number.to_string(), &path), Ok(place_of_it));
    }
    assert!(place("2", &path).is_err_and(|why| why.contains("no such partition")), "a container is none");
}

/// A peer that reads tables by itself: its filter shows one partition of a file.
#[test]
fn nbdkit_shows_partitions_of_the_same_size() {
    let (Some(sgdisk), Some(nbdkit), Some(nbdinfo)) = (require("sgdisk"), require("nbdkit"), require("nbdinfo")) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(dir.path());
    run(Command::new(sgdisk).args(["-n", "1:2048:+3M", "-n", "2:0:+5M", "-n", "7:0:0"]).arg(&path));
    for number in [1, 2, 7] {
        let mut command = Command::new(&nbdkit);
        command.args(["--filter=partition", "file"]).arg(&path).arg(format!("partition={number}"));
        let size = run(command.arg("--run").arg(format!("{} --size \"$uri\"", nbdinfo.display())));
        let (_, sectors) = place(&number.to_string(), &path).expect("it is there");
        assert_eq!(size.trim().parse::<u64>().ok(), Some(sectors * 512), "partition {number}");
    }
}

#[test]
fn what_names_no_partition_is_refused_with_cause_and_fix() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(dir.path());
    for (which, says) in [
        ("1", "no partition table"),
        ("name=boot", "no partition table"),
        ("0", "is no number of a partition"),
        ("boot", "is no number of a partition. Write partition:2"),
        ("2,name=boot", "a number and a name"),
        ("2,start=1M", "Leave start and size out"),
        ("name=boot,size=1M", "Leave start and size out"),
        ("2,number=3", "unknown"),
    ] {
        let why = place(which, &path).expect_err(which);
        assert!(why.contains(says), "{which}: {why}");
    }
    let secret = open_device("partition:1,over=null:size=1M,key=hush").expect_err("no such key").to_string();
    assert!(!secret.contains("hush"), "{secret}");
}
