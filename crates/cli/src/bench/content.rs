//! Protection of data that a run would overwrite: the contents of files are checked before one is opened for writing.
//!
//! Files that bench itself has written may be written again, because their blocks can be recognised ([`block::left`]).
//! Any other contents require `--overwrite`. That includes larger blocks of an earlier run that a run of reads and
//! writes without verification has partly overwritten. Owns the extent of the check, and the messages.
//!
//! * C1. A file of at most [`WHOLE`] bytes is read completely. Of a larger file, three kinds of ranges are read: the
//!   first [`MAX_LEN`] bytes, a piece at each of up to [`PLACES`] evenly spaced positions, at which blocks of every
//!   usual length begin, and, if the file has holes, a piece at the start of each of up to [`PLACES`] data extents.
//! * C2. Block devices and devices of servers are not checked. They are never overwritten without `--overwrite`,
//!   whatever devices are stacked on them.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, SeekFrom};
use sheave_base::zeroes::is_zero;
use sheave_daemon::failure::Failure;
use sheave_daemon::place;
use sheave_drivers::spec;
use sheave_load::verify::block::{self, Left, MAX_LEN, MIN_LEN};

use crate::pool::signature;

/// Maximum size of a file that is read completely (C1).
const WHOLE: u64 = 256 << 20;
/// Maximum number of positions in a larger file (C1).
const PLACES: u64 = 4096;
/// Length of a read, which is more than the longest block, and below it the length of the piece at each position.
const WINDOW: usize = 2 * MAX_LEN;
const PIECE: usize = 64 << 10;
/// Kinds of devices that are empty before a run, or whose files are checked (C2). The last three are stacked on other
/// devices, which are checked.
const LOOKED_AT: [&str; 6] = ["null", "ram", "file", "fault", "partition", "linear"];

/// Returns the file or block device of a spec `file:...`.
pub fn file_of(text: &str) -> Option<PathBuf> {
    split_file(text).map(|(path, _)| PathBuf::from(path))
}

/// Splits a spec `file:...` into path and options.
pub fn split_file(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("file:")?;
    Some(match spec::take_quoted(rest) {
        Some((Some(path), options)) => (path, options),
        _ => rest.split_once(',').unwrap_or((rest, "")),
    })
}

/// Returns the files and block devices that a spec names at any depth.
fn files_of(text: &str) -> Vec<PathBuf> {
    spec::leaves(text).into_iter().filter_map(file_of).collect()
}

/// Fails if the run would overwrite a file with content that bench did not write, or a device that is not checked (C2).
pub fn refuse_to_overwrite(text: &str) -> Result<(), Failure> {
    if let Some(far) = spec::leaves(text).into_iter().find(|leaf| is_far(leaf)) {
        return Err(Failure::usage(format!("this run would overwrite what is stored at {}", spec::masked(far)))
            .fix("add --overwrite if nothing in it is needed; it is not looked at before"));
    }
    for path in files_of(text) {
        let found = std::fs::metadata(&path);
        if found.as_ref().is_ok_and(|meta| meta.file_type().is_block_device()) {
            return Err(Failure::usage(format!("this run would overwrite a block device, {}", path.display()))
                .fix("add --overwrite if nothing on the device is needed, or use a file"));
        }
        let is_file = found.is_ok_and(|meta| meta.is_file());
        // A file that cannot be read cannot be opened for the run either, and the error of that open explains why.
        let found = File::open(&path).ok().filter(|_| is_file).map(|file| look(&file)).transpose();
        let found = found.map_err(|err| {
            Failure::run(format!("cannot read {}, which this run would overwrite: {err}", path.display()))
                .fix("choose another file")
        })?;
        if let Some(what) = found.flatten() {
            return Err(refused(&path, &what));
        }
    }
    Ok(())
}

/// Returns true if a device with no other device under it stores its data where the data is not checked. Returns false
/// for a spec of an unknown kind, which fails to open with a better message.
fn is_far(leaf: &str) -> bool {
    leaf.split_once(':').is_some_and(|(kind, _)| place::is_kind(kind) && !LOOKED_AT.contains(&kind))
}

fn refused(path: &Path, what: &str) -> Failure {
    Failure::usage(format!("this run would overwrite {}, which holds {what}", path.display()))
        .fix("add --overwrite if nothing in it is needed, or name a file that does not exist yet, with its size=")
}

/// Describes foreign contents of a file. Returns `None` if bench has written everything in it.
fn look(file: &File) -> io::Result<Option<String>> {
    let len = file.metadata()?.len();
    let Some(at) = foreign(file, len)? else { return Ok(None) };
    let mut head = vec![0; signature::LOOK.min(len) as usize];
    file.read_exact_at(&mut head, 0)?;
    Ok(Some(signature::known(&head).unwrap_or_else(|| format!("data that bench did not write (at byte {at})"))))
}

