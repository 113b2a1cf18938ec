//! A write-ahead log with group commit: a record is acknowledged when it is durable, and one flush of the device makes
//! the waiting records of all threads durable.
//!
//! ```sh
//! cargo run --release --example wal -- file:/tmp/log,size=64M append first second
//! cargo run --release --example wal -- file:/tmp/log,size=64M list
//! cargo run --release --example wal -- file:/tmp/log,size=64M load 16 1000
//! ```
//!
//! Owns the layout of its device: groups of records, one after the other, each from the start of a block. A group is a
//! header ([`HEADER`] bytes, little-endian: magic, bytes of the records, number of the group, checksum of the group
//! before, checksum of this one), then for each record its length and its bytes, then zeroes up to a whole block.
//!
//! Invariants:
//! - W1: a group is written when the one before it is durable. Thus no whole group of the same log follows a torn one,
//!   and the first group that is not whole is the end.
//! - W2: a record is acknowledged after the flush that follows its group. A chain ties the two: a failed write cancels
//!   the flush.
//! - W3: after a failed write or flush the content of the device is unknown, so the log accepts no more records until
//!   it is opened again.
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crc_fast::{CrcAlgorithm, checksum};
use sheave::{Buf, Device, Fd, Op, Ring, op, open_device};

const USAGE: &str = "usage: wal SPEC append RECORD... | list | load THREADS RECORDS";

/// Groups begin and end at multiples of this many bytes.
const BLOCK: usize = 4096;
/// Largest number of bytes of a group.
const GROUP: usize = 1 << 20;
const MAGIC: [u8; 4] = *b"WAL1";
/// Number of bytes of a group's header: magic, length, number, checksum of the group before, checksum of this group.
const HEADER: usize = 4 + 4 + 8 + 4 + 4;
/// Position of the group's checksum, which covers everything but itself.
const SUM: usize = HEADER - 4;
/// Largest number of bytes of a record: a group without its header and without the record's length.
const RECORD: usize = GROUP - HEADER - 4;

/// User data of the two operations of a commit, and of the read of a recovery.
const WRITE: u64 = 1;
const FLUSH: u64 = 2;
const READ: u64 = 3;

type Failure = Box<dyn Error + Send + Sync>;

/// A record to append, and the channel for its acknowledgement.
struct Append {
    record: Vec<u8>,
    acknowledge: Sender<Result<(), String>>,
}

/// A log that any number of threads append to.
struct Log {
    /// `None` while the log is being dropped.
    appends: Option<Sender<Append>>,
    writer: Option<JoinHandle<()>>,
}

impl Log {
    /// Opens the log of a device, an empty one on a device of zeroes. Returns the log and the records in it.
    fn open(device: &Device) -> Result<(Log, Vec<Vec<u8>>), Failure> {
        let (appends, wanted) = mpsc::channel();
        let (opened, answer) = mpsc::channel();
        let device = device.clone();
        // A ring belongs to the thread that made it, so the writer makes its own.
        let writer = thread::Builder::new().name("wal".into()).spawn(move || match Writer::open(&device) {
            Ok((writer, records)) => {
                // Fails if the opener is gone; then `run` ends at once, too.
                let _ = opened.send(Ok(records));
                writer.run(&wanted);
            }
            Err(error) => _ = opened.send(Err(error)),
        })?;
        let records = answer.recv()??;
        Ok((Log { appends: Some(appends), writer: Some(writer) }, records))
    }

    /// Appends a record. When this returns `Ok`, the record is durable.
    fn append(&self, record: Vec<u8>) -> Result<(), Failure> {
        if record.len() > RECORD {
            return Err(format!("a record of {} bytes; a group has room for {RECORD}", record.len()).into());
        }
        let (acknowledge, answer) = mpsc::channel();
        let appends = self.appends.as_ref().ok_or("the log is closed")?;
        appends.send(Append { record, acknowledge }).map_err(|_| "the writer of the log is gone")?;
        Ok(answer.recv().map_err(|_| "the writer of the log is gone")??)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.appends = None;
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has printed its message.
            let _ = writer.join();
        }
    }
}

/// The end of the log so far: the position and the header fields of the next group.
#[derive(Clone, Copy, Default)]
struct End {
    /// Byte offset on the device.
    at: u64,
    /// Number of the next group.
    number: u64,
    /// Checksum of the group before.
    sum: u32,
}

