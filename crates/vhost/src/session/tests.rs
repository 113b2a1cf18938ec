//! Tests of the negotiation, message by message.

use std::io::Read;

use proptest::prelude::*;

use super::*;
use crate::block::{Config, Limits};
use crate::rig::{REGION, memfd, spec};

fn config() -> Config {
    let limits = Limits { max_sectors: 1024, alignment: 8, may_unmap: false };
    Config {
        size: 1 << 30,
        block_bytes: 512,
        physical_bytes: 4096,
        optimal_bytes: 0,
        read_only: false,
        writeback: true,
        discard: Some(limits),
        write_zeroes: Some(limits),
    }
}

pub(super) fn offer() -> Offer {
    Offer { queues: 4, in_order: false, config: config() }
}

pub(super) fn fd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).expect("an eventfd")
}

/// The front-end's end of a session.
pub(super) struct Front {
    pub(super) session: Session,
}

impl Front {
    fn new() -> Front {
        Front { session: Session::new(offer()) }
    }

    /// A front-end that has acknowledged everything.
    pub(super) fn ready() -> Front {
        let mut front = Front::new();
        let (features, protocol) = (front.session.offer().features(), front.session.offer().protocol_features());
        front.number(req::SET_PROTOCOL_FEATURES, protocol).expect("offered");
        front.number(req::SET_FEATURES, features).expect("offered");
        front
    }

    pub(super) fn send(
        &mut self,
        request: u32,
        need_reply: bool,
        body: &[u8],
        fds: Vec<OwnedFd>,
    ) -> Result<Step, Broken> {
        let flags = flag::VERSION | if need_reply { flag::NEED_REPLY } else { 0 };
        let bytes = encode(request, flags, body);
        let mut header = [0; HEADER];
        header.copy_from_slice(&bytes[..HEADER]);
        self.session.message(&Session::header(header)?, body, fds)
    }

    /// Sends a message whose answer is an acknowledgement, and returns the action.
    pub(super) fn acked(&mut self, request: u32, body: &[u8], fds: Vec<OwnedFd>) -> Result<Todo, Broken> {
        let step = self.send(request, true, body, fds)?;
        let Answer::Reply(reply) = step.answer else { panic!("{step:?} has no acknowledgement") };
        assert_eq!(reply.bytes, encode(request, flag::VERSION | flag::REPLY, &0u64.to_ne_bytes()));
        Ok(step.todo)
    }

    /// Sends a message that is refused, and returns the reason.
    fn refused(&mut self, request: u32, body: &[u8], fds: Vec<OwnedFd>) -> Broken {
        let step = self.send(request, true, body, fds).expect("a refusal does not break the connection");
        let Answer::Reply(reply) = step.answer else { panic!("{step:?} has no acknowledgement") };
        assert_eq!(reply.bytes, encode(request, flag::VERSION | flag::REPLY, &1u64.to_ne_bytes()));
        assert_eq!(step.todo, Todo::Nothing);
        step.refused.expect("a reason")
    }

    pub(super) fn number(&mut self, request: u32, value: u64) -> Result<Todo, Broken> {
        Ok(self.send(request, false, &value.to_ne_bytes(), vec![])?.todo)
    }

    pub(super) fn state(&mut self, request: u32, index: u32, num: u32) -> Result<Todo, Broken> {
        Ok(self.send(request, false, StateBody { index, num }.as_bytes(), vec![])?.todo)
    }

    pub(super) fn descriptor(&mut self, request: u32, value: u64) -> Result<Todo, Broken> {
        Ok(self.send(request, false, &value.to_ne_bytes(), vec![fd()])?.todo)
    }

    /// Sends a message without a body, and returns the body of the reply.
    fn get(&mut self, request: u32, body: &[u8]) -> Vec<u8> {
        let step = self.send(request, false, body, vec![]).expect("a reply");
        assert_eq!(step.todo, Todo::Nothing);
        reply_body(request, step.answer)
    }

    fn get_number(&mut self, request: u32) -> u64 {
        u64::from_ne_bytes(self.get(request, &[]).try_into().expect("eight bytes"))
    }

