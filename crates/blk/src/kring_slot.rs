//! Slot for a ring's kernel ring: at most one, made when the first device needs it.
//!
//! Owns the list of the buffers that the ring has registered, so that a kernel ring made later gets them too. Does not
//! own their memory, which the owner of a registered buffer keeps.
//!
//! Invariants:
//! - I1: the kernel has those of `buffers` that it accepted. I/O on the others goes as I/O of ordinary memory, and one
//!   notice gives the reason.
//! - I2: a kernel ring that polls (IOPOLL) serves only devices that can be polled.
//! - I3: a kernel ring that has failed is not replaced; later calls of [`KringSlot::get`] return its error.
//!
//! Called by the ring (buffers) and by drivers when they open a hardware queue ([`KringSlot::get`]).
#![allow(unsafe_code)] // registering memory with the kernel

use sheave_kring::{KernelRing, KringError, KringOpts};

/// Slot for a ring's kernel ring: at most one, made when the first device needs it.
#[derive(Debug, Default)]
pub struct KringSlot {
    pub(crate) ring: Option<KernelRing>,
    pub(crate) entries: u32,
    pub(crate) iopoll: bool,
    /// Error with which the kernel ring has failed (I3).
    pub(crate) failed: Option<KringError>,
    /// Number of calls of [`KringSlot::get`]. It grows if a driver uses the kernel ring.
    pub(crate) asked: u64,
    may_block: bool,
    /// Address and length of the ring's registered buffers, by index.
    buffers: Vec<Option<(usize, usize)>>,
}

impl KringSlot {
    /// Makes a slot for a kernel ring with this many entries. It polls if `iopoll` is set and the first device can be
    /// polled.
    pub(crate) fn new(entries: u32, iopoll: bool) -> KringSlot {
        KringSlot { entries, iopoll, ..KringSlot::default() }
    }

    /// Returns the kernel ring, and makes it if there is none. `polls` is true if the caller's device can be polled.
    ///
    /// # Errors
    ///
    /// The kernel ring is not available, or not for this device (I2).
    pub fn get(&mut self, polls: bool) -> Result<&mut KernelRing, KringError> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        self.asked += 1;
        let ring = match self.ring.take() {
            Some(ring) => ring,
            None => self.make(polls)?,
        };
        let refused = ring.features().iopoll && !polls;
        let ring = self.ring.insert(ring);
        if refused { Err(KringError::Polls) } else { Ok(ring) }
    }

    /// Allows drivers attached from now on to block the ring's thread in their calls. Set for a worker's ring.
    pub fn set_may_block(&mut self) {
        self.may_block = true;
    }

    /// Returns true if a driver may block the ring's thread.
    pub fn may_block(&self) -> bool {
        self.may_block
    }

    fn make(&self, polls: bool) -> Result<KernelRing, KringError> {
        let opts = KringOpts { iopoll: self.iopoll && polls, ..KringOpts::default() };
        let mut ring = KernelRing::new(self.entries, opts)?;
        for (index, buffer) in self.buffers.iter().enumerate() {
            if let Some((addr, len)) = *buffer {
                // SAFETY: I1; the memory stays, as promised to `register_buffer`.
                let _ = unsafe { ring.register_buffer(index as u32, addr as *mut u8, len) };
            }
        }
        Ok(ring)
    }

    /// Registers `len` bytes at `addr` as the ring's buffer `index`, replacing the one before. If the kernel refuses it
    /// (because of too little lockable memory, for example), its I/O goes as that of ordinary memory.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until the buffer is unregistered or replaced, or the [`KringSlot`] is dropped,
    /// because the kernel keeps using the pages that it found there.
    pub unsafe fn register_buffer(&mut self, index: u16, addr: usize, len: usize) {
        let at = usize::from(index);
        if at >= self.buffers.len() {
            self.buffers.resize(at + 1, None);
        }
        self.buffers[at] = Some((addr, len));
        if let Some(ring) = &mut self.ring {
            // Before the new buffer: if the kernel refuses it, the old one must not stay in the kernel's table.
            ring.unregister_buffer(u32::from(index));
            // SAFETY: promised by the caller. A refusal is in the ring's notices (I1).
            let _ = unsafe { ring.register_buffer(u32::from(index), addr as *mut u8, len) };
        }
    }

    /// Unregisters the ring's buffer `index`. Operations in flight with it end normally.
    pub fn unregister_buffer(&mut self, index: u16) {
        if let Some(buffer) = self.buffers.get_mut(usize::from(index)) {
            *buffer = None;
        }
        if let Some(ring) = &mut self.ring {
            ring.unregister_buffer(u32::from(index));
        }
    }

    /// Returns messages for the user about features that the kernel ring lacks and their cost; none without a kernel
    /// ring.
    pub fn notices(&self) -> &[String] {
        self.ring.as_ref().map_or(&[], KernelRing::notices)
    }
}
