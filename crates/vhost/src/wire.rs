//! Constants and layouts of messages, rings and block requests, according to the specifications of vhost-user (a page
//! of QEMU's documentation) and virtio 1.3. Messages are in native byte order, rings and requests in little-endian.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Broken;

/// Length of a header in bytes.
pub const HEADER: usize = 12;
/// Maximum length of a body: GET_CONFIG with the whole configuration space. A table of 8 regions has 264 bytes.
pub const MAX_BODY: usize = size_of::<ConfigBody>() + MAX_CONFIG;
/// Maximum length of a configuration space.
pub const MAX_CONFIG: usize = 256;
/// Maximum number of descriptors that come with one message.
pub const MAX_FDS: usize = 8;

/// Requests of a front-end.
pub mod req {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// Requests on the back-end channel.
pub mod backend_req {
    pub const CONFIG_CHANGE_MSG: u32 = 2;
}

/// Names of the requests by number, for errors and logs.
const NAMES: [&str; 45] = [
    "request 0",
    "GET_FEATURES",
    "SET_FEATURES",
    "SET_OWNER",
    "RESET_OWNER",
    "SET_MEM_TABLE",
    "SET_LOG_BASE",
    "SET_LOG_FD",
    "SET_VRING_NUM",
    "SET_VRING_ADDR",
    "SET_VRING_BASE",
    "GET_VRING_BASE",
    "SET_VRING_KICK",
    "SET_VRING_CALL",
    "SET_VRING_ERR",
    "GET_PROTOCOL_FEATURES",
    "SET_PROTOCOL_FEATURES",
    "GET_QUEUE_NUM",
    "SET_VRING_ENABLE",
    "SEND_RARP",
    "NET_SET_MTU",
    "SET_BACKEND_REQ_FD",
    "IOTLB_MSG",
    "SET_VRING_ENDIAN",
    "GET_CONFIG",
    "SET_CONFIG",
    "CREATE_CRYPTO_SESSION",
    "CLOSE_CRYPTO_SESSION",
    "POSTCOPY_ADVISE",
    "POSTCOPY_LISTEN",
    "POSTCOPY_END",
    "GET_INFLIGHT_FD",
    "SET_INFLIGHT_FD",
    "GPU_SET_SOCKET",
    "RESET_DEVICE",
    "VRING_KICK",
    "GET_MAX_MEM_SLOTS",
    "ADD_MEM_REG",
    "REM_MEM_REG",
    "SET_STATUS",
    "GET_STATUS",
    "GET_SHARED_OBJECT",
    "SET_DEVICE_STATE_FD",
    "CHECK_DEVICE_STATE",
    "GET_SHMEM_CONFIG",
];

/// Returns the name of a request of a front-end.
pub fn request_name(request: u32) -> &'static str {
    NAMES.get(request as usize).copied().unwrap_or("a request with an unknown number")
}

/// Flags of a header.
pub mod flag {
    pub const VERSION_MASK: u32 = 0b11;
    pub const VERSION: u32 = 1;
    pub const REPLY: u32 = 1 << 2;
    pub const NEED_REPLY: u32 = 1 << 3;
}

/// Features of protocol, rings and device, as GET_FEATURES and SET_FEATURES carry them.
pub mod feature {
    pub const BLK_SIZE_MAX: u64 = 1 << 1;
    pub const BLK_SEG_MAX: u64 = 1 << 2;
    pub const BLK_RO: u64 = 1 << 5;
    pub const BLK_BLK_SIZE: u64 = 1 << 6;
    pub const BLK_FLUSH: u64 = 1 << 9;
    pub const BLK_TOPOLOGY: u64 = 1 << 10;
    pub const BLK_CONFIG_WCE: u64 = 1 << 11;
    pub const BLK_MQ: u64 = 1 << 12;
    pub const BLK_DISCARD: u64 = 1 << 13;
    pub const BLK_WRITE_ZEROES: u64 = 1 << 14;
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    /// The front-end may use the messages about protocol features.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
    pub const IN_ORDER: u64 = 1 << 35;
}

