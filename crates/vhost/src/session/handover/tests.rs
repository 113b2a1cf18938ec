//! Tests that a session goes on in another process, and that no state makes the other process panic.

use serde_json::Value;
use sheave_base::sync::atomic::Ordering;
use zerocopy::IntoBytes;

use super::super::tests::{Front, fd, offer, table};
use super::super::{AddrBody, Answer, StateBody};
use super::*;
use crate::rig::{GUEST, REGION, USER, memfd, spec};
use crate::wire::{InflightBody, req};
use crate::{Queue, Step};

/// The descriptors of a state. Their numbers are their places.
#[derive(Default)]
struct Fds(Vec<Arc<OwnedFd>>);

impl Fds {
    fn add(&mut self, fd: &Arc<OwnedFd>) -> u32 {
        self.0.push(fd.clone());
        self.0.len() as u32 - 1
    }

    fn get(&self, number: u32) -> Option<Arc<OwnedFd>> {
        self.0.get(number as usize).cloned()
    }
}

fn packed(session: &Session) -> (LifeState, Fds) {
    let mut fds = Fds::default();
    let state = session.life().pack(&mut |fd| fds.add(fd));
    (state, fds)
}

/// A session with two regions of memory, an in-flight region, a channel, and two queues that run.
fn busy() -> Front {
    let mut front = Front::ready();
    front.acked(req::SET_MEM_TABLE, &table(&[spec(1), spec(0)]), vec![memfd(REGION), memfd(REGION)]).expect("regions");
    let body = InflightBody { len: 16384, offset: 0, queues: 3, queue_size: 128, padding: 0 };
    front.acked(req::SET_INFLIGHT_FD, body.as_bytes(), vec![memfd(16384)]).expect("an in-flight region");
    let (channel, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
    front.acked(req::SET_BACKEND_REQ_FD, &[], vec![channel.into()]).expect("a channel");
    front.number(req::SET_STATUS, 15).expect("a status");
    front.config(req::SET_CONFIG, 32, 1, &[0]).expect("written");
    for queue in [0, 2] {
        let rings = USER + 0x4_0000 * u64::from(queue);
        front.state(req::SET_VRING_NUM, queue, 128).expect("a size");
        let (descriptors, available, used) = (rings, rings + 0x8000, rings + 0x1_0000);
        let body = AddrBody { index: queue, flags: 0, descriptors, used, available, log: 0 };
        front.acked(req::SET_VRING_ADDR, body.as_bytes(), vec![]).expect("addresses");
        front.state(req::SET_VRING_BASE, queue, 5).expect("an index");
        front.descriptor(req::SET_VRING_CALL, u64::from(queue)).expect("an eventfd");
        front.descriptor(req::SET_VRING_ERR, u64::from(queue)).expect("an eventfd");
        front.descriptor(req::SET_VRING_KICK, u64::from(queue)).expect("an eventfd");
    }
    front.state(req::SET_VRING_ENABLE, 2, 1).expect("a queue");
    front.state(req::SET_VRING_NUM, 3, 64).expect("a size");
    front
}

/// Passes a state through its text.
fn restored(state: &LifeState, fds: &Fds) -> Result<Session, Broken> {
    let text = serde_json::to_string(state).expect("a state has a text");
    let state: LifeState = serde_json::from_str(&text).expect("the text of a state");
    Session::restored(offer(), state.unpack(&mut |number| fds.get(number))?)
}

/// Sends a message, and returns all that is visible of the outcome.
fn outcome(front: &mut Front, request: u32, body: &[u8]) -> String {
    let step = front.send(request, true, body, vec![]);
    let reply = match step {
        Ok(Step { answer: Answer::Base { queue }, .. }) => {
            let base = front.session.queue(queue).expect("a queue").base;
            let reply = front.session.base(queue, base);
            return format!("{step:?} {:?}", reply.bytes);
        }
        Ok(Step { answer: Answer::Reply(ref reply), .. }) => reply.bytes.clone(),
        _ => Vec::new(),
    };
    let step = step.map(|step| (step.todo, step.refused));
    format!("{step:?} {reply:?}")
}

/// Messages that ask for everything, and then stop all queues.
fn questions() -> Vec<(u32, Vec<u8>)> {
    let numbers = [req::GET_FEATURES, req::GET_PROTOCOL_FEATURES, req::GET_QUEUE_NUM, req::GET_STATUS];
    let mut all: Vec<_> = numbers.map(|request| (request, vec![])).into();
    all.push((req::GET_CONFIG, [&[0; 4][..], &64u32.to_ne_bytes(), &[0; 4], &[0; 64]].concat()));
    for index in 0..5u32 {
        all.push((req::SET_VRING_ENABLE, StateBody { index, num: 1 }.as_bytes().to_vec()));
        all.push((req::GET_VRING_BASE, StateBody { index, num: 0 }.as_bytes().to_vec()));
        all.push((req::GET_VRING_BASE, StateBody { index, num: 0 }.as_bytes().to_vec()));
    }
    all.push((req::REM_MEM_REG, [&[0; 8][..], &table(&[spec(1)])[8..]].concat()));
    all.push((req::SET_STATUS, vec![0; 8]));
    all
}

#[test]
fn a_session_goes_on_in_another_process() {
    let mut front = busy();
    front.session.stopped_at(0, 77);
    front.session.stopped_at(2, 65535);
    front.session.stopped_at(3, 9);
    front.session.stopped_at(4, 9);
    let (state, fds) = packed(&front.session);
    let bases: Vec<_> = state.queues.iter().map(|setup| (setup.base, setup.started, setup.kick.is_some())).collect();
    assert_eq!(bases, [(77, true, true), (0, false, false), (65535, true, true), (0, false, false)]);
    let mut other = Front { session: restored(&state, &fds).expect("a state") };

    let (again, _) = packed(&other.session);
    assert_eq!(again, state);
    assert_eq!(other.session.features(), front.session.features());
    assert_eq!(other.session.writes_back(), front.session.writes_back());
    assert_eq!(other.session.config_changed(), front.session.config_changed());
    for queue in 0..4 {
        assert_eq!(other.session.inflight(queue).is_some(), queue < 3);
    }
    // Both sessions map the same memory.
    for (index, address) in [GUEST + 8, GUEST + REGION + 8].into_iter().enumerate() {
        let place = |session: &Session| session.memory().find(address, 8, &mut 0).expect("an address");
        let (here, there) = (front.session.memory(), other.session.memory());
        let value = 0x1234 + index as u64;
        here.place(place(&front.session)).expect("a span").store_u64(0, value, Ordering::Relaxed);
        assert_eq!(there.place(place(&other.session)).expect("a span").load_u64(0), value);
    }
    for queue in [0, 2] {
        let (setup, memory) = (other.session.queue(queue).expect("a queue"), other.session.memory().clone());
        Queue::new(setup, memory, other.session.features(), other.session.inflight(queue)).expect("a queue");
    }
    for (request, body) in questions() {
        assert_eq!(outcome(&mut other, request, &body), outcome(&mut front, request, &body), "{request}");
    }
}

#[test]
fn a_session_that_was_never_used_goes_on_too() {
    let new = Session::new(offer());
    let (state, fds) = packed(&new);
    let other = restored(&state, &fds).expect("a state");
    assert_eq!(packed(&other).0, state);
    assert!(fds.0.is_empty());
}

#[test]
fn a_state_that_no_front_end_can_reach_is_refused() {
    let (state, fds) = packed(&busy().session);
    let refused = |change: &dyn Fn(&mut LifeState)| {
        let mut state = state.clone();
        change(&mut state);
        restored(&state, &fds).err().expect("an impossible state")
    };
    let channel = state.backend;
    let memory = Some(state.regions[0].1);
    assert_eq!(refused(&|state| state.features |= 1 << 34), Broken::Features { unknown: 1 << 34 });
    assert_eq!(refused(&|state| state.protocol_features |= 2), Broken::ProtocolFeatures { unknown: 2 });
    assert_eq!(refused(&|state| state.protocol_features &= !(1 << 12)), Broken::InflightFeature);
    assert!(matches!(refused(&|state| state.queues.truncate(3)), Broken::State(_)));
    assert!(matches!(refused(&|state| state.queues.clear()), Broken::State(_)));
    assert!(matches!(refused(&|state| state.queues.push(state.queues[1].clone())), Broken::State(_)));
    for size in [1, 3, 2048, u16::MAX] {
        assert_eq!(refused(&|state| state.queues[1].size = size), Broken::QueueSize { size: u32::from(size) });
    }
    assert_eq!(refused(&|state| state.queues[0].size = 0), Broken::NotSetUp { queue: 0 });
    assert_eq!(refused(&|state| state.queues[2].kick = None), Broken::NoKick { queue: 2 });
    assert_eq!(refused(&|state| state.queues[1].started = true), Broken::NoKick { queue: 1 });
    assert!(matches!(refused(&|state| state.queues[2].started = false), Broken::State(_)));
    assert_eq!(refused(&|state| state.queues[0].kick = memory), Broken::NotEventfd);
    assert_eq!(refused(&|state| state.queues[1].call = memory), Broken::NotEventfd);
    assert_eq!(refused(&|state| state.queues[1].err = channel), Broken::NotEventfd);
    assert_eq!(refused(&|state| state.backend = state.queues[0].kick), Broken::NotSocket);
    assert!(matches!(refused(&|state| state.queues[0].call = Some(1000)), Broken::State(_)));
    assert!(matches!(refused(&|state| state.regions.push(state.regions[0])), Broken::RegionOverlaps { .. }));
    assert!(matches!(refused(&|state| state.regions = vec![state.regions[0]; 65]), Broken::TooManyRegions { .. }));
    assert_eq!(refused(&|state| state.regions[0].1 = state.queues[0].kick.unwrap()), Broken::NotMemory);
    let shape = |change: &dyn Fn(&mut inflight::Shape)| {
        refused(&|state| change(&mut state.inflight.as_mut().expect("an in-flight region").0))
    };
    assert_eq!(shape(&|shape| shape.queues = 5), Broken::InflightShape { queues: 5, size: 128 });
    assert!(matches!(shape(&|shape| shape.len = 64), Broken::InflightLength { .. }));
    assert!(matches!(shape(&|shape| shape.offset = 8192), Broken::FileTooShort { .. }));
}

/// Calls `each` with every value that differs from `value` in one place: a field or an element is replaced, missing, or
/// there twice.
fn mutations(value: &Value, replacements: &[Value], each: &mut dyn FnMut(Value)) {
    replacements.iter().for_each(|other| each(other.clone()));
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let mut without = fields.clone();
                without.remove(name);
                each(Value::Object(without));
                mutations(inner, replacements, &mut |inner| {
                    let mut changed = fields.clone();
                    changed.insert(name.clone(), inner);
                    each(Value::Object(changed));
                });
            }
        }
        Value::Array(elements) => {
            for (index, inner) in elements.iter().enumerate() {
                each(Value::Array(elements[..index].to_vec()));
                let twice = elements[..=index].iter().chain(&elements[index..]);
                each(Value::Array(twice.cloned().collect()));
                mutations(inner, replacements, &mut |inner| {
                    let mut changed = elements.clone();
                    changed[index] = inner;
                    each(Value::Array(changed));
                });
            }
        }
        _ => {}
    }
}

