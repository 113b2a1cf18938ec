//! Tests which blocks a request touches, and which bytes of them are kept.

use super::*;
use crate::payload::Pool;

fn write(offset: u64, len: u64) -> Request {
    Request { command: Command::Write, flags: 0, cookie: 0, offset, len, contexts: 0 }
}

#[test]
fn a_request_is_cut_into_its_edges_and_the_blocks_between() {
    let cut = |offset, len| {
        let it = Unaligned::of(&write(offset, len), 512)?;
        Some((
            it.blocks,
            it.edges.iter().map(|edge| (edge.offset, edge.front, edge.back)).collect::<Vec<_>>(),
            it.inner().1,
        ))
    };
    assert_eq!(cut(512, 1024), None);
    assert_eq!(cut(3, 0), None);
    assert_eq!(cut(1, 7), Some(((0, 512), vec![(0, 1, 504)], 0)));
    assert_eq!(cut(512, 7), Some(((512, 512), vec![(512, 0, 505)], 0)));
    assert_eq!(cut(1000, 24), Some(((512, 512), vec![(512, 488, 0)], 0)));
    assert_eq!(cut(511, 2), Some(((0, 1024), vec![(0, 511, 0), (512, 0, 511)], 0)));
    assert_eq!(cut(100, 412), Some(((0, 512), vec![(0, 100, 0)], 0)));
    assert_eq!(cut(100, 924), Some(((0, 1024), vec![(0, 100, 0)], 512)));
    assert_eq!(cut(0, 1025), Some(((0, 1536), vec![(1024, 0, 511)], 1024)));
    assert_eq!(cut(1, 2000), Some(((0, 2048), vec![(0, 1, 0), (1536, 0, 47)], 1024)));
    let inner = |offset, len| Unaligned::of(&write(offset, len), 512).expect("in parts").inner();
    assert_eq!((inner(1, 2000), inner(0, 1025), inner(100, 924)), ((512, 1024), (0, 1024), (512, 512)));
}

/// Returns a byte of the file.
fn was(at: u64) -> u8 {
    2 + (at % 200) as u8
}

#[test]
fn what_stays_of_the_edges_is_put_around_the_data() {
    for (align, offset, len) in [(1, 100, 7), (512, 100, 500), (4096, 1, 2000), (512, 512, 513), (4096, 511, 1)] {
        let request = write(offset, len);
        let it = Unaligned::of(&request, 512).expect("in parts");
        let shape = it.shape(&request, align);
        let mut pool = Pool::new();
        let mut payload = pool.take(&shape, Pool::cost(&shape), false).expect("there is memory");
        payload.fill(0, &vec![1; len as usize]);
        for number in 0..it.edges.len() {
            let at = payload.aside_at() + number * it.stride(align);
            // The bytes of the block, as they were read.
            let block: Vec<u8> = (0..512).map(|byte| was(it.edges[number].offset + byte)).collect();
            payload.bytes_mut(at, 512).copy_from_slice(&block);
        }
        it.surround(&mut payload);
        let (start, bytes) = it.blocks;
        for place in 0..bytes {
            let is_data = (offset..offset + len).contains(&(start + place));
            let expected = if is_data { 1 } else { was(start + place) };
            let found = payload.bytes(payload.blocks_at() + place as usize, 1)[0];
            assert_eq!(found, expected, "{align} {offset} {len} {place}");
        }
        // The same for zeroes.
        it.zero(&mut payload);
        for (number, edge) in it.edges.iter().enumerate() {
            let aside = payload.bytes(payload.aside_at() + number * it.stride(align), 512);
            let zeroes = aside.iter().filter(|byte| **byte == 0).count();
            assert_eq!(zeroes, 512 - edge.front - edge.back);
            assert!(aside[edge.front..512 - edge.back].iter().all(|byte| *byte == 0));
        }
    }
}
