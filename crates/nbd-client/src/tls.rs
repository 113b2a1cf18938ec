//! The client's side of TLS: its keys in a spec, and the records of one connection.
//!
//! `sheave_nbd::tls` drives rustls for both sides of NBD. Owns the memory into which records are received and from
//! which they are sent. Nothing here makes a system call.
//!
//! Invariants:
//! - L1: no text and no `Debug` of this module contains a key, or anything from which one could be derived.
//! - L2: memory is bounded: [`INCOMING_BYTES`] received, and one batch that waits or is being sent.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription as Alert, CertificateError as Wrong, ClientConfig, Error, RootCertStore};
use sheave_nbd::tls::{self, Fed, Fix, MAX_INCOMING, MAX_PLAIN, RECORD, Records};

use crate::negotiation::Wish;

/// Largest number of bytes of records that are received before they are decrypted.
const INCOMING_BYTES: usize = MAX_INCOMING;

/// The TLS part of a spec.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    /// The name that the server's certificate must have.
    name: ServerName<'static>,
    pub(crate) wish: Wish,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).field("wish", &self.wish).finish_non_exhaustive() // L1
    }
}

impl Tls {
    /// Loads TLS with the authorities in the file `ca`, and with the client's own certificate and key, if any.
    ///
    /// # Errors
    ///
    /// Returns the key of the spec that is wrong, with the cause and the fix.
    pub(crate) fn load(wish: Wish, ca: &str, own: Option<(&str, &str)>, host: &str) -> Result<Tls, String> {
        const CA: &str = "Give a PEM file with the certificate of the authority that has issued the server's";
        const CERT: &str = "Give a PEM file with the client's certificate, and those that lead to its authority";
        let Ok(name) = ServerName::try_from(host.to_owned()) else {
            return Err(format!("'{host}' is no name that a certificate can have. Give one by tls-hostname=NAME"));
        };
        let mut roots = RootCertStore::empty();
        for certificate in tls::certificates(Path::new(ca)).map_err(|why| unread("ca", ca, why, CA))? {
            roots.add(certificate).map_err(|error| format!("ca={ca}: {error}. {CA}"))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(tls::provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
        let builder = builder.with_root_certificates(roots);
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = tls::certificates(Path::new(cert)).map_err(|why| unread("cert", cert, why, CERT))?;
                let private = tls::key(Path::new(key)).map_err(|why| unread("key", key, why, tls::KEY_FIX))?;
                let config = builder.with_client_auth_cert(chain, private);
                config.map_err(|error| format!("cert={cert} and key={key}: {error}. {}", tls::KEY_FIX))?
            }
        };
        // Connections are rare and last long, so resuming a session would save nothing.
        config.resumption = Resumption::disabled();
        Ok(Tls { config: Arc::new(config), name, wish })
    }
}

fn unread(key: &str, path: &str, (why, kind): (String, Fix), fix: &str) -> String {
    let fix = if kind == Fix::Permission { "Let the user of this process read it" } else { fix };
    format!("{key}={path}: {why}. {fix}")
}

/// The records of one connection.
pub(crate) struct Secure {
    records: Records<UnbufferedClientConnection>,
    incoming: Box<[u8]>,
    have: usize,
    /// Records that are being sent.
    in_kernel: Vec<u8>,
    /// Plain text of the next record.
    plain: Box<[u8]>,
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secure").field("established", &self.is_established()).finish_non_exhaustive() // L1
    }
}

impl Secure {
    /// Begins TLS on a connection. Its first record can then be sent.
    pub(crate) fn new(tls: &Tls) -> Result<Secure, String> {
        let session = UnbufferedClientConnection::new(tls.config.clone(), tls.name.clone());
        let session = session.map_err(|error| format!("TLS cannot begin: {error}"))?;
        let mut secure = Secure {
            records: Records::new(session, words),
            incoming: vec![0; INCOMING_BYTES].into(),
            have: 0,
            in_kernel: Vec::new(),
            plain: vec![0; MAX_PLAIN].into(),
        };
        // Makes rustls produce its first record.
        secure.received(0, |_| {})?;
        Ok(secure)
    }

    /// Returns true if the TLS handshake is done.
    pub(crate) fn is_established(&self) -> bool {
        self.records.is_established()
    }

