//! An engine that does by itself what a ring does with a file.
//!
//! Owns [`Direct`]. It looks up mappings in a section of the grace, moves the data, then does the completion work and
//! the sync. Each step waits for its turn, so steps of different requests and engines come in any order that the seed
//! draws, including orders that a ring does not have today. The engine is a second implementation of a caller of
//! `sheave_iomap::File`, and so states the contract of that trait once more.

use std::collections::{BTreeMap, VecDeque};

use sheave_base::grace::{Grace, Phase, Seat};
use sheave_base::status::{Errno, Status};
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::decision::decide;
use sheave_iomap::file::WriteDone;
use sheave_iomap::kiocb::{IOCB_DSYNC, IOCB_WRITE};
use sheave_iomap::mapping::{Intent, MapFlags, Mapping, MappingKind};
use sheave_iomap::{File, IoMemory, RawFile, SummedDone};
use sheave_uring::{Fd, Ring, prep};

use super::{Ended, Engine, Want, buf, has_room};
use crate::threads::{Call, Threads};

/// Rounds of mapping and blocking after which a request counts as stuck.
const MAX_ROUNDS: u32 = 1000;

/// The next step of a request.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Stage {
    Map,
    Block,
    Data,
    Sum,
    SumBlocks,
    EndWrite,
    Sync,
    Flush,
}

#[derive(Debug)]
struct Request {
    file: Arc<dyn File>,
    pos: u64,
    want: Want,
    stage: Stage,
    rounds: u32,
    pieces: Vec<Mapping>,
    left: usize,
    counted: Option<Phase>,
    completion_work: bool,
    needs_sync: bool,
    summed: bool,
    status: Status,
    data: Vec<u8>,
}

/// An engine that does by itself what a ring does with a file.
pub struct Direct {
    ring: Ring,
    fd: Fd,
    pub(super) threads: Threads,
    /// Requests that are with a worker.
    calls: Vec<(u64, Call<Request>)>,
    seats: Vec<(Arc<Grace>, Seat)>,
    requests: BTreeMap<u64, Request>,
    /// Requests whose next step this engine makes, not the disk.
    ready: VecDeque<u64>,
    /// Data transfers under way: the request, and the offset in it.
    transfers: BTreeMap<u64, (u64, usize)>,
    next_transfer: u64,
    writes_through: bool,
}

impl Direct {
    /// Returns an engine over `device`, with workers on `threads`.
    ///
    /// # Panics
    /// Panics if the machine cannot provide a ring.
    #[must_use]
    pub fn new(device: &Device, threads: &Threads) -> Direct {
        let mut ring = Ring::builder().entries(256).polled(true).build().expect("the machine has memory for a ring");
        let fd = ring.attach_file(Arc::new(RawFile::new(device.clone()))).expect("the ring has no other device");
        let caps = device.capabilities();
        Direct {
            ring,
            fd,
            threads: threads.clone(),
            calls: Vec::new(),
            seats: Vec::new(),
            requests: BTreeMap::new(),
            ready: VecDeque::new(),
            transfers: BTreeMap::new(),
            next_transfer: 0,
            writes_through: caps.fua || !caps.volatile_cache,
        }
    }

    fn seat(&mut self, file: &Arc<dyn File>) -> Option<&Seat> {
        let grace = file.grace()?;
        let at = self.seats.iter().position(|(known, _)| Arc::ptr_eq(known, grace)).unwrap_or_else(|| {
            self.seats.push((Arc::clone(grace), Grace::seat(grace)));
            self.seats.len() - 1
        });
        Some(&self.seats[at].1)
    }

    fn step(&mut self, op: u64, ended: &mut Vec<Ended>) {
        let Some(mut request) = self.requests.remove(&op) else { return };
        match request.stage {
            Stage::Map => self.map(op, &mut request),
            Stage::Data => {}
            Stage::Sum => end_summed(&mut request),
            Stage::Flush => self.flush(op, &mut request),
            Stage::Block | Stage::SumBlocks | Stage::EndWrite | Stage::Sync => return self.call(op, request),
        }
        self.settle(op, request, ended);
    }

