//! Data that goes through the driver is the data in the file: against a model, with every shape of a request.
#![allow(unsafe_code)] // registers buffers

use std::os::unix::fs::FileExt;

use super::rig::{Rig, memory, vec_of};
use super::*;
use crate::host::shared::Zeroing;
use crate::open_device;
use crate::support::vec_at;
use sheave_base::buf::Buf;
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::bio::{BIO_FUA, BIO_PREFLUSH, BVec, Op};
use sheave_blk::device::Device;

const AREA: u64 = 256 << 10;
const AREAS: u64 = 16;
const SIZE: u64 = AREA * AREAS;

fn device(path: &Path, options: &str) -> Device {
    open_device(&format!("file:{},size={SIZE}{options}", path.display())).expect("a device")
}

/// One I/O of a round: its operation and its memory.
struct Io {
    op: Op,
    at: u64,
    memory: Buf,
}

/// Cuts memory into pieces of whole blocks, in the order of the I/O.
fn pieces(memory: &mut [u8], block: usize, rng: &mut Rng) -> Vec<BVec> {
    let (mut vecs, mut rest) = (Vec::new(), memory);
    while !rest.is_empty() {
        let blocks = (rest.len() / block) as u64;
        let most = 1 + rng.below(16);
        let len = block * (1 + rng.below(blocks.min(most))) as usize;
        let (piece, left) = rest.split_at_mut(len);
        vecs.push(vec_of(piece));
        rest = left;
    }
    vecs
}

/// Submits the I/O as one bio of many pieces, or as several bios that are adjacent on the device.
fn submit(rig: &mut Rig, bdev: u16, io: &mut Io, block: usize, rng: &mut Rng) {
    let bytes = io.memory.len() as u32;
    let flags = match (io.op, rng.below(6)) {
        (Op::Write, 0) => BIO_FUA,
        (Op::Write, 1) => BIO_FUA | BIO_PREFLUSH,
        (Op::Discard | Op::WriteZeroes, 0) => BIO_FUA,
        _ => 0,
    };
    if !io.op.has_data() {
        rig.submit(bdev, io.op, flags, io.at, bytes, &[]);
        return;
    }
    let vecs = pieces(&mut io.memory, block, rng);
    if rng.below(2) == 0 {
        rig.submit(bdev, io.op, flags, io.at, bytes, &vecs);
        return;
    }
    let mut at = io.at;
    for vec in vecs.chunks(1 + rng.below(6) as usize) {
        let len: usize = vec.iter().map(|vec| vec.len()).sum();
        rig.submit(bdev, io.op, flags, at, len as u32, vec);
        at += len as u64;
    }
}

/// Rounds of I/O that does not overlap, each read compared with the model; then the file itself.
fn against_a_model(path: &Path, options: &str, rounds: u32) {
    let device = device(path, options);
    let block = device.limits().logical_block as usize;
    let Some((mut rig, bdev)) = Rig::over(&device) else { return };
    let mut model = vec![0u8; SIZE as usize];
    let mut rng = Rng::new(1);
    for round in 0..rounds {
        let mut ios: Vec<Io> = Vec::new();
        for area in 0..AREAS {
            let op = [Op::Read, Op::Write, Op::Write, Op::Discard, Op::WriteZeroes][rng.below(5) as usize];
            let blocks = AREA / block as u64;
            let first = rng.below(blocks);
            let most = 1 + rng.below(blocks);
            let len = 1 + rng.below(most.min(blocks - first));
            let memory = memory(len as usize * block, rng.below(256) as u8);
            ios.push(Io { op, at: area * AREA + first * block as u64, memory });
        }
        rig.ctx.start_plug(ios.len() as u32);
        ios.iter_mut().for_each(|io| submit(&mut rig, bdev, io, block, &mut rng));
        rig.ctx.finish_plug();
        rig.submit(bdev, Op::Flush, 0, 0, 0, &[]);
        rig.drain();
        assert!(rig.ended.iter().all(|(_, status)| status.is_ok()), "{:?}", rig.ended);
        for io in &ios {
            let range = &mut model[io.at as usize..][..io.memory.len()];
            match io.op {
                Op::Write => range.copy_from_slice(&io.memory),
                Op::Read => assert!(*range == io.memory[..], "round {round}: read at {}", io.at),
                _ => range.fill(0),
            }
        }
    }
    let file = fs::read(path).expect("read");
    assert!(file == model, "{options}: the file is not the model");
}

