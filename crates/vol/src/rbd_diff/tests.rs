//! Round trips of both versions, and streams that must be refused.

use proptest::prelude::*;

use super::*;

fn identity(seed: u64) -> Identity {
    Identity {
        pool: [seed as u8; 16],
        volume: 7,
        created: seed,
        size: 1 << 20,
        written: 8192,
        layout: !seed,
        unique: Some([!seed as u8; 16]),
    }
}

fn header() -> Header {
    Header {
        from: Some("monday".into()),
        to: Some("tuesday".into()),
        size: 1 << 20,
        from_identity: Some(identity(1)),
        to_identity: Some(identity(2)),
    }
}

/// Returns a stream with 5,000 bytes of data at 4096 and zeroes at 65536.
fn stream(version: Version) -> Vec<u8> {
    let mut bytes = begin(version, &header());
    bytes.extend(data(version, 4096, 5000));
    bytes.extend((0..5000).map(|byte| byte as u8));
    bytes.extend(zeroes(version, 65536, 4096));
    bytes.extend(END);
    bytes
}

type Range = (Record, Vec<u8>);

/// Reads a whole stream.
fn read(bytes: &[u8]) -> Result<(Header, Vec<Range>), DiffError> {
    let (mut reader, header) = Reader::begin(bytes)?;
    let mut all = Vec::new();
    loop {
        let record = reader.next()?;
        let mut data = Vec::new();
        let mut buf = [0; 1000];
        if let Record::Data { len, .. } = record {
            while (data.len() as u64) < len {
                let now = reader.data(&mut buf)?;
                data.extend(&buf[..now]);
            }
        }
        all.push((record, data));
        if record == Record::End {
            return Ok((header, all));
        }
    }
}

