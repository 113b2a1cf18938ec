//! The place of a ring's kernel ring: at most one, made when the first device asks for it.
//!
//! Owns the list of the buffers that the ring has registered, so that a kernel ring that is made later gets them, too.
//! Does not own their memory: whoever registers a buffer keeps it.
//!
//! Invariants:
//! - I1: the kernel has of `buffers` what it accepted; the rest goes as ordinary memory, and one notice says why.
//! - I2: a kernel ring that polls (IOPOLL) serves only devices that can be polled.
//! - I3: a kernel ring that has failed is not replaced: whoever asks from then on is told why.
//!
//! Called by the ring (buffers) and by drivers when they open a hardware queue ([`KringSlot::get`]).
#![allow(unsafe_code)] // registering memory with the kernel

use sheave_kring::{KernelRing, KringError, KringOpts};

/// The place of a ring's kernel ring: at most one, made when the first device asks.
#[derive(Debug, Default)]
pub struct KringSlot {
    pub(crate) ring: Option<KernelRing>,
    pub(crate) entries: u32,
    pub(crate) iopoll: bool,
    /// Why the kernel ring takes nothing any more (I3).
    pub(crate) failed: Option<KringError>,
    /// How often a driver has asked for the kernel ring.
    pub(crate) asked: u64,
    may_block: bool,
    /// Address and length of the buffers the ring has registered, by index.
    buffers: Vec<Option<(usize, usize)>>,
}

impl KringSlot {
    /// A place for a kernel ring of this many entries, which polls if `iopoll` and the first device can be polled.
    pub(crate) fn new(entries: u32, iopoll: bool) -> KringSlot {
        KringSlot { entries, iopoll, ..KringSlot::default() }
    }

    /// The kernel ring, made now if there is none; `polls` says whether the device that asks can be polled.
    ///
    /// # Errors
    ///
    /// Why there can be no kernel ring here, or none for this device (I2).
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

    /// From now on drivers that attach may block the ring's thread in their calls: it is a worker's.
    pub fn set_may_block(&mut self) {
        self.may_block = true;
    }

    /// Whether a driver may block the ring's thread.
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

    /// Registers `len` bytes at `addr` as the ring's buffer `index`, in place of what was there. When the kernel does
    /// not take it (too little lockable memory, say), its I/O goes as that of ordinary memory.
    ///
    /// # Safety
    ///
    /// The memory must stay mapped until the buffer is unregistered or replaced, or the [`KringSlot`] is dropped: the
    /// kernel keeps reaching the pages that were there.
    pub unsafe fn register_buffer(&mut self, index: u16, addr: usize, len: usize) {
        let at = usize::from(index);
        if at >= self.buffers.len() {
            self.buffers.resize(at + 1, None);
        }
        self.buffers[at] = Some((addr, len));
        if let Some(ring) = &mut self.ring {
            // A buffer that the kernel refuses must not leave the one before it in the kernel's table.
            ring.unregister_buffer(u32::from(index));
            // SAFETY: promised by the caller. A refusal is in the ring's notices (I1).
            let _ = unsafe { ring.register_buffer(u32::from(index), addr as *mut u8, len) };
        }
    }

    /// Forgets the ring's buffer `index`; operations in flight with it end as they would have.
    pub fn unregister_buffer(&mut self, index: u16) {
        if let Some(buffer) = self.buffers.get_mut(usize::from(index)) {
            *buffer = None;
        }
        if let Some(ring) = &mut self.ring {
            ring.unregister_buffer(u32::from(index));
        }
    }

    /// Plain words about what the kernel ring does not have and what that costs; none while there is no such ring.
    pub fn notices(&self) -> &[String] {
        self.ring.as_ref().map_or(&[], KernelRing::notices)
    }
}