/// Returns the position of the first foreign content (C1).
fn foreign(file: &File, len: u64) -> io::Result<Option<u64>> {
    if len <= WHOLE {
        return foreign_within(file, 0, len);
    }
    let stride = (len / PLACES).next_multiple_of(MAX_LEN as u64);
    let places = (1..).map(|number| number * stride).take_while(|place| *place < len);
    let pieces = places.map(|place| (place, (place + PIECE as u64).min(len)));
    let begins = data_of(file).take(PLACES as usize).map(|place| (place, (place + PIECE as u64).min(len)));
    for (from, to) in std::iter::once((0, MAX_LEN as u64)).chain(begins).chain(pieces) {
        if let Some(at) = foreign_within(file, from, to)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Returns the positions at which data extents of a file begin; none if its file system does not report holes.
fn data_of(file: &File) -> impl Iterator<Item = u64> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let data = rustix::fs::seek(file, SeekFrom::Data(at)).ok()?;
        at = rustix::fs::seek(file, SeekFrom::Hole(data)).ok()?;
        Some(data)
    })
}

/// Drops the first `range` bytes of a file from the page cache, except dirty pages, if the file is read through it.
pub fn drop_pages(path: &Path, range: u64) -> Result<(), Failure> {
    let drop =
        || rustix::fs::fadvise(File::open(path)?, 0, NonZeroU64::new(range), Advice::DontNeed).map_err(Into::into);
    drop().map_err(|err: io::Error| {
        Failure::run(format!("{}: the page cache cannot be told to forget it: {err}", path.display()))
            .fix("add invalidate=0 to the job, which reads what is in the page cache from there")
    })
}

/// Returns the number of data bytes among the first `range` bytes of a file, as far as its file system reports holes.
pub fn data_bytes(file: &File, range: u64) -> io::Result<u64> {
    let (mut at, mut bytes) = (0, 0);
    while at < range {
        let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(data) if data < range => data,
            Ok(_) | Err(rustix::io::Errno::NXIO) => break,
            Err(err) => return Err(err.into()),
        };
        at = rustix::fs::seek(file, SeekFrom::Hole(data))?;
        bytes += at.min(range) - data;
    }
    Ok(bytes)
}

/// Returns the position of the first block with foreign contents that begins at `from` or later, and before `to`.
fn foreign_within(file: &File, from: u64, to: u64) -> io::Result<Option<u64>> {
    let (mut pos, mut window, mut start) = (from, Vec::new(), from);
    let mut want = usize::try_from(to - from).unwrap_or(WINDOW).clamp(PIECE, WINDOW);
    while pos < to {
        let rest = window.get((pos - start) as usize..).unwrap_or_default();
        let more = match block::left(rest) {
            Left::Ours(bytes) => {
                pos += bytes as u64;
                continue;
            }
            Left::Foreign if rest.len() >= MIN_LEN => return Ok(Some(pos)),
            Left::Foreign => MIN_LEN,
            Left::More(bytes) => bytes,
        };
        // A block that is cut off by the end of the file cannot be one that a run has written.
        want = want.max(more);
        (start, window) = (pos, read(file, pos, want)?);
        if window.len() < more {
            return Ok((!is_zero(&window)).then_some(pos));
        }
    }
    Ok(None)
}

