//! A client of a pool: its source of work and the state of its items.
//!
//! Owns the client's life: registered, closing, gone. Does not own queues.
//!
//! Invariants:
//! - I1: a client leaves the table when none of its items is queued or running; `close` waits for that.
//! - I2: entries that a removed client left behind have generations that no later client with its number uses.

use sheave_base::sync::atomic::{AtomicBool, Ordering, fence};
use sheave_base::sync::{Arc, Condvar, Mutex};

use super::item::Items;
use super::work::Source;
use crate::work_done::WorkDone;

#[derive(Debug)]
pub(super) struct Client<S> {
    pub(super) source: S,
    pub(super) items: Arc<Items>,
    #[cfg(sheave_lab)]
    pub(super) stamps: super::measure::Stamps,
    closing: AtomicBool,
    ended: Mutex<()>,
    some_ended: Condvar,
}

impl<S: Source> Client<S> {
    pub(super) fn new(source: S, slots: u32, generation: u32) -> Client<S> {
        Client {
            source,
            items: Arc::new(Items::new(slots, generation)),
            #[cfg(sheave_lab)]
            stamps: super::measure::Stamps::new(slots),
            closing: AtomicBool::new(false),
            ended: Mutex::new(()),
            some_ended: Condvar::new(),
        }
    }

    /// Delivers results to the source, and wakes a thread that waits for items to end.
    pub(super) fn finish(&self, done: &[(u32, WorkDone)]) {
        self.source.finish(done);
        // SeqCst pairs with the fence in `wait_for`: either that sees the items idle, or this sees `closing`.
        fence(Ordering::SeqCst);
        // Relaxed: after the fence.
        if self.closing.load(Ordering::Relaxed) {
            let _held = self.ended.lock().expect("invariant: no panic under this lock");
            self.some_ended.notify_all();
        }
    }

    /// Cancels the items for which `cancel` returns true, and waits until all items have ended. The client must not
    /// queue anything afterwards.
    pub(super) fn close(&self, cancel: impl Fn(u32) -> bool) {
        for slot in (0..self.items.slots()).filter(|&slot| cancel(slot)) {
            self.items.cancel(slot);
        }
        self.wait_for(0..self.items.slots());
    }

    /// Waits until the items of `slots` have ended.
    pub(super) fn wait_for(&self, slots: std::ops::Range<u32>) {
        // Relaxed: before the fence. It stays set, because a client that waits for an item is about to close.
        self.closing.store(true, Ordering::Relaxed);
        // SeqCst pairs with the fence in `finish`.
        fence(Ordering::SeqCst);
        let mut held = self.ended.lock().expect("invariant: no panic under this lock");
        for slot in slots {
            while !self.items.is_idle(slot) {
                held = self.some_ended.wait(held).expect("invariant: no panic under this lock");
            }
        }
    }
}

/// The clients of a pool by number, with the first generation for the next client of each number.
#[derive(Debug)]
pub(super) struct ClientTable<S> {
    places: Vec<(Option<Arc<Client<S>>>, u32)>,
    slots: usize,
}

impl<S: Source> ClientTable<S> {
    pub(super) fn new() -> ClientTable<S> {
        ClientTable { places: Vec::new(), slots: 0 }
    }

    /// Returns the number for another client, and the generation that its items start with.
    pub(super) fn vacant(&self) -> (u32, u32) {
        match self.places.iter().position(|(client, _)| client.is_none()) {
            Some(at) => (at as u32, self.places[at].1),
            None => (self.places.len() as u32, 0),
        }
    }

    /// Stores a client under a vacant number. Returns the number of slots of all clients.
    pub(super) fn insert(&mut self, at: u32, client: Arc<Client<S>>) -> usize {
        self.slots += client.items.slots() as usize;
        if at as usize == self.places.len() {
            self.places.push((None, 0));
        }
        self.places[at as usize].0 = Some(client);
        self.slots
    }

    /// Removes a client. The caller drops it after it has released the table's lock.
    pub(super) fn remove(&mut self, at: u32) -> Option<Arc<Client<S>>> {
        let place = &mut self.places[at as usize];
        let client = place.0.take()?;
        self.slots -= client.items.slots() as usize;
        place.1 = client.items.next_generation();
        Some(client)
    }

    pub(super) fn get(&self, at: u32) -> Option<&Arc<Client<S>>> {
        self.places.get(at as usize)?.0.as_ref()
    }

    /// Appends all clients, indexed by number.
    pub(super) fn copy_to(&self, copy: &mut Vec<Option<Arc<Client<S>>>>) {
        copy.extend(self.places.iter().map(|(client, _)| client.clone()));
    }
}
