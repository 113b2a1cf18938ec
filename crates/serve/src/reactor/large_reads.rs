//! Large reads of a device that carries them out at once: one after the other, each sent before the next is read.
//!
//! Such a device (memory, or what lies in it) has no use for several reads at a time: it has copied all of them before
//! the first is sent, and the data of sixteen reads of 256 KiB has left the processor's cache by then, so that it comes
//! from memory once more. So a large read waits, without memory, until little of what was read before is still to be
//! sent. Requests of other kinds, and small reads, pass it. Where reads take time they all begin at once, as ever.

use std::collections::VecDeque;

use sheave_nbd::session::{Command, Request};

/// A read of so many bytes is large. Of smaller ones a whole batch is still in the cache when it is sent.
const LARGE: u64 = 64 << 10;
/// Memory that a client has, beyond which its next large read waits: a part of the second cache of any processor.
const HOT: u64 = 256 << 10;

/// The large reads of a client.
#[derive(Debug, Default)]
pub(super) struct LargeReads {
    /// Those that wait.
    waiting: VecDeque<Request>,
    /// The last that ended did so in the turn in which it began.
    end_at_once: bool,
}

/// A read that is answered in pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    pub(super) whole: Request,
    /// Bytes that were read.
    pub(super) done: u64,
    /// A piece is with the ring.
    pub(super) in_ring: bool,
}

impl LargeReads {
    /// Whether some wait.
    pub(super) fn wait(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many wait.
    pub(super) fn len(&self) -> u32 {
        self.waiting.len() as u32
    }

    /// Whether a request has to wait, and does so from now on, for a client with so much memory.
    pub(super) fn keep(&mut self, request: &Request, held: u64) -> bool {
        let waits = request.command == Command::Read
            && request.len >= LARGE
            && (self.wait() || (self.end_at_once && held >= HOT));
        if waits {
            self.waiting.push_back(*request);
        }
        waits
    }

    /// The next, if it may begin for a client with so much memory.
    pub(super) fn next(&self, held: u64) -> Option<&Request> {
        self.waiting.front().filter(|_| !self.end_at_once || held < HOT)
    }

    /// The next has begun.
    pub(super) fn begun(&mut self) {
        self.waiting.pop_front();
    }

    /// A read has ended.
    pub(super) fn ended(&mut self, request: &Request, at_once: bool) {
        if request.len >= LARGE {
            self.end_at_once = at_once;
        }
    }

    /// Forgets those that wait, and says how many they were.
    pub(super) fn forget(&mut self) -> u32 {
        let number = self.waiting.len() as u32;
        self.waiting.clear();
        number
    }
}
