//! What a driver has finished: the list between the driver and the completion of a batch.
//!
//! Owns the tags in the order in which their requests ended, and the status of those that failed. Almost none fails,
//! so success is the absence of a status: a driver that ends a batch well copies its tags and writes nothing else.
//!
//! Invariants:
//! - I1: a status other than `Ok` stands in `statuses` for the tags of this list alone, and `failed` says how many.
#![allow(unsafe_code)] // A driver that keeps tags and no tokens vouches for them.

use sheave_base::status::Status;

use super::Rq;

/// Requests that a driver has finished, with their status.
#[derive(Debug, Default)]
pub struct DoneList {
    tags: Vec<u16>,
    /// By tag (I1).
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
                *status = Status::Ok; // I1
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
