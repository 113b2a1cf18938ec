//! Tests of in-flight regions: a crash between any two stores, regions of hostile front-ends.

use std::cell::RefCell;
use std::collections::BTreeSet;

use proptest::prelude::*;
use rustix::fs::fcntl_get_seals;
use rustix::io::{pread, pwrite};

use super::*;
use crate::queue::{Chain, Queue};
use crate::rig::{DATA, Driver, memfd};

thread_local! {
    /// Called between any two stores whose order matters.
    static CUT: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Called by [`step`].
pub(crate) fn cut() {
    CUT.with_borrow_mut(|cut| {
        if let Some(cut) = cut {
            cut();
        }
    });
}

const SIZE: u16 = 8;
/// Length of the part of the guest's memory that has the rings.
const RINGS: usize = 0x1_1000;

/// The shared memory at one moment: the rings, and the in-flight region.
#[derive(Clone)]
struct Image {
    rings: Vec<u8>,
    area: Vec<u8>,
}

struct Device {
    driver: Driver,
    area: Area,
    queue: Queue,
}

impl Device {
    fn new() -> Device {
        let area = Area::with_room(1, SIZE, SIZE).expect("a region");
        Device::start(Driver::new(SIZE, 1), area).expect("a sound region")
    }

    fn start(driver: Driver, area: Area) -> Result<Device, Broken> {
        let queue = Queue::new(&driver.setup, driver.memory.clone(), 0, area.slots(0))?;
        Ok(Device { driver, area, queue })
    }

    /// Returns a device that begins with the memory of a crash.
    fn restart(image: &Image) -> Device {
        let driver = Driver::new(SIZE, 1);
        pwrite(driver.memory.regions()[0].file(), &image.rings, 0).expect("pwrite");
        let area = Area::with_room(1, SIZE, SIZE).expect("a region");
        pwrite(area.file(), &image.area, 0).expect("pwrite");
        Device::start(driver, area).expect("a sound region")
    }

    fn offer(&mut self, head: u16) {
        self.driver.chain(head, &[(DATA, 8, true)]);
        self.driver.offer(head);
    }

    fn take(&mut self) -> Option<u16> {
        let mut chain = Chain::default();
        self.queue.take(&mut chain).expect("a sound ring").then_some(chain.head)
    }

    /// Takes a chain, and gives it back.
    fn put_back(&mut self) {
        let mut chain = Chain::default();
        if self.queue.take(&mut chain).expect("a sound ring") {
            self.queue.put_back(&chain);
        }
    }

    fn answer(&mut self, heads: &[u16]) {
        heads.iter().for_each(|head| self.queue.used(*head, 1).expect("in flight"));
        self.queue.publish().expect("published");
    }

    /// Returns a function that copies the shared memory.
    fn camera(&self) -> impl Fn() -> Image + use<> {
        let (rings, area) = (self.driver.memory.regions()[0].file().clone(), self.area.file().clone());
        move || {
            let mut image = Image { rings: vec![0; RINGS], area: vec![0; queue_bytes(SIZE)] };
            pread(&rings, &mut image.rings, 0).expect("pread");
            pread(&area, &mut image.area, 0).expect("pread");
            image
        }
    }

    /// Returns the heads that the driver finds in the used ring.
    fn answered(&self) -> Vec<u16> {
        (0..self.driver.used_idx()).map(|index| self.driver.used(index).0 as u16).collect()
    }
}

/// Runs `deeds` and returns the memory before, between and after all stores.
fn images<R>(camera: impl Fn() -> Image + 'static, deeds: impl FnOnce() -> R) -> (R, Vec<Image>) {
    let images = std::rc::Rc::new(RefCell::new(vec![camera()]));
    let to = images.clone();
    CUT.set(Some(Box::new(move || to.borrow_mut().push(camera()))));
    let result = deeds();
    CUT.set(None);
    (result, images.take())
}

/// Checks that a device which starts with an image finds each offered request that was not answered once, those that
/// were taken in the order in which they were taken, and that the driver gets an answer to each.
fn check(image: &Image, offered: &[u16]) {
    let mut device = Device::restart(image);
    let answered: BTreeSet<u16> = device.answered().into_iter().collect();
    assert_eq!(answered.len(), usize::from(device.driver.used_idx()), "no request is answered twice");
    let mut found = Vec::new();
    while let Some(head) = device.take() {
        found.push(head);
    }
    let expected: Vec<u16> = offered.iter().copied().filter(|head| !answered.contains(head)).collect();
    assert_eq!(found, expected);
    found.reverse();
    device.answer(&found);
    let all: BTreeSet<u16> = device.answered().into_iter().collect();
    assert_eq!((all.len(), usize::from(device.driver.used_idx())), (offered.len(), offered.len()));
}

/// Answers requests in batches, and checks a crash at any store, also at any store of the restart after a crash.
fn crash_everywhere(batches: &[&[u16]]) {
    let offered: Vec<u16> = (0..SIZE).rev().collect();
    let mut device = Device::new();
    offered.iter().for_each(|head| device.offer(*head));
    let camera = device.camera();
    let ((), images) = images(camera, || {
        for batch in batches {
            while device.queue.in_flight() < 5
                && let Some(_) = device.take()
            {}
            device.put_back();
            device.answer(batch);
            device.put_back();
        }
    });
    assert!(images.len() > 30);
    for image in &images {
        check(image, &offered);
        let again = Device::restart(image);
        let camera = again.camera();
        let Device { driver, area, .. } = again;
        // The restart above has repaired the memory, so the image is written once more.
        pwrite(driver.memory.regions()[0].file(), &image.rings, 0).expect("pwrite");
        pwrite(area.file(), &image.area, 0).expect("pwrite");
        let (_, second) = super::tests::images(camera, || Device::start(driver, area).map(|_| ()));
        second.iter().for_each(|image| check(image, &offered));
    }
}

#[test]
fn a_crash_at_any_store_loses_no_request_and_answers_none_twice() {
    crash_everywhere(&[&[7, 4], &[6, 5, 3], &[2]]);
    crash_everywhere(&[&[7], &[6], &[5], &[4]]);
    crash_everywhere(&[&[3, 4, 5, 6, 7], &[0, 1, 2]]);
}

#[test]
fn a_request_that_was_given_back_is_not_in_flight_for_a_driver_that_begins_anew() {
    let mut device = Device::new();
    [5, 2].iter().for_each(|head| device.offer(*head));
    assert_eq!(device.take(), Some(5));
    device.put_back();
    device.answer(&[5]);
    let mut anew = Device::start(Driver::new(SIZE, 1), device.area.clone()).expect("a sound region");
    assert_eq!(anew.take(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 16 }))]

    #[test]
    fn a_crash_is_survived_whatever_the_order(order in Just(vec![3u16, 4, 5, 6, 7]).prop_shuffle(), cut in 1..5usize) {
        crash_everywhere(&[&order[..cut], &order[cut..]]);
    }

    #[test]
    fn no_bytes_of_a_region_make_a_queue_panic(
        bytes in prop::collection::vec(any::<u8>(), 8 * 16),
        head in prop_oneof![0..9u16, any::<u16>()],
        recorded in any::<u16>(),
    ) {
        let device = Device::new();
        let mut image = device.camera()();
        image.area[HEADER_BYTES..HEADER_BYTES + bytes.len()].copy_from_slice(&bytes);
        image.area[header::LAST_BATCH_HEAD..][..2].copy_from_slice(&head.to_ne_bytes());
        image.area[header::USED_IDX..][..2].copy_from_slice(&recorded.to_ne_bytes());
        pwrite(device.area.file(), &image.area, 0).expect("pwrite");
        let Device { driver, area, .. } = device;
        if let Ok(mut device) = Device::start(driver, area) {
            let mut chain = Chain::default();
            for _ in 0..2 * SIZE {
                if device.queue.take(&mut chain) == Ok(true) {
                    device.answer(&[chain.head]);
                }
            }
        }
    }
}

