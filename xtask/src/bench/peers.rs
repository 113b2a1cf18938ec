//! Thin volumes beside what else gives thin space on this machine: files of ext4 and XFS, a qcow2 image.
//!
//! Owns the loop device that all of them lie on in turns, and the commands. fio drives the files, `qemu-img bench` the
//! image, `sheave bench` the volume. Needs root (for the loop device and mounts), fio, mkfs.xfs, qemu-img, and 6 GiB.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{program, table};
use crate::{cargo, workspace};

/// What all of them lie on; written once, so that the file system under it has nothing to allocate.
const IMAGE: &str = "target/peers.img";
const IMAGE_BYTES: &str = "5G";
const ROUNDS: usize = 3;
/// Writes into space that was never written: random over 4 GiB, or a stride of 17 blocks for the image.
const FIRST_WRITES: &str = "40000";

/// One kind of thin space.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Volume,
    Ext4,
    Xfs,
    Qcow2,
}

const SIDES: [(Side, &str); 4] =
    [(Side::Volume, "Sheave volume"), (Side::Ext4, "ext4 file"), (Side::Xfs, "XFS file"), (Side::Qcow2, "qcow2")];

/// What is done to it.
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

/// The table: medians of turns.
pub fn table() -> Result<String> {
    let bench = Bench::new()?;
    let mut found = vec![vec![Vec::new(); SIDES.len()]; WORKS.len()];
    for round in 0..ROUNDS {
        for (column, (side, name)) in SIDES.iter().enumerate() {
            eprintln!("round {} of {ROUNDS}: {name}", round + 1);
            for (row, iops) in bench.turn(*side)? {
                found[row][column].push(iops);
            }
        }
    }
    let mut text = String::from("| 4 KiB random writes, IOPS |");
    SIDES.iter().for_each(|(_, name)| text += &format!(" {name} |"));
    text += "\n|---|---:|---:|---:|---:|\n";
    for ((_, what), columns) in WORKS.iter().zip(found) {
        text += &format!("| {what} |");
        for values in columns {
            text += &if values.is_empty() { " |".into() } else { format!(" {:.1}k |", table::median(values) / 1000.0) };
        }
        text += "\n";
    }
    Ok(text)
}

/// The loop device and the place where file systems on it are mounted; both go when this is dropped.
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
        .context("the comparison needs fio (apt-get install fio), and 6 GiB in target")?;
        let device = sh(&format!("losetup --find --show --direct-io=on {shown}"))
            .context("the comparison needs root, for a loop device")?;
        Ok(Self { device: device.trim().into(), mount })
    }

    /// Everything that is done to one side, with the rows it belongs to.
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
                sh(&format!("mkfs.xfs -q -f -K {device} && mount {device} {mount}"))
                    .context("the comparison needs mkfs.xfs (apt-get install xfsprogs)")?;
            }
            Side::Ext4 | Side::Qcow2 => {
                let options = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
                sh(&format!("mkfs.ext4 -q -F -E {options} {device} && mount {device} {mount}"))?;
            }
        }
        if side == Side::Qcow2 {
            sh(&format!("qemu-img create -q -f qcow2 {mount}/new 4G && qemu-img create -q -f qcow2 {mount}/full 512M"))
                .context("the comparison needs qemu-img (apt-get install qemu-utils)")?;
            // A write of every cluster, so that what follows overwrites.
            sh(&format!("qemu-img bench -q -w -f qcow2 -t none -d 8 -s 1M -S 1M -c 512 {mount}/full"))?;
        }
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        sh(&format!("umount {}", self.mount.display())).map(drop)
    }

    fn measure(&self, side: Side, work: Work) -> Result<Option<f64>> {
        match (side, work) {
            (Side::Volume | Side::Qcow2, Work::Unwritten) => Ok(None),
            (Side::Volume, _) => self.volume(work).map(Some),
            (Side::Qcow2, _) => self.qcow2(work).map(Some),
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
        let mount = self.mount.display();
        let bench = "qemu-img bench -w -f qcow2 -s 4k -S 69632";
        let (count, script) = match work {
            Work::Durable => ("10000", format!("{bench} -t directsync -d 1 -c 10000 {mount}/full")),
            Work::Overwrites => ("60000", format!("{bench} -t none -i io_uring -d 16 -c 60000 {mount}/full")),
            Work::Holes | Work::Unwritten => {
                (FIRST_WRITES, format!("{bench} -t none -i io_uring -d 16 -c {FIRST_WRITES} {mount}/new"))
            }
        };
        let text = sh(&script)?;
        let after = text.split_once("completed in ").with_context(|| format!("no time in: {text}"))?.1;
        let seconds: f64 = after.split(' ').next().unwrap_or_default().parse().context("the time of qemu-img bench")?;
        Ok(count.parse::<f64>()? / seconds)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Whatever of it is there: a failure left a message of its own.
        let _ = self.unmount();
        let _ = sh(&format!("losetup --detach {}", self.device));
        let _ = std::fs::remove_file(workspace::root().join(IMAGE));
    }
}

/// What a shell command prints; an error with its words when it fails.
fn sh(script: &str) -> Result<String> {
    let mut command = Command::new("sh");
    command.current_dir(workspace::root()).args(["-c", script]);
    let (text, errors, success) = cargo::capture(command)?;
    if !success {
        bail!("`{script}` failed:\n{errors}");
    }
    Ok(text)
}
