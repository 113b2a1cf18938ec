//! Tests of split virtqueues, with a model of the driver.

use proptest::prelude::*;

use super::*;
use crate::rig::{DATA, Driver, GUEST, REGION, TABLES, spec};

const ALL: u64 = feature::RING_EVENT_IDX | feature::RING_INDIRECT_DESC;

fn start(driver: &Driver, features: u64) -> Queue {
    Queue::new(&driver.setup, driver.memory.clone(), features, None).expect("rings in memory")
}

fn take(queue: &mut Queue) -> Result<Option<Chain>, Broken> {
    let mut chain = Chain::default();
    Ok(queue.take(&mut chain)?.then_some(chain))
}

fn taken(queue: &mut Queue) -> Chain {
    take(queue).expect("a sound ring").expect("a chain")
}

/// Returns the error of a queue of 8 descriptors, after `prepare`.
fn broken(features: u64, prepare: impl FnOnce(&mut Driver)) -> Broken {
    let mut driver = Driver::new(8, 1);
    prepare(&mut driver);
    let mut queue = start(&driver, features);
    take(&mut queue).expect_err("a ring that breaks the queue")
}

#[test]
fn a_chain_comes_out_with_its_parts_in_order() {
    let mut driver = Driver::new(8, 1);
    driver.chain(2, &[(DATA, 16, false), (DATA + 512, 4096, false), (DATA + 8192, 512, true), (DATA + 9000, 1, true)]);
    driver.offer(2);
    let mut queue = start(&driver, 0);
    let chain = taken(&mut queue);
    assert_eq!(chain.head, 2);
    assert_eq!(chain.readable, [driver.span(DATA, 16), driver.span(DATA + 512, 4096)]);
    assert_eq!(chain.writable, [driver.span(DATA + 8192, 512), driver.span(DATA + 9000, 1)]);
    assert_eq!(take(&mut queue).expect("a sound ring").map(|chain| chain.head), None);
    assert_eq!((queue.in_flight(), queue.last_avail()), (1, 1));
}

#[test]
fn an_indirect_table_is_followed_also_after_direct_descriptors() {
    let mut driver = Driver::new(4, 1);
    driver.descriptor(1, DATA, 16, desc::NEXT, 3);
    driver.descriptor(3, TABLES, 2 * 16, desc::INDIRECT | desc::WRITE, 0); // WRITE means nothing here.
    driver.entry(TABLES, 0, DATA + 64, 32, desc::NEXT, 1);
    driver.entry(TABLES, 1, DATA + 128, 1, desc::WRITE, 0);
    driver.offer(1);
    let chain = taken(&mut start(&driver, ALL));
    assert_eq!(chain.readable, [driver.span(DATA, 16), driver.span(DATA + 64, 32)]);
    assert_eq!(chain.writable, [driver.span(DATA + 128, 1)]);
}

#[test]
fn an_indirect_table_that_is_not_aligned_is_read_too() {
    let mut driver = Driver::new(4, 1);
    driver.descriptor(0, TABLES + 3, 16, desc::INDIRECT, 0);
    driver.entry(TABLES + 3, 0, DATA, 77, desc::WRITE, 0);
    driver.offer(0);
    assert_eq!(taken(&mut start(&driver, ALL)).writable, [driver.span(DATA, 77)]);
}

#[test]
fn an_indirect_table_may_be_longer_than_a_small_queue() {
    let mut driver = Driver::new(4, 1);
    driver.descriptor(0, TABLES, 128 * 16, desc::INDIRECT, 0);
    for index in 0..128 {
        let more = if index < 127 { desc::NEXT } else { 0 };
        driver.entry(TABLES, index, DATA + u64::from(index) * 8, 8, more, index + 1);
    }
    driver.offer(0);
    assert_eq!(taken(&mut start(&driver, ALL)).readable.len(), 128);
}

#[test]
fn an_indirect_table_that_must_not_be_breaks_the_queue() {
    let table = |len, flags| {
        move |driver: &mut Driver| {
            driver.descriptor(0, TABLES, len, desc::INDIRECT | flags, 1);
            driver.entry(TABLES, 0, DATA, 16, 0, 0);
            driver.offer(0);
        }
    };
    assert_eq!(broken(0, table(16, 0)), Broken::IndirectNotNegotiated { head: 0 });
    assert_eq!(broken(ALL, table(16, desc::NEXT)), Broken::IndirectNext { head: 0 });
    for len in [0, 8, 17, 129 * 16, 0xffff_fff0] {
        assert_eq!(broken(ALL, table(len, 0)), Broken::IndirectLength { head: 0, len, limit: 128 });
    }
    let nested = broken(ALL, |driver| {
        driver.descriptor(0, TABLES, 16, desc::INDIRECT, 0);
        driver.entry(TABLES, 0, TABLES + 64, 16, desc::INDIRECT, 0);
        driver.offer(0);
    });
    assert_eq!(nested, Broken::IndirectNested { head: 0 });
    let outside = broken(ALL, |driver| {
        driver.descriptor(0, GUEST + REGION - 16, 32, desc::INDIRECT, 0);
        driver.offer(0);
    });
    assert_eq!(outside, Broken::NotMapped { guest: GUEST + REGION - 16, len: 32 });
}