#[test]
fn the_used_index_comes_from_the_used_ring_and_not_from_the_region() {
    let mut device = Device::new();
    for head in [0, 3] {
        device.offer(head);
        device.take();
    }
    device.answer(&[0]);
    let mut image = device.camera()();
    // A region that never counted the first answer, with its mark still set.
    image.area[header::USED_IDX..][..2].fill(0);
    image.area[entry_at(0)] = 1;
    let mut device = Device::restart(&image);
    assert_eq!(device.take(), Some(3));
    assert_eq!(device.take(), None);
    assert_eq!((device.queue.last_avail(), device.queue.in_flight()), (2, 1));
    device.answer(&[3]);
    assert_eq!(device.answered(), [0, 3]);
}

#[test]
fn requests_left_in_flight_come_again_in_the_order_of_their_counters() {
    let mut device = Device::new();
    let offered = [5, 1, 7, 0, 3];
    offered.iter().for_each(|head| device.offer(*head));
    offered.iter().for_each(|head| assert_eq!(device.take(), Some(*head)));
    device.answer(&[7]);
    device.offer(6);
    let mut device = Device::restart(&device.camera()());
    assert_eq!(device.queue.available(), Ok(5));
    assert_eq!(std::iter::from_fn(|| device.take()).collect::<Vec<_>>(), [5, 1, 0, 3, 6]);
    // Counters go on where they were.
    let mut device = Device::restart(&device.camera()());
    assert_eq!(std::iter::from_fn(|| device.take()).collect::<Vec<_>>(), [5, 1, 0, 3, 6]);
}

