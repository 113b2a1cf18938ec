//! Thin volumes compared with other thin space on this machine: files of ext4 and XFS, a qcow2 image.
//!
//! Owns the loop device that each side uses in turn, and the commands. fio drives the files, `sheave bench` the volume.
//! The image has two columns. `qemu-io` writes at random offsets like the other programs, 16 writes at a time, which
//! all end before the next 16 begin. `qemu-img bench` keeps 16 writes in flight, at a fixed stride.
//!
//! - P1: missing requirements are reported before anything is written: tools that cannot be installed, root (for the
//!   loop device and mounts), space.

use std::path::PathBuf;
use std::process::Command;

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use sheave_testkit::install::{Installer, Outcome};
use sheave_testkit::tools::{Tool, lookup};

use super::{program, table};
use crate::{cargo, workspace};

/// The only tool that no test uses; the other tools are in the table of the tests' tools.
const XFS: Tool =
    Tool { name: "mkfs.xfs", packages: &["xfsprogs"], why: "makes the XFS file system beside which we are" };

/// The image under the loop device. It is written once, so that the file system below it has nothing to allocate later.
const IMAGE: &str = "target/peers.img";
const IMAGE_BYTES: &str = "5G";
/// Free space in MiB that must be available below `target`.
const FREE_MIB: u64 = 6 << 10;
/// File with the commands for `qemu-io`.
const COMMANDS: &str = "target/peers.qemu-io";
/// Number of writes into space that was never written: at random offsets within 4 GiB, or at a stride of 17 blocks for
/// `qemu-img bench`.
const FIRST_WRITES: u64 = 40000;

/// A kind of thin space.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Volume,
    Ext4,
    Xfs,
    Qcow2,
    /// A qcow2 image driven by `qemu-img bench`.
    Strides,
}

const SIDES: [(Side, &str); 5] = [
    (Side::Volume, "Sheave volume"),
    (Side::Ext4, "ext4 file"),
    (Side::Xfs, "XFS file"),
    (Side::Qcow2, "qcow2, `qemu-io`"),
    (Side::Strides, "qcow2, `qemu-img bench`"),
];

/// A kind of write.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    Holes,
    Unwritten,
    Overwrites,
    Durable,
}

const WORKS: [(Work, &str); 4] = [
    (Work::Holes, "first writes, into holes, depth 16"),
    (Work::Unwritten, "first writes, into space of fallocate, depth 16"),
    (Work::Overwrites, "overwrites, depth 16"),
    (Work::Durable, "overwrites, durable each (O_DSYNC, FUA), depth 1"),
];

/// Returns the table: medians of `rounds` turns.
pub fn table(rounds: usize) -> Result<String> {
    require_machine()?;
    let bench = Bench::new()?;
    let mut found = vec![vec![Vec::new(); SIDES.len()]; WORKS.len()];
    for round in 0..rounds {
        for (column, (side, name)) in SIDES.iter().enumerate() {
            eprintln!("round {} of {rounds}: {name}", round + 1);
            for (row, iops) in bench.turn(*side)? {
                found[row][column].push(iops);
            }
        }
    }
    let mut text = String::from("| 4 KiB random writes, IOPS |");
    SIDES.iter().for_each(|(_, name)| text += &format!(" {name} |"));
    text += "\n|---|---:|---:|---:|---:|---:|\n";
    for ((_, what), columns) in WORKS.iter().zip(found) {
        text += &format!("| {what} |");
        for values in columns {
            text += &if values.is_empty() { " |".into() } else { format!(" {:.1}k |", table::median(values) / 1000.0) };
        }
        text += "\n";
    }
    Ok(text)
}

/// Checks the requirements (P1), and installs missing tools if that is allowed.
fn require_machine() -> Result<()> {
    let of_tests = ["fio", "mkfs.ext4", "qemu-img", "qemu-io"].map(|name| lookup(name).copied());
    let tools: Vec<Tool> = of_tests.into_iter().flatten().chain([XFS]).collect();
    let missing: Vec<String> = tools
        .iter()
        .zip(Installer::host().ensure(&tools))
        .filter_map(|(tool, outcome)| match outcome {
            Outcome::Skipped(why) => Some(format!("{}: {why}", tool.name)),
            Outcome::Present(_) | Outcome::Installed(_) => None,
        })
        .collect();
    ensure!(missing.is_empty(), "the comparison needs tools that are not here:\n{}", missing.join("\n"));
    ensure!(sh("id -u")?.trim() == "0", "the comparison needs root, for a loop device and mounts: run it as root");
    let free = sh("df --output=avail --block-size=1M target | tail -1")?;
    let free: u64 = free.trim().parse().context("what df says of target")?;
    ensure!(free >= FREE_MIB, "the comparison needs {FREE_MIB} MiB below target, and {free} MiB are free there");
    Ok(())
}

