//! Fuzzes pages of checksums: if a page can be decoded, its marks lie in the region, and it has only one encoding.
#![no_main]

use sheave_vol::format::{HEADER, MAX_SUMS, kind};
use sheave_vol::page::{PagePlace, sums};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let geometry = sheave_fuzz::geometry(data);
    let data = data.get(1..).unwrap_or_default();
    for block in [sheave_fuzz::block(data), sheave_fuzz::sealed(data, kind::SUMS, sheave_fuzz::ADDRESS)] {
        let (expect, mut numbers) = (sheave_fuzz::expect(&block), [0; MAX_SUMS]);
        let Ok(found) = sums::decode(&block, &geometry, &expect, &mut numbers) else { continue };
        let count = geometry.region_units() as usize * geometry.unit_blocks;
        let marked = |at: usize| found.marked[at >> 6] >> (at & 63) & 1 != 0;
        assert!((count..MAX_SUMS).all(|at| !marked(at)), "no mark is beyond the region");
        assert!((0..count).all(|at| !marked(at) || numbers[at] == 0), "a marked block has no checksum");
        let place = PagePlace {
            pool: sheave_fuzz::POOL,
            generation: 0,
            address: sheave_fuzz::ADDRESS,
            second: 0,
            index: expect.index,
            owner: 0,
        };
        let mut again = [0; 4096];
        sums::encode(&mut again, &geometry, &place, found.open, &numbers, &found.marked);
        assert!(again[HEADER..] == block[HEADER..], "one encoding for one page");
    }
});
