//! The configuration space and the requests of a virtio block device.
//!
//! Owns the layout of both, and the checks of a request. Does not own the I/O: the caller carries out a [`Request`] and
//! writes its status. Called by the owner of a [`crate::Queue`] for each chain.
//!
//! A request that is wrong in itself is answered with a status, and the device goes on. A chain in which header or
//! status have no place cannot be answered and breaks the queue.
//!
//! Invariants:
//! - B1: the range of a [`Request`] lies within the device, and begins and ends at sector boundaries. Whether it also
//!   begins and ends at blocks is the caller's matter: the block size is advice for drivers, and firmware ignores it.
//! - B2: the spans of [`Request::data`] have as many bytes as the range of an In or an Out.

use sheave_base::sync::atomic::Ordering;

use crate::memory::{GuestMemory, Span};
use crate::wire::{MAX_CONFIG, blk};
use crate::{Broken, Chain};

pub const SECTOR: u64 = 512;
/// Maximum number of data segments of a request.
pub const SEG_MAX: u32 = 126;
/// Maximum size of a data segment in bytes. Drivers that did not acknowledge SIZE_MAX may send longer ones.
pub const SIZE_MAX: u32 = 256 << 10;
/// Maximum number of spans with data, which is the number of pieces that the kernel accepts for one I/O.
pub const MAX_DATA_SPANS: usize = 1024;
/// Length of the serial number.
pub const ID_BYTES: usize = 20;

const HEADER_BYTES: usize = 16;
/// Length of the range in a DISCARD or WRITE_ZEROES.
const RANGE_BYTES: usize = 16;
/// Offset of the byte that says if the cache is on, in the configuration space. The only one that can be written.
pub const WRITEBACK_OFFSET: usize = 32;

/// Limits of DISCARD or WRITE_ZEROES. A request of a guest consists of one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of the range, in sectors of 512 bytes; not 0.
    pub max_sectors: u32,
    /// Granularity of discards, in sectors; not 0.
    pub alignment: u32,
    /// True if WRITE_ZEROES may deallocate.
    pub may_unmap: bool,
}

/// Properties of a block device, as its configuration space shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Size in bytes. Bytes after the last whole sector are not shown.
    pub size: u64,
    /// Logical block size in bytes; a power of two from 512.
    pub block_bytes: u32,
    /// Physical block size in bytes; a power of two.
    pub physical_bytes: u32,
    /// Optimal size of an I/O in bytes; 0 if there is none.
    pub optimal_bytes: u32,
    pub read_only: bool,
    /// True if completed writes may stay in a cache until a flush, before the driver chooses.
    pub writeback: bool,
    pub discard: Option<Limits>,
    pub write_zeroes: Option<Limits>,
}

impl Config {
    /// Returns the configuration space. `writeback` is the present state of the cache.
    pub fn space(&self, queues: u16, writeback: bool) -> [u8; MAX_CONFIG] {
        let mut space = [0; MAX_CONFIG];
        let mut put = |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(0, &(self.size / SECTOR).to_le_bytes());
        put(8, &SIZE_MAX.to_le_bytes());
        put(12, &SEG_MAX.to_le_bytes());
        put(20, &self.block_bytes.to_le_bytes());
        let per_physical = (self.physical_bytes / self.block_bytes.max(1)).max(1);
        put(24, &[per_physical.ilog2() as u8]);
        let minimum = u16::try_from(per_physical).unwrap_or(1);
        put(26, &minimum.to_le_bytes());
        put(28, &(self.optimal_bytes / self.block_bytes.max(1)).to_le_bytes());
        put(WRITEBACK_OFFSET, &[u8::from(writeback)]);
        put(34, &queues.to_le_bytes());
        if let Some(limits) = self.discard() {
            // A driver divides by these, so none is 0 (Windows crashes).
            put(36, &limits.max_sectors.max(1).to_le_bytes());
            put(40, &1u32.to_le_bytes());
            put(44, &limits.alignment.max(1).to_le_bytes());
        }
        if let Some(limits) = self.write_zeroes() {
            put(48, &limits.max_sectors.max(1).to_le_bytes());
            put(52, &1u32.to_le_bytes());
            put(56, &[u8::from(limits.may_unmap)]);
        }
        space
    }

    /// Returns the limits of DISCARD, if it is offered.
    pub fn discard(&self) -> Option<Limits> {
        self.discard.filter(|_| !self.read_only)
    }

    /// Returns the limits of WRITE_ZEROES, if it is offered.
    pub fn write_zeroes(&self) -> Option<Limits> {
        self.write_zeroes.filter(|_| !self.read_only)
    }
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    In,
    Out,
    Flush,
    GetId,
    Discard,
    WriteZeroes { unmap: bool },
}

