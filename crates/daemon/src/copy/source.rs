//! The input of an import: a file with its holes, a block device, a device of a server, or a stream.
//!
//! Finds the ranges with data: by SEEK_DATA and SEEK_HOLE in a file, by its extents for a device of a server
//! ([`Spans`]); everything else is read completely. All pieces except the last begin and end at multiples of [`GRAIN`]
//! from the start of the image; a shorter read is padded with zeroes. A read from a pipe polls in short steps, so that
//! Ctrl-C is noticed.

use std::collections::VecDeque;
use std::fs::{File, FileType};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FlockOperation, SeekFrom};
use sheave::{Device, Extent};
use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::devices;
use crate::failure::{self, Failure};

/// Block size at which a volume tracks whether data is present.
pub const GRAIN: u64 = 4096;

/// Result of reading the next piece of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// This many bytes were read into the buffer.
    Data(usize),
    /// This many bytes are a hole of the file.
    Hole(u64),
    End,
    /// Ctrl-C was pressed, or the caller of the import went away.
    Stopped,
}

/// An input.
#[derive(Debug)]
pub struct Source {
    name: String,
    from: From,
    pos: u64,
}

#[derive(Debug)]
enum From {
    File {
        file: File,
        len: u64,
        has_holes: bool,
    },
    Stream {
        stream: File,
    },
    /// A device that is read through the ring of the volume ([`Source::device`]).
    Device {
        device: Device,
    },
}