#[test]
fn what_is_read_is_what_was_written() {
    for base in ["/var/tmp", "/dev/shm"] {
        let Ok(dir) = tempfile::tempdir_in(base) else { continue };
        for options in ["", ",direct=off", ",bs=4k", ",sync=on", ",depth=3"] {
            against_a_model(&dir.path().join("disk"), options, 12);
            fs::remove_file(dir.path().join("disk")).expect("removed");
        }
    }
}

#[test]
fn a_block_device_holds_what_was_written() {
    let dir = tempfile::tempdir().expect("a directory");
    let backing = dir.path().join("backing");
    File::create(&backing).expect("made").set_len(SIZE).expect("grown");
    let Some(disk) = Loop::over(&backing) else { return };
    // Discards may leave anything; a loop device zeroes.
    against_a_model(Path::new(&disk.0), "", 8);
}

#[test]
fn a_kernel_ring_smaller_than_the_batch_takes_all() {
    let dir = tempfile::tempdir().expect("a directory");
    let device = device(&dir.path().join("disk"), "");
    for entries in [1, 2, 8] {
        let mut rig = Rig::with_entries(entries);
        let Some(bdev) = rig.attach(&device) else { return };
        let mut memory = memory(4096 * 100, entries as u8);
        rig.ctx.start_plug(100);
        for (n, block) in memory.chunks_mut(4096).enumerate() {
            rig.submit(bdev, Op::Write, 0, n as u64 * 8192, 4096, &[vec_of(block)]);
        }
        rig.ctx.finish_plug();
        rig.drain();
        assert!(rig.ended.iter().all(|(_, status)| status.is_ok()));
    }
}

#[test]
fn large_and_scattered_requests_are_cut_and_put_together() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let path = dir.path().join("disk");
    let device = open_device(&format!("file:{},size=64M", path.display())).expect("a device");
    let Some((mut rig, bdev)) = Rig::over(&device) else { return };
    let len = 40 << 20;
    let mut out = memory(len, 0);
    out.chunks_mut(512).enumerate().for_each(|(n, block)| block.fill(n as u8 ^ (n >> 8) as u8));
    assert_eq!(rig.run(bdev, Op::Write, 0, 1 << 20, &mut out), Status::Ok);
    // Reads back into more pieces than one operation takes, no two of them adjacent in memory.
    let block = device.limits().logical_block.max(512) as usize;
    let mut back = memory(2 * 3000 * block, 0);
    let vecs: Vec<BVec> = back.chunks_mut(2 * block).map(|piece| vec_of(&mut piece[..block])).collect();
    rig.submit(bdev, Op::Read, 0, 1 << 20, (3000 * block) as u32, &vecs);
    rig.drain();
    assert!(rig.ended.iter().all(|(_, status)| status.is_ok()));
    let read = back.chunks(2 * block).flat_map(|piece| &piece[..block]);
    assert!(read.eq(out[..3000 * block].iter()));
}

#[test]
fn registered_buffers_serve_before_and_after_the_kernel_ring_is_made() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let device = device(&dir.path().join("disk"), "");
    let mut rig = Rig::new();
    let mut bufs: Vec<Buf> = (0..3).map(|n| memory(16384, n + 1)).collect();
    let ranges: Vec<(usize, usize)> = bufs.iter_mut().map(|buf| (buf.as_mut_ptr() as usize, buf.len())).collect();
    // The kernel has no slot for the third buffer, whose I/O goes as that of ordinary memory.
    let slots = [0, 1, 2000];
    // SAFETY: `bufs` outlive the ring, which is dropped first below.
    unsafe { rig.ctx.kring_slot().register_buffer(slots[0], ranges[0].0, ranges[0].1) };
    let Some(bdev) = rig.attach(&device) else { return };
    for at in 1..3 {
        // SAFETY: as above.
        unsafe { rig.ctx.kring_slot().register_buffer(slots[at], ranges[at].0, ranges[at].1) };
    }
    let has = |rig: &mut Rig, slot| rig.ctx.kring_slot().get(false).expect("a ring").has_buffer(slot);
    let known = [has(&mut rig, 0), has(&mut rig, 1), has(&mut rig, 2000)];
    assert!(known == [true, true, false] || !rig.ctx.kring_slot().notices().is_empty(), "{known:?}");
    for (at, (base, _)) in ranges.iter().enumerate() {
        let vec = vec_at(base + 4096, 8192);
        rig.submit_fixed(bdev, Op::Write, 0, at as u64 * 8192, 8192, &[vec], slots[at]);
    }
    rig.drain();
    rig.ctx.kring_slot().unregister_buffer(0);
    assert!(!has(&mut rig, 0));
    let vec = vec_at(ranges[0].0, 4096);
    rig.submit_fixed(bdev, Op::Read, 0, 8192, 4096, &[vec], 0);
    rig.drain();
    assert!(rig.ended.iter().all(|(_, status)| status.is_ok()), "{:?}", rig.ended);
    drop(rig);
    assert!(bufs[0][..4096].iter().all(|byte| *byte == 2) && bufs[0][4096..].iter().all(|byte| *byte == 1));
}