    fn start(&mut self, queue: u32) {
        self.state(req::SET_VRING_NUM, queue, 128).expect("a size");
        self.addr(queue, 0, 0x1000).expect("addresses");
        self.state(req::SET_VRING_BASE, queue, 5).expect("an index");
        let todo = self.descriptor(req::SET_VRING_KICK, u64::from(queue));
        assert_eq!(todo, Ok(Todo::Start { queue: queue as u16 }));
    }

    fn addr(&mut self, index: u32, flags: u32, used: u64) -> Result<Todo, Broken> {
        let body = AddrBody { index, flags, descriptors: 0x3000, used, available: 0x2000, log: 7 };
        Ok(self.send(req::SET_VRING_ADDR, false, body.as_bytes(), vec![])?.todo)
    }

    pub(super) fn config(&mut self, request: u32, offset: u32, size: u32, payload: &[u8]) -> Result<Step, Broken> {
        let mut body = ConfigBody { offset, size, flags: 0 }.as_bytes().to_vec();
        body.extend_from_slice(payload);
        self.send(request, true, &body, vec![])
    }
}

fn reply_body(request: u32, answer: Answer) -> Vec<u8> {
    let Answer::Reply(reply) = answer else { panic!("{answer:?} is no reply") };
    let body = reply.bytes[HEADER..].to_vec();
    assert_eq!(reply.bytes, encode(request, flag::VERSION | flag::REPLY, &body));
    body
}

pub(super) fn table(regions: &[RegionSpec]) -> Vec<u8> {
    let mut body = TableBody { count: regions.len() as u32, padding: 0 }.as_bytes().to_vec();
    regions.iter().for_each(|spec| body.extend_from_slice(region_body(spec).as_bytes()));
    body
}

fn region_body(spec: &RegionSpec) -> RegionBody {
    RegionBody { guest: spec.guest, size: spec.size, user: spec.user, offset: spec.offset }
}

fn single(index: u64) -> Vec<u8> {
    SingleRegionBody { padding: 0, region: region_body(&spec(index)) }.as_bytes().to_vec()
}

#[test]
fn features_are_offered_as_the_device_has_them() {
    let mut front = Front::new();
    let features = front.get_number(req::GET_FEATURES);
    for bit in [feature::VERSION_1, feature::BLK_DISCARD, feature::BLK_WRITE_ZEROES, feature::PROTOCOL_FEATURES] {
        assert_ne!(features & bit, 0);
    }
    assert_eq!(features & (feature::IN_ORDER | feature::BLK_RO | 1 << 34 | 1 << 26), 0);
    let config = Config { read_only: true, ..config() };
    let other = Offer { in_order: true, config, ..offer() }.features();
    assert_eq!(other & (feature::IN_ORDER | feature::BLK_RO), feature::IN_ORDER | feature::BLK_RO);
    assert_eq!(other & (feature::BLK_DISCARD | feature::BLK_WRITE_ZEROES), 0);
    assert_eq!(front.get_number(req::GET_PROTOCOL_FEATURES), 0x11_b229);
    assert_eq!(front.get_number(req::GET_QUEUE_NUM), 4);
    assert_eq!(front.get_number(req::GET_MAX_MEM_SLOTS), 64);
}

#[test]
fn features_that_were_not_offered_break_the_connection() {
    let mut front = Front::new();
    assert_eq!(front.number(req::SET_FEATURES, 1 << 34), Err(Broken::Features { unknown: 1 << 34 }));
    let unknown = Err(Broken::ProtocolFeatures { unknown: 1 << 14 });
    assert_eq!(front.number(req::SET_PROTOCOL_FEATURES, 1 << 14), unknown);
    let alone = protocol::GET_VRING_BASE_INFLIGHT;
    assert_eq!(front.number(req::SET_PROTOCOL_FEATURES, alone), Err(Broken::InflightFeature));
    assert_eq!(front.session.features(), 0);
}

#[test]
fn messages_are_acknowledged_if_that_is_negotiated_and_asked_for() {
    let mut front = Front::new();
    let step = front.send(req::SET_OWNER, true, &[], vec![]).expect("a message");
    assert!(matches!(step.answer, Answer::None), "not negotiated");
    let protocol = protocol::REPLY_ACK.to_ne_bytes();
    assert_eq!(front.acked(req::SET_PROTOCOL_FEATURES, &protocol, vec![]), Ok(Todo::Nothing));
    assert_eq!(front.acked(req::SET_OWNER, &[], vec![]), Ok(Todo::Nothing));
    let step = front.send(req::SET_OWNER, false, &[], vec![]).expect("a message");
    assert!(matches!(step.answer, Answer::None), "not asked for");
    // A message with a reply of its own has only this one.
    let step = front.send(req::GET_QUEUE_NUM, true, &[], vec![]).expect("a message");
    assert_eq!(reply_body(req::GET_QUEUE_NUM, step.answer), 4u64.to_ne_bytes());
}

