//! A trace as records of `blk_io_trace`, which blkparse, btt and fio's `read_iolog` take.
//!
//! Owns which events a request becomes, and their layout: 48 bytes in host order (magic and version 7, sequence, time
//! in ns, sector, bytes, action, process, device, CPU, error, bytes that follow).
//!
//! | event | when |
//! |---|---|
//! | Q, queued | it began |
//! | G, it has a request | the wait for a tag was over |
//! | I, inserted | the same |
//! | D, issued | the driver got it |
//! | C, completed | the device had done it; that the ring looked later does not show |
//!
//! A ring is a CPU: its records are a file of their own, as the tools want it. What a ring knows as a device has a
//! number by its name, from 240:0 on.

use std::io::{self, Write};

use sheave_base::status::Status;
use sheave_base::trace::reader::Trace;
use sheave_base::trace::{Entry, TraceOp};

const MAGIC: u32 = 0x6561_7400 | 7;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 48;
/// Of the numbers that nobody else has: those for local use.
const MAJOR: u32 = 240;
const MINOR_BITS: u32 = 20;

/// The low half of an action: what happens.
mod event {
    pub(super) const QUEUE: u32 = 1;
    pub(super) const GET_REQUEST: u32 = 4;
    pub(super) const ISSUE: u32 = 7;
    pub(super) const COMPLETE: u32 = 8;
    pub(super) const INSERT: u32 = 12;
}

/// The upper half: bits that tools filter by.
mod class {
    pub(super) const READ: u32 = 1 << 16;
    pub(super) const WRITE: u32 = 1 << 17;
    pub(super) const FLUSH: u32 = 1 << 18;
    pub(super) const QUEUE: u32 = 1 << 20;
    pub(super) const ISSUE: u32 = 1 << 22;
    pub(super) const COMPLETE: u32 = 1 << 23;
    pub(super) const FS: u32 = 1 << 24;
    pub(super) const NOTIFY: u32 = 1 << 26;
    pub(super) const DISCARD: u32 = 1 << 29;
}

/// An event of a request.
#[derive(Clone, Copy)]
struct Event {
    time: u64,
    action: u32,
    entry: usize,
}

fn classes(op: TraceOp) -> u32 {
    class::FS
        | match op {
            TraceOp::Read => class::READ,
            TraceOp::Write | TraceOp::WriteZeroes => class::WRITE,
            TraceOp::Flush => class::WRITE | class::FLUSH,
            TraceOp::Discard => class::WRITE | class::DISCARD,
        }
}

fn events(entry: &Entry, at: usize) -> [Event; 5] {
    let [worker, tag, plugged, driver, _] = entry.common.stages;
    let queued = entry.began_ns().saturating_add(worker);
    let tagged = queued.saturating_add(tag);
    let issued = tagged.saturating_add(plugged);
    let of = |time, what, class| Event { time, action: what | class | classes(entry.common.op), entry: at };
    [
        of(queued, event::QUEUE, class::QUEUE),
        of(tagged, event::GET_REQUEST, class::QUEUE),
        of(tagged, event::INSERT, class::QUEUE),
        of(issued, event::ISSUE, class::ISSUE),
        of(issued.saturating_add(driver), event::COMPLETE, class::COMPLETE),
    ]
}

/// The moment that times of an export count from: the first of all.
#[must_use]
pub fn first_ns(traces: &[Trace]) -> u64 {
    traces.iter().flat_map(|trace| &trace.entries).map(Entry::began_ns).min().unwrap_or(0)
}

/// The names of all devices of these traces, each once: their places are their numbers.
#[must_use]
pub fn devices(traces: &[Trace]) -> Vec<String> {
    let mut names: Vec<_> = traces.iter().flat_map(|trace| &trace.devices).filter(|name| !name.is_empty()).collect();
    names.sort();
    names.dedup();
    names.into_iter().cloned().collect()
}

/// Writes the records of one ring, whose times count from `first_ns`.
///
/// # Errors
///
/// Those of `out`.
pub fn write(trace: &Trace, devices: &[String], first_ns: u64, out: &mut impl Write) -> io::Result<()> {
    let mut events: Vec<Event> = trace.entries.iter().enumerate().flat_map(|(at, entry)| events(entry, at)).collect();
    // What a request goes through at one moment stays in order.
    events.sort_by_key(|event| event.time);
    let number = |device: u8| {
        let name = trace.devices.get(usize::from(device)).filter(|name| !name.is_empty());
        let known = name.and_then(|name| devices.binary_search(name).ok());
        MAJOR << MINOR_BITS | known.unwrap_or(devices.len() + usize::from(device)) as u32
    };
    let name = *b"sheave\0\0\0\0\0\0\0\0\0\0";
    let mut record = Record { sequence: 1, cpu: trace.ring, pid: trace.pid, ..Record::default() };
    record.action = class::NOTIFY;
    record.write(&name, out)?;
    for event in events {
        let entry = &trace.entries[event.entry];
        record.sequence = record.sequence.wrapping_add(1);
        record.time = event.time.saturating_sub(first_ns);
        record.sector = entry.sector;
        record.bytes = entry.bytes;
        record.action = event.action;
        record.device = number(entry.common.device);
        record.error = if event.action & class::COMPLETE != 0 { errno(entry.common.status) } else { 0 };
        record.write(&[], out)?;
    }
    Ok(())
}

fn errno(status: u8) -> u16 {
    Status::from_u8(status).errno().0 as u16
}

/// What is written.
#[derive(Default)]
struct Record {
    sequence: u32,
    time: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    pid: u32,
    device: u32,
    cpu: u32,
    error: u16,
}

impl Record {
    fn write(&self, follows: &[u8], out: &mut impl Write) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(RECORD_BYTES + follows.len());
        bytes.extend([MAGIC, self.sequence].into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend([self.time, self.sector].into_iter().flat_map(u64::to_ne_bytes));
        let words = [self.bytes, self.action, self.pid, self.device, self.cpu];
        bytes.extend(words.into_iter().flat_map(u32::to_ne_bytes));
        bytes.extend([self.error, follows.len() as u16].into_iter().flat_map(u16::to_ne_bytes));
        bytes.extend(follows);
        out.write_all(&bytes)
    }
}
