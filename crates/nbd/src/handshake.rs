//! The handshake of fixed newstyle: from the greeting to the choice of an export.
//!
//! Owns what was negotiated so far, and the reply to each option. Does not own the buffers: the caller keeps the bytes
//! that were not consumed, and sends the bytes that were written.
//!
//! Invariants:
//! - H1: data of an option is parsed only when it is complete, and is at most [`MAX_OPTION_BYTES`] long.
//! - H2: an option is in effect until the next one of its kind. When TLS begins ([`Handshake::tls_started`]), all of
//!   them end, so that nothing that was negotiated in the clear remains in effect.
//! - H3: after [`Step::StartTls`] nothing is accepted from the client until TLS has begun.

mod handover;

use serde::{Deserialize, Serialize};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::catalog::{Catalog, ExportInfo};
use crate::meta::{self, Bad};
use crate::wire::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Greeting, INIT_MAGIC, InfoBlockSize, InfoExport, MAX_PAYLOAD, MAX_STRING,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReply, info, opt, rep, tflag,
};

pub use handover::{HandshakeState, Stage};

/// Maximum length of an option's data. Longer data is skipped, and the option refused.
pub const MAX_OPTION_BYTES: u32 = 32 << 10;
/// Maximum length of data that is skipped. A client that announces more is disconnected.
const MAX_SKIPPED_BYTES: u32 = 1 << 20;
/// Maximum number of options in a handshake, apart from [`EXPORT_OPTIONS`] for each export.
const MAX_OPTIONS: u32 = 4096;
/// Additional options for each export: a client that lists all exports sends two or three options about each.
const EXPORT_OPTIONS: u32 = 4;
/// Number of zero bytes after the reply to EXPORT_NAME, unless the client has negotiated NO_ZEROES.
const ZEROES: usize = 124;

/// Format of replies in the transmission phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Simple replies only.
    #[default]
    Simple,
    /// Structured replies to requests that return data.
    Structured,
    /// Requests and replies with 64-bit lengths.
    Extended,
}

/// State of TLS on the connection, and the requirement for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    /// The server has no TLS.
    #[default]
    Off,
    /// The client may start TLS, but can get an export without it.
    Allowed,
    /// The client must start TLS before anything else.
    Required,
    /// TLS has been started.
    Started,
}

/// Result of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The export that the client chose.
    pub export: ExportInfo,
    /// Format of replies.
    pub mode: Mode,
    /// Numbers, in the catalog, of the metadata contexts that the client selected. The client knows each context by its
    /// index in this list.
    pub contexts: Vec<u64>,
    /// True if the client requested the block sizes of the export, and so must align its requests to them.
    pub keeps_to_blocks: bool,
}

/// Result of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// More bytes are needed.
    More,
    /// A message was processed; there may be more in the buffer.
    Done,
    /// A message was processed for which the catalog listed all contexts of an export. Because that may take long, the
    /// server should serve other clients before the next step.
    Searched,
    /// TLS begins: send the bytes that were written in the clear, then start TLS and call [`Handshake::tls_started`].
    /// Further bytes of the client in the buffer are a violation of the protocol, because they were sent before the
    /// reply.
    StartTls,
    /// The transmission phase begins, with these results.
    Negotiated(Box<Negotiated>),
    /// Send what was written, then close the connection.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Expects the flags of the client.
    Flags,
    /// Expects an option.
    Option,
    /// Skips the data of an option that was refused.
    Skip { left: u32 },
    /// Expects TLS (H3).
    Tls,
    /// The handshake is over.
    Ended,
}

/// Options in effect (H2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Asked {
    mode: Mode,
    /// The export for which contexts were selected, and their numbers.
    contexts: Option<(u32, Vec<u64>)>,
    /// The export whose block sizes the client requested.
    block_sizes: Option<u32>,
}

/// A handshake in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    state: State,
    client_flags: u16,
    asked: Asked,
    options: u32,
    tls: Tls,
}

