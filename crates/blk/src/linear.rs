//! Partitions and concatenations of devices: opened by the specs `partition:` and `linear:`.
//!
//! Such a device has no requests of its own. When it is opened it is resolved to legs on the queues of drivers
//! ([`Device`]), through any number of partitions and concatenations, so that an I/O is remapped once, and a whole
//! device and its partitions share tags, limits and statistics. I/O that crosses from one leg to the next is cut there.
//! A flush goes to every leg.
//!
//! A partition has a number on its queue. [`Device::in_flight`] counts the requests of the partition only, or, for the
//! device, those of all partitions, in one pass over the tags. A partition of a partition has a number of its own, and
//! its requests count for both. A concatenation has no number: it counts the requests in flight on the devices that it
//! consists of.

use crate::bio::SECTOR_SHIFT;
use crate::device::{Device, Leg};
use crate::error::DeviceError;

/// Largest number of legs of one device. Each may need a hardware context of every ring.
pub(crate) const MAX_LEGS: usize = 64;

/// Returns the sectors `start..start + sectors` of a device, which contains them, as legs that begin at 0.
fn slice(device: &Device, start: u64, sectors: u64) -> Vec<Leg> {
    let end = start + sectors;
    // The leg of a whole device has the length that its queue had at first; the device ends where the queue ends now.
    let end_of = |leg: &Leg| if device.is_whole() { end } else { leg.start + leg.sectors };
    let overlapping = device.legs().iter().filter(|leg| leg.start < end && end_of(leg) > start);
    overlapping
        .map(|leg| {
            let from = leg.start.max(start);
            let to = end_of(leg).min(end);
            Leg {
                start: from - start,
                sectors: to - from,
                offset: leg.offset + (from - leg.start),
                part: leg.part,
                queue: leg.queue.clone(),
                lower: leg.lower.clone(),
            }
        })
        .collect()
}

/// Makes a device of a range of another one, with an accounting number of its own.
pub fn partition(name: &str, device: &Device, start_bytes: u64, len_bytes: u64) -> Result<Device, DeviceError> {
    let block = u64::from(device.limits().logical_block);
    let size = device.size_bytes();
    let wrong = |why: String| Err(DeviceError::spec(name, why));
    if start_bytes >= size {
        return wrong(format!(
            "start={start_bytes} is beyond the device under it, which has {size} bytes. Choose a smaller one"
        ));
    }
    if !start_bytes.is_multiple_of(block) || !len_bytes.is_multiple_of(block) || len_bytes == 0 {
        return wrong(format!(
            "start={start_bytes} and size={len_bytes} must be multiples of the block size of the device under it, \
             {block} bytes, and size not 0"
        ));
    }
    if start_bytes.checked_add(len_bytes).is_none_or(|end| end > size) {
        return wrong(format!(
            "start={start_bytes} and size={len_bytes} go beyond the device under it, which has {size} bytes. Choose a \
             smaller start or size"
        ));
    }
    let mut legs = slice(device, start_bytes >> SECTOR_SHIFT, len_bytes >> SECTOR_SHIFT);
    for leg in &mut legs {
        leg.part = leg.queue.new_partition(leg.part);
    }
    Ok(Device::from_legs(name, legs))
}

/// Makes a device of several devices in sequence.
pub fn concatenate(name: &str, devices: &[Device]) -> Result<Device, DeviceError> {
    let mut legs = Vec::new();
    let block = devices.iter().map(|device| u64::from(device.limits().logical_block)).max().unwrap_or(512);
    let mut start = 0;
    for device in devices {
        // A device that is not a multiple of the largest block loses its tail, so that no block crosses two devices.
        let sectors = (device.size_bytes() / block * block) >> SECTOR_SHIFT;
        for mut leg in slice(device, 0, sectors) {
            leg.start += start;
            legs.push(leg);
        }
        start += sectors;
    }
    if legs.is_empty() || legs.len() > MAX_LEGS {
        let why = format!("{} pieces; give devices that are 1 to {MAX_LEGS} pieces in all", legs.len());
        return Err(DeviceError::spec(name, why));
    }
    Ok(Device::from_legs(name, legs))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::bio::Op;
    use crate::linear::{concatenate, partition};
    use crate::support::{BLOCK, Puppet, Rig};

    use sheave_base::status::Status;

    #[test]
    fn a_flush_through_a_partition_reaches_a_disk_that_shrank_below_it() {
        let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true);
        let disk = puppet.device();
        let part = partition("part", &disk, 512 << 20, 1 << 20).unwrap();
        let mut rig = Rig::new(&[&part]);
        rig.queue().set_capacity(1 << 20);
        rig.flush(0);
        rig.read(0, 1);
        rig.drain();
        let mut ended = rig.take_ended();
        ended.sort_unstable_by_key(|end| end.0);
        assert_eq!(
            ended,
            [(0, Status::Ok), (1, Status::IoErr)],
            "what was written to the rest of the disk is made durable"
        );
        assert_eq!(puppet.script().seen.iter().map(|seen| seen.op).collect::<Vec<_>>(), [Op::Flush]);
    }

    /// Devices made of a disk that has grown while it was open cover the disk's new size.
    #[test]
    fn devices_made_on_a_grown_disk_use_its_new_size() {
        let (grown, second) = (Puppet::new(), Puppet::new());
        let disk = grown.device();
        disk.whole_queue().unwrap().set_capacity(2 << 30);
        let both = concatenate("both", &[disk.clone(), second.device()]).unwrap();
        assert_eq!(both.size_bytes(), 3 << 30);
        let new_half = partition("new", &disk, 1 << 30, 1 << 30).unwrap();
        assert_eq!(new_half.size_bytes(), 1 << 30);
        let mut rig = Rig::new(&[&both, &new_half]);
        // The last block of each GiB of the concatenation, then the last block of the partition.
        let last = (1 << 21) - 8;
        for gib in 0..3 {
            assert!(rig.io(Op::Read, (gib << 21) + last, BLOCK, gib as u32));
        }
        assert!(rig.io_to(1, Op::Read, 0, last, BLOCK, 3));
        rig.drain();
        assert_eq!(rig.take_ok().len(), 4);
        assert_eq!(grown.sectors_seen(), [last, (1 << 21) + last, (1 << 21) + last]);
        assert_eq!(second.sectors_seen(), [last]);
    }
}