    /// Returns the memory to receive records into.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.incoming[self.have..]
    }

    /// Decrypts the records after `many` bytes were received into the room. Passes plain text to `says`.
    pub(crate) fn received(&mut self, many: usize, says: impl FnMut(&[u8])) -> Result<Fed, String> {
        self.have += many;
        let (used, fed) = self.records.turn(&mut self.incoming[..self.have], says, |_, _| Ok(()));
        self.incoming.copy_within(used..self.have, 0);
        self.have -= used;
        if self.have == self.incoming.len() {
            return Err("TLS: a message is too long".into());
        }
        fed.map_err(|why| format!("TLS: {why}"))
    }

    /// Encrypts plain text. `more` writes it into the memory that it gets, and is called until it returns 0.
    pub(crate) fn encrypt(&mut self, mut more: impl FnMut(&mut [u8]) -> usize) -> Result<(), String> {
        let Secure { records, incoming, have, plain, .. } = self;
        let mut began = false;
        let said = |_: &[u8]| debug_assert!(false, "no whole record waits");
        let (used, done) = records.turn(&mut incoming[..*have], said, |traffic, out| {
            began = true;
            loop {
                let len = more(plain);
                if len == 0 {
                    return Ok(());
                }
                let many = traffic.encrypt(&plain[..len], out.room(len + RECORD))?;
                out.len += many;
            }
        });
        incoming.copy_within(used..*have, 0);
        *have -= used;
        match done {
            Err(why) => Err(format!("TLS: {why}")),
            Ok(Fed::Open) if began => Ok(()),
            Ok(_) => Err("TLS: the server has ended it".into()),
        }
    }

    /// Queues the close_notify alert.
    pub(crate) fn say_goodbye(&mut self) {
        let Secure { records, incoming, have, .. } = self;
        // An error does not matter: the server sees the end of the socket.
        let _ = records.turn(
            &mut incoming[..*have],
            |_| {},
            |traffic, out| {
                out.len += traffic.queue_close_notify(out.room(RECORD))?;
                Ok(())
            },
        );
    }

    pub(crate) fn is_sending(&self) -> bool {
        !self.in_kernel.is_empty()
    }

    /// Takes the records that are ready to be sent, if any. They stay in place until [`Secure::sent`].
    pub(crate) fn take_to_send(&mut self) -> Option<&mut [u8]> {
        debug_assert!(!self.is_sending(), "one send at a time");
        if self.records.out.len == 0 {
            return None;
        }
        let len = std::mem::take(&mut self.records.out.len);
        self.in_kernel = std::mem::take(&mut self.records.out.memory);
        Some(&mut self.in_kernel[..len])
    }

    /// Reuses the memory of the records, all of which were sent.
    pub(crate) fn sent(&mut self) {
        let memory = std::mem::take(&mut self.in_kernel);
        if self.records.out.memory.is_empty() {
            self.records.out.memory = memory;
        }
    }
}

/// Describes an error of TLS, with the fix.
fn words(error: &Error) -> String {
    const CA: &str = "Give the file with the authority that has issued it by ca=PATH";
    match error {
        Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature) => {
            format!("the server's certificate was issued by none of the authorities in the file of ca=. {CA}")
        }
        Error::InvalidCertificate(Wrong::NotValidForNameContext { expected, presented }) => format!(
            "the server's certificate is not for {}, but for {}. Say by tls-hostname=NAME which of its names it has to \
             have, if that is the right server",
            expected.to_str(),
            if presented.is_empty() { "no name".into() } else { presented.join(", ") }
        ),
        Error::InvalidCertificate(Wrong::ExpiredContext { .. } | Wrong::Expired) => {
            "the server's certificate has expired. Renew it".into()
        }
        Error::InvalidCertificate(Wrong::NotValidYetContext { .. } | Wrong::NotValidYet) => {
            "the server's certificate is not valid yet. Look at the clocks of both machines".into()
        }
        Error::InvalidCertificate(why) => format!("the server's certificate is not accepted: {why:?}. {CA}"),
        Error::AlertReceived(Alert::CertificateRequired) => {
            "the server wants a certificate of its clients. Give one by cert=PATH and key=PATH".into()
        }
        Error::AlertReceived(alert) => format!(
            "the server has ended it (alert {alert:?}). If it wants a certificate of its clients, give one by \
             cert=PATH and key=PATH that is issued by an authority that it knows"
        ),
        error => format!("{error}. Does the server speak TLS 1.2 or 1.3?"),
    }
}

#[cfg(test)]
mod tests {
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
}
