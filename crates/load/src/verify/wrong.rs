//! The report of a wrong block: expected contents, found contents, and the usual cause.

use std::fmt;

use serde::Serialize;

use super::block::{Finding, Identity};

/// Number of bytes of the block that the report shows.
const SHOWN: usize = 64;

/// A wrong block.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// Expected identity.
    pub expected: Identity,
    /// Actual content.
    pub found: Finding,
    /// Bytes of a block.
    pub bs: u32,
    /// Phase in which the block was found.
    pub during: &'static str,
    /// The first bytes of the actual content.
    pub head: Vec<u8>,
}

/// A wrong block in the JSON report.
#[derive(Clone, Debug, Serialize)]
pub struct WrongJson {
    address: u64,
    expected_generation: u32,
    found: String,
    during: &'static str,
    head_hex: String,
}

impl Wrong {
    /// Makes a report on `block`.
    pub fn new(expected: Identity, found: Finding, block: &[u8], during: &'static str) -> Self {
        let head = block[..SHOWN.min(block.len())].to_vec();
        Self { expected, found, bs: block.len() as u32, during, head }
    }

    /// Returns the block for the JSON report.
    pub fn json(&self) -> WrongJson {
        WrongJson {
            address: self.expected.address,
            expected_generation: self.expected.generation,
            found: self.found(),
            during: self.during,
            head_hex: self.head.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }

    fn found(&self) -> String {
        match self.found {
            Finding::Zeroes => "nothing but zeroes".into(),
            Finding::Foreign => "bytes that no verified run wrote".into(),
            Finding::OtherRun(who) => format!("{}, whole, of another run ({:#018x})", describe(who), who.run),
            Finding::Misplaced(who) | Finding::Stale(who) | Finding::Early(who) => {
                format!("{}, whole, of this run", describe(who))
            }
            Finding::Damaged { says, from, to } => {
                format!("{} by its head, but bytes {from}..{to} are not what was written", describe(says))
            }
        }
    }

    fn meaning(&self) -> &'static str {
        match self.found {
            Finding::Zeroes => "the write was acknowledged and never reached the device, or the block was discarded",
            Finding::Foreign => "something else wrote here, or the write never reached the device",
            Finding::OtherRun(_) => "the write of this run was acknowledged and lost; older data is still there",
            Finding::Misplaced(_) => "a write or a read went to the wrong address",
            Finding::Stale(_) => "the last write was acknowledged and lost, or went to the wrong address",
            Finding::Early(_) => "a write whose acknowledgement was never seen has reached the device",
            Finding::Damaged { .. } => "a torn write, a short transfer that was reported as whole, or flipped bits",
        }
    }
}

fn describe(who: Identity) -> String {
    format!("address {}, generation {}", who.address, who.generation)
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let block = self.expected.address / u64::from(self.bs);
        writeln!(
            f,
            "wrong block at byte {} (block {block} of {} bytes), found by {}",
            self.expected.address, self.bs, self.during
        )?;
        writeln!(f, "   expected: {}, run {:#018x}", describe(self.expected), self.expected.run)?;
        writeln!(f, "   found:    {}", self.found())?;
        writeln!(f, "   meaning:  {}", self.meaning())?;
        writeln!(f, "   its first {} bytes:", self.head.len())?;
        for (line, bytes) in self.head.chunks(16).enumerate() {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x} ")).collect();
            let text: String =
                bytes.iter().map(|&byte| if (0x20..0x7f).contains(&byte) { char::from(byte) } else { '.' }).collect();
            writeln!(f, "     {:08x}  {hex:<48} |{text}|", line * 16)?;
        }
        write!(
            f,
            "   fix: do not trust this device; keep it as it is and look at the layer below (dmesg, SMART, the host)"
        )
    }
}