    /// Files a request after a step, according to whether it has ended, waits for the disk, or waits for its next turn.
    fn settle(&mut self, op: u64, mut request: Request, ended: &mut Vec<Ended>) {
        let looks = matches!(request.stage, Stage::Sum | Stage::SumBlocks);
        let over = request.left == 0 && !looks && (request.stage == Stage::Data || !request.status.is_ok());
        // The request leaves the grace before a sync, which may wait for that grace.
        if over || matches!(request.stage, Stage::Map | Stage::Sync) {
            self.uncount(&mut request);
        }
        if over {
            let data = if request.status.is_ok() { request.data } else { Vec::new() };
            ended.push(Ended { op, status: request.status, data });
            return;
        }
        if request.left == 0 {
            self.ready.push_back(op);
        }
        self.requests.insert(op, request);
    }

    /// Starts the worker's part of a request as a call.
    fn call(&mut self, op: u64, mut request: Request) {
        let work = match request.stage {
            Stage::Block => block,
            Stage::SumBlocks => end_summed_blocking,
            Stage::EndWrite => end_write,
            _ => sync,
        };
        let call = self.threads.start(move || {
            work(&mut request);
            request
        });
        self.calls.extend(call.map(|call| (op, call)));
    }

    /// Returns true unless the next step needs a worker and there is no room for one.
    fn may_step(&self, op: u64) -> bool {
        match self.requests.get(&op).map(|request| request.stage) {
            Some(Stage::Block) => has_room(&self.threads, false),
            Some(Stage::SumBlocks | Stage::EndWrite | Stage::Sync) => has_room(&self.threads, true),
            _ => true,
        }
    }

    /// Looks up all mappings, then sends the data.
    fn map(&mut self, op: u64, request: &mut Request) {
        let (len, intent) = match &request.want {
            Want::Read(len) => (*len as u64, Intent::Read),
            Want::Write(data, _) => (data.len() as u64, Intent::Write),
            Want::Zero(..) => return request.stage = Stage::Block,
            Want::Sync => return request.stage = Stage::Sync,
        };
        request.rounds += 1;
        assert!(request.rounds < MAX_ROUNDS, "request {op} maps again and again and gets nowhere");
        if let Some(seat) = self.seat(&request.file) {
            seat.enter();
        }
        request.pieces.clear();
        let end = request.pos + len;
        let mut at = request.pos;
        let mut status = Status::Ok;
        while at < end {
            match request.file.map(at, end - at, intent) {
                Ok(mut mapping) => {
                    assert!(mapping.offset == at && mapping.len > 0, "{mapping:?} asked for at {at}");
                    assert!(mapping.kind != MappingKind::Hole || intent == Intent::Read, "{mapping:?} to write");
                    mapping.len = mapping.len.min(end - at);
                    at += mapping.len;
                    request.pieces.push(mapping);
                }
                Err(error) => {
                    status = error;
                    break;
                }
            }
        }
        match status {
            Status::Ok => self.send(op, request, end),
            Status::Again => request.stage = Stage::Block,
            status => request.status = status,
        }
        if let Some(seat) = self.seat(&request.file) {
            seat.leave();
        }
    }