/// Uses all that a session has.
fn exercise(session: Session) {
    assert_eq!(session.life().queues.len(), 4);
    let mut front = Front { session };
    for queue in 0..4 {
        let setup = front.session.queue(queue).expect("a queue");
        assert!(!setup.started || (setup.size != 0 && setup.kick.is_some()));
        if setup.started {
            let (memory, features) = (front.session.memory().clone(), front.session.features());
            let _ = Queue::new(setup, memory, features, front.session.inflight(queue));
        }
    }
    for (request, body) in questions() {
        outcome(&mut front, request, &body);
    }
}

#[test]
fn a_state_that_is_changed_in_one_place_is_valid_or_refused() {
    let (state, mut fds) = packed(&busy().session);
    let (used, all) = (fds.0.len(), serde_json::to_value(&state).expect("a state has a value"));
    fds.add(&Arc::new(fd()));
    let numbers = [0, 1, 2, 255, 256, 1024, 4096, 65535, 65536, 1 << 32, 1 << 34, 1 << 63, u64::MAX];
    let mut replacements: Vec<Value> = numbers.map(Value::from).into();
    replacements.extend((3..=used as u64 + 1).map(Value::from));
    let others = [Value::Null, true.into(), false.into(), (-1).into(), 0.5.into(), "x".into()];
    replacements.extend(others);
    replacements.extend([Value::Array(vec![]), Value::Object(serde_json::Map::new())]);
    let (mut tried, mut valid) = (0, 0);
    mutations(&all, &replacements, &mut |changed| {
        tried += 1;
        let Ok(state) = serde_json::from_value::<LifeState>(changed) else { return };
        if let Ok(session) = restored(&state, &fds) {
            valid += 1;
            assert_eq!(restored(&packed(&session).0, &packed(&session).1).map(|_| ()), Ok(()));
            exercise(session);
        }
    });
    assert!(valid > 100 && tried - valid > 1000, "{valid} of {tried}");
}

#[test]
fn texts_that_were_cut_off_are_no_states() {
    let text = serde_json::to_string(&packed(&busy().session).0).expect("a state has a text");
    for end in 0..text.len() {
        assert!(serde_json::from_str::<LifeState>(&text[..end]).is_err());
    }
}
