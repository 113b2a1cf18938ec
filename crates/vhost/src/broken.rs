//! The error of everything that a front-end, a guest, or a process that hands a device over can do wrong.
//!
//! Owns [`Broken`]. After an error of a message or of a state the connection is to be closed; after an error of a queue
//! the device is to be ended. Every text names the cause, for the one log line that the device leaves.

use rustix::io::Errno;

use crate::wire::{MAX_BODY, request_name};

/// Names the violation of the protocol that ends a connection or a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Broken {
    // Messages.
    #[error("the header of {} has version {version}, and only version 1 exists", request_name(*.request))]
    Version { request: u32, version: u32 },
    #[error("{} arrived with the flag of a reply, and this is the end that replies", request_name(*.request))]
    ReplyFlag { request: u32 },
    #[error("{} announces a body of {size} bytes, and at most {MAX_BODY} are allowed", request_name(*.request))]
    LongBody { request: u32, size: u32 },
    #[error("{} has a body of {len} bytes, which is not the length of this message", request_name(*.request))]
    BodyLength { request: u32, len: usize },
    #[error("{} came with {got} descriptors instead of {wanted}", request_name(*.request))]
    Descriptors { request: u32, got: usize, wanted: usize },
    #[error("{} is not supported", request_name(*.request))]
    Unsupported { request: u32 },
    #[error("{} needs a feature that was not negotiated: {feature}", request_name(*.request))]
    NotNegotiated { request: u32, feature: &'static str },
    #[error("the features {unknown:#x} were acknowledged without being offered")]
    Features { unknown: u64 },
    #[error("the protocol features {unknown:#x} were acknowledged without being offered")]
    ProtocolFeatures { unknown: u64 },
    #[error("GET_VRING_BASE_INFLIGHT was acknowledged without INFLIGHT_SHMFD, which records the requests")]
    InflightFeature,
    #[error("{} names queue {queue}, and there are {queues}", request_name(*.request))]
    NoSuchQueue { request: u32, queue: u64, queues: u16 },
    #[error("{} changes queue {queue}, which runs: stop the queue with GET_VRING_BASE first", request_name(*.request))]
    Running { request: u32, queue: u16 },
    #[error("a queue of {size} descriptors: the size must be a power of two from 2 to {}", crate::queue::MAX_SIZE)]
    QueueSize { size: u32 },
    #[error("an index of {base} for a ring, which counts to 65535")]
    Base { base: u32 },
    #[error("queue {queue} was given no size and no addresses before its kick descriptor")]
    NotSetUp { queue: u16 },
    #[error("queue {queue} has no kick descriptor; queues are not polled, so one is needed")]
    NoKick { queue: u16 },
    #[error("a ring with flags {flags:#x}: dirty pages are not logged")]
    RingFlags { flags: u32 },
    #[error("SET_VRING_ENABLE has the value {value} instead of 0 or 1")]
    Enable { value: u32 },
    #[error("SET_CONFIG writes {size} bytes at {offset}, and only the byte `writeback` can change")]
    Config { offset: u32, size: u32 },

    #[error("a kick or call descriptor that is not an eventfd: others may make the device wait")]
    NotEventfd,
    #[error("a channel for messages of the back-end that is not one end of a connection of Unix sockets")]
    NotSocket,
    #[error("a descriptor cannot be examined: {0}")]
    Descriptor(Errno),

    // Memory.
    #[error("a region of a file that is not memory of the kernel: use memory-backend-memfd, tmpfs or huge pages")]
    NotMemory,
    #[error("the region at guest address {guest:#x} is empty")]
    RegionEmpty { guest: u64 },
    #[error("the region at guest address {guest:#x} reaches beyond the end of an address space")]
    RegionWraps { guest: u64 },
    #[error("the regions at guest addresses {first:#x} and {second:#x} overlap")]
    RegionOverlaps { first: u64, second: u64 },
    #[error("{count} regions of memory, and at most {} are allowed", crate::memory::MAX_REGIONS)]
    TooManyRegions { count: usize },
    #[error("there is no region with guest address {guest:#x} and the other values of REM_MEM_REG")]
    NoSuchRegion { guest: u64 },
    #[error("a shared file has {size} bytes, and {needed} are to be mapped")]
    FileTooShort { size: u64, needed: u64 },
    #[error("mapping shared memory failed: {0}")]
    Map(Errno),
    #[error("{limit} shared files are mapped, which is the limit of this process: remove devices")]
    TooManyMappings { limit: usize },
    #[error("a file of shared memory was cut off while it was mapped, or no huge page was left for it")]
    CutOff,
    #[error("{len} bytes at guest address {guest:#x} are not in the memory of the guest")]
    NotMapped { guest: u64, len: u32 },
    #[error("the memory of a request is no longer mapped")]
    SpanGone,
    #[error("the ring at user address {user:#x} is not in one region of memory")]
    RingNotMapped { user: u64 },
    #[error("the ring at user address {user:#x} is not aligned")]
    RingUnaligned { user: u64 },

    // Queues.
    #[error("the avail ring is at index {avail} when {last} was processed: more than its {size} entries")]
    AvailIndex { avail: u16, last: u16, size: u16 },
    #[error("the avail ring names descriptor {head} of a table of {size}")]
    Head { head: u16, size: u16 },
    #[error("the avail ring names descriptor {head}, which is in flight already")]
    HeadTwice { head: u16 },
    #[error("a descriptor continues at {next} in a table of {size}")]
    Next { next: u16, size: u16 },
    #[error("the chain of descriptor {head} is longer than its table")]
    Loop { head: u16 },
    #[error("descriptor {head} leads to an indirect table, and INDIRECT_DESC was not negotiated")]
    IndirectNotNegotiated { head: u16 },
    #[error("the chain of descriptor {head} has an indirect table inside an indirect table")]
    IndirectNested { head: u16 },
    #[error("the chain of descriptor {head} continues after an indirect table")]
    IndirectNext { head: u16 },
    #[error("the chain of descriptor {head} has an indirect table of {len} bytes, not 1 to {limit} entries of 16")]
    IndirectLength { head: u16, len: u32, limit: u16 },
    #[error("the chain of descriptor {head} has readable memory after writable memory")]
    ReadableAfterWritable { head: u16 },
    #[error("the chain of descriptor {head} has more than {} pieces of memory", crate::queue::MAX_SPANS)]
    TooManySpans { head: u16 },
    #[error("the chain of descriptor {head} has 4 GiB of writable memory or more")]
    TooLong { head: u16 },
    #[error("descriptor {head} was completed without being in flight")]
    NotInFlight { head: u16 },

    // In-flight regions.
    #[error("an in-flight region of {queues} queues with {size} descriptors, which the device cannot have")]
    InflightShape { queues: u16, size: u16 },
    #[error("an in-flight region of {len} bytes at offset {offset}: {needed} bytes at a multiple of 8 are needed")]
    InflightLength { len: u64, offset: u64, needed: u64 },
    #[error("an in-flight region of version {version}, and only version 1 is known")]
    InflightVersion { version: u16 },
    #[error("an in-flight region for {recorded} descriptors, and the queue has {size}")]
    InflightSize { recorded: u16, size: u16 },
    #[error("an in-flight region names descriptor {index} of a queue of {size}")]
    InflightIndex { index: u16, size: u16 },

    // The state of another process.
    #[error("the state of the device that another process has handed over is impossible: {0}")]
    State(&'static str),

    // Block requests.
    #[error("the request of descriptor {head} has no complete header")]
    NoHeader { head: u16 },
    #[error("the request of descriptor {head} has no byte for its status")]
    NoStatus { head: u16 },
}
