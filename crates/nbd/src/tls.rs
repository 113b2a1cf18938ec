//! TLS on a connection, as a state machine over bytes; shared by server and client.
//!
//! rustls is used without its own buffers: records are decrypted in place, and encrypted into the buffer that is sent.
//! Owns the rustls session, the bytes waiting to be sent, and the reading of PEM files. The owner of the connection
//! keeps the received bytes and chooses the trusted certificates.
//!
//! Invariants:
//! - T1. Bytes are sent in the order in which they were encrypted, because all go through [`Records::out`].
//! - T2. A file that is longer than [`MAX_FILE`], or has the wrong contents, is an error, and is never used in part.

use std::io::{ErrorKind, Read};
use std::path::Path;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite as suite;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic};

/// Maximum size of a file with certificates or keys.
pub const MAX_FILE: u64 = 1 << 20;
/// Maximum length of the plaintext in a record.
pub const MAX_PLAIN: usize = 16 << 10;
/// Upper bound of a record's overhead: header, nonce, type and tag.
pub const RECORD: usize = 64;
/// Size of the send buffer: a little more than sixteen records of maximum length.
pub const OUT_BYTES: usize = 16 * (MAX_PLAIN + RECORD) + RECORD;
/// Maximum length of an incomplete record or handshake message: the longest message that rustls accepts, plus what was
/// received together with its end.
pub const MAX_INCOMING: usize = 256 << 10;

/// The side-specific part of rustls, for server and client.
pub trait Side {
    /// Data that rustls keeps for this side.
    type Data;

    /// Processes records at the front of `bytes`. Returns the action that must follow.
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Returns true if rustls itself has a message to send.
    fn has_to_say(&self) -> bool;
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn has_to_say(&self) -> bool {
        self.wants_write()
    }
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn has_to_say(&self) -> bool {
        self.wants_write()
    }
}

/// State of the connection after processing records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// The peer may send more.
    Open,
    /// The peer has closed its direction.
    Closed,
}

/// Buffer of bytes waiting to be sent. Its size is 0 until it is used, then at least [`OUT_BYTES`].
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The buffer, of which the first `len` bytes are waiting.
    pub memory: Vec<u8>,
    pub len: usize,
}

impl Outgoing {
    /// Returns the free part of the buffer, which has at least `least` bytes.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        let wanted = (self.len + least).max(OUT_BYTES);
        if self.memory.len() < wanted {
            self.memory.resize(wanted, 0);
        }
        &mut self.memory[self.len..]
    }

    /// Appends bytes in the clear, before the first record.
    pub fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Appends a message of rustls itself.
    fn encode<Data>(&mut self, data: &mut EncodeTlsData<'_, Data>) -> Result<(), String> {
        let mut encoded = data.encode(self.room(RECORD));
        if let Err(EncodeError::InsufficientSize(short)) = encoded {
            encoded = data.encode(self.room(short.required_size));
        }
        self.len += encoded.map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// The TLS records of a connection.
pub struct Records<S: Side> {
    /// The rustls session.
    pub session: S,
    /// Bytes waiting to be sent.
    pub out: Outgoing,
    established: bool,
    words: fn(&rustls::Error) -> String,
}

impl<S: Side> Records<S> {
    /// Wraps a new session; `words` formats errors of rustls.
    pub fn new(session: S, words: fn(&rustls::Error) -> String) -> Records<S> {
        Records { session, out: Outgoing::default(), established: false, words }
    }

    /// Returns true if the TLS handshake is complete.
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Processes records at the front of `bytes`. Returns the number of bytes consumed. `says` is called with decrypted
    /// data. Once no more records can be processed, `write` is called if data may be sent.
    pub fn turn(
        &mut self,
        bytes: &mut [u8],
        mut says: impl FnMut(&[u8]),
        write: impl FnOnce(&mut WriteTraffic<'_, S::Data>, &mut Outgoing) -> Result<(), EncryptError>,
    ) -> (usize, Result<Fed, String>) {
        let (mut used, mut fed) = (0, Fed::Open);
        loop {
            let UnbufferedStatus { mut discard, state, .. } = self.session.process(&mut bytes[used..]);
            let more = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                    match traffic.next_record() {
                        Some(Ok(record)) => {
                            discard += record.discard;
                            says(record.payload);
                        }
                        Some(Err(error)) => break Err(error.to_string()),
                        None => break Ok(true),
                    }
                },
                Ok(ConnectionState::EncodeTlsData(mut data)) => self.out.encode(&mut data).map(|()| true),
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    // The message is already in `out`, ahead of everything that comes later (T1).
                    data.done();
                    Ok(true)
                }
                Ok(ConnectionState::PeerClosed) => {
                    fed = Fed::Closed;
                    Ok(true)
                }
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    self.established = true;
                    let written = write(&mut traffic, &mut self.out);
                    return (used + discard, written.map(|()| fed).map_err(|error| error.to_string()));
                }
                // More bytes are needed, or the connection is closed. Early data is never offered, so it cannot arrive.
                Ok(_) => Ok(false),
                Err(error) => Err((self.words)(&error)),
            };
            used += discard;
            match more {
                Ok(true) => {}
                Ok(false) => return (used, Ok(fed)),
                Err(why) => return (used, Err(why)),
            }
        }
    }
}

