//! Properties of the decoders of all blocks: any flipped bit is detected, garbage is refused, nothing panics.

use proptest::prelude::*;

use sheave_base::rng::Rng;

use super::samples;
use super::*;
use crate::format::kind;

#[test]
fn samples_decode() {
    for (name, block, decode) in samples::of_1m() {
        assert_eq!(decode(&block), Ok(()), "{name}");
    }
}

#[test]
fn every_flipped_bit_is_noticed_and_named() {
    for (name, mut block, decode) in samples::of_1m() {
        for bit in 0..BLOCK * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            let damage = decode(&block).expect_err(name);
            let named = matches!(damage, Damage::Checksum { .. } | Damage::Alien);
            assert!(named, "{name}, bit {bit}: {damage:?}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn every_byte_overwritten_is_noticed() {
    for (name, mut block, decode) in samples::of_1m() {
        for at in 0..BLOCK {
            let was = block[at];
            for value in [0, 0xFF, was ^ 0x55] {
                block[at] = value;
                assert_eq!(decode(&block).is_ok(), value == was, "{name}, byte {at} = {value}");
            }
            block[at] = was;
        }
    }
}

#[test]
fn torn_blocks_are_noticed() {
    for (name, block, decode) in samples::of_1m() {
        for (other_name, other, _) in samples::of_1m() {
            for sector in 1..8 {
                let mut torn = other;
                torn[..sector * 512].copy_from_slice(&block[..sector * 512]);
                let whole = torn == block || torn[..] == block[..];
                assert_eq!(decode(&torn).is_ok(), whole, "{sector} sectors of {name} over {other_name}");
            }
        }
    }
}

#[test]
fn a_block_is_refused_as_any_other_kind_and_at_any_other_place() {
    let samples = samples::of_1m();
    for (name, block, _) in &samples {
        for (other, _, decode) in &samples {
            assert_eq!(decode(block).is_ok(), name == other, "{name} as {other}");
        }
        let (head, _) = identify(block).expect("a valid block");
        assert_eq!(
            open(block, head.kind, Some(&head.pool), head.address + 4096),
            Err(Damage::Misplaced { says: head.address })
        );
        assert_eq!(open(block, head.kind, Some(&[1; 16]), head.address), Err(Damage::Foreign));
    }
}

#[test]
fn blank_and_newer_blocks_are_told_apart() {
    assert_eq!(identify(&[0; BLOCK]), Err(Damage::Blank));
    let mut block = [0; BLOCK];
    block[9] = 1;
    assert_eq!(identify(&block), Err(Damage::Alien));
    let (_, mut newer, decode) = samples::of_1m().remove(0);
    newer[6] = 2;
    let sum = checksum(&newer);
    newer[8..12].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(decode(&newer), Err(Damage::TooNew { version: 2 }));
    assert!(Damage::TooNew { version: 2 }.to_string().contains("version 2"));
}

/// Gives a damaged block a valid checksum, as an attacker would, or a bug that seals wrong content.
fn reseal(block: &mut Block) {
    let sum = checksum(block);
    block[8..12].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn mutated_and_resealed_blocks_never_panic() {
    for seed in sheave_testkit::seeds(8) {
        let mut rng = Rng::new(seed);
        for (name, sample, decode) in samples::of_1m() {
            for round in 0..4000 {
                let mut block = sample;
                for _ in 0..1 + rng.below(4) {
                    let at = rng.below(BLOCK as u64) as usize;
                    // Half of the changes go to the first 256 bytes, where most fields lie.
                    let at = if rng.percent(50) { at % 256 } else { at };
                    block[at] = match rng.below(4) {
                        0 => 0,
                        1 => 0xFF,
                        2 => block[at] ^ (1 << rng.below(8)),
                        _ => rng.draw() as u8,
                    };
                }
                reseal(&mut block);
                let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| decode(&block).is_ok()));
                assert!(result.is_ok(), "SHEAVE_SEED={seed}, {name}, round {round}: panicked");
            }
        }
    }
}

#[test]
fn what_is_reserved_must_be_zero() {
    for (name, sample, decode) in samples::of_1m() {
        let mut block = sample;
        block[14] = 1;
        reseal(&mut block);
        assert!(decode(&block).is_err(), "{name}: reserved of the header");
        let mut block = sample;
        if block[BLOCK - 1] == 0 && name != "index" {
            block[BLOCK - 1] = 1;
            reseal(&mut block);
            assert!(decode(&block).is_err(), "{name}: the tail");
        }
    }
}

proptest! {
    #[test]
    fn heads_survive(
        kind in 0..=kind::FREE, level in 0u16..5, pool: [u8; 16], generation: u64, address: u64, index: u64, owner: u32,
        count: u32, filler: u8,
    ) {
        let head = Head { kind, level, pool, generation, address, index, owner, count };
        let mut block = [filler; BLOCK];
        let sum = seal(&mut block, &head);
        prop_assert_eq!(identify(&block), Ok((head, sum)));
    }

    #[test]
    fn garbage_is_refused(bytes in proptest::collection::vec(any::<u8>(), BLOCK)) {
        let mut block = [0; BLOCK];
        block.copy_from_slice(&bytes);
        for (name, _, decode) in samples::of_1m() {
            prop_assert!(decode(&block).is_err(), "{}", name);
            block[..4].copy_from_slice(&crate::format::MAGIC);
            prop_assert!(decode(&block).is_err(), "{}", name);
        }
    }
}