#[test]
fn a_region_is_found_empty_after_the_driver_begins_anew() {
    let mut device = Device::new();
    for head in 0..3 {
        device.offer(head);
        device.take();
        device.answer(&[head]);
    }
    let mut image = device.camera()();
    image.rings.fill(0);
    let mut device = Device::restart(&image);
    assert_eq!(device.take(), None);
    device.offer(2);
    assert_eq!(device.take(), Some(2));
}

/// Returns the error of a region that `change` has spoilt.
fn spoilt(change: impl FnOnce(&mut [u8])) -> Option<Broken> {
    let device = Device::new();
    let mut image = device.camera()();
    change(&mut image.area);
    pwrite(device.area.file(), &image.area, 0).expect("pwrite");
    Device::start(device.driver, device.area).err()
}

#[test]
fn entries_that_cannot_be_are_refused() {
    assert_eq!(spoilt(|_| {}), None);
    assert_eq!(spoilt(|area| area[header::VERSION] = 2), Some(Broken::InflightVersion { version: 2 }));
    let head = spoilt(|area| {
        area[header::USED_IDX..][..2].copy_from_slice(&65535u16.to_ne_bytes());
        area[header::LAST_BATCH_HEAD] = 8;
    });
    assert_eq!(head, Some(Broken::InflightIndex { index: 8, size: 8 }));
}

#[test]
fn a_queue_may_be_smaller_than_its_region_and_not_larger() {
    let driver = Driver::new(4, 1);
    let area = Area::with_room(2, SIZE, SIZE).expect("a region");
    assert!(Queue::new(&driver.setup, driver.memory.clone(), 0, area.slots(1)).is_ok());
    area.slots(1).expect("the second queue").window.place().store_u8(entry_at(6), 1, Ordering::Relaxed);
    let error = Queue::new(&driver.setup, driver.memory.clone(), 0, area.slots(1)).err();
    assert_eq!(error, Some(Broken::InflightIndex { index: 6, size: 4 }));
    let driver = Driver::new(16, 1);
    let error = Queue::new(&driver.setup, driver.memory.clone(), 0, area.slots(0)).err();
    assert_eq!(error, Some(Broken::InflightSize { recorded: 8, size: 16 }));
    assert!(area.slots(2).is_none());
}

#[test]
fn a_region_has_the_layout_of_the_specification_and_cannot_shrink() {
    let area = Area::with_room(3, 128, 128).expect("a region");
    assert_eq!(area.shape(), Shape { len: 3 * 2112, offset: 0, queues: 3, queue_size: 128 });
    // `create` leaves room for a queue that firmware makes larger than the front-end has announced.
    let area = Area::create(1, 128).expect("a region");
    let driver = Driver::new(256, 1);
    assert!(Queue::new(&driver.setup, driver.memory.clone(), 0, area.slots(0)).is_ok());
    assert!(fcntl_get_seals(area.file()).expect("seals").contains(SealFlags::SHRINK));
    let mut device = Device::new();
    device.offer(2);
    device.offer(5);
    device.take();
    device.take();
    device.answer(&[2]);
    let area = device.camera()().area;
    let number = |at: usize| u16::from_ne_bytes([area[at], area[at + 1]]);
    // Features, version, number of descriptors, head of the last batch, used index.
    assert_eq!((&area[..8], [8, 10, 12, 14].map(number)), (&[0; 8][..], [1, SIZE, 2, 1]));
    // Marks and counters of the descriptors 2 and 5.
    assert_eq!((area[16 + 2 * 16], area[16 + 5 * 16], area[16 + 5 * 16 + 8]), (0, 1, 1));
}

#[test]
fn a_region_whose_shape_cannot_be_is_refused() {
    for (queues, size) in [(0, 8), (257, 8), (1, 0), (1, 1025)] {
        assert_eq!(Area::create(queues, size).err(), Some(Broken::InflightShape { queues, size }));
    }
    let map = |file: u64, len, offset| {
        Area::map(Arc::new(memfd(file)), Shape { len, offset, queues: 2, queue_size: SIZE }).err()
    };
    let needed = 2 * 192;
    assert_eq!(map(needed, needed, 0), None);
    assert_eq!(map(needed + 8, needed, 8), None);
    assert!(matches!(map(needed + 8, 1 << 60, 8), Some(Broken::FileTooShort { .. })), "the length is the file's");
    assert_eq!(map(needed, needed - 1, 0), Some(Broken::InflightLength { len: needed - 1, offset: 0, needed }));
    assert_eq!(map(needed + 4, needed, 4), Some(Broken::InflightLength { len: needed, offset: 4, needed }));
    assert_eq!(map(needed, needed, 8), Some(Broken::FileTooShort { size: needed, needed: needed + 8 }));
    assert!(matches!(map(needed, needed, u64::MAX - 7), Some(Broken::FileTooShort { .. })));
}