    /// Sends the data of all pieces.
    fn send(&mut self, op: u64, request: &mut Request, end: u64) {
        let dsync = matches!(request.want, Want::Write(_, true));
        let flags = match &request.want {
            Want::Write(_, true) => IOCB_WRITE | IOCB_DSYNC,
            Want::Write(..) => IOCB_WRITE,
            _ => 0,
        };
        let size = request.file.size_bytes();
        let decisions: Vec<_> =
            request.pieces.iter().map(|piece| decide(piece, end, size, flags, self.writes_through)).collect();
        let fua = dsync && decisions.iter().all(|decision| decision.fua);
        request.completion_work = decisions.iter().any(|decision| decision.completion_work);
        request.needs_sync = dsync && !fua;
        request.counted = self.seat(&request.file).map(Seat::count);
        if let Want::Read(len) = request.want {
            request.data = vec![0; len];
        }
        request.summed = request.pieces.iter().any(|piece| piece.flags.any(MapFlags::SUMMED));
        if matches!(request.want, Want::Write(..)) && request.summed {
            request.pieces.iter().for_each(|piece| request.file.begin_write(piece));
        }
        let pieces = request.pieces.clone();
        for piece in pieces {
            let offset = (piece.offset - request.pos) as usize;
            let entry: prep::Entry = match &request.want {
                Want::Read(_) if piece.kind != MappingKind::Mapped => continue,
                Want::Read(_) => prep::read(self.fd, buf(piece.len as usize)).offset(piece.addr).into(),
                Want::Write(data, _) => {
                    let mut memory = buf(piece.len as usize);
                    memory.copy_from_slice(&data[offset..offset + piece.len as usize]);
                    let write = prep::write(self.fd, memory).offset(piece.addr);
                    if fua { write.dsync() } else { write }.into()
                }
                Want::Zero(..) | Want::Sync => continue,
            };
            self.push(entry, op, offset);
            request.left += 1;
        }
        request.stage = Stage::Data;
        if request.left == 0 && request.completion_work {
            request.stage = Stage::EndWrite;
        }
    }

    fn push(&mut self, entry: impl prep::Op, op: u64, offset: usize) {
        let transfer = self.next_transfer;
        self.next_transfer += 1;
        self.transfers.insert(transfer, (op, offset));
        let pushed = self.ring.push(entry.into().user_data(transfer));
        assert!(pushed.is_ok(), "the queue has room for all pieces of all requests");
    }

    fn flush(&mut self, op: u64, request: &mut Request) {
        self.push(prep::fsync(self.fd), op, 0);
        request.left = 1;
        request.stage = Stage::Data;
        request.completion_work = false;
        request.needs_sync = false;
    }

    fn uncount(&mut self, request: &mut Request) {
        if let Some(phase) = request.counted.take()
            && let Some(seat) = self.seat(&request.file)
        {
            seat.uncount(phase);
        }
    }

    /// Takes the transfers that the disk has ended.
    fn reap(&mut self) {
        if self.ring.submit().is_err() {
            return;
        }
        self.ring.reap();
        let done: Vec<_> = self.ring.completions().map(|one| (one.user_data, one.res, one.into_buf())).collect();
        for (transfer, res, memory) in done {
            let Some((op, offset)) = self.transfers.remove(&transfer) else { continue };
            let Some(request) = self.requests.get_mut(&op) else { continue };
            request.left -= 1;
            if res < 0 {
                request.status = Status::from_errno(Errno(-res));
            } else if let (Want::Read(_), Some(memory)) = (&request.want, memory) {
                request.data[offset..offset + memory.len()].copy_from_slice(&memory);
            }
            if request.left == 0 {
                let writes = matches!(request.want, Want::Write(..));
                if request.summed && (request.status.is_ok() || writes) {
                    request.stage = Stage::Sum;
                } else if request.completion_work {
                    request.stage = Stage::EndWrite;
                } else if request.needs_sync && request.status.is_ok() {
                    request.stage = Stage::Sync;
                }
                self.ready.push_back(op);
            }
        }
    }
}

impl Engine for Direct {
    fn submit(&mut self, op: u64, file: &Arc<dyn File>, pos: u64, want: Want) {
        let request = Request {
            file: Arc::clone(file),
            pos,
            want,
            stage: Stage::Map,
            rounds: 0,
            pieces: Vec::new(),
            left: 0,
            counted: None,
            completion_work: false,
            needs_sync: false,
            summed: false,
            status: Status::Ok,
            data: Vec::new(),
        };
        self.requests.insert(op, request);
        self.ready.push_back(op);
    }

    fn turn(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        self.reap();
        if let Some(at) = self.calls.iter().position(|(_, call)| call.has_ended()) {
            let (op, call) = self.calls.remove(at);
            if let Some(request) = call.take() {
                self.settle(op, request, &mut ended);
            }
        }
        let next = self.ready.iter().position(|op| self.may_step(*op));
        if let Some(op) = next.and_then(|at| self.ready.remove(at)) {
            self.step(op, &mut ended);
        }
        ended
    }

