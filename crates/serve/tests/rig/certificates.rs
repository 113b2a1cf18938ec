//! Certificates that are made for one test.
#![allow(dead_code)] // Each program of tests uses a part.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};
use sheave_serve::{Tls, TlsFiles};

/// An authority, and a directory with what it has issued, under the names that GnuTLS's programs look for.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let issuer =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("it signs itself");
        let authority = Authority { issuer, dir: tempfile::tempdir().expect("a directory") };
        authority.issue("server", "the server");
        authority
    }

    /// The directory of somebody with this certificate: the authority's, and certificate and key as a client's and as a
    /// server's.
    pub fn issue(&self, name: &str, common_name: &str) -> PathBuf {
        let dir = self.dir.path().join(name);
        fs::create_dir_all(&dir).expect("made");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, common_name);
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        self.put(&dir, "ca-cert.pem", &self.issuer.pem());
        for whose in ["client", "server"] {
            self.put(&dir, &format!("{whose}-cert.pem"), &certificate.pem());
            self.put(&dir, &format!("{whose}-key.pem"), &key.serialize_pem());
        }
        dir
    }

    /// The directory of who knows the authority, and has no certificate.
    pub fn anonymous(&self) -> PathBuf {
        let dir = self.dir.path().join("anonymous");
        fs::create_dir_all(&dir).expect("made");
        self.put(&dir, "ca-cert.pem", &self.issuer.pem());
        dir
    }

    fn put(&self, dir: &Path, name: &str, text: &str) {
        fs::write(dir.join(name), text).expect("written");
    }

    fn files(&self) -> TlsFiles {
        let dir = self.dir.path().join("server");
        TlsFiles { certificate: dir.join("server-cert.pem"), key: dir.join("server-key.pem"), ..TlsFiles::default() }
    }

    /// TLS that asks clients for nothing.
    pub fn tls(&self, required: bool) -> Tls {
        Tls::load(&self.files(), required).expect("the files are right")
    }

    /// TLS that lets those in whom the authority knows, by these names if there are some.
    pub fn tls_for(&self, allow: &[&str]) -> Tls {
        let client_ca = Some(self.dir.path().join("server/ca-cert.pem"));
        let allow = allow.iter().map(|&name| name.into()).collect();
        Tls::load(&TlsFiles { client_ca, allow, ..self.files() }, true).expect("the files are right")
    }
}
