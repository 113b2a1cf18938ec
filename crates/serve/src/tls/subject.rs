//! The common names in the subject of a certificate, and the date until which it is valid.
//!
//! A certificate is DER: each value has a tag, a length and that many bytes. What is looked for lies at a fixed place:
//! `Certificate { tbs { [0] version?, serial, algorithm, issuer, validity, subject ..`, and a subject is a sequence of
//! sets of pairs of a number for the kind and a string (RFC 5280, 4.1). What does not look like that has no names.

use std::time::SystemTime;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
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

/// The validity of a certificate, and its subject.
fn validity_and_subject(mut certificate: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut outer = expect(&mut certificate, SEQUENCE)?;
    let mut tbs = expect(&mut outer, SEQUENCE)?;
    if tbs.first() == Some(&VERSION) {
        value(&mut tbs)?;
    }
    for _serial_algorithm_issuer in 0..3 {
        value(&mut tbs)?;
    }
    Some((expect(&mut tbs, SEQUENCE)?, expect(&mut tbs, SEQUENCE)?))
}

/// The moment from which on a certificate is not valid any more; `None` where no date can be read.
pub(crate) fn not_after(certificate: &[u8]) -> Option<SystemTime> {
    let (mut validity, _) = validity_and_subject(certificate)?;
    let _not_before = value(&mut validity)?;
    let (tag, text) = value(&mut validity)?;
    let text = str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let number = |from: usize, len: usize| text.get(from..from + len)?.parse::<i16>().ok();
    // RFC 5280, 4.1.2.5: two digits of a year are of 1950 to 2049.
    let (year, from) = match tag {
        UTC_TIME => (number(0, 2).map(|year| if year < 50 { 2000 + year } else { 1900 + year })?, 2),
        GENERALIZED_TIME => (number(0, 4)?, 4),
        _ => return None,
    };
    let part = |at: usize| number(from + 2 * at, 2)?.try_into().ok();
    let day = jiff::civil::Date::new(year, part(0)?, part(1)?).ok()?;
    let time = jiff::civil::Time::new(part(2)?, part(3)?, part(4)?, 0).ok()?;
    day.to_datetime(time).to_zoned(jiff::tz::TimeZone::UTC).ok().map(|at| at.timestamp().into())
}

/// The common names in the subject of a certificate; none where there is none, or where it is no certificate.
pub(crate) fn common_names(certificate: &[u8]) -> Vec<String> {
    let mut names = Vec::new();
    let Some((_, mut subject)) = validity_and_subject(certificate) else { return names };
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
