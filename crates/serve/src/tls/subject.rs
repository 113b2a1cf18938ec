//! The common names in the subject of a certificate.
//!
//! A certificate is DER: each value has a tag, a length and that many bytes. What is looked for lies at a fixed place:
//! `Certificate { tbs { [0] version?, serial, algorithm, issuer, validity, subject ..`, and a subject is a sequence of
//! sets of pairs of a number for the kind and a string (RFC 5280, 4.1). What does not look like that has no names.

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const VERSION: u8 = 0xa0;
/// UTF8String, PrintableString and IA5String are taken: all that authorities write today. All three are UTF-8 too.
const STRINGS: [u8; 3] = [0x0c, 0x13, 0x16];
/// `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// Most names of one subject.
const MAX_NAMES: usize = 16;

/// Takes a value from the front: its tag, and its bytes.
fn value<'a>(der: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0usize, |len, byte| len << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (inner, rest) = rest.split_at_checked(len)?;
    *der = rest;
    Some((tag, inner))
}

/// Takes a value of this tag.
fn expect<'a>(der: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    value(der).filter(|(found, _)| *found == tag).map(|(_, inner)| inner)
}

/// The subject of a certificate.
fn subject(mut certificate: &[u8]) -> Option<&[u8]> {
    let mut outer = expect(&mut certificate, SEQUENCE)?;
    let mut tbs = expect(&mut outer, SEQUENCE)?;
    if tbs.first() == Some(&VERSION) {
        value(&mut tbs)?;
    }
    for _serial_algorithm_issuer_validity in 0..4 {
        value(&mut tbs)?;
    }
    expect(&mut tbs, SEQUENCE)
}

/// The common names in the subject of a certificate; none where there is none, or where it is no certificate.
pub(crate) fn common_names(certificate: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let Some(mut subject) = subject(certificate) else { return names };
    while let Some(mut set) = expect(&mut subject, SET) {
        while let Some(mut pair) = expect(&mut set, SEQUENCE) {
            let is_name = expect(&mut pair, OID) == Some(COMMON_NAME);
            if let (true, Some((tag, text))) = (is_name, value(&mut pair))
                && STRINGS.contains(&tag)
                && let Ok(text) = str::from_utf8(text)
                && names.len() < MAX_NAMES
            {
                names.push(text.to_owned());
            }
        }
    }
    names
}
