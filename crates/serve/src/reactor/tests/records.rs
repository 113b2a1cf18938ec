//! A TLS client that shares the thread with the reactor, and never blocks.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use sheave_base::sync::Arc;
use sheave_testkit::certificates::Authority;

use super::{Bench, ServerOptions};
use crate::tls::{Tls, TlsFiles};

/// Returns the TLS of a server with a certificate of this authority.
pub(super) fn server(authority: &Authority) -> Tls {
    let dir = authority.server();
    let files =
        TlsFiles { certificate: dir.join("server-cert.pem"), key: dir.join("server-key.pem"), ..TlsFiles::default() };
    Tls::load(&files, true).expect("the files are right")
}

/// Returns the TLS session of a client that trusts this authority, before its handshake.
pub(super) fn client(authority: &Authority) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(authority.server().join("ca-cert.pem")).expect("a certificate");
    roots.add(ca).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(Arc::new(config), name).expect("a client")
}

/// Sends and receives the records of a TLS session. Returns the number of plaintext bytes received.
pub(super) fn pump(tls: &mut ClientConnection, socket: &mut UnixStream) -> usize {
    let mut got = 0;
    loop {
        while tls.wants_write() {
            tls.write_tls(socket).expect("the socket has room");
        }
        match tls.read_tls(socket) {
            Ok(0) => panic!("the client was dropped"),
            Ok(_) => _ = tls.process_new_packets().expect("records"),
            Err(error) if error.kind() == ErrorKind::WouldBlock && !tls.wants_write() => return got,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
        let mut bytes = [0; 1 << 14];
        while let Ok(len @ 1..) = tls.reader().read(&mut bytes) {
            got += len;
        }
    }
}

impl Bench {
    /// Does the same as [`Bench::new`], with a client that uses TLS.
    pub(super) fn with_tls(client_bytes: u64) -> Option<Bench> {
        let authority = Authority::new();
        let options = ServerOptions { client_bytes, ..ServerOptions::default() };
        let mut bench = Bench::connected(options, Some(server(&authority)))?;
        bench.waits(b"\0\0\0\x03IHAVEOPT\0\0\0\x05\0\0\0\0", 18 + 20);
        bench.tls = Some(client(&authority));
        bench.waits(b"IHAVEOPT\0\0\0\x01\0\0\0\x01x", 10);
        Some(bench)
    }

    /// Sends bytes from the client.
    pub(super) fn say(&mut self, words: &[u8]) {
        match &mut self.tls {
            None => self.client.write_all(words).expect("the socket has room"),
            Some(tls) => tls.writer().write_all(words).expect("there is room"),
        }
    }

    /// Receives at the client. Returns the number of bytes from the server.
    pub(super) fn take(&mut self) -> usize {
        if let Some(tls) = &mut self.tls {
            return pump(tls, &mut self.client);
        }
        let (mut bytes, mut got) = (vec![0; 1 << 16], 0);
        loop {
            match self.client.read(&mut bytes) {
                Ok(0) => panic!("the client was dropped"),
                Ok(len) => got += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return got,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
