//! Tests of the configuration space and of requests in every layout.

use proptest::prelude::*;

use super::*;
use crate::queue::Queue;
use crate::rig::{DATA, Driver};

const SIZE: u64 = 1 << 20;

fn config() -> Config {
    let limits = Limits { max_sectors: 1024, alignment: 8, may_unmap: true };
    Config {
        size: SIZE,
        block_bytes: 512,
        physical_bytes: 4096,
        optimal_bytes: 65536,
        read_only: false,
        writeback: true,
        discard: Some(limits),
        write_zeroes: Some(limits),
    }
}

/// Guest addresses of a header, of data and of a status.
const HEADER: u64 = DATA;
const BODY: u64 = DATA + 0x1000;
const STATUS: u64 = DATA + 0x9000;

struct Rig {
    driver: Driver,
    queue: Queue,
    chain: Chain,
}

impl Rig {
    /// Makes a guest whose header has a type and a sector, and whose chain has these parts.
    fn new(kind: u32, sector: u64, parts: &[(u64, u32, bool)]) -> Rig {
        let mut driver = Driver::new(64, 1);
        driver.at(HEADER, 4).write(0, &kind.to_le_bytes());
        driver.at(HEADER + 4, 4).write(0, &[0xff; 4]); // Reserved.
        driver.at(HEADER + 8, 8).write(0, &sector.to_le_bytes());
        driver.at(STATUS, 1).store_u8(0, 0xee, Ordering::Relaxed);
        driver.chain(0, parts);
        driver.offer(0);
        let queue = Queue::new(&driver.setup, driver.memory.clone(), 0, None).expect("rings");
        Rig { driver, queue, chain: Chain::default() }
    }

    fn parse(&mut self, config: &Config) -> Result<Parsed, Broken> {
        assert_eq!(self.queue.take(&mut self.chain), Ok(true));
        parse(&mut self.chain, &self.driver.memory, config)
    }

    fn request(&mut self) -> Request {
        match self.parse(&config()).expect("a sound chain") {
            Parsed::Request(request) => request,
            refused => panic!("{refused:?}"),
        }
    }

    fn code(&mut self, config: &Config) -> Code {
        match self.parse(config).expect("a sound chain") {
            Parsed::Refused { code, status, head: 0 } => {
                status.write(&self.driver.memory, code).expect("mapped");
                assert_eq!(self.driver.at(STATUS, 1).load_u8(0), code as u8);
                code
            }
            other => panic!("{other:?}"),
        }
    }

    fn bytes(&self, data: &[Span]) -> Vec<u8> {
        let mut bytes = vec![0; data.iter().map(Span::len).sum()];
        self.driver.memory.copy_from(data, &mut bytes).expect("mapped");
        bytes
    }
}

fn usual(kind: u32, sector: u64, len: u32, device_writes: bool) -> Rig {
    Rig::new(kind, sector, &[(HEADER, 16, false), (BODY, len, device_writes), (STATUS, 1, true)])
}

/// Makes a DISCARD or WRITE_ZEROES.
fn ranged(kind: u32, sector: u64, sectors: u32, flags: u32) -> Rig {
    let rig = usual(kind, 77, 16, false);
    rig.driver.at(BODY, 8).write(0, &sector.to_le_bytes());
    rig.driver.at(BODY + 8, 4).write(0, &sectors.to_le_bytes());
    rig.driver.at(BODY + 12, 4).write(0, &flags.to_le_bytes());
    rig
}

