//! A disk with a volatile cache, in memory: its power can be cut at any time.
//!
//! Owns two images: the one that reads see, and the one on the medium. A flush makes them equal; a write with FUA goes
//! to both. After a power cut, each block that differs has the content of either.
//!
//! The memory of a request is touched only when it ends, in a later poll or in the shutdown of its ring, so that the
//! address sanitizer sees memory that was freed in flight.
#![allow(unsafe_code)] // It copies to and from the memory of requests.

use std::sync::{Arc, Mutex};

use sheave::{Capabilities, Device, DeviceError};
use sheave_base::status::Status;
use sheave_blk::bio::Op;
use sheave_blk::driver::{Driver, HctxOpen, HwEnv, HwQueue, NextEvent, TimedOut};
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, RQ_FUA, RqList, RqQueue, RqTable};

use crate::model::BLOCK;
use sheave_base::rng::Rng;

#[derive(Debug)]
struct Images {
    live: Vec<u8>,
    medium: Vec<u8>,
}

/// The disk. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct Disk {
    images: Arc<Mutex<Images>>,
    fua: bool,
}

impl Disk {
    pub fn new(bytes: usize, fua: bool) -> Disk {
        let images = Images { live: vec![0; bytes], medium: vec![0; bytes] };
        Disk { images: Arc::new(Mutex::new(images)), fua }
    }

    pub fn device(&self) -> Device {
        Device::from_driver("disk", Box::new(self.clone()))
    }

    /// Returns the content of the medium if the power goes now.
    pub fn cut_power(&self, rng: &mut Rng) -> Vec<u8> {
        let images = self.images.lock().unwrap();
        let mut image = images.medium.clone();
        for (block, live) in image.chunks_mut(BLOCK).zip(images.live.chunks(BLOCK)) {
            if rng.percent(50) {
                block.copy_from_slice(live);
            }
        }
        image
    }
}

#[allow(unsafe_code)] // Whoever makes a driver vouches for the memory of its requests.
// SAFETY: D7: its queues accept every operation that its capabilities name.
unsafe impl Driver for Disk {
    fn limits(&self) -> Limits {
        Limits::default().queue_depth(32).max_sectors(24).max_write_zeroes_sectors(64)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().volatile_cache(true).fua(self.fua).write_zeroes(true)
    }

    fn size_bytes(&self) -> u64 {
        self.images.lock().unwrap().live.len() as u64
    }

    fn open_hctx(&self, open: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(DiskQueue { disk: self.clone(), held: RqQueue::with_depth(open.depth) }))
    }
}

#[derive(Debug)]
struct DiskQueue {
    disk: Disk,
    /// Requests that wait, in order.
    held: RqQueue,
}

impl DiskQueue {
    fn end_some(&mut self, most: usize, rqs: &RqTable<'_>, done: &mut DoneList) {
        for _ in 0..most {
            let Some(rq) = self.held.pop() else { break };
            self.carry_out(rq.tag(), rqs);
            done.push(rq, Status::Ok);
        }
    }

    fn carry_out(&self, tag: u16, rqs: &RqTable<'_>) {
        let rq = rqs.by_tag(tag);
        let Images { live, medium } = &mut *self.disk.images.lock().unwrap();
        let start = rq.sector as usize * BLOCK;
        let range = start..start + rq.bytes as usize;
        let mut at = start;
        match rq.op {
            Op::Discard | Op::WriteZeroes => live[range.clone()].fill(0),
            Op::Read | Op::Write => {
                for vec in rqs.segments(tag) {
                    // SAFETY: I1 of `bio`: the request's memory is valid, and ours until the request ends.
                    let memory = unsafe { std::slice::from_raw_parts_mut(vec.base() as *mut u8, vec.len()) };
                    let blocks = &mut live[at..at + vec.len()];
                    if rq.op == Op::Read {
                        memory.copy_from_slice(blocks)
                    } else {
                        blocks.copy_from_slice(memory)
                    }
                    at += vec.len();
                }
                assert_eq!(at, range.end, "a request's memory is as long as the request");
            }
            _ => medium.copy_from_slice(live),
        }
        if rq.flags & RQ_FUA != 0 {
            assert!(self.disk.fua && matches!(rq.op, Op::Write | Op::WriteZeroes), "FUA where it was not offered");
            medium[range.clone()].copy_from_slice(&live[range]);
        }
    }
}

#[allow(unsafe_code)] // Whoever makes a driver vouches for the memory of its requests.
// SAFETY: D1 to D6: each request ends once, where it came, and its memory is not touched afterwards.
unsafe impl HwQueue for DiskQueue {
    fn queue_rqs(&mut self, list: &mut RqList, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {
        list.take_all(&mut self.held);
    }

    fn poll(&mut self, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.end_some(self.held.len().div_ceil(2), rqs, done);
    }

    fn next_event(&self) -> NextEvent {
        if self.held.is_empty() { NextEvent::Idle } else { NextEvent::Ready }
    }

    fn timed_out(&mut self, tag: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) -> TimedOut {
        let Some(rq) = self.held.remove(tag) else { return TimedOut::Waiting };
        done.push(rq, Status::Timeout);
        TimedOut::Ended
    }

    fn shutdown(&mut self, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        self.end_some(self.held.len(), rqs, done);
    }
}