#[test]
fn an_action_that_fails_turns_the_acknowledgement() {
    let mut front = Front::ready();
    let step = front.send(req::SET_OWNER, true, &[], vec![]).expect("a message");
    let reply = front.session.failed(step.answer).expect("an acknowledgement");
    assert_eq!(reply.bytes, encode(req::SET_OWNER, flag::VERSION | flag::REPLY, &1u64.to_ne_bytes()));
    assert!(front.session.failed(Answer::None).is_none());
    let step = front.send(req::GET_QUEUE_NUM, true, &[], vec![]).expect("a message");
    assert!(front.session.failed(step.answer).is_none());
}

#[test]
fn unknown_messages_are_refused_with_their_name() {
    let mut front = Front::ready();
    for request in [0, 6, 7, 19, 22, 28, 33, 35, 41, 44, 45, u32::MAX] {
        assert_eq!(front.refused(request, &[1, 2, 3], vec![fd()]), Broken::Unsupported { request });
        let broken = front.send(request, false, &[], vec![]).err();
        assert_eq!(broken, Some(Broken::Unsupported { request }), "without a reply nobody would know");
    }
}

#[test]
fn bodies_of_the_wrong_length_break_the_connection() {
    let fixed: [(u32, usize); 16] = [
        (req::GET_FEATURES, 0),
        (req::SET_FEATURES, 8),
        (req::SET_OWNER, 0),
        (req::SET_VRING_NUM, 8),
        (req::SET_VRING_ADDR, 40),
        (req::GET_VRING_BASE, 8),
        (req::SET_VRING_KICK, 8),
        (req::GET_QUEUE_NUM, 0),
        (req::SET_VRING_ENABLE, 8),
        (req::SET_BACKEND_REQ_FD, 0),
        (req::ADD_MEM_REG, 40),
        (req::REM_MEM_REG, 40),
        (req::SET_STATUS, 8),
        (req::GET_STATUS, 0),
        (req::RESET_DEVICE, 0),
        (req::GET_CONFIG, 12),
    ];
    for (request, len) in fixed {
        for wrong in [len + 1, len + 8, len.wrapping_sub(1)].into_iter().filter(|wrong| *wrong < 200) {
            let error = Front::ready().send(request, true, &vec![0; wrong], vec![]).err();
            assert_eq!(error, Some(Broken::BodyLength { request, len: wrong }), "{request} {wrong}");
        }
    }
    let header = Header { request: req::GET_FEATURES, need_reply: false, len: 3 };
    let error = Front::new().session.message(&header, &[], vec![]).err();
    assert_eq!(error, Some(Broken::BodyLength { request: req::GET_FEATURES, len: 0 }));
}

#[test]
fn a_wrong_number_of_descriptors_breaks_the_connection() {
    let fds = |count: usize| (0..count).map(|_| fd()).collect::<Vec<_>>();
    let number = 0u64.to_ne_bytes();
    let state = [0; 8];
    let cases: [(u32, &[u8], usize, usize); 12] = [
        (req::GET_FEATURES, &[], 1, 0),
        (req::SET_FEATURES, &number, 1, 0),
        (req::SET_VRING_NUM, &state, 1, 0),
        (req::SET_VRING_KICK, &number, 0, 1),
        (req::SET_VRING_CALL, &number, 2, 1),
        (req::SET_VRING_CALL, &[0, 1, 0, 0, 0, 0, 0, 0], 1, 0),
        (req::SET_BACKEND_REQ_FD, &[], 0, 1),
        (req::SET_INFLIGHT_FD, &[0; 24], 0, 1),
        (req::GET_INFLIGHT_FD, &[0; 24], 1, 0),
        (req::ADD_MEM_REG, &[0; 40], 2, 1),
        (req::REM_MEM_REG, &[0; 40], 2, 0),
        (req::SET_MEM_TABLE, &table(&[spec(0), spec(1)]), 1, 2),
    ];
    for (request, body, got, wanted) in cases {
        let error = Front::ready().send(request, true, body, fds(got)).err();
        assert_eq!(error, Some(Broken::Descriptors { request, got, wanted }));
    }
}

