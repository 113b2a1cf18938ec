//! Files that can be used, files that cannot, and names in certificates.

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
    // A length of more than one byte.
    let long = "n".repeat(300);
    assert_eq!(common_names(certificate(&[(DnType::CommonName, &long)]).0.der()), [long]);
}

#[test]
fn the_end_of_a_certificate_is_read_of_either_kind_of_date() {
    let until = |year: i32| {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".into()]).expect("parameters");
        params.not_after = rcgen::date_time_ymd(year, 2, 28);
        not_after(params.self_signed(&key).expect("a certificate").der())
    };
    let seconds = |at: u64| Some(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(at));
    // `date -u -d 1999-02-28 +%s` and so on; from 2050 on certificates have dates of four digits.
    assert_eq!(until(1999), seconds(920_160_000));
    assert_eq!(until(2027), seconds(1_803_772_800));
    assert_eq!(until(2050), seconds(2_529_619_200));
}

#[test]
fn no_bytes_panic_it() {
    let (whole, _) = certificate(&[(DnType::CommonName, "someone")]);
    let whole = whole.der().to_vec();
    for cut in 0..whole.len() {
        (common_names(&whole[..cut]), not_after(&whole[..cut]));
        for wrong in [0, 0x7f, 0x80, 0x84, 0xff] {
            let mut bytes = whole.clone();
            bytes[cut] = wrong;
            (common_names(&bytes), not_after(&bytes));
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
