//! Descriptors of the process: as many as its user may have, and some kept from clients for the daemon's own work.
//!
//! Each client has one. A worker that flushes a volume for the first time makes a kernel ring, a control client and a
//! scrape have theirs; with none left a flush would fail, and a guest's file system turn read-only, because of clients
//! that do nothing. So fewer clients are taken where the limit of descriptors is short.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// As many descriptors as `docs/systemd` has.
const DESCRIPTORS: u64 = 65536;
/// Kept for the control socket (two for each of 64 clients), two addresses of HTTP (64 peers that ask, 8 that are
/// answered), and clients that wait for a place.
const OTHERS: u64 = 2 * 64 + 2 * 72 + 128;
/// Kept for each thread that serves, and for each pool: the rings and eventfds of their workers.
const WORK: u64 = 16;

/// Lets the process have as many descriptors as its user may: shells give 1024, and as many clients may come, beside
/// the files of pools. Where that is refused, fewer clients are taken.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    // `None` is without a limit.
    let wanted = limit.maximum.map_or(DESCRIPTORS, |most| most.min(DESCRIPTORS));
    if limit.current.is_some_and(|now| now < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
}

/// As many of the wanted clients as there are descriptors for, when all else that the daemon has from its start is
/// open. Tells when these are fewer. `users` are the threads and pools, which need some later.
pub fn clients(wanted: u32, users: usize) -> u32 {
    // Without /proc nobody can say how many are open.
    let (Some(limit), Ok(open)) = (getrlimit(Resource::Nofile).current, std::fs::read_dir("/proc/self/fd")) else {
        return wanted;
    };
    let clients = fitting(wanted, limit, open.count() as u64, users as u64);
    if clients < wanted {
        warn!(
            event = "clients_bounded",
            "{clients} clients at a time, not {wanted}: the process may have {limit} descriptors (ulimit -n, \
             LimitNOFILE)"
        );
    }
    clients
}

/// As many of the wanted clients as leave what is kept for others, which is half of the descriptors at most.
fn fitting(wanted: u32, limit: u64, open: u64, users: u64) -> u32 {
    let free = limit.saturating_sub(open);
    let kept = (OTHERS + WORK * users).min(free / 2);
    u64::from(wanted).min(free - kept).max(1) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_to_others() {
        assert_eq!(fitting(1024, 65536, 40, 3), 1024);
        // All of what others may need, or half of what there is.
        assert_eq!(fitting(1024, 1024, 40, 3), 1024 - 40 - (OTHERS + 3 * WORK) as u32);
        assert_eq!(fitting(1024, 64, 24, 3), 20);
        assert_eq!(fitting(7, 64, 24, 3), 7);
        for limit in 0..24 {
            assert_eq!(fitting(1024, limit, 24, 3), 1, "none would be no server");
        }
    }
}
