//! The block request, which a driver receives. A request is preallocated; its index is its tag.
//!
//! Owns the request, the lists in which requests go to a driver and wait there, and a driver's view of them. The token
//! of a request in a driver, [`Rq`], is in `token`, with the list in which it ends.
//!
//! A request carries bios, or it is a **plain record**: one I/O with one piece of memory, whose address and user data
//! are in the request itself. A record needs no bio from its submission to its completion.
//!
//! Invariants:
//! - I1: a request belongs to the holder of its [`Rq`]: the plug, the dispatch list, the driver, then the completion.
//! - I2: an [`Rq`] ends by [`DoneList::push`] (T1 of `token`).
//! - I3: the bios from `bio_head` to `bio_tail` are adjacent on the device and in this order.
//! - I4: a tag is at most the depth of its hardware context: tags come from its tag set, and [`Rq`]s are made only from
//!   them.
//! - I5: `bio_head` is [`BioId::PLAIN`] only in plain records, and [`BioId::NONE`] only in unused requests. Plain
//!   records and their owners are found by a walk over the requests; they are counted nowhere else.
#![allow(unsafe_code)] // Requests are an arena like the bios: indexed at every step of every I/O.

mod head;
mod token;

use std::collections::VecDeque;

use sheave_base::clock::CoarseTs;
use sheave_base::status::Status;

use crate::bio::{BIO_NOMERGE, BVec, Bio, BioId, NO_FIXED_BUF, SECTOR_SHIFT, Segment};
use crate::bio_set::BioSet;

pub use head::RqHead;
pub use token::{DoneList, Rq};

/// Largest number of requests that one plug gathers for one hardware context before it is flushed.
pub const PLUG_MAX: usize = 32;
/// A request of at least this length is the last one of its batch: the driver receives it, so that the device works
/// while the rest of the plug is still being gathered. The kernel ring still sends everything in one system call.
pub const PLUG_LONG: u32 = 128 << 10;

/// The write must be durable when it completes, and the driver has native FUA.
pub const RQ_FUA: u8 = 1 << 0;
/// The request belongs to a flush sequence: its completion goes through [`flush`](crate::hctx::flush).
pub(crate) const RQ_FLUSH_SEQ: u8 = 1 << 1;
/// The request takes no more bios.
pub(crate) const RQ_NOMERGE: u8 = BIO_NOMERGE as u8;
/// The block layer has held back the request, or its bio before. Its split is not shared.
pub(crate) const RQ_DELAYED: u8 = 1 << 2;

const _: () = {
    let bits = [RQ_FUA, RQ_FLUSH_SEQ, RQ_NOMERGE, RQ_DELAYED];
    let (mut all, mut at) = (0, 0);
    while at < bits.len() {
        assert!(bits[at].count_ones() == 1 && all & bits[at] == 0, "one bit each; one is that of a bio");
        all |= bits[at];
        at += 1;
    }
};

/// One request. A driver may change only `private`, because completion accounts by the other fields. (A driver that
/// stacks on another one may change `sector`, or lower `bytes`, for as long as the other one has the request.)
///
/// Not `Default`, for a driver could replace a request that has bios by one without.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Request {
    pub(crate) head: RqHead,
    /// First sector on the device.
    pub sector: u64,
    /// Address of the memory of a plain record.
    pub(crate) base: usize,
    /// User data of a plain record's submitter.
    pub(crate) cookie: u64,
    /// Free for the driver's own use while it has the request.
    pub private: u64,
}

impl Request {
    /// Returns the time of issue for statistics: a stamp that other requests of the batch may share.
    #[inline]
    pub fn issued_at(&self) -> CoarseTs {
        self.start
    }

    /// Returns the segment of a plain record.
    #[inline(always)]
    pub fn plain_segment(&self) -> Option<Segment> {
        self.plain_vec().map(|vec| vec.segment())
    }

    /// Returns the vector of a plain record.
    #[inline(always)]
    pub(crate) fn plain_vec(&self) -> Option<BVec> {
        self.is_plain().then_some(BVec { base: self.base, len: self.bytes as usize })
    }

    /// Returns the segment of a plain record, and the registered buffer that contains it.
    #[inline(always)]
    pub fn plain_memory(&self) -> Option<(Segment, Option<u16>)> {
        let buf = self.merged_or_buf;
        self.plain_segment().map(|vec| (vec, (buf != NO_FIXED_BUF).then_some(buf)))
    }

    /// Returns the number of bios beyond the first.
    #[inline(always)]
    pub(crate) fn merged(&self) -> u16 {
        if self.is_plain() { 0 } else { self.merged_or_buf }
    }

