//! The token that stands for a request while a driver has it, and the list in which it ends.
//!
//! Owns the obligation that a token is, and what a driver has finished: the tags in the order in which their requests
//! ended, and the status of those that failed. Almost none fails, so success is the absence of a status: a driver that
//! ends a batch well copies its tags and writes nothing else. Does not own the requests.
//!
//! Invariants:
//! - T1: an [`Rq`] ends by being given to [`DoneList::push`]; one that is dropped otherwise panics in debug builds, for
//!   its bios would never end.
//! - T2: a status other than `Ok` stands in `statuses` for the tags of this list alone, and `failed` says how many.
#![allow(unsafe_code)] // A driver that keeps tags and no tokens vouches for them.

use sheave_base::status::Status;

/// A request on its way; not `Clone`, and a bug when dropped (T1).
#[derive(Debug)]
#[must_use = "a request must be completed"]
pub struct Rq(u16);

impl Rq {
    #[inline]
    pub(crate) fn new(tag: u16) -> Rq {
        Rq(tag)
    }

    /// The token of a request that a driver holds by its tag.
    ///
    /// # Safety
    /// The tag came from [`Rq::into_tag`] (or from a list, by [`RqList::took`](super::RqList::took)) of the same
    /// hardware queue, and this is the only token that is made of it: a request with two tokens could end while the
    /// device still uses its memory.
    #[allow(unsafe_code)] // A token vouches for the memory of its request.
    #[inline]
    pub unsafe fn from_tag(tag: u16) -> Rq {
        Rq(tag)
    }

    /// The tag: index of the request in [`RqTable`](super::RqTable), below the queue's depth + 1.
    #[inline]
    pub fn tag(&self) -> u16 {
        self.0
    }

    /// Gives the token up: the driver holds the request by its tag from now on, in the kernel's hands say, and makes
    /// the token anew ([`Rq::from_tag`]) to end it.
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

/// Requests that a driver has finished, with their status.
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

    /// Ends a request: the driver touches it and its memory no more.
    #[inline]
    pub fn push(&mut self, rq: Rq, status: Status) {
        let tag = rq.into_tag();
        self.tags.push(tag);
        if !status.is_ok() {
            self.set_status(tag, status);
        }
    }

    /// Ends the requests with these tags, whose tokens the caller had, with success.
    #[inline(always)]
    pub(super) fn succeeded(&mut self, tags: &[u16]) {
        match tags {
            // Alone, as everything is at depth 1.
            &[tag] => self.tags.push(tag),
            _ => self.tags.extend_from_slice(tags),
        }
    }

    /// Ends those with these tags with success, as [`DoneList::push`] does each as an [`Rq`] of its tag.
    ///
    /// # Safety
    ///
    /// As for [`Rq::from_tag`], for each of the tags.
    #[inline]
    pub unsafe fn push_ok(&mut self, tags: impl ExactSizeIterator<Item = u16>) {
        // `extend` makes room once and not for each.
        self.tags.extend(tags);
    }

    /// Gives each request from the one numbered `from` on the status that `mend` has for it and for the status that it
    /// came with: for a driver that stacks on others and looks at what they end.
    pub fn mend_since(&mut self, from: usize, mut mend: impl FnMut(u16, Status) -> Status) {
        for at in from..self.tags.len() {
            let tag = self.tags[at];
            let status = mend(tag, self.status(tag));
            self.set_status(tag, status);
        }
    }

    /// Tag and status of each, in order: for a driver that stacks on others and looks at what they end.
    pub fn iter(&self) -> impl Iterator<Item = (u16, Status)> + '_ {
        self.tags.iter().map(|&tag| (tag, self.status(tag)))
    }

    /// The tags of all, in order.
    #[inline(always)]
    pub(crate) fn tags(&self) -> &[u16] {
        &self.tags
    }

    /// The status of a request of the list.
    #[inline]
    pub(crate) fn status(&self, tag: u16) -> Status {
        if self.failed == 0 {
            return Status::Ok;
        }
        self.statuses.get(usize::from(tag)).copied().unwrap_or_default()
    }

    /// Whether a request of the list has failed.
    #[inline(always)]
    pub(crate) fn any_failed(&self) -> bool {
        self.failed != 0
    }

    /// Gives a request of the list another status.
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

    /// Empties the list: all its requests were seen to.
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

    /// Requests in the list.
    #[inline]
    pub fn len(&self) -> usize {
        self.tags.len()
    }

    /// Whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tags.is_empty()
    }
}