/// The loop device, and the directory where its file systems are mounted. Both are removed on drop.
struct Bench {
    device: String,
    mount: PathBuf,
}

impl Bench {
    fn new() -> Result<Self> {
        let image = workspace::root().join(IMAGE);
        let mount = workspace::root().join("target/peers");
        std::fs::create_dir_all(&mount)?;
        let shown = image.display().to_string();
        sh(&format!(
            "fio --name=fill --filename={shown} --size={IMAGE_BYTES} --rw=write --bs=1M --direct=1 --iodepth=8"
        ))
        .inspect_err(|_| drop(std::fs::remove_file(&image)))?;
        let device = sh(&format!("losetup --find --show --direct-io=on {shown}"))
            .inspect_err(|_| drop(std::fs::remove_file(&image)))?;
        Ok(Self { device: device.trim().into(), mount })
    }

    /// Measures all kinds of write on one side. Returns the results with their rows.
    fn turn(&self, side: Side) -> Result<Vec<(usize, f64)>> {
        self.set_up(side)?;
        let mut results = Vec::new();
        for (row, (work, what)) in WORKS.iter().enumerate() {
            if let Some(iops) = self.measure(side, *work).with_context(|| (*what).to_string())? {
                results.push((row, iops));
            }
        }
        if side != Side::Volume {
            self.unmount()?;
        }
        Ok(results)
    }

    fn set_up(&self, side: Side) -> Result<()> {
        let (device, mount) = (&self.device, self.mount.display());
        match side {
            Side::Volume => {
                let sheave = workspace::target_dir().join("release/sheave").display().to_string();
                sh(&format!("{sheave} pool create {device} --yes"))?;
                sh(&format!("{sheave} volume create '{device}#new' --size 4G"))?;
                sh(&format!("{sheave} volume create '{device}#full' --size 512M"))?;
            }
            Side::Xfs => {
                sh(&format!("mkfs.xfs -q -f -K {device} && mount {device} {mount}"))?;
            }
            Side::Ext4 | Side::Qcow2 | Side::Strides => {
                let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                sh(&format!("mkfs.ext4 -q -F -E {options} {device} && mount {device} {mount}"))?;
            }
        }
        if matches!(side, Side::Qcow2 | Side::Strides) {
            sh(&format!(
                "qemu-img create -q -f qcow2 {mount}/new 4G && qemu-img create -q -f qcow2 {mount}/full 512M"
            ))?;
            // Every cluster is written once here, so that later writes are overwrites.
            sh(&format!("qemu-img bench -q -w -f qcow2 -t none -d 8 -s 1M -S 1M -c 512 {mount}/full"))?;
        }
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        sh(&format!("umount {}", self.mount.display())).map(drop)
    }

    fn measure(&self, side: Side, work: Work) -> Result<Option<f64>> {
        match (side, work) {
            (Side::Volume | Side::Qcow2 | Side::Strides, Work::Unwritten) => Ok(None),
            (Side::Volume, _) => self.volume(work).map(Some),
            (Side::Qcow2, _) => self.qcow2(work).map(Some),
            (Side::Strides, _) => self.strides(work).map(Some),
            (Side::Ext4 | Side::Xfs, _) => self.file(work).map(Some),
        }
    }

    fn volume(&self, work: Work) -> Result<f64> {
        let device = &self.device;
        let row = match work {
            Work::Holes | Work::Unwritten => {
                format!("vol:{device}#new --rw randwrite --ios {FIRST_WRITES} --depth 16 --overwrite")
            }
            Work::Overwrites => {
                format!("vol:{device}#full --fill --overwrite --rw randwrite --depth 16 --runtime 3s")
            }
            Work::Durable => format!("vol:{device}#full --overwrite --rw randwrite --dsync --depth 1 --runtime 3s"),
        };
        let json = program::run(&row, &[])?;
        table::number(&json, "iops").context("no number `iops`")
    }

