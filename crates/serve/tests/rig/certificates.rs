//! TLS of a server, with certificates of one test.
#![allow(dead_code)] // Each program of tests uses a part.

use sheave_serve::{Tls, TlsFiles};
use sheave_testkit::certificates::Authority;

fn files(authority: &Authority) -> TlsFiles {
    let dir = authority.server();
    TlsFiles { certificate: dir.join("server-cert.pem"), key: dir.join("server-key.pem"), ..TlsFiles::default() }
}

/// TLS that asks clients for nothing.
pub fn tls(authority: &Authority, required: bool) -> Tls {
    Tls::load(&files(authority), required).expect("the files are right")
}

/// TLS that lets those in whom the authority knows, by these names if there are some.
pub fn tls_for(authority: &Authority, allow: &[&str]) -> Tls {
    let client_ca = Some(authority.server().join("ca-cert.pem"));
    let allow = allow.iter().map(|&name| name.into()).collect();
    Tls::load(&TlsFiles { client_ca, allow, ..files(authority) }, true).expect("the files are right")
}
