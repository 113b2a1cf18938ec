//! TLS configurations of a server, with certificates of one test.
#![allow(dead_code)] // Each program of tests uses a part.

use sheave_serve::{Tls, TlsFiles};
use sheave_testkit::certificates::Authority;

fn files(authority: &Authority) -> TlsFiles {
    let dir = authority.server();
    TlsFiles { certificate: dir.join("server-cert.pem"), key: dir.join("server-key.pem"), ..TlsFiles::default() }
}

/// Returns TLS that does not ask clients for certificates.
pub fn tls(authority: &Authority, required: bool) -> Tls {
    Tls::load(&files(authority), required).expect("the files are right")
}

/// Returns TLS that admits clients with a certificate of the authority; if `allow` is not empty, only those with one of
/// its common names.
pub fn tls_for(authority: &Authority, allow: &[&str]) -> Tls {
    let client_ca = Some(authority.server().join("ca-cert.pem"));
    let allow = allow.iter().map(|&name| name.into()).collect();
    Tls::load(&TlsFiles { client_ca, allow, ..files(authority) }, true).expect("the files are right")
}