#[test]
fn a_chain_that_loops_breaks_the_queue() {
    let direct = broken(0, |driver| {
        driver.descriptor(0, DATA, 16, desc::NEXT, 1);
        driver.descriptor(1, DATA, 16, desc::NEXT, 0);
        driver.offer(0);
    });
    assert_eq!(direct, Broken::Loop { head: 0 });
    let indirect = broken(ALL, |driver| {
        driver.descriptor(5, TABLES, 32, desc::INDIRECT, 0);
        driver.entry(TABLES, 0, DATA, 0, desc::NEXT, 0);
        driver.offer(5);
    });
    assert_eq!(indirect, Broken::Loop { head: 5 });
}

#[test]
fn a_chain_of_all_descriptors_is_no_loop() {
    let mut driver = Driver::new(8, 1);
    driver.chain(0, &[(DATA, 16, false); 8]);
    driver.offer(0);
    assert_eq!(taken(&mut start(&driver, 0)).readable.len(), 8);
}

#[test]
fn a_number_beyond_the_table_breaks_the_queue() {
    assert_eq!(broken(0, |driver| driver.offer(8)), Broken::Head { head: 8, size: 8 });
    let next = broken(0, |driver| {
        driver.descriptor(0, DATA, 16, desc::NEXT, 8);
        driver.offer(0);
    });
    assert_eq!(next, Broken::Next { next: 8, size: 8 });
    let next = broken(ALL, |driver| {
        driver.descriptor(0, TABLES, 32, desc::INDIRECT, 0);
        driver.entry(TABLES, 0, DATA, 16, desc::NEXT, 2);
        driver.offer(0);
    });
    assert_eq!(next, Broken::Next { next: 2, size: 2 });
}

#[test]
fn an_index_that_runs_ahead_breaks_the_queue() {
    let ahead = broken(0, |driver| driver.set_avail_idx(9));
    assert_eq!(ahead, Broken::AvailIndex { avail: 9, last: 0, size: 8 });
    let back = broken(0, |driver| driver.set_avail_idx(65535));
    assert_eq!(back, Broken::AvailIndex { avail: 65535, last: 0, size: 8 });
}

#[test]
fn a_head_that_is_in_flight_breaks_the_queue_when_it_comes_again() {
    let mut driver = Driver::new(8, 1);
    driver.chain(3, &[(DATA, 16, false)]);
    driver.offer(3);
    driver.offer(3);
    let mut queue = start(&driver, 0);
    taken(&mut queue);
    assert_eq!(take(&mut queue).expect_err("the same head"), Broken::HeadTwice { head: 3 });
    // Also if it was completed, as long as the driver cannot know.
    let mut queue = start(&driver, 0);
    taken(&mut queue);
    queue.used(3, 0).expect("in flight");
    assert_eq!(take(&mut queue).expect_err("the same head"), Broken::HeadTwice { head: 3 });
    let mut queue = start(&driver, 0);
    taken(&mut queue);
    queue.used(3, 0).expect("in flight");
    queue.publish().expect("published");
    assert_eq!(taken(&mut queue).head, 3);
}

#[test]
fn readable_memory_after_writable_memory_breaks_the_queue() {
    let error = broken(0, |driver| {
        driver.chain(0, &[(DATA, 16, false), (DATA, 0, true), (DATA, 16, false)]);
        driver.offer(0);
    });
    assert_eq!(error, Broken::ReadableAfterWritable { head: 0 });
}

#[test]
fn an_address_outside_of_the_memory_breaks_the_queue() {
    for (addr, len) in [(0, 1), (GUEST - 1, 1), (GUEST + REGION, 1), (u64::MAX, 1), (u64::MAX - 100, 4096)] {
        let error = broken(0, |driver| {
            driver.chain(0, &[(addr, len, true)]);
            driver.offer(0);
        });
        assert_eq!(error, Broken::NotMapped { guest: addr, len });
    }
    let error = broken(0, |driver| {
        driver.chain(0, &[(GUEST + REGION - 10, 11, true)]);
        driver.offer(0);
    });
    assert_eq!(error, Broken::NotMapped { guest: GUEST + REGION, len: 1 });
}

