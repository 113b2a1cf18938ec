//! Begins requests: the entry point for each one that the session has parsed.

use sheave_nbd::session::{Command, Request};
use sheave_nbd::wire::{Errno, cflag};

use super::{Charge, Chosen, Conn, NO_MEMORY, Stage};
use crate::payload::Shape;
use crate::reactor::requests::Io;
use crate::reactor::unaligned::Unaligned;

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
    /// Starts a request, or defers it until there is memory and the export's limit lets it begin.
    pub(super) fn request(&mut self, io: &mut Io, request: Request) {
        if !self.admits(&request) {
            return;
        }
        let Stage::Transmission(chosen) = &self.life.stage else { return };
        let unaligned = chosen.unaligned(&request);
        match request.command {
            // Only a hint, which is acknowledged and not acted on.
            Command::Cache => return self.done(&request),
            Command::BlockStatus => return self.block_status(&request),
            Command::Read if request.len == 0 => {}
            Command::Flush => {}
            _ if request.len == 0 => return self.done(&request),
            Command::WriteZeroes
                if request.has(cflag::FAST_ZERO)
                    && (request.has(cflag::NO_HOLE)
                        || unaligned.is_some()
                        || !chosen.export.backend.is_fast_to_zero()) =>
            {
                const WHY: &str = "zeroing is not faster than writing here";
                return self.failed(&request, Errno::NotSup, WHY);
            }
            _ => {}
        }
        if self.large.keep(&request, io.shares.held(self.number)) {
            self.under_way += 1;
            return;
        }
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
        let is_empty = unaligned.is_some_and(|unaligned| io.set_unaligned(slot, unaligned));
        let locks = chosen.export.locks();
        match request.command {
            Command::Write => self.gathering = Some(slot),
            // NO_HOLE asks for allocated blocks, so zeroes are written.
            Command::WriteZeroes if request.has(cflag::NO_HOLE) && !io.take_zeroes(slot) => {
                io.forget(slot);
                return self.out_of_memory(request);
            }
            Command::Read if request.len == 0 => {
                io.forget(slot);
                return self.empty_read(&request);
            }
            Command::Trim if is_empty && !request.has(cflag::FUA) => {
                io.forget(slot);
                return self.done(&request);
            }
            Command::Trim if is_empty => io.start_sync(slot),
            Command::Trim | Command::WriteZeroes => io.begin_change(slot, locks),
            _ => io.start(slot),
        }
        self.rewriting += u32::from(rewrites);
        // A write counts as under way when its payload is complete (`gathered`).
        self.under_way += u32::from(request.command != Command::Write);
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
