//! Every invalid SQE gives its `-errno` as a CQE, as docs/reference/compat.md says, and nothing of it reaches a device.

use sheave_uring::sqe::{
    IOSQE_ASYNC, IOSQE_BUFFER_SELECT, IOSQE_FIXED_FILE, IOSQE_IO_LINK, RWF_HIPRI, RWF_SYNC, Sqe, opcode,
};
use sheave_uring::{Fd, Ring};

use crate::support::{Puppet, buf, fsync, nop, run, rw};

const EBADF: i32 = -9;
const EFAULT: i32 = -14;
const EINVAL: i32 = -22;
const EFBIG: i32 = -27;
const ENOSPC: i32 = -28;
const EOPNOTSUPP: i32 = -95;
const ENOBUFS: i32 = -105;

/// Opcodes that Sheave has or reserves.
const KNOWN: [u8; 14] = [
    opcode::NOP,
    opcode::READV,
    opcode::WRITEV,
    opcode::FSYNC,
    opcode::READ_FIXED,
    opcode::WRITE_FIXED,
    opcode::TIMEOUT,
    opcode::TIMEOUT_REMOVE,
    opcode::ASYNC_CANCEL,
    opcode::LINK_TIMEOUT,
    opcode::FALLOCATE,
    opcode::READ,
    opcode::WRITE,
    opcode::MSG_RING,
];

/// Addresses within a program's range.
const MEMORY: u64 = 1 << 24;
const USER_END: u64 = (1 << 47) - 4096;

struct Bench {
    ring: Ring,
    puppet: Puppet,
    fd: Fd,
}

fn bench() -> Bench {
    let puppet = Puppet::new().limits(|limits| limits.dma_alignment = 4);
    let mut ring = crate::support::ring();
    let fd = ring.attach(&puppet.device()).unwrap();
    ring.register_buffers(vec![buf(8192)]).unwrap();
    Bench { ring, puppet, fd }
}

impl Bench {
    /// Checks the result of each SQE, alone, in the slow path (behind a link) and from a worker. Only successful SQEs
    /// may send a request.
    fn check(&mut self, table: &[(Sqe, i32)]) {
        for (sqe, answer) in table {
            let before = self.puppet.script().seen.len();
            let sqe = Sqe { user_data: 7, ..*sqe };
            let ways =
                [vec![sqe], vec![nop(1, IOSQE_IO_LINK), sqe], vec![Sqe { flags: sqe.flags | IOSQE_ASYNC, ..sqe }]];
            for way in ways {
                let cqes = run(&mut self.ring, &way);
                let got = cqes.iter().find(|cqe| cqe.0 == 7).map(|cqe| cqe.1);
                assert_eq!(got, Some(*answer), "{sqe:?}");
                assert_eq!(cqes.len(), way.len(), "one CQE an SQE");
            }
            let sent = self.puppet.script().seen.len() - before;
            assert!(sent == 0 || *answer >= 0, "{sqe:?} was sent to the device");
        }
    }

    fn rw(&self, op: u8) -> Sqe {
        rw(op, self.fd, 0, MEMORY, 4096, 0)
    }
}

#[test]
fn unknown_opcodes_and_flags() {
    let mut bench = bench();
    for op in (0..=255).filter(|op| !KNOWN.contains(op)) {
        bench.check(&[(Sqe { opcode: op, ..bench.rw(0) }, EINVAL)]);
    }
    let (read, write, sync) = (bench.rw(opcode::READ), bench.rw(opcode::WRITE), fsync(bench.fd, 0));
    bench.check(&[
        (Sqe { flags: 0x80, ..read }, EINVAL),
        (Sqe { flags: 0x80, ..nop(0, 0) }, EINVAL),
        (Sqe { flags: IOSQE_BUFFER_SELECT, ..write }, EOPNOTSUPP),
        (Sqe { flags: IOSQE_BUFFER_SELECT, ..sync }, EOPNOTSUPP),
        (Sqe { flags: IOSQE_BUFFER_SELECT, ..nop(0, 0) }, EOPNOTSUPP),
        (Sqe { flags: IOSQE_BUFFER_SELECT, ..read }, ENOBUFS),
        (Sqe { flags: IOSQE_BUFFER_SELECT, addr: 1, ..read }, ENOBUFS),
        (Sqe { personality: 1, ..read }, EINVAL),
        (Sqe { personality: 1, ..nop(0, 0) }, EINVAL),
        (Sqe { ioprio: 1 << 13, ..nop(0, 0) }, EINVAL),
        (Sqe { ioprio: 1 << 13, ..sync }, EINVAL),
        (Sqe { op_flags: 0x20, ..nop(0, 0) }, EINVAL),
        (Sqe { op_flags: 1 << 31, ..nop(0, 0) }, EINVAL),
        (Sqe { addr: 1, off: 2, buf_index: 3, splice_fd_in: 4, fd: 99, ..nop(0, 0) }, 0),
    ]);
}

