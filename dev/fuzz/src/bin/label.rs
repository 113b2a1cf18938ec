//! Fuzzes labels of members: what is accepted is the label that the superblock asks for, to the bit.
#![no_main]

use sheave_vol::format::kind;
use sheave_vol::page::label;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let sb = sheave_fuzz::superblock(0, 16, 3);
    for number in 1..sb.members.len() {
        let start = sb.members[number].0;
        for block in [sheave_fuzz::block(data), sheave_fuzz::sealed(data, kind::LABEL, start)] {
            if label::verify(&block, &sb, number).is_ok() {
                let mut again = [0; 4096];
                assert_eq!(label::encode(&mut again, &sb, number), start);
                // The size may be that of the day when the member came.
                assert!(again[..64] == block[..64] || again[64..72] == block[64..72]);
            }
        }
    }
});