#[test]
fn descriptors_that_are_not_used_are_closed() {
    let mut front = Front::ready();
    let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
    front.send(req::SET_OWNER, false, &[], vec![writer]).expect_err("a descriptor too many");
    let mut bytes = Vec::new();
    std::fs::File::from(reader).read_to_end(&mut bytes).expect("the other end is closed");
}

#[test]
fn a_queue_is_set_up_started_and_stopped() {
    let mut front = Front::ready();
    front.start(1);
    let setup = front.session.queue(1).expect("a queue");
    assert_eq!((setup.size, setup.base, setup.started, setup.enabled), (128, 5, true, false));
    assert_eq!((setup.descriptors, setup.available, setup.used), (0x3000, 0x2000, 0x1000));
    assert_eq!(front.state(req::SET_VRING_ENABLE, 1, 1), Ok(Todo::Enable { queue: 1 }));
    assert_eq!(front.state(req::SET_VRING_ENABLE, 1, 1), Ok(Todo::Nothing));
    assert_eq!(front.descriptor(req::SET_VRING_CALL, 1), Ok(Todo::Call { queue: 1 }));
    assert_eq!(front.descriptor(req::SET_VRING_KICK, 1), Ok(Todo::Kick { queue: 1 }));
    assert_eq!(front.descriptor(req::SET_VRING_ERR, 1), Ok(Todo::Nothing));
    assert!(front.session.queue(1).is_some_and(|setup| setup.call.is_some() && setup.err.is_some()));
    // A driver that polls for used elements.
    assert_eq!(front.number(req::SET_VRING_CALL, 0x101), Ok(Todo::Call { queue: 1 }));
    assert!(front.session.queue(1).is_some_and(|setup| setup.call.is_none()));

    let step =
        front.send(req::GET_VRING_BASE, true, StateBody { index: 1, num: 0 }.as_bytes(), vec![]).expect("a queue");
    assert_eq!(step.todo, Todo::Stop { queue: 1, drain: true });
    assert!(matches!(step.answer, Answer::Base { queue: 1 }));
    let reply = front.session.base(1, 77);
    let body = StateBody { index: 1, num: 77 };
    assert_eq!(reply.bytes, encode(req::GET_VRING_BASE, flag::VERSION | flag::REPLY, body.as_bytes()));
    let setup = front.session.queue(1).expect("a queue");
    assert!(!setup.started && setup.kick.is_none() && setup.base == 77);
    // A queue that is stopped answers at once.
    assert_eq!(front.get(req::GET_VRING_BASE, body.as_bytes()), body.as_bytes());
    front.start(1);
}

#[test]
fn queues_start_enabled_without_protocol_features() {
    for features in [feature::VERSION_1, 0] {
        let mut front = Front::new();
        front.number(req::SET_FEATURES, features).expect("offered");
        front.start(0);
        assert!(front.session.queue(0).is_some_and(|setup| setup.enabled));
        let error = front.state(req::SET_VRING_ENABLE, 0, 1);
        assert!(matches!(error, Err(Broken::NotNegotiated { .. })));
    }
}

#[test]
fn a_queue_that_runs_cannot_be_changed() {
    let mut front = Front::ready();
    front.start(0);
    let running = |request| Err(Broken::Running { request, queue: 0 });
    assert_eq!(front.state(req::SET_VRING_NUM, 0, 64), running(req::SET_VRING_NUM));
    assert_eq!(front.state(req::SET_VRING_BASE, 0, 0), running(req::SET_VRING_BASE));
    assert_eq!(front.addr(0, 0, 0x5000), running(req::SET_VRING_ADDR));
    assert_eq!(front.addr(0, 0, 0x1000), Ok(Todo::Nothing), "the same addresses");
    assert_eq!(front.number(req::SET_FEATURES, 0), running(req::SET_FEATURES));
    let same = front.session.features();
    assert_eq!(front.number(req::SET_FEATURES, same), Ok(Todo::Nothing));
    assert_eq!(front.state(req::SET_VRING_NUM, 1, 64), Ok(Todo::Nothing), "another queue");
}

