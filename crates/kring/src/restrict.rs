//! Rings that can do no more than this code does with them, for a process that serves strangers.
//!
//! A ring is made disabled, told which operations and registrations it may take (`IORING_REGISTER_RESTRICTIONS`), and
//! enabled; nothing takes that back. Who gets a foothold in the process cannot open a file by a ring
//! then, as a seccomp filter would not notice. An operation that [`prep`](super::prep), [`sockets`](super::sockets) or
//! [`driver_ops`](super::driver_ops) learns needs a row in [`OPERATIONS`]: without it the kernel answers `-EACCES`.

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};
use sheave_base::sync::atomic::{AtomicBool, Ordering};

/// What rings do.
const OPERATIONS: [u8; 18] = [
    opcode::Nop::CODE,
    opcode::Read::CODE,
    opcode::Write::CODE,
    opcode::Readv::CODE,
    opcode::Writev::CODE,
    opcode::ReadFixed::CODE,
    opcode::WriteFixed::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::AsyncCancel::CODE,
    opcode::PollAdd::CODE,
    opcode::Timeout::CODE,
    opcode::Accept::CODE,
    opcode::Connect::CODE,
    opcode::Recv::CODE,
    opcode::RecvMsg::CODE,
    opcode::Send::CODE,
    opcode::SendMsg::CODE,
];

/// What is registered after a ring was made: an eventfd (4), files (6), buffers (16), the ring itself (20, and 21 gives
/// that back), a ring of buffers to receive into (22, 23), and a cancel (24).
const REGISTRATIONS: [u8; 8] = [4, 6, 16, 20, 21, 22, 23, 24];

static WANTED: AtomicBool = AtomicBool::new(false);

/// From now on rings of this process are restricted; those that there are stay as they are.
pub fn restrict_rings() {
    // Relaxed: a flag, that carries nothing but itself.
    WANTED.store(true, Ordering::Relaxed);
}

/// Whether they are.
pub(super) fn is_wanted() -> bool {
    // Relaxed: as above.
    WANTED.load(Ordering::Relaxed)
}

/// Restricts a ring that was made disabled, and enables it.
pub(super) fn enable(ring: &IoUring) -> std::io::Result<()> {
    let mut all: Vec<Restriction> = OPERATIONS.iter().map(|code| Restriction::sqe_op(*code)).collect();
    all.extend(REGISTRATIONS.iter().map(|code| Restriction::register_op(*code)));
    all.push(Restriction::sqe_flags_allowed(u8::MAX));
    ring.submitter().register_restrictions(&mut all)?;
    ring.submitter().register_enable_rings()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_prepared_here_is_allowed() {
        let sources = [include_str!("prep.rs"), include_str!("sockets.rs"), include_str!("driver_ops.rs")];
        let own = include_str!("restrict.rs").split("mod tests").next().expect("the table");
        let mut prepared = 0;
        for source in sources {
            for (at, _) in source.match_indices("opcode::") {
                let name = source[at + 8..].split(|c: char| !c.is_alphanumeric()).next().expect("a name");
                // One that takes several buffers is the same operation to the kernel.
                let name = name.strip_suffix("Multi").unwrap_or(name);
                assert!(own.contains(&format!("opcode::{name}::CODE")), "{name} is not in OPERATIONS");
                prepared += 1;
            }
        }
        assert!(prepared >= OPERATIONS.len(), "{prepared} operations were found");
    }
}
