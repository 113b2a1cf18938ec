//! A sector is recognised as a whole or not at all.

use super::*;

#[test]
fn a_sector_says_who_wrote_it() {
    let mut bytes = [0; SECTOR];
    assert_eq!(identify(1, &bytes), Seen::Zero);
    fill(1, 9, 2, 77, &mut bytes);
    let seen = identify(1, &bytes);
    assert_eq!(seen, Seen::Written { value: 9, volume: 2, sector: 77 });
    assert_eq!((seen.value_at(77), seen.value_at(78)), (Some(9), None));
    assert_eq!(identify(2, &bytes), Seen::Nobodys, "another run's");
}

#[test]
fn every_byte_counts() {
    let mut bytes = [0; SECTOR];
    fill(1, 9, 2, 77, &mut bytes);
    for at in 0..SECTOR {
        let mut wrong = bytes;
        wrong[at] ^= 1;
        assert_eq!(identify(1, &wrong), Seen::Nobodys, "byte {at}");
        let mut dirt = [0; SECTOR];
        dirt[at] = 1;
        assert_eq!(identify(1, &dirt), Seen::Nobodys, "byte {at}");
    }
}
