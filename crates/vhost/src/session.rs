//! The negotiation with one front-end: messages in, actions and replies out.
//!
//! Owns [`Life`], the state of the device as the front-end has set it up, and what is derived from it: the mappings.
//! Does not own the connection, nor the queues that run. Called by the owner of the connection, one message at a time:
//! the next message is passed in after the action of the last one has ended and its answer was sent.
//!
//! Invariants:
//! - N1: a message that fails changes nothing.
//! - N2: size, addresses and index of a queue do not change while the queue is started. Only the index does when the
//!   queue stops for a handover ([`Session::stopped_at`]).
//! - N3: a message that announces or carries more than [`crate::wire::MAX_BODY`] bytes or eight descriptors is refused
//!   before its contents are looked at.

mod handover;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::memory::{GuestMemory, MAX_REGIONS, RegionSpec};
pub use crate::wire::Header;
use crate::wire::{
    AddrBody, ConfigBody, HEADER, INFLIGHT_UNPADDED, InflightBody, MAX_CONFIG, RegionBody, SingleRegionBody, StateBody,
    TableBody, backend_req, encode, feature, flag, protocol, req, vring_fd,
};
use crate::{Broken, block, inflight, queue, trusted};

pub use handover::{LifeState, SetupState};

/// Maximum number of queues. Their numbers have 8 bits in some messages.
pub const MAX_QUEUES: u16 = 256;

/// The device that is offered to a front-end.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Number of queues, from 1 to [`MAX_QUEUES`].
    pub queues: u16,
    /// True if IN_ORDER is offered.
    pub in_order: bool,
    pub config: block::Config,
}

impl Offer {
    /// Returns the features of the device and its rings.
    pub fn features(&self) -> u64 {
        let config = &self.config;
        let mut features = feature::VERSION_1
            | feature::RING_EVENT_IDX
            | feature::RING_INDIRECT_DESC
            | feature::PROTOCOL_FEATURES
            | feature::BLK_SIZE_MAX
            | feature::BLK_SEG_MAX
            | feature::BLK_BLK_SIZE
            | feature::BLK_FLUSH
            | feature::BLK_TOPOLOGY
            | feature::BLK_CONFIG_WCE
            | feature::BLK_MQ;
        let optional = [
            (feature::IN_ORDER, self.in_order),
            (feature::BLK_RO, config.read_only),
            (feature::BLK_DISCARD, config.discard().is_some()),
            (feature::BLK_WRITE_ZEROES, config.write_zeroes().is_some()),
        ];
        for (bit, offered) in optional {
            features |= if offered { bit } else { 0 };
        }
        features
    }

    /// Returns the features of the protocol.
    pub fn protocol_features(&self) -> u64 {
        protocol::MQ
            | protocol::REPLY_ACK
            | protocol::BACKEND_REQ
            | protocol::CONFIG
            | protocol::INFLIGHT_SHMFD
            | protocol::RESET_DEVICE
            | protocol::CONFIGURE_MEM_SLOTS
            | protocol::STATUS
            | protocol::GET_VRING_BASE_INFLIGHT
    }

    /// Checks the features that a front-end acknowledges.
    fn check_features(&self, features: u64) -> Result<(), Broken> {
        match features & !self.features() {
            0 => Ok(()),
            unknown => Err(Broken::Features { unknown }),
        }
    }

    /// Checks the features of the protocol that a front-end acknowledges.
    fn check_protocol_features(&self, features: u64) -> Result<(), Broken> {
        let unknown = features & !self.protocol_features();
        if unknown != 0 {
            return Err(Broken::ProtocolFeatures { unknown });
        }
        if features & protocol::GET_VRING_BASE_INFLIGHT != 0 && features & protocol::INFLIGHT_SHMFD == 0 {
            return Err(Broken::InflightFeature);
        }
        Ok(())
    }
}

