//! Errors of pools and volumes. Every message names the cause and the fix.

use sheave_base::status::Status;
use sheave_blk::DeviceError;
use thiserror::Error;

use crate::format::damage::MapDamage;

/// Error of an operation on a pool or volume. If a device answered with a [`Status`], that is its source.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// Error of the device under the pool.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An I/O of the pool itself failed.
    #[error("{what}: {status}. {fix}")]
    Io {
        /// Operation that was tried, and its place.
        what: String,
        /// Status with which it ended.
        #[source]
        status: Status,
        /// Advice for mending it.
        fix: String,
    },
    /// A flush of the pool's device failed: nothing more is written until the pool is opened again.
    #[error(
        "{what}: a flush of the pool's device has failed ({cause}), so what was written and not flushed may be lost, \
         and the pool takes no changes any more. Let go of it, check the device and open the pool again: 'sheave pool \
         info' then names the volumes that may have lost data"
    )]
    Degraded {
        /// Operation that was tried.
        what: String,
        /// Status with which the flush ended.
        #[source]
        cause: Status,
    },
    /// Another opening has the pool: this one no longer writes anything.
    #[error(
        "{what}: the pool on {device} is not this opening's any more: {who}. Nothing more is written here, and what \
         was written and not flushed before may be lost. Let go of the pool here, and end the other user or the second \
         path to its bytes (a loop device, a device mapper table, another host) before it is opened again; then run \
         'sheave pool check'"
    )]
    Taken {
        /// Operation that was tried.
        what: String,
        /// The pool's device.
        device: String,
        /// The owner of the pool.
        who: String,
    },
    /// The file of changes that an earlier opening had acknowledged is damaged.
    #[error(
        "the file of recent changes {} is damaged: {why}. Take a copy of the pool, then remove the file: the pool \
         opens as after a crash of the machine, without the writes that were not flushed",
        path.display()
    )]
    Recent {
        /// Path of the file.
        path: std::path::PathBuf,
        /// The damage.
        why: String,
    },
    /// A change was made but could not be made durable. It cannot be undone: the next commit decides.
    #[error(
        "{what}: it is done, but not durable: {status}. The next flush or sync that ends well makes it durable, and a \
         crash before that may undo it. Check the pool's device"
    )]
    NotDurable {
        /// Change that was made.
        what: String,
        /// Status with which the commit ended.
        #[source]
        status: Status,
    },
    /// The device has no pool, or one that is too new for this version.
    #[error("{what}. {fix}")]
    Format {
        /// Description of what was found.
        what: String,
        /// Advice for mending it.
        fix: String,
    },
    /// The devices given are not the members of the pool.
    #[error("{what}. {fix}")]
    Members {
        /// Description of the mismatch, such as a missing member.
        what: String,
        /// Advice for mending it.
        fix: String,
    },
    /// A metadata block is damaged.
    #[error(
        "{what} at byte {at} is damaged: {why}. Run 'sheave pool check' to see what it means, and 'sheave volume list \
         POOL --rescue' to see what can be taken out"
    )]
    Damaged {
        /// Name of the block.
        what: String,
        /// Address of the block.
        at: u64,
        /// Description of the damage.
        why: String,
    },
    /// A page of a volume's map is damaged, so the volume does not open.
    #[error(
        "{what}: the map of volume '{volume}' is damaged: {damage}. 'sheave volume delete' gives the volume up. To \
         keep what is left of it, close the pool: 'sheave pool check --dry-run' shows what is lost, and 'sheave pool \
         check --repair' makes it a hole"
    )]
    DamagedMap {
        /// Operation that was tried.
        what: String,
        /// The volume.
        volume: String,
        /// Place and cause of the damage.
        #[source]
        damage: MapDamage,
    },
    /// A device, pool or volume is in use.
    #[error("{what} is in use: {who}. {fix}")]
    Busy {
        /// Name of what is in use.
        what: String,
        /// The user of the device, pool or volume.
        who: String,
        /// Advice for mending it.
        fix: String,
    },
    /// No volume has this name.
    #[error("there is no volume '{name}' in the pool. 'sheave volume list' shows those there are")]
    NoVolume {
        /// Name that was asked for.
        name: String,
    },
    /// A volume has this name already.
    #[error("there is a volume '{name}' already. Choose another name, or delete or rename that one")]
    Exists {
        /// Name that was asked for.
        name: String,
    },
    /// A name, size or option is impossible.
    #[error("{what}. {fix}")]
    Invalid {
        /// Description of what is wrong.
        what: String,
        /// Advice on what would be right.
        fix: String,
    },
    /// The pool has no room.
    #[error("the pool is full: {what}. Delete a volume or snapshot, discard data, or 'sheave pool grow' it")]
    Full {
        /// Operation that needed room.
        what: String,
    },
    /// The file system that holds the pool's files has no room, even if the pool has.
    #[error(
        "the file system that holds {device} is full: {what}. Free some space in it, or move the pool to a larger one; \
         deleting volumes and 'sheave pool trim' give it space back"
    )]
    HostFull {
        /// Operation that needed room.
        what: String,
        /// The pool's device.
        device: String,
    },
    /// A limit was reached.
    #[error("{what}: the limit is {limit}. {fix}")]
    Limit {
        /// Description of what there are too many of.
        what: String,
        /// The limit.
        limit: u64,
        /// Advice for mending it.
        fix: String,
    },
}

impl PoolError {
    /// Returns the error of an identity for which the system gave no random bits.
    pub(crate) fn no_random_bits(status: Status) -> PoolError {
        PoolError::Io {
            what: "getting random bits for an identity".into(),
            status,
            fix: "Let the process call getrandom(2): a seccomp filter may forbid it".into(),
        }
    }

    /// Returns the error of a write that the device refused and that changes nothing of the pool.
    pub(crate) fn not_written(what: String, status: Status) -> PoolError {
        let fix = match status {
            Status::FileTooBig => {
                "The file under the pool may not be so large: raise the limit of the process (ulimit -f); the pool is \
                 as it was"
            }
            _ => "Check the device; the pool is as it was",
        };
        PoolError::Io { what, status, fix: fix.into() }
    }
}