impl End {
    /// Makes a group of these records. Returns its length in bytes.
    fn encode(&self, records: &[Append], group: &mut [u8]) -> usize {
        let mut at = HEADER;
        for Append { record, .. } in records {
            group[at..at + 4].copy_from_slice(&(record.len() as u32).to_le_bytes());
            group[at + 4..at + 4 + record.len()].copy_from_slice(record);
            at += 4 + record.len();
        }
        let whole = at.next_multiple_of(BLOCK);
        group[at..whole].fill(0);
        group[..4].copy_from_slice(&MAGIC);
        group[4..8].copy_from_slice(&((at - HEADER) as u32).to_le_bytes());
        group[8..16].copy_from_slice(&self.number.to_le_bytes());
        group[16..20].copy_from_slice(&self.sum.to_le_bytes());
        let sum = sum_of(&group[..whole]);
        group[SUM..HEADER].copy_from_slice(&sum.to_le_bytes());
        whole
    }

    /// Returns the records of the group at the start of `bytes`, and the group's length; `None` unless it is whole and
    /// the next one of this log.
    fn decode(&self, bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let len = word(4)? as usize;
        let whole = len.checked_add(HEADER)?.next_multiple_of(BLOCK);
        let number = u64::from_le_bytes(bytes.get(8..16)?.try_into().ok()?);
        let next = bytes.get(..4)? == MAGIC && number == self.number && word(16)? == self.sum;
        let group = bytes.get(..whole).filter(|group| next && word(SUM) == Some(sum_of(group)))?;
        let mut records = Vec::new();
        let mut rest = &group[HEADER..HEADER + len];
        while let Some((len, after)) = rest.split_first_chunk::<4>() {
            let (record, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            records.push(record.to_vec());
            rest = after;
        }
        Some((records, whole))
    }

    /// Moves the end past this group.
    fn pass(&mut self, group: &[u8]) {
        self.at += group.len() as u64;
        self.number += 1;
        self.sum = sum_of(group);
    }
}

/// Returns the checksum of a group, which covers all of the group except the bytes that hold the checksum.
fn sum_of(group: &[u8]) -> u32 {
    let body = checksum(CrcAlgorithm::Crc32Iscsi, &group[HEADER..]) as u32;
    let mut head = [0; HEADER];
    head[..SUM].copy_from_slice(&group[..SUM]);
    head[SUM..].copy_from_slice(&body.to_le_bytes());
    checksum(CrcAlgorithm::Crc32Iscsi, &head) as u32
}

/// The state of the thread that owns the ring.
struct Writer {
    ring: Ring,
    fd: Fd,
    size: u64,
    end: End,
    /// Buffer for the next group; `None` after a failure (W3).
    group: Option<Buf>,
}

impl Writer {
    fn open(device: &Device) -> Result<(Writer, Vec<Vec<u8>>), Failure> {
        if device.limits().logical_block as usize > BLOCK {
            return Err(format!("{} has blocks of more than {BLOCK} bytes", device.name()).into());
        }
        let mut ring = Ring::builder().entries(8).build()?;
        let fd = ring.attach(device)?;
        let size = device.size_bytes() / BLOCK as u64 * BLOCK as u64;
        let group = Some(Buf::zeroed(GROUP, BLOCK)?);
        let mut writer = Writer { ring, fd, size, end: End::default(), group };
        let records = writer.recover()?;
        Ok((writer, records))
    }

    /// Reads the log to its end.
    fn recover(&mut self) -> Result<Vec<Vec<u8>>, Failure> {
        let mut records = Vec::new();
        loop {
            let len = (self.size - self.end.at).min(GROUP as u64) as usize;
            let window = self.group.take().ok_or("no buffer")?;
            self.ring.push(op::read(self.fd, window).part(0..len).offset(self.end.at).user_data(READ))?;
            let window = self.finish(READ, len)?.ok_or("the read kept its buffer")?;
            let mut rest = &window[..len];
            while let Some((group, whole)) = self.end.decode(rest) {
                records.extend(group);
                self.end.pass(&rest[..whole]);
                rest = &rest[whole..];
            }
            // A group that the window cuts off is whole in the next one; a group that is not whole at the start of a
            // window ends the log.
            let ended = rest.len() == len;
            self.group = Some(window);
            if ended {
                break;
            }
        }
        // The last group may have been written and not flushed when the program died. A caller that is given its
        // records must not lose them afterwards.
        self.ring.push(op::fsync(self.fd).user_data(FLUSH))?;
        self.finish(FLUSH, 0)?;
        Ok(records)
    }