/// The state of one queue, as the front-end has set it up.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Number of descriptors; 0 if it is not known yet.
    pub size: u16,
    /// User addresses of the descriptor table, the avail ring and the used ring.
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    /// Index of the next entry of the avail ring at the start.
    pub base: u16,
    pub kick: Option<Arc<OwnedFd>>,
    /// Descriptor of interrupts; None if the driver polls.
    pub call: Option<Arc<OwnedFd>>,
    /// Descriptor that tells the front-end about an error of the queue.
    pub err: Option<Arc<OwnedFd>>,
    /// True if requests may be processed. A queue runs while it is started and enabled.
    pub enabled: bool,
    pub started: bool,
}

/// All state of a device that another process would need to go on with it, together with the connection: numbers and
/// descriptors, and nothing that is derived from them. The state of the queues that run is in guest memory and in the
/// in-flight region.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// Acknowledged features.
    pub features: u64,
    pub protocol_features: u64,
    /// Status of the virtio device, as the front-end tells it.
    pub status: u8,
    /// State of the byte `writeback` of the configuration space.
    pub writeback: bool,
    pub regions: Vec<(RegionSpec, Arc<OwnedFd>)>,
    pub queues: Vec<Setup>,
    pub inflight: Option<(inflight::Shape, Arc<OwnedFd>)>,
    /// Socket of the back-end channel.
    pub backend: Option<Arc<OwnedFd>>,
}

/// An action for the threads that own the queues. It ends before the answer is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    Nothing,
    /// [`Session::memory`] is new. Queues continue with it ([`crate::Queue::set_memory`]). If `removes`, nothing may
    /// use the old memory any more when the answer is sent.
    Memory {
        removes: bool,
    },
    /// Make a [`crate::Queue`] of [`Session::queue`]; process it if it is enabled.
    Start {
        queue: u16,
    },
    /// Stop taking chains. If `drain`, finish and publish all requests. Else requests may stay in flight, marked in
    /// the in-flight region; but no I/O may touch the memory of the guest after the answer.
    Stop {
        queue: u16,
        drain: bool,
    },
    /// `enabled` of a started queue has changed.
    Enable {
        queue: u16,
    },
    /// The call descriptor of a started queue has changed. Signal it once, because an interrupt may have been lost.
    Call {
        queue: u16,
    },
    /// The kick descriptor of a started queue has changed. Look at the ring once.
    Kick {
        queue: u16,
    },
    /// [`Session::writes_back`] has changed. After a change to false, flush before the answer.
    WriteCache,
    /// The device was reset: finish the I/O of all queues without publishing, and drop them.
    Reset,
}

/// The answer to send when the action has ended.
#[derive(Debug)]
pub enum Answer {
    None,
    Reply(Reply),
    /// Call [`Session::base`] with the index at which the queue has stopped, and send its reply.
    Base {
        queue: u16,
    },
}

/// A message to the front-end.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Header and body.
    pub bytes: Vec<u8>,
    pub fd: Option<Arc<OwnedFd>>,
    /// True if the body says only that the message was processed.
    ack: bool,
}

impl Reply {
    fn new(request: u32, body: &[u8]) -> Reply {
        Reply { bytes: encode(request, flag::VERSION | flag::REPLY, body), fd: None, ack: false }
    }

    fn number(request: u32, value: u64) -> Reply {
        Reply::new(request, value.as_bytes())
    }

    fn ack(request: u32, failed: bool) -> Reply {
        Reply { ack: true, ..Reply::number(request, u64::from(failed)) }
    }
}

/// The outcome of a message.
#[derive(Debug)]
pub struct Step {
    pub todo: Todo,
    pub answer: Answer,
    /// The reason if the message was refused and the connection goes on, for the log.
    pub refused: Option<Broken>,
}

/// The effect of a message before it is known how the front-end is answered.
enum Effect {
    /// The message has no reply of its own.
    Done(Todo),
    Reply(Reply),
    Base {
        queue: u16,
        drain: bool,
    },
}

