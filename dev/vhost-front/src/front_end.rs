//! The front-end: negotiation, and one call for each message.
//!
//! Owns the connection, the negotiated features and the back-end channel. A call sends its message and waits for the
//! reply: the message's own, or an acknowledgement where REPLY_ACK is negotiated. Rings and memory belong to
//! [`crate::Driver`]; a test of single messages uses this type alone.
//!
//! - F1: after a call has returned an error, replies may be out of step. The test ends or connects again.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use crate::config::{BlkConfig, CONFIG_LEN, WRITE_CACHE};
use crate::error::{Error, Result};
use crate::features::{self, protocol};
use crate::inflight::{self, Inflight};
use crate::memory::Region;
use crate::message::{Channel, Message, NEED_REPLY, PATIENCE, REPLY, VERSION, backend_request, request};

/// Bit of SET_VRING_KICK, SET_VRING_CALL and SET_VRING_ERR: the message carries no descriptor.
const NO_FD: u64 = 1 << 8;
/// Flags of SET_CONFIG: the guest writes a field.
const BY_THE_GUEST: u32 = 0;

/// The addresses of a ring, as the back-end gets them: user addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VringAddr {
    /// Flags: bit 0 asks for a log of changes.
    pub flags: u32,
    /// User address of the descriptor table.
    pub desc: u64,
    /// User address of the used ring.
    pub used: u64,
    /// User address of the avail ring.
    pub avail: u64,
    /// Guest address for the log.
    pub log: u64,
}

/// A message that the back-end has sent on its own channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendRequest {
    /// The configuration space has changed.
    ConfigChange,
    /// Another message, with its number.
    Other(u32),
}

/// A connection to a vhost-user-blk back-end.
#[derive(Debug)]
pub struct FrontEnd {
    channel: Channel,
    offered: u64,
    features: u64,
    protocol_offered: u64,
    protocol: u64,
    backend: Option<Channel>,
}

impl FrontEnd {
    /// Connects, negotiates all protocol features that this crate knows, and becomes the owner.
    pub fn connect(path: impl AsRef<Path>) -> Result<Self> {
        FrontEnd::connect_with(path, features::KNOWN_PROTOCOL)
    }

    /// Connects, and negotiates those of `wanted` that the back-end offers.
    pub fn connect_with(path: impl AsRef<Path>, wanted: u64) -> Result<Self> {
        FrontEnd::negotiate(Channel::connect(path)?, wanted)
    }

    /// Negotiates on a connected channel.
    pub fn negotiate(channel: Channel, wanted: u64) -> Result<Self> {
        let mut front = FrontEnd::silent(channel);
        front.offered = front.ask_u64(request::GET_FEATURES)?;
        if front.offered & features::PROTOCOL_FEATURES != 0 {
            front.protocol_offered = front.ask_u64(request::GET_PROTOCOL_FEATURES)?;
            // The acknowledgement is negotiated by this message, so the message itself does not ask for one.
            let chosen = front.protocol_offered & wanted;
            front.call(request::SET_PROTOCOL_FEATURES, &chosen.to_ne_bytes(), &[])?;
            front.protocol = chosen;
        }
        front.call(request::SET_OWNER, &[], &[])?;
        if front.has(protocol::BACKEND_REQ) {
            front.open_backend_channel()?;
        }
        Ok(front)
    }

    /// Uses a connected channel without sending a message. For tests that send their own.
    pub fn silent(channel: Channel) -> Self {
        FrontEnd { channel, offered: 0, features: 0, protocol_offered: 0, protocol: 0, backend: None }
    }

    /// Returns the connection, to send and receive messages of any content.
    pub fn channel(&self) -> &Channel {
        &self.channel
    }

    /// Closes the connection, as a front-end that dies does.
    pub fn hang_up(&self) {
        self.channel.hang_up();
    }

    /// Sends a message of any content. [`FrontEnd::receive`] takes the reply, if one comes.
    pub fn send(&self, request: u32, flags: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        self.channel.send(request, flags, body, fds)
    }

    /// Receives a message.
    pub fn receive(&self) -> Result<Message> {
        self.channel.receive()
    }

    /// Returns the features that the back-end offered.
    pub fn offered(&self) -> u64 {
        self.offered
    }

    /// Returns the features that were set last.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the protocol features that the back-end offered.
    pub fn protocol_offered(&self) -> u64 {
        self.protocol_offered
    }

    /// Returns the negotiated protocol features.
    pub fn protocol_features(&self) -> u64 {
        self.protocol
    }

    /// Returns true if all these protocol features are negotiated.
    pub fn has(&self, protocol: u64) -> bool {
        self.protocol & protocol == protocol
    }

