//! Certificates made for one test, in files whose names programs with GnuTLS expect.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose};

/// A certificate authority, and a directory for the certificates that it issues.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: tempfile::TempDir,
}

impl Authority {
    /// Creates an authority, and a certificate for a server ([`Authority::server`]).
    ///
    /// # Panics
    ///
    /// Panics if certificates cannot be made or written.
    #[expect(clippy::new_without_default, reason = "each one is another")]
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

    /// Issues a certificate. Returns a directory with `ca-cert.pem`, the authority's certificate, and the new
    /// certificate and key both as a client's (`client-cert.pem`, `client-key.pem`) and as a server's.
    ///
    /// # Panics
    ///
    /// Panics if the files cannot be made or written.
    pub fn issue(&self, name: &str, common_name: &str) -> PathBuf {
        self.issue_for_days(name, common_name, (-1, 365))
    }

    /// Same as [`Authority::issue`], valid for the days `from..until`, counted from now.
    ///
    /// # Panics
    ///
    /// Panics if the files cannot be made or written.
    pub fn issue_for_days(&self, name: &str, common_name: &str, (from, until): (i64, i64)) -> PathBuf {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
        let day = |days: i64| {
            let seconds = now.as_secs().checked_add_signed(days * 86_400).expect("it is later than 1970");
            rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds)
        };
        let dir = self.dir.path().join(name);
        fs::create_dir_all(&dir).expect("made");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into()]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, common_name);
        (params.not_before, params.not_after) = (day(from), day(until));
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        self.put(&dir, "ca-cert.pem", &self.issuer.pem());
        for whose in ["client", "server"] {
            self.put(&dir, &format!("{whose}-cert.pem"), &certificate.pem());
            self.put(&dir, &format!("{whose}-key.pem"), &key.serialize_pem());
        }
        dir
    }

    /// Returns the directory of the server's certificate.
    pub fn server(&self) -> PathBuf {
        self.dir.path().join("server")
    }

    /// Returns the directory of a client that has the authority's certificate but no certificate of its own.
    ///
    /// # Panics
    ///
    /// Panics if the file cannot be written.
    pub fn anonymous(&self) -> PathBuf {
        let dir = self.dir.path().join("anonymous");
        fs::create_dir_all(&dir).expect("made");
        self.put(&dir, "ca-cert.pem", &self.issuer.pem());
        dir
    }

    fn put(&self, dir: &Path, name: &str, text: &str) {
        fs::write(dir.join(name), text).expect("written");
    }
}
