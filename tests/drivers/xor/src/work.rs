//! The steps of a request, child by child.
//!
//! | request | with all devices | without its device | without its parity |
//! |---|---|---|---|
//! | read | its unit | all others, whose XOR it is | its unit |
//! | write | old data and old parity, then both anew | all others but the parity, then the parity | its unit |
//! | flush | all devices | all others | all others |
//!
//! If a child fails, its device is lost, and the request begins again without it; a second failure fails the request.

use sheave::drivers::{Child, ChildEnd, Memory, Refused, Request};
use sheave::{Buf, Op, Status};

use crate::layout::Place;
use crate::stripes::Stripes;

/// The next step of a request.
#[derive(Debug)]
pub(crate) enum Next {
    /// Wait for the request's children.
    Children,
    /// Take the request's stripe, and begin anew.
    Anew,
    End(Status),
}

/// The kind of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The last children: the request ends with them.
    Last,
    /// Reads from which data or parity is computed.
    Sources,
}

/// The work of one request.
#[derive(Debug)]
pub(crate) struct Work {
    devices: usize,
    place: Place,
    stripe: Option<u64>,
    phase: Phase,
    /// XOR of the sources that have been read.
    sum: Vec<u8>,
    /// True if a child of this round failed, and the request can continue without the child's device.
    again: bool,
    /// Status with which the request fails when its children have ended.
    failed: Option<Status>,
}

fn xor_into(sum: &mut [u8], bytes: &[u8]) {
    sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
}

fn buf(len: usize) -> Result<Buf, Status> {
    Buf::zeroed(len, 4096).map_err(|_| Status::NoMem)
}

impl Work {
    pub(crate) fn new(devices: usize, place: Place, stripe: Option<u64>) -> Work {
        Work { devices, place, stripe, phase: Phase::Last, sum: Vec::new(), again: false, failed: None }
    }

    /// Returns the stripe that the request has.
    pub(crate) fn locked(&self) -> Option<u64> {
        self.stripe
    }

    /// Sends the first children, which depend on the lost device.
    pub(crate) fn begin(&mut self, stripes: &Stripes, rq: &mut Request<'_>) -> Next {
        rq.forget_errors();
        let (lost, place) = (stripes.lost(), self.place);
        let all = 0..self.devices;
        let sent = match rq.op() {
            Op::Flush => {
                self.phase = Phase::Last;
                let mut targets = all.filter(|&device| Some(device) != lost);
                targets.try_for_each(|device| self.send(rq, device, Op::Flush, Memory::None(0)))
            }
            Op::Read if lost != Some(place.data) => self.send_own(rq, place.data, Op::Read),
            Op::Read => self.read_sources(rq, all.filter(|&device| device != place.data)),
            Op::Write if lost == Some(place.parity) => self.send_own(rq, place.data, Op::Write),
            Op::Write if lost == Some(place.data) => {
                self.read_sources(rq, all.filter(|&device| device != place.data && device != place.parity))
            }
            Op::Write => self.read_sources(rq, [place.data, place.parity].into_iter()),
            _ => Err(Status::NotSupp),
        };
        self.sent(rq, sent)
    }

    pub(crate) fn child_ended(&mut self, stripes: &Stripes, rq: &mut Request<'_>, child: ChildEnd) -> Next {
        let device = child.number as usize;
        if !child.status.is_ok() {
            if stripes.lose(device) { self.again = true } else { self.failed = Some(child.status) }
        } else if let (Phase::Sources, Some(bytes)) = (self.phase, &child.buf) {
            xor_into(&mut self.sum, bytes);
        }
        if rq.children() > 0 {
            return Next::Children;
        }
        if let Some(status) = self.failed {
            return Next::End(status);
        }
        if std::mem::take(&mut self.again) {
            if rq.op() == Op::Read && self.stripe.is_none() {
                return Next::Anew;
            }
            return self.begin(stripes, rq);
        }
        match self.phase {
            Phase::Last => Next::End(Status::Ok),
            Phase::Sources => self.have_sources(stripes, rq),
        }
    }

    /// Called when all sources have been read: ends a read, or sends the writes of a write.
    fn have_sources(&mut self, stripes: &Stripes, rq: &mut Request<'_>) -> Next {
        let mut sum = std::mem::take(&mut self.sum);
        if rq.op() == Op::Read {
            return Next::End(if rq.copy_from(0, &sum).is_ok() { Status::Ok } else { Status::IoErr });
        }
        let mut new = vec![0; sum.len()];
        if rq.copy_to(0, &mut new).is_err() {
            return Next::End(Status::IoErr);
        }
        xor_into(&mut sum, &new);
        let sent = buf(sum.len()).and_then(|mut parity| {
            parity.copy_from_slice(&sum);
            self.send(rq, self.place.parity, Op::Write, Memory::Own(parity))
        });
        // If another request has lost the device meanwhile, its data is not written: the parity has it. Otherwise the
        // data is written, and may fail.
        let sent = sent.and_then(|()| match stripes.lost() == Some(self.place.data) {
            true => Ok(()),
            false => self.send_own(rq, self.place.data, Op::Write),
        });
        self.phase = Phase::Last;
        self.sent(rq, sent)
    }

    /// Sends a child with the request's own memory.
    fn send_own(&mut self, rq: &mut Request<'_>, device: usize, op: Op) -> Result<(), Status> {
        self.phase = Phase::Last;
        let memory = Memory::OfRequest(0..rq.bytes() as usize);
        self.send(rq, device, op, memory)
    }

    fn read_sources(&mut self, rq: &mut Request<'_>, mut devices: impl Iterator<Item = usize>) -> Result<(), Status> {
        self.phase = Phase::Sources;
        let len = rq.bytes() as usize;
        self.sum = vec![0; len];
        devices.try_for_each(|device| self.send(rq, device, Op::Read, Memory::Own(buf(len)?)))
    }

    fn send(&self, rq: &mut Request<'_>, device: usize, op: Op, memory: Memory) -> Result<(), Status> {
        let sector = if op == Op::Flush { 0 } else { self.place.sector };
        let child = Child::new(device, op, sector, memory).number(device as u32);
        rq.send(child).map_err(|_: Refused| Status::IoErr)
    }

    /// Waits for the children that were sent. If not all could be sent, the request fails when the last of them has
    /// ended.
    fn sent(&mut self, rq: &Request<'_>, sent: Result<(), Status>) -> Next {
        match sent {
            Ok(()) => Next::Children,
            Err(status) if rq.children() == 0 => Next::End(status),
            Err(status) => {
                self.failed = Some(status);
                Next::Children
            }
        }
    }
}