    #[inline(always)]
    pub(crate) fn bio_tail(&self) -> BioId {
        debug_assert!(!self.is_plain(), "I5: a plain record has no bio");
        BioId(self.tail_or_owner)
    }
}

impl std::ops::Deref for Request {
    type Target = RqHead;

    #[inline(always)]
    fn deref(&self) -> &RqHead {
        &self.head
    }
}

impl std::ops::DerefMut for Request {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut RqHead {
        &mut self.head
    }
}

/// Requests of one hardware context by tag. The last is the flush request.
#[derive(Debug)]
pub(crate) struct Requests(Box<[Request]>);

impl Requests {
    pub(crate) fn new(depth: u16) -> Requests {
        Requests((0..=depth).map(|_| Request::unused()).collect())
    }

    pub(crate) fn all(&mut self) -> &mut [Request] {
        &mut self.0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.0.iter()
    }

    /// Returns the `many` requests whose tags follow each other from `first` on; empty if there are fewer.
    #[inline(always)]
    pub(crate) fn row(&mut self, first: u16, many: usize) -> &mut [Request] {
        self.0.get_mut(usize::from(first)..usize::from(first) + many).unwrap_or_default()
    }
}

impl std::ops::Index<u16> for Requests {
    type Output = Request;

    #[inline(always)]
    fn index(&self, tag: u16) -> &Request {
        debug_assert!(usize::from(tag) < self.0.len(), "I4");
        // SAFETY: a tag, the flush request's included, is below `self.0.len()` (I4).
        unsafe { self.0.get_unchecked(usize::from(tag)) }
    }
}

impl std::ops::IndexMut<u16> for Requests {
    #[inline(always)]
    fn index_mut(&mut self, tag: u16) -> &mut Request {
        debug_assert!(usize::from(tag) < self.0.len(), "I4");
        // SAFETY: a tag, the flush request's included, is below `self.0.len()` (I4).
        unsafe { self.0.get_unchecked_mut(usize::from(tag)) }
    }
}

/// Up to [`PLUG_MAX`] requests in order: gathered by a plug, and taken by a driver.
#[derive(Debug)]
pub struct RqList {
    tags: [u16; PLUG_MAX],
    head: u8,
    len: u8,
}

impl Default for RqList {
    fn default() -> Self {
        RqList { tags: [0; PLUG_MAX], head: 0, len: 0 }
    }
}

impl RqList {
    /// Makes a list of one request.
    #[cold]
    pub(crate) fn of(tag: u16) -> RqList {
        let mut list = RqList::default();
        list.push(tag);
        list
    }

    /// Returns the number of requests left.
    #[inline]
    pub fn len(&self) -> usize {
        usize::from(self.len - self.head)
    }