#[test]
fn files_that_are_not_there_come_first() {
    let mut bench = bench();
    let end = bench.puppet.size;
    for op in [opcode::READ, opcode::WRITE, opcode::READ_FIXED, opcode::WRITE_FIXED, opcode::FALLOCATE] {
        let sqe = bench.rw(op);
        for fd in [-1, 1, 77, i32::MAX, i32::MIN] {
            bench.check(&[(Sqe { fd, off: end, ..sqe }, EBADF), (Sqe { fd, flags: IOSQE_FIXED_FILE, ..sqe }, EBADF)]);
        }
        bench.check(&[(Sqe { flags: IOSQE_FIXED_FILE, ..sqe }, EBADF)]);
    }
    bench.check(&[(fsync(-1, 0), EBADF), (fsync(9, 0), EBADF)]);
}

#[test]
fn reads_and_writes_of_one_range() {
    let mut bench = bench();
    let end = bench.puppet.size;
    for (op, at_end) in [(opcode::READ, 0), (opcode::WRITE, ENOSPC)] {
        let ok = bench.rw(op);
        bench.check(&[
            (ok, 4096),
            (Sqe { ioprio: 4 << 13, ..ok }, EINVAL),
            (Sqe { ioprio: 1, ..ok }, EINVAL),
            (Sqe { ioprio: 3 << 13 | 7, ..ok }, 4096),
            (Sqe { pad2: 1, addr3: 0, ..ok }, EFAULT),
            (Sqe { pad2: 2, ..ok }, EINVAL),
            (Sqe { addr: USER_END, ..ok }, EFAULT),
            (Sqe { addr: USER_END - 4095, ..ok }, EFAULT),
            (Sqe { addr: u64::MAX, ..ok }, EFAULT),
            (Sqe { addr: u64::MAX - 100, len: 512, ..ok }, EFAULT),
            (Sqe { addr: 0, ..ok }, EFAULT),
            (Sqe { addr: 4092, ..ok }, EFAULT),
            (Sqe { op_flags: 1 << 30, ..ok }, EOPNOTSUPP),
            (Sqe { op_flags: 0x40, ..ok }, EOPNOTSUPP),
            (Sqe { op_flags: RWF_HIPRI, ..ok }, EINVAL),
            (Sqe { op_flags: RWF_SYNC, ..ok }, 4096),
            (Sqe { off: 1 << 63, ..ok }, EINVAL),
            (Sqe { off: u64::MAX - 1, ..ok }, EINVAL),
            (Sqe { off: i64::MAX as u64 - 4095, ..ok }, EINVAL),
            (Sqe { off: 1 << 63, len: 0, ..ok }, EINVAL),
            (Sqe { off: end, len: 0, ..ok }, 0),
            (Sqe { off: 1, len: 0, addr: 1, ..ok }, 0),
            (Sqe { off: end, ..ok }, at_end),
            (Sqe { off: end + 1, addr: MEMORY + 1, len: 7, ..ok }, at_end),
            (Sqe { off: i64::MAX as u64 - 4096, ..ok }, at_end),
            (Sqe { off: end - 512, ..ok }, 512),
            (Sqe { off: end - 511, ..ok }, EINVAL),
            (Sqe { off: 1, ..ok }, EINVAL),
            (Sqe { off: 511, ..ok }, EINVAL),
            (Sqe { len: 511, ..ok }, EINVAL),
            (Sqe { len: 1, ..ok }, EINVAL),
            (Sqe { addr: MEMORY + 1, ..ok }, EINVAL),
            (Sqe { addr: MEMORY + 4, ..ok }, 4096),
            (Sqe { buf_index: 9, addr3: 8, ..ok }, 4096),
        ]);
    }
}