/// A request of a guest, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: Kind,
    pub head: u16,
    /// First byte of the range on the device; 0 for Flush and GetId.
    pub offset: u64,
    /// Length of the range on the device in bytes; 0 for Flush and GetId.
    pub len: u64,
    /// Place of the status, and length for the used element.
    pub status: Status,
    /// Index of the first readable span after the header.
    first: u32,
}

impl Request {
    /// Returns the memory of the data: writable for In and GetId, readable for Out, none for the others. `chain` is
    /// the one that the request was parsed from.
    #[inline]
    pub fn data<'a>(&self, chain: &'a Chain) -> &'a [Span] {
        match self.kind {
            Kind::In | Kind::GetId => &chain.writable,
            Kind::Out => chain.readable.get(self.first as usize..).unwrap_or_default(),
            Kind::Flush | Kind::Discard | Kind::WriteZeroes { .. } => &[],
        }
    }
}

/// Outcomes of a request, as the guest sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Code {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}

/// The place of the status of a request, and the length for its used element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    span: Span,
    /// Number of writable bytes of the chain. The status is the last one, so the used element counts all, also if an
    /// error left the data before it as it was.
    written: u32,
}

impl Status {
    /// Writes the status. Returns the length for [`crate::Queue::used`].
    #[inline(always)]
    pub fn write(&self, memory: &GuestMemory, code: Code) -> Result<u32, Broken> {
        memory.place(self.span)?.store_u8(0, code as u8, Ordering::Relaxed); // The used index publishes it.
        Ok(self.written)
    }
}

/// A parsed chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// To be carried out.
    Request(Request),
    /// To be answered at once with this code; the device goes on.
    Refused { head: u16, status: Status, code: Code },
}

/// Parses the request in a chain. Removes header and status from the spans of `chain`.
#[inline(always)]
pub fn parse(chain: &mut Chain, memory: &GuestMemory, config: &Config) -> Result<Parsed, Broken> {
    let head = chain.head;
    let (first, kind, sector) = take_header(chain, memory)?;
    let status = take_status(chain)?;
    Ok(match check(chain, first, kind, sector, memory, config)? {
        Ok((kind, offset, len)) => Parsed::Request(Request { kind, head, offset, len, status, first: first as u32 }),
        Err(code) => Parsed::Refused { head, status, code },
    })
}

/// Returns the index of the first readable span after the header, and the type and the sector in the header. Shortens
/// the span in which the header ends.
#[inline(always)]
fn take_header(chain: &mut Chain, memory: &GuestMemory) -> Result<(usize, u32, u64), Broken> {
    let [kind, sector] = match chain.readable.first() {
        Some(span) if span.len() == HEADER_BYTES => return Ok(fields(1, memory.place(*span)?.load_block(0))),
        Some(span) if span.len() > HEADER_BYTES => {
            let (header, rest) = span.split(HEADER_BYTES);
            chain.readable[0] = rest;
            return Ok(fields(0, memory.place(header)?.load_block(0)));
        }
        _ => split_header(chain, memory)?,
    };
    let first = chain.readable.iter().take_while(|span| span.is_empty()).count();
    Ok(fields(first, [kind, sector]))
}

#[inline(always)]
fn fields(first: usize, [kind, sector]: [u64; 2]) -> (usize, u32, u64) {
    // The upper half of the first number is reserved.
    (first, u64::from_le(kind) as u32, u64::from_le(sector))
}

/// Gathers a header from several spans. Spans that end in the header become empty.
#[cold]
fn split_header(chain: &mut Chain, memory: &GuestMemory) -> Result<[u64; 2], Broken> {
    let mut bytes = [0; HEADER_BYTES];
    if memory.copy_from(&chain.readable, &mut bytes)? < HEADER_BYTES {
        return Err(Broken::NoHeader { head: chain.head });
    }
    let mut left = HEADER_BYTES;
    for span in &mut chain.readable {
        let (part, rest) = span.split(left);
        (*span, left) = (rest, left - part.len());
        if left == 0 {
            break;
        }
    }
    Ok(zerocopy::transmute!(bytes))
}

/// Removes the last writable byte, which is the status.
#[inline(always)]
fn take_status(chain: &mut Chain) -> Result<Status, Broken> {
    let written = chain.writable_bytes;
    let Some(last) = chain.writable.last_mut() else { return Err(Broken::NoStatus { head: chain.head }) };
    let (rest, span) = last.split(last.len() - 1);
    *last = rest;
    if rest.is_empty() {
        chain.writable.pop();
    }
    Ok(Status { span, written })
}