#[test]
fn memory_that_crosses_into_the_next_region_is_split() {
    let mut driver = Driver::new(8, 2);
    driver.chain(0, &[(GUEST + REGION - 10, 30, true)]);
    driver.offer(0);
    let chain = taken(&mut start(&driver, 0));
    assert_eq!(chain.writable, [driver.span(GUEST + REGION - 10, 10), driver.span(GUEST + REGION, 20)]);
}

#[test]
fn a_ring_outside_of_one_region_or_not_aligned_is_refused() {
    let error = |change: fn(&mut Setup)| {
        let mut driver = Driver::new(8, 2);
        change(&mut driver.setup);
        Queue::new(&driver.setup, driver.memory.clone(), 0, None).err().expect("a ring that is refused")
    };
    let last = spec(0).user + REGION;
    assert!(matches!(error(|setup| setup.descriptors = 0), Broken::RingNotMapped { user: 0 }));
    assert!(matches!(error(|setup| setup.used = u64::MAX), Broken::RingNotMapped { .. }));
    let crossing = error(|setup| setup.available = spec(0).user + REGION - 4);
    assert_eq!(crossing, Broken::RingNotMapped { user: last - 4 });
    assert!(matches!(error(|setup| setup.descriptors += 8), Broken::RingUnaligned { .. }));
    assert!(matches!(error(|setup| setup.available += 1), Broken::RingUnaligned { .. }));
    assert!(matches!(error(|setup| setup.used += 2), Broken::RingUnaligned { .. }));
    assert!(matches!(error(|setup| setup.size = 12), Broken::QueueSize { size: 12 }));
    assert!(matches!(error(|setup| setup.size = 2048), Broken::QueueSize { size: 2048 }));
}

#[test]
fn more_than_4_gib_of_writable_memory_breaks_the_queue() {
    // The regions are small, so the lengths come from many descriptors of one table.
    let mut driver = Driver::new(1024, 1);
    let spec = crate::memory::RegionSpec { guest: 1 << 40, size: 64 << 20, user: 1 << 40, offset: 0 };
    let big = driver.memory.added(spec, Arc::new(crate::rig::memfd(64 << 20))).expect("a sparse region");
    driver.memory = Arc::new(big);
    let parts = vec![(1 << 40, 64 << 20, true); 64];
    driver.chain(0, &parts);
    driver.chain(100, &parts[..63]);
    driver.offer(100);
    driver.offer(0);
    let mut queue = start(&driver, 0);
    assert_eq!(taken(&mut queue).writable.len(), 63);
    assert_eq!(take(&mut queue).expect_err("4 GiB"), Broken::TooLong { head: 0 });
}

#[test]
fn used_elements_appear_with_the_index() {
    let mut driver = Driver::new(8, 1);
    for head in 0..3 {
        driver.chain(head, &[(DATA, 16, false)]);
        driver.offer(head);
    }
    let mut queue = start(&driver, 0);
    (0..3).for_each(|head| assert_eq!(taken(&mut queue).head, head));
    queue.used(1, 10).expect("in flight");
    queue.used(0, 20).expect("in flight");
    assert_eq!((driver.used_idx(), queue.in_flight()), (0, 3));
    queue.publish().expect("published");
    assert_eq!((driver.used_idx(), queue.in_flight()), (2, 1));
    assert_eq!((driver.used(0), driver.used(1)), ((1, 10), (0, 20)));
    assert_eq!(queue.used(1, 0), Err(Broken::NotInFlight { head: 1 }));
    assert_eq!(queue.used(8, 0), Err(Broken::NotInFlight { head: 8 }));
    assert_eq!(queue.publish(), Ok(false));
}

#[test]
fn the_used_index_of_the_ring_is_continued() {
    let mut driver = Driver::new(8, 1);
    driver.set_used_idx(65535);
    driver.set_avail_idx(65535);
    driver.setup.base = 65535;
    driver.chain(0, &[(DATA, 16, false)]);
    driver.offer(0);
    let mut queue = start(&driver, 0);
    assert_eq!(taken(&mut queue).head, 0);
    assert_eq!(queue.last_avail(), 0);
    queue.used(0, 1).expect("in flight");
    queue.publish().expect("published");
    assert_eq!((driver.used_idx(), driver.used(65535)), (0, (0, 1)));
}