/// Reads `len` bytes, or fewer at the end of the file.
fn read(file: &File, pos: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut have = 0;
    while have < len {
        match file.read_at(&mut bytes[have..], pos + have as u64) {
            Ok(0) => break,
            Ok(more) => have += more,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    bytes.truncate(have);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_load::verify::block::{Identity, seal};

    fn file(bytes: &[u8]) -> File {
        let file = tempfile::tempfile().expect("a file");
        file.write_all_at(bytes, 0).expect("written");
        file
    }

    fn sealed(address: u64, len: usize) -> Vec<u8> {
        let mut block = vec![0; len];
        seal(&mut block, Identity { run: 9, address, generation: 2 });
        block
    }

    #[test]
    fn files_are_found_under_every_device() {
        let of = |text: &str| files_of(text).into_iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        assert_eq!(of("file:/a/b,size=1M"), ["/a/b"]);
        assert_eq!(of("file:\"a,b\",size=1M"), ["a,b"]);
        assert_eq!(of("fault:error=0.1,over=file:x,direct=off"), ["x"]);
        assert_eq!(of("linear:over=file:a+fault:over=file:b+ram:size=1M"), ["a", "b"]);
        assert!(of("ram:size=1M").is_empty() && of("null:").is_empty() && of("fault:error=1").is_empty());
    }

    #[test]
    fn what_bench_wrote_is_told_from_the_rest() {
        let mut ours: Vec<u8> = (0..100).flat_map(|at| sealed(at * 8192, 4096).into_iter().chain([0; 4096])).collect();
        assert_eq!(look(&file(&ours)).expect("read"), None);
        assert_eq!(look(&file(&[])).expect("read"), None);
        for at in [0, 4096 + 17, 500_000] {
            ours[at] ^= 1;
            let found = look(&file(&ours)).expect("read").expect("foreign");
            assert!(found.contains(&format!("at byte {}", at / 512 * 512)) || at % 8192 < 4096, "{at}: {found}");
            ours[at] ^= 1;
        }
        let mut tail = sealed(0, 4096);
        tail.extend_from_slice(b"x");
        assert!(
            look(&file(&tail)).expect("read").expect("foreign").contains("at byte 4096"),
            "less than a sector counts"
        );
        assert!(look(&file(&sealed(0, 4096)[..2048])).expect("read").is_some(), "the half of a block");
        let mut ext4 = vec![0; 1 << 20];
        ext4[1080..1082].copy_from_slice(b"\x53\xef");
        assert_eq!(look(&file(&ext4)).expect("read").as_deref(), Some("an ext2, ext3 or ext4 file system"));
    }

    #[test]
    fn of_a_large_file_places_are_looked_at() {
        let large = file(&sealed(0, 1 << 20));
        large.set_len(1 << 30).expect("grown");
        large.write_all_at(&sealed(512 << 20, MAX_LEN), 512 << 20).expect("written");
        assert_eq!(look(&large).expect("read"), None, "blocks of 16 MiB, too");
        large.write_all_at(b"somebody's", 64 << 20).expect("written");
        assert!(look(&large).expect("read").expect("foreign").contains("at byte 67108864"));
    }

    #[test]
    fn of_a_large_file_with_holes_each_stretch_of_data_is_looked_at() {
        let large = file(&[]);
        large.set_len(1 << 30).expect("grown");
        large.write_all_at(&sealed(40 << 20, 1 << 20), 40 << 20).expect("written");
        assert_eq!(look(&large).expect("read"), None);
        large.write_all_at(&[7; 4 << 20], 20 << 20).expect("written");
        assert!(look(&large).expect("read").expect("foreign").contains("at byte 20971520"));
    }

    #[test]
    fn holes_count_within_the_range() {
        let holed = file(&[]);
        holed.set_len(8 << 20).expect("grown");
        assert_eq!(data_bytes(&holed, 8 << 20).expect("told"), 0);
        holed.write_all_at(&[7; 1 << 20], 2 << 20).expect("written");
        holed.write_all_at(&[7; 1 << 20], 7 << 20).expect("written");
        if data_bytes(&holed, 8 << 20).expect("told") == 8 << 20 {
            return sheave_testkit::skip("the file system tells of no holes");
        }
        for (range, data) in [(1 << 20, 0), (2 << 20, 0), (5 << 19, 1 << 19), (7 << 20, 1 << 20), (8 << 20, 2 << 20)] {
            assert_eq!(data_bytes(&holed, range).expect("told"), data, "{range}");
        }
    }

    #[test]
    fn what_is_not_looked_at_is_not_overwritten() {
        for spec in [
            "nbd:unix:/run/x",
            "rbd:rbd/disk",
            "fault:eio=1,over=nbd:storage/disk",
            "partition:start=0,over=rbd:a/b",
            "linear:over=ram:size=1M+nbd:unix:/run/x",
            "linear:over=file:a+rbd:a/b",
            "linear:over=ram:size=1M+fault:eio=1,over=nbd:unix:/run/x",
        ] {
            let refused = refuse_to_overwrite(spec).expect_err(spec).to_string();
            assert!(refused.contains("would overwrite"), "{spec}: {refused}");
        }
        for spec in [
            "ram:size=1M",
            "linear:over=null:+ram:",
            "file:/no/nbd:x",
            "linear:over=ram:+file:\"/no/a+nbd:x\"",
            "nul:size=1M",
        ] {
            refuse_to_overwrite(spec).expect(spec);
        }
        // Uses any block device of this machine. It is not opened.
        let devices = std::fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
        let Some(device) =
            devices.map(|entry| std::path::Path::new("/dev").join(entry.file_name())).find(|path| path.exists())
        else {
            return sheave_testkit::skip("the machine has no block device");
        };
        let path = device.display();
        for spec in [
            format!("file:{path}"),
            format!("partition:start=0,over=file:{path}"),
            format!("linear:over=ram:size=1M+file:{path}"),
        ] {
            let refused = refuse_to_overwrite(&spec).expect_err(&spec).to_string();
            assert!(refused.contains("block device"), "{spec}: {refused}");
        }
    }
}
