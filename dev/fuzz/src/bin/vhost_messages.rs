//! Fuzzes the negotiation of vhost-user: headers, bodies and descriptors of a front-end. Queues that start are carried
//! out as far as their rings are mapped.
#![no_main]

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use sheave_vhost::block::{Config, Limits};
use sheave_vhost::wire::{feature, protocol, req};
use sheave_vhost::{Answer, Chain, Offer, Queue, Session, Todo};

fn offer() -> Offer {
    let limits = Limits { max_sectors: 1 << 15, alignment: 8, may_unmap: true };
    let config = Config {
        size: 1 << 30,
        block_bytes: 512,
        physical_bytes: 4096,
        optimal_bytes: 65536,
        read_only: false,
        writeback: true,
        discard: Some(limits),
        write_zeroes: Some(limits),
    };
    Offer { queues: 2, in_order: true, config }
}

fn memfd(len: u64) -> Option<OwnedFd> {
    let file = memfd_create("fuzz", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&file, len).ok()?;
    Some(file)
}

/// Passes a message to the session. Returns None when the connection is to be closed.
fn send(session: &mut Session, request: u32, flags: u32, body: &[u8], fds: Vec<OwnedFd>) -> Option<()> {
    let mut bytes = [0; 12];
    for (at, word) in [request, flags, body.len() as u32].into_iter().enumerate() {
        bytes[4 * at..][..4].copy_from_slice(&word.to_ne_bytes());
    }
    let header = Session::header(bytes).ok()?;
    let step = session.message(&header, body, fds).ok()?;
    if let Todo::Start { queue } = step.todo {
        let setup = session.queue(queue).expect("a queue that starts exists").clone();
        assert!(setup.started && setup.kick.is_some());
        let memory = session.memory().clone();
        if let Ok(mut queue) = Queue::new(&setup, memory, session.features(), session.inflight(queue)) {
            let mut chain = Chain::default();
            // More chains than descriptors are never in flight.
            for _ in 0..=setup.size {
                if queue.take(&mut chain) != Ok(true) {
                    break;
                }
            }
            assert!(queue.in_flight() <= setup.size);
        }
    }
    if let Answer::Base { queue } = step.answer {
        let reply = session.base(queue, 3);
        assert_eq!(reply.bytes.len(), 20);
        assert!(session.queue(queue).is_some_and(|setup| !setup.started));
    }
    let sum: u64 = session.memory().regions().iter().map(|region| region.spec().size).sum();
    assert!(sum <= 64 * 65536, "more is mapped than there is");
    Some(())
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((first, mut data)) = data.split_first() else { return };
    let mut session = Session::new(offer());
    if first & 1 != 0 {
        // Most messages need features, and a fuzzer is long in finding these numbers.
        let (features, protocol) = (session.offer().features(), session.offer().protocol_features());
        let protocol = if first & 2 != 0 { protocol } else { protocol & !protocol::GET_VRING_BASE_INFLIGHT };
        let features = if first & 4 != 0 { features } else { features & !feature::RING_EVENT_IDX };
        let _ = send(&mut session, req::SET_PROTOCOL_FEATURES, 1, &protocol.to_ne_bytes(), vec![]);
        let _ = send(&mut session, req::SET_FEATURES, 1, &features.to_ne_bytes(), vec![]);
    }
    // Each message is a byte for the request, one for flags and descriptors, one for the length, and the body.
    while let [request, flags, len, rest @ ..] = data {
        let (body, next) = rest.split_at(rest.len().min(usize::from(*len)));
        let fds = (0..flags >> 5).filter_map(|_| memfd(65536)).collect();
        if send(&mut session, u32::from(*request), u32::from(flags & 0x1f), body, fds).is_none() {
            break;
        }
        data = next;
    }
});
