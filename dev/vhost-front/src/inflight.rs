//! The in-flight region: memory in which a back-end records the requests that it has taken and not completed.
//!
//! Owns the region's file and mapping, and access to each of its fields, for tests that check or damage it. The layout
//! is that of the specification for split rings: for each queue a header of 16 bytes and 16 bytes for each descriptor.
//! The specification does not say at which distance the parts of two queues lie; back-ends divide the region into equal
//! parts.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;

use crate::error::{Error, Result};
use crate::memory::{Mapping, Region, RegionSpec};

/// Number of bytes of the message's payload. The specification lists 20 bytes; QEMU and libvhost-user send the C
/// structure with its padding.
pub const INFLIGHT_LEN: usize = 24;
/// Number of bytes that the specification lists.
pub const INFLIGHT_LEN_WITHOUT_PADDING: usize = 20;

const HEADER_LEN: usize = 16;
const ENTRY_LEN: usize = 16;

/// The memory in which a back-end records requests in flight.
pub struct Inflight {
    file: OwnedFd,
    mapping: Mapping,
    offset: u64,
    queues: u16,
    queue_size: u16,
}

/// The header of a queue's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the specification.
pub struct InflightQueue {
    pub features: u64,
    pub version: u16,
    pub desc_num: u16,
    pub last_batch_head: u16,
    pub used_idx: u16,
}

/// The record of a descriptor that is the head of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the specification.
pub struct InflightDesc {
    pub inflight: u8,
    pub next: u16,
    pub counter: u64,
}

impl Inflight {
    /// Maps a region of `len` bytes.
    pub fn new(file: OwnedFd, offset: u64, len: u64, queues: u16, queue_size: u16) -> Result<Self> {
        let mapping = Mapping::new(file.as_fd(), offset, len as usize)?;
        Ok(Inflight { file, mapping, offset, queues, queue_size })
    }

    /// Creates a region of zeroes in a memory file, for tests in which the front-end brings a region of its own.
    pub fn create(len: u64, queues: u16, queue_size: u16) -> Result<Self> {
        let region = Region::create(RegionSpec::new(0, len))?;
        let file = region.file().try_clone_to_owned();
        let file = file.map_err(|error| Error::system("cannot copy the descriptor of a memory file", error))?;
        Inflight::new(file, 0, len, queues, queue_size)
    }

    /// Returns the file with the region.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the bytes of the region.
    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Returns the number of queues.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Returns the payload with which a front-end describes the region.
    pub fn payload(&self) -> [u8; INFLIGHT_LEN] {
        payload(self.mapping.len() as u64, self.offset, self.queues, self.queue_size)
    }

    fn start(&self, queue: u16) -> usize {
        self.mapping.len() / usize::from(self.queues) * usize::from(queue)
    }

    fn entry(&self, queue: u16, desc: u16) -> usize {
        self.start(queue) + HEADER_LEN + usize::from(desc) * ENTRY_LEN
    }

    /// Returns the header of a queue's part.
    pub fn queue(&self, queue: u16) -> InflightQueue {
        let (map, at) = (&self.mapping, self.start(queue));
        InflightQueue {
            features: map.u64_at(at).load(Relaxed),
            version: map.u16_at(at + 8).load(Relaxed),
            desc_num: map.u16_at(at + 10).load(Relaxed),
            last_batch_head: map.u16_at(at + 12).load(Relaxed),
            used_idx: map.u16_at(at + 14).load(Relaxed),
        }
    }

    /// Writes the header of a queue's part.
    pub fn set_queue(&self, queue: u16, header: InflightQueue) {
        let (map, at) = (&self.mapping, self.start(queue));
        map.u64_at(at).store(header.features, Relaxed);
        map.u16_at(at + 8).store(header.version, Relaxed);
        map.u16_at(at + 10).store(header.desc_num, Relaxed);
        map.u16_at(at + 12).store(header.last_batch_head, Relaxed);
        map.u16_at(at + 14).store(header.used_idx, Relaxed);
    }

    /// Returns the record of a descriptor.
    pub fn desc(&self, queue: u16, desc: u16) -> InflightDesc {
        let (map, at) = (&self.mapping, self.entry(queue, desc));
        InflightDesc {
            inflight: map.u8_at(at).load(Relaxed),
            next: map.u16_at(at + 6).load(Relaxed),
            counter: map.u64_at(at + 8).load(Relaxed),
        }
    }

    /// Writes the record of a descriptor.
    pub fn set_desc(&self, queue: u16, desc: u16, record: InflightDesc) {
        let (map, at) = (&self.mapping, self.entry(queue, desc));
        map.u8_at(at).store(record.inflight, Relaxed);
        map.u16_at(at + 6).store(record.next, Relaxed);
        map.u64_at(at + 8).store(record.counter, Relaxed);
    }

    /// Returns the heads that are marked as in flight, in the order of their counters.
    pub fn in_flight(&self, queue: u16) -> Vec<u16> {
        let mut heads: Vec<u16> = (0..self.queue_size).filter(|head| self.desc(queue, *head).inflight != 0).collect();
        heads.sort_by_key(|head| self.desc(queue, *head).counter);
        heads
    }
}

impl fmt::Debug for Inflight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inflight({} queues of {}, {:?})", self.queues, self.queue_size, self.mapping)
    }
}

/// Returns the payload of GET_INFLIGHT_FD and SET_INFLIGHT_FD.
pub(crate) fn payload(len: u64, offset: u64, queues: u16, queue_size: u16) -> [u8; INFLIGHT_LEN] {
    let mut bytes = [0; INFLIGHT_LEN];
    bytes[..8].copy_from_slice(&len.to_ne_bytes());
    bytes[8..16].copy_from_slice(&offset.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queues.to_ne_bytes());
    bytes[18..20].copy_from_slice(&queue_size.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_written_and_found_in_the_order_of_their_counters() {
        let region = Region::create(RegionSpec::new(0, 8192)).expect("made");
        let file = region.file().try_clone_to_owned().expect("a copy");
        let inflight = Inflight::new(file, 0, 2 * (16 + 8 * 16), 2, 8).expect("mapped");
        let header = InflightQueue { features: 0, version: 1, desc_num: 8, last_batch_head: 3, used_idx: 9 };
        inflight.set_queue(1, header);
        inflight.set_desc(1, 7, InflightDesc { inflight: 1, next: 2, counter: 4 });
        inflight.set_desc(1, 2, InflightDesc { inflight: 1, next: 0, counter: 5 });
        assert_eq!(inflight.queue(1), header);
        assert_eq!((inflight.in_flight(0), inflight.in_flight(1)), (vec![], vec![7, 2]));
        let mut bytes = [0; 16];
        region.mapping().read(144 + 16 + 7 * 16, &mut bytes);
        assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    }
}