    /// Returns true if no request is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == self.head
    }

    /// Takes the first request.
    #[inline]
    pub fn pop(&mut self) -> Option<Rq> {
        if self.is_empty() {
            return None;
        }
        let tag = self.tags[usize::from(self.head) % PLUG_MAX];
        self.head += 1;
        Some(Rq::new(tag))
    }

    /// Returns the request that [`RqList::pop`] returned last, because the driver cannot take it now.
    pub fn unpop(&mut self, rq: Rq) {
        debug_assert!(self.head > 0, "unpop gives back what pop gave");
        self.head = self.head.saturating_sub(1);
        self.tags[usize::from(self.head) % PLUG_MAX] = rq.into_tag();
    }

    /// Appends a request. For a driver that stacks on another one and passes requests down.
    #[inline]
    pub fn add(&mut self, rq: Rq) {
        debug_assert!(!self.is_full(), "a list that is handed down is no longer than the one that came");
        self.push(rq.into_tag());
    }

    /// Returns to this list the requests left in a list that was passed down, in their order, as [`RqList::unpop`] does
    /// for one.
    pub fn unpop_all(&mut self, from: &mut RqList) {
        from.tags().iter().rev().for_each(|&tag| self.unpop(Rq::new(tag)));
        *from = RqList::default();
    }

    /// Returns the tags that are left, in order, without taking them.
    #[inline]
    pub fn tags(&self) -> &[u16] {
        &self.tags[usize::from(self.head)..usize::from(self.len)]
    }

    /// Returns the tag of the only request left, if there is exactly one, without taking it.
    #[inline(always)]
    pub fn only(&self) -> Option<u16> {
        (self.len.wrapping_sub(self.head) == 1).then(|| self.tags[usize::from(self.head) % PLUG_MAX])
    }

    /// Completes all requests with success.
    #[inline]
    pub fn complete_all(&mut self, done: &mut DoneList) {
        done.succeeded(self.tags());
        self.head = 0;
        self.len = 0;
    }

    /// Completes each request with the status that `carry_out` returns. For a driver that carries requests out as they
    /// come. `carry_out` also receives the tags behind the request.
    #[inline(always)]
    pub fn carry_out_all(&mut self, done: &mut DoneList, mut carry_out: impl FnMut(&Rq, &[u16]) -> Status) {
        let mut tags = self.tags();
        while let [tag, behind @ ..] = tags {
            let rq = Rq::new(*tag);
            let status = carry_out(&rq, behind);
            // `complete_all` below completes it with the others.
            let tag = rq.into_tag();
            if !status.is_ok() {
                done.set_status(tag, status);
            }
            tags = behind;
        }
        self.complete_all(done);
    }

    /// Takes the first `many` requests, whose tags the caller has read. Each must be completed as an [`Rq`] of its tag.
    #[inline]
    pub fn took(&mut self, many: u32) {
        debug_assert!(many as usize <= self.len(), "no more than there are");
        self.head = self.head.saturating_add(many as u8).min(self.len);
    }

    /// Moves all requests to the end of `queue`.
    #[inline]
    pub fn take_all(&mut self, queue: &mut RqQueue) {
        queue.0.extend(self.tags[usize::from(self.head)..usize::from(self.len)].iter().copied());
        self.head = 0;
        self.len = 0;
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, tag: u16) {
        self.tags[usize::from(self.len) % PLUG_MAX] = tag;
        self.len += 1;
    }

    /// Returns the number of requests pushed since the list was empty.
    #[inline(always)]
    pub(crate) fn end(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns the free places of the list, to be filled from the first on and announced by [`RqList::pushed`].
    #[inline(always)]
    pub(crate) fn room(&mut self) -> &mut [u16] {
        &mut self.tags[usize::from(self.len).min(PLUG_MAX)..]
    }

    /// Declares that the first `many` places of [`RqList::room`] hold tags.
    #[inline(always)]
    pub(crate) fn pushed(&mut self, many: usize) {
        debug_assert!(usize::from(self.len) + many <= PLUG_MAX, "no more than there was room for");
        self.len += many as u8;
    }

    /// Returns true if the list has no more room.
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        usize::from(self.len) == PLUG_MAX
    }

    #[inline(always)]
    pub(crate) fn last(&self) -> Option<u16> {
        (self.len > self.head).then(|| self.tags[usize::from(self.len - 1) % PLUG_MAX])
    }

    #[inline]
    pub(crate) fn reset(&mut self) {
        debug_assert!(self.is_empty(), "requests are never forgotten");
        self.head = 0;
        self.len = 0;
    }
}

/// First-in first-out queue of requests that a driver holds. Preallocate it with the queue's depth.
#[derive(Debug, Default)]
pub struct RqQueue(VecDeque<u16>);

impl RqQueue {
    /// Makes a queue with room for `depth` requests and the flush request.
    pub fn with_depth(depth: u16) -> RqQueue {
        RqQueue(VecDeque::with_capacity(usize::from(depth) + 1))
    }

    /// Appends a request.
    pub fn push(&mut self, rq: Rq) {
        self.0.push_back(rq.into_tag());
    }

    /// Takes the first request.
    #[inline]
    pub fn pop(&mut self) -> Option<Rq> {
        self.0.pop_front().map(Rq::new)
    }

    /// Puts the requests left in `list` before all others, in their order, because they were offered first.
    pub fn put_back(&mut self, list: &mut RqList) {
        list.tags().iter().rev().for_each(|&tag| self.0.push_front(tag));
        *list = RqList::default();
    }

    /// Returns the position of the request with this tag.
    pub fn position(&self, tag: u16) -> Option<usize> {
        self.0.iter().position(|&have| have == tag)
    }

    /// Removes the request with this tag from the queue.
    pub fn remove(&mut self, tag: u16) -> Option<Rq> {
        self.0.remove(self.position(tag)?).map(Rq::new)
    }

    /// Returns the number of requests.
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no requests.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Completes all requests with success.
    #[inline]
    pub fn complete_all(&mut self, done: &mut DoneList) {
        let (a, b) = self.0.as_slices();
        done.succeeded(a);
        done.succeeded(b);
        self.0.clear();
    }
}

impl Drop for RqQueue {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !self.0.is_empty() && !std::thread::panicking() {
            panic!("{} requests dropped without being completed", self.0.len());
        }
    }
}

