//! Result of a slot's work, from the worker to the ring that queued it.
//!
//! Owns the four kinds of results, their encoding in a ring's shared memory, and the conversion of the results of a
//! file. Only `blocking::worker_done` acts on them; only the number of [`WorkDone::Result`] reaches a CQE.

use sheave_base::status::Status;
use sheave_iomap::dio::Synced;

/// Result of a slot's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkDone {
    /// The work was done, or has failed, with this result: 0, a number of bytes, or `-errno`.
    Result(i32),
    /// The ring must issue the request: its mapping is known now, or no worker was needed after all.
    Reissue,
    /// The ring must flush the device: all other parts of a sync are done.
    Flush,
    /// No thread was available. The work was not done.
    NoThread,
}

/// Words of the other kinds: below every `-errno`.
const REISSUE: i32 = i32::MIN;
const FLUSH: i32 = i32::MIN + 1;
const NO_THREAD: i32 = i32::MIN + 2;

impl WorkDone {
    /// Returns true if `res`, which a program may choose freely (NOP), does not collide with the other words.
    pub(crate) fn can_tell(res: i32) -> bool {
        res > NO_THREAD
    }

    /// Encodes the result as a word for shared memory.
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

    /// Decodes a word of [`WorkDone::to_word`].
    #[inline]
    pub(crate) fn from_word(word: u32) -> WorkDone {
        match word.cast_signed() {
            REISSUE => WorkDone::Reissue,
            FLUSH => WorkDone::Flush,
            NO_THREAD => WorkDone::NoThread,
            res => WorkDone::Result(res),
        }
    }

    /// Converts the result of a file's mapping: the request is issued again, or has failed. `Again` is no failure: a
    /// file returns it instead of waiting on a thread that may have to do the very work it waits for.
    pub(crate) fn of_mapping(mapped: Result<(), Status>) -> WorkDone {
        match mapped {
            Ok(()) | Err(Status::Again) => WorkDone::Reissue,
            Err(status) => WorkDone::Result(status.result()),
        }
    }

    /// Converts the result of a file's FALLOCATE: done, failed, or to be issued again if the file returned `Again`.
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
mod tests {
    use super::*;

    #[test]
    fn every_result_survives_encoding() {
        let results = [0, 1, i32::MAX, -1, -125, -4095].map(WorkDone::Result);
        let ways = results.into_iter().chain([WorkDone::Reissue, WorkDone::Flush, WorkDone::NoThread]);
        let words: Vec<u32> = ways.clone().map(WorkDone::to_word).collect();
        assert_eq!(words.iter().copied().map(WorkDone::from_word).collect::<Vec<_>>(), ways.collect::<Vec<_>>());
        assert_eq!(words[1], 1, "a result is its own word");
    }

    #[test]
    fn again_reissues_and_other_errors_are_results() {
        for of in [WorkDone::of_mapping, WorkDone::of_fallocate] {
            assert_eq!(of(Err(Status::Again)), WorkDone::Reissue);
            assert_eq!(of(Err(Status::NoSpc)), WorkDone::Result(-28));
        }
        assert_eq!(WorkDone::of_mapping(Ok(())), WorkDone::Reissue, "the mapping is known now");
        assert_eq!(WorkDone::of_fallocate(Ok(())), WorkDone::Result(0));
        assert_eq!(WorkDone::from(Synced::Flush), WorkDone::Flush);
        assert_eq!(WorkDone::from(Synced::Done(-5)), WorkDone::Result(-5));
    }
}
