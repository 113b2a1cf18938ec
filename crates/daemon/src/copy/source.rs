//! An image to read from: a file with its holes, a block device, or a stream.
//!
//! Owns where data is: a file tells with SEEK_DATA and SEEK_HOLE, a device of a server by its extents ([`Spans`]),
//! everything else is read. Pieces begin and end at
//! multiples of [`GRAIN`] from the start of the image, but for the last; what is short of one is filled up with zeroes.
//! A read from a pipe waits in small steps, so that Ctrl-C is seen.

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

/// What is tracked as written or not.
pub const GRAIN: u64 = 4096;

/// The next piece of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// So many bytes were put into the buffer.
    Data(usize),
    /// So many bytes are zeroes, by what the file system says.
    Hole(u64),
    /// There is no more.
    End,
    /// Ctrl-C.
    Stopped,
}

/// An image.
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
    /// Read by the ring that writes the volume ([`Source::device`]).
    Device {
        device: Device,
    },
}

impl Source {
    /// Opens a file or block device, or takes stdin for `-`.
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

    /// What is read in order from where it stands, whatever it is.
    pub fn stream(stream: File, name: String) -> Self {
        Self { name, from: From::Stream { stream }, pos: 0 }
    }

    /// An open file, block device or pipe.
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

    /// The device that it is, if it is one.
    pub fn device(&self) -> Option<&Device> {
        match &self.from {
            From::Device { device } => Some(device),
            From::File { .. } | From::Stream { .. } => None,
        }
    }

    /// What it is read from, for the process that holds the pool.
    ///
    /// # Errors
    ///
    /// A device cannot be passed on.
    pub fn file(&self) -> Result<&File, Failure> {
        match &self.from {
            From::File { file, .. } | From::Stream { stream: file } => Ok(file),
            From::Device { .. } => Err(not_passed(&self.name)),
        }
    }

    /// What the process that holds the pool must be told of a stream, beside the descriptor.
    pub fn told_as_stream(&self) -> Option<bool> {
        match &self.from {
            From::Stream { stream } => told_as_stream(stream),
            From::File { .. } | From::Device { .. } => None,
        }
    }

    /// Its bytes; `None` for a stream.
    pub fn size(&self) -> Option<u64> {
        match &self.from {
            From::File { len, .. } => Some(*len),
            From::Stream { .. } => None,
            From::Device { device } => Some(device.size_bytes()),
        }
    }

    /// Refuses an image that somebody has locked: the file of a pool that is open, this one's own included.
    pub fn refuse_locked(&self) -> Result<(), Failure> {
        let Ok(file) = self.file() else { return Ok(()) };
        // A file system without such locks has none that could be in the way.
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
            Err(rustix::io::Errno::WOULDBLOCK) => {
                Err(Failure::run(format!("{} is in use: a process holds a lock on it", self.name))
                    .fix("choose another image; it may be that of a pool, even of this one"))
            }
            _ => Ok(()),
        }
    }

    /// The error for an image without a single byte.
    pub fn empty(&self) -> Failure {
        let fix = match &self.from {
            From::File { .. } | From::Device { .. } => {
                "name another file; for a volume without content: sheave volume create"
            }
            From::Stream { .. } => "see whether the program that writes it failed; nothing was changed",
        };
        Failure::run(format!("{} is empty: there is nothing to import", self.name)).fix(fix)
    }

    /// Its next bytes, holes as zeroes; an error when `stop` is set. For what is no raw image.
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

    /// Where the next piece begins.
    pub fn pos(&self) -> u64 {
        self.pos
    }

    /// The next piece; `buf` has a multiple of [`GRAIN`] bytes.
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

/// Where data of a device is, as far as the device knows; asked for as a copy goes on.
#[derive(Debug)]
pub struct Spans<'a> {
    device: &'a Device,
    /// What pieces begin and end at, but for the last.
    grain: u64,
    known: VecDeque<Extent>,
    /// Where the first of them begins.
    at: u64,
    /// The device knows no more.
    reads_all: bool,
}

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// So many bytes are to be read, or more.
    Data(u64),
    /// So many bytes are zeroes, by what the device says.
    Hole(u64),
}

impl<'a> Spans<'a> {
    /// Those of a device that is copied from its start.
    pub fn of(device: &'a Device) -> Spans<'a> {
        let grain = GRAIN.max(u64::from(device.limits().logical_block));
        Spans { device, grain, known: VecDeque::new(), at: 0, reads_all: false }
    }

    /// What begins at `pos`, which is a multiple of the grain, before the end, and not before that of the last call.
    ///
    /// # Errors
    ///
    /// What the device says of itself cannot be right.
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
        // A hole that does not fill the grain is read with its neighbour.
        let hole_end = if end == size { size } else { end - end % self.grain };
        if first.zero && hole_end > pos {
            return Ok(Span::Hole(hole_end - pos));
        }
        Ok(Span::Data(end.next_multiple_of(self.grain).min(size) - pos))
    }
}

/// A device is read by a ring, in blocks.
fn no_stream() -> io::Error {
    io::Error::other("a device is no file to read in order")
}

/// True of a stream that is a file or block device: stdin and stdout can be one, with a place where they stand. Of what
/// can be nothing but a stream there is nothing to tell.
pub(super) fn told_as_stream(stream: &File) -> Option<bool> {
    let is_other = |kind: FileType| !kind.is_file() && !kind.is_block_device();
    if stream.metadata().is_ok_and(|meta| is_other(meta.file_type())) { None } else { Some(true) }
}

/// The error for a device where a file must be handed to the server that holds the pool.
pub(super) fn not_passed(name: &str) -> Failure {
    Failure::usage(format!("{name} cannot be passed to the server that holds the pool"))
        .fix("close the pool there first, or copy through a pipe: nbdcopy URI - | sheave volume import - POOL#NAME")
}

fn failed(name: &str, err: &io::Error) -> Failure {
    Failure::run(format!("cannot read {name}: {err}"))
}

/// What an image is in that is not raw, and how it becomes raw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Other {
    /// A format of images, as `qemu-img` calls it.
    Image(&'static str),
    /// A compressed file, and the program that unpacks it to stdout.
    Packed(&'static str, &'static str),
    /// An encrypted container.
    Luks,
}

/// By where they are and what they are: bytes that begin what is no raw image.
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

/// What begins so, if that is no raw image.
fn other_format(head: &[u8]) -> Option<Other> {
    let is = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|head| head.starts_with(magic));
    let known = |(at, magic, other): &(usize, &[u8], Other)| match other {
        Other::Packed("bzip2", _) => is(0, b"BZh") && is(*at, magic),
        _ => is(*at, magic),
    };
    MAGICS.iter().find(|row| known(row)).map(|row| row.2)
}

/// An image of another format would become a volume that no guest understands.
fn refuse_other_formats(file: &File, name: &str) -> Result<(), Failure> {
    let mut head = [0; 96];
    let mut have = 0;
    // Files that end before are told by their first read.
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
            // A file system that knows no holes.
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
mod tests;