impl Source {
    /// Opens a file or block device; `-` is stdin.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            let stream = io::stdin().as_fd().try_clone_to_owned().map_err(|err| failed("stdin", &err))?;
            return Ok(Self::stream(stream.into(), "stdin".into()));
        }
        let name = path.display().to_string();
        if devices::is_served(path) {
            let device = devices::open_device(&name).map_err(failure::device)?;
            return Ok(Self { name, from: From::Device { device }, pos: 0 });
        }
        let file = File::open(path).map_err(|err| failed(&name, &err).fix("check the path and its permissions"))?;
        Self::of(file, name)
    }

    /// Wraps a file that is read sequentially from its current position, whatever its type.
    pub fn stream(stream: File, name: String) -> Self {
        Self { name, from: From::Stream { stream }, pos: 0 }
    }

    /// Wraps an open file, block device or pipe.
    pub fn of(mut file: File, name: String) -> Result<Self, Failure> {
        let meta = file.metadata().map_err(|err| failed(&name, &err))?;
        if meta.is_dir() {
            return Err(Failure::usage(format!("{name} is a directory")).fix("name a raw image, a block device, or -"));
        }
        if !meta.is_file() && !meta.file_type().is_block_device() {
            return Ok(Self::stream(file, name));
        }
        refuse_other_formats(&file, &name)?;
        let len = match meta.is_file() {
            true => meta.len(),
            false => io::Seek::seek(&mut file, io::SeekFrom::End(0)).map_err(|err| failed(&name, &err))?,
        };
        Ok(Self { name, from: From::File { file, len, has_holes: meta.is_file() }, pos: 0 })
    }

    /// Returns the device, if the input is one.
    pub fn device(&self) -> Option<&Device> {
        match &self.from {
            From::Device { device } => Some(device),
            From::File { .. } | From::Stream { .. } => None,
        }
    }

    /// Returns the file to pass to the process that holds the pool.
    ///
    /// # Errors
    ///
    /// A device of a server cannot be passed.
    pub fn file(&self) -> Result<&File, Failure> {
        match &self.from {
            From::File { file, .. } | From::Stream { stream: file } => Ok(file),
            From::Device { .. } => Err(not_passed(&self.name)),
        }
    }

    /// Value of `stream` in the request to the process that holds the pool.
    pub fn told_as_stream(&self) -> Option<bool> {
        match &self.from {
            From::Stream { stream } => told_as_stream(stream),
            From::File { .. } | From::Device { .. } => None,
        }
    }

    /// Size in bytes; `None` for a stream.
    pub fn size(&self) -> Option<u64> {
        match &self.from {
            From::File { len, .. } => Some(*len),
            From::Stream { .. } => None,
            From::Device { device } => Some(device.size_bytes()),
        }
    }

    /// Fails if the image is locked, as the file of an open pool is (also of the pool that is imported into).
    pub fn refuse_locked(&self) -> Result<(), Failure> {
        let Ok(file) = self.file() else { return Ok(()) };
        // On a file system without `flock` nobody can hold a lock.
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(Failure::run(format!("{} is in use: a process holds a lock on it", self.name))
                    .fix("choose another image; it may be that of a pool, even of this one"))
            }
            _ => Ok(()),
        }
    }

    /// The failure for an image of zero bytes.
    pub fn empty(&self) -> Failure {
        let fix = match &self.from {
            From::File { .. } | From::Device { .. } => {
                "name another file; for a volume without content: sheave volume create"
            }
            From::Stream { .. } => "see whether the program that writes it failed; nothing was changed",
        };
        Failure::run(format!("{} is empty: there is nothing to import", self.name)).fix(fix)
    }

    /// Reads the next bytes of a diff, with holes as zeroes. Fails when `stop` is set.
    pub fn read(&mut self, buf: &mut [u8], stop: &AtomicBool) -> io::Result<usize> {
        let bytes = match &mut self.from {
            // Relaxed: as in `next`.
            _ if stop.load(Ordering::Relaxed) => return Err(io::Error::other("Ctrl-C ended it")),
            From::File { file, .. } => file.read_at(buf, self.pos)?,
            From::Device { .. } => return Err(no_stream()),
            From::Stream { stream } => match next_of_stream(stream, buf, stop)? {
                Piece::Data(bytes) => bytes,
                Piece::Stopped => return Err(io::Error::other("Ctrl-C ended it")),
                Piece::Hole(_) | Piece::End => 0,
            },
        };
        self.pos += bytes as u64;
        Ok(bytes)
    }

    /// Position of the next piece.
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// Reads the next piece. The length of `buf` is a multiple of [`GRAIN`].
    pub fn next(&mut self, buf: &mut [u8], stop: &AtomicBool) -> Result<Piece, Failure> {
        // Relaxed: the flag carries nothing but itself.
        if stop.load(Ordering::Relaxed) {
            return Ok(Piece::Stopped);
        }
        let piece = match &mut self.from {
            From::File { file, len, has_holes } => next_of_file(file, self.pos, *len, *has_holes, buf),
            From::Stream { stream } => next_of_stream(stream, buf, stop),
            From::Device { .. } => Err(no_stream()),
        };
        let piece = piece.map_err(|err| {
            failed(&self.name, &err).fix("the volume was not made; look at the image, then try again")
        })?;
        match piece {
            Piece::Data(bytes) => self.pos += bytes as u64,
            Piece::Hole(bytes) => self.pos += bytes,
            Piece::End | Piece::Stopped => {}
        }
        Ok(piece)
    }
}

/// Iterator over data and holes of a device, from its start. Extents are queried as the copy proceeds.
#[derive(Debug)]
pub struct Spans<'a> {
    device: &'a Device,
    /// Alignment of all spans but the last.
    grain: u64,
    known: VecDeque<Extent>,
    /// Position of the first extent in `known`.
    at: u64,
    /// True if the device reports no more extents; the rest is read completely.
    reads_all: bool,
}

/// A range of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// At least this many bytes must be read.
    Data(u64),
    /// This many bytes are zeroes, according to the device.
    Hole(u64),
}