/// Returns kind, offset and length of the request, or the code of a refusal.
#[inline(always)]
fn check(
    chain: &Chain,
    first: usize,
    kind: u32,
    sector: u64,
    memory: &GuestMemory,
    config: &Config,
) -> Result<Result<(Kind, u64, u64), Code>, Broken> {
    let readable = &chain.readable[first..];
    // Neither is negative: header and status were there.
    let readable_bytes = chain.readable_bytes - HEADER_BYTES as u64;
    let writable_bytes = u64::from(chain.writable_bytes) - 1;
    Ok(match kind {
        blk::IN => range_of_data(sector, &chain.writable, writable_bytes, config).map(|(at, len)| (Kind::In, at, len)),
        blk::OUT if config.read_only => Err(Code::IoError),
        blk::OUT => range_of_data(sector, readable, readable_bytes, config).map(|(at, len)| (Kind::Out, at, len)),
        _ => check_other(kind, readable, memory, config)?,
    })
}

/// Does the same as [`check`] for a request that moves no data of the device.
#[inline(never)]
fn check_other(
    kind: u32,
    readable: &[Span],
    memory: &GuestMemory,
    config: &Config,
) -> Result<Result<(Kind, u64, u64), Code>, Broken> {
    Ok(match kind {
        blk::FLUSH => Ok((Kind::Flush, 0, 0)),
        blk::GET_ID => Ok((Kind::GetId, 0, 0)),
        blk::DISCARD => match config.discard() {
            None => Err(Code::Unsupported),
            Some(limits) => read_range(readable, memory)?.and_then(|(sector, sectors, flags)| {
                if flags != 0 {
                    return Err(Code::Unsupported);
                }
                let (offset, len) = range_of_sectors(sector, sectors, limits, config)?;
                Ok((Kind::Discard, offset, len))
            }),
        },
        blk::WRITE_ZEROES => match config.write_zeroes() {
            None => Err(Code::Unsupported),
            Some(limits) => read_range(readable, memory)?.and_then(|(sector, sectors, flags)| {
                if flags & !blk::UNMAP != 0 {
                    return Err(Code::Unsupported);
                }
                let (offset, len) = range_of_sectors(sector, sectors, limits, config)?;
                // A device that cannot deallocate ignores the wish.
                let unmap = flags & blk::UNMAP != 0 && limits.may_unmap;
                Ok((Kind::WriteZeroes { unmap }, offset, len))
            }),
        },
        _ => Err(Code::Unsupported),
    })
}

#[inline(always)]
fn range_of_data(sector: u64, data: &[Span], len: u64, config: &Config) -> Result<(u64, u64), Code> {
    if data.len() > MAX_DATA_SPANS {
        return Err(Code::IoError);
    }
    debug_assert_eq!(len, data.iter().map(|span| span.len() as u64).sum::<u64>(), "B2");
    range(sector, len, config)
}

fn range_of_sectors(sector: u64, sectors: u32, limits: Limits, config: &Config) -> Result<(u64, u64), Code> {
    if sectors > limits.max_sectors {
        return Err(Code::IoError);
    }
    range(sector, u64::from(sectors) * SECTOR, config)
}

/// Checks a range of the device (B1). Returns its offset and length in bytes.
#[inline(always)]
fn range(sector: u64, len: u64, config: &Config) -> Result<(u64, u64), Code> {
    let offset = sector.checked_mul(SECTOR).ok_or(Code::IoError)?;
    let end = offset.checked_add(len).ok_or(Code::IoError)?;
    if len == 0 || !len.is_multiple_of(SECTOR) || end > config.size {
        return Err(Code::IoError);
    }
    Ok((offset, len))
}

/// Reads the one range of a DISCARD or WRITE_ZEROES: sector, number of sectors, and flags.
fn read_range(data: &[Span], memory: &GuestMemory) -> Result<Result<(u64, u32, u32), Code>, Broken> {
    let len: usize = data.iter().map(Span::len).sum();
    if len != RANGE_BYTES {
        // Several ranges are more than the configuration space allows.
        let several = len > RANGE_BYTES && len.is_multiple_of(RANGE_BYTES);
        return Ok(Err(if several { Code::Unsupported } else { Code::IoError }));
    }
    let mut bytes = [0; RANGE_BYTES];
    memory.copy_from(data, &mut bytes)?;
    let [sector, rest]: [u64; 2] = zerocopy::transmute!(bytes);
    let rest = u64::from_le(rest);
    Ok(Ok((u64::from_le(sector), rest as u32, (rest >> 32) as u32)))
}

/// Writes the serial number of the device, of which at most 20 bytes are used, as the data of a GetId request.
pub fn write_id(memory: &GuestMemory, data: &[Span], serial: &[u8]) -> Result<(), Broken> {
    let mut id = [0; ID_BYTES];
    let len = serial.len().min(ID_BYTES);
    id[..len].copy_from_slice(&serial[..len]);
    memory.copy_to(data, &id).map(|_| ())
}

#[cfg(test)]
mod tests;
