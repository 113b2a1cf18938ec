//! TLS of one connection, as a state machine over bytes: what both sides of NBD have in common.
//!
//! rustls is driven without buffers of its own: records are decrypted where they lie, and what is encrypted is written
//! where it is sent from. Owns the state of rustls, the bytes that wait to be sent, and the reading of PEM files. Does
//! not own the bytes that were received, nor which certificates count: those are of who has the connection.
//!
//! Invariants:
//! - T1. Bytes leave in the order in which they were encrypted: all go through [`Records::out`].
//! - T2. A file that is longer than [`MAX_FILE`], or is not what it should be, is an error, never a part of one.

use std::io::{ErrorKind, Read};
use std::path::Path;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::cipher_suite as suite;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic};

/// Longest file of certificates or keys.
pub const MAX_FILE: u64 = 1 << 20;
/// Longest data of a record.
pub const MAX_PLAIN: usize = 16 << 10;
/// What a record has beside its data, at most: header, nonce, type and tag.
pub const RECORD: usize = 64;
/// Bytes of the memory that is sent from: a little more than sixteen of the longest records.
pub const OUT_BYTES: usize = 16 * (MAX_PLAIN + RECORD) + RECORD;
/// Most bytes that are no whole record, or no whole message of a handshake: the longest message that rustls takes, and
/// what was received with its end.
pub const MAX_INCOMING: usize = 256 << 10;

/// One side of TLS: the server's, or the client's.
pub trait Side {
    /// What rustls keeps for this side.
    type Data;

    /// Takes records from the front of `bytes`, and says what is to be done.
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Whether there is something that rustls itself has to say.
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

/// What came of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fed {
    /// More may come.
    Open,
    /// The peer has closed.
    Closed,
}

/// Bytes that wait to be sent, in memory of [`OUT_BYTES`] or more, or none.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The memory; the first `len` bytes of it wait.
    pub memory: Vec<u8>,
    /// Bytes that wait.
    pub len: usize,
}

impl Outgoing {
    /// The room that is left, at least `least`.
    pub fn room(&mut self, least: usize) -> &mut [u8] {
        let wanted = (self.len + least).max(OUT_BYTES);
        if self.memory.len() < wanted {
            self.memory.resize(wanted, 0);
        }
        &mut self.memory[self.len..]
    }

    /// Adds bytes that are not encrypted, before the first record.
    pub fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Takes what rustls itself has to say.
    fn encode<Data>(&mut self, data: &mut EncodeTlsData<'_, Data>) -> Result<(), String> {
        let mut encoded = data.encode(self.room(RECORD));
        if let Err(EncodeError::InsufficientSize(short)) = encoded {
            encoded = data.encode(self.room(short.required_size));
        }
        self.len += encoded.map_err(|error| error.to_string())?;
        Ok(())
    }
}

/// The records of a connection.
pub struct Records<S: Side> {
    /// The state of rustls.
    pub session: S,
    /// Waits to be sent.
    pub out: Outgoing,
    established: bool,
    words: fn(&rustls::Error) -> String,
}

impl<S: Side> Records<S> {
    /// Those of a session that begins; `words` tells why TLS ended.
    pub fn new(session: S, words: fn(&rustls::Error) -> String) -> Records<S> {
        Records { session, out: Outgoing::default(), established: false, words }
    }

    /// Whether the handshake of TLS is done.
    pub fn is_established(&self) -> bool {
        self.established
    }

    /// Takes records from the front of `bytes`; how many bytes they were. What the peer says goes to `says`; when
    /// nothing more can be taken and something may be written, `write` is called.
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
                    // It is in `out`, and goes before all that comes later (T1).
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
                // More bytes are needed, or none will come. Early data is not offered, so none is accepted.
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
    /// After an error: what rustls has to say about it waits to be sent, and rustls is not used any more. It gets no
    /// bytes: those that were an error would be one again, and it may know places in bytes that are gone.
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

/// What ring has, but for the order of what it offers: AES with 128 bits is the fastest where the processor has it.
pub fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    let first = [suite::TLS13_AES_128_GCM_SHA256, suite::TLS13_AES_256_GCM_SHA384];
    let place = |wanted: &rustls::SupportedCipherSuite| {
        first.iter().position(|one| one.suite() == wanted.suite()).unwrap_or(first.len())
    };
    provider.cipher_suites.sort_by_key(place);
    provider
}

/// Why a file cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Its content is wrong, or it is not there.
    Content,
    /// It may not be read.
    Permission,
}

/// Reads a file of certificates or keys.
///
/// # Errors
///
/// Why it cannot be used, and what kind of fix there is.
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

/// The certificates in a PEM file: at least one.
///
/// # Errors
///
/// As of [`read`], and what is wrong with the content.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, (String, Fix)> {
    let bytes = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Err(error) => Err((no_pem(&error, "certificate"), Fix::Content)),
        Ok(found) if found.is_empty() => Err((no_pem(&PemError::NoItemsFound, "certificate"), Fix::Content)),
        Ok(found) => Ok(found),
    }
}

/// How to mend a key that cannot be used. Which kinds there are is said here, for the error of one that is not among
/// them says only that it cannot be parsed.
pub const KEY_FIX: &str = "Give a PEM file with the key of the certificate, without a password: RSA of 2048, 3072 or \
    4096 bits, ECDSA on the curve P-256 or P-384, or Ed25519";

/// The key in a PEM file.
///
/// # Errors
///
/// As of [`read`], and what is wrong with the content.
pub fn key(path: &Path) -> Result<PrivateKeyDer<'static>, (String, Fix)> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|error| (no_pem(&error, "key"), Fix::Content))
}

fn no_pem(error: &PemError, what: &str) -> String {
    match error {
        PemError::NoItemsFound => format!("there is no {what} in it"),
        error => format!("it is no PEM file: {error}"),
    }
}
