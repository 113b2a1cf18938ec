//! A range of a volume as programs are told of it: the shape of `qemu-img map --output=json`, and two fields more.

use serde::{Deserialize, Serialize};
use sheave_vol::{Extent, ExtentKind};

/// A range with one state.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExtentJson {
    /// Its first byte.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// Always 0.
    pub depth: u32,
    /// It has space.
    pub present: bool,
    /// It reads as zeroes.
    pub zero: bool,
    /// It was written.
    pub data: bool,
    /// It has space and was never written.
    pub unwritten: bool,
    /// Others have the same space.
    pub shared: bool,
    /// Where it lies in the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
}

impl ExtentJson {
    /// From what the volume tells.
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

    /// Adds what comes next to what was found before it: a daemon tells a map in pieces.
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
