//! The state as it is written and read, what version 1 has written, and what a stranger may send.

use proptest::prelude::*;

use super::*;

/// The JSON object of version 1 with everything that it may have. A later program must read it: do not change it.
const STATE_1: &[u8] = include_bytes!("state-1.json");

fn framed(version: u32, json: &[u8], bytes: &[u8]) -> Vec<u8> {
    let lengths = [json.len(), bytes.len()].map(|len| (len as u64).to_le_bytes());
    [&MAGIC[..], &version.to_le_bytes(), &[0; 4], &lengths[0], &lengths[1], json, bytes].concat()
}

#[test]
fn the_state_of_version_1_is_read_in_full() {
    let bytes = [7; 44];
    let all = framed(1, STATE_1, &bytes);
    let (blob, rest) = Blob::decode(&all).expect("it is whole");
    assert_eq!(rest, bytes);
    let again = serde_json::to_value(&blob).expect("written");
    let first: serde_json::Value = serde_json::from_slice(STATE_1).expect("it is JSON");
    // Everything of the first is in the second, which may have more.
    fn has(more: &serde_json::Value, less: &serde_json::Value) -> bool {
        match (more, less) {
            (serde_json::Value::Object(more), serde_json::Value::Object(less)) => {
                less.iter().all(|(key, value)| more.get(key).is_some_and(|found| has(found, value)))
            }
            (serde_json::Value::Array(more), serde_json::Value::Array(less)) => {
                more.len() == less.len() && more.iter().zip(less).all(|(more, less)| has(more, less))
            }
            (more, less) => more == less,
        }
    }
    assert!(has(&again, &first), "{again:#}");
    assert_eq!(blob.server.clients.len(), 4);
    assert!(blob.added[0].plan().is_ok());
}

#[test]
fn a_memfd_gives_back_what_was_written_and_cannot_be_changed() {
    let (blob, _) = Blob::decode(&framed(1, STATE_1, &[])).map(|(blob, rest)| (blob, rest.len())).expect("whole");
    let fd = blob.write(b"bytes").expect("written");
    assert!(File::from(fd.try_clone().expect("cloned")).write_all_at(b"x", 0).is_err(), "it is sealed");
    assert_eq!(Blob::read(fd).expect("read"), (blob, b"bytes".to_vec()));
    let open = rustix::fs::memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    assert!(Blob::read(open).is_err(), "one that is not sealed is refused");
}

#[test]
fn other_versions_and_lengths_are_refused() {
    for version in [0, STATE_VERSION + 1, u32::MAX] {
        let error = Blob::decode(&framed(version, b"{}", b"")).expect_err("refused");
        assert!(error.to_string().contains("version"), "{error}");
    }
    let whole = framed(1, STATE_1, b"bytes");
    for cut in 0..whole.len() {
        assert!(Blob::decode(&whole[..cut]).is_err(), "{cut}");
    }
    assert!(Blob::decode(&[&whole[..], b"x"].concat()).is_err());
    let mut long = whole;
    long[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(Blob::decode(&long).is_err());
}

#[test]
fn missing_fields_have_their_default() {
    let all = framed(1, b"{\"unknown\": [1]}", b"");
    assert_eq!(Blob::decode(&all).expect("read").0, Blob::default());
}

proptest! {
    #[test]
    fn whatever_is_sent_is_read_or_refused(at in 0..STATE_1.len(), with: Vec<u8>, cut in 0..40usize) {
        let end = (at + cut).min(STATE_1.len());
        let json = [&STATE_1[..at], &with, &STATE_1[end..]].concat();
        let all = framed(1, &json, &with);
        if let Ok((blob, _)) = Blob::decode(&all) {
            blob.added.iter().for_each(|added| _ = added.plan());
        }
    }
}