impl Handshake {
    /// Begins a handshake, and writes the greeting.
    pub fn new(tls: Tls, out: &mut Vec<u8>) -> Handshake {
        let flags = U16::new(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        let greeting = Greeting { magic: U64::new(INIT_MAGIC), option_magic: U64::new(OPTION_MAGIC), flags };
        out.extend_from_slice(greeting.as_bytes());
        Handshake { state: State::Flags, client_flags: 0, asked: Asked::default(), options: 0, tls }
    }

    /// Processes the next message at the front of `input`, and writes the reply. Returns the number of bytes consumed.
    pub fn step(&mut self, input: &[u8], catalog: &dyn Catalog, out: &mut Vec<u8>) -> (usize, Step) {
        match self.state {
            State::Flags => self.flags(input),
            State::Option => self.option(input, catalog, out),
            State::Skip { left } => {
                let many = input.len().min(left as usize);
                let left = left - many as u32;
                self.state = if left == 0 { State::Option } else { State::Skip { left } };
                (many, if left == 0 { Step::Done } else { Step::More })
            }
            State::Tls => (0, Step::StartTls),
            State::Ended => (0, Step::Close),
        }
    }

    /// Called once TLS has started. Forgets everything that was negotiated in the clear (H2).
    pub fn tls_started(&mut self) {
        self.asked = Asked::default();
        self.options = 0;
        self.tls = Tls::Started;
        self.state = State::Option;
    }

    fn flags(&mut self, input: &[u8]) -> (usize, Step) {
        let Some(flags) = input.first_chunk::<4>() else { return (0, Step::More) };
        let flags = u32::from_be_bytes(*flags);
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return (4, self.end());
        }
        self.client_flags = flags as u16;
        self.state = State::Option;
        (4, Step::Done)
    }

    fn end(&mut self) -> Step {
        self.state = State::Ended;
        Step::Close
    }

    fn option(&mut self, input: &[u8], catalog: &dyn Catalog, out: &mut Vec<u8>) -> (usize, Step) {
        let Ok((header, rest)) = OptionHeader::read_from_prefix(input) else { return (0, Step::More) };
        let (option, len) = (header.option.get(), header.len.get());
        let fixed = self.client_flags & FLAG_FIXED_NEWSTYLE != 0;
        let known = header.magic.get() == OPTION_MAGIC && (fixed || option == opt::EXPORT_NAME);
        if !known || len > MAX_SKIPPED_BYTES || self.options >= most_options(catalog) {
            return (0, self.end());
        }
        if len > MAX_OPTION_BYTES {
            // EXPORT_NAME has no error reply, so the connection is closed.
            if option == opt::EXPORT_NAME {
                return (0, self.end());
            }
            self.options += 1;
            refuse(option, rep::ERR_TOO_BIG, "that option has too much data", out);
            self.state = State::Skip { left: len };
            return (size_of::<OptionHeader>(), Step::Done);
        }
        let Some(data) = rest.get(..len as usize) else { return (0, Step::More) };
        self.options += 1;
        let consumed = size_of::<OptionHeader>() + data.len();
        (consumed, self.answer(option, data, catalog, out))
    }