/// The negotiation with one front-end.
pub struct Session {
    offer: Offer,
    life: Life,
    /// The mappings of `life.regions`.
    memory: Arc<GuestMemory>,
    /// The mapping of `life.inflight`.
    area: Option<inflight::Area>,
}

impl Session {
    pub fn new(mut offer: Offer) -> Session {
        offer.queues = offer.queues.clamp(1, MAX_QUEUES);
        let life = Life {
            writeback: offer.config.writeback,
            queues: vec![Setup::default(); usize::from(offer.queues)],
            ..Life::default()
        };
        Session { offer, life, memory: Arc::default(), area: None }
    }

    /// Replaces the properties of the device. See [`Session::config_changed`] for the message that tells the guest.
    pub fn set_config(&mut self, config: block::Config) {
        self.offer.config = config;
    }

    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Returns the state that another process would need.
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// Checks a header. The body follows, with [`Header::len`] bytes.
    pub fn header(bytes: [u8; HEADER]) -> Result<Header, Broken> {
        Header::parse(bytes)
    }

    /// Processes a message. Descriptors that are not used are closed.
    pub fn message(&mut self, header: &Header, body: &[u8], fds: Vec<OwnedFd>) -> Result<Step, Broken> {
        let request = header.request;
        if body.len() != header.len {
            return Err(Broken::BodyLength { request, len: body.len() });
        }
        let mut message = Message { request, body, fds };
        let effect = match self.process(&mut message) {
            Ok(effect) => effect,
            Err(error) if is_refusal(&error) && self.acks(header) => {
                let answer = Answer::Reply(Reply::ack(request, true));
                return Ok(Step { todo: Todo::Nothing, answer, refused: Some(error) });
            }
            Err(error) => return Err(error),
        };
        let (todo, answer) = match effect {
            // REPLY_ACK may have been acknowledged by this very message, so it is asked for afterwards.
            Effect::Done(todo) if self.acks(header) => (todo, Answer::Reply(Reply::ack(request, false))),
            Effect::Done(todo) => (todo, Answer::None),
            Effect::Reply(reply) => (Todo::Nothing, Answer::Reply(reply)),
            Effect::Base { queue, drain } => (Todo::Stop { queue, drain }, Answer::Base { queue }),
        };
        Ok(Step { todo, answer, refused: None })
    }

    fn acks(&self, header: &Header) -> bool {
        header.need_reply && self.speaks(protocol::REPLY_ACK)
    }

    fn process(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let request = message.request;
        let nothing = Ok(Effect::Done(Todo::Nothing));
        match request {
            req::GET_FEATURES => message.empty().map(|()| self.number(request, self.offer.features())),
            req::SET_FEATURES => self.set_features(message),
            req::GET_PROTOCOL_FEATURES => {
                message.empty().map(|()| self.number(request, self.offer.protocol_features()))
            }
            req::SET_PROTOCOL_FEATURES => self.set_protocol_features(message),
            // Deprecated; front-ends that still send RESET_OWNER expect nothing of it.
            req::SET_OWNER | req::RESET_OWNER => message.empty().and(nothing),
            req::RESET_DEVICE => message.empty().map(|()| self.reset()),
            req::SET_MEM_TABLE => self.set_mem_table(message),
            req::GET_MAX_MEM_SLOTS => message.empty().map(|()| self.number(request, MAX_REGIONS as u64)),
            req::ADD_MEM_REG => self.add_mem_reg(message),
            req::REM_MEM_REG => self.rem_mem_reg(message),
            req::SET_VRING_NUM => self.set_vring_num(message),
            req::SET_VRING_ADDR => self.set_vring_addr(message),
            req::SET_VRING_BASE => self.set_vring_base(message),
            req::GET_VRING_BASE => self.get_vring_base(message),
            req::SET_VRING_KICK => self.set_vring_kick(message),
            req::SET_VRING_CALL => self.set_vring_call(message),
            req::SET_VRING_ERR => self.set_vring_err(message),
            req::SET_VRING_ENABLE => self.set_vring_enable(message),
            req::GET_QUEUE_NUM => message.empty().map(|()| self.number(request, u64::from(self.offer.queues))),
            req::GET_CONFIG => self.get_config(message),
            req::SET_CONFIG => self.set_config_byte(message),
            req::SET_BACKEND_REQ_FD => {
                self.need(protocol::BACKEND_REQ, "BACKEND_REQ", request)?;
                message.no_body()?;
                let channel = message.one_fd()?;
                trusted::channel(&channel)?;
                self.life.backend = Some(Arc::new(channel));
                nothing
            }
            req::GET_INFLIGHT_FD => self.get_inflight_fd(message),
            req::SET_INFLIGHT_FD => self.set_inflight_fd(message),
            req::SET_STATUS => {
                self.need(protocol::STATUS, "STATUS", request)?;
                message.no_fds()?;
                let status = message.number()? as u8;
                if status == 0 {
                    return Ok(self.reset());
                }
                self.life.status = status;
                nothing
            }
            req::GET_STATUS => message.empty().map(|()| self.number(request, u64::from(self.life.status))),
            _ => Err(Broken::Unsupported { request }),
        }
    }

