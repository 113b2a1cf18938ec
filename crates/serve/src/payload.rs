//! Memory of requests and replies, and the bounds on it.
//!
//! A payload has room for the header of a reply before its data, so that both are sent as one piece, and its data lies
//! as the device wants it. Memory that is given back is kept for the next request, up to [`MAX_KEPT`]; a server that
//! sleeps gives all of it back to the system ([`Pool::trim`]).

use sheave_base::buf::Buf;
use sheave_nbd::reply::MAX_READ_HEADER;

/// Bytes before the data, at least.
const HEADROOM: usize = 64;
/// Smallest memory of a payload.
const MIN_CLASS: u32 = 13;
/// Memory that is kept, at most.
const MAX_KEPT: usize = 16 << 20;
/// What memory is aligned to.
const ALIGN: usize = 4096;

const _: () = assert!(HEADROOM >= MAX_READ_HEADER);

/// Memory of one request.
#[derive(Debug)]
pub(crate) struct Payload {
    buf: Buf,
    /// Where the data begins.
    at: usize,
}

impl Payload {
    /// Bytes that it counts for.
    pub(crate) fn cost(&self) -> u64 {
        self.buf.len() as u64
    }

    /// Where the data begins.
    pub(crate) fn start(&self) -> usize {
        self.at
    }

    /// The room before the data, for a header at its end.
    pub(crate) fn headroom(&mut self) -> &mut [u8] {
        &mut self.buf[..self.at]
    }

    /// Bytes of the memory: of the data, from [`Payload::start`] on.
    pub(crate) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        &self.buf[at..at + len]
    }

    /// Puts bytes at this place in the data.
    pub(crate) fn fill(&mut self, from: usize, bytes: &[u8]) {
        let start = self.at + from;
        self.buf[start..start + bytes.len()].copy_from_slice(bytes);
    }

    /// Zeroes, outside of all bounds: a reactor has them once. `None` when the system has no memory.
    pub(crate) fn zeroes(len: usize) -> Option<Payload> {
        Some(Payload { buf: Buf::zeroed(len, ALIGN).ok()?, at: 0 })
    }

    /// The address of a byte of the memory: of the data, from [`Payload::start`] on.
    pub(crate) fn address(&mut self, at: usize) -> *mut u8 {
        debug_assert!(at <= self.buf.len());
        self.buf.as_mut_ptr().wrapping_add(at)
    }
}

/// Where payloads come from.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Memory to use again, by the logarithm of its size.
    kept: Vec<Vec<Buf>>,
    kept_bytes: usize,
    /// Bytes given out.
    held: u64,
    /// Most bytes to give out.
    most: u64,
}

impl Pool {
    pub(crate) fn new(most: u64) -> Pool {
        Pool { kept: (0..usize::BITS).map(|_| Vec::new()).collect(), kept_bytes: 0, held: 0, most }
    }

    /// Bytes that data of this length counts for.
    pub(crate) fn cost(len: usize, align: usize) -> u64 {
        1 << class(len, align)
    }

    /// Whether so much can be given out while so much is kept for somebody else; something always can be when nothing
    /// is.
    pub(crate) fn has_room(&self, cost: u64, kept: u64) -> bool {
        // Half at most is kept: clients that are slow to take their replies would otherwise stop all others by it.
        self.held == 0 || self.held + cost + kept.min(self.most / 2) <= self.most
    }

    /// Memory for data of this length, at a multiple of `align`; `None` when the system has none.
    pub(crate) fn take(&mut self, len: usize, align: usize) -> Option<Payload> {
        let class = class(len, align);
        let buf = match self.kept[class as usize].pop() {
            Some(buf) => {
                self.kept_bytes -= buf.len();
                buf
            }
            None => Buf::zeroed(1 << class, ALIGN).ok()?,
        };
        self.held += buf.len() as u64;
        Some(Payload { buf, at: align.max(HEADROOM) })
    }

    /// Takes memory back.
    pub(crate) fn put(&mut self, payload: Payload) {
        let len = payload.buf.len();
        self.held -= len as u64;
        if self.kept_bytes + len <= MAX_KEPT {
            self.kept_bytes += len;
            self.kept[len.trailing_zeros() as usize].push(payload.buf);
        }
    }

    /// Whether there is memory that nobody uses.
    pub(crate) fn keeps_memory(&self) -> bool {
        self.kept_bytes > 0
    }

    /// Gives memory that nobody uses back to the system.
    pub(crate) fn trim(&mut self) {
        self.kept.iter_mut().for_each(|list| *list = Vec::new());
        self.kept_bytes = 0;
    }
}

/// The logarithm of the size for data of this length.
fn class(len: usize, align: usize) -> u32 {
    (len + align.max(HEADROOM)).next_power_of_two().trailing_zeros().max(MIN_CLASS)
}

#[cfg(test)]
mod tests;
