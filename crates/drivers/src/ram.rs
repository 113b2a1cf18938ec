//! `ram`: a sparse device in memory.
//!
//! Spec: `ram:size=1G,bs=512,huge=on|off,touch=on|off,depth=256`, described in `docs/drivers/ram.md`.
//!
//! Owns the device and its polled queue; the memory and every access to it are in `region`. All rings share one region
//! without locks.
//!
//! Invariants:
//! - I1: a request has ended when [`HwQueue::queue_rqs`] returns.
//! - I2: the device has no cache of its own: a write that has ended is visible to the next read of any ring, so flush
//!   and FUA do nothing. Nothing outlives the process.

pub(super) mod region;

use rustix::system::sysinfo;
use sheave_base::sync::Arc;

use crate::spec::Params;
use sheave_blk::device::Device;
use sheave_blk::driver::{Capabilities, Driver, HctxOpen, HwEnv, HwQueue, NextEvent, Started, TimedOut};
use sheave_blk::error::DeviceError;
use sheave_blk::limits::Limits;
use sheave_blk::request::{DoneList, Rq, RqList, RqTable};

use region::Region;

/// File of the kernel that shows whether huge pages are enabled.
const HUGE_PAGES_SWITCH: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Largest number of bytes of the device that are prefetched before the first request of a batch is executed. Each
/// executed request then prefetches the bytes of a later one, so that memory is read while the processor copies.
const AHEAD_BYTES: usize = 8 << 10;

/// [`AHEAD_BYTES`] of an Intel processor: a batch of 32 sectors. Accesses to its second-level cache, such as the bytes
/// to copy and the ring's own data, wait behind prefetches from memory, so all prefetches are issued before the first
/// copy. With this value, random reads of 512 bytes took 73 ns instead of 78 ns on an Intel processor. An AMD processor
/// takes 36 ns with the value above and 43 ns with this one.
const AHEAD_BYTES_INTEL: usize = 16 << 10;

/// A device in memory.
#[derive(Debug)]
struct Ram {
    region: Arc<Region>,
    size: u64,
    block: u32,
    depth: u16,
    notices: Vec<String>,
}

/// Direct access to the bytes of a ram device without a ring, to compare the cost of a ring with a plain copy.
#[derive(Clone, Debug)]
pub struct RamMemory {
    region: Arc<Region>,
}

impl RamMemory {
    /// Returns the memory of a device that is exactly one ram device.
    pub fn of(device: &Device) -> Option<RamMemory> {
        device.driver_as::<Ram>().map(|ram| RamMemory { region: ram.region.clone() })
    }

    /// Copies the bytes from `pos` on into `into`. Returns false if the device does not have all of them. Like a read
    /// through a ring, it may see a mix of old and new bytes of a concurrent write.
    #[inline]
    #[must_use]
    pub fn read(&self, pos: u64, into: &mut [u8]) -> bool {
        self.region.read(pos, into)
    }
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D7: the size is that of the region that its queues reach.
unsafe impl Driver for Ram {
    fn limits(&self) -> Limits {
        Limits::default()
            .logical_block(self.block)
            .max_sectors(u32::MAX >> 9)
            .max_segments(1024)
            .max_discard_sectors(u32::MAX >> 9)
            .max_write_zeroes_sectors(u32::MAX >> 9)
            .queue_depth(self.depth)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().fua(true).discard(true).write_zeroes(true).polled(true).direct_io(true)
    }

    fn size_bytes(&self) -> u64 {
        self.size
    }

    fn open_hctx(&self, _: &mut HctxOpen<'_>) -> Result<Box<dyn HwQueue>, DeviceError> {
        Ok(Box::new(RamQueue { region: self.region.clone(), ahead_bytes: ahead_bytes() }))
    }

    fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }
}

#[derive(Debug)]
struct RamQueue {
    region: Arc<Region>,
    /// [`AHEAD_BYTES`] of this processor.
    ahead_bytes: usize,
}