/// A driver's view of the requests of its hardware context and of their memory.
#[derive(Debug)]
pub struct RqTable<'a> {
    pub(crate) rqs: &'a mut [Request],
    pub(crate) bios: &'a BioSet,
}

impl RqTable<'_> {
    /// Returns the request of a token.
    #[inline]
    pub fn get(&self, rq: &Rq) -> &Request {
        &self.rqs[usize::from(rq.tag())]
    }

    /// Returns the request of a token, mutable.
    #[inline]
    pub fn get_mut(&mut self, rq: &Rq) -> &mut Request {
        &mut self.rqs[usize::from(rq.tag())]
    }

    /// Returns the request with this tag. For a driver that keeps its token elsewhere.
    #[inline]
    pub fn by_tag(&self, tag: u16) -> &Request {
        &self.rqs[usize::from(tag)]
    }

    /// Returns the request with this tag, mutable.
    #[inline]
    pub fn by_tag_mut(&mut self, tag: u16) -> &mut Request {
        &mut self.rqs[usize::from(tag)]
    }

    /// Returns the segments of a request's memory, in order. Together they have `bytes` bytes.
    pub fn segments(&self, tag: u16) -> Segments<'_> {
        let rq = &self.rqs[usize::from(tag)];
        let own = rq.plain_segment();
        let bio = (own.is_none() && rq.bio_head.is_some()).then(|| &self.bios[rq.bio_head]);
        Segments { bios: self.bios, bio, own, at: 0, left: rq.bytes as usize }
    }

    /// Returns true if the request with this tag is in use.
    pub fn is_live(&self, tag: u16) -> bool {
        self.rqs[usize::from(tag)].bio_head.is_some()
    }

    /// Returns the only bio of a request if it covers the whole request; `None` if there are several, or none (a flush,
    /// a plain record). The bio and its vectors do not move until the request has ended.
    #[inline]
    pub fn single_bio(&self, tag: u16) -> Option<&Bio> {
        let rq = &self.rqs[usize::from(tag)];
        if rq.is_plain() || !rq.bio_head.is_some() || rq.bio_head != rq.bio_tail() {
            return None;
        }
        Some(&self.bios[rq.bio_head]).filter(|bio| bio.bytes == rq.bytes)
    }
}

impl Request {
    pub(crate) fn unused() -> Request {
        Request { head: RqHead::default(), sector: 0, base: 0, cookie: 0, private: 0 }
    }

    /// Makes this the request of one bio. `head` has the other fields.
    #[inline(always)]
    pub(crate) fn fill(&mut self, bio: BioId, sector: u64, head: &RqHead) {
        self.head = *head;
        self.set_bio(bio);
        self.sector = sector;
    }

    /// Makes `bio` the only bio of the request.
    #[inline(always)]
    pub(crate) fn set_bio(&mut self, bio: BioId) {
        self.bio_head = bio;
        self.tail_or_owner = bio.0;
    }

    /// Accounts for `many` bios of `bytes` each that were linked behind the request's own; `tail` is the last.
    #[inline]
    pub(crate) fn grew_behind(&mut self, tail: BioId, many: u32, bytes: u32) {
        self.bytes += many * bytes;
        self.nr_segs += many as u16;
        self.merged_or_buf += many as u16;
        self.tail_or_owner = tail.0;
    }

    /// Makes this request a plain record. `head` has the fields that all records of the same run have in common.
    #[inline(always)]
    pub(crate) fn fill_plain(&mut self, head: &RqHead, sector: u64, base: usize, cookie: u64) {
        self.head = *head;
        self.sector = sector;
        self.base = base;
        self.cookie = cookie;
    }

    /// Returns the first sector after the request.
    #[inline]
    pub fn end_sector(&self) -> u64 {
        self.sector + u64::from(self.bytes >> SECTOR_SHIFT)
    }
}

/// Iterator over the segments of a request, which is a plain record or carries bios. Made by [`RqTable::segments`] for
/// drivers.
#[derive(Debug)]
pub struct Segments<'a> {
    bios: &'a BioSet,
    bio: Option<&'a Bio>,
    /// Segment of a plain record.
    own: Option<Segment>,
    at: usize,
    /// Bytes left. Fewer than the bios have if a driver above has made the request shorter.
    left: usize,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        if self.own.is_some() {
            return self.own.take();
        }
        loop {
            let bio = self.bio?;
            if self.left == 0 {
                return None;
            }
            if let Some(mut segment) = bio.segments().get(self.at).copied() {
                segment.truncate(self.left);
                self.at += 1;
                self.left -= segment.len();
                return Some(segment);
            }
            self.at = 0;
            self.bio = bio.next.is_some().then(|| &self.bios[bio.next]);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