#[test]
fn values_that_a_queue_cannot_have_break_the_connection() {
    let mut front = Front::ready();
    for size in [0, 1, 3, 100, 2048, 1 << 16, 1 << 31] {
        assert_eq!(front.state(req::SET_VRING_NUM, 0, size), Err(Broken::QueueSize { size }));
    }
    for size in [2, 1024] {
        assert_eq!(front.state(req::SET_VRING_NUM, 0, size), Ok(Todo::Nothing));
    }
    for request in [req::SET_VRING_NUM, req::SET_VRING_BASE, req::SET_VRING_ENABLE, req::GET_VRING_BASE] {
        for queue in [4, u32::MAX] {
            let num = if request == req::SET_VRING_NUM { 2 } else { 0 };
            let missing = Broken::NoSuchQueue { request, queue: u64::from(queue), queues: 4 };
            assert_eq!(front.state(request, queue, num), Err(missing));
        }
    }
    let missing = Broken::NoSuchQueue { request: req::SET_VRING_KICK, queue: 4, queues: 4 };
    assert_eq!(front.descriptor(req::SET_VRING_KICK, 4), Err(missing));
    assert_eq!(front.state(req::SET_VRING_BASE, 0, 65536), Err(Broken::Base { base: 65536 }));
    assert_eq!(front.addr(0, 1, 0), Err(Broken::RingFlags { flags: 1 }));
    assert_eq!(front.state(req::SET_VRING_ENABLE, 0, 2), Err(Broken::Enable { value: 2 }));
    assert_eq!(front.number(req::SET_VRING_KICK, 0x100), Err(Broken::NoKick { queue: 0 }));
    assert_eq!(front.descriptor(req::SET_VRING_KICK, 3), Err(Broken::NotSetUp { queue: 3 }));
}

#[test]
fn memory_is_replaced_extended_and_reduced() {
    let mut front = Front::ready();
    let fds = || vec![memfd(REGION), memfd(REGION)];
    let todo = front.acked(req::SET_MEM_TABLE, &table(&[spec(0), spec(1)]), fds());
    assert_eq!(todo, Ok(Todo::Memory { removes: false }));
    let todo = front.acked(req::ADD_MEM_REG, &single(2), vec![memfd(REGION)]);
    assert_eq!(todo, Ok(Todo::Memory { removes: false }));
    assert_eq!(front.session.memory().regions().len(), 3);
    assert_eq!(front.session.life().regions.len(), 3);
    let todo = front.acked(req::REM_MEM_REG, &single(1), vec![fd()]);
    assert_eq!(todo, Ok(Todo::Memory { removes: true }));
    let same = front.session.life().regions[0].1.try_clone().expect("dup");
    let todo = front.acked(req::SET_MEM_TABLE, &table(&[spec(0), spec(1)]), vec![same, memfd(REGION)]);
    assert_eq!(todo, Ok(Todo::Memory { removes: true }), "region 2 is gone");
    assert_eq!(front.refused(req::REM_MEM_REG, &single(2), vec![]), Broken::NoSuchRegion { guest: spec(2).guest });
}

#[test]
fn memory_that_cannot_be_breaks_the_connection_and_changes_nothing() {
    let mut front = Front::ready();
    front.acked(req::ADD_MEM_REG, &single(0), vec![memfd(REGION)]).expect("a region");
    let error = front.acked(req::ADD_MEM_REG, &single(1), vec![memfd(REGION - 1)]).err();
    assert_eq!(error, Some(Broken::FileTooShort { size: REGION - 1, needed: REGION }));
    let error = front.acked(req::ADD_MEM_REG, &single(0), vec![memfd(REGION)]).err();
    assert!(matches!(error, Some(Broken::RegionOverlaps { .. })));
    let mut body = table(&[spec(0), spec(1)]);
    body[0] = 1;
    let error = front.acked(req::SET_MEM_TABLE, &body, vec![fd(), fd()]).err();
    assert_eq!(error, Some(Broken::BodyLength { request: req::SET_MEM_TABLE, len: 72 }));
    assert_eq!(front.session.memory().regions().len(), 1);
    let mut without = Front::new();
    let error = without.send(req::ADD_MEM_REG, false, &single(0), vec![memfd(REGION)]).err();
    assert!(matches!(error, Some(Broken::NotNegotiated { .. })));
}