#[allow(unsafe_code)] // A driver vouches for the memory of its requests.
// SAFETY: D1 to D6: bytes are moved in the call, by `Region`, which looks at the range itself; then the token ends.
unsafe impl HwQueue for RamQueue {
    #[inline]
    fn queue_rqs(&mut self, list: &mut RqList, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, done: &mut DoneList) {
        let region = &*self.region;
        let ahead = look_ahead(list, rqs, self.ahead_bytes);
        for &tag in list.tags().iter().take(ahead) {
            region.prefetch(rqs.by_tag(tag));
        }
        if ahead >= list.len() {
            return list.carry_out_all(done, |rq, _| region.carry_out(rqs, rq));
        }
        list.carry_out_all(done, |rq, behind| {
            if let Some(&tag) = behind.get(ahead - 1) {
                region.prefetch(rqs.by_tag(tag));
            }
            region.carry_out(rqs, rq)
        });
    }

    #[inline]
    fn queue_rq(&mut self, rq: Rq, rqs: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> Started {
        let status = self.region.carry_out(rqs, &rq);
        Started::Ended(rq, status)
    }

    fn ends_in_call(&self) -> bool {
        true
    }

    fn poll(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}

    fn next_event(&self) -> NextEvent {
        NextEvent::Idle
    }

    fn timed_out(&mut self, _: u16, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) -> TimedOut {
        TimedOut::Waiting
    }

    fn shutdown(&mut self, _: &mut RqTable<'_>, _: &mut HwEnv<'_>, _: &mut DoneList) {}
}

/// Returns the prefetch distance in requests, at least two. That many requests are prefetched before the first is
/// executed, and each later request is prefetched that many requests ahead of its turn.
#[inline(always)]
fn look_ahead(list: &RqList, rqs: &RqTable<'_>, ahead_bytes: usize) -> usize {
    let bytes = list.tags().first().map_or(0, |&tag| rqs.by_tag(tag).bytes as usize);
    (ahead_bytes / bytes.max(1)).max(2)
}

/// Returns the bytes to prefetch on this processor.
fn ahead_bytes() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let id = std::arch::x86_64::__cpuid(0);
        // "GenuineIntel", in the order in which the instruction returns the name.
        if [id.ebx, id.edx, id.ecx].map(u32::to_le_bytes).as_flattened() == b"GenuineIntel" {
            return AHEAD_BYTES_INTEL;
        }
    }
    AHEAD_BYTES
}

/// Opens `ram:...`.
pub(crate) fn from_spec(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let block = params.block()?;
    let size = params.size("size")?.unwrap_or(1 << 30);
    let huge = params.switch("huge")?.unwrap_or(true);
    let touch = params.switch("touch")?.unwrap_or(false);
    let depth = params.number("depth", 1, 4096)?.unwrap_or(256) as u16;
    params.finish()?;
    let size = params.check_size(size, block)?;
    let memory = memory_bytes();
    if size > memory {
        return Err(params.error(format!(
            "size={size}: the machine has {memory} bytes of memory and swap. Give a size up to that; a file \
             (file:PATH) may be larger"
        )));
    }
    let region = Region::new(size as usize, huge).map_err(|errno| DeviceError::Host {
        what: format!("mapping {size} bytes of memory for '{}'", params.spec()),
        fix: "Give a smaller size, or raise the limit of address space (ulimit -v)".into(),
        source: errno.into(),
    })?;
    if touch {
        region.touch();
    }
    let notices = if huge { huge_pages_notice(std::fs::read_to_string(HUGE_PAGES_SWITCH).ok()) } else { None };
    let ram = Ram { region: Arc::new(region), size, block, depth, notices: notices.into_iter().collect() };
    Ok(Device::from_driver(params.spec(), Box::new(ram)))
}

/// Returns the number of bytes that the machine can hold: memory and swap.
fn memory_bytes() -> u64 {
    let info = sysinfo();
    (info.totalram as u64).saturating_add(info.totalswap as u64).saturating_mul(u64::from(info.mem_unit))
}

/// Returns the notice for the user if the kernel has no huge pages; `switch` is the content of the kernel's switch.
fn huge_pages_notice(switch: Option<String>) -> Option<String> {
    let why = match switch {
        Some(switch) if switch.contains("[never]") => format!("switched off (echo madvise > {HUGE_PAGES_SWITCH})"),
        Some(_) => return None,
        None => "not built into this kernel".into(),
    };
    Some(format!("huge pages are {why}: random I/O over much memory is slower; huge=off says that this is wanted"))
}

#[cfg(test)]
mod tests;
