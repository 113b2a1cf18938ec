//! Fuzzes labels of members: a label that is accepted equals the one that the superblock implies, bit for bit.
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
                // The size in the label may be the one from the day when the member was added.
                assert!(again[..64] == block[..64] || again[64..72] == block[64..72]);
            }
        }
    }
});
