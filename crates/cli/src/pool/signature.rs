//! Detection of content on a device, so that formatting it is a decision and not an accident.
//!
//! Owns the list of signatures and the positions that are examined: the first and the last MiB, copies of superblocks,
//! and samples between them. A small device is read completely, and of a file everything that is not a hole. Devices of
//! all kinds are read through a ring. If contents have no known signature but are not all zeroes, they count as data.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::SeekFrom;

use sheave::{Buf, Device, Ring, op};
use sheave_base::zeroes::first_nonzero;
use sheave_daemon::failure::Failure;
use sheave_vol::block;
use sheave_vol::format::{BLOCK, kind};

/// Number of bytes that are examined at each end of a device.
pub const LOOK: u64 = 1 << 20;

/// Size in bytes of the largest device that is read completely.
const WHOLE: u64 = 256 << 20;
/// Largest number of data bytes of a file that are read to find out if all of them are zero.
const MOST_DATA: u64 = 1 << 30;
/// Number of samples between the ends of a large device, and their length.
const SAMPLES: u64 = 256;
const SAMPLE: u64 = 4 << 10;
/// Positions of the copies of its superblock that btrfs makes.
const MIRRORS: [u64; 2] = [64 << 20, 256 << 30];

/// Signatures: description, position, bytes.
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
    // This is the last entry, because many of the formats above begin with a boot sector.
    ("a partition table", 510, b"\x55\xaa"),
];