    fn answer(&mut self, option: u32, data: &[u8], catalog: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        if catalog.is_ending() && !matches!(option, opt::ABORT | opt::EXPORT_NAME) {
            return refuse(option, rep::ERR_SHUTDOWN, "the server is about to end", out);
        }
        if self.tls == Tls::Required && !matches!(option, opt::ABORT | opt::STARTTLS) {
            // EXPORT_NAME has no error reply, so the connection is closed.
            if option == opt::EXPORT_NAME {
                return self.end();
            }
            return refuse(option, rep::ERR_TLS_REQD, "this server wants TLS first", out);
        }
        match option {
            opt::EXPORT_NAME => return self.export_name(data, catalog, out),
            opt::ABORT => {
                acknowledge(option, out);
                return self.end();
            }
            opt::INFO | opt::GO => return self.info_or_go(option, data, catalog, out),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => return self.meta_context(option, data, catalog, out),
            opt::LIST | opt::STARTTLS | opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS => {}
            _ => return refuse(option, rep::ERR_UNSUP, "this server does not know that option", out),
        }
        if !data.is_empty() {
            return refuse(option, rep::ERR_INVALID, "this option has no data", out);
        }
        match option {
            opt::LIST => catalog.list(&mut |name, description| {
                let len = U32::new(name.len() as u32);
                put(option, rep::SERVER, &[len.as_bytes(), name.as_bytes(), description.as_bytes()], out);
            }),
            opt::STRUCTURED_REPLY if self.asked.mode == Mode::Extended => {
                return refuse(option, rep::ERR_EXT_HEADER_REQD, "extended headers were chosen before", out);
            }
            opt::STRUCTURED_REPLY if self.asked.mode == Mode::Structured => {
                return refuse(option, rep::ERR_INVALID, "structured replies were chosen before", out);
            }
            opt::EXTENDED_HEADERS if self.asked.mode == Mode::Extended => {
                return refuse(option, rep::ERR_INVALID, "extended headers were chosen before", out);
            }
            opt::STRUCTURED_REPLY => self.asked.mode = Mode::Structured,
            opt::EXTENDED_HEADERS => self.asked.mode = Mode::Extended,
            _ => match self.tls {
                Tls::Off => return refuse(option, rep::ERR_UNSUP, "this server has no TLS", out),
                Tls::Started => return refuse(option, rep::ERR_INVALID, "TLS has begun already", out),
                Tls::Allowed | Tls::Required => {
                    acknowledge(option, out);
                    self.state = State::Tls;
                    return Step::StartTls;
                }
            },
        }
        acknowledge(option, out)
    }

    /// Handles EXPORT_NAME, which can only be refused by closing the connection.
    fn export_name(&mut self, data: &[u8], catalog: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        let named = data.len() <= MAX_STRING && self.asked.mode != Mode::Extended && !catalog.is_ending();
        let Some(export) = named.then(|| catalog.find(data)).flatten() else { return self.end() };
        let negotiated = self.negotiated(export);
        out.extend_from_slice(&negotiated.export.size.to_be_bytes());
        out.extend_from_slice(&negotiated.flags().to_be_bytes());
        if self.client_flags & FLAG_NO_ZEROES == 0 {
            out.extend_from_slice(&[0; ZEROES]);
        }
        self.state = State::Ended;
        Step::Negotiated(Box::new(negotiated))
    }

    fn negotiated(&mut self, export: ExportInfo) -> Negotiated {
        let contexts = match &self.asked.contexts {
            Some((id, contexts)) if *id == export.id && self.asked.mode != Mode::Simple => contexts.clone(),
            _ => Vec::new(),
        };
        let keeps_to_blocks = self.asked.block_sizes == Some(export.id);
        Negotiated { export, mode: self.asked.mode, contexts, keeps_to_blocks }
    }

    fn info_or_go(&mut self, option: u32, data: &[u8], catalog: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        let Some((name, kinds)) = info_requests(data) else {
            return refuse(option, rep::ERR_INVALID, "the lengths in this option do not fit each other", out);
        };
        let Some(export) = catalog.find(name) else {
            return refuse(option, rep::ERR_UNKNOWN, "there is no export of that name", out);
        };
        self.asked.block_sizes = kinds.contains(&info::BLOCK_SIZE).then_some(export.id);
        let negotiated = self.negotiated(export);
        let export = &negotiated.export;
        let (size, flags) = (U64::new(export.size), U16::new(negotiated.flags()));
        put(option, rep::INFO, &[InfoExport { kind: U16::new(info::EXPORT), size, flags }.as_bytes()], out);
        // The sizes are sent even if the client did not request them. Requests that are not aligned need a
        // read-modify-write, or are refused if the client did request the sizes.
        let sizes = InfoBlockSize {
            kind: U16::new(info::BLOCK_SIZE),
            min: U32::new(export.min_block),
            preferred: U32::new(export.preferred_block),
            max_payload: U32::new(MAX_PAYLOAD),
        };
        put(option, rep::INFO, &[sizes.as_bytes()], out);
        for (kind, text) in [(info::NAME, &export.name), (info::DESCRIPTION, &export.description)] {
            if kinds.contains(&kind) {
                put(option, rep::INFO, &[&kind.to_be_bytes(), text.as_bytes()], out);
            }
        }
        acknowledge(option, out);
        if option == opt::INFO {
            return Step::Done;
        }
        self.state = State::Ended;
        Step::Negotiated(Box::new(negotiated))
    }