/// Features of the protocol, as GET_PROTOCOL_FEATURES and SET_PROTOCOL_FEATURES carry them.
pub mod protocol {
    pub const MQ: u64 = 1 << 0;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    /// GET_VRING_BASE may leave requests in flight, recorded in the in-flight region.
    pub const GET_VRING_BASE_INFLIGHT: u64 = 1 << 20;
}

/// Bits of the body of SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR.
pub mod vring_fd {
    pub const INDEX: u64 = 0xff;
    pub const NO_FD: u64 = 1 << 8;
}

/// Flags of a descriptor of a ring.
pub mod desc {
    pub const NEXT: u16 = 1 << 0;
    pub const WRITE: u16 = 1 << 1;
    pub const INDIRECT: u16 = 1 << 2;
}

/// Flag of an avail ring: the driver needs no interrupt.
pub const AVAIL_NO_INTERRUPT: u16 = 1;
/// Flag of a used ring: the device needs no kick.
pub const USED_NO_NOTIFY: u16 = 1;

/// Types of block requests.
pub mod blk {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
    /// Flag of a range of WRITE_ZEROES: the device may deallocate.
    pub const UNMAP: u32 = 1 << 0;
}

/// A checked header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub request: u32,
    /// True if the front-end asks for a reply also to a message that has none.
    pub need_reply: bool,
    /// Length of the body in bytes, at most [`MAX_BODY`].
    pub len: usize,
}

impl Header {
    /// Checks a header of the front-end.
    pub fn parse(bytes: [u8; HEADER]) -> Result<Header, Broken> {
        let RawHeader { request, flags, size } = zerocopy::transmute!(bytes);
        let version = flags & flag::VERSION_MASK;
        if version != flag::VERSION {
            return Err(Broken::Version { request, version });
        }
        if flags & flag::REPLY != 0 {
            return Err(Broken::ReplyFlag { request });
        }
        let len = size as usize;
        if len > MAX_BODY {
            return Err(Broken::LongBody { request, size });
        }
        Ok(Header { request, need_reply: flags & flag::NEED_REPLY != 0, len })
    }
}

/// Encodes a message with a header.
pub(crate) fn encode(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(body.len()).expect("bodies of replies are short");
    let mut bytes = RawHeader { request, flags, size }.as_bytes().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawHeader {
    pub request: u32,
    pub flags: u32,
    pub size: u32,
}

/// Body about one number of a queue.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StateBody {
    pub index: u32,
    pub num: u32,
}

/// Body of SET_VRING_ADDR.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AddrBody {
    pub index: u32,
    pub flags: u32,
    pub descriptors: u64,
    pub used: u64,
    pub available: u64,
    pub log: u64,
}

/// Beginning of the body of SET_MEM_TABLE; regions follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TableBody {
    pub count: u32,
    pub padding: u32,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionBody {
    pub guest: u64,
    pub size: u64,
    pub user: u64,
    pub offset: u64,
}

/// Body of ADD_MEM_REG and REM_MEM_REG.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SingleRegionBody {
    pub padding: u64,
    pub region: RegionBody,
}

/// Beginning of the body of GET_CONFIG and SET_CONFIG; `size` bytes follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConfigBody {
    pub offset: u32,
    pub size: u32,
    pub flags: u32,
}

/// Body of GET_INFLIGHT_FD and SET_INFLIGHT_FD. Some front-ends leave out the padding.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InflightBody {
    pub len: u64,
    pub offset: u64,
    pub queues: u16,
    pub queue_size: u16,
    pub padding: u32,
}

/// Length of an [`InflightBody`] without its padding.
pub(crate) const INFLIGHT_UNPADDED: usize = 20;

#[cfg(test)]
mod tests;