/// Describes the contents of the device. Returns `None` if all examined positions are zero.
pub fn find(device: &Device) -> Result<Option<String>, Failure> {
    let size = device.size_bytes();
    let mut reader = Reader::new(device)?;
    if let Some(found) = name(&reader.read(0, LOOK.min(size))?) {
        return Ok(Some(found));
    }
    for Range { start, end } in places(size) {
        if let Some(found) = name_far(start, &reader.read(start, end - start)?, size) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Returns the ranges that are examined behind the first MiB of a device of this size, in whole blocks.
fn places(size: u64) -> Vec<Range<u64>> {
    let size = size - size % 512;
    if size <= WHOLE {
        let starts = (1..size.div_ceil(LOOK)).map(|piece| piece * LOOK);
        return starts.map(|start| start..size.min(start + LOOK)).collect();
    }
    let last = (size - LOOK) / SAMPLE * SAMPLE;
    let mirrors = MIRRORS.into_iter().filter(|at| at + SAMPLE <= last).map(|at| at..at + SAMPLE);
    let sample = |number: u64| (u128::from(last) * u128::from(number) / u128::from(SAMPLES)) as u64 / SAMPLE * SAMPLE;
    let samples = (1..SAMPLES).map(sample).map(|at| at..at + SAMPLE);
    std::iter::once(last..size).chain(mirrors).chain(samples).collect()
}

/// Describes the contents of a file. Called before anything opens the file as a device, which could extend it.
pub fn find_in_file(path: &Path) -> Result<Option<String>, Failure> {
    look_into(path).map_err(|err| {
        Failure::run(format!("cannot read {}, to see what is in it: {err}", path.display()))
            .fix("change its permissions, or name another file")
    })
}

fn look_into(path: &Path) -> std::io::Result<Option<String>> {
    if let Some(found) = name(&head_of(path)?) {
        return Ok(Some(found));
    }
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let (mut at, mut left) = (0, MOST_DATA);
    while let Some(data) = next_data(&file, at, size)? {
        (at, left) = (data.end, left.saturating_sub(data.end - data.start));
        if left == 0 {
            return Ok(Some(format!("more than {MOST_DATA} bytes that may be data")));
        }
        let mut piece = vec![0; LOOK as usize];
        for start in data.clone().step_by(LOOK as usize) {
            let bytes = &mut piece[..(data.end - start).min(LOOK) as usize];
            file.read_exact_at(bytes, start)?;
            if let Some(found) = name_far(start, bytes, size) {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Returns the next data extent of a file. It is the whole rest if the file system does not report holes.
fn next_data(file: &File, at: u64, size: u64) -> std::io::Result<Option<Range<u64>>> {
    if at >= size {
        return Ok(None);
    }
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) if start >= size => Ok(None),
        Ok(start) => {
            Ok(Some(start..rustix::fs::seek(file, SeekFrom::Hole(start)).unwrap_or(size).clamp(start + 1, size)))
        }
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => Ok(Some(at..size)),
        Err(errno) => Err(errno.into()),
    }
}

/// Describes bytes at `start`, far from the start of a device. Returns `None` if all of them are zero.
fn name_far(start: u64, bytes: &[u8], size: u64) -> Option<String> {
    let at = start + first_nonzero(bytes)? as u64;
    const RAID: &[u8] = b"\xfc\x4e\x2b\xa9";
    const GPT: &[u8] = b"EFI PART";
    let aligned = |back: u64, to: u64| size.checked_sub(back).map(|at| at / to * to);
    let known = [
        ("a GPT partition table", size.checked_sub(512), GPT),
        ("a GPT partition table", size.checked_sub(4096), GPT),
        ("a RAID member", (size / 65536 * 65536).checked_sub(65536), RAID),
        ("a RAID member", aligned(8192, 4096), RAID),
        ("a ZFS pool", (size / (256 << 10) * (256 << 10)).checked_sub(384 << 10), b"\x0c\xb1\xba\x00\x00\x00\x00\x00"),
        ("a btrfs file system", Some(MIRRORS[0] + 64), b"_BHRfS_M"),
        ("a btrfs file system", Some(MIRRORS[1] + 64), b"_BHRfS_M"),
    ];
    let is_there = |place: u64, magic: &[u8]| {
        let from = usize::try_from(place.checked_sub(start)?).ok()?;
        Some(bytes.get(from..from + magic.len())? == magic)
    };
    let found = known.iter().find(|(_, place, magic)| place.and_then(|place| is_there(place, magic)) == Some(true));
    Some(found.map_or_else(|| format!("data: byte {at} is not zero"), |(what, ..)| (*what).to_owned()))
}

/// Returns true if a file contains a Sheave pool, or is a member of one.
pub fn is_of_pool(path: &Path) -> bool {
    head_of(path).is_ok_and(|bytes| sheave_block(&bytes).is_some())
}

fn head_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LOOK).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Describes the contents of a device from its first bytes. Returns `None` if all of them are zero.
fn name(bytes: &[u8]) -> Option<String> {
    let at = first_nonzero(bytes)?;
    Some(known(bytes).unwrap_or_else(|| format!("data: byte {at} is not zero")))
}

/// Returns the description of the signature in the first bytes of a device.
pub fn known(bytes: &[u8]) -> Option<String> {
    let found = || KNOWN.iter().find(|(_, at, magic)| bytes.get(*at..*at + magic.len()) == Some(*magic));
    sheave_block(bytes).or_else(|| found().map(|(what, ..)| (*what).to_owned()))
}

/// Recognises a pool from either of its superblocks, even from a damaged one.
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

/// A ring with a device attached, for reads of whole blocks.
struct Reader<'a> {
    device: &'a Device,
    ring: Ring,
    fd: sheave::Fd,
}

impl Reader<'_> {
    fn new(device: &Device) -> Result<Reader<'_>, Failure> {
        let fail = |err: &dyn std::fmt::Display| Failure::run(format!("{}: cannot be read: {err}", device.name()));
        let mut ring = Ring::builder().entries(8).build().map_err(|err| fail(&err))?;
        let fd = ring.attach(device).map_err(|err| fail(&err))?;
        Ok(Reader { device, ring, fd })
    }

    fn read(&mut self, pos: u64, len: u64) -> Result<Vec<u8>, Failure> {
        const PIECE: u64 = 256 << 10;
        let Reader { device, ring, fd } = self;
        let fail =
            |err: &dyn std::fmt::Display| Failure::run(format!("{}: cannot read byte {pos}: {err}", device.name()));
        let mut bytes = Vec::with_capacity(len as usize);
        while (bytes.len() as u64) < len {
            let at = pos + bytes.len() as u64;
            let piece = PIECE.min(pos + len - at);
            let buf = Buf::zeroed(piece as usize, 4096).map_err(|err| fail(&err))?;
            ring.push(op::read(*fd, buf).offset(at)).map_err(|err| fail(&err))?;
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
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use sheave::open_device;

    const GIB: u64 = 1 << 30;

    /// Makes a file of `size` bytes without data.
    fn sparse(dir: &Path, size: u64) -> (std::path::PathBuf, File) {
        let path = dir.join("sparse");
        let file = File::options().write(true).create(true).truncate(true).open(&path).expect("made");
        file.set_len(size).expect("grown");
        (path, file)
    }

    /// Contents at the end of a device, or far from its start, are found on the device and in the file.
    #[test]
    fn what_lies_far_from_the_start_is_found() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let size = 8 * GIB + 5120;
        let raid = b"\xfc\x4e\x2b\xa9";
        let cases: [(u64, &[u8], &str); 8] = [
            (size - 512, b"EFI PART", "a GPT partition table"),
            (size - 4096, b"EFI PART", "a GPT partition table"),
            (8 * GIB - 65536, raid, "a RAID member"),
            (8 * GIB - 4096, raid, "a RAID member"),
            (8 * GIB - (384 << 10), b"\x0c\xb1\xba\x00\x00\x00\x00\x00", "a ZFS pool"),
            ((64 << 20) + 64, b"_BHRfS_M", "a btrfs file system"),
            (size - 1, b"x", "data: byte 8589939711 is not zero"),
            (8 * GIB - (700 << 10), b"x", "data: byte 8589217792 is not zero"),
        ];
        for (at, bytes, what) in cases {
            let (path, file) = sparse(dir.path(), size);
            assert_eq!(find_in_file(&path).expect("looked at"), None);
            file.write_all_at(bytes, at).expect("written");
            let device = open_device(&format!("file:{},readonly=on", path.display())).expect("a device");
            assert_eq!(find_in_file(&path).expect("looked at").as_deref(), Some(what), "{at}");
            assert_eq!(find(&device).expect("looked at").as_deref(), Some(what), "{at}");
        }
    }

    /// All data extents of a file are examined. Zeroes that were written do not count as contents.
    #[test]
    fn data_behind_a_long_hole_of_a_file_is_found() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (path, file) = sparse(dir.path(), 4 * GIB);
        file.write_all_at(&vec![0; 3 << 20], GIB).expect("written");
        assert_eq!(find_in_file(&path).expect("looked at"), None);
        file.write_all_at(b"data", GIB + (2 << 20) + 12_345).expect("written");
        let found = find_in_file(&path).expect("looked at");
        assert_eq!(found, Some(format!("data: byte {} is not zero", GIB + (2 << 20) + 12_345)));
        fs::write(&path, b"odd size").expect("written");
        assert_eq!(find_in_file(&path).expect("looked at").as_deref(), Some("data: byte 0 is not zero"));
    }

    #[test]
    fn a_small_device_is_looked_at_as_a_whole_and_a_large_one_at_both_ends_and_between() {
        for size in [512, 4096, LOOK, LOOK + 512, 3 * LOOK - 4096, WHOLE] {
            let mut end = LOOK.min(size);
            for place in places(size) {
                assert_eq!(place.start, end);
                end = place.end;
            }
            assert_eq!(end, size);
        }
        for size in [WHOLE + 512, 5 * GIB, 1 << 60] {
            let all = places(size);
            let last = all.first().expect("the last MiB");
            assert!(last.end == size && last.end - last.start >= LOOK, "{last:?}");
            assert!(all.iter().all(|place| place.end <= size && place.start.is_multiple_of(SAMPLE)), "{size}");
            let mut starts: Vec<u64> = all.iter().map(|place| place.start).collect();
            starts.sort_unstable();
            let widest = starts.windows(2).map(|pair| pair[1] - pair[0]).max().expect("several");
            assert!(widest <= size / SAMPLES + 2 * SAMPLE, "{size}: {widest}");
        }
    }

    #[test]
    fn each_signature_is_named_by_itself() {
        for (what, at, magic) in KNOWN {
            let mut bytes = vec![0; 256 << 10];
            bytes[*at..*at + magic.len()].copy_from_slice(magic);
            assert_eq!(name(&bytes).as_deref(), Some(*what));
        }
    }

    #[test]
    fn zeroes_are_nothing_and_anything_else_is_data() {
        assert_eq!(name(&vec![0; 1 << 20]), None);
        assert_eq!(name(&[]), None);
        let mut bytes = vec![0; 1 << 20];
        bytes[777_777] = 1;
        assert_eq!(name(&bytes).as_deref(), Some("data: byte 777777 is not zero"));
        assert_eq!(name(&[1; 3]).as_deref(), Some("data: byte 0 is not zero"));
    }

    #[test]
    fn a_partition_table_before_a_file_system_is_the_file_system() {
        let mut bytes = vec![0; 4096];
        bytes[510..512].copy_from_slice(b"\x55\xaa");
        bytes[82..87].copy_from_slice(b"FAT32");
        assert_eq!(name(&bytes).as_deref(), Some("a FAT32 file system"));
    }

    #[test]
    fn a_pool_is_told_by_either_superblock_also_a_damaged_one() {
        let mut block = [0; BLOCK];
        let head = block::Head {
            kind: kind::SUPERBLOCK,
            level: 0,
            pool: [0xab; 16],
            generation: 1,
            address: BLOCK as u64,
            index: 0,
            owner: 0,
            count: 0,
        };
        block::seal(&mut block, &head);
        let mut bytes = vec![0; 3 * BLOCK];
        bytes[BLOCK..2 * BLOCK].copy_from_slice(&block);
        assert_eq!(name(&bytes), Some(format!("a Sheave pool ({})", "ab".repeat(16))));
        bytes[BLOCK + 100] ^= 1;
        assert_eq!(name(&bytes).as_deref(), Some("a Sheave pool, damaged or of a newer version"));
    }

    #[test]
    fn devices_of_any_kind_are_read() {
        let device = open_device("ram:size=1M").expect("a device");
        assert_eq!(find(&device).expect("it can be read"), None);
        let read = Reader::new(&device).and_then(|mut reader| reader.read(512, 300 << 10));
        assert_eq!(read.expect("it can be read").len(), 300 << 10);
        let bad = open_device("fault:error=1,over=ram:size=1M").expect("a device");
        assert!(find(&bad).expect_err("every read fails").cause().contains("cannot read byte 0"));
    }
}