impl<'a> Spans<'a> {
    /// Spans of a device that is copied from its start.
    pub fn of(device: &'a Device) -> Spans<'a> {
        let grain = GRAIN.max(u64::from(device.limits().logical_block));
        Spans { device, grain, known: VecDeque::new(), at: 0, reads_all: false }
    }

    /// Returns the span at `pos`, which must be a multiple of the grain, less than the size, and not less than in the
    /// last call.
    ///
    /// # Errors
    ///
    /// The extents that the device reports are inconsistent.
    pub fn next(&mut self, pos: u64) -> Result<Span, Failure> {
        let size = self.device.size_bytes();
        while let Some(first) = self.known.front()
            && self.at + first.len <= pos
        {
            self.at += first.len;
            self.known.pop_front();
        }
        if self.known.is_empty() && !self.reads_all {
            self.known = self.device.extents(pos).map_err(failure::device)?.into();
            (self.at, self.reads_all) = (pos, self.known.is_empty());
        }
        let Some(first) = self.known.front() else { return Ok(Span::Data(size - pos)) };
        let end = (self.at + first.len).min(size);
        // The partial grain at the end of a hole is read together with the extent behind it.
        let hole_end = if end == size { size } else { end - end % self.grain };
        if first.zero && hole_end > pos {
            return Ok(Span::Hole(hole_end - pos));
        }
        Ok(Span::Data(end.next_multiple_of(self.grain).min(size) - pos))
    }
}

/// A device is read by the ring in blocks, and not as a stream.
fn no_stream() -> io::Error {
    io::Error::other("a device is no file to read in order")
}

/// Returns true if a stream is a file or block device, as stdin and stdout can be: the receiver must then use it from
/// its current position. Returns `None` for a pipe or socket, which cannot be anything but a stream.
pub(super) fn told_as_stream(stream: &File) -> Option<bool> {
    let is_other = |kind: FileType| !kind.is_file() && !kind.is_block_device();
    if stream.metadata().is_ok_and(|meta| is_other(meta.file_type())) { None } else { Some(true) }
}

/// The failure for a device of a server, where a file must be passed to the process that holds the pool.
pub(super) fn not_passed(name: &str) -> Failure {
    Failure::usage(format!("{name} cannot be passed to the server that holds the pool"))
        .fix("close the pool there first, or copy through a pipe: nbdcopy URI - | sheave volume import - POOL#NAME")
}

fn failed(name: &str, err: &io::Error) -> Failure {
    Failure::run(format!("cannot read {name}: {err}"))
}

/// A format other than raw, with the information needed to convert it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// An image format, by its name in `qemu-img`.
    Image(&'static str),
    /// A compressed file: its format, and the command that unpacks it to stdout.
    Packed(&'static str, &'static str),
    Luks,
}

/// Signatures of formats other than raw: offset, bytes, format.
const MAGICS: [(usize, &[u8], Other); 16] = [
    (0, b"QFI\xfb", Other::Image("qcow2")),
    (0, b"KDMV", Other::Image("vmdk")),
    (0, b"# Disk DescriptorFile", Other::Image("vmdk")),
    (0, b"vhdxfile", Other::Image("vhdx")),
    (0, b"conectix", Other::Image("vpc")),
    (64, b"\x7f\x10\xda\xbe", Other::Image("vdi")),
    (0, b"QED\0", Other::Image("qed")),
    (0, b"WithoutFreeSpace", Other::Image("parallels")),
    (0, b"WithouFreSpacExt", Other::Image("parallels")),
    (0, b"LUKS\xba\xbe", Other::Luks),
    (0, b"\x1f\x8b\x08", Other::Packed("gzip", "gzip -dc")),
    (0, b"\xfd7zXZ\0", Other::Packed("xz", "xz -dc")),
    (0, b"\x28\xb5\x2f\xfd", Other::Packed("zstd", "zstd -dc")),
    (0, b"\x04\x22\x4d\x18", Other::Packed("lz4", "lz4 -dc")),
    (4, b"1AY&SY", Other::Packed("bzip2", "bzip2 -dc")),
    (0, b"PK\x03\x04", Other::Packed("zip", "unzip -p")),
];

/// Returns the format whose signature `head` has.
fn other_format(head: &[u8]) -> Option<Other> {
    let is = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|head| head.starts_with(magic));
    let known = |(at, magic, other): &(usize, &[u8], Other)| match other {
        Other::Packed("bzip2", _) => is(0, b"BZh") && is(*at, magic),
        _ => is(*at, magic),
    };
    MAGICS.iter().find(|row| known(row)).map(|row| row.2)
}