#[test]
fn every_way_of_zeroing_zeroes() {
    for base in ["/var/tmp", "/dev/shm"] {
        let Ok(dir) = tempfile::tempdir_in(base) else { continue };
        for (way, beside) in [Zeroing::ZeroRange, Zeroing::PunchHole, Zeroing::Write]
            .into_iter()
            .flat_map(|way| [(way, false), (way, true)])
        {
            let path = dir.path().join("disk");
            fs::write(&path, vec![7u8; 80 << 20]).expect("written");
            let mut host = Host::new(HostFile::open(&path, HostOpts::default()).expect("opened"), 8);
            host.beside = beside;
            while host.shared.zeroing() < way {
                assert!(host.shared.zeroing_fails(host.shared.zeroing()));
            }
            let device = Device::from_driver("zeroed", Box::new(host));
            let Some((mut rig, bdev)) = Rig::over(&device) else { return };
            // More bytes than one operation can write.
            let len = 70 << 20;
            assert_eq!(rig.run_range(bdev, Op::WriteZeroes, BIO_FUA, 4096, len), Status::Ok, "{way:?} {beside}");
            assert_eq!(rig.run_range(bdev, Op::Flush, 0, 0, 0), Status::Ok);
            let file = fs::read(&path).expect("read");
            let mut expected = vec![7u8; 80 << 20];
            expected[4096..4096 + len as usize].fill(0);
            assert!(file == expected, "{way:?} {beside}: other bytes than these are zeroes");
        }
    }
}

#[test]
fn discards_give_space_back() {
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    for beside in [false, true] {
        let path = dir.path().join("disk");
        fs::write(&path, vec![7u8; 8 << 20]).expect("written");
        let file = HostFile::open(&path, HostOpts::default()).expect("opened");
        if !file.caps().discard {
            eprintln!("SKIPPED: no PUNCH_HOLE on {}", path.display());
            return;
        }
        let mut host = Host::new(file, 8);
        host.beside = beside;
        let device = Device::from_driver("punched", Box::new(host));
        let Some((mut rig, bdev)) = Rig::over(&device) else { return };
        assert_eq!(rig.run_range(bdev, Op::Discard, BIO_FUA, 1 << 20, 4 << 20), Status::Ok);
        let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).expect("metadata"));
        assert!(blocks <= (4 << 20) / 512 + 64, "{blocks} blocks of 512 bytes are left");
    }
}

#[test]
fn two_devices_of_a_ring_share_its_kernel_ring_and_two_rings_a_device() {
    let dir = tempfile::tempdir().expect("a directory");
    let devices = ["a", "b"].map(|name| device(&dir.path().join(name), ""));
    let mut rigs = [Rig::new(), Rig::new()];
    let Some(first) = rigs[0].attach(&devices[0]) else { return };
    let ring = |rig: &mut Rig| std::os::fd::AsRawFd::as_raw_fd(rig.ctx.kring_slot().get(false).expect("a ring"));
    let fd = ring(&mut rigs[0]);
    let second = rigs[0].attach(&devices[1]).expect("attached");
    assert_eq!(ring(&mut rigs[0]), fd);
    let other = rigs[1].attach(&devices[0]).expect("attached");
    let mut bufs: Vec<Buf> = (0..3).map(|n| memory(4096, n + 1)).collect();
    let vecs: Vec<BVec> = bufs.iter_mut().map(|buf| vec_of(buf)).collect();
    rigs[0].submit(first, Op::Write, 0, 0, 4096, &vecs[..1]);
    rigs[0].submit(second, Op::Write, 0, 0, 4096, &vecs[1..2]);
    rigs[1].submit(other, Op::Write, 0, 4096, 4096, &vecs[2..]);
    rigs.iter_mut().for_each(Rig::drain);
    for (name, at, byte) in [("a", 0, 1), ("b", 0, 2), ("a", 4096, 3)] {
        let mut read = [0u8; 4096];
        let file = File::open(dir.path().join(name)).expect("opened");
        file.read_exact_at(&mut read, at).expect("read");
        assert!(read.iter().all(|b| *b == byte), "{name} at {at}");
    }
}