#[test]
fn a_read_and_a_write_have_their_range_and_their_data() {
    let mut rig = usual(blk::IN, 8, 4096, true);
    let request = rig.request();
    assert_eq!((request.kind, request.head, request.offset, request.len), (Kind::In, 0, 4096, 4096));
    assert_eq!(request.data(&rig.chain), [rig.driver.span(BODY, 4096)]);
    assert_eq!(request.status.write(&rig.driver.memory, Code::Ok), Ok(4097));
    assert_eq!(rig.driver.at(STATUS, 1).load_u8(0), 0);

    let mut rig = usual(blk::OUT, 0, 512, false);
    let request = rig.request();
    assert_eq!((request.kind, request.offset, request.len), (Kind::Out, 0, 512));
    assert_eq!(request.data(&rig.chain), [rig.driver.span(BODY, 512)]);
    assert_eq!(request.status.write(&rig.driver.memory, Code::IoError), Ok(1));
    assert_eq!(rig.driver.at(STATUS, 1).load_u8(0), 1);
}

#[test]
fn a_flush_and_a_question_for_the_serial_number_have_no_range() {
    let mut rig = Rig::new(blk::FLUSH, 99, &[(HEADER, 16, false), (STATUS, 1, true)]);
    let request = rig.request();
    assert_eq!((request.kind, request.offset, request.len), (Kind::Flush, 0, 0));
    assert!(request.data(&rig.chain).is_empty());

    let mut rig = usual(blk::GET_ID, 0, 20, true);
    let request = rig.request();
    write_id(&rig.driver.memory, request.data(&rig.chain), b"volume-1").expect("mapped");
    assert_eq!(rig.bytes(request.data(&rig.chain)), b"volume-1\0\0\0\0\0\0\0\0\0\0\0\0");
    write_id(&rig.driver.memory, request.data(&rig.chain), b"a number of more than twenty").expect("mapped");
    assert_eq!(rig.bytes(request.data(&rig.chain)), b"a number of more tha");
    assert_eq!(request.status.write(&rig.driver.memory, Code::Ok), Ok(21));
}

#[test]
fn ranges_without_data_come_from_the_body() {
    let request = ranged(blk::DISCARD, 16, 8, 0).request();
    assert_eq!((request.kind, request.offset, request.len), (Kind::Discard, 8192, 4096));
    let request = ranged(blk::WRITE_ZEROES, 16, 1024, 0).request();
    assert_eq!((request.kind, request.offset, request.len), (Kind::WriteZeroes { unmap: false }, 8192, 524288));
    assert_eq!(ranged(blk::WRITE_ZEROES, 16, 8, 1).request().kind, Kind::WriteZeroes { unmap: true });
}

#[test]
fn unknown_types_and_flags_and_several_ranges_are_not_supported() {
    for kind in [2, 3, 5, 10, 12, 14, 16, u32::MAX] {
        assert_eq!(usual(kind, 0, 512, true).code(&config()), Code::Unsupported);
    }
    assert_eq!(ranged(blk::DISCARD, 0, 8, 1).code(&config()), Code::Unsupported);
    assert_eq!(ranged(blk::WRITE_ZEROES, 0, 8, 2).code(&config()), Code::Unsupported);
    assert_eq!(usual(blk::DISCARD, 0, 32, false).code(&config()), Code::Unsupported);
    let none = Config { discard: None, write_zeroes: None, ..config() };
    assert_eq!(ranged(blk::DISCARD, 0, 8, 0).code(&none), Code::Unsupported);
    assert_eq!(ranged(blk::WRITE_ZEROES, 0, 8, 0).code(&none), Code::Unsupported);
}

