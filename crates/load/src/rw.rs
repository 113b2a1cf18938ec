//! Kinds of work: the order in which blocks are taken, and reading or writing.

use std::str::FromStr;

use serde::Serialize;

/// Kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rw {
    /// Read from front to back.
    Read,
    /// Write from front to back.
    Write,
    /// Read at random.
    Randread,
    /// Write at random.
    Randwrite,
    /// Read and write at random.
    Randrw,
}

impl Rw {
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Randread, Self::Randwrite, Self::Randrw];

    /// Returns the name that the command line and JSON use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Randrw => "randrw",
        }
    }

    /// Returns the description in help texts.
    pub fn what(self) -> &'static str {
        match self {
            Self::Read => "Read from front to back",
            Self::Write => "Write from front to back",
            Self::Randread => "Read at random",
            Self::Randwrite => "Write at random",
            Self::Randrw => "Read and write at random",
        }
    }

    /// Returns true if blocks are taken at random.
    pub fn random(self) -> bool {
        !matches!(self, Self::Read | Self::Write)
    }

    /// Returns true if some I/Os read.
    pub fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::Randwrite)
    }

    /// Returns true if some I/Os write.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Randread)
    }
}

impl FromStr for Rw {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|rw| rw.name() == text).ok_or_else(|| format!("{text:?} is none of {}", names()))
    }
}
