//! Encodes the records of a stream.

use super::{BANNERS, Header, IDENTITY_BYTES, IDENTITY_MAGIC, Identity, UNIQUE_BYTES, UNIQUE_MAGIC, Version};

/// Last record of a stream.
pub const END: &[u8] = b"e";

/// Encodes the banner and all metadata. Omits identities in version 1, which has no place for them.
pub fn begin(version: Version, header: &Header) -> Vec<u8> {
    let mut bytes = BANNERS[version as usize].to_vec();
    for (tag, name) in [(b'f', &header.from), (b't', &header.to)] {
        if let Some(name) = name {
            let mut body = (name.len() as u32).to_le_bytes().to_vec();
            body.extend_from_slice(name.as_bytes());
            put(&mut bytes, version, tag, &body, 0);
        }
    }
    put(&mut bytes, version, b's', &header.size.to_le_bytes(), 0);
    if version == Version::V2 {
        for (whose, identity) in [(b'f', &header.from_identity), (b't', &header.to_identity)] {
            if let Some(identity) = identity {
                put(&mut bytes, version, b'i', &encode(whose, identity), 0);
                if let Some(unique) = identity.unique {
                    put(&mut bytes, version, b'i', &encode_unique(whose, unique), 0);
                }
            }
        }
    }
    bytes
}

/// Encodes the head of a range of data; the caller writes the `len` bytes of data behind it.
pub fn data(version: Version, pos: u64, len: u64) -> Vec<u8> {
    range(version, b'w', pos, len, len)
}

/// Encodes a range that reads as zeroes.
pub fn zeroes(version: Version, pos: u64, len: u64) -> Vec<u8> {
    range(version, b'z', pos, len, 0)
}

fn range(version: Version, tag: u8, pos: u64, len: u64, follows: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32);
    put(&mut bytes, version, tag, &[pos.to_le_bytes(), len.to_le_bytes()].concat(), follows);
    bytes
}

/// Appends one record. Its length counts `follows` further bytes, which the caller writes behind it.
fn put(bytes: &mut Vec<u8>, version: Version, tag: u8, body: &[u8], follows: u64) {
    bytes.push(tag);
    if version == Version::V2 {
        bytes.extend_from_slice(&(body.len() as u64).saturating_add(follows).to_le_bytes());
    }
    bytes.extend_from_slice(body);
}

/// Encodes an identity: `shv-id-1`, the tag `whose` and seven zeroes, pool, volume and four zeroes, created, size,
/// written, layout, a reserved word.
fn encode(whose: u8, identity: &Identity) -> Vec<u8> {
    let mut bytes = IDENTITY_MAGIC.to_vec();
    bytes.extend_from_slice(&u64::from(whose).to_le_bytes());
    bytes.extend_from_slice(&identity.pool);
    for word in [u64::from(identity.volume), identity.created, identity.size, identity.written, identity.layout, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    debug_assert_eq!(bytes.len(), IDENTITY_BYTES);
    bytes
}

/// Encodes random bits: `shv-id-2`, the tag `whose` and seven zeroes, the bits.
fn encode_unique(whose: u8, unique: [u8; 16]) -> [u8; UNIQUE_BYTES] {
    let mut bytes = [0; UNIQUE_BYTES];
    bytes[..8].copy_from_slice(UNIQUE_MAGIC);
    bytes[8] = whose;
    bytes[16..].copy_from_slice(&unique);
    bytes
}