    fn meta_context(&mut self, option: u32, data: &[u8], catalog: &dyn Catalog, out: &mut Vec<u8>) -> Step {
        let sets = option == opt::SET_META_CONTEXT;
        if sets {
            self.asked.contexts = None;
        }
        if self.asked.mode == Mode::Simple {
            return refuse(option, rep::ERR_INVALID, "structured replies must be negotiated first", out);
        }
        let queries = match meta::parse(data) {
            Ok(queries) => queries,
            Err(Bad::TooMany) => return refuse(option, rep::ERR_TOO_BIG, "too many queries", out),
            Err(Bad::Syntax) => {
                return refuse(option, rep::ERR_INVALID, "the lengths or queries of this option make no sense", out);
            }
        };
        let Some(export) = catalog.find(queries.export) else {
            return refuse(option, rep::ERR_UNKNOWN, "there is no export of that name", out);
        };
        let id = export.id;
        let mut tell = |number: u32, name: &[u8]| {
            put(option, rep::META_CONTEXT, &[U32::new(number).as_bytes(), name], out);
        };
        if !sets {
            let searched = meta::listed(catalog, id, &queries.queries, &mut |name| tell(0, name));
            acknowledge(option, out);
            return if searched { Step::Searched } else { Step::Done };
        }
        let Some(contexts) = meta::selected(catalog, id, &queries.queries) else {
            return refuse(option, rep::ERR_TOO_BIG, "more contexts than one client can select", out);
        };
        (0..).zip(&contexts).for_each(|(number, (name, _))| tell(number, name));
        self.asked.contexts = Some((id, contexts.into_iter().map(|(_, number)| number).collect()));
        acknowledge(option, out)
    }
}

impl Negotiated {
    /// Returns the transmission flags.
    #[must_use]
    pub fn flags(&self) -> u16 {
        let df = if self.mode == Mode::Simple { 0 } else { tflag::SEND_DF };
        let filtered = self.mode == Mode::Extended && !self.contexts.is_empty();
        self.export.flags() | df | if filtered { tflag::BLOCK_STATUS_PAYLOAD } else { 0 }
    }
}

/// Returns the maximum number of options in a handshake.
fn most_options(catalog: &dyn Catalog) -> u32 {
    let exports = u32::try_from(catalog.exports()).unwrap_or(u32::MAX);
    MAX_OPTIONS.saturating_add(exports.saturating_mul(EXPORT_OPTIONS))
}

/// Parses the data of INFO or GO: the name, and the kinds of information.
fn info_requests(mut data: &[u8]) -> Option<(&[u8], Vec<u16>)> {
    let name = meta::string(&mut data)?;
    let (many, kinds) = data.split_first_chunk::<2>()?;
    if kinds.len() != usize::from(u16::from_be_bytes(*many)) * 2 {
        return None;
    }
    let kinds = kinds.chunks_exact(2).map(|kind| u16::from_be_bytes([kind[0], kind[1]]));
    Some((name, kinds.collect()))
}

/// Writes a reply to an option.
fn put(option: u32, reply: u32, parts: &[&[u8]], out: &mut Vec<u8>) {
    let len = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    let magic = U64::new(OPTION_REPLY_MAGIC);
    let (option, reply, len) = (U32::new(option), U32::new(reply), U32::new(len));
    out.extend_from_slice(OptionReply { magic, option, reply, len }.as_bytes());
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn acknowledge(option: u32, out: &mut Vec<u8>) -> Step {
    put(option, rep::ACK, &[], out);
    Step::Done
}

fn refuse(option: u32, error: u32, why: &str, out: &mut Vec<u8>) -> Step {
    put(option, error, &[why.as_bytes()], out);
    Step::Done
}

#[cfg(test)]
mod tests;