    fn needs(&self, feature: u64, name: &'static str) -> Result<()> {
        if self.has(feature) { Ok(()) } else { Err(Error::NotNegotiated(name)) }
    }

    /// Sends a message that has no reply of its own, and waits for the acknowledgement if REPLY_ACK is negotiated.
    pub fn call(&self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        if !self.has(protocol::REPLY_ACK) {
            return self.send(request, VERSION, body, fds);
        }
        self.send(request, VERSION | NEED_REPLY, body, fds)?;
        let reply = self.reply(request)?;
        match u64_of(request, &reply)? {
            0 => Ok(()),
            code => Err(Error::Refused { request: request::name(request), code }),
        }
    }

    /// Sends a message that has a reply of its own, and returns the reply.
    pub fn ask(&self, request: u32, body: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Message> {
        self.send(request, VERSION, body, fds)?;
        self.reply(request)
    }

    fn ask_u64(&self, request: u32) -> Result<u64> {
        u64_of(request, &self.ask(request, &[], &[])?)
    }

    fn reply(&self, request: u32) -> Result<Message> {
        let reply = self.receive()?;
        if reply.request != request {
            return wrong(request, format!("it belongs to {}", request::name(reply.request)));
        }
        if reply.flags & 3 != VERSION || reply.flags & REPLY == 0 {
            return wrong(
                request,
                format!("its flags are {:#x}, without the version or the bit of a reply", reply.flags),
            );
        }
        Ok(reply)
    }

    /// Waits until the back-end has processed all messages before this call, also without REPLY_ACK.
    pub fn sync(&self) -> Result<()> {
        self.ask_u64(request::GET_FEATURES).map(drop)
    }

    /// Sets the features of the device.
    pub fn set_features(&mut self, features: u64) -> Result<()> {
        self.call(request::SET_FEATURES, &features.to_ne_bytes(), &[])?;
        self.features = features;
        Ok(())
    }

    /// Returns the largest number of queues.
    pub fn queue_num(&self) -> Result<u64> {
        self.needs(protocol::MQ, "MQ")?;
        self.ask_u64(request::GET_QUEUE_NUM)
    }

    /// Replaces the table of memory.
    pub fn set_mem_table(&self, regions: &[&Region]) -> Result<()> {
        let mut body = [regions.len() as u32, 0].map(u32::to_ne_bytes).concat();
        regions.iter().for_each(|region| body.extend(describe(region)));
        let files: Vec<BorrowedFd<'_>> = regions.iter().map(|region| region.file()).collect();
        self.call(request::SET_MEM_TABLE, &body, &files)
    }

    /// Returns the largest number of regions.
    pub fn max_mem_slots(&self) -> Result<u64> {
        self.needs(protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS")?;
        self.ask_u64(request::GET_MAX_MEM_SLOTS)
    }

    /// Adds a region.
    pub fn add_mem_reg(&self, region: &Region) -> Result<()> {
        self.needs(protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS")?;
        self.call(request::ADD_MEM_REG, &[&[0; 8][..], &describe(region)].concat(), &[region.file()])
    }

    /// Removes a region.
    pub fn rem_mem_reg(&self, region: &Region) -> Result<()> {
        self.needs(protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS")?;
        self.call(request::REM_MEM_REG, &[&[0; 8][..], &describe(region)].concat(), &[])
    }

    /// Sets the size of a queue.
    pub fn set_vring_num(&self, queue: u16, size: u32) -> Result<()> {
        self.call(request::SET_VRING_NUM, &state(queue, size), &[])
    }

    /// Sets the index of the avail ring at which the back-end begins.
    pub fn set_vring_base(&self, queue: u16, base: u32) -> Result<()> {
        self.call(request::SET_VRING_BASE, &state(queue, base), &[])
    }

    /// Sets the addresses of a ring.
    pub fn set_vring_addr(&self, queue: u16, addr: VringAddr) -> Result<()> {
        let mut body = [u32::from(queue), addr.flags].map(u32::to_ne_bytes).concat();
        body.extend([addr.desc, addr.used, addr.avail, addr.log].map(u64::to_ne_bytes).concat());
        self.call(request::SET_VRING_ADDR, &body, &[])
    }

    /// Gives the back-end the eventfd for kicks, or tells it to poll.
    pub fn set_vring_kick(&self, queue: u16, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        self.set_vring_fd(request::SET_VRING_KICK, queue, fd)
    }

    /// Gives the back-end the eventfd for calls, or tells it that the driver polls.
    pub fn set_vring_call(&self, queue: u16, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        self.set_vring_fd(request::SET_VRING_CALL, queue, fd)
    }

    /// Gives the back-end the eventfd for errors of a queue.
    pub fn set_vring_err(&self, queue: u16, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        self.set_vring_fd(request::SET_VRING_ERR, queue, fd)
    }

    fn set_vring_fd(&self, request: u32, queue: u16, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        let word = u64::from(queue) | if fd.is_some() { 0 } else { NO_FD };
        self.call(request, &word.to_ne_bytes(), fd.as_slice())
    }

    /// Enables or disables a queue.
    pub fn set_vring_enable(&self, queue: u16, enabled: bool) -> Result<()> {
        self.call(request::SET_VRING_ENABLE, &state(queue, u32::from(enabled)), &[])
    }

    /// Stops a queue. Returns the index of the avail ring that the back-end would process next.
    pub fn get_vring_base(&self, queue: u16) -> Result<u32> {
        let reply = self.ask(request::GET_VRING_BASE, &state(queue, 0), &[])?;
        match (reply.u32_at(0), reply.u32_at(4)) {
            (Some(index), Some(base)) if index == u32::from(queue) => Ok(base),
            _ => wrong(request::GET_VRING_BASE, format!("{:?} is no state of queue {queue}", reply.body)),
        }
    }

    /// Returns a part of the configuration space.
    pub fn get_config(&self, offset: u32, len: u32) -> Result<Vec<u8>> {
        self.needs(protocol::CONFIG, "CONFIG")?;
        let mut body = [offset, len, BY_THE_GUEST].map(u32::to_ne_bytes).concat();
        body.resize(12 + len as usize, 0);
        let reply = self.ask(request::GET_CONFIG, &body, &[])?;
        if reply.body.len() != body.len() {
            let why = format!("it has {} bytes instead of {}", reply.body.len(), body.len());
            return wrong(request::GET_CONFIG, why);
        }
        Ok(reply.body[12..].to_vec())
    }

    /// Returns the configuration of the block device.
    pub fn config(&self) -> Result<BlkConfig> {
        Ok(BlkConfig::decode(&self.get_config(0, CONFIG_LEN as u32)?))
    }

    /// Writes a part of the configuration space.
    pub fn set_config(&self, offset: u32, bytes: &[u8]) -> Result<()> {
        self.needs(protocol::CONFIG, "CONFIG")?;
        let head = [offset, bytes.len() as u32, BY_THE_GUEST].map(u32::to_ne_bytes).concat();
        self.call(request::SET_CONFIG, &[&head[..], bytes].concat(), &[])
    }

    /// Switches the write cache (CONFIG_WCE).
    pub fn set_write_cache(&self, on: bool) -> Result<()> {
        self.set_config(WRITE_CACHE, &[u8::from(on)])
    }

    /// Asks the back-end for a new in-flight region.
    pub fn get_inflight(&self, queues: u16, queue_size: u16) -> Result<Inflight> {
        self.needs(protocol::INFLIGHT_SHMFD, "INFLIGHT_SHMFD")?;
        let body = inflight::payload(0, 0, queues, queue_size);
        let mut reply = self.ask(request::GET_INFLIGHT_FD, &body, &[])?;
        match (reply.u64_at(0), reply.u64_at(8), reply.fds.pop()) {
            (Some(len), Some(offset), Some(file)) if len > 0 => Inflight::new(file, offset, len, queues, queue_size),
            (_, _, Some(_)) => wrong(request::GET_INFLIGHT_FD, "the region has no length".into()),
            (_, _, None) => wrong(request::GET_INFLIGHT_FD, "no descriptor came with it".into()),
        }
    }

    /// Gives the back-end the in-flight region.
    pub fn set_inflight(&self, inflight: &Inflight) -> Result<()> {
        self.needs(protocol::INFLIGHT_SHMFD, "INFLIGHT_SHMFD")?;
        self.call(request::SET_INFLIGHT_FD, &inflight.payload(), &[inflight.file()])
    }

    /// Sets the virtio status of the device.
    pub fn set_status(&self, status: u8) -> Result<()> {
        self.needs(protocol::STATUS, "STATUS")?;
        self.call(request::SET_STATUS, &u64::from(status).to_ne_bytes(), &[])
    }

    /// Returns the virtio status of the device.
    pub fn get_status(&self) -> Result<u64> {
        self.needs(protocol::STATUS, "STATUS")?;
        self.ask_u64(request::GET_STATUS)
    }

    /// Resets the device.
    pub fn reset_device(&self) -> Result<()> {
        self.needs(protocol::RESET_DEVICE, "RESET_DEVICE")?;
        self.call(request::RESET_DEVICE, &[], &[])
    }

    /// Gives the back-end a channel for its own messages. Negotiation does this if BACKEND_REQ is negotiated.
    pub fn open_backend_channel(&mut self) -> Result<()> {
        let (ours, theirs) = Channel::pair()?;
        self.call(request::SET_BACKEND_REQ_FD, &[], &[theirs.socket().as_fd()])?;
        self.backend = Some(ours);
        Ok(())
    }

    /// Receives a message of the back-end, and acknowledges it if asked. Returns `None` if none arrives in time.
    pub fn backend_request(&self, timeout: Duration) -> Result<Option<BackendRequest>> {
        let channel = self.backend.as_ref().ok_or(Error::NotNegotiated("BACKEND_REQ"))?;
        channel.set_timeout(timeout)?;
        let received = channel.receive();
        channel.set_timeout(PATIENCE)?;
        let message = match received {
            Ok(message) => message,
            Err(Error::Timeout(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if message.flags & NEED_REPLY != 0 {
            channel.send(message.request, VERSION | REPLY, &0u64.to_ne_bytes(), &[])?;
        }
        Ok(Some(match message.request {
            backend_request::CONFIG_CHANGE_MSG => BackendRequest::ConfigChange,
            other => BackendRequest::Other(other),
        }))
    }
}

fn wrong<T>(request: u32, why: String) -> Result<T> {
    Err(Error::Reply { request: request::name(request), why })
}

fn u64_of(request: u32, reply: &Message) -> Result<u64> {
    match reply.u64_at(0) {
        Some(number) if reply.body.len() == 8 => Ok(number),
        _ => wrong(request, format!("its payload has {} bytes instead of 8", reply.body.len())),
    }
}

/// Returns the payload of messages about the state of a queue.
fn state(queue: u16, num: u32) -> Vec<u8> {
    [u32::from(queue), num].map(u32::to_ne_bytes).concat()
}

/// Returns the description of a region in messages.
fn describe(region: &Region) -> Vec<u8> {
    region.spec().payload(region.user_address())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(1);

    /// Returns a front-end and the channel of a back-end that the test plays.
    fn front() -> (FrontEnd, Channel) {
        let (ours, theirs) = Channel::pair().expect("a pair");
        (FrontEnd::silent(ours), theirs)
    }

    #[test]
    fn a_message_of_the_back_end_is_acknowledged_if_it_asks() {
        let (mut front, back) = front();
        front.open_backend_channel().expect("no acknowledgement is negotiated");
        let socket = back.receive().expect("received").fds.pop().expect("a socket");
        let own = Channel::new(socket.into()).expect("a channel");
        own.set_timeout(SOON).expect("set");
        for (flags, number) in [(VERSION, 2), (VERSION | NEED_REPLY, 2), (VERSION | NEED_REPLY, 9)] {
            own.send(number, flags, &[], &[]).expect("sent");
            let expected = if number == 2 { BackendRequest::ConfigChange } else { BackendRequest::Other(9) };
            assert_eq!(front.backend_request(PATIENCE).expect("received"), Some(expected));
            match own.receive() {
                Ok(reply) => assert_eq!((flags, reply.flags, reply.u64_at(0)), (9, VERSION | REPLY, Some(0))),
                Err(error) => assert!(flags == VERSION && matches!(error, Error::Timeout(_)), "{error}"),
            }
        }
        assert_eq!(front.backend_request(SOON).expect("nothing"), None);
    }

    #[test]
    fn a_reply_that_differs_from_the_specification_is_an_error() {
        let (front, back) = front();
        let answer = |request, flags, body: &[u8]| {
            back.send(request, flags, body, &[]).expect("sent");
            front.ask_u64(request::GET_FEATURES).expect_err("wrong").to_string()
        };
        let word = 1u64.to_ne_bytes();
        assert!(answer(request::GET_QUEUE_NUM, VERSION | REPLY, &word).contains("belongs to GET_QUEUE_NUM"));
        assert!(answer(request::GET_FEATURES, VERSION, &word).contains("its flags are 0x1"));
        assert!(answer(request::GET_FEATURES, 2 | REPLY, &word).contains("its flags are 0x6"));
        assert!(answer(request::GET_FEATURES, VERSION | REPLY, &word[..4]).contains("4 bytes instead of 8"));
    }

    #[test]
    fn a_call_that_needs_a_feature_is_not_sent_without_it() {
        let (front, back) = front();
        for error in [
            front.reset_device().unwrap_err(),
            front.get_status().unwrap_err(),
            front.get_config(0, 8).unwrap_err(),
            front.max_mem_slots().unwrap_err(),
            front.get_inflight(1, 8).unwrap_err(),
        ] {
            assert!(matches!(error, Error::NotNegotiated(_)), "{error}");
        }
        back.set_timeout(SOON).expect("set");
        assert!(matches!(back.receive(), Err(Error::Timeout(_))), "nothing was sent");
    }
}