    fn file(&self, work: Work) -> Result<f64> {
        let fio = format!(
            "fio --name=peer --directory={} --ioengine=io_uring --direct=1 --bs=4k --output-format=json --rw=randwrite",
            self.mount.display()
        );
        let first = format!("{fio} --size=4G --iodepth=16 --number_ios={FIRST_WRITES}");
        let full = format!("{fio} --filename=full --size=512M --time_based --runtime=3");
        let json = match work {
            Work::Holes => sh(&format!("{first} --filename=new --fallocate=none"))?,
            Work::Unwritten => sh(&format!("{first} --filename=reserved --fallocate=posix"))?,
            Work::Overwrites => {
                let fill = format!("dd if=/dev/zero of={}/full bs=1M count=512 conv=fsync", self.mount.display());
                sh(&fill)?;
                sh(&format!("{full} --iodepth=16"))?
            }
            Work::Durable => sh(&format!("{full} --iodepth=1 --sync=dsync"))?,
        };
        let writes = json.split_once("\"write\"").context("fio says nothing of writes")?.1;
        table::number(writes, "iops").context("no number `iops` of fio")
    }

    fn qcow2(&self, work: Work) -> Result<f64> {
        let (image, cache, bytes, count) = match work {
            Work::Holes | Work::Unwritten => ("new", "none", 4 << 30, FIRST_WRITES),
            Work::Overwrites => ("full", "none", 512 << 20, 60_000),
            Work::Durable => ("full", "directsync", 512 << 20, 10_000),
        };
        let commands = workspace::root().join(COMMANDS);
        std::fs::write(&commands, qemu_io(work == Work::Durable, bytes, count)).context("the commands of qemu-io")?;
        let mount = self.mount.display();
        let begun = Instant::now();
        // This prints prompts too, and errors.
        let said = sh(&format!("qemu-io -f qcow2 -t {cache} -i io_uring {mount}/{image} < {COMMANDS}"));
        let seconds = begun.elapsed().as_secs_f64();
        let _ = std::fs::remove_file(commands);
        let said = said?;
        ensure!(!said.contains("failed") && !said.contains("rror"), "qemu-io: {}", said.replace("qemu-io> ", ""));
        Ok(count as f64 / seconds)
    }

    fn strides(&self, work: Work) -> Result<f64> {
        let mount = self.mount.display();
        let bench = "qemu-img bench -w -f qcow2 -s 4k -S 69632";
        let (count, script) = match work {
            Work::Durable => (10_000, format!("{bench} -t directsync -d 1 -c 10000 {mount}/full")),
            Work::Overwrites => (60_000, format!("{bench} -t none -i io_uring -d 16 -c 60000 {mount}/full")),
            Work::Holes | Work::Unwritten => {
                (FIRST_WRITES, format!("{bench} -t none -i io_uring -d 16 -c {FIRST_WRITES} {mount}/new"))
            }
        };
        let text = sh(&script)?;
        let after = text.split_once("completed in ").with_context(|| format!("no time in: {text}"))?.1;
        let seconds: f64 = after.split(' ').next().unwrap_or_default().parse().context("the time of qemu-img bench")?;
        Ok(count as f64 / seconds)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // The setup may be incomplete, so each step may fail. The error of the setup was already reported.
        let _ = self.unmount();
        let _ = sh(&format!("losetup --detach {}", self.device));
        let _ = std::fs::remove_file(workspace::root().join(IMAGE));
    }
}

/// Returns commands for `qemu-io`: writes at random offsets, one at a time or 16 at once.
pub(super) fn qemu_io(one_at_a_time: bool, bytes: u64, count: u64) -> String {
    let mut text = String::new();
    for number in 1..=count {
        let at = scattered(number) % (bytes / 4096) * 4096;
        text += &if one_at_a_time { format!("write -q {at} 4k\n") } else { format!("aio_write -q {at} 4k\n") };
        if !one_at_a_time && (number % 16 == 0 || number == count) {
            text += "aio_flush\n";
        }
    }
    text
}

/// Returns a pseudo-random number that is the same in each run (the finalizer of SplitMix64).
fn scattered(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Runs a shell command and returns its output, or an error with its standard error.
fn sh(script: &str) -> Result<String> {
    let mut command = Command::new("sh");
    command.current_dir(workspace::root()).args(["-c", script]);
    let (text, errors, success) = cargo::capture(command)?;
    if !success {
        bail!("`{script}` failed:\n{errors}");
    }
    Ok(text)
}