    fn number(&self, request: u32, value: u64) -> Effect {
        Effect::Reply(Reply::number(request, value))
    }

    fn need(&self, bit: u64, feature: &'static str, request: u32) -> Result<(), Broken> {
        if self.speaks(bit) { Ok(()) } else { Err(Broken::NotNegotiated { request, feature }) }
    }

    /// True if a feature of the protocol is acknowledged.
    fn speaks(&self, bit: u64) -> bool {
        self.life.protocol_features & bit != 0
    }

    fn set_features(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        message.no_fds()?;
        let features = message.number()?;
        self.offer.check_features(features)?;
        if features != self.life.features
            && let Some(queue) = self.life.queues.iter().position(|setup| setup.started)
        {
            return Err(Broken::Running { request: message.request, queue: queue as u16 });
        }
        let before = self.writes_back();
        self.life.features = features;
        if !self.has(feature::PROTOCOL_FEATURES) {
            // There is no message to enable queues then.
            self.life.queues.iter_mut().for_each(|setup| setup.enabled = true);
        }
        Ok(Effect::Done(if self.writes_back() == before { Todo::Nothing } else { Todo::WriteCache }))
    }

    fn set_protocol_features(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        message.no_fds()?;
        let features = message.number()?;
        self.offer.check_protocol_features(features)?;
        self.life.protocol_features = features;
        Ok(Effect::Done(Todo::Nothing))
    }

    /// Returns queues and device to their initial state. The memory, the features of the protocol and the descriptors
    /// of interrupts stay, and so does the byte `writeback`: a front-end that only pauses the guest resets the status
    /// too, and the guest must not find a cache afterwards that it had turned off.
    fn reset(&mut self) -> Effect {
        let ran = self.life.queues.iter().any(|setup| setup.started);
        self.life.status = 0;
        self.life.features &= feature::PROTOCOL_FEATURES;
        for setup in &mut self.life.queues {
            // Some front-ends pass these two once, before the first start.
            let (call, err) = (setup.call.take(), setup.err.take());
            *setup = Setup { call, err, ..Setup::default() };
        }
        // Its marks are about the rings that were reset.
        self.life.inflight = None;
        self.area = None;
        Effect::Done(if ran { Todo::Reset } else { Todo::Nothing })
    }