#[test]
fn fixed_reads_and_writes_stay_within_their_buffer() {
    let mut bench = bench();
    let (base, len) = bench.ring.buffer_range(0).unwrap();
    for op in [opcode::READ_FIXED, opcode::WRITE_FIXED] {
        let ok = Sqe { addr: base, ..bench.rw(op) };
        bench.check(&[
            (ok, 4096),
            (Sqe { addr: base + len - 512, len: 512, ..ok }, 512),
            (Sqe { addr: base + len - 512, len: 513, ..ok }, EFAULT),
            (Sqe { addr: base - 1, ..ok }, EFAULT),
            (Sqe { addr: 0, ..ok }, EFAULT),
            (Sqe { addr: u64::MAX, ..ok }, EFAULT),
            (Sqe { len: u32::MAX, ..ok }, EFAULT),
            (Sqe { buf_index: 1, ..ok }, EFAULT),
            (Sqe { buf_index: u16::MAX, ..ok }, EFAULT),
            (Sqe { addr: base - 1, len: 0, ..ok }, EFAULT),
            (Sqe { len: 0, ..ok }, 0),
            (Sqe { addr: base + 2, len: 512, ..ok }, EINVAL),
            (Sqe { off: 1, ..ok }, EINVAL),
        ]);
    }
}

#[test]
fn vectors() {
    let mut bench = bench();
    let good = [[MEMORY, 512], [MEMORY + 4096, 1024]];
    let negative = [[MEMORY, 512], [MEMORY, 1 << 63]];
    let outside = [[MEMORY, 512], [USER_END, 512]];
    let empty_outside = [[MEMORY, 512], [USER_END + 1, 0]];
    let first_page = [[MEMORY, 512], [64, 512]];
    let odd = [[MEMORY, 512], [MEMORY + 4096, 100]];
    let many = vec![[MEMORY, 512]; 1025];
    for op in [opcode::READV, opcode::WRITEV] {
        let sqe = |vecs: &[[u64; 2]]| Sqe { addr: vecs.as_ptr() as u64, len: vecs.len() as u32, ..bench.rw(op) };
        let table = [
            (sqe(&good), 1536),
            (sqe(&negative), EINVAL),
            (sqe(&outside), EFAULT),
            (sqe(&empty_outside), EFAULT),
            (sqe(&first_page), EFAULT),
            (sqe(&odd), EINVAL),
            (sqe(&many), EINVAL),
            (sqe(&many[..1024]), 1024 * 512),
            (sqe(&[]), 0),
            (Sqe { len: u32::MAX, ..sqe(&good) }, EINVAL),
            (Sqe { addr: 0, ..sqe(&good) }, EFAULT),
            (Sqe { addr: u64::MAX, ..sqe(&good) }, EFAULT),
            (Sqe { addr: USER_END - 16, ..sqe(&good) }, EFAULT),
            (Sqe { addr: 0, len: 0, ..sqe(&good) }, 0),
        ];
        bench.check(&table);
    }
}