    fn describe(&self) -> String {
        let stages: Vec<_> = self.requests.iter().map(|(op, one)| (op, one.stage, one.left)).collect();
        let calls: Vec<_> = self.calls.iter().map(|(op, call)| (op, call.number())).collect();
        format!("{stages:?}, with workers {calls:?}")
    }

    fn busy(&self) -> usize {
        self.requests.len() + self.calls.len()
    }

    fn detach(&mut self, _: &Arc<dyn File>) {
        if self.busy() == 0 {
            self.seats.clear();
        }
    }
}

/// Lets the file verify the memory or compute its checksums, without blocking.
fn end_summed(request: &mut Request) {
    look(request, |file, done| file.end_summed(done));
}

/// Lets the file verify the memory or compute its checksums; the file may read checksums from the device.
fn end_summed_blocking(request: &mut Request) {
    look(request, |file, done| file.end_summed_blocking(done, &MayBlock::on_worker()));
}

fn look(request: &mut Request, look: impl FnOnce(&dyn File, &SummedDone<'_>) -> Result<(), Status>) {
    let (mut memory, write) = match &request.want {
        Want::Write(data, _) => (data.clone(), true),
        _ => (std::mem::take(&mut request.data), false),
    };
    let (pos, len, status, pieces) = (request.pos, memory.len() as u64, request.status, &request.pieces[..]);
    let result = IoMemory::over(&mut memory, |memory| {
        let done = if write {
            SummedDone::of_write(WriteDone::new(pos, len, status, pieces), memory)
        } else {
            SummedDone::of_read(pos, len, pieces, memory)
        };
        look(&*request.file, &done)
    });
    if !write {
        request.data = memory;
    }
    if result == Err(Status::Again) && request.stage == Stage::Sum {
        return request.stage = Stage::SumBlocks;
    }
    request.summed = false;
    request.stage = match result {
        Err(Status::Again) => Stage::Map,
        _ if request.completion_work => Stage::EndWrite,
        _ if request.needs_sync => Stage::Sync,
        _ => Stage::Data,
    };
    if let Err(status) = result.map_err(|status| if status == Status::Again { Status::Ok } else { status }) {
        request.status = status;
    }
}

/// Does the worker's part that may wait for long: allocation, or a blocking lookup.
fn block(request: &mut Request) {
    let token = MayBlock::on_worker();
    let result = match &request.want {
        Want::Zero(mode, len) => {
            request.stage = Stage::Data;
            request.file.fallocate(*mode, request.pos, *len, &token)
        }
        want => {
            request.stage = Stage::Map;
            let (len, intent) = match want {
                Want::Write(data, _) => (data.len() as u64, Intent::Write),
                Want::Read(len) => (*len as u64, Intent::Read),
                Want::Zero(..) | Want::Sync => return,
            };
            map_all_blocking(&request.file, request.pos, len, intent, &token)
        }
    };
    if let Err(status) = result {
        request.status = status;
    }
}

/// Looks up the whole range, piece by piece.
fn map_all_blocking(
    file: &Arc<dyn File>,
    pos: u64,
    len: u64,
    intent: Intent,
    token: &MayBlock<'_>,
) -> Result<(), Status> {
    let mut at = pos;
    while at < pos + len {
        at += file.map_blocking(at, pos + len - at, intent, token)?.len;
    }
    Ok(())
}

/// Does the file's completion work, which may write metadata and so wait for the disk.
fn end_write(request: &mut Request) {
    let Want::Write(data, _) = &request.want else { return };
    let (pos, len, status) = (request.pos, data.len() as u64, request.status);
    let done = WriteDone::new(pos, len, status, &request.pieces);
    let result = request.file.end_write(done, &MayBlock::on_worker());
    request.stage = if request.needs_sync { Stage::Sync } else { Stage::Data };
    request.status = result.err().unwrap_or(Status::Ok);
}

fn sync(request: &mut Request) {
    let result = if request.file.needs_sync() { request.file.sync(&MayBlock::on_worker()) } else { None };
    match result {
        None => request.stage = Stage::Flush,
        Some(result) => {
            request.stage = Stage::Data;
            request.status = result.err().unwrap_or(Status::Ok);
        }
    }
}
