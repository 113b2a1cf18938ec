//! A hint to the processor that a place in memory will be read soon.
//!
//! Owns nothing. Useful for loops that first compute many addresses and then read them: the loop then waits for memory
//! once, not for each address. Called by lookups in large tables.
#![allow(unsafe_code)] // The instruction has no safe wrapper.

/// Starts to fetch the cache line where `place` begins.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which every x86-64 processor executes or ignores; it has no visible effect.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) };
    }
    // On other architectures there is no stable intrinsic; the processor's own prefetching has to do.
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = place;
}