#[test]
fn a_range_that_the_device_does_not_have_is_an_error() {
    let last = SIZE / 512;
    for (sector, len) in [(last, 512), (last - 1, 1024), (u64::MAX, 512), (u64::MAX / 512, 512), (0, 0), (0, 513)] {
        assert_eq!(usual(blk::IN, sector, len, true).code(&config()), Code::IoError, "{sector} {len}");
        assert_eq!(usual(blk::OUT, sector, len, false).code(&config()), Code::IoError, "{sector} {len}");
    }
    assert_eq!(usual(blk::IN, last - 1, 512, true).request().offset, SIZE - 512);
    for (sector, sectors) in [(last, 1), (last - 1, 2), (u64::MAX, 1), (1 << 55, 1), (0, 0), (0, 1025)] {
        assert_eq!(ranged(blk::DISCARD, sector, sectors, 0).code(&config()), Code::IoError, "{sector} {sectors}");
        assert_eq!(ranged(blk::WRITE_ZEROES, sector, sectors, 0).code(&config()), Code::IoError);
    }
    for len in [0, 15, 17] {
        assert_eq!(usual(blk::DISCARD, 0, len, false).code(&config()), Code::IoError);
    }
    let blocks = Config { block_bytes: 4096, ..config() };
    for (sector, len) in [(1, 4096), (8, 512), (4, 512)] {
        let request = usual(blk::OUT, sector, len, false).parse(&blocks);
        assert!(matches!(request, Ok(Parsed::Request(_))), "a driver need not mind blocks: {request:?}");
    }
    assert_eq!(usual(blk::OUT, 8, 4095, false).code(&blocks), Code::IoError);
}

#[test]
fn a_device_that_is_read_only_is_not_written() {
    let config = Config { read_only: true, ..config() };
    assert_eq!(usual(blk::OUT, 0, 512, false).code(&config), Code::IoError);
    assert_eq!(ranged(blk::DISCARD, 0, 8, 0).code(&config), Code::Unsupported);
    assert_eq!(ranged(blk::WRITE_ZEROES, 0, 8, 0).code(&config), Code::Unsupported);
    assert!(matches!(usual(blk::IN, 0, 512, true).parse(&config), Ok(Parsed::Request(_))));
}

#[test]
fn a_chain_without_room_for_header_or_status_breaks_the_queue() {
    let parse = |parts: &[(u64, u32, bool)]| Rig::new(blk::FLUSH, 0, parts).parse(&config());
    assert_eq!(parse(&[(STATUS, 1, true)]), Err(Broken::NoHeader { head: 0 }));
    assert_eq!(parse(&[(HEADER, 15, false), (STATUS, 1, true)]), Err(Broken::NoHeader { head: 0 }));
    assert_eq!(parse(&[(HEADER, 16, false)]), Err(Broken::NoStatus { head: 0 }));
    assert_eq!(parse(&[(HEADER, 16, false), (STATUS, 0, true)]), Err(Broken::NoStatus { head: 0 }));
}

#[test]
fn the_status_is_the_last_byte_also_of_a_longer_descriptor() {
    let mut rig = Rig::new(blk::IN, 0, &[(HEADER, 16, false), (STATUS - 512, 513, true)]);
    let request = rig.request();
    assert_eq!((request.len, request.data(&rig.chain)), (512, &[rig.driver.span(STATUS - 512, 512)][..]));
    assert_eq!(request.status.write(&rig.driver.memory, Code::Ok), Ok(513));
    assert_eq!(rig.driver.at(STATUS, 1).load_u8(0), 0);
}

#[test]
fn more_pieces_than_the_kernel_accepts_are_an_error() {
    let mut driver = Driver::new(1024, 2);
    driver.at(HEADER, 16).write(0, &[0; 16]);
    // The header, 1022 pieces, and a status; two of the pieces cross into the next region.
    let border = crate::rig::GUEST + crate::rig::REGION - 256;
    let mut parts = vec![(HEADER, 16, false)];
    parts.extend(vec![(BODY, 512, true); 1019]);
    parts.extend([(border, 512, true); 3]);
    parts.push((STATUS, 1, true));
    driver.chain(0, &parts);
    driver.offer(0);
    let mut queue = Queue::new(&driver.setup, driver.memory.clone(), 0, None).expect("rings");
    let mut chain = Chain::default();
    // The bound of the queue is lower still for such a chain.
    assert_eq!(queue.take(&mut chain), Err(Broken::TooManySpans { head: 0 }));
    let spans = vec![driver.span(BODY, 512); MAX_DATA_SPANS + 1];
    assert_eq!(range_of_data(0, &spans, 512 * 1025, &Config { size: 1 << 40, ..config() }), Err(Code::IoError));
    assert!(range_of_data(0, &spans[1..], 512 * 1024, &Config { size: 1 << 40, ..config() }).is_ok());
}