/// Refuses images of other formats: imported as raw, they would be of no use to a guest.
fn refuse_other_formats(file: &File, name: &str) -> Result<(), Failure> {
    let mut head = [0; 96];
    let mut have = 0;
    // A read error ends the loop only; the first read of the copy reports it.
    while have < head.len() {
        match file.read_at(&mut head[have..], have as u64) {
            Ok(0) => break,
            Ok(bytes) => have += bytes,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let Some(other) = other_format(&head[..have]) else { return Ok(()) };
    let (what, fix) = match other {
        Other::Image(format) => (
            format!("a {format} image, not a raw one"),
            format!("convert it first: qemu-img convert -f {format} -O raw '{name}' raw.img"),
        ),
        Other::Packed(format, unpack) => (
            format!("a {format} file, not a raw image"),
            format!("unpack it into the import: {unpack} '{name}' | sheave volume import - ..."),
        ),
        Other::Luks => (
            "an encrypted container (LUKS), not a raw image".into(),
            format!("open it first, and import the device that this makes: cryptsetup open '{name}' NAME"),
        ),
    };
    let as_it_is = format!("or, to copy its bytes as they are: sheave volume import - ... < '{name}'");
    Err(Failure::usage(format!("{name} is {what}")).fix(format!("{fix}; {as_it_is}")))
}

fn next_of_file(file: &File, pos: u64, len: u64, has_holes: bool, buf: &mut [u8]) -> io::Result<Piece> {
    if pos >= len {
        return Ok(Piece::End);
    }
    let (mut data, mut end) = (pos, len);
    if has_holes {
        data = match rustix::fs::seek(file, SeekFrom::Data(pos)) {
            Ok(at) => at & !(GRAIN - 1),
            Err(rustix::io::Errno::NXIO) => len,
            // The file system does not support SEEK_DATA.
            Err(rustix::io::Errno::INVAL) => pos,
            Err(err) => return Err(err.into()),
        };
        if data > pos {
            return Ok(Piece::Hole(data.min(len) - pos));
        }
        if let Ok(hole) = rustix::fs::seek(file, SeekFrom::Hole(pos)) {
            end = hole.next_multiple_of(GRAIN).min(len);
        }
    }
    let want = (end - data).min(buf.len() as u64) as usize;
    file.read_exact_at(&mut buf[..want], data)?;
    Ok(Piece::Data(want))
}

fn next_of_stream(stream: &mut File, buf: &mut [u8], stop: &AtomicBool) -> io::Result<Piece> {
    let mut have = 0;
    while have < buf.len() {
        // Relaxed: as in `next`.
        if stop.load(Ordering::Relaxed) {
            return Ok(Piece::Stopped);
        }
        let tick = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match rustix::event::poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&tick)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(err) => return Err(err.into()),
        }
        match stream.read(&mut buf[have..]) {
            Ok(0) => break,
            Ok(bytes) => have += bytes,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(if have == 0 { Piece::End } else { Piece::Data(have) })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn pieces(source: &mut Source, buf: usize) -> Vec<Piece> {
        let (mut buf, stop) = (vec![0; buf], AtomicBool::new(false));
        let mut all = Vec::new();
        loop {
            match source.next(&mut buf, &stop).expect("it can be read") {
                Piece::End => return all,
                piece => all.push(piece),
            }
        }
    }

    #[test]
    fn a_file_with_holes() {
        let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let path = dir.path().join("a.img");
        let file = File::create(&path).expect("a file");
        file.write_all_at(&[1; 8192], 1 << 20).expect("written");
        file.set_len((2 << 20) + 100).expect("grown");
        file.sync_all().expect("synced");
        let mut source = Source::open(&path).expect("opened");
        assert_eq!(source.size(), Some((2 << 20) + 100));
        let found = pieces(&mut source, 1 << 20);
        let wanted = [Piece::Hole(1 << 20), Piece::Data(8192), Piece::Hole((1 << 20) - 8192 + 100)];
        if found != wanted {
            // On a file system without holes everything is data.
            assert_eq!(found, [Piece::Data(1 << 20), Piece::Data(1 << 20), Piece::Data(100)]);
        }
        assert_eq!(source.pos(), (2 << 20) + 100);
    }

    #[test]
    fn a_stream_fills_the_buffer_before_it_gives_it() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let writing = std::thread::spawn(move || {
            for _ in 0..10 {
                writer.write_all(&[7; 1000]).expect("written");
            }
        });
        let from = From::Stream { stream: File::from(std::os::fd::OwnedFd::from(reader)) };
        let mut source = Source { name: "pipe".into(), from, pos: 0 };
        assert_eq!(source.size(), None);
        assert_eq!(pieces(&mut source, 4096), [Piece::Data(4096), Piece::Data(4096), Piece::Data(1808)]);
        writing.join().expect("it ended");
    }

    #[test]
    fn ctrl_c_ends_the_wait_for_a_pipe() {
        let (reader, _writer) = io::pipe().expect("a pipe");
        let from = From::Stream { stream: File::from(std::os::fd::OwnedFd::from(reader)) };
        let mut source = Source { name: "pipe".into(), from, pos: 0 };
        let stop = std::sync::Arc::new(AtomicBool::new(false));
        let flag = stop.clone();
        let setter = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(50));
            // Relaxed: the flag carries nothing but itself.
            flag.store(true, Ordering::Relaxed);
        });
        assert_eq!(source.next(&mut [0; 4096], &stop).expect("no error"), Piece::Stopped);
        setter.join().expect("it ended");
    }

    #[test]
    fn images_of_other_formats_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        let vdi = [&[b'<'; 64][..], b"\x7f\x10\xda\xbe\x01\0\x01\0"].concat();
        let others: [(&[u8], &str, &str); 16] = [
            (b"QFI\xfb\0\0\0\x03", "qcow2", "qemu-img convert -f qcow2"),
            (b"KDMV\x01\0\0\0", "vmdk", "qemu-img convert -f vmdk"),
            (b"# Disk DescriptorFile\nversion=1\n", "vmdk", "qemu-img convert -f vmdk"),
            (b"vhdxfile", "vhdx", "qemu-img convert -f vhdx"),
            (b"conectix", "vpc", "qemu-img convert -f vpc"),
            (&vdi, "vdi", "qemu-img convert -f vdi"),
            (b"QED\0\0\0\x01\0", "qed", "qemu-img convert -f qed"),
            (b"WithoutFreeSpace\x02\0\0\0", "parallels", "qemu-img convert -f parallels"),
            (b"WithouFreSpacExt\x02\0\0\0", "parallels", "qemu-img convert -f parallels"),
            (b"LUKS\xba\xbe\0\x02", "LUKS", "cryptsetup open"),
            (b"\x1f\x8b\x08\0", "gzip", "gzip -dc"),
            (b"\xfd7zXZ\0\0\x04", "xz", "xz -dc"),
            (b"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"),
            (b"\x04\x22\x4d\x18", "lz4", "lz4 -dc"),
            (b"BZh91AY&SY", "bzip2", "bzip2 -dc"),
            (b"PK\x03\x04", "zip", "unzip -p"),
        ];
        for (head, format, fix) in others {
            std::fs::write(&path, head).expect("a file");
            let error = Source::open(&path).expect_err(format);
            let told = error.to_string();
            assert!(error.cause().contains(format) && told.contains(fix), "{error}");
            assert!(told.contains("import - ... <"), "how it is taken as it is: {error}");
            // As a stream any content is accepted.
            let stream = File::open(&path).expect("opened");
            assert!(Source::stream(stream, "stdin".into()).size().is_none());
        }
        let mut iso = vec![0; 32768];
        iso.extend(b"\x01CD001\x01");
        let boot: &[u8] = b"\xeb\x3c\x90mkfs.fat";
        for raw in [iso.as_slice(), boot, b"BZh9 is no pi", b"QED", b"a\x7f\x10\xda\xbe", &[0; 100]] {
            std::fs::write(&path, raw).expect("a file");
            assert_eq!(Source::open(&path).expect("raw").size(), Some(raw.len() as u64));
        }
        assert!(Source::open(dir.path()).expect_err("refused").cause().contains("directory"));
        assert!(Source::open(&dir.path().join("none")).expect_err("refused").cause().contains("cannot read"));
    }
}
