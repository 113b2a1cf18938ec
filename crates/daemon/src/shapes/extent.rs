//! JSON of a range of a volume: the format of `qemu-img map --output=json`, with two additional fields.

use serde::{Deserialize, Serialize};
use sheave_vol::{Extent, ExtentKind};

/// A range with a single state.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExtentJson {
    /// First byte in the volume.
    pub start: u64,
    pub length: u64,
    /// Always 0; kept for compatibility with `qemu-img`.
    pub depth: u32,
    /// The range is allocated.
    pub present: bool,
    /// The range reads as zeroes.
    pub zero: bool,
    /// The range was written.
    pub data: bool,
    /// The range is allocated, and was never written.
    pub unwritten: bool,
    /// The space is shared with other volumes or snapshots.
    pub shared: bool,
    /// Position in the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

impl ExtentJson {
    /// Converts an extent of the volume.
    pub fn new(extent: &Extent) -> Self {
        let data = extent.kind == ExtentKind::Data;
        let present = extent.kind != ExtentKind::Hole;
        Self {
            start: extent.pos,
            length: extent.len,
            depth: 0,
            present,
            zero: !data,
            data,
            unwritten: extent.kind == ExtentKind::Unwritten,
            shared: extent.shared,
            offset: present.then_some(extent.addr),
        }
    }

    /// Appends the next extent, merging it with the last one if possible: a daemon sends a map in pieces.
    pub fn add(all: &mut Vec<ExtentJson>, next: ExtentJson) {
        let state = |extent: &ExtentJson| (extent.present, extent.data, extent.unwritten, extent.shared);
        match all.last_mut() {
            Some(last)
                if state(last) == state(&next)
                    && last.start + last.length == next.start
                    && last.offset.map(|offset| offset + last.length) == next.offset =>
            {
                last.length += next.length;
            }
            _ => all.push(next),
        }
    }
}
