//! Limit of the process's file descriptors, and a reserve for the daemon's own work.
//!
//! Each client uses a descriptor. So does each control client and metrics scrape, and a worker that flushes a volume
//! for the first time creates a kernel ring. A pool has spare descriptors for one such worker. Without more of them the
//! flush of the next worker would fail, and the file system of a guest turn read-only, because of idle clients. So the
//! number of clients is reduced if the limit is low.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// Limit that the unit in `docs/systemd` sets.
const DESCRIPTORS: u64 = 65536;
/// Reserved for the control socket (two for each of 64 clients), two HTTP addresses (64 waiting peers and 8 responses
/// each), and clients waiting to be accepted.
const OTHERS: u64 = 2 * 64 + 2 * 72 + 128;
/// Reserved for each reactor and pool: rings and eventfds of their workers.
const WORK: u64 = 16;
/// Reserved for each vhost-user device: its socket, the connection, memory of the guest, and the in-flight region.
const DEVICE: u64 = 16;
/// Reserved for each queue of such a device: kick, call and error.
const QUEUE: u64 = 3;

/// Returns the number of descriptors of a vhost-user device with this number of queues.
pub fn of_device(queues: u16) -> u64 {
    DEVICE + QUEUE * u64::from(queues)
}

/// Raises the soft limit of descriptors up to the hard limit: shells set 1024, which that many clients alone would use
/// up. If that fails, fewer clients are accepted.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    // `None` means no limit.
    let wanted = limit.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if limit.current.is_some_and(|now| now < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

/// Returns the number of clients for which there are descriptors, at most `wanted`; logs a warning if it is lower.
/// Called when everything that the daemon opens at its start is open. `users` is the number of reactors and pools,
/// which need some later, and `devices` the number of descriptors that vhost-user devices need.
pub fn clients(wanted: u32, users: usize, devices: u64) -> u32 {
    // Without /proc the number of open descriptors is unknown.
    let (Some(limit), Ok(open)) = (getrlimit(Resource::Nofile).current, std::fs::read_dir("/proc/self/fd")) else {
        return wanted;
    };
    let clients = fitting(wanted, limit, open.count() as u64, WORK * users as u64 + devices);
    if clients < wanted {
        warn!(
            event = "clients_bounded",
            "{clients} clients at a time, not {wanted}: the process may have {limit} descriptors (ulimit -n, \
             LimitNOFILE)"
        );
    }
    clients
}

/// Returns at most `wanted`, leaving the reserve, which is at most half of the free descriptors.
fn fitting(wanted: u32, limit: u64, open: u64, work: u64) -> u32 {
    let free = limit.saturating_sub(open);
    let kept = (OTHERS + work).min(free / 2);
    u64::from(wanted).min(free - kept).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_to_others() {
        assert_eq!(fitting(1024, 65536, 40, 3 * WORK), 1024);
        // The reserve is complete in the first case, and half of the free descriptors in the second.
        assert_eq!(fitting(1024, 1024, 40, 3 * WORK), 1024 - 40 - (OTHERS + 3 * WORK) as u32);
        assert_eq!(fitting(1024, 64, 24, 3 * WORK), 20);
        assert_eq!(fitting(7, 64, 24, 3 * WORK), 7);
        // A hundred devices of four queues.
        let devices = 100 * of_device(4);
        assert_eq!(fitting(65536, 8192, 40, devices), (8192 - 40 - OTHERS - devices) as u32);
        assert_eq!(fitting(65536, 4096, 40, devices), (4096 - 40) / 2);
        for limit in 0..24 {
            assert_eq!(fitting(1024, limit, 24, 3 * WORK), 1, "none would be no server");
        }
    }
}