#[test]
fn the_configuration_is_read_in_any_part_and_follows_a_resize() {
    let mut front = Front::ready();
    let read = |front: &mut Front, offset: u32, size: u32| {
        let step = front.config(req::GET_CONFIG, offset, size, &vec![0; size as usize]).expect("a reply");
        reply_body(req::GET_CONFIG, step.answer)
    };
    let whole = read(&mut front, 0, 256);
    assert_eq!(whole[12..20], (2u64 << 20).to_le_bytes());
    assert_eq!(read(&mut front, 34, 2)[12..], [4, 0]);
    assert_eq!(read(&mut front, 255, 1)[12..], [0]);
    assert!(read(&mut front, 256, 1).is_empty());
    assert!(read(&mut front, u32::MAX, 200).is_empty());
    front.session.set_config(Config { size: 1 << 20, ..config() });
    assert_eq!(read(&mut front, 0, 8)[12..], 2048u64.to_le_bytes());
    let error = front.config(req::GET_CONFIG, 0, 8, &[0; 7]).err();
    assert_eq!(error, Some(Broken::BodyLength { request: req::GET_CONFIG, len: 19 }));
}

#[test]
fn only_the_byte_of_the_cache_can_be_written() {
    let mut front = Front::ready();
    assert!(front.session.writes_back());
    let mut write = |offset: u32, payload: &[u8]| {
        let step = front.config(req::SET_CONFIG, offset, payload.len() as u32, payload).expect("an answer");
        (step.refused.is_none(), step.todo, front.session.writes_back())
    };
    assert_eq!(write(32, &[0]), (true, Todo::WriteCache, false));
    assert_eq!(write(32, &[0]), (true, Todo::Nothing, false));
    assert_eq!(write(31, &[0, 1, 0]), (true, Todo::WriteCache, true));
    assert_eq!(write(32, &[2]), (false, Todo::Nothing, true));
    assert_eq!(write(0, &[9]), (false, Todo::Nothing, true));
    assert_eq!(write(31, &[9, 0]), (false, Todo::Nothing, true));
    assert_eq!(write(255, &[0, 0]), (false, Todo::Nothing, true));
    assert_eq!(write(u32::MAX, &[0]), (false, Todo::Nothing, true));
}

#[test]
fn the_cache_follows_the_features_that_the_driver_has() {
    let mut front = Front::new();
    assert!(!front.session.writes_back());
    let (flush, wce) = (feature::BLK_FLUSH, feature::BLK_CONFIG_WCE);
    for (features, writes_back) in [(flush, true), (wce, false), (0, false), (flush | wce, true)] {
        let before = front.session.writes_back();
        let todo = front.number(req::SET_FEATURES, features).expect("offered");
        assert_eq!(front.session.writes_back(), writes_back, "{features:#x}");
        assert_eq!(todo == Todo::WriteCache, before != writes_back);
    }
    let through = Offer { config: Config { writeback: false, ..config() }, ..offer() };
    let mut front = Front { session: Session::new(through) };
    front.number(req::SET_FEATURES, flush | wce).expect("offered");
    assert!(!front.session.writes_back());
}

#[test]
fn a_new_configuration_is_announced_on_the_channel_of_the_back_end() {
    let mut front = Front::ready();
    assert!(front.session.config_changed().is_none() && front.session.backend_channel().is_none());
    let (channel, _other) = std::os::unix::net::UnixStream::pair().expect("a pair");
    assert_eq!(front.acked(req::SET_BACKEND_REQ_FD, &[], vec![channel.into()]), Ok(Todo::Nothing));
    assert!(front.session.backend_channel().is_some());
    let expected = [2u32, 1, 0].map(u32::to_ne_bytes).concat();
    assert_eq!(front.session.config_changed(), Some(expected));
    let error = Front::new().send(req::SET_BACKEND_REQ_FD, false, &[], vec![fd()]).err();
    assert!(matches!(error, Some(Broken::NotNegotiated { feature: "BACKEND_REQ", .. })));
}