impl<S: Side> Records<S> {
    /// Appends the alert that rustls wants to send. Called after an error; the session must not be used after that.
    /// rustls gets an empty input here, because the bytes that caused the error would cause it again, and rustls may
    /// hold offsets into bytes that are gone.
    pub fn say_why(&mut self) {
        while self.session.has_to_say() {
            match self.session.process(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    if self.out.encode(&mut data).is_err() {
                        return;
                    }
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                _ => return,
            }
        }
    }
}

/// Returns the cryptography of ring with another preference: AES-128 comes first, because it is the fastest on
/// processors with AES instructions.
pub fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    let first = [suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_AES_256_GCM_SHA384];
    let place = |wanted: &rustls::SupportedCipherSuite| {
        first.iter().position(|one| one.suite() == wanted.suite()).unwrap_or(first.len())
    };
    provider.cipher_suites.sort_by_key(place);
    provider
}

/// Kind of problem with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fix {
    /// The file is missing, or its content is wrong.
    Content,
    /// Permission denied.
    Permission,
}

/// Reads a file with certificates or keys.
///
/// # Errors
///
/// Returns the reason why the file cannot be used, and the kind of problem.
pub fn read(path: &Path) -> Result<Vec<u8>, (String, Fix)> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path);
    match file.and_then(|file| file.take(MAX_FILE + 1).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err((error.to_string(), Fix::Permission)),
        Err(error) => Err((error.to_string(), Fix::Content)),
        Ok(_) if bytes.len() as u64 > MAX_FILE => Err(("it has more than 1 MiB".into(), Fix::Content)),
        Ok(_) => Ok(bytes),
    }
}

/// Reads the certificates in a PEM file, of which there must be at least one.
///
/// # Errors
///
/// Returns the errors of [`read`], and an error if the contents are not valid PEM or have no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, (String, Fix)> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Err(error) => Err((no_pem(&error, "certificate"), Fix::Content)),
        Ok(found) if found.is_empty() => Err((no_pem(&PemError::NoItemsFound, "certificate"), Fix::Content)),
        Ok(found) => Ok(found),
    }
}

/// Advice for a key that cannot be used. It lists the supported kinds, because the error of rustls for an unsupported
/// one only says that it cannot be parsed.
pub const KEY_FIX: &str = "Give a PEM file with the key of the certificate, without a password: RSA of 2048, 3072 or \
    4096 bits, ECDSA on the curve P-256 or P-384, or Ed25519";

/// Reads the key in a PEM file.
///
/// # Errors
///
/// Returns the errors of [`read`], and an error if the contents are not valid PEM or have no key.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, (String, Fix)> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| (no_pem(&error, "key"), Fix::Content))
}

fn no_pem(error: &PemError, what: &str) -> String {
    match error {
        PemError::NoItemsFound => format!("there is no {what} in it"),
        error => format!("it is no PEM file: {error}"),
    }
}
