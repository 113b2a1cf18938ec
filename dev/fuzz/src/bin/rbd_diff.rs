//! Fuzzes the reader of diffs. Whatever the bytes are, it ends, and its ranges ascend and lie within the size.
#![no_main]

use sheave_vol::rbd_diff::{Reader, Record};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for banner in [&b""[..], b"rbd diff v1\n", b"rbd diff v2\n"] {
        let bytes = [banner, data].concat();
        let Ok((mut reader, header)) = Reader::begin(bytes.as_slice()) else { continue };
        let mut last = 0;
        while let Ok(record) = reader.next() {
            let (Record::Data { pos, len } | Record::Zeroes { pos, len }) = record else { break };
            assert!(pos >= last && pos.checked_add(len).is_some_and(|end| end <= header.size));
            last = pos + len;
        }
    }
});
