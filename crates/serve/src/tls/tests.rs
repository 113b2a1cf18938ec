//! Tests of certificate files, usable and not, and of names in certificates.

use rcgen::{CertificateParams, DistinguishedName as Name, DnType, KeyPair};

use super::*;

fn certificate(names: &[(DnType, &str)]) -> (rcgen::Certificate, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
    params.distinguished_name = Name::new();
    names.iter().for_each(|(kind, name)| params.distinguished_name.push(kind.clone(), *name));
    (params.self_signed(&key).expect("a certificate"), key)
}

#[test]
fn common_names_are_found_whatever_stands_beside_them() {
    let names = [(DnType::CountryName, "DE"), (DnType::CommonName, "backup.example"), (DnType::OrganizationName, "x")];
    assert_eq!(common_names(certificate(&names).0.der()), ["backup.example"]);
    assert_eq!(common_names(certificate(&[(DnType::OrganizationName, "backup.example")]).0.der()), [""; 0]);
    // A length that takes more than one byte.
    let long = "n".repeat(300);
    assert_eq!(common_names(certificate(&[(DnType::CommonName, &long)]).0.der()), [long]);
}

#[test]
fn the_time_in_which_a_certificate_is_valid_is_read_in_both_forms() {
    let seconds = |days: i64| days * 86_400;
    // Days from `date -u -d DATE +%s` over 86400: leap days, both ends of the range of the short form, and years beyond
    // it.
    let cases = [
        ((1950, 1, 1), -7305),
        ((1970, 1, 1), 0),
        ((2000, 2, 29), 11_016),
        ((2026, 11, 28), 20_785),
        ((2049, 12, 31), 29_219),
        ((2050, 1, 1), 29_220),
        ((2100, 3, 1), 47_541),
    ];
    for ((year, month, day), since_1970) in cases {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
        params.not_before = rcgen::date_time_ymd(year, month, day);
        params.not_after = rcgen::date_time_ymd(4095, 12, 31);
        let certificate = params.self_signed(&key).expect("a certificate");
        assert_eq!(subject::validity(certificate.der()), Some((seconds(since_1970), seconds(776_505))), "{year}");
    }
}

#[test]
fn any_bytes_parse_without_panic() {
    let (whole, _) = certificate(&[(DnType::CommonName, "someone")]);
    let whole = whole.der().to_vec();
    for cut in 0..whole.len() {
        common_names(&whole[..cut]);
        subject::validity(&whole[..cut]);
        for wrong in [0, 0x7f, 0x80, 0x84, 0xff] {
            let mut bytes = whole.clone();
            bytes[cut] = wrong;
            common_names(&bytes);
            subject::validity(&bytes);
        }
    }
    assert_eq!(common_names(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), [""; 0]);
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_cause_and_the_fix() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let put = |name: &str, text: &str| {
        std::fs::write(path(name), text).expect("written");
        path(name)
    };
    let ((one, key), (_, other)) = (certificate(&[]), certificate(&[]));
    let certificate = put("certificate", &one.pem());
    let files = TlsFiles { certificate, key: put("key", &key.serialize_pem()), ..TlsFiles::default() };
    Tls::load(&files, true).expect("these are right");
    let ca = Some(put("ca", &one.pem()));
    Tls::load(&TlsFiles { client_ca: ca.clone(), allow: vec!["x".into()], ..files.clone() }, true).expect("right, too");

    let why = |files: &TlsFiles| Tls::load(files, true).expect_err("wrong").to_string();
    let with_key = |key| TlsFiles { key, ..files.clone() };
    let with_certificate = |certificate| TlsFiles { certificate, ..files.clone() };
    let empty = put("empty", "");
    let cases = [
        (with_key(path("missing")), "missing: No such file"),
        (with_key(put("odd", include_str!("rsa-2432-throwaway.pem"))), "RSA of 2048, 3072 or 4096 bits"),
        (with_key(empty.clone()), "empty: there is no key in it. Give a PEM file with the key"),
        (with_key(put("other", &other.serialize_pem())), "other: certificate or key: keys may not be consistent"),
        (with_key(put("torn", &key.serialize_pem()[..60])), "torn: it is no PEM file"),
        (with_certificate(empty.clone()), "empty: there is no certificate in it. Give a PEM file with the server's"),
        (with_certificate(put("long", &" ".repeat(tls::MAX_FILE as usize + 1))), "long: it has more than 1 MiB"),
        (TlsFiles { client_ca: Some(empty), ..files.clone() }, "empty: there is no certificate in it. Give a PEM file"),
        (TlsFiles { allow: vec!["x".into()], ..files.clone() }, "say which authority (CA) has issued these"),
    ];
    for (files, words) in cases {
        let why = why(&files);
        assert!(why.contains(words), "{why}\nshould say: {words}");
    }
}
