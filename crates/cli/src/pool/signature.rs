//! What lies on a device already: so that formatting it is a decision and not an accident.
//!
//! Owns the list of signatures that are looked for, in the first MiB. Reads through a ring, as a device of any kind is
//! read. What no signature names and is not all zeroes counts as data.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sheave::{Buf, Device, Ring, op};
use sheave_daemon::failure::Failure;
use sheave_vol::block;
use sheave_vol::format::{BLOCK, kind};

/// How much of the device is looked at.
pub const LOOK: u64 = 1 << 20;

/// Signatures: what, where, bytes.
const KNOWN: &[(&str, usize, &[u8])] = &[
    ("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("an XFS file system", 0, b"XFSB"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("a VMDK image", 0, b"KDMV"),
    ("a VHDX image", 0, b"vhdxfile"),
    ("a squashfs file system", 0, b"hsqs"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT"),
    ("a FAT32 file system", 82, b"FAT32"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    ("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    ("a bcache device", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a RAID member", 0, b"\xfc\x4e\x2b\xa9"),
    ("a RAID member", 4096, b"\xfc\x4e\x2b\xa9"),
    ("an ISO 9660 image", 32769, b"CD001"),
    ("a btrfs file system", 65600, b"_BHRfS_M"),
    ("a ZFS pool", 128 << 10, b"\x0c\xb1\xba\x00\x00\x00\x00\x00"),
    // Last: a boot sector stands in front of many of the above.
    ("a partition table", 510, b"\x55\xaa"),
];

/// What is on the device, in words; `None` when there are only zeroes.
pub fn find(device: &Device) -> Result<Option<String>, Failure> {
    let bytes = read(device, 0, LOOK.min(device.size_bytes()))?;
    Ok(name(&bytes))
}

/// What is in a file, as it is before anything opens it as a device, which may make it larger.
pub fn find_in_file(path: &Path) -> Result<Option<String>, Failure> {
    match head_of(path) {
        Ok(bytes) => Ok(name(&bytes)),
        Err(err) => Err(Failure::run(format!("cannot read {}, to see what is in it: {err}", path.display()))
            .fix("change its permissions, or name another file")),
    }
}

/// Whether a file holds a pool of Sheave, or is a member of one.
pub fn is_of_pool(path: &Path) -> bool {
    head_of(path).is_ok_and(|bytes| sheave_block(&bytes).is_some())
}

fn head_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LOOK).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is on a device, by its first bytes; `None` when all of them are zero.
fn name(bytes: &[u8]) -> Option<String> {
    let at = bytes.iter().position(|byte| *byte != 0)?;
    Some(known(bytes).unwrap_or_else(|| format!("data: byte {at} is not zero")))
}

/// What the first bytes of a device are the signature of.
pub fn known(bytes: &[u8]) -> Option<String> {
    let found = || KNOWN.iter().find(|(_, at, magic)| bytes.get(*at..*at + magic.len()) == Some(*magic));
    sheave_block(bytes).or_else(|| found().map(|(what, ..)| (*what).to_owned()))
}

/// A pool is told by either of its superblocks, also by one that is damaged.
fn sheave_block(bytes: &[u8]) -> Option<String> {
    let head = |at: usize| bytes.get(at..at + BLOCK)?.try_into().ok().map(block::identify);
    for slot in [0, BLOCK] {
        match head(slot) {
            Some(Ok((head, _))) if head.kind == kind::LABEL => return Some("a further member of a Sheave pool".into()),
            Some(Ok((head, _))) if head.kind == kind::SUPERBLOCK => {
                let uuid: String = head.pool.iter().map(|byte| format!("{byte:02x}")).collect();
                return Some(format!("a Sheave pool ({uuid})"));
            }
            Some(Err(sheave_vol::Damage::Blank | sheave_vol::Damage::Alien) | Ok(_)) | None => {}
            Some(Err(_)) => return Some("a Sheave pool, damaged or of a newer version".into()),
        }
    }
    None
}

/// Reads a piece of a device, in whole blocks of it.
pub fn read(device: &Device, pos: u64, len: u64) -> Result<Vec<u8>, Failure> {
    const PIECE: u64 = 256 << 10;
    let fail = |err: &dyn std::fmt::Display| Failure::run(format!("{}: cannot read byte {pos}: {err}", device.name()));
    let mut ring = Ring::builder().entries(8).build().map_err(|err| fail(&err))?;
    let fd = ring.attach(device).map_err(|err| fail(&err))?;
    let mut bytes = Vec::with_capacity(len as usize);
    while (bytes.len() as u64) < len {
        let at = pos + bytes.len() as u64;
        let piece = PIECE.min(pos + len - at);
        let buf = Buf::zeroed(piece as usize, 4096).map_err(|err| fail(&err))?;
        ring.push(op::read(fd, buf).offset(at)).map_err(|err| fail(&err))?;
        ring.submit_and_wait(1).map_err(|err| fail(&err))?;
        for done in ring.completions() {
            let read = done.result().map_err(|err| fail(&err))?;
            let buf = done.into_buf().expect("a read gives its buffer back");
            bytes.extend_from_slice(&buf[..read as usize]);
            if u64::from(read) < piece {
                return Err(fail(&"it ends early"));
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
