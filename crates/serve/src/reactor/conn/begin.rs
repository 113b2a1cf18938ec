//! Begins requests: the entry point for each one that the session has parsed. [`plan`] decides what is done with a
//! request from the request and its export alone; the rest of this file does that.

use sheave_nbd::session::{Command, Request};
use sheave_nbd::wire::{Errno, cflag};

use super::{Charge, Chosen, Conn, NO_MEMORY, Stage};
use crate::payload::Shape;
use crate::reactor::requests::Io;
use crate::reactor::unaligned::Unaligned;

/// Treatment of a request.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Acknowledged: there is nothing to do.
    Done,
    /// Answered as a read of no data.
    EmptyRead,
    Fail(Errno, &'static str),
    /// Answered context by context (`block_status`).
    Status,
    /// Takes a slot and memory, and begins in the ring as `Start` tells. `Unaligned` if it begins or ends within a
    /// block.
    Io(Start, Option<Unaligned>),
}

/// First step of a request that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Goes to the ring: a read or a flush.
    Now,
    /// Receives the payload of a write.
    Gather,
    /// Waits for its turn among changes of the same blocks: a trim or a zeroing.
    Change,
    /// The same, but writes zeroes, because blocks that are zeroed otherwise may become holes.
    Zeroes,
    /// Syncs only: a durable trim that covers no whole block.
    Sync,
}

/// Decides what is done with a request to an export with blocks of `block_bytes`.
#[inline]
fn plan(request: &Request, block_bytes: u64, is_fast_to_zero: impl FnOnce() -> bool) -> Plan {
    let unaligned = Unaligned::of(request, block_bytes);
    match request.command {
        // Only a hint, which is acknowledged and not acted on.
        Command::Cache => Plan::Done,
        Command::BlockStatus => Plan::Status,
        Command::Flush => Plan::Io(Start::Now, None),
        Command::Read if request.len == 0 => Plan::EmptyRead,
        Command::Read => Plan::Io(Start::Now, unaligned),
        _ if request.len == 0 => Plan::Done,
        Command::Write => Plan::Io(Start::Gather, unaligned),
        Command::Trim if unaligned.as_ref().is_none_or(|unaligned| unaligned.inner().1 > 0) => {
            Plan::Io(Start::Change, unaligned)
        }
        // Blocks that a trim covers in part are left alone.
        Command::Trim if request.has(cflag::FUA) => Plan::Io(Start::Sync, None),
        Command::Trim => Plan::Done,
        Command::WriteZeroes
            if request.has(cflag::FAST_ZERO)
                && (request.has(cflag::NO_HOLE) || unaligned.is_some() || !is_fast_to_zero()) =>
        {
            Plan::Fail(Errno::NotSup, "zeroing is not faster than writing here")
        }
        Command::WriteZeroes if request.has(cflag::NO_HOLE) => Plan::Io(Start::Zeroes, unaligned),
        Command::WriteZeroes => Plan::Io(Start::Change, unaligned),
    }
}

impl Chosen {
    /// Returns the unaligned edges of a request, if it begins or ends within a block.
    #[inline]
    pub(super) fn unaligned(&self, request: &Request) -> Option<Unaligned> {
        Unaligned::of(request, u64::from(self.session.block_bytes()))
    }

    /// Returns the layout of the memory that a request takes.
    #[inline]
    pub(super) fn shape(&self, request: &Request, unaligned: Option<&Unaligned>) -> Shape {
        match (unaligned, request.command) {
            (Some(unaligned), _) => unaligned.shape(request, self.align),
            (None, Command::Read | Command::Write) => Shape::whole(request.len as usize, self.align),
            (None, _) => Shape::NONE,
        }
    }
}

/// Returns true if a request rewrites parts of blocks.
pub(super) fn rewrites(request: &Request, unaligned: Option<&Unaligned>) -> bool {
    unaligned.is_some() && matches!(request.command, Command::Write | Command::WriteZeroes)
}

impl Conn {
    /// Answers or starts a request, or defers it until there is memory and the export's limit lets it begin.
    pub(super) fn request(&mut self, io: &mut Io, request: Request) {
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        let bytes = if matches!(request.command, Command::Read | Command::Write) { request.len } else { 0 };
        if !self.charge.admits(&chosen.bucket, bytes) {
            self.life.deferred = Some(request);
            return;
        }
        let block_bytes = u64::from(chosen.session.block_bytes());
        match plan(&request, block_bytes, || chosen.export.backend.is_fast_to_zero()) {
            Plan::Done => self.done(&request),
            Plan::EmptyRead => self.empty_read(&request),
            Plan::Fail(errno, why) => self.failed(&request, errno, why),
            Plan::Status => self.block_status(&request),
            Plan::Io(start, unaligned) => self.begin(io, request, start, unaligned),
        }
    }

