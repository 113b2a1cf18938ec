//! Bits of feature words: those of virtio and virtio-blk, and those of the vhost-user protocol.
//!
//! The constants are masks, so that they can be combined with `|`.

/// The device has a largest segment size (virtio-blk).
pub const SIZE_MAX: u64 = 1 << 1;
/// The device has a largest number of segments (virtio-blk).
pub const SEG_MAX: u64 = 1 << 2;
/// The device is read-only (virtio-blk).
pub const RO: u64 = 1 << 5;
/// The block size in the configuration is valid (virtio-blk).
pub const BLK_SIZE: u64 = 1 << 6;
/// The device has a flush command (virtio-blk).
pub const FLUSH: u64 = 1 << 9;
/// The topology in the configuration is valid (virtio-blk).
pub const TOPOLOGY: u64 = 1 << 10;
/// The driver can switch the write cache (virtio-blk).
pub const CONFIG_WCE: u64 = 1 << 11;
/// The device has several queues (virtio-blk).
pub const MQ: u64 = 1 << 12;
/// The device has a discard command (virtio-blk).
pub const DISCARD: u64 = 1 << 13;
/// The device has a command that writes zeroes (virtio-blk).
pub const WRITE_ZEROES: u64 = 1 << 14;
/// A descriptor may refer to a table of descriptors (ring).
pub const INDIRECT_DESC: u64 = 1 << 28;
/// Kicks and calls are suppressed by indexes (ring).
pub const EVENT_IDX: u64 = 1 << 29;
/// The back-end has protocol features. The bit is part of vhost-user and unknown to virtio.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The device follows virtio 1.0 or newer.
pub const VERSION_1: u64 = 1 << 32;
/// Rings are packed. The driver of this crate has split rings only.
pub const RING_PACKED: u64 = 1 << 34;
/// The device uses buffers in the order in which they were made available.
pub const IN_ORDER: u64 = 1 << 35;

/// Bits of the word of protocol features.
pub mod protocol {
    /// The back-end tells its number of queues.
    pub const MQ: u64 = 1 << 0;
    /// A message can ask for an acknowledgement.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// The back-end can send messages to the front-end.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The configuration space is read and written by messages.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests in flight are recorded in memory that outlives the back-end.
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    /// The front-end can reset the device.
    pub const RESET_DEVICE: u64 = 1 << 13;
    /// Regions of memory are added and removed one by one.
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    /// The status of virtio is sent by messages.
    pub const STATUS: u64 = 1 << 16;
}

/// All features that the driver of this crate knows, except IN_ORDER.
pub const KNOWN: u64 = SIZE_MAX
    | SEG_MAX
    | RO
    | BLK_SIZE
    | FLUSH
    | TOPOLOGY
    | CONFIG_WCE
    | MQ
    | DISCARD
    | WRITE_ZEROES
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1;

/// All protocol features that the front-end of this crate knows.
pub const KNOWN_PROTOCOL: u64 = protocol::MQ
    | protocol::REPLY_ACK
    | protocol::BACKEND_REQ
    | protocol::CONFIG
    | protocol::INFLIGHT_SHMFD
    | protocol::RESET_DEVICE
    | protocol::CONFIGURE_MEM_SLOTS
    | protocol::STATUS;