#[test]
fn both_versions_come_back() {
    for version in [Version::V1, Version::V2] {
        let (found, records) = read(&stream(version)).expect("a diff");
        let mut wanted = header();
        if version == Version::V1 {
            (wanted.from_identity, wanted.to_identity) = (None, None);
        }
        assert_eq!(found, wanted);
        let kinds: Vec<Record> = records.iter().map(|(record, _)| *record).collect();
        let data = Record::Data { pos: 4096, len: 5000 };
        assert_eq!(kinds, [data, Record::Zeroes { pos: 65536, len: 4096 }, Record::End]);
        assert!(records[0].1.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }
}

/// Compares the encoding with the examples in Ceph's page of the format, byte by byte.
#[test]
fn the_bytes_are_those_of_the_format() {
    let plain = Header { from: Some("a".into()), to: Some("bc".into()), size: 258, ..Header::default() };
    let one = b"rbd diff v1\nf\x01\0\0\0at\x02\0\0\0bcs\x02\x01\0\0\0\0\0\0";
    assert_eq!(begin(Version::V1, &plain), one);
    let two = b"rbd diff v2\nf\x05\0\0\0\0\0\0\0\x01\0\0\0at\x06\0\0\0\0\0\0\0\x02\0\0\0bc\
                s\x08\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0";
    assert_eq!(begin(Version::V2, &plain), two);
    assert_eq!(data(Version::V1, 1, 2), b"w\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
    assert_eq!(data(Version::V2, 1, 2), b"w\x12\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
    assert_eq!(zeroes(Version::V2, 1, 2), b"z\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
}

/// Older programs read identity records of 80 bytes and skip all others with tag 'i'.
#[test]
fn random_bits_are_a_record_of_their_own_that_older_programs_skip() {
    let with = begin(Version::V2, &header());
    let mut old = header();
    for identity in [&mut old.from_identity, &mut old.to_identity] {
        identity.as_mut().expect("is there").unique = None;
    }
    let without = begin(Version::V2, &old);
    let mut record = b"i\x20\0\0\0\0\0\0\0shv-id-2t\0\0\0\0\0\0\0".to_vec();
    record.extend([0xfd; 16]);
    assert!(with.ends_with(&record) && with.len() == without.len() + 2 * record.len());
    let (found, _) = read(&[without.as_slice(), END].concat()).expect("a diff");
    assert_eq!(found, old, "a stream of an older program");
    let zero = record.len() - 16;
    record[zero..].fill(0);
    for (bytes, word) in [
        ([&without, &record, END].concat(), "all zero"),
        ([&begin(Version::V2, &Header::default()), &record, END].concat(), "before the identity"),
        ([&with, &with[with.len() - record.len()..], END].concat(), "twice"),
    ] {
        let error = read(&bytes).expect_err(word);
        assert!(error.what.contains(word), "{word}: {error}");
    }
}

#[test]
fn random_bits_decide_identity_and_their_absence_gives_alike() {
    let one = identity(1);
    assert_eq!(one.compare(&one.pool([9; 16]).volume(3)), Likeness::Same);
    // A snapshot that was deleted and taken again within a second, over other data in the same places.
    assert_eq!(one.compare(&one.unique(Some([7; 16]))), Likeness::Other);
    for other in [one.created(2), one.size(1), one.written(1), one.layout(1)] {
        assert_eq!((one.compare(&other), one.unique(None).compare(&other)), (Likeness::Other, Likeness::Other));
    }
    for (one, other) in [(one, one.unique(None)), (one.unique(None), one), (one.unique(None), one.unique(None))] {
        assert_eq!(one.compare(&other), Likeness::Alike);
    }
}

#[test]
fn a_stream_that_was_cut_off_is_an_error_wherever_the_cut_is() {
    for version in [Version::V1, Version::V2] {
        let whole = stream(version);
        for len in 0..whole.len() {
            let error = read(&whole[..len]).expect_err("cut off");
            assert!(error.what.contains("cut off"), "{len}: {error}");
            assert!(error.at <= len as u64, "{error}");
        }
    }
}

#[test]
fn what_no_diff_may_have_is_refused() {
    let plain = Header { size: 8192, ..Header::default() };
    let begun = begin(Version::V2, &plain);
    let with = |parts: &[&[u8]]| [begun.as_slice(), &parts.concat(), END].concat();
    let zero = |pos, len| zeroes(Version::V2, pos, len);
    let long = [b"q".as_slice(), &u64::MAX.to_le_bytes()].concat();
    for (bytes, word) in [
        (b"rbd image v2".to_vec(), "does not begin"),
        ([b"rbd diff v1\n".as_slice(), END].concat(), "no size"),
        ([b"rbd diff v1\nq".as_slice(), END].concat(), "no record 'q'"),
        (with(&[b"s\x08\0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0"]), "twice"),
        (with(&[b"s\x09\0\0\0\0\0\0\0"]), "another length"),
        (with(&[b"f\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff"]), "a snapshot's name has 4294967295 bytes"),
        (with(&[&zero(4096, 4096), &zero(0, 1)]), "overlaps"),
        (with(&[&zero(0, 4097), &zero(4096, 1)]), "overlaps"),
        (with(&[&zero(4096, 4097)]), "beyond the size"),
        (with(&[&zero(u64::MAX, 2)]), "beyond the size"),
        (with(&[&data(Version::V2, 0, u64::MAX)]), "another length"),
        (with(&[b"z\x11\0\0\0\0\0\0\0", &[0; 16]]), "another length"),
        (with(&[&zero(0, 1), b"t\x04\0\0\0\0\0\0\0\0\0\0\0"]), "between ranges"),
        (with(&[&long]), "an unknown record has"),
        (with(&[END]), "something follows"),
    ] {
        let error = read(&bytes).expect_err(word);
        assert!(error.what.contains(word), "{word}: {error}");
    }
    let known = with(&[b"q\x02\0\0\0\0\0\0\0??", &zero(0, 1), b"Q\0\0\0\0\0\0\0\0"]);
    assert_eq!(read(&known).expect("unknown records are skipped").1.len(), 2);
}

proptest! {
    /// Any bytes give an error, or ranges that ascend within the size (D2).
    #[test]
    fn any_bytes_are_a_diff_or_an_error(
        version in 0..2usize, at in 0..400usize, with in proptest::collection::vec(any::<u8>(), 1..40)
    ) {
        let mut bytes = stream([Version::V1, Version::V2][version]);
        let at = at.min(bytes.len());
        let end = (at + with.len()).min(bytes.len());
        bytes.splice(at..end, with);
        if let Ok((header, records)) = read(&bytes) {
            let mut last = 0;
            for (record, _) in records {
                let (Record::Data { pos, len } | Record::Zeroes { pos, len }) = record else { continue };
                prop_assert!(pos >= last && pos + len <= header.size);
                last = pos + len;
            }
        }
    }
}
