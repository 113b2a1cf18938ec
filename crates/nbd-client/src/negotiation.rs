//! The client's side of the handshake, from the server's greeting to an export.
//!
//! Owns the options agreed so far and the next one to send. Does not own the bytes, nor the time limit. If TLS is
//! wanted, it is requested first. Then follow extended headers, structured replies, the metadata context for holes if
//! that is wanted, and the export with its block sizes. If a server supports only the old option EXPORT_NAME, the
//! export is requested with that.
//!
//! Invariants:
//! - N1: a reply is processed only when all of it has arrived. No reply is longer than [`MAX_REPLY`], and a handshake
//!   has at most [`MAX_REPLIES`].
//! - N2: nothing is agreed before TLS. STARTTLS is the first option, and plain text after its answer is an error.

use sheave_nbd::handshake::Mode;
use sheave_nbd::wire::{
    FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Greeting, INIT_MAGIC, InfoBlockSize, InfoExport, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OptionHeader, OptionReply, info, opt, rep, tflag,
};
use zerocopy::byteorder::network_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Length of the longest data of a reply to an option.
pub const MAX_REPLY: usize = 8 << 10;
const MAX_REPLIES: u32 = 64;
/// Length of the longest text of a server that an error quotes.
const MAX_QUOTED: usize = 200;
/// Number of zeroes after the answer to EXPORT_NAME.
const ZEROES: usize = 124;
/// The second word of a greeting from before there were options.
const OLDSTYLE: u64 = 0x0000_4202_8186_1253;
/// Data size of the largest request for a server that announces no limit.
const DEFAULT_MAX_PAYLOAD: u32 = 32 << 20;
/// Size of the largest block that the block layer supports.
const MAX_BLOCK: u32 = 64 << 10;
/// The metadata context for holes.
const ALLOCATION: &str = "base:allocation";
/// The bit that all error replies have.
const ERROR_BIT: u32 = 1 << 31;

/// The properties of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// Transmission flags, which name the server's abilities.
    pub flags: u16,
    /// The form of replies.
    pub mode: Mode,
    /// Smallest unit of a request, a power of two.
    pub min_block: u32,
    /// The unit, a power of two, that the server handles without extra work.
    pub preferred_block: u32,
    /// Largest number of data bytes in a request.
    pub max_payload: u32,
    /// The export's name, if the server sent it.
    pub name: Option<String>,
    /// The number of the metadata context for holes on this connection, if it was requested and exists.
    pub allocation: Option<u32>,
    /// True if the connection uses TLS.
    pub secure: bool,
}

impl Export {
    /// Returns true if the export has a transmission flag.
    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// Requirement for TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// No TLS.
    Off,
    /// TLS, if the server offers it.
    Allow,
    /// TLS, or no connection.
    Require,
}

/// A result of the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agreed {
    /// TLS begins with the next byte each way. The handshake goes on with [`Negotiation::secured`].
    Tls,
    /// The handshake is over.
    Export(Export),
}

/// The last option that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Greeting,
    Tls,
    /// None: TLS was agreed, and has not begun.
    Nothing,
    Extended,
    Structured,
    Context,
    Go,
    /// EXPORT_NAME, whose answer has no header.
    Name,
}

/// A handshake under way.
#[derive(Debug)]
pub struct Negotiation {
    wanted: String,
    tls: Wish,
    /// True if the metadata context for holes is wanted.
    contexts: bool,
    asked: Asked,
    zeroes: bool,
    replies: u32,
    export: Export,
    /// True if the server has sent size and flags.
    told: bool,
}

impl Negotiation {
    /// Makes a handshake for the export `wanted`. If `contexts` is true, the metadata context for holes is requested
    /// too.
    pub fn new(wanted: &str, tls: Wish, contexts: bool) -> Negotiation {
        let export = Export {
            size: 0,
            flags: 0,
            mode: Mode::Simple,
            min_block: 1,
            preferred_block: 4096,
            max_payload: DEFAULT_MAX_PAYLOAD,
            name: None,
            allocation: None,
            secure: false,
        };
        let (wanted, asked) = (wanted.to_owned(), Asked::Greeting);
        Negotiation { wanted, tls, contexts, asked, zeroes: true, replies: 0, export, told: false }
    }

