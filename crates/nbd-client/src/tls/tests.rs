//! The files that the keys of TLS must name, and errors that contain no private key.

use std::fs;

use sheave_testkit::certificates::Authority;

use super::*;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_the_cause_and_the_fix() {
    let authority = Authority::new();
    let dir = authority.issue("client", "a client");
    let path = |name: &str| dir.join(name);
    let put = |name: &str, words: &str| fs::write(path(name), words).expect("written");
    let others = Authority::new();
    let other = others.issue("client", "another");
    let key = fs::read_to_string(path("client-key.pem")).expect("read");
    put("empty.pem", "");
    put("torn.pem", &key[..60]);
    put("other-key.pem", &fs::read_to_string(other.join("client-key.pem")).expect("read"));
    let load = |ca: &str, own: Option<(&str, &str)>, host| {
        let paths = own.map(|(cert, key)| (path(cert), path(key)));
        let own = paths.as_ref().map(|(cert, key)| (text(cert), text(key)));
        Tls::load(Wish::Require, text(&path(ca)), own, host)
    };
    let own = Some(("client-cert.pem", "client-key.pem"));
    let tls = load("ca-cert.pem", own, "localhost").expect("these are right");
    load("ca-cert.pem", None, "127.0.0.1").expect("an address is a name");
    let shown = format!("{tls:?} {:?}", Secure::new(&tls).expect("begun"));
    let secret: String = key.lines().filter(|line| !line.starts_with('-')).collect();
    assert!(!shown.contains(&secret[..16]) && !shown.contains("Key"), "L1: {shown}");
    for (ca, own, host, says) in [
        ("missing.pem", None, "localhost", "missing.pem: No such file"),
        ("empty.pem", None, "localhost", "empty.pem: there is no certificate in it. Give a PEM file"),
        ("ca-cert.pem", Some(("empty.pem", "client-key.pem")), "localhost", "cert="),
        ("ca-cert.pem", Some(("client-cert.pem", "empty.pem")), "localhost", "there is no key in it"),
        ("ca-cert.pem", Some(("client-cert.pem", "torn.pem")), "localhost", "it is no PEM file"),
        ("ca-cert.pem", Some(("client-cert.pem", "other-key.pem")), "localhost", "keys may not be consistent"),
        ("ca-cert.pem", None, "no host", "tls-hostname=NAME"),
    ] {
        let why = load(ca, own, host).expect_err("wrong");
        assert!(why.contains(says), "{why}, not: {says}");
        assert!(!why.contains(&secret[..16]), "L1: {why}");
    }
}
