//! The processor's cycle counter (x86-64 TSC) as a clock in ns.
//!
//! Owns the decision if the counter can be trusted, its calibration, and the conversion. Does not own the use of the
//! stamps.
//!
//! * I1: used only where CPUID promises a constant rate in all power states, and the host kernel, which watches for
//!   counters that differ between sockets, keeps its own time by it.
//! * I2: `ns = (cycles * mult) >> SHIFT`, in 128 bits, so no span overflows. As SHIFT is 64, that is the upper half of
//!   one multiplication; so a cycle must be shorter than 1 ns.
//!
//! Called by `clock` alone.
#![allow(unsafe_code)] // The instruction has no safe wrapper.

use std::time::Duration;

/// Number of fraction bits of `mult`, which are all its bits (I2).
const SHIFT: u32 = 64;

/// Time between the two readings of the calibration: a reading error of 100 ns then means 10 ppm.
const CALIBRATION: Duration = Duration::from_millis(10);

/// Number of repetitions of each reading, to find one that was not interrupted.
const READINGS: u32 = 16;

/// Usable rates in cycles per second. `mult` has no room for slower ones, which are rare, and no processor is faster.
/// If a calibration yields another rate, the system's clock is used.
const USABLE_HZ: std::ops::Range<u64> = 1_000_000_001..20_000_000_000;

/// Clock sources of the host kernel that use the cycle counter (I1).
const TRUSTED_SOURCES: [&str; 3] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];
const CLOCK_SOURCE_FILE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// A calibrated cycle counter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tsc {
    /// ns per cycle, with `SHIFT` fraction bits.
    mult: u64,
}

impl Tsc {
    /// Measures the counter against `now_ns`; returns `None` if the counter cannot be trusted.
    pub(super) fn calibrate(now_ns: fn() -> u64) -> Option<Self> {
        if !is_invariant() || !host_trusts_it() {
            return None;
        }
        let start = reading(now_ns);
        std::thread::sleep(CALIBRATION);
        let end = reading(now_ns);
        Self::between(start, end)
    }

    /// Returns the clock through two readings of (cycles, ns).
    pub(super) fn between(start: (u64, u64), end: (u64, u64)) -> Option<Self> {
        let cycles = end.0.checked_sub(start.0)?;
        let ns = end.1.checked_sub(start.1)?;
        let hz = (u128::from(cycles) * 1_000_000_000).checked_div(u128::from(ns))?;
        if !USABLE_HZ.contains(&u64::try_from(hz).ok()?) {
            return None;
        }
        let mult = u64::try_from((u128::from(ns) << SHIFT) / u128::from(cycles)).ok()?;
        Some(Self { mult })
    }

    /// Returns the time of a reading of the counter, with its zero as origin: stamps are only used for spans.
    #[inline]
    pub(super) fn ns(&self, cycles: u64) -> u64 {
        self.span_ns(cycles)
    }

    /// Converts cycles to ns.
    #[inline]
    pub(super) fn span_ns(&self, cycles: u64) -> u64 {
        ((u128::from(cycles) * u128::from(self.mult)) >> SHIFT) as u64
    }

    /// Converts ns to cycles.
    pub(super) fn span_cycles(&self, ns: u64) -> u64 {
        u64::try_from((u128::from(ns) << SHIFT) / u128::from(self.mult)).unwrap_or(u64::MAX)
    }
}

/// Returns (cycles, ns) of one moment: out of several readings the one with the fewest cycles around it.
fn reading(now_ns: fn() -> u64) -> (u64, u64) {
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..READINGS {
        let before = cycles();
        let ns = now_ns();
        let width = cycles().wrapping_sub(before);
        if width < best.0 {
            best = (width, before + width / 2, ns);
        }
    }
    (best.1, best.2)
}

/// Returns the counter. Not ordered against the instructions around it; statistics do not need that.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn cycles() -> u64 {
    // SAFETY: the instruction exists on each x86-64 processor and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn cycles() -> u64 {
    0
}

/// Checks CPUID leaf 8000_0007, EDX bit 8: the rate is constant in all power states.
#[cfg(target_arch = "x86_64")]
fn is_invariant() -> bool {
    use core::arch::x86_64::__cpuid;
    const MAX_LEAF: u32 = 0x8000_0000;
    const POWER_LEAF: u32 = 0x8000_0007;
    __cpuid(MAX_LEAF).eax >= POWER_LEAF && __cpuid(POWER_LEAF).edx & (1 << 8) != 0
}

#[cfg(not(target_arch = "x86_64"))]
fn is_invariant() -> bool {
    false
}

/// Returns true if the host kernel keeps its time by the counter, or if its clock source cannot be read: then CPUID
/// decides alone.
fn host_trusts_it() -> bool {
    match std::fs::read_to_string(CLOCK_SOURCE_FILE) {
        Ok(source) => TRUSTED_SOURCES.contains(&source.trim()),
        Err(_) => true,
    }
}
