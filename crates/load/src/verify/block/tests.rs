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
