//! Reads a stream as records, and enforces D1 to D4.

use std::io::{ErrorKind, Read};

use super::{
    BANNERS, DiffError, Header, IDENTITY_BYTES, IDENTITY_MAGIC, Identity, MAX_NAME, MAX_SKIPPED, UNIQUE_BYTES,
    UNIQUE_MAGIC, Version,
};

/// One range of the volume, or the end of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A range of data, whose bytes follow and are read with [`Reader::data`].
    Data {
        /// First byte of the range.
        pos: u64,
        /// Number of bytes.
        len: u64,
    },
    /// A range that reads as zeroes.
    Zeroes {
        /// First byte of the range.
        pos: u64,
        /// Number of bytes.
        len: u64,
    },
    /// The end of the stream.
    End,
}

/// Reader of a stream. Its memory does not depend on the content of the stream (D4).
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    version: Version,
    /// Bytes read so far.
    at: u64,
    /// Tag that was read and not handled yet: that of the first range, or `e` at the end.
    tag: Option<u8>,
    size: u64,
    /// End of the last range (D2).
    end: u64,
    /// Bytes of the current range's data that were not read yet.
    data: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the banner and the metadata.
    pub fn begin(from: R) -> Result<(Reader<R>, Header), DiffError> {
        let mut reader = Reader { from, version: Version::V1, at: 0, tag: None, size: 0, end: 0, data: 0 };
        let banner: [u8; 12] = reader.array("its first line")?;
        reader.version = match BANNERS.iter().position(|known| **known == banner) {
            Some(0) => Version::V1,
            Some(_) => Version::V2,
            None => return Err(reader.wrong("it does not begin with 'rbd diff v1' or 'rbd diff v2'")),
        };
        let header = reader.metadata()?;
        reader.size = header.size;
        Ok((reader, header))
    }

    /// Returns the version of the stream.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the number of bytes read so far.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next range. Skips what is left of the last range's data.
    #[expect(clippy::should_implement_trait, reason = "it fails, and its items borrow what follows them in the stream")]
    pub fn next(&mut self) -> Result<Record, DiffError> {
        let mut drain = [0; 4096];
        while self.data > 0 {
            self.data(&mut drain)?;
        }
        loop {
            let tag = match self.tag.take() {
                Some(tag) => tag,
                None => self.tag()?,
            };
            match tag {
                b'e' => return self.expect_end(),
                b'w' | b'z' => return self.range(tag),
                b'f' | b't' | b's' => return Err(self.wrong("metadata stands between ranges (record order)")),
                tag => self.skip(tag)?,
            }
        }
    }

    /// Reads data of the current range into `buf`, as much as is left and fits. Returns the number of bytes.
    pub fn data(&mut self, buf: &mut [u8]) -> Result<usize, DiffError> {
        let now = self.data.min(buf.len() as u64) as usize;
        self.fill(&mut buf[..now], "data")?;
        self.data -= now as u64;
        Ok(now)
    }

    fn metadata(&mut self) -> Result<Header, DiffError> {
        let mut header = Header::default();
        let mut size = None;
        loop {
            let tag = self.tag()?;
            let twice = match tag {
                b'f' => header.from.replace(self.name()?).is_some(),
                b't' => header.to.replace(self.name()?).is_some(),
                b's' => size.replace(self.size()?).is_some(),
                b'i' if self.version == Version::V2 => self.identity(&mut header)?,
                b'w' | b'z' | b'e' => {
                    self.tag = Some(tag);
                    header.size = size.ok_or_else(|| self.wrong("there is no size (record 's')"))?;
                    return Ok(header);
                }
                tag => {
                    self.skip(tag)?;
                    false
                }
            };
            if twice {
                return Err(self.wrong(format!("record '{}' stands there twice", char::from(tag))));
            }
        }
    }

    fn name(&mut self) -> Result<String, DiffError> {
        let len = self.len()?;
        let bytes = u32::from_le_bytes(self.array("a name's length")?) as usize;
        if bytes > MAX_NAME || len.is_some_and(|len| len != 4 + bytes as u64) {
            return Err(self.wrong(format!("a snapshot's name has {bytes} bytes, which does not fit its record")));
        }
        let mut name = vec![0; bytes];
        self.fill(&mut name, "a name")?;
        String::from_utf8(name).map_err(|_| self.wrong("a snapshot's name is no UTF-8"))
    }

    fn size(&mut self) -> Result<u64, DiffError> {
        if self.len()?.is_some_and(|len| len != 8) {
            return Err(self.wrong("the record of the size ('s') has another length than 8"));
        }
        self.word()
    }

    /// Reads an identity into `header`. Returns true if the header had it already. Skips records of other programs with
    /// this tag.
    fn identity(&mut self, header: &mut Header) -> Result<bool, DiffError> {
        let len = self.len()?.unwrap_or(0);
        if len == UNIQUE_BYTES as u64 {
            return self.unique(header);
        }
        if len != IDENTITY_BYTES as u64 {
            self.skip_bytes(len)?;
            return Ok(false);
        }
        let bytes: [u8; IDENTITY_BYTES] = self.array("an identity")?;
        if !bytes.starts_with(IDENTITY_MAGIC) {
            return Ok(false);
        }
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
        let identity = Identity {
            pool: std::array::from_fn(|byte| bytes[16 + byte]),
            volume: word(32) as u32,
            created: word(40),
            size: word(48),
            written: word(56),
            layout: word(64),
            unique: None,
        };
        let whose = match bytes[8] {
            b'f' => &mut header.from_identity,
            b't' => &mut header.to_identity,
            _ => return Err(self.wrong("an identity is neither that of 'f' nor of 't'")),
        };
        Ok(whose.replace(identity).is_some())
    }

    /// Reads the random bits of an identity, which must follow that identity. Returns true if it had random bits
    /// already.
    fn unique(&mut self, header: &mut Header) -> Result<bool, DiffError> {
        let bytes: [u8; UNIQUE_BYTES] = self.array("the random bits of an identity")?;
        if !bytes.starts_with(UNIQUE_MAGIC) {
            return Ok(false);
        }
        let whose = match bytes[8] {
            b'f' => &mut header.from_identity,
            b't' => &mut header.to_identity,
            _ => return Err(self.wrong("random bits are neither those of 'f' nor of 't'")),
        };
        let unique: [u8; 16] = std::array::from_fn(|byte| bytes[16 + byte]);
        match whose {
            Some(identity) if unique != [0; 16] => Ok(identity.unique.replace(unique).is_some()),
            Some(_) => Err(self.wrong("the random bits of an identity are all zero")),
            None => Err(self.wrong("random bits stand before the identity that they belong to")),
        }
    }

    fn range(&mut self, tag: u8) -> Result<Record, DiffError> {
        let all = self.len()?;
        let (pos, len) = (self.word()?, self.word()?);
        let follows = if tag == b'w' { len } else { 0 };
        if all.is_some_and(|all| all.checked_sub(16) != Some(follows)) {
            return Err(self.wrong(format!("record '{}' has another length than its range", char::from(tag))));
        }
        let Some(end) = pos.checked_add(len).filter(|end| *end <= self.size) else {
            return Err(self.wrong(format!("{len} bytes at {pos} are beyond the size, {}", self.size)));
        };
        if pos < self.end {
            return Err(self.wrong(format!("the range at {pos} overlaps the one before, which ends at {}", self.end)));
        }
        self.end = end;
        self.data = follows;
        Ok(if tag == b'w' { Record::Data { pos, len } } else { Record::Zeroes { pos, len } })
    }

    /// Returns an error if anything follows the last record.
    fn expect_end(&mut self) -> Result<Record, DiffError> {
        // A further call of `next` finds the end again.
        self.tag = Some(b'e');
        let mut more = [0];
        loop {
            match self.from.read(&mut more) {
                Ok(0) => return Ok(Record::End),
                Ok(_) => return Err(self.wrong("something follows its last record ('e')")),
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(self.unreadable(&err)),
            }
        }
    }

    /// Skips an unknown record. Version 1 has no lengths, so an unknown record is an error there.
    fn skip(&mut self, tag: u8) -> Result<(), DiffError> {
        match self.len()? {
            Some(len) => self.skip_bytes(len),
            None => Err(self.wrong(format!("there is no record {:?} in version 1", char::from(tag)))),
        }
    }

    fn skip_bytes(&mut self, mut len: u64) -> Result<(), DiffError> {
        if len > MAX_SKIPPED {
            return Err(self.wrong(format!("an unknown record has {len} bytes, more than {MAX_SKIPPED}")));
        }
        let mut drain = [0; 4096];
        while len > 0 {
            let now = len.min(drain.len() as u64) as usize;
            self.fill(&mut drain[..now], "an unknown record")?;
            len -= now as u64;
        }
        Ok(())
    }

    fn tag(&mut self) -> Result<u8, DiffError> {
        Ok(self.array::<1>("the next record")?[0])
    }

    /// Reads the length of a record; `None` in version 1, which has none.
    fn len(&mut self) -> Result<Option<u64>, DiffError> {
        match self.version {
            Version::V1 => Ok(None),
            Version::V2 => self.word().map(Some),
        }
    }

    fn word(&mut self) -> Result<u64, DiffError> {
        Ok(u64::from_le_bytes(self.array("a number")?))
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], DiffError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes, what)?;
        Ok(bytes)
    }

    fn fill(&mut self, buf: &mut [u8], what: &str) -> Result<(), DiffError> {
        let mut have = 0;
        while have < buf.len() {
            match self.from.read(&mut buf[have..]) {
                Ok(0) => return Err(self.wrong(format!("it ends within {what}: it was cut off"))),
                Ok(bytes) => {
                    have += bytes;
                    self.at += bytes as u64;
                }
                Err(err) if err.kind() == ErrorKind::Interrupted => {}
                Err(err) => return Err(self.unreadable(&err)),
            }
        }
        Ok(())
    }

    fn wrong(&self, what: impl Into<String>) -> DiffError {
        DiffError { at: self.at, what: what.into(), io: None }
    }

    fn unreadable(&self, err: &std::io::Error) -> DiffError {
        DiffError { at: self.at, what: err.to_string(), io: Some(err.kind()) }
    }
}
