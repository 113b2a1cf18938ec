//! Tests of blocks: each kind of damage gets its name.

use super::*;

const WHO: Identity = Identity { run: 77, address: 1 << 20, generation: 5 };

fn sealed(who: Identity) -> Vec<u8> {
    let mut block = vec![0xAA; 4096];
    seal(&mut block, who);
    block
}

#[test]
fn a_right_block_is_right() {
    assert_eq!(check(&sealed(WHO), WHO), Ok(()));
    let mut small = vec![0; 512];
    seal(&mut small, WHO);
    assert_eq!(check(&small, WHO), Ok(()));
}

#[test]
fn every_wrong_byte_is_found() {
    let right = sealed(WHO);
    for at in 0..right.len() {
        let mut block = right.clone();
        block[at] ^= 0x10;
        assert!(check(&block, WHO).is_err(), "byte {at} changed and nobody noticed");
    }
}

#[test]
fn findings() {
    assert_eq!(check(&[0; 4096], WHO), Err(Finding::Zeroes));
    assert_eq!(check(&[1; 4096], WHO), Err(Finding::Foreign));
    let other = Identity { run: 78, ..WHO };
    assert_eq!(check(&sealed(other), WHO), Err(Finding::OtherRun(other)));
    let elsewhere = Identity { address: 4096, ..WHO };
    assert_eq!(check(&sealed(elsewhere), WHO), Err(Finding::Misplaced(elsewhere)));
    let old = Identity { generation: 4, ..WHO };
    assert_eq!(check(&sealed(old), WHO), Err(Finding::Stale(old)));
    let early = Identity { generation: 6, ..WHO };
    assert_eq!(check(&sealed(early), WHO), Err(Finding::Early(early)));
}

#[test]
fn a_torn_write_is_damage_from_its_sector_on() {
    let mut block = sealed(WHO);
    block[2048..].copy_from_slice(&sealed(Identity { generation: 4, ..WHO })[2048..]);
    assert_eq!(check(&block, WHO), Err(Finding::Damaged { says: WHO, from: 2048, to: 4096 }));
}

#[test]
fn generations_differ_in_every_sector() {
    let (one, two) = (sealed(WHO), sealed(Identity { generation: 6, ..WHO }));
    for (at, (a, b)) in one.chunks(512).zip(two.chunks(512)).enumerate() {
        assert_ne!(a, b, "sector {at}");
    }
}

#[test]
fn what_a_run_left_proves_itself() {
    let mut block = sealed(WHO);
    block.extend_from_slice(b"more");
    assert_eq!(left(&block), Left::Ours(4096), "wherever it lies");
    assert_eq!(left(&block[..4000]), Left::More(4096));
    assert_eq!(left(&[0; 600]), Left::Ours(512));
    let mut zeroed = block.clone();
    zeroed[1024..2048].fill(0);
    assert_eq!(left(&zeroed), Left::Ours(4096), "a part was discarded");
    let mut plain = vec![0; 16 << 10];
    fill_plain(&mut plain);
    zeroed[2048..3072].copy_from_slice(&plain[9 * 512..11 * 512]);
    assert_eq!(left(&zeroed), Left::Ours(4096), "a later run wrote into it");
    for sector in plain.chunks_exact_mut(512) {
        assert_eq!(left(sector), Left::Ours(512));
        sector[300] ^= 1;
        assert_eq!(left(sector), Left::Foreign);
    }
    for at in (0..4096).step_by(97) {
        let mut other = block.clone();
        other[at] ^= 0x40;
        assert_eq!(left(&other), Left::Foreign, "byte {at}");
    }
    assert_eq!((left(b"text"), left(&[1; 512])), (Left::Foreign, Left::Foreign));
    let mut huge = block;
    huge[28..32].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(left(&huge), Left::Foreign, "no run writes such a block");
}
