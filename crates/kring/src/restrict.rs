//! Rings restricted to the operations that this crate uses, for a process that serves untrusted clients.
//!
//! A ring is made disabled, restricted to a set of operations and registrations (`IORING_REGISTER_RESTRICTIONS`), and
//! enabled; that cannot be undone. An attacker inside the process then cannot open a file through a ring, which a
//! seccomp filter would not see. Every operation of [`prep`](super::prep), [`sockets`](super::sockets) and
//! [`driver_ops`](super::driver_ops) needs a row in [`OPERATIONS`]: without it the kernel returns `-EACCES`.

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};
use sheave_base::sync::atomic::{AtomicBool, Ordering};

/// Opcodes that rings use.
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

/// Registrations after the set-up: an eventfd (4), files (6), buffers (16), the ring itself (20) and its removal (21),
/// a ring of receive buffers (22, 23), and a cancel (24).
const REGISTRATIONS: [u8; 8] = [4, 6, 16, 20, 21, 22, 23, 24];

static WANTED: AtomicBool = AtomicBool::new(false);

/// Restricts all rings that this process makes from now on; existing ones stay as they are.
pub fn restrict_rings() {
    // Relaxed: the flag carries no other data.
    WANTED.store(true, Ordering::Relaxed);
}

/// Returns true after [`restrict_rings`].
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
                // The variant for several buffers has the same opcode.
                let name = name.strip_suffix("Multi").unwrap_or(name);
                assert!(own.contains(&format!("opcode::{name}::CODE")), "{name} is not in OPERATIONS");
                prepared += 1;
            }
        }
        assert!(prepared >= OPERATIONS.len(), "{prepared} operations were found");
    }
}