    #[inline]
    fn begin(&mut self, io: &mut Io, request: Request, start: Start, unaligned: Option<Unaligned>) {
        if self.large.keep(&request, io.shares.held(self.number)) {
            self.under_way += 1;
            return;
        }
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        let shape = chosen.shape(&request, unaligned.as_ref());
        let Some(memory) = io.ask(self.number, &request, &shape) else {
            if !self.read_in_pieces(io, &request) {
                // Charged already: the limit must not charge it again when there is memory.
                (self.life.deferred, self.charge) = (Some(request), Charge::Paid);
            }
            return;
        };
        let Some(slot) = io.begin(self.number, chosen.fd, request, &shape, memory) else {
            return self.out_of_memory(request);
        };
        let rewrites = rewrites(&request, unaligned.as_ref());
        if let Some(unaligned) = unaligned {
            io.set_unaligned(slot, unaligned);
        }
        match start {
            Start::Now => io.start(slot),
            Start::Gather => self.gathering = Some(slot),
            Start::Zeroes if !io.take_zeroes(slot) => {
                io.forget(slot);
                return self.out_of_memory(request);
            }
            Start::Change | Start::Zeroes => io.begin_change(slot, chosen.export.locks()),
            Start::Sync => io.start_sync(slot),
        }
        self.rewriting += u32::from(rewrites);
        // A write counts as under way when its payload is complete (`gathered`).
        self.under_way += u32::from(start != Start::Gather);
    }

    fn out_of_memory(&mut self, request: Request) {
        if request.command == Command::Write {
            // The payload would have to be skipped. That is not worth code: no machine this short of memory has been
            // seen to go on.
            return self.drop_client(NO_MEMORY);
        }
        self.failed(&request, Errno::NoMem, NO_MEMORY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 512;

    fn planned(command: Command, flags: u16, (offset, len): (u64, u64), is_fast: bool) -> Plan {
        plan(&Request { command, flags, cookie: 0, offset, len, contexts: 0 }, BLOCK, || is_fast)
    }

    fn start(command: Command, flags: u16, range: (u64, u64)) -> Start {
        match planned(command, flags, range, true) {
            Plan::Io(start, unaligned) => {
                let is_aligned = (range.0 | range.1).is_multiple_of(BLOCK);
                assert_eq!(unaligned.is_none(), is_aligned || start == Start::Sync, "{command:?} {range:?}");
                start
            }
            other => panic!("{command:?} {range:?}: {other:?}"),
        }
    }

    #[test]
    fn requests_with_data_take_a_slot_whether_aligned_or_not() {
        for range in [(0, BLOCK), (3, 2 * BLOCK), (BLOCK, 1)] {
            assert_eq!(start(Command::Read, 0, range), Start::Now);
            assert_eq!(start(Command::Write, cflag::FUA, range), Start::Gather);
            assert_eq!(start(Command::WriteZeroes, 0, range), Start::Change);
            assert_eq!(start(Command::WriteZeroes, cflag::NO_HOLE, range), Start::Zeroes);
        }
        assert_eq!(start(Command::Flush, 0, (0, 0)), Start::Now);
    }

    #[test]
    fn empty_requests_and_hints_are_answered_without_io() {
        assert_eq!(planned(Command::Read, 0, (7, 0), true), Plan::EmptyRead);
        for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
            assert_eq!(planned(command, cflag::FUA, (7, 0), true), Plan::Done, "{command:?}");
        }
        assert_eq!(planned(Command::WriteZeroes, cflag::FAST_ZERO, (0, 0), false), Plan::Done);
        assert_eq!(planned(Command::Cache, 0, (0, BLOCK), true), Plan::Done);
        assert_eq!(planned(Command::BlockStatus, 0, (0, BLOCK), true), Plan::Status);
    }

    #[test]
    fn a_trim_leaves_blocks_alone_that_it_covers_in_part() {
        assert_eq!(start(Command::Trim, 0, (0, BLOCK)), Start::Change);
        assert_eq!(start(Command::Trim, 0, (1, 2 * BLOCK)), Start::Change);
        for part in [(1, BLOCK - 1), (1, BLOCK), (BLOCK - 1, 2)] {
            assert_eq!(planned(Command::Trim, 0, part, true), Plan::Done, "{part:?}");
            assert_eq!(start(Command::Trim, cflag::FUA, part), Start::Sync, "{part:?}");
        }
    }

    #[test]
    fn fast_zeroes_are_refused_where_they_would_be_written() {
        let fast = |flags, range, is_fast| planned(Command::WriteZeroes, cflag::FAST_ZERO | flags, range, is_fast);
        assert_eq!(fast(0, (0, BLOCK), true), Plan::Io(Start::Change, None));
        let written = [(0, (0, BLOCK), false), (cflag::NO_HOLE, (0, BLOCK), true), (0, (1, BLOCK), true)];
        for (flags, range, is_fast) in written {
            let refused = matches!(fast(flags, range, is_fast), Plan::Fail(Errno::NotSup, _));
            assert!(refused, "{flags:x} {range:?} {is_fast}");
        }
    }
}
