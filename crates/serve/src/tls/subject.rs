//! Parser for two fields of a certificate: the common names in its subject, and the period in which it is valid.
//!
//! A certificate is DER: each value has a tag, a length and that many bytes. Both fields lie at a fixed place:
//! `Certificate { tbs { [0] version?, serial, algorithm, issuer, validity, subject ..`. A subject is a sequence of sets
//! of pairs of an OID for the kind and a string (RFC 5280, 4.1). Anything of another form has no names.

use jiff::civil::Date;
use jiff::tz::TimeZone;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// UTF8String, PrintableString and IA5String: all that authorities write today. The bytes of all three are valid UTF-8.
const STRINGS: [u8; 3] = [0x0c, 0x13, 0x16];
/// `id-at-commonName`, 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
/// Most names of one subject.
const MAX_NAMES: usize = 16;

/// Takes a value from the front. Returns its tag and its bytes.
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

/// Takes a value from the front, which must have this tag.
fn expect<'a>(der: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    value(der).filter(|(found, _)| *found == tag).map(|(_, inner)| inner)
}

/// Returns a certificate's bytes from its validity on.
fn from_validity(mut certificate: &[u8]) -> Option<&[u8]> {
    let mut outer = expect(&mut certificate, SEQUENCE)?;
    let mut tbs = expect(&mut outer, SEQUENCE)?;
    if tbs.first() == Some(&VERSION) {
        value(&mut tbs)?;
    }
    for _serial_algorithm_issuer in 0..3 {
        value(&mut tbs)?;
    }
    Some(tbs)
}

/// Returns the subject of a certificate.
fn subject(certificate: &[u8]) -> Option<&[u8]> {
    let mut tbs = from_validity(certificate)?;
    let _validity = value(&mut tbs)?;
    expect(&mut tbs, SEQUENCE)
}

/// Returns begin and end of a certificate's validity, in seconds since 1970.
pub(crate) fn validity(certificate: &[u8]) -> Option<(i64, i64)> {
    let mut validity = expect(&mut from_validity(certificate)?, SEQUENCE)?;
    Some((time(&mut validity)?, time(&mut validity)?))
}

/// Takes a time: UTCTime `YYMMDDhhmmssZ`, whose years are 1950 to 2049, or GeneralizedTime `YYYYMMDDhhmmssZ`
/// (RFC 5280, 4.1.2.5).
fn time(der: &mut &[u8]) -> Option<i64> {
    let (tag, text) = value(der)?;
    let text = str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<i64>().ok())?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = text.split_at_checked(2)?;
            let year = number(year)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = text.split_at_checked(4)?;
            (number(year)?, rest)
        }
        _ => return None,
    };
    let part = |at: usize| i8::try_from(number(rest.get(at..at + 2)?)?).ok();
    if rest.len() != 10 {
        return None;
    }
    let day = Date::new(year.try_into().ok()?, part(0)?, part(2)?).ok()?;
    let at = day.at(part(4)?, 0, 0, 0).to_zoned(TimeZone::UTC).ok()?;
    Some(at.timestamp().as_second() + i64::from(part(6)?) * 60 + i64::from(part(8)?))
}

/// Returns the common names in the subject of a certificate. Empty if it has none or does not parse.
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