/// Runs one request, and returns true if the driver gets an interrupt.
fn interrupts(driver: &mut Driver, queue: &mut Queue) -> bool {
    driver.chain(0, &[(DATA, 16, false)]);
    driver.offer(0);
    taken(queue);
    queue.used(0, 0).expect("in flight");
    queue.publish().expect("published")
}

#[test]
fn interrupts_follow_the_flag_or_the_event() {
    let mut driver = Driver::new(8, 1);
    driver.set_avail_flags(AVAIL_NO_INTERRUPT);
    let mut queue = start(&driver, 0);
    assert!(interrupts(&mut driver, &mut queue), "the first one after a start comes in any case");
    assert!(!interrupts(&mut driver, &mut queue));
    driver.set_avail_flags(0);
    assert!(interrupts(&mut driver, &mut queue));

    let mut driver = Driver::new(8, 1);
    let mut queue = start(&driver, ALL);
    driver.set_used_event(2);
    assert!(interrupts(&mut driver, &mut queue), "the first one after a start comes in any case");
    assert!(!interrupts(&mut driver, &mut queue));
    assert!(interrupts(&mut driver, &mut queue), "element 2");
    assert!(!interrupts(&mut driver, &mut queue));
}

#[test]
fn kicks_are_wanted_by_flag_or_event_and_work_that_came_meanwhile_is_seen() {
    let mut driver = Driver::new(8, 1);
    let mut queue = start(&driver, 0);
    queue.suppress_kicks();
    assert_eq!(driver.used_flags(), USED_NO_NOTIFY);
    assert_eq!(queue.want_kicks(), Ok(false));
    assert_eq!(driver.used_flags(), 0);
    queue.suppress_kicks();
    driver.chain(0, &[(DATA, 16, false)]);
    driver.offer(0);
    assert_eq!(queue.want_kicks(), Ok(true));

    let mut queue = start(&driver, ALL);
    assert_eq!(queue.want_kicks(), Ok(true));
    taken(&mut queue);
    assert_eq!(queue.want_kicks(), Ok(false));
    assert_eq!(driver.avail_event(), 1);
}

#[test]
fn used_elements_keep_the_order_if_that_is_negotiated() {
    let mut driver = Driver::new(4, 1);
    for head in [2, 0, 1] {
        driver.chain(head, &[(DATA, 16, false)]);
        driver.offer(head);
    }
    let mut queue = start(&driver, feature::IN_ORDER);
    (0..3).for_each(|_| drop(taken(&mut queue)));
    queue.used(1, 11).expect("in flight");
    queue.used(0, 10).expect("in flight");
    assert_eq!(queue.used(0, 10), Err(Broken::NotInFlight { head: 0 }));
    queue.publish().expect("nothing to publish");
    assert_eq!(driver.used_idx(), 0);
    queue.used(2, 12).expect("in flight");
    queue.publish().expect("published");
    assert_eq!(driver.used_idx(), 3);
    assert_eq!([0, 1, 2].map(|index| driver.used(index)), [(2, 12), (0, 10), (1, 11)]);
}

#[test]
fn other_memory_is_used_after_it_was_set() {
    let mut driver = Driver::new(8, 1);
    let mut queue = start(&driver, 0);
    let more = Arc::new(driver.memory.added(spec(3), Arc::new(crate::rig::memfd(REGION))).expect("a region"));
    queue.set_memory(more.clone()).expect("the rings are still there");
    driver.memory = more;
    driver.chain(0, &[(spec(3).guest, 16, true)]);
    driver.offer(0);
    assert_eq!(taken(&mut queue).writable, [driver.span(spec(3).guest, 16)]);
    let less = Arc::new(driver.memory.removed(spec(0)).expect("a region"));
    assert!(matches!(queue.set_memory(less), Err(Broken::RingNotMapped { .. })));
}

#[test]
fn memory_that_was_cut_off_breaks_the_queue_at_the_next_look() {
    let mut driver = Driver::new(8, 2);
    driver.chain(0, &[(spec(1).guest, 16, false)]);
    driver.offer(0);
    let mut queue = start(&driver, 0);
    let chain = taken(&mut queue);
    rustix::fs::ftruncate(driver.memory.regions()[1].file(), 0).expect("ftruncate");
    assert_eq!(queue.available(), Ok(0));
    let mut bytes = [1; 16];
    driver.memory.copy_from(&chain.readable, &mut bytes).expect("mapped");
    assert_eq!(bytes, [0; 16]);
    assert_eq!(queue.available(), Err(Broken::CutOff));
    assert_eq!(Queue::new(&driver.setup, driver.memory.clone(), 0, None).err(), Some(Broken::CutOff));
}

