//! Token of a request that a driver has, and the list in which the request ends.
//!
//! Owns the obligation that a token stands for, and the requests that a driver has ended: the tags in the order in
//! which they ended, and the status of those that failed. Almost none fails, so success is the absence of a status: a
//! driver that ends a batch with success copies its tags and writes nothing else. Does not own the requests.
//!
//! Invariants:
//! - T1: an [`Rq`] ends by [`DoneList::push`]. Dropping one otherwise panics in debug builds, because its bios would
//!   never end.
//! - T2: `statuses` has entries other than `Ok` only for tags of this list, and `failed` is their number.
#![allow(unsafe_code)] // A driver that keeps tags and no tokens vouches for them.

use sheave_base::status::Status;

/// Token of a request. Not `Clone`, and a bug when dropped (T1).
#[derive(Debug)]
#[must_use = "a request must be completed"]
pub struct Rq(u16);

impl Rq {
    #[inline]
    pub(crate) fn new(tag: u16) -> Rq {
        Rq(tag)
    }

    /// Makes the token of a request that a driver holds by its tag.
    ///
    /// # Safety
    /// The tag came from [`Rq::into_tag`] (or from a list, by [`RqList::took`](super::RqList::took)) of the same
    /// hardware queue, and this is the only token made from it: a request with two tokens could end while the device
    /// still uses its memory.
    #[allow(unsafe_code)] // A token vouches for the memory of its request.
    #[inline]
    pub unsafe fn from_tag(tag: u16) -> Rq {
        Rq(tag)
    }

    /// Returns the tag: the index of the request in [`RqTable`](super::RqTable), below the queue's depth + 1.
    #[inline]
    pub fn tag(&self) -> u16 {
        self.0
    }

    /// Converts the token to a tag, for example for an operation in the kernel. The driver later makes a token of the
    /// tag ([`Rq::from_tag`]) to end the request.
    #[inline]
    pub fn into_tag(self) -> u16 {
        let tag = self.0;
        std::mem::forget(self);
        tag
    }
}

impl Drop for Rq {
    #[inline]
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            panic!("request with tag {} dropped without being completed", self.0);
        }
    }
}

/// Requests that a driver has ended, with their status.
#[derive(Debug, Default)]
pub struct DoneList {
    tags: Vec<u16>,
    /// By tag (T2).
    statuses: Vec<Status>,
    failed: u32,
}

impl DoneList {
    pub(crate) fn with_depth(depth: u16) -> DoneList {
        let tags = usize::from(depth) + 1;
        DoneList { tags: Vec::with_capacity(tags), statuses: vec![Status::Ok; tags], failed: 0 }
    }

    /// Ends a request. The driver no longer accesses it or its memory.
    #[inline]
    pub fn push(&mut self, rq: Rq, status: Status) {
        let tag = rq.into_tag();
        self.tags.push(tag);
        if !status.is_ok() {
            self.set_status(tag, status);
        }
    }

    /// Ends with success the requests with these tags, whose tokens the caller had.
    #[inline(always)]
    pub(super) fn succeeded(&mut self, tags: &[u16]) {
        match tags {
            // A single request, as always at depth 1.
            &[tag] => self.tags.push(tag),
            _ => self.tags.extend_from_slice(tags),
        }
    }

    /// Ends with success the requests with these tags, as [`DoneList::push`] does for one token.
    ///
    /// # Safety
    ///
    /// The same as for [`Rq::from_tag`], for each of the tags.
    #[inline]
    pub unsafe fn push_ok(&mut self, tags: impl ExactSizeIterator<Item = u16>) {
        // `extend` reserves once, not for each tag.
        self.tags.extend(tags);
    }

    /// Replaces the status of each request from index `from` on by the result of `mend`, which receives the tag and the
    /// status. For a driver that stacks on others and inspects their completions.
    pub fn mend_since(&mut self, from: usize, mut mend: impl FnMut(u16, Status) -> Status) {
        for at in from..self.tags.len() {
            let tag = self.tags[at];
            let status = mend(tag, self.status(tag));
            self.set_status(tag, status);
        }
    }

    /// Returns the tag and status of each request, in order. For a driver that stacks on others and inspects their
    /// completions.
    pub fn iter(&self) -> impl Iterator<Item = (u16, Status)> + '_ {
        self.tags.iter().map(|&tag| (tag, self.status(tag)))
    }

    /// Returns the tags, in order.
    #[inline(always)]
    pub(crate) fn tags(&self) -> &[u16] {
        &self.tags
    }

    /// Returns the status of a request in the list.
    #[inline]
    pub(crate) fn status(&self, tag: u16) -> Status {
        if self.failed == 0 {
            return Status::Ok;
        }
        self.statuses.get(usize::from(tag)).copied().unwrap_or_default()
    }

    /// Returns true if a request in the list has failed.
    #[inline(always)]
    pub(crate) fn any_failed(&self) -> bool {
        self.failed != 0
    }

    /// Sets the status of a request in the list.
    #[cold]
    pub(crate) fn set_status(&mut self, tag: u16, status: Status) {
        let at = usize::from(tag);
        if at >= self.statuses.len() {
            self.statuses.resize(at + 1, Status::Ok);
        }
        self.failed -= u32::from(!self.statuses[at].is_ok());
        self.failed += u32::from(!status.is_ok());
        self.statuses[at] = status;
    }

    /// Empties the list, whose requests have all been completed.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        if self.failed != 0 {
            self.clear_statuses();
        }
        self.tags.clear();
    }

    #[cold]
    fn clear_statuses(&mut self) {
        for &tag in &self.tags {
            if let Some(status) = self.statuses.get_mut(usize::from(tag)) {
                *status = Status::Ok; // T2
            }
        }
        self.failed = 0;
    }

    /// Returns the number of requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.tags.len()
    }

    /// Returns true if the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }
}
