//! Limits as devices report them, and the arithmetic of boundaries.

use proptest::prelude::*;

use super::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_device_claims_the_invariants_hold(
        sizes in any::<[u32; 7]>(),
        max_segments in any::<u16>(),
        queue_depth in any::<u16>(),
        sector in any::<u64>(),
    ) {
        let [logical_block, physical_block, max_sectors, chunk_sectors, dma, discard, zeroes] = sizes;
        let limits = Limits {
            logical_block,
            physical_block,
            max_sectors,
            max_segments,
            chunk_sectors,
            dma_alignment: dma,
            max_discard_sectors: discard,
            max_write_zeroes_sectors: zeroes,
            queue_depth,
        }.normalized();
        let block = limits.logical_block;
        prop_assert!(block.is_power_of_two() && (512..=65536).contains(&block), "I1");
        prop_assert!(limits.physical_block >= block);
        let (discard, zeroes) = (limits.max_discard_sectors, limits.max_write_zeroes_sectors);
        for sectors in [limits.max_sectors, limits.chunk_sectors, discard, zeroes] {
            prop_assert_eq!(sectors % (block >> 9), 0, "I1");
        }
        prop_assert!(limits.dma_alignment.is_power_of_two());
        prop_assert!((1..=MAX_DEPTH).contains(&limits.queue_depth) && limits.max_segments > 0);
        prop_assert_eq!(limits.clone().normalized(), limits.clone(), "once is enough");
        let sector = sector - sector % u64::from(block >> 9);
        for op in [Op::Read, Op::Write] {
            let bytes = limits.max_bytes_at(op, sector);
            prop_assert!(bytes > 0 && bytes <= limits.max_bytes(op), "I2");
            prop_assert_eq!(bytes % block, 0);
        }
    }
}

#[test]
fn up_to_the_boundary_and_no_further() {
    let limits = Limits { max_sectors: 100, chunk_sectors: 64, max_discard_sectors: 1000, ..Limits::default() };
    assert_eq!(limits.max_bytes_at(Op::Read, 0), 64 * 512);
    assert_eq!(limits.max_bytes_at(Op::Read, 63), 512);
    assert_eq!(limits.max_bytes_at(Op::Discard, 64 + 32), 32 * 512);
    assert_eq!(limits.max_bytes_at(Op::WriteZeroes, 0), 0, "the device has no such operation");
    let limits = Limits { chunk_sectors: 0, ..limits };
    assert_eq!(limits.max_bytes_at(Op::Read, 63), 100 * 512);
    let huge = Limits { max_sectors: u32::MAX, chunk_sectors: u32::MAX, ..Limits::default() }.normalized();
    assert_eq!(huge.max_bytes_at(Op::Write, 0), u32::MAX - 511, "as much as a bio can say");
}
