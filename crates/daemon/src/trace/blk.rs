//! Export of a trace as `blk_io_trace` records, which blkparse, btt and fio's `read_iolog` can read.
//!
//! Owns the events of a request, and their layout: 48 bytes in host byte order (magic and version 7, sequence, time in
//! ns, sector, bytes, action, process, device, CPU, error, length of the following payload).
//!
//! | event | time |
//! |---|---|
//! | Q, queued | the request began |
//! | G, got a request | it got its tag |
//! | I, inserted | the same |
//! | D, issued | the driver received it |
//! | C, completed | the device completed it; the time until the ring reaped it is not shown |
//!
//! A ring is represented as a CPU: its records are a separate file, as the tools require. A device gets a number by its
//! name, from 240:0 on.

use std::io::{self, Write};

use sheave_base::status::Status;
use sheave_base::trace::reader::Trace;
use sheave_base::trace::{Entry, TraceOp};

const MAGIC: u32 = 0x6561_7400 | 7;
/// Size of a record.
pub const RECORD_BYTES: usize = 48;
/// Major number from the range for local and experimental use.
const MAJOR: u32 = 240;
const MINOR_BITS: u32 = 20;

/// Low half of an action: the event.
mod event {
    pub(super) const QUEUE: u32 = 1;
    pub(super) const GET_REQUEST: u32 = 4;
    pub(super) const ISSUE: u32 = 7;
    pub(super) const COMPLETE: u32 = 8;
    pub(super) const INSERT: u32 = 12;
}

/// High half of an action: flags that tools filter by.
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

/// Returns the origin of time for an export: the earliest start of all requests.
#[must_use]
pub fn first_ns(traces: &[Trace]) -> u64 {
    traces.iter().flat_map(|trace| &trace.entries).map(Entry::began_ns).min().unwrap_or(0)
}

/// Returns the names of all devices in these traces, sorted and without duplicates. Their indices are their minor
/// numbers.
#[must_use]
pub fn devices(traces: &[Trace]) -> Vec<String> {
    let mut names: Vec<_> = traces.iter().flat_map(|trace| &trace.devices).filter(|name| !name.is_empty()).collect();
    names.sort();
    names.dedup();
    names.into_iter().cloned().collect()
}

/// Writes the records of one ring, with times relative to `first_ns`.
///
/// # Errors
///
/// Writing to `out` failed.
pub fn write(trace: &Trace, devices: &[String], first_ns: u64, out: &mut impl Write) -> io::Result<()> {
    let mut events: Vec<Event> = trace.entries.iter().enumerate().flat_map(|(at, entry)| events(entry, at)).collect();
    // The sort is stable: events of a request at the same time keep their order.
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

/// Fields of a record.
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
