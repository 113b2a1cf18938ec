//! Fuzzes journal records: a record that can be decoded has only one encoding.
#![no_main]

use sheave_vol::record::Record;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let geometry = sheave_fuzz::geometry(data);
    let mut rest = data.get(1..).unwrap_or_default();
    let (mut at_once, mut one_by_one) = (Vec::new(), Vec::new());
    let all = Record::decode_all(&geometry, rest, &mut at_once);
    while let Ok((record, len)) = Record::decode(&geometry, rest) {
        let mut again = vec![0; len];
        assert_eq!(record.encode(&geometry, &mut again), Some(len));
        assert_eq!(&again[..], &rest[..len]);
        rest = &rest[len..];
        one_by_one.push(record);
    }
    assert_eq!((all.is_ok(), at_once), (rest.is_empty(), one_by_one));
});