    /// Processes the front of `input`, and appends the client's answer to `out`. Returns the number of bytes consumed
    /// (0 if more are needed), and the result once there is one. After the result the server must send nothing unasked:
    /// further bytes are an error (N2).
    ///
    /// # Errors
    ///
    /// Returns the reason why there is no export, and the fix.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Option<Agreed>), String> {
        let (used, agreed) = match self.asked {
            Asked::Greeting => self.greeted(input, out)?,
            Asked::Name => self.named(input)?,
            _ => self.replied(input, out)?,
        };
        match agreed {
            Some(Agreed::Tls) if used < input.len() => Err(
                "it says something in the clear behind its answer to STARTTLS, which may be from somebody between. \
                     Look at the way to the server"
                    .into(),
            ),
            Some(_) if used < input.len() => Err("it says more than it was asked for in the handshake".into()),
            agreed => Ok((used, agreed)),
        }
    }

    /// Continues the handshake after TLS has begun.
    pub fn secured(&mut self, out: &mut Vec<u8>) {
        debug_assert!(self.asked == Asked::Nothing, "N2: TLS was agreed");
        self.export.secure = true;
        self.ask(Asked::Extended, opt::EXTENDED_HEADERS, &[], out);
    }

    fn greeted(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Option<Agreed>), String> {
        let Ok((greeting, _)) = Greeting::read_from_prefix(input) else { return Ok((0, None)) };
        if greeting.magic.get() != INIT_MAGIC {
            return Err("it does not speak NBD. Check the address".into());
        }
        match greeting.option_magic.get() {
            OPTION_MAGIC => {}
            OLDSTYLE => return Err("it speaks the old form of NBD, without options. Use a newer server".into()),
            _ => return Err("it does not speak NBD. Check the address".into()),
        }
        // A client may answer only flags that the server has set.
        let flags = greeting.flags.get() & (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
        self.zeroes = flags & FLAG_NO_ZEROES == 0;
        out.extend_from_slice(&u32::from(flags).to_be_bytes());
        if flags & FLAG_FIXED_NEWSTYLE == 0 {
            if self.tls == Wish::Require {
                return Err(no_tls("its handshake is too old for it", ""));
            }
            self.ask_by_name(out);
        } else if self.tls != Wish::Off {
            self.ask(Asked::Tls, opt::STARTTLS, &[], out);
        } else {
            self.ask(Asked::Extended, opt::EXTENDED_HEADERS, &[], out);
        }
        Ok((size_of::<Greeting>(), None))
    }

    fn ask(&mut self, asked: Asked, option: u32, data: &[u8], out: &mut Vec<u8>) {
        self.asked = asked;
        let (magic, len) = (U64::new(OPTION_MAGIC), U32::new(data.len() as u32));
        out.extend_from_slice(OptionHeader { magic, option: U32::new(option), len }.as_bytes());
        out.extend_from_slice(data);
    }

    fn ask_by_name(&mut self, out: &mut Vec<u8>) {
        let name = self.wanted.clone();
        self.ask(Asked::Name, opt::EXPORT_NAME, name.as_bytes(), out);
    }

    fn ask_to_go(&mut self, out: &mut Vec<u8>) {
        let mut data = (self.wanted.len() as u32).to_be_bytes().to_vec();
        data.extend_from_slice(self.wanted.as_bytes());
        let wanted = [info::NAME, info::BLOCK_SIZE];
        data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
        wanted.iter().for_each(|kind| data.extend_from_slice(&kind.to_be_bytes()));
        self.ask(Asked::Go, opt::GO, &data, out);
    }

    /// Requests the metadata context for holes.
    fn ask_for_context(&mut self, out: &mut Vec<u8>) {
        let mut data = Vec::new();
        for (many, text) in [(None, self.wanted.as_str()), (Some(1u32), ALLOCATION)] {
            many.into_iter().for_each(|many| data.extend_from_slice(&many.to_be_bytes()));
            data.extend_from_slice(&(text.len() as u32).to_be_bytes());
            data.extend_from_slice(text.as_bytes());
        }
        self.ask(Asked::Context, opt::SET_META_CONTEXT, &data, out);
    }

    /// Continues once the form of replies is agreed. Metadata contexts need a form with chunks.
    fn formed(&mut self, mode: Mode, out: &mut Vec<u8>) {
        self.export.mode = mode;
        if self.contexts && mode != Mode::Simple { self.ask_for_context(out) } else { self.ask_to_go(out) }
    }

    fn replied(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(usize, Option<Agreed>), String> {
        let Ok((head, rest)) = OptionReply::read_from_prefix(input) else { return Ok((0, None)) };
        let (kind, len) = (head.reply.get(), head.len.get() as usize);
        let option = match self.asked {
            Asked::Nothing => return Err("it speaks in the handshake before it was asked".into()),
            Asked::Tls => opt::STARTTLS,
            Asked::Context => opt::SET_META_CONTEXT,
            Asked::Extended => opt::EXTENDED_HEADERS,
            Asked::Structured => opt::STRUCTURED_REPLY,
            _ => opt::GO,
        };
        if head.magic.get() != OPTION_REPLY_MAGIC || head.option.get() != option || len > MAX_REPLY {
            return Err("it answers in the handshake with what is no answer to what it was asked".into());
        }
        let Some(data) = rest.get(..len) else { return Ok((0, None)) };
        self.replies += 1;
        if self.replies > MAX_REPLIES {
            return Err("it does not come to an end in the handshake".into());
        }
        let (is_error, mut agreed) = (kind & ERROR_BIT != 0, None);
        match (self.asked, kind) {
            (Asked::Tls, rep::ACK) => {
                self.asked = Asked::Nothing;
                agreed = Some(Agreed::Tls);
            }
            (Asked::Tls, _) if is_error && self.tls == Wish::Require => {
                return Err(no_tls("it refuses it", &said(data)));
            }
            (Asked::Tls, _) if is_error => self.ask(Asked::Extended, opt::EXTENDED_HEADERS, &[], out),
            (Asked::Go, rep::INFO) => self.told(data)?,
            (Asked::Go, rep::ACK) => agreed = Some(Agreed::Export(self.chosen()?)),
            // A server without GO has the old option.
            (Asked::Go, rep::ERR_UNSUP) => self.ask_by_name(out),
            (_, rep::ERR_TLS_REQD) => return Err(refusal(&self.wanted, kind, data)),
            (Asked::Go, _) if is_error => return Err(refusal(&self.wanted, kind, data)),
            (Asked::Extended, rep::ACK) => self.formed(Mode::Extended, out),
            (Asked::Extended, _) if is_error => self.ask(Asked::Structured, opt::STRUCTURED_REPLY, &[], out),
            (Asked::Structured, rep::ACK) => self.formed(Mode::Structured, out),
            (Asked::Structured, _) if is_error => self.formed(Mode::Simple, out),
            (Asked::Context, rep::META_CONTEXT) => self.selected(data)?,
            // If there is no context, or one without a number, the server does not report holes, which is permitted.
            (Asked::Context, rep::ACK) => self.ask_to_go(out),
            (Asked::Context, _) if is_error => {
                self.export.allocation = None;
                self.ask_to_go(out);
            }
            _ => return Err("it answers in the handshake with what is no answer to what it was asked".into()),
        }
        Ok((size_of::<OptionReply>() + len, agreed))
    }

    /// Processes the server's answer with the selected metadata context.
    fn selected(&mut self, data: &[u8]) -> Result<(), String> {
        match data.split_first_chunk() {
            Some((number, name)) if name == ALLOCATION.as_bytes() && self.export.allocation.is_none() => {
                self.export.allocation = Some(u32::from_be_bytes(*number));
                Ok(())
            }
            _ => Err("it selects a metadata context that it was not asked for".into()),
        }
    }

    /// Processes a property of the export. Servers send these before they accept the export.
    fn told(&mut self, data: &[u8]) -> Result<(), String> {
        let Some((kind, text)) = data.split_first_chunk() else { return Err("it tells nothing of its export".into()) };
        match u16::from_be_bytes(*kind) {
            info::EXPORT => {
                let wrong = |_| "it tells size and flags of its export in a wrong length".to_owned();
                let told = InfoExport::read_from_bytes(data).map_err(wrong)?;
                (self.export.size, self.export.flags, self.told) = (told.size.get(), told.flags.get(), true);
            }
            info::BLOCK_SIZE => {
                let wrong = |_| "it tells its block sizes in a wrong length".to_owned();
                let told = InfoBlockSize::read_from_bytes(data).map_err(wrong)?;
                self.export.min_block = told.min.get();
                self.export.preferred_block = told.preferred.get();
                self.export.max_payload = told.max_payload.get();
            }
            info::NAME => self.export.name = Some(quoted(text)),
            _ => {} // A server may send properties that were not requested.
        }
        Ok(())
    }

    fn named(&mut self, input: &[u8]) -> Result<(usize, Option<Agreed>), String> {
        let len = 10 + if self.zeroes { ZEROES } else { 0 };
        let Some(&[a, b, c, d, e, f, g, h, i, j]) = input.get(..len).and_then(|all| all.first_chunk()) else {
            return Ok((0, None));
        };
        self.export.size = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        self.export.flags = u16::from_be_bytes([i, j]);
        self.told = true;
        Ok((len, Some(Agreed::Export(self.chosen()?))))
    }

    /// Returns the export, if the driver can use it.
    fn chosen(&self) -> Result<Export, String> {
        let Export { size, flags, min_block, preferred_block, max_payload, .. } = self.export;
        if !self.told || flags & tflag::HAS_FLAGS == 0 {
            return Err("it does not tell size and abilities of its export".into());
        }
        if size > i64::MAX as u64 {
            return Err(format!("its export has {size} bytes, and the largest device is 8 EiB - 1"));
        }
        if !min_block.is_power_of_two() || min_block > MAX_BLOCK || max_payload < min_block.max(512) {
            let sizes = format!("at least {min_block} bytes a request and at most {max_payload}");
            return Err(format!("its export takes {sizes}: blocks must be a power of two, 64 KiB at most"));
        }
        let preferred_block = preferred_block.clamp(min_block, 1 << 20).next_power_of_two();
        Ok(Export { preferred_block, ..self.export.clone() })
    }
}

/// Describes the lack of TLS where it is required.
fn no_tls(why: &str, said: &str) -> String {
    format!(
        "TLS is required, and {why}{said}. Let the server offer it (sheave serve --tls-cert and --tls-key, nbdkit \
         --tls=on, qemu-nbd --tls-creds); or, where everybody on the way to it is trusted, say tls=off"
    )
}

/// Formats the text that a server sends with an error.
fn said(data: &[u8]) -> String {
    if data.is_empty() { String::new() } else { format!(" (it says: {})", quoted(data)) }
}

/// Describes the server's refusal of the export.
fn refusal(wanted: &str, kind: u32, data: &[u8]) -> String {
    let said = said(data);
    match kind {
        rep::ERR_TLS_REQD => format!(
            "it wants TLS{said}. Give tls=require, and the file with the authority that has issued its certificate by \
             ca=PATH; if it wants a certificate of its clients too, by cert=PATH and key=PATH"
        ),
        rep::ERR_UNKNOWN => format!(
            "it has no export '{wanted}'{said}. `nbdinfo --list` shows those that it has; name one by export=NAME, or \
             behind a slash as in nbd:HOST:PORT/NAME"
        ),
        rep::ERR_POLICY => format!("its rules forbid the export '{wanted}'{said}. Ask whoever runs it"),
        rep::ERR_SHUTDOWN => format!("it is about to end{said}. Start it again"),
        _ => format!("it refuses the export '{wanted}' with error {}{said}", kind & !ERROR_BIT),
    }
}

/// Returns a server's text for an error message: short, and without control characters.
fn quoted(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(&text[..text.len().min(MAX_QUOTED)]);
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sheave_nbd::handshake::{self, Handshake, Mode, Tls};
    use sheave_nbd::wire::{self, opt, rep, tflag};
    use sheave_nbd::{Catalog, ExportInfo};

    use super::{Agreed, Export, MAX_REPLY, Negotiation, Wish};

    struct One;

    impl Catalog for One {
        fn find(&self, name: &[u8]) -> Option<ExportInfo> {
            (name == b"disk").then(|| ExportInfo {
                id: 0,
                name: "disk".into(),
                description: String::new(),
                size: 5 << 30,
                read_only: false,
                fast_zero: true,
                min_block: 512,
                preferred_block: 8192,
            })
        }

        fn list(&self, each: &mut dyn FnMut(&str, &str)) {
            each("disk", "");
        }

        fn exports(&self) -> usize {
            1
        }

        fn contexts(&self, _: u32, _: &mut dyn FnMut(&str)) {}

        fn context(&self, _: u32, _: &[u8]) -> Option<u64> {
            None
        }
    }

    /// Runs the handshake with our server, a few bytes at a time.
    fn with_ours(name: &str, tls: Tls, bytes_at_a_time: usize) -> Result<Export, String> {
        let (mut to_client, mut to_server) = (Vec::new(), Vec::new());
        let mut server = Handshake::new(tls, &mut to_client);
        let mut client = Negotiation::new(name, Wish::Off, true);
        let (mut arrived, mut chosen) = (Vec::new(), None);
        for _ in 0..100_000 {
            while chosen.is_none() {
                let (used, step) = server.step(&to_server, &One, &mut to_client);
                to_server.drain(..used);
                match step {
                    handshake::Step::Negotiated(negotiated) => chosen = Some(negotiated),
                    handshake::Step::More | handshake::Step::Close => break,
                    _ => {}
                }
            }
            let many = bytes_at_a_time.min(to_client.len());
            arrived.extend(to_client.drain(..many));
            let (used, export) = client.step(&arrived, &mut to_server)?;
            arrived.drain(..used);
            if let Some(Agreed::Export(export)) = export {
                assert!(chosen.is_some() && arrived.is_empty() && to_client.is_empty());
                assert_eq!(chosen.expect("it is there").mode, export.mode);
                return Ok(export);
            }
        }
        panic!("it does not come to an end");
    }

    #[test]
    fn with_our_server_it_comes_to_extended_headers_in_pieces_of_any_size() {
        for bytes in [1, 2, 3, 7, 20, 10_000] {
            let export = with_ours("disk", Tls::Off, bytes).expect("an export");
            assert_eq!((export.size, export.mode), (5 << 30, Mode::Extended));
            assert_eq!((export.min_block, export.preferred_block), (512, 8192));
            assert_eq!(export.name.as_deref(), Some("disk"));
            assert!(export.has(tflag::SEND_FLUSH) && export.has(tflag::SEND_FUA) && export.has(tflag::CAN_MULTI_CONN));
        }
    }

    #[test]
    fn a_refusal_names_cause_and_fix() {
        let unknown = with_ours("other", Tls::Off, 1000).expect_err("no such export");
        assert!(unknown.contains("no export 'other'") && unknown.contains("nbdinfo --list"), "{unknown}");
        let tls = with_ours("disk", Tls::Required, 1000).expect_err("TLS");
        assert!(tls.contains("wants TLS") && tls.contains("tls=require") && tls.contains("ca=PATH"), "{tls}");
    }

    fn greeting(flags: u16) -> Vec<u8> {
        [wire::INIT_MAGIC.to_be_bytes().as_slice(), &wire::OPTION_MAGIC.to_be_bytes(), &flags.to_be_bytes()].concat()
    }

    fn answer(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = wire::OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        [option, kind, data.len() as u32].iter().for_each(|number| bytes.extend(number.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    /// Feeds all messages, one after the other.
    fn feed(script: &[Vec<u8>]) -> Result<Option<Export>, String> {
        let (mut client, mut out) = (Negotiation::new("x", Wish::Off, false), Vec::new());
        let mut export = None;
        for bytes in script {
            let (used, found) = client.step(bytes, &mut out)?;
            assert_eq!(used, bytes.len());
            export = found;
        }
        Ok(export.map(|agreed| match agreed {
            Agreed::Export(export) => export,
            Agreed::Tls => panic!("nobody asked for TLS"),
        }))
    }

    fn told(size: u64, flags: u16) -> Vec<u8> {
        [0u16.to_be_bytes().as_slice(), &size.to_be_bytes(), &flags.to_be_bytes()].concat()
    }

    fn blocks(min: u32, preferred: u32, max: u32) -> Vec<u8> {
        [3u16.to_be_bytes().as_slice(), &min.to_be_bytes(), &preferred.to_be_bytes(), &max.to_be_bytes()].concat()
    }

    #[test]
    fn older_servers_serve_an_export_by_the_options_they_support() {
        let no = |option| answer(option, rep::ERR_UNSUP, b"");
        let simple = [
            greeting(3),
            no(opt::EXTENDED_HEADERS),
            no(opt::STRUCTURED_REPLY),
            answer(opt::GO, rep::INFO, &told(1 << 20, 1)),
            answer(opt::GO, rep::ACK, b""),
        ];
        let export = feed(&simple).expect("understood").expect("chosen");
        assert_eq!((export.mode, export.size, export.max_payload), (Mode::Simple, 1 << 20, 32 << 20));
        let by_name = [
            greeting(1),
            no(opt::EXTENDED_HEADERS),
            answer(opt::STRUCTURED_REPLY, rep::ACK, b""),
            no(opt::GO),
            [(1u64 << 21).to_be_bytes().as_slice(), &5u16.to_be_bytes(), &[0; 124]].concat(),
        ];
        let export = feed(&by_name).expect("understood").expect("chosen");
        assert_eq!((export.mode, export.size, export.flags), (Mode::Structured, 2 << 20, 5));
        let no_options = [greeting(2), [(1u64 << 22).to_be_bytes().as_slice(), &1u16.to_be_bytes()].concat()];
        assert_eq!(feed(&no_options).expect("understood").expect("chosen").size, 4 << 20);
    }

    #[test]
    fn a_server_or_export_that_cannot_be_used_is_refused() {
        let until_go = [greeting(3), answer(opt::EXTENDED_HEADERS, rep::ACK, b"")];
        let with = |rest: &[Vec<u8>]| feed(&[until_go.as_slice(), rest].concat()).map(|_| ());
        let ack = answer(opt::GO, rep::ACK, b"");
        let info = |data: &[u8]| answer(opt::GO, rep::INFO, data);
        let good = [info(&told(1 << 20, 1)), info(&blocks(512, 4096, 1 << 20)), ack.clone()];
        with(&good).expect("a good one");
        for (wrong, says) in [
            (vec![ack.clone()], "size and abilities"),
            (vec![info(&told(1 << 20, 0)), ack.clone()], "size and abilities"),
            (vec![info(&told(1 << 63, 1)), ack.clone()], "8 EiB"),
            (vec![info(&told(1 << 20, 1)), info(&blocks(3, 4096, 1 << 20)), ack.clone()], "power of two"),
            (vec![info(&told(1 << 20, 1)), info(&blocks(0, 4096, 1 << 20)), ack.clone()], "power of two"),
            (vec![info(&told(1 << 20, 1)), info(&blocks(1 << 17, 1 << 17, 1 << 20)), ack.clone()], "power of two"),
            (vec![info(&told(1 << 20, 1)), info(&blocks(4096, 4096, 1024)), ack.clone()], "power of two"),
            (vec![info(&told(1 << 20, 1)[..5])], "wrong length"),
            (vec![info(&[])], "nothing of its export"),
            (vec![answer(opt::LIST, rep::ACK, b"")], "no answer to what it was asked"),
            (vec![answer(opt::GO, rep::SERVER, b"")], "no answer to what it was asked"),
            (vec![answer(opt::GO, (1 << 31) + 2, b"by\x1b[31mpolicy")], "by [31mpolicy"),
            (vec![answer(opt::GO, rep::ERR_SHUTDOWN, b"")], "about to end"),
        ] {
            let why = with(&wrong).expect_err("refused");
            assert!(why.contains(says), "{why}");
        }
        let many = vec![info(&told(1 << 20, 1)); 100];
        assert!(with(&many).expect_err("refused").contains("does not come to an end"));
        assert!(feed(&[b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()]).expect_err("refused").contains("does not speak NBD"));
        let mut old = greeting(0);
        old[8..16].copy_from_slice(&super::OLDSTYLE.to_be_bytes());
        assert!(feed(&[old]).expect_err("refused").contains("old form"));
    }

    /// Runs a client that wants TLS and the context for holes on `clear`, and on `records` after TLS begins.
    fn secure(wish: Wish, clear: &[Vec<u8>], records: &[Vec<u8>]) -> Result<Export, String> {
        let (mut client, mut out) = (Negotiation::new("x", wish, true), Vec::new());
        let mut script: Vec<&Vec<u8>> = clear.iter().collect();
        let mut at = 0;
        while let Some(bytes) = script.get(at) {
            at += 1;
            match client.step(bytes, &mut out)? {
                (_, Some(Agreed::Export(export))) => return Ok(export),
                (_, Some(Agreed::Tls)) => {
                    assert!(!export_was_asked(&out), "N2: nothing is said of the export in the clear");
                    client.secured(&mut out);
                    script.extend(records);
                }
                (used, None) => assert_eq!(used, bytes.len()),
            }
        }
        Err("no more".into())
    }

    fn export_was_asked(said: &[u8]) -> bool {
        said.windows(4).any(|word| word == opt::GO.to_be_bytes())
    }

    fn context(number: u32, name: &str) -> Vec<u8> {
        answer(opt::SET_META_CONTEXT, rep::META_CONTEXT, &[&number.to_be_bytes(), name.as_bytes()].concat())
    }

    /// Returns the answers of a server with structured replies, with `contexts` for the metadata context.
    fn rest(contexts: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let begin = [answer(opt::EXTENDED_HEADERS, rep::ERR_UNSUP, b""), answer(opt::STRUCTURED_REPLY, rep::ACK, b"")];
        let end = [answer(opt::GO, rep::INFO, &told(1 << 20, 1)), answer(opt::GO, rep::ACK, b"")];
        [begin.as_slice(), contexts, &end].concat()
    }

    #[test]
    fn tls_is_the_first_that_is_agreed_and_what_cannot_have_it_is_refused() {
        let yes = [greeting(3), answer(opt::STARTTLS, rep::ACK, b"")];
        let no = |kind| [greeting(3), answer(opt::STARTTLS, kind, b"not here")];
        let rest = rest(&[answer(opt::SET_META_CONTEXT, rep::ACK, b"")]);
        for wish in [Wish::Require, Wish::Allow] {
            let export = secure(wish, &yes, &rest).expect("an export");
            assert!(export.secure && export.allocation.is_none());
        }
        for kind in [rep::ERR_UNSUP, rep::ERR_POLICY, rep::ERR_INVALID] {
            let why = secure(Wish::Require, &no(kind), &[]).expect_err("refused");
            assert!(why.contains("TLS is required") && why.contains("not here") && why.contains("tls=off"), "{why}");
            let clear = [no(kind).as_slice(), &rest].concat();
            assert!(!secure(Wish::Allow, &clear, &[]).expect("an export").secure);
        }
        let why = secure(Wish::Require, &[greeting(2)], &[]).expect_err("refused");
        assert!(why.contains("too old"), "{why}");
        // N2: an attacker appends these answers in the clear, so that they count as sent within TLS.
        let pipelined = [greeting(3), [yes[1].clone(), rest[0].clone()].concat()];
        for wish in [Wish::Require, Wish::Allow] {
            let why = secure(wish, &pipelined, &rest).expect_err("refused");
            assert!(why.contains("in the clear behind"), "{why}");
        }
    }

    #[test]
    fn the_context_that_tells_of_holes_is_taken_under_its_number_and_no_other() {
        let ack = answer(opt::SET_META_CONTEXT, rep::ACK, b"");
        let clear = |contexts: &[Vec<u8>]| {
            let all = [&[greeting(3), answer(opt::STARTTLS, rep::ERR_UNSUP, b"")], rest(contexts).as_slice()].concat();
            secure(Wish::Allow, &all, &[])
        };
        assert_eq!(clear(&[context(9, "base:allocation"), ack.clone()]).expect("an export").allocation, Some(9));
        assert_eq!(clear(&[answer(opt::SET_META_CONTEXT, rep::ERR_UNSUP, b"")]).expect("an export").allocation, None);
        for wrong in [
            vec![context(9, "qemu:dirty")],
            vec![context(9, "base:allocation"), context(8, "base:allocation")],
            vec![answer(opt::SET_META_CONTEXT, rep::META_CONTEXT, b"abc")],
        ] {
            let why = clear(&wrong).expect_err("refused");
            assert!(why.contains("not asked for"), "{why}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_it_or_make_it_wait_for_more_than_a_reply(
            heads in prop::collection::vec((0u32..12, any::<u32>(), 0u32..40), 0..8),
            noise in prop::collection::vec(any::<u8>(), MAX_REPLY + 20..MAX_REPLY + 64),
            flags in any::<u16>(),
            wish in prop::sample::select(vec![Wish::Off, Wish::Allow, Wish::Require]),
        ) {
            let mut input = greeting(flags);
            for (option, kind, len) in heads {
                let kind = if kind & 1 == 0 { kind % 5 } else { kind };
                input.extend(answer(option, kind, &vec![kind as u8; len as usize]));
            }
            input.extend(noise);
            let (mut client, mut out, mut at) = (Negotiation::new("x", wish, true), Vec::new(), 0);
            loop {
                match client.step(&input[at..], &mut out) {
                    Ok((0, None)) => {
                        prop_assert!(input.len() - at < MAX_REPLY + 20, "N1");
                        break;
                    }
                    Ok((used, None)) => at += used,
                    Ok((used, Some(Agreed::Tls))) => {
                        client.secured(&mut out);
                        at += used;
                    }
                    Ok((_, Some(Agreed::Export(_)))) | Err(_) => break,
                }
                prop_assert!(out.len() < 1 << 16);
            }
        }
    }
}
