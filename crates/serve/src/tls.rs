//! TLS of a listening socket: the server's certificate and key, and the clients that are let in.
//!
//! Owns the configuration, made from PEM files before anything listens. The TLS session of a connection is in
//! `reactor/tls_stream.rs`.
//!
//! Invariants:
//! - T1. A client is let in if its certificate was issued by the given authority and, if names are given, one of the
//!   subject's common names is among them. The chain is verified first: names are read only from a verified
//!   certificate.
//! - T2. A file that is longer than [`tls::MAX_FILE`], or does not have the expected content, is an error before
//!   anything listens.

mod subject;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore, ServerConfig,
    SignatureScheme,
};
use sheave_base::sync::Arc;
use sheave_nbd::tls::{self, Fix};

use crate::error::ServeError;

pub(crate) use self::subject::common_names;

/// Paths of the PEM files that TLS needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and the chain from it to an authority that clients accept.
    pub certificate: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
    /// The authorities of clients' certificates. Without them clients are asked for none.
    pub client_ca: Option<PathBuf>,
    /// Common names of the clients that are let in. If empty, all that the authorities have issued certificates for.
    pub allow: Vec<String>,
}

/// Period in which a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Begin, in seconds since 1970.
    pub from: i64,
    /// End, in seconds since 1970.
    pub until: i64,
}

/// Returns the period in which the first certificate of a PEM file is valid; `None` if its dates cannot be read.
///
/// # Errors
///
/// Fails if the file cannot be read or has no certificate.
pub fn validity(certificate: &Path) -> Result<Option<Validity>, ServeError> {
    let chain = certificates(certificate, CERTIFICATE)?;
    let found = chain.first().and_then(|first| subject::validity(first));
    Ok(found.map(|(from, until)| Validity { from, until }))
}

/// Fix for a certificate file that cannot be used.
const CERTIFICATE: &str = "Give a PEM file with the server's certificate, and those that lead to its authority";

/// TLS of a listening socket.
#[derive(Clone, Debug)]
pub struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) required: bool,
    pub(crate) expiries: Vec<Expiry>,
    pub(crate) asks_for_certificates: bool,
}

/// Date on which the first of the certificates in a file expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The PEM file.
    pub path: PathBuf,
    /// Date of expiry.
    pub at: SystemTime,
}

impl Expiry {
    /// Returns the first expiry among the certificates of a file; `None` if no dates can be read.
    fn of(path: &Path, certificates: &[CertificateDer<'_>]) -> Option<Expiry> {
        let first =
            certificates.iter().filter_map(|certificate| subject::validity(certificate)).map(|(_, until)| until).min();
        first.map(|until| {
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(until.max(0).unsigned_abs());
            Expiry { path: path.to_owned(), at }
        })
    }
}

impl Tls {
    /// Loads TLS from these files. With `required`, clients must use it.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be used, and names it.
    pub fn load(files: &TlsFiles, required: bool) -> Result<Tls, ServeError> {
        let provider = Arc::new(tls::provider());
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let versions = builder.with_safe_default_protocol_versions();
        let builder = versions.map_err(|error| wrong(&files.certificate, &error, "Report this: it is a bug"))?;
        let mut expiries = Vec::new();
        let builder = match &files.client_ca {
            Some(path) => builder.with_client_cert_verifier(authority(path, &files.allow, provider, &mut expiries)?),
            None if files.allow.is_empty() => builder.with_no_client_auth(),
            None => return Err(ServeError::TlsNamesWithoutCa),
        };
        let chain = certificates(&files.certificate, CERTIFICATE)?;
        expiries.extend(Expiry::of(&files.certificate, &chain));
        let key = tls::key(&files.key).map_err(|why| unread(&files.key, why, tls::KEY_FIX))?;
        let config = builder.with_single_cert(chain, key);
        let mut config =
            config.map_err(|error| wrong(&files.key, &format!("certificate or key: {error}"), tls::KEY_FIX))?;
        // The server's order puts the cipher that costs this thread least first.
        config.ignore_client_order = true;
        // Clients connect seldom and stay long, so sessions need not be resumed; without resuming, each connection
        // shows its certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        let asks_for_certificates = files.client_ca.is_some();
        Ok(Tls { config: Arc::new(config), required, expiries, asks_for_certificates })
    }
}

/// Makes a verifier that accepts clients' certificates which the authorities in this file have issued and, if names are
/// given, which have one of these.
fn authority(
    path: &Path,
    allow: &[String],
    provider: Arc<CryptoProvider>,
    expiries: &mut Vec<Expiry>,
) -> Result<Arc<dyn ClientCertVerifier>, ServeError> {
    const FIX: &str = "Give a PEM file with the certificates of the authorities that issue those of clients";
    let mut roots = RootCertStore::empty();
    let certificates = certificates(path, FIX)?;
    expiries.extend(Expiry::of(path, &certificates));
    for certificate in certificates {
        roots.add(certificate).map_err(|error| wrong(path, &error, FIX))?;
    }
    let chain = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let chain = chain.map_err(|error| wrong(path, &error, FIX))?;
    Ok(if allow.is_empty() { chain } else { Arc::new(ByName { chain, allow: allow.to_vec() }) })
}

fn wrong(path: &Path, why: &impl ToString, fix: &'static str) -> ServeError {
    ServeError::Tls { path: path.display().to_string(), why: why.to_string(), fix }
}

fn unread(path: &Path, (why, kind): (String, Fix), fix: &'static str) -> ServeError {
    wrong(path, &why, if kind == Fix::Permission { "Let the user of the server read it" } else { fix })
}

fn certificates(path: &Path, fix: &'static str) -> Result<Vec<CertificateDer<'static>>, ServeError> {
    tls::certificates(path).map_err(|why| unread(path, why, fix))
}

/// A verifier that also checks the common names of certificates (T1).
#[derive(Debug)]
struct ByName {
    chain: Arc<dyn ClientCertVerifier>,
    allow: Vec<String>,
}

/// Error of a client whose certificate is valid and whose name is not allowed.
#[derive(Debug, thiserror::Error)]
#[error("its certificate is of {0}, which is not among the names that are allowed")]
struct NotAllowed(String);

/// Returns the reason for the end of TLS, in words for an operator.
pub(crate) fn words(error: &rustls::Error) -> String {
    use rustls::{AlertDescription as Alert, Error};
    match error {
        Error::NoCertificatesPresented => "it has no certificate, and must have one".into(),
        Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => why.to_string(),
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            "its certificate was issued by none of the authorities for clients".into()
        }
        Error::InvalidCertificate(CertificateError::ExpiredContext { .. } | CertificateError::Expired) => {
            "its certificate has expired".into()
        }
        Error::AlertReceived(alert @ (Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown)) => {
            format!("it does not accept the server's certificate (alert {alert:?})")
        }
        Error::AlertReceived(alert) => format!("it has ended TLS (alert {alert:?})"),
        error => error.to_string(),
    }
}

impl ClientCertVerifier for ByName {
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(certificate, between, now)?;
        let names = common_names(certificate);
        if names.iter().any(|name| self.allow.contains(name)) {
            return Ok(verified);
        }
        let names = if names.is_empty() { "nobody".into() } else { format!("{:?}", names.join(", ")) };
        let why = CertificateError::Other(OtherError(Arc::new(NotAllowed(names))));
        Err(rustls::Error::InvalidCertificate(why))
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests;