#[test]
fn the_configuration_space_has_every_field_at_its_offset() {
    let space = config().space(5, true);
    let u16_at = |at: usize| u16::from_le_bytes([space[at], space[at + 1]]);
    let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
    assert_eq!(space[..8], (SIZE / 512).to_le_bytes());
    assert_eq!([8, 12, 20, 28].map(u32_at), [262144, 126, 512, 128]);
    assert_eq!((space[24], space[25], u16_at(26), space[32], u16_at(34)), (3, 0, 8, 1, 5));
    assert_eq!([36, 40, 44, 48, 52].map(u32_at), [1024, 1, 8, 1024, 1]);
    assert_eq!(space[56], 1);
    assert!(space[57..].iter().all(|byte| *byte == 0));
    assert_eq!(config().space(5, false)[32], 0);
    let read_only = Config { read_only: true, ..config() }.space(1, false);
    assert!(read_only[36..].iter().all(|byte| *byte == 0), "nothing to discard");
    let odd = Config { block_bytes: 4096, physical_bytes: 512, optimal_bytes: 0, size: 1000, ..config() };
    assert_eq!((odd.space(1, false)[0], odd.space(1, false)[24]), (1, 0));
}

proptest! {
    #[test]
    fn header_and_status_are_found_however_they_are_split(
        cuts in prop::collection::btree_set(1..528u32, 0..6), write: bool, with_status in 0..3u32,
    ) {
        // Header and data are adjacent in memory and cut anywhere.
        let kind = if write { blk::OUT } else { blk::IN };
        let mut parts = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([528]) {
            // The header is readable, so a cut is where the direction changes.
            for (start, end) in [(from, cut.min(16)), (from.max(16), cut)] {
                if start < end {
                    parts.push((HEADER + u64::from(start), end - start, start >= 16 && !write));
                }
            }
            from = cut;
        }
        if write {
            parts.push((STATUS - u64::from(with_status), 1 + with_status, true));
        } else if with_status == 0 {
            // The status follows the data in the same descriptor.
            parts.last_mut().expect("data").1 += 1;
        } else {
            parts.push((STATUS, 1, true));
        }
        let mut rig = Rig::new(kind, 3, &parts);
        let data: Vec<u8> = (0..512u32).map(|at| at as u8).collect();
        rig.driver.at(HEADER + 16, 512).write(0, &data);
        let request = rig.request();
        prop_assert_eq!((request.offset, request.len), (1536, 512));
        let spans = request.data(&rig.chain);
        prop_assert!(spans.iter().skip(1).all(|span| !span.is_empty()));
        prop_assert_eq!(rig.bytes(spans), data);
        let written = if write { 1 + with_status } else { 513 };
        prop_assert_eq!(request.status.write(&rig.driver.memory, Code::Ok), Ok(written));
        let at = if !write && with_status == 0 { HEADER + 528 } else { STATUS };
        prop_assert_eq!(rig.driver.at(at, 1).load_u8(0), 0);
    }

    #[test]
    fn no_header_and_no_body_make_the_parser_panic(
        kind in prop_oneof![0..17u32, any::<u32>()], sector: u64, body in prop::collection::vec(any::<u8>(), 64),
        len in 0..64u32, write: bool,
    ) {
        let mut rig = usual(kind, sector, len, write);
        rig.driver.at(BODY, 64).write(0, &body);
        if let Parsed::Request(request) = rig.parse(&config()).expect("header and status are there") {
            prop_assert!(request.offset.checked_add(request.len).is_some_and(|end| end <= SIZE));
        }
    }
}