/// A step of the driver in a random run.
#[derive(Clone, Debug)]
enum Deed {
    /// Offers a request of so many descriptors.
    Offer(u16),
    /// Takes all that is there.
    Take,
    /// Takes one, gives it back, and does so again.
    PutBack,
    /// Completes the request of a number, modulo those in flight.
    Use(usize),
    Publish,
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        (1..4u16).prop_map(Deed::Offer),
        Just(Deed::Take),
        Just(Deed::PutBack),
        any::<usize>().prop_map(Deed::Use),
        any::<usize>().prop_map(Deed::Use),
        Just(Deed::Publish),
    ]
}

/// Runs deeds on a queue beside a model of three lists. The indexes begin near their end, so that they wrap.
fn run(deeds: Vec<Deed>, in_order: bool) {
    const SIZE: u16 = 16;
    let mut driver = Driver::new(SIZE, 1);
    driver.set_used_idx(65530);
    driver.set_avail_idx(65530);
    driver.setup.base = 65530;
    let mut queue = start(&driver, if in_order { feature::IN_ORDER } else { 0 });
    // Chains begin at multiples of 4, so that each head has room for 3 descriptors.
    let mut free: Vec<u16> = (0..SIZE / 4).map(|slot| slot * 4).collect();
    let (mut offered, mut flight, mut done) = (Vec::new(), Vec::new(), Vec::new());
    let (mut order, mut seen) = (Vec::new(), 65530u16);
    for deed in deeds {
        match deed {
            Deed::Offer(parts) => {
                let Some(head) = free.pop() else { continue };
                driver.chain(head, &vec![(DATA + u64::from(head), 8, true); usize::from(parts)]);
                driver.offer(head);
                offered.push((head, parts));
            }
            Deed::Take => {
                for (head, parts) in offered.drain(..) {
                    let chain = taken(&mut queue);
                    assert_eq!((chain.head, chain.writable.len()), (head, usize::from(parts)));
                    flight.push(head);
                    order.push(head);
                }
                assert!(take(&mut queue).expect("a sound ring").is_none());
            }
            Deed::PutBack => {
                for _ in 0..2 {
                    if let Some((head, _)) = offered.first() {
                        let chain = taken(&mut queue);
                        assert_eq!(chain.head, *head);
                        queue.put_back(&chain);
                    }
                }
            }
            Deed::Use(which) => {
                if flight.is_empty() {
                    continue;
                }
                let head = flight.remove(which % flight.len());
                queue.used(head, u32::from(head) + 7).expect("in flight");
                done.push(head);
            }
            Deed::Publish => {
                queue.publish().expect("published");
                let expected: Vec<u16> = if in_order {
                    order.iter().copied().take_while(|head| done.contains(head)).collect()
                } else {
                    done.clone()
                };
                for head in expected {
                    assert_eq!(driver.used(seen), (u32::from(head), u32::from(head) + 7));
                    seen = seen.wrapping_add(1);
                    free.push(head);
                    done.retain(|other| *other != head);
                    order.retain(|other| *other != head);
                }
                assert_eq!(driver.used_idx(), seen);
            }
        }
        let waiting = flight.len() + done.len();
        assert_eq!(usize::from(queue.in_flight()), waiting);
    }
}

proptest! {
    #[test]
    fn a_queue_does_what_its_model_does(deeds in prop::collection::vec(deed(), 0..120), in_order: bool) {
        run(deeds, in_order);
    }

    #[test]
    fn an_event_is_crossed_if_it_is_one_of_the_steps(old: u16, steps in 0..1100u16, event: u16) {
        let new = old.wrapping_add(steps);
        let passed = (0..steps).any(|step| old.wrapping_add(step) == event);
        prop_assert_eq!(crosses(event, new, old), passed);
    }

    #[test]
    fn no_bytes_of_a_guest_make_a_queue_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        heads in prop::collection::vec(0..9u16, 1..8),
        features in prop_oneof![Just(0), Just(ALL), Just(ALL | feature::IN_ORDER)],
    ) {
        let mut driver = Driver::new(8, 2);
        driver.at(GUEST, 600).write(0, &bytes);
        heads.iter().for_each(|head| driver.offer(*head));
        let mut queue = start(&driver, features);
        while let Ok(Some(chain)) = take(&mut queue) {
            queue.used(chain.head, 0).expect("just taken");
            queue.publish().expect("publishing reads nothing that can be wrong");
        }
    }
}
