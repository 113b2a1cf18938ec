//! Claims: one owner holds a device, and further claims are refused.
//!
//! Owns the claim, and the table of holders of the parts of a queue in this process. The lock that other processes see
//! is the driver's ([`Driver::claim`](crate::driver::Driver::claim)). I/O does not check claims: a writer without one
//! is not stopped. Pools claim their devices for as long as they are open.
//!
//! Invariants:
//! - I1: overlapping parts of a queue are held by one owner, or by several that only read.
//! - I2: the driver is claimed while any part of its queue is, as strictly as the strictest of the claims.
//! - I3: a claim ends when it is dropped, even if rings are still attached to the device, and not before, even if the
//!   device is gone.
//!
//! Called by [`Device::claim`](crate::Device::claim) through the queues under the device.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use sheave_base::sync::{Arc, Mutex};

use crate::error::DeviceError;

/// Kind of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sharing {
    /// Exclusive.
    Alone,
    /// Shared with others that do not write either.
    WithReaders,
}

/// A held device, or a driver's own lock. Dropping it releases the hold.
#[derive(Default)]
pub struct Claim {
    holds: Vec<Box<dyn Any + Send + Sync>>,
}

impl Claim {
    /// Returns the claim of a driver that has nothing to lock.
    pub fn nothing() -> Claim {
        Claim::default()
    }

    /// Joins several claims to one.
    pub fn all(claims: Vec<Claim>) -> Claim {
        Claim { holds: claims.into_iter().flat_map(|claim| claim.holds).collect() }
    }

    /// Makes a claim that keeps `hold` until the claim is dropped.
    pub fn of(hold: impl Any + Send + Sync) -> Claim {
        Claim { holds: vec![Box::new(hold)] }
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claim({})", self.holds.len())
    }
}

/// Claims on parts of a queue within this process.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    held: Vec<(u64, Range<u64>, Sharing)>,
    /// The driver's own claim, and its kind (I2).
    driver: Option<(Claim, Sharing)>,
}

/// A held part of a queue.
struct Hold {
    claims: Arc<Claims>,
    number: u64,
}

/// Returns the error of a second claim in the same process.
pub fn claimed_here(what: &str) -> DeviceError {
    DeviceError::Claimed {
        what: what.to_string(),
        who: format!("this process (pid {}) has it open already", std::process::id()),
        fix: "Use what is open, or close it first".to_string(),
    }
}

impl Claims {
    /// Claims sectors of the queue with this name. `lock` claims its driver, and is called if the driver is not claimed
    /// yet (I2).
    pub(crate) fn hold(
        self: &Arc<Self>,
        name: &str,
        range: Range<u64>,
        sharing: Sharing,
        lock: impl FnOnce() -> Result<Claim, DeviceError>,
    ) -> Result<Claim, DeviceError> {
        let mut table = self.lock();
        let overlaps = |held: &Range<u64>| held.start < range.end && range.start < held.end;
        let alone = |held: Sharing| held == Sharing::Alone || sharing == Sharing::Alone;
        if table.held.iter().any(|(_, held, how)| overlaps(held) && alone(*how)) {
            return Err(claimed_here(name));
        }
        match &table.driver {
            None => table.driver = Some((lock()?, sharing)),
            // The lock covers the whole driver, and cannot be made stricter while others hold it.
            Some((_, Sharing::WithReaders)) if sharing == Sharing::Alone => return Err(claimed_here(name)),
            Some(_) => {}
        }
        let number = table.next;
        table.next += 1;
        table.held.push((number, range, sharing));
        Ok(Claim::of(Hold { claims: Arc::clone(self), number }))
    }

    fn lock(&self) -> impl std::ops::DerefMut<Target = Table> + '_ {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut table = self.claims.lock();
        table.held.retain(|(number, ..)| *number != self.number);
        if table.held.is_empty() {
            table.driver = None;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Device;
    use crate::support::Puppet;

    /// Makes a device of 1 MiB.
    fn disk() -> Device {
        let mut puppet = Puppet::new();
        puppet.size = 1 << 20;
        puppet.device()
    }

    fn is_claimed(device: &Device, sharing: Sharing) -> bool {
        match device.claim(sharing) {
            Ok(_) => false,
            Err(DeviceError::Claimed { who, fix, .. }) => {
                assert!(
                    who.contains(&format!("pid {}", std::process::id())) && fix.contains("close it"),
                    "{who} {fix}"
                );
                true
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn one_owner_or_several_readers() {
        let device = disk();
        let owner = device.claim(Sharing::Alone).expect("free");
        assert!(is_claimed(&device, Sharing::Alone) && is_claimed(&device.clone(), Sharing::WithReaders));
        drop(owner);
        let reader = device.claim(Sharing::WithReaders).expect("free again");
        let other = device.claim(Sharing::WithReaders).expect("readers share");
        assert!(is_claimed(&device, Sharing::Alone));
        drop(reader);
        assert!(is_claimed(&device, Sharing::Alone), "one reader is left");
        drop(other);
        assert!(!is_claimed(&device, Sharing::Alone));
    }

    #[test]
    fn partitions_are_held_apart_and_against_the_whole() {
        let whole = disk();
        let first = crate::linear::partition("a", &whole, 0, 512 << 10).expect("a half");
        let second = crate::linear::partition("b", &whole, 512 << 10, 512 << 10).expect("the other half");
        let _first = first.claim(Sharing::Alone).expect("free");
        let _second = second.claim(Sharing::Alone).expect("free too");
        assert!(is_claimed(&whole, Sharing::Alone) && is_claimed(&first, Sharing::WithReaders));
    }

    #[test]
    fn a_concatenation_is_held_wholly_or_not_at_all() {
        let (a, b) = (disk(), disk());
        let both = crate::linear::concatenate("ab", &[a.clone(), b.clone()]).expect("both");
        let held = b.claim(Sharing::Alone).expect("free");
        assert!(is_claimed(&both, Sharing::Alone));
        assert!(!is_claimed(&a, Sharing::Alone), "what was taken before the refusal was given back");
        drop(held);
        let _both = both.claim(Sharing::Alone).expect("free now");
        assert!(is_claimed(&a, Sharing::Alone) && is_claimed(&b, Sharing::Alone));
    }
}