    /// Writes groups of appended records, until the log is dropped.
    fn run(mut self, wanted: &Receiver<Append>) {
        let mut next = None;
        while let Some(first) = next.take().or_else(|| wanted.recv().ok()) {
            let mut room = RECORD - first.record.len();
            let mut appends = vec![first];
            // Everything that arrived while the last group was being written.
            while let Ok(append) = wanted.try_recv() {
                if append.record.len() + 4 > room {
                    next = Some(append);
                    break;
                }
                room -= append.record.len() + 4;
                appends.push(append);
            }
            let done = self.commit(&appends).map_err(|error| error.to_string());
            for append in appends {
                // Fails if the appending thread stopped waiting.
                let _ = append.acknowledge.send(done.clone());
            }
        }
    }

    /// Writes a group and makes it durable (W2).
    fn commit(&mut self, appends: &[Append]) -> Result<(), Failure> {
        let mut group = self.group.take().ok_or("the log has failed: open it again")?;
        let len = self.end.encode(appends, &mut group);
        if len as u64 > self.size - self.end.at {
            self.group = Some(group);
            return Err("the log is full".into());
        }
        let write = op::write(self.fd, group).part(0..len).offset(self.end.at).user_data(WRITE);
        self.ring.push_chain([write.into(), op::fsync(self.fd).user_data(FLUSH).into()])?;
        let group = self.finish(WRITE, len)?.ok_or("the write kept its buffer")?;
        self.end.pass(&group[..len]);
        self.group = Some(group);
        Ok(())
    }

    /// Submits what was pushed and waits for all of it. Returns the buffer that came back. The operation with this user
    /// data must transfer `len` bytes, all others none.
    fn finish(&mut self, user_data: u64, len: usize) -> Result<Option<Buf>, Failure> {
        self.ring.submit()?;
        self.ring.drain();
        let (mut buf, mut result) = (None, Ok(()));
        while let Some(done) = self.ring.pop() {
            let expected = if done.user_data == user_data { len } else { 0 };
            // The first failure is the cause of the others.
            result = result.and_then(|()| match done.result() {
                Ok(bytes) if bytes as usize == expected => Ok(()),
                Ok(bytes) => Err(format!("{bytes} bytes of {expected}").into()),
                Err(error) => Err(Failure::from(error)),
            });
            buf = done.into_buf().or(buf);
        }
        result.map(|()| buf)
    }
}

/// Runs threads that append records, each when its last one is durable.
fn load(device: &Device, threads: u64, records: u64) -> Result<(), Failure> {
    let (log, _) = Log::open(device)?;
    let groups = || device.stats().op(Op::Write).ios;
    let before = groups();
    let start = Instant::now();
    thread::scope(|scope| {
        let append =
            |thread| (0..records).try_for_each(|n| log.append(format!("record {n} of thread {thread}").into_bytes()));
        let all: Vec<_> = (0..threads).map(|thread| scope.spawn(move || append(thread))).collect();
        all.into_iter().try_for_each(|one| one.join().map_err(|_| "a thread panicked")?)
    })?;
    let (all, ns) = (threads * records, start.elapsed().as_nanos() as f64);
    println!("{all} records, {:.1} us each, {} groups", ns / 1000.0 / all.max(1) as f64, groups() - before);
    Ok(())
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let [spec, command, rest @ ..] = args.as_slice() else { return Err(USAGE.into()) };
    let device = open_device(spec)?;
    match (*command, rest) {
        ("append", records) => {
            let (log, _) = Log::open(&device)?;
            records.iter().try_for_each(|record| log.append(record.as_bytes().to_vec()))
        }
        ("list", []) => {
            let (_, records) = Log::open(&device)?;
            records.iter().for_each(|record| println!("{}", String::from_utf8_lossy(record)));
            Ok(())
        }
        ("load", [threads, records]) => load(&device, threads.parse()?, records.parse()?),
        _ => Err(USAGE.into()),
    }
}

#[cfg(test)]
#[path = "tests/wal.rs"]
mod tests;