    fn set_mem_table(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let request = message.request;
        let wrong = Broken::BodyLength { request, len: message.body.len() };
        let (table, regions) = TableBody::ref_from_prefix(message.body).map_err(|_| wrong)?;
        let bodies = <[RegionBody]>::ref_from_bytes(regions).map_err(|_| wrong)?;
        if bodies.len() != table.count as usize {
            return Err(wrong);
        }
        let fds = message.take_fds(bodies.len())?;
        let regions: Vec<_> = bodies.iter().map(spec_of).zip(fds.into_iter().map(Arc::new)).collect();
        self.replace_memory(self.memory.replaced(regions)?)
    }

    fn add_mem_reg(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        self.need(protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS", message.request)?;
        let body: SingleRegionBody = message.body()?;
        let file = Arc::new(message.one_fd()?);
        self.replace_memory(self.memory.added(spec_of(&body.region), file)?)
    }

    fn rem_mem_reg(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        self.need(protocol::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS", message.request)?;
        let body: SingleRegionBody = message.body()?;
        // Some front-ends send a descriptor, which is to be closed.
        if message.fds.len() > 1 {
            return Err(message.wrong_fds(0));
        }
        self.replace_memory(self.memory.removed(spec_of(&body.region))?)
    }

    fn replace_memory(&mut self, new: GuestMemory) -> Result<Effect, Broken> {
        let stays = |old| new.regions().iter().any(|region| Arc::ptr_eq(region, old));
        let removes = !self.memory.regions().iter().all(stays);
        self.set_memory(new);
        Ok(Effect::Done(Todo::Memory { removes }))
    }

    fn set_memory(&mut self, new: GuestMemory) {
        self.life.regions = new.regions().iter().map(|region| (region.spec(), region.file().clone())).collect();
        self.memory = Arc::new(new);
    }

    /// Returns a queue, by a number of a front-end.
    fn setup(&mut self, queue: u64, request: u32) -> Result<(u16, &mut Setup), Broken> {
        let queues = self.offer.queues;
        let setup = usize::try_from(queue).ok().and_then(|index| self.life.queues.get_mut(index));
        // The number fits: it is that of an existing queue.
        setup.map(|setup| (queue as u16, setup)).ok_or(Broken::NoSuchQueue { request, queue, queues })
    }

    /// Returns a queue that is not started, by a number of a front-end.
    fn stopped(&mut self, queue: u32, request: u32) -> Result<&mut Setup, Broken> {
        let (queue, setup) = self.setup(u64::from(queue), request)?;
        if setup.started { Err(Broken::Running { request, queue }) } else { Ok(setup) }
    }

    fn set_vring_num(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        message.no_fds()?;
        let StateBody { index, num } = message.body()?;
        if !queue::is_size(num) {
            return Err(Broken::QueueSize { size: num });
        }
        self.stopped(index, message.request)?.size = num as u16; // At most MAX_SIZE.
        Ok(Effect::Done(Todo::Nothing))
    }

    fn set_vring_addr(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        message.no_fds()?;
        let AddrBody { index, flags, descriptors, used, available, log: _ } = message.body()?;
        if flags != 0 {
            return Err(Broken::RingFlags { flags });
        }
        let (queue, setup) = self.setup(u64::from(index), message.request)?;
        let new = (descriptors, available, used);
        if setup.started && new != (setup.descriptors, setup.available, setup.used) {
            return Err(Broken::Running { request: message.request, queue });
        }
        (setup.descriptors, setup.available, setup.used) = new;
        Ok(Effect::Done(Todo::Nothing))
    }

    fn set_vring_base(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        message.no_fds()?;
        let StateBody { index, num } = message.body()?;
        let base = u16::try_from(num).map_err(|_| Broken::Base { base: num })?;
        self.stopped(index, message.request)?.base = base;
        Ok(Effect::Done(Todo::Nothing))
    }

    fn get_vring_base(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        message.no_fds()?;
        let StateBody { index, num: _ } = message.body()?;
        // Without a region there is no place to record requests.
        let drain = !self.speaks(protocol::GET_VRING_BASE_INFLIGHT) || self.area.is_none();
        let (queue, setup) = self.setup(u64::from(index), message.request)?;
        if setup.started {
            return Ok(Effect::Base { queue, drain });
        }
        let base = setup.base;
        Ok(Effect::Reply(self.base(queue, base)))
    }

    /// Returns the reply to GET_VRING_BASE for a queue that has stopped. `last_avail` is [`crate::Queue::last_avail`],
    /// or [`Setup::base`] if the queue could not be made.
    pub fn base(&mut self, queue: u16, last_avail: u16) -> Reply {
        if let Some(setup) = self.life.queues.get_mut(usize::from(queue)) {
            (setup.started, setup.base, setup.kick, setup.call) = (false, last_avail, None, None);
        }
        let body = StateBody { index: u32::from(queue), num: u32::from(last_avail) };
        Reply::new(req::GET_VRING_BASE, body.as_bytes())
    }

    /// Returns the queue and the descriptor of a SET_VRING_KICK, SET_VRING_CALL or SET_VRING_ERR.
    fn vring_fd(&mut self, message: &mut Message) -> Result<(u16, Option<Arc<OwnedFd>>), Broken> {
        let value = message.number()?;
        let fd = if value & vring_fd::NO_FD == 0 {
            let fd = message.one_fd()?;
            trusted::eventfd(&fd)?;
            Some(Arc::new(fd))
        } else {
            message.no_fds()?;
            None
        };
        // Bits above the flag are reserved.
        let (queue, _) = self.setup(value & vring_fd::INDEX, message.request)?;
        Ok((queue, fd))
    }

    fn set_vring_kick(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let (queue, fd) = self.vring_fd(message)?;
        let Some(fd) = fd else { return Err(Broken::NoKick { queue }) };
        let setup = &mut self.life.queues[usize::from(queue)];
        if setup.size == 0 {
            return Err(Broken::NotSetUp { queue });
        }
        setup.kick = Some(fd);
        let ran = std::mem::replace(&mut setup.started, true);
        Ok(Effect::Done(if ran { Todo::Kick { queue } } else { Todo::Start { queue } }))
    }

    fn set_vring_call(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let (queue, fd) = self.vring_fd(message)?;
        let setup = &mut self.life.queues[usize::from(queue)];
        setup.call = fd;
        Ok(Effect::Done(if setup.started { Todo::Call { queue } } else { Todo::Nothing }))
    }

    fn set_vring_err(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let (queue, fd) = self.vring_fd(message)?;
        self.life.queues[usize::from(queue)].err = fd;
        Ok(Effect::Done(Todo::Nothing))
    }

    fn set_vring_enable(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let request = message.request;
        if !self.has(feature::PROTOCOL_FEATURES) {
            return Err(Broken::NotNegotiated { request, feature: "VHOST_USER_F_PROTOCOL_FEATURES" });
        }
        message.no_fds()?;
        let StateBody { index, num } = message.body()?;
        if num > 1 {
            return Err(Broken::Enable { value: num });
        }
        let (queue, setup) = self.setup(u64::from(index), request)?;
        let changed = std::mem::replace(&mut setup.enabled, num == 1) != setup.enabled;
        Ok(Effect::Done(if changed && setup.started { Todo::Enable { queue } } else { Todo::Nothing }))
    }

    /// Returns the beginning and the payload of a GET_CONFIG or SET_CONFIG, and the range of the space.
    fn config_body<'a>(&self, message: &Message<'a>) -> Result<(ConfigBody, &'a [u8], usize), Broken> {
        let request = message.request;
        self.need(protocol::CONFIG, "CONFIG", request)?;
        message.no_fds()?;
        let wrong = Broken::BodyLength { request, len: message.body.len() };
        let (body, payload) = ConfigBody::read_from_prefix(message.body).map_err(|_| wrong)?;
        if payload.len() != body.size as usize {
            return Err(wrong);
        }
        Ok((body, payload, body.offset as usize))
    }

    fn get_config(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let (body, payload, start) = self.config_body(message)?;
        let end = start.saturating_add(payload.len());
        if end > MAX_CONFIG {
            // An empty body says that there are no such bytes.
            return Ok(Effect::Reply(Reply::new(message.request, &[])));
        }
        let mut reply = body.as_bytes().to_vec();
        reply.extend_from_slice(&self.space()[start..end]);
        Ok(Effect::Reply(Reply::new(message.request, &reply)))
    }

    fn space(&self) -> [u8; MAX_CONFIG] {
        self.offer.config.space(self.offer.queues, self.life.writeback)
    }

    fn set_config_byte(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let (ConfigBody { offset, size, .. }, payload, start) = self.config_body(message)?;
        let refused = Broken::Config { offset, size };
        let end = start.checked_add(payload.len()).filter(|end| *end <= MAX_CONFIG).ok_or(refused)?;
        let mut space = self.space();
        let old = space;
        space[start..end].copy_from_slice(payload);
        let writeback = std::mem::replace(&mut space[block::WRITEBACK_OFFSET], old[block::WRITEBACK_OFFSET]);
        // A front-end may write a larger range, if it changes nothing else.
        if space != old || writeback > 1 {
            return Err(refused);
        }
        let before = self.writes_back();
        self.life.writeback = writeback == 1;
        Ok(Effect::Done(if self.writes_back() == before { Todo::Nothing } else { Todo::WriteCache }))
    }

    fn inflight_body(&self, message: &Message) -> Result<InflightBody, Broken> {
        let request = message.request;
        self.need(protocol::INFLIGHT_SHMFD, "INFLIGHT_SHMFD", request)?;
        let mut bytes = [0; size_of::<InflightBody>()];
        if ![INFLIGHT_UNPADDED, bytes.len()].contains(&message.body.len()) {
            return Err(Broken::BodyLength { request, len: message.body.len() });
        }
        bytes[..message.body.len()].copy_from_slice(message.body);
        let body: InflightBody = zerocopy::transmute!(bytes);
        if body.queues > self.offer.queues {
            return Err(Broken::InflightShape { queues: body.queues, size: body.queue_size });
        }
        Ok(body)
    }

    fn get_inflight_fd(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let body = self.inflight_body(message)?;
        message.no_fds()?;
        // The region is used after SET_INFLIGHT_FD, which gives it back.
        let area = inflight::Area::create(body.queues, body.queue_size)?;
        let shape = area.shape();
        let body = InflightBody { len: shape.len, offset: shape.offset, ..body };
        let mut reply = Reply::new(message.request, &body.as_bytes()[..message.body.len()]);
        reply.fd = Some(area.file().clone());
        Ok(Effect::Reply(reply))
    }

    fn set_inflight_fd(&mut self, message: &mut Message) -> Result<Effect, Broken> {
        let body = self.inflight_body(message)?;
        let file = Arc::new(message.one_fd()?);
        if let Some(queue) = self.life.queues.iter().position(|setup| setup.started) {
            return Err(Broken::Running { request: message.request, queue: queue as u16 });
        }
        let InflightBody { len, offset, queues, queue_size, .. } = body;
        let shape = inflight::Shape { len, offset, queues, queue_size };
        let area = inflight::Area::map(file, shape)?;
        self.life.inflight = Some((shape, area.file().clone()));
        self.area = Some(area);
        Ok(Effect::Done(Todo::Nothing))
    }

    /// Turns the answer of a step into one that says that the action failed. Returns None if the front-end expects no
    /// answer that can say so; the connection is to be closed then.
    pub fn failed(&self, answer: Answer) -> Option<Reply> {
        match answer {
            Answer::Reply(mut reply) if reply.ack => {
                let body = reply.bytes.len() - size_of::<u64>();
                reply.bytes[body..].copy_from_slice(&1u64.to_ne_bytes());
                Some(reply)
            }
            _ => None,
        }
    }

    /// Returns the features that the front-end has acknowledged.
    pub fn features(&self) -> u64 {
        self.life.features
    }

    /// True if a feature ([`crate::wire::feature`]) is acknowledged.
    pub fn has(&self, bit: u64) -> bool {
        self.life.features & bit != 0
    }

    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    pub fn queue(&self, queue: u16) -> Option<&Setup> {
        self.life.queues.get(usize::from(queue))
    }

    /// Returns the in-flight slots of a queue, if the front-end has given a region that has them.
    pub fn inflight(&self, queue: u16) -> Option<inflight::Slots> {
        self.area.as_ref()?.slots(queue)
    }

    /// True if completed writes may stay in a volatile cache until the guest flushes. Else every write is to be durable
    /// when it completes. A driver that did not acknowledge FLUSH cannot flush; one that acknowledged CONFIG_WCE has
    /// chosen in the configuration space.
    pub fn writes_back(&self) -> bool {
        self.has(feature::BLK_FLUSH) && (!self.has(feature::BLK_CONFIG_WCE) || self.life.writeback)
    }

    /// Returns the message for the back-end channel that announces a new configuration, if there is such a channel.
    pub fn config_changed(&self) -> Option<Vec<u8>> {
        self.life.backend.as_ref()?;
        self.speaks(protocol::CONFIG).then(|| encode(backend_req::CONFIG_CHANGE_MSG, flag::VERSION, &[]))
    }

    /// Returns the socket of the back-end channel.
    pub fn backend_channel(&self) -> Option<BorrowedFd<'_>> {
        self.life.backend.as_ref().map(|fd| fd.as_fd())
    }
}

