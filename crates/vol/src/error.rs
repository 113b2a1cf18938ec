//! Errors of pools and volumes. Every message names the cause and the fix.

use sheave_base::status::Status;
use sheave_blk::DeviceError;
use thiserror::Error;

use crate::format::damage::MapDamage;

/// Why something with a pool or volume was refused. The source of what a device answered is its [`Status`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The device under the pool.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// An I/O of the pool itself failed.
    #[error("{what}: {status}. {fix}")]
    Io {
        /// What was tried, and where.
        what: String,
        /// How it ended.
        #[source]
        status: Status,
        /// How to mend it.
        fix: String,
    },
    /// A flush of the pool's device failed: nothing more is written until the pool is opened again.
    #[error(
        "{what}: a flush of the pool's device has failed ({cause}), so what was written and not flushed may be lost, \
         and the pool takes no changes any more. Let go of it, check the device and open the pool again: 'sheave pool \
         info' then names the volumes that may have lost data"
    )]
    Degraded {
        /// What was tried.
        what: String,
        /// How the flush ended.
        #[source]
        cause: Status,
    },
    /// Another opening has the pool: this one writes nothing any more.
    #[error(
        "{what}: the pool on {device} is not this opening's any more: {who}. Nothing more is written here, and what \
         was written and not flushed before may be lost. Let go of the pool here, and end the other user or the second \
         path to its bytes (a loop device, a device mapper table, another host) before it is opened again; then run \
         'sheave pool check'"
    )]
    Taken {
        /// What was tried.
        what: String,
        /// The pool's device.
        device: String,
        /// Who has it.
        who: String,
    },
    /// A change was made and could not be made durable. It cannot be undone: the next commit decides.
    #[error(
        "{what}: it is done, but not durable: {status}. The next flush or sync that ends well makes it durable, and a \
         crash before that may undo it. Check the pool's device"
    )]
    NotDurable {
        /// What was done.
        what: String,
        /// How the commit ended.
        #[source]
        status: Status,
    },
    /// What lies on the device is no pool, or too new for this version.
    #[error("{what}. {fix}")]
    Format {
        /// What was found.
        what: String,
        /// How to mend it.
        fix: String,
    },
    /// The devices given are not the members of the pool.
    #[error("{what}. {fix}")]
    Members {
        /// Which one is missing, or another.
        what: String,
        /// How to mend it.
        fix: String,
    },
    /// A metadata block is damaged.
    #[error(
        "{what} at byte {at} is damaged: {why}. Run 'sheave pool check' to see what it means, and 'sheave volume list \
         POOL --rescue' to see what can be taken out"
    )]
    Damaged {
        /// Which block.
        what: String,
        /// Where.
        at: u64,
        /// What is wrong with it.
        why: String,
    },
    /// A page of a volume's map is damaged: the volume does not open.
    #[error(
        "{what}: the map of volume '{volume}' is damaged: {damage}. 'sheave volume delete' gives the volume up. To \
         keep what is left of it, close the pool: 'sheave pool check --dry-run' shows what is lost, and 'sheave pool \
         check --repair' makes it a hole"
    )]
    DamagedMap {
        /// What was tried.
        what: String,
        /// The volume.
        volume: String,
        /// Where, and why.
        #[source]
        damage: MapDamage,
    },
    /// Another has it open, or it is in use.
    #[error("{what} is in use: {who}. {fix}")]
    Busy {
        /// What.
        what: String,
        /// By whom.
        who: String,
        /// How to mend it.
        fix: String,
    },
    /// There is no such volume.
    #[error("there is no volume '{name}' in the pool. 'sheave volume list' shows those there are")]
    NoVolume {
        /// As asked for.
        name: String,
    },
    /// There is one of that name.
    #[error("there is a volume '{name}' already. Choose another name, or delete or rename that one")]
    Exists {
        /// As asked for.
        name: String,
    },
    /// A name, size or option that cannot be.
    #[error("{what}. {fix}")]
    Invalid {
        /// What is wrong.
        what: String,
        /// What would be right.
        fix: String,
    },
    /// The pool has no room.
    #[error("the pool is full: {what}. Delete a volume or snapshot, discard data, or 'sheave pool grow' it")]
    Full {
        /// What needed room.
        what: String,
    },
    /// The file system that holds the pool's files has no room, whatever the pool has.
    #[error(
        "the file system that holds {device} is full: {what}. Free some space in it, or move the pool to a larger one; \
         deleting volumes and 'sheave pool trim' give it space back"
    )]
    HostFull {
        /// What needed room.
        what: String,
        /// The pool's device.
        device: String,
    },
    /// A bound was reached.
    #[error("{what}: the limit is {limit}. {fix}")]
    Limit {
        /// What there are too many of.
        what: String,
        /// The bound.
        limit: u64,
        /// How to mend it.
        fix: String,
    },
}

impl PoolError {
    /// The system gave no random bits for an identity.
    pub(crate) fn no_random_bits(status: Status) -> PoolError {
        PoolError::Io {
            what: "getting random bits for an identity".into(),
            status,
            fix: "Let the process call getrandom(2): a seccomp filter may forbid it".into(),
        }
    }

    /// The device refused a write that changes nothing of the pool.
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
