//! How the work of a slot ended: what a worker tells the ring that queued it.
//!
//! Owns the four ways, the words that carry them through a ring's shared memory, and what becomes of the answers of a
//! file. They are matched in one place, `blocking::worker_done`; no CQE has anything but the number of
//! [`WorkDone::Result`].

use sheave_base::status::Status;
use sheave_iomap::dio::Synced;

/// How the work of a slot ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkDone {
    /// The work was done, or has failed, with this result: 0, a number of bytes, or `-errno`.
    Result(i32),
    /// The ring is to issue the request: its mapping is known now, or it needed nothing of the worker.
    Reissue,
    /// The ring is to flush the device: all other parts of a sync are done.
    Flush,
    /// No thread could be had for the work, which was not done.
    NoThread,
}

/// The words of what is no result: below every `-errno`.
const REISSUE: i32 = i32::MIN;
const FLUSH: i32 = i32::MIN + 1;
const NO_THREAD: i32 = i32::MIN + 2;

impl WorkDone {
    /// Whether there is a word for this result, which a program has made up.
    pub(crate) fn can_tell(res: i32) -> bool {
        res > NO_THREAD
    }

    /// The word that stands for it, for memory that threads share.
    #[inline]
    pub(crate) fn to_word(self) -> u32 {
        let word = match self {
            WorkDone::Result(res) => {
                debug_assert!(res > NO_THREAD, "a result is a number of bytes or -errno");
                res
            }
            WorkDone::Reissue => REISSUE,
            WorkDone::Flush => FLUSH,
            WorkDone::NoThread => NO_THREAD,
        };
        word.cast_unsigned()
    }

    /// What a word of [`WorkDone::to_word`] stands for.
    #[inline]
    pub(crate) fn from_word(word: u32) -> WorkDone {
        match word.cast_signed() {
            REISSUE => WorkDone::Reissue,
            FLUSH => WorkDone::Flush,
            NO_THREAD => WorkDone::NoThread,
            res => WorkDone::Result(res),
        }
    }

    /// What a file's mapping comes to: the request is issued again, or has failed. `Again` is no failure: the file did
    /// not want to wait longer, on a thread that may be needed for what it waits for.
    pub(crate) fn of_mapping(mapped: Result<(), Status>) -> WorkDone {
        match mapped {
            Ok(()) | Err(Status::Again) => WorkDone::Reissue,
            Err(status) => WorkDone::Result(status.result()),
        }
    }

    /// What a file's FALLOCATE comes to: it is done, has failed, or is issued again when the file wants to be asked
    /// once more.
    pub(crate) fn of_fallocate(done: Result<(), Status>) -> WorkDone {
        match done {
            Ok(()) => WorkDone::Result(0),
            Err(Status::Again) => WorkDone::Reissue,
            Err(status) => WorkDone::Result(status.result()),
        }
    }
}

impl From<Synced> for WorkDone {
    fn from(synced: Synced) -> WorkDone {
        match synced {
            Synced::Done(res) => WorkDone::Result(res),
            Synced::Flush => WorkDone::Flush,
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