/// True if the message can be refused without doubt about the state that both ends have.
fn is_refusal(error: &Broken) -> bool {
    matches!(
        error,
        Broken::Unsupported { .. }
            | Broken::Config { .. }
            | Broken::TooManyRegions { .. }
            | Broken::NoSuchRegion { .. }
            | Broken::Map(_)
            | Broken::TooManyMappings { .. }
    )
}

fn spec_of(body: &RegionBody) -> RegionSpec {
    let RegionBody { guest, size, user, offset } = *body;
    RegionSpec { guest, size, user, offset }
}

/// A message that is being processed.
struct Message<'a> {
    request: u32,
    body: &'a [u8],
    /// Descriptors that nobody has taken yet; the others are closed with it.
    fds: Vec<OwnedFd>,
}

impl Message<'_> {
    /// Returns the body, which has one form and one length.
    fn body<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<T, Broken> {
        T::read_from_bytes(self.body).map_err(|_| Broken::BodyLength { request: self.request, len: self.body.len() })
    }

    fn number(&self) -> Result<u64, Broken> {
        self.body()
    }

    fn no_body(&self) -> Result<(), Broken> {
        if self.body.is_empty() {
            return Ok(());
        }
        Err(Broken::BodyLength { request: self.request, len: self.body.len() })
    }

    fn empty(&self) -> Result<(), Broken> {
        self.no_body()?;
        self.no_fds()
    }

    fn wrong_fds(&self, wanted: usize) -> Broken {
        Broken::Descriptors { request: self.request, got: self.fds.len(), wanted }
    }

    fn no_fds(&self) -> Result<(), Broken> {
        if self.fds.is_empty() { Ok(()) } else { Err(self.wrong_fds(0)) }
    }

    fn take_fds(&mut self, wanted: usize) -> Result<Vec<OwnedFd>, Broken> {
        if self.fds.len() != wanted {
            return Err(self.wrong_fds(wanted));
        }
        Ok(std::mem::take(&mut self.fds))
    }

    fn one_fd(&mut self) -> Result<OwnedFd, Broken> {
        let mut fds = self.take_fds(1)?;
        Ok(fds.remove(0))
    }
}

#[cfg(test)]
mod tests;
