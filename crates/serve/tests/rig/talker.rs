//! Clients that check every byte of their replies, in each form of replies.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use super::{Rig, option, request};

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const GOODBYE: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const STATUS: u16 = 7;

/// Form of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Simple,
    Structured,
    Extended,
}

pub const FORMS: [Form; 3] = [Form::Simple, Form::Structured, Form::Extended];

/// A request that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    pub command: u16,
    pub offset: u64,
    pub len: u32,
}

/// A complete reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub error: u32,
    /// Data of a read.
    pub data: Vec<u8>,
    /// Payloads of the chunks with the status of a range.
    pub status: Vec<u8>,
}

/// A client in the transmission phase.
pub struct Talker {
    pub stream: UnixStream,
    pub form: Form,
    /// Requests without a reply, by their cookies.
    pub asked: BTreeMap<u64, Asked>,
    parts: BTreeMap<u64, Answer>,
    next: u64,
}

/// Returns bytes that only this seed has at this offset of the export. The offset is a multiple of 8.
pub fn pattern(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let word = |at: u64| (at ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ seed;
    let mut bytes: Vec<u8> = (offset / 8..).take(len.div_ceil(8)).flat_map(|at| word(at).to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

/// Returns what a client says to choose the export, and the number of bytes that it is answered with the greeting.
pub fn choice(form: Form) -> (Vec<u8>, usize) {
    let queries = b"\0\0\0\x01x\0\0\0\x01\0\0\0\x0fbase:allocation";
    let flags = vec![0, 0, 0, 3];
    let kind = match form {
        Form::Simple => return ([flags, option(1, b"x")].concat(), 18 + 10),
        Form::Structured => 8,
        Form::Extended => 11,
    };
    let said = [flags, option(kind, b""), option(10, queries), option(7, b"\0\0\0\x01x\0\0")].concat();
    (said, 18 + 20 + 20 + 19 + 20 + 20 + 12 + 20 + 14 + 20)
}

impl Rig {
    /// Connects a client that has selected the context `base:allocation`, unless its form has no contexts.
    pub fn talker(&self, form: Form) -> Talker {
        let mut stream = self.connect();
        let (said, answered) = choice(form);
        stream.write_all(&said).expect("sent");
        stream.read_exact(&mut vec![0; answered]).expect("an export");
        Talker::on(stream, form)
    }
}

impl Talker {
    /// Uses a connection that is in the transmission phase, or will be.
    pub fn on(stream: UnixStream, form: Form) -> Talker {
        Talker { stream, form, asked: BTreeMap::new(), parts: BTreeMap::new(), next: 1 }
    }

    /// Returns the header of a new request.
    pub fn ask(&mut self, command: u16, offset: u64, len: u32) -> Vec<u8> {
        let cookie = self.next;
        self.next += 1;
        if command != GOODBYE {
            self.asked.insert(cookie, Asked { command, offset, len });
        }
        if self.form != Form::Extended {
            return request(command, cookie, offset, len);
        }
        // NBD_CMD_FLAG_PAYLOAD_LEN is a must for writes here.
        let flags = if command == WRITE { 1 << 5 } else { 0 };
        super::extended_request(command, flags, cookie, offset, len.into())
    }

    /// Returns a new write of bytes.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Vec<u8> {
        [self.ask(WRITE, offset, bytes.len() as u32), bytes.to_vec()].concat()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
    }

    /// Receives the next complete reply. Panics if nobody asked for it.
    pub fn answer(&mut self) -> io::Result<(Asked, Answer)> {
        loop {
            let (cookie, is_done) = self.chunk()?;
            if is_done {
                let asked = self.asked.remove(&cookie).expect("chunks are of requests");
                let answer = self.parts.remove(&cookie).expect("a chunk has come");
                assert!(
                    answer.error != 0
                        || answer.data.len() == if asked.command == READ { asked.len as usize } else { 0 }
                );
                return Ok((asked, answer));
            }
        }
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).map(|()| bytes)
    }

    fn chunk(&mut self) -> io::Result<(u64, bool)> {
        let magic = u32::from_be_bytes(self.take()?);
        if magic == 0x6744_6698 {
            let (error, cookie) = (u32::from_be_bytes(self.take()?), u64::from_be_bytes(self.take()?));
            let Some(asked) = self.asked.get(&cookie) else { panic!("a reply to {cookie}, which nobody asked for") };
            let has_data = asked.command == READ && error == 0;
            let mut data = vec![0; if has_data { asked.len as usize } else { 0 }];
            self.stream.read_exact(&mut data)?;
            let before = self.parts.insert(cookie, Answer { error, data, status: Vec::new() });
            assert_eq!(before, None, "a simple reply is whole");
            return Ok((cookie, true));
        }
        let (flags, kind) = (u16::from_be_bytes(self.take()?), u16::from_be_bytes(self.take()?));
        let cookie = u64::from_be_bytes(self.take()?);
        let len = match (magic, self.form) {
            (0x668e_33ef, Form::Structured) => u64::from(u32::from_be_bytes(self.take()?)),
            (0x6e8a_278c, Form::Extended) => {
                let _offset: [u8; 8] = self.take()?;
                u64::from_be_bytes(self.take()?)
            }
            _ => panic!("{magic:x} is no reply"),
        };
        assert!(len <= 40 << 20, "a chunk of {len} bytes");
        let mut payload = vec![0; len as usize];
        self.stream.read_exact(&mut payload)?;
        let Some(asked) = self.asked.get(&cookie) else { panic!("a reply to {cookie}, which nobody asked for") };
        let part = self.parts.entry(cookie).or_default();
        match kind {
            0 => {}
            1 => {
                let at = u64::from_be_bytes(payload[..8].try_into().expect("eight"));
                assert_eq!(at, asked.offset + part.data.len() as u64, "in order");
                part.data.extend_from_slice(&payload[8..]);
            }
            5 | 6 => part.status.extend(payload),
            _ => part.error = u32::from_be_bytes(payload[..4].try_into().expect("four")),
        }
        Ok((cookie, flags & 1 != 0))
    }

    /// Receives replies to everything that was asked for. Each read is to have the data that `data` returns, and
    /// requests that reach beyond the end fail.
    pub fn take_all(&mut self, data: impl Fn(&Asked) -> Vec<u8>) {
        while !self.asked.is_empty() {
            let (asked, answer) = self.answer().unwrap_or_else(|error| panic!("{error}; left: {:?}", self.asked));
            if asked.offset + u64::from(asked.len) > super::SIZE {
                assert_ne!(answer.error, 0, "{asked:?}");
                continue;
            }
            assert_eq!(answer.error, 0, "{asked:?}");
            if asked.command == READ {
                assert!(answer.data == data(&asked), "the data of {asked:?}");
            }
            let has_status = asked.command == STATUS;
            assert_eq!(!answer.status.is_empty(), has_status, "{asked:?}");
        }
    }

    /// Returns true if the server has closed the connection, and sent nothing before.
    pub fn is_at_its_end(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }

    /// Writes the bytes of a seed into a range, and waits for that.
    pub fn fill(&mut self, seed: u64, offset: u64, len: usize) {
        for at in (0..len).step_by(1 << 20) {
            let (from, part) = (offset + at as u64, (len - at).min(1 << 20));
            let write = self.write(from, &pattern(seed, from, part));
            self.send(&write);
            self.take_all(|_| Vec::new());
        }
    }

    /// Asserts that a range has the bytes of a seed.
    pub fn has(&mut self, seed: u64, offset: u64, len: usize) {
        for at in (0..len).step_by(1 << 20) {
            let read = self.ask(READ, offset + at as u64, (len - at).min(1 << 20) as u32);
            self.send(&read);
            self.take_all(|asked| pattern(seed, asked.offset, asked.len as usize));
        }
    }
}