#[test]
fn fsync_and_fallocate() {
    let mut bench = bench();
    let end = bench.puppet.size;
    let sync = fsync(bench.fd, 0);
    bench.check(&[
        (sync, 0),
        (Sqe { op_flags: 1, off: 1 << 40, len: 77, ..sync }, 0),
        (Sqe { op_flags: 2, ..sync }, EINVAL),
        (Sqe { addr: 1, ..sync }, EINVAL),
        (Sqe { buf_index: 1, ..sync }, EINVAL),
        (Sqe { splice_fd_in: 1, ..sync }, EINVAL),
        (Sqe { off: 1 << 63, ..sync }, EINVAL),
    ]);
    // FALLOCATE has its length in `addr`, and its mode in `len`.
    let zero = Sqe { addr: 4096, len: 0x10, ..bench.rw(opcode::FALLOCATE) };
    bench.check(&[
        (zero, 0),
        (Sqe { len: 0x03, ..zero }, 0),
        (Sqe { len: 0x11, off: end - 512, ..zero }, 0),
        (Sqe { op_flags: 1, ..zero }, EINVAL),
        (Sqe { buf_index: 1, ..zero }, EINVAL),
        (Sqe { splice_fd_in: 1, ..zero }, EINVAL),
        (Sqe { off: 1 << 63, len: 0x40, ..zero }, EINVAL),
        (Sqe { addr: 0, len: 0x40, ..zero }, EINVAL),
        (Sqe { addr: 1 << 63, ..zero }, EINVAL),
        (Sqe { len: 0x40, off: end, ..zero }, EOPNOTSUPP),
        (Sqe { len: 0x02, ..zero }, EOPNOTSUPP),
        (Sqe { off: i64::MAX as u64, ..zero }, EFBIG),
        (Sqe { off: end, ..zero }, EINVAL),
        (Sqe { off: end - 512, ..zero }, EINVAL),
        (Sqe { off: 1, ..zero }, EINVAL),
        (Sqe { addr: 511, ..zero }, EINVAL),
        (Sqe { len: 0, ..zero }, EOPNOTSUPP),
        (Sqe { len: 1, ..zero }, EOPNOTSUPP),
        (Sqe { len: 0, off: end, ..zero }, EINVAL),
    ]);
}

#[test]
fn a_device_that_may_not_be_written() {
    let puppet = Puppet::new().caps(|caps| caps.read_only = true);
    let mut ring = crate::support::ring();
    let fd = ring.attach(&puppet.device()).unwrap();
    ring.register_buffers(vec![buf(512)]).unwrap();
    let mut bench = Bench { ring, puppet, fd };
    let write = bench.rw(opcode::WRITE);
    bench.check(&[
        (bench.rw(opcode::READ), 4096),
        (write, EBADF),
        (Sqe { len: 0, ..write }, EBADF),
        (Sqe { op_flags: 1 << 30, off: 1 << 63, ..write }, EBADF),
        (Sqe { opcode: opcode::WRITEV, len: 0, ..write }, EBADF),
        (Sqe { opcode: opcode::WRITE_FIXED, addr: 0, ..write }, EFAULT),
        (Sqe { opcode: opcode::FALLOCATE, addr: 4096, len: 0x40, ..write }, EOPNOTSUPP),
        (Sqe { opcode: opcode::FALLOCATE, addr: 4096, len: 0x10, off: i64::MAX as u64, ..write }, EBADF),
    ]);
}

#[test]
fn more_zeroes_than_there_are_bios_for() {
    // 64 bios of at most 2 GiB each: the request takes several rounds, and fails or succeeds as a whole.
    let puppet = Puppet { size: 1 << 40, ..Puppet::new() };
    let mut ring = Ring::builder().entries(8).in_flight(8).build().unwrap();
    let fd = ring.attach(&puppet.device()).unwrap();
    let zero = Sqe { addr: 1 << 40, len: 0x10, ..rw(opcode::FALLOCATE, fd, 0, 0, 0, 1) };
    let other = rw(opcode::READ, fd, 0, MEMORY, 512, 2);
    let cqes = run(&mut ring, &[zero, other]);
    assert!(cqes.contains(&(1, 0)) && cqes.contains(&(2, 512)), "{cqes:?}");
    let zeroed: u64 = puppet
        .script()
        .seen
        .iter()
        .filter(|rq| rq.op == sheave_blk::bio::Op::WriteZeroes)
        .map(|rq| u64::from(rq.bytes))
        .sum();
    assert_eq!(zeroed, 1 << 40, "every byte of it");
    puppet.script().fail = vec![(sheave_blk::bio::Op::WriteZeroes, sheave_base::status::Status::IoErr)];
    assert_eq!(run(&mut ring, &[zero]), [(1, -5)]);
}