#[test]
fn an_in_flight_region_is_made_and_given_back() {
    let mut front = Front::ready();
    let body = InflightBody { len: 0, offset: 0, queues: 2, queue_size: 128, padding: 0 };
    for len in [20, 24] {
        let step = front.send(req::GET_INFLIGHT_FD, false, &body.as_bytes()[..len], vec![]).expect("a region");
        let Answer::Reply(reply) = step.answer else { panic!("no reply") };
        assert_eq!(reply.bytes.len(), HEADER + len);
        let file = reply.fd.expect("a descriptor").try_clone().expect("dup");
        assert!(front.session.inflight(0).is_none());
        assert_eq!(front.acked(req::SET_INFLIGHT_FD, &reply.bytes[HEADER..], vec![file]), Ok(Todo::Nothing));
        assert!(front.session.inflight(1).is_some() && front.session.inflight(2).is_none());
        front.number(req::SET_STATUS, 0).expect("a reset");
    }
    let many = InflightBody { queues: 5, ..body };
    let error = front.send(req::GET_INFLIGHT_FD, false, many.as_bytes(), vec![]).err();
    assert_eq!(error, Some(Broken::InflightShape { queues: 5, size: 128 }));
    let long = InflightBody { len: 1 << 40, ..body };
    let error = front.send(req::SET_INFLIGHT_FD, false, long.as_bytes(), vec![fd()]).err();
    assert_eq!(error, Some(Broken::NotMemory));
}

#[test]
fn a_stop_leaves_requests_in_flight_only_where_they_are_recorded() {
    let stop = |front: &mut Front| {
        front.start(0);
        let todo = front.state(req::GET_VRING_BASE, 0, 0).expect("a queue");
        front.session.base(0, 5);
        todo
    };
    let mut front = Front::ready();
    assert_eq!(stop(&mut front), Todo::Stop { queue: 0, drain: true }, "no region");
    let body = InflightBody { len: 4096, offset: 0, queues: 1, queue_size: 128, padding: 0 };
    front.acked(req::SET_INFLIGHT_FD, body.as_bytes(), vec![memfd(4096)]).expect("a region");
    assert_eq!(stop(&mut front), Todo::Stop { queue: 0, drain: false });
    front.number(req::SET_PROTOCOL_FEATURES, protocol::INFLIGHT_SHMFD).expect("offered");
    assert_eq!(stop(&mut front), Todo::Stop { queue: 0, drain: true }, "not negotiated");
}

#[test]
fn a_reset_stops_all_queues_and_keeps_memory_protocol_and_cache() {
    for reset in [req::RESET_DEVICE, req::SET_STATUS] {
        let mut front = Front::ready();
        front.acked(req::ADD_MEM_REG, &single(0), vec![memfd(REGION)]).expect("a region");
        front.config(req::SET_CONFIG, 32, 1, &[0]).expect("written");
        front.start(2);
        front.state(req::SET_VRING_ENABLE, 2, 1).expect("a queue");
        front.descriptor(req::SET_VRING_CALL, 2).expect("a queue");
        front.number(req::SET_STATUS, 15).expect("a status");
        assert_eq!(front.get_number(req::GET_STATUS), 15);
        let body = if reset == req::SET_STATUS { &[0; 8][..] } else { &[] };
        assert_eq!(front.acked(reset, body, vec![]), Ok(Todo::Reset));
        assert_eq!(front.get_number(req::GET_STATUS), 0);
        let setup = front.session.queue(2).expect("a queue");
        assert!(!setup.started && !setup.enabled && setup.size == 0 && setup.kick.is_none() && setup.call.is_some());
        assert_eq!(front.session.memory().regions().len(), 1);
        assert_eq!(front.session.features(), feature::PROTOCOL_FEATURES);
        assert_eq!(front.acked(reset, body, vec![]), Ok(Todo::Nothing), "no queue ran");
        let features = front.session.offer().features();
        front.number(req::SET_FEATURES, features).expect("offered");
        assert!(!front.session.writes_back());
    }
}

proptest! {
    #[test]
    fn no_messages_make_a_session_panic(
        messages in prop::collection::vec(
            (1..46u32, any::<bool>(), prop::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..80), 0..3usize),
            0..20,
        ),
    ) {
        let mut front = Front::ready();
        for (request, need_reply, body, fds) in messages {
            let fds = (0..fds).map(|_| memfd(8192)).collect();
            if let Ok(Step { answer: Answer::Base { queue }, .. }) = front.send(request, need_reply, &body, fds) {
                front.session.base(queue, 0);
            }
        }
    }
}
