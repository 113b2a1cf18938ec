//! Checks of bytes: reads return what was written, whatever the shape of the I/O, and no other bytes change.

use sheave_base::buf::Buf;
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::{BIO_FUA, Op};

use crate::rig::{Ended, Mode, Rig};
use crate::suite::{Checked, Suite};

/// Largest number of bytes at the beginning of the device that the checks use.
const REACH: u64 = 4 << 20;

/// A check, with its name in reports.
pub(crate) type Check = (&'static str, fn(&Suite, &Device) -> Checked);

pub(crate) const CHECKS: &[Check] = &[
    ("says what is possible", sane),
    ("reads back what was written", reads_back),
    ("takes memory in pieces", pieces),
    ("takes memory as aligned as it asks", aligned),
    ("flushes, and writes durably", durable),
    ("zeroes and discards the range alone", zeroes),
    ("keeps to its size", bounds),
    ("refuses what it cannot do", refusals),
];

/// Returns the number of bytes that the checks use, in whole blocks.
pub(crate) fn reach(device: &Device) -> u64 {
    let block = u64::from(device.limits().logical_block);
    REACH.min(device.size_bytes()) / block * block
}

pub(crate) fn buf(device: &Device, len: usize) -> Result<Buf, String> {
    let align = (device.limits().dma_alignment as usize).max(512);
    Buf::zeroed(len, align).map_err(|error| error.to_string())
}

fn filled(device: &Device, bytes: &[u8]) -> Result<Buf, String> {
    let mut buf = buf(device, bytes.len())?;
    buf.copy_from_slice(bytes);
    Ok(buf)
}

impl Suite {
    /// Checks the status of an I/O: it must be success, unless I/O on the device may fail.
    pub(crate) fn check(&self, what: &str, ended: &Ended) -> Checked {
        if ended.status.is_ok() || self.may_fail {
            return Ok(());
        }
        Err(format!("{what} ended as '{}'", ended.status))
    }

    fn compare(&self, what: &str, at: u64, read: &[u8], want: &[u8]) -> Checked {
        if !self.keeps || read == want {
            return Ok(());
        }
        let wrong = read.iter().zip(want).position(|(read, want)| read != want).unwrap_or_default();
        Err(format!("{what}: byte {} reads as {}, not as {}", at + wrong as u64, read[wrong], want[wrong]))
    }

    fn write(&self, rig: &mut Rig, device: &Device, at: u64, bytes: &[u8]) -> Checked {
        let ended = rig.run(Op::Write, 0, at, bytes.len() as u32, vec![filled(device, bytes)?])?;
        self.check(&format!("a write of {} bytes at {at}", bytes.len()), &ended)
    }

    fn read_is(&self, rig: &mut Rig, device: &Device, what: &str, at: u64, want: &[u8]) -> Checked {
        let ended = rig.run(Op::Read, 0, at, want.len() as u32, vec![buf(device, want.len())?])?;
        self.check(what, &ended)?;
        self.compare(what, at, &ended.memory[0], want)
    }
}

fn noise(len: usize, rng: &mut Rng) -> Vec<u8> {
    (0..len).map(|_| rng.below(256) as u8).collect()
}

fn sane(_: &Suite, device: &Device) -> Checked {
    let limits = device.limits();
    let block = u64::from(limits.logical_block);
    if limits.clone().normalized() != *limits {
        return Err(format!("its limits do not go together: {limits:?}"));
    }
    if device.size_bytes() < 1 << 20 || !device.size_bytes().is_multiple_of(block) {
        return Err(format!("{} bytes: give 1 MiB at least, in blocks of {block}", device.size_bytes()));
    }
    let caps = device.capabilities();
    if caps.discard != (limits.max_discard_sectors > 0) {
        return Err("it discards by its capabilities and not by its limits, or the other way round".into());
    }
    if caps.write_zeroes && limits.max_write_zeroes_sectors == 0 {
        return Err("it zeroes ranges by its capabilities, and by its limits none".into());
    }
    Ok(())
}

/// Writes at random in batches, then reads everything in pieces of several lengths.
fn reads_back(suite: &Suite, device: &Device) -> Checked {
    if device.capabilities().read_only {
        return Ok(());
    }
    let (block, reach) = (device.limits().logical_block as usize, reach(device) as usize);
    let mut rng = Rng::new(11);
    for mode in [Mode::Poll, Mode::Wait] {
        let mut rig = Rig::new(device, mode)?;
        let mut model = noise(reach, &mut rng);
        for (at, piece) in model.chunks(256 << 10).enumerate() {
            suite.write(&mut rig, device, (at * (256 << 10)) as u64, piece)?;
        }
        for _ in 0..40 {
            let many = 1 + rng.below(48) as usize;
            let slots = reach / block / many;
            rig.plug(rng.below(2) == 0);
            for slot in 0..many {
                let blocks = 1 + rng.below(slots.min(64) as u64) as usize;
                let at = (slot * slots + rng.below((slots - blocks + 1) as u64) as usize) * block;
                let bytes = noise(blocks * block, &mut rng);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
                rig.send(Op::Write, 0, at as u64, bytes.len() as u32, vec![filled(device, &bytes)?])?;
            }
            rig.plug(false);
            rig.wait_all()?.iter().try_for_each(|ended| suite.check("a write in a batch", ended))?;
        }
        for len in [block, 3 * block, 200 * block, reach] {
            for at in (0..reach).step_by(len.max(reach / 64 / block * block)) {
                let end = (at + len).min(reach);
                suite.read_is(&mut rig, device, "a read after writes", at as u64, &model[at..end])?;
            }
        }
        rig.finish()?;
    }
    Ok(())
}

/// Checks I/O with more pieces of memory than a request takes.
fn pieces(suite: &Suite, device: &Device) -> Checked {
    if device.capabilities().read_only {
        return Ok(());
    }
    let (limits, mut rng) = (device.limits(), Rng::new(12));
    let block = limits.logical_block as usize;
    let mut rig = Rig::new(device, Mode::Poll)?;
    let most = (reach(device) as usize / block).min(usize::from(limits.max_segments) * 2 + 3);
    for count in [2, 5, most] {
        let bytes = noise(count * block, &mut rng);
        let memory = bytes.chunks(block).map(|piece| filled(device, piece)).collect::<Result<_, _>>()?;
        let ended = rig.run(Op::Write, 0, 0, bytes.len() as u32, memory)?;
        suite.check(&format!("a write of {count} pieces of memory"), &ended)?;
        let memory = (0..count).map(|_| buf(device, block)).collect::<Result<_, _>>()?;
        let ended = rig.run(Op::Read, 0, 0, bytes.len() as u32, memory)?;
        suite.check(&format!("a read of {count} pieces of memory"), &ended)?;
        let read: Vec<u8> = ended.memory.iter().flat_map(|piece| piece.iter().copied()).collect();
        suite.compare("memory in pieces", 0, &read, &bytes)?;
    }
    rig.finish()
}

/// Checks I/O with memory that has exactly the alignment that the limits require.
fn aligned(suite: &Suite, device: &Device) -> Checked {
    if device.capabilities().read_only {
        return Ok(());
    }
    let align = device.limits().dma_alignment as usize;
    let block = device.limits().logical_block as usize;
    let bytes = noise(4 * block, &mut Rng::new(13));
    let mut rig = Rig::new(device, Mode::Wait)?;
    let own = |bytes: &[u8]| -> Result<Buf, String> {
        let mut buf = Buf::zeroed(bytes.len(), align).map_err(|error| error.to_string())?;
        buf.copy_from_slice(bytes);
        Ok(buf)
    };
    let ended = rig.run(Op::Write, 0, 0, bytes.len() as u32, vec![own(&bytes)?])?;
    suite.check(&format!("a write of memory at a multiple of {align}"), &ended)?;
    let ended = rig.run(Op::Read, 0, 0, bytes.len() as u32, vec![own(&vec![0; bytes.len()])?])?;
    suite.check(&format!("a read to memory at a multiple of {align}"), &ended)?;
    suite.compare("memory as aligned as it asks", 0, &ended.memory[0], &bytes)?;
    rig.finish()
}

fn durable(suite: &Suite, device: &Device) -> Checked {
    let mut rig = Rig::new(device, Mode::Wait)?;
    suite.check("a flush of nothing", &rig.run(Op::Flush, 0, 0, 0, Vec::new())?)?;
    if !device.capabilities().read_only {
        let block = device.limits().logical_block as usize;
        let bytes = noise(8 * block, &mut Rng::new(14));
        for mode in [Mode::Poll, Mode::Wait] {
            rig.mode = mode;
            for at in 0..8 {
                let (at, bytes) = ((at * block) as u64, &bytes[at * block..(at + 1) * block]);
                rig.send(Op::Write, BIO_FUA, at, block as u32, vec![filled(device, bytes)?])?;
                rig.send(Op::Flush, 0, 0, 0, Vec::new())?;
            }
            rig.wait_all()?.iter().try_for_each(|ended| suite.check("a durable write or a flush among them", ended))?;
        }
        suite.read_is(&mut rig, device, "a read after durable writes", 0, &bytes)?;
    }
    rig.finish()
}

fn zeroes(suite: &Suite, device: &Device) -> Checked {
    let (limits, caps) = (device.limits(), device.capabilities());
    if caps.read_only {
        return Ok(());
    }
    let (block, reach) = (limits.logical_block as usize, reach(device).min(1 << 20) as usize);
    let mut rig = Rig::new(device, Mode::Poll)?;
    let ops = [(Op::WriteZeroes, limits.max_write_zeroes_sectors), (Op::Discard, limits.max_discard_sectors)];
    for (op, _) in ops.into_iter().filter(|(_, most)| *most > 0) {
        let bytes = noise(reach, &mut Rng::new(15));
        suite.write(&mut rig, device, 0, &bytes)?;
        let blocks = reach / block;
        // A device with large blocks has no room for the third range.
        let ranges = [(1, 1), (3, 5), (10, blocks.saturating_sub(20))];
        for (first, many) in ranges.into_iter().filter(|(first, many)| *many > 0 && first + many <= blocks) {
            let (at, len) = ((first * block) as u64, (many * block) as u32);
            suite.check(op.name(), &rig.run(op, 0, at, len, Vec::new())?)?;
            let before = &bytes[..block];
            suite.read_is(&mut rig, device, &format!("a read before what a {} named", op.name()), 0, before)?;
            let end = (first + many) * block;
            if first == 10 {
                let what = format!("a read behind what a {} named", op.name());
                suite.read_is(&mut rig, device, &what, end as u64, &bytes[end..])?;
            }
            if op == Op::WriteZeroes {
                let zeroes = vec![0; many * block];
                suite.read_is(&mut rig, device, "a read of what was zeroed", at, &zeroes)?;
            }
        }
    }
    rig.finish()
}

fn bounds(suite: &Suite, device: &Device) -> Checked {
    let block = u64::from(device.limits().logical_block);
    let (end, mut rig) = (device.size_bytes(), Rig::new(device, Mode::Poll)?);
    let read = rig.run(Op::Read, 0, end - block, block as u32, vec![buf(device, block as usize)?])?;
    suite.check("a read of the last block", &read)?;
    for at in [end - block, end, end + (1 << 40)] {
        let read = rig.run(Op::Read, 0, at, 2 * block as u32, vec![buf(device, 2 * block as usize)?])?;
        if read.status.is_ok() {
            return Err(format!("a read of two blocks at {at} of {end} bytes went well"));
        }
    }
    rig.finish()
}

fn refusals(suite: &Suite, device: &Device) -> Checked {
    let block = device.limits().logical_block;
    let mut rig = Rig::new(device, Mode::Poll)?;
    if device.capabilities().read_only {
        let ended = rig.run(Op::Write, 0, 0, block, vec![buf(device, block as usize)?])?;
        if ended.status.is_ok() {
            return Err("a write went well on a device that says it is read-only".into());
        }
    }
    for op in [Op::Discard, Op::WriteZeroes] {
        let ended = rig.run(op, 0, 0, block, Vec::new())?;
        if device.limits().max_bytes(op) == 0 && ended.status != Status::NotSupp && !suite.may_fail {
            return Err(format!("a {} ended as '{}' on a device that has none", op.name(), ended.status));
        }
    }
    rig.finish()
}
