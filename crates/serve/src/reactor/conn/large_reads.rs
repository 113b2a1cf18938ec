//! Large reads from a device that completes reads at once: one at a time, each sent before the next is read.
//!
//! Such a device (memory, or a volume that lies in memory) gains nothing from several reads at a time: it copies all of
//! them before the first is sent. By then the data of sixteen reads of 256 KiB has left the processor's cache, so that
//! sending fetches it from memory again. A large read therefore waits, without memory, until little of the data read
//! before it is still to be sent. Other requests, including small reads, pass it. On devices where reads take time, all
//! reads begin at once.

use std::collections::VecDeque;

use sheave_nbd::session::{Command, Request};

use super::{Conn, Ending, Errno, NO_MEMORY, Stage};
use crate::reactor::requests::Io;

/// Least bytes of a large read. A whole batch of smaller ones is still in the cache when it is sent.
const LARGE: u64 = 64 << 10;
/// Memory held by a client beyond which its next large read waits: a part of the second-level cache of any processor.
const HOT: u64 = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct LargeReads {
    waiting: VecDeque<Request>,
    /// True if the last large read ended in the turn of the loop in which it began.
    end_at_once: bool,
}

impl LargeReads {
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the reads that wait for others, of which nothing is under way.
    pub(super) fn waiting(&self) -> &VecDeque<Request> {
        &self.waiting
    }

    /// Queues `request` if it has to wait; `held` is the memory that the client holds. Returns true if it was queued.
    pub(super) fn keep(&mut self, request: &Request, held: u64) -> bool {
        let waits = request.command == Command::Read
            && request.len >= LARGE
            && (self.is_waiting() || (self.end_at_once && held >= HOT));
        if waits {
            self.waiting.push_back(*request);
        }
        waits
    }

    /// Queues a read that has waited in another process, because its device completes reads at once.
    pub(super) fn keep_waiting(&mut self, request: Request) {
        self.end_at_once = true;
        self.waiting.push_back(request);
    }

    /// Returns the next large read if it may begin while the client holds `held` bytes.
    fn next(&self, held: u64) -> Option<&Request> {
        self.waiting.front().filter(|_| !self.end_at_once || held < HOT)
    }

    /// Called when a read has ended; `at_once` is true if it did in the turn of the loop in which it began.
    pub(super) fn ended(&mut self, request: &Request, at_once: bool) {
        if request.len >= LARGE {
            self.end_at_once = at_once;
        }
    }
}

impl Conn {
    /// Returns the number of large reads that wait.
    pub(in crate::reactor) fn waiting_reads(&self) -> u32 {
        self.large.waiting.len() as u32
    }

    /// Begins the large reads that may begin now. Drops all of them if the client is gone.
    pub(super) fn begin_large_reads(&mut self, io: &mut Io) {
        if self.ending == Ending::Now {
            self.under_way -= self.waiting_reads();
            self.large.waiting.clear();
        }
        while let Some(&request) = self.large.next(io.shares.held(self.number))
            && let Stage::Transmission(chosen) = &self.life.stage
        {
            // Those that wait while the connection is suspended begin in the other process.
            if self.pieces.is_some() || self.is_suspended() {
                return;
            }
            let unaligned = chosen.unaligned(&request);
            let shape = chosen.shape(&request, unaligned.as_ref());
            let Some(memory) = io.ask(self.number, &request, &shape) else {
                if self.read_in_pieces(io, &request) {
                    // `read_in_pieces` counts the request as under way, which it was already while it waited.
                    self.large.waiting.pop_front();
                    self.under_way -= 1;
                }
                return;
            };
            self.large.waiting.pop_front();
            if let Some(slot) = io.begin(self.number, chosen.fd, request, &shape, memory) {
                unaligned.into_iter().for_each(|unaligned| io.set_unaligned(slot, unaligned));
                io.start(slot);
            } else {
                self.under_way -= 1;
                self.failed(&request, Errno::NoMem, NO_MEMORY);
            }
        }
    }
}
