//! Volumes whose entries stood in pages of the volume table that give nothing, when a pool is rescued.
//!
//! Owns which numbers those volumes may have, and what becomes of journal records that need one of them: a copy of a
//! lost volume is lost too, and a volume that was rolled back to a lost one has a map that nobody knows.
//!
//! - L1: a volume that is served has the map that its own records and its own entry say, and no other. A record whose
//!   source is lost gives nobody a map.
//! - L2: what was lost is told: how many volumes the checkpoint had and has no more, their numbers, and the names that
//!   the journal knows.
//!
//! Called by recovery.

use std::collections::BTreeMap;

use crate::format::damage::MapDamage;
use crate::format::page::PageRef;
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::state::table::{LostMap, Table};

/// A page of the volume table that gives nothing: its first leaf page, and the first one behind it.
struct LostPage {
    leaves: (u64, u64),
    page: PageRef,
    why: String,
}

/// Ranges of numbers, and names, that are told at most.
const MOST_NAMED: usize = 100;

/// What is lost of the volume table.
#[derive(Default)]
pub(super) struct LostVolumes {
    pages: Vec<LostPage>,
    /// Numbers that lost volumes may have, the last one not included.
    ranges: Vec<(u32, u32)>,
    /// Volumes that the checkpoint has and that did not come out.
    count: u64,
    /// The number that the first volume after the checkpoint got.
    next: u32,
    /// Lost volumes of which the journal speaks, by number.
    named: BTreeMap<u32, String>,
}

impl LostVolumes {
    /// A page gives nothing. `leaves`: the leaf pages of the table that it stands for.
    pub(super) fn add(&mut self, page: PageRef, leaves: (u64, u64), why: String) {
        self.pages.push(LostPage { leaves, page, why });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// All pages have been read. The numbers that are lost follow from those that the other leaf pages have: `parts`
    /// says of each which it is, and its first and last number. The numbers of a table ascend.
    pub(super) fn settle(&mut self, sb: &Superblock, found: u64, parts: &[(u64, u32, u32)]) {
        (self.count, self.next) = (u64::from(sb.volumes).saturating_sub(found), sb.next_volume);
        for LostPage { leaves: (first, end), .. } in &self.pages {
            let before = parts.iter().filter(|part| part.0 < *first).map(|part| part.2).max().unwrap_or(0);
            let behind = parts.iter().filter(|part| part.0 >= *end).map(|part| part.1).min().unwrap_or(self.next);
            let range = (before.saturating_add(1), behind.min(self.next));
            if range.0 < range.1 && !self.ranges.contains(&range) {
                self.ranges.push(range);
            }
        }
    }

    /// Whether the volume of this number is lost, or was deleted before the checkpoint: which of both is not known.
    fn has(&self, table: &Table, volume: u32) -> bool {
        table.get(volume).is_none() && (volume < self.next || self.named.contains_key(&volume))
    }

    /// Whether the record must not be applied, since it is about lost volumes (L1).
    pub(super) fn keeps(&mut self, table: &mut Table, record: &Record) -> bool {
        if self.is_empty() {
            return false;
        }
        match record {
            // The checkpoint has it, or it was deleted: its map may be more than the journal says.
            Record::Create { volume, name, .. } | Record::Rename { volume, name } if self.has(table, *volume) => {
                self.name(*volume, name)
            }
            Record::Copy { volume, source, name, .. } if table.get(*volume).is_none() => {
                (self.has(table, *source) || self.has(table, *volume)) && self.name(*volume, name)
            }
            Record::Rollback { volume, source } if self.has(table, *source) => self.blame(table, *volume),
            Record::Delete { volume } => {
                self.named.remove(volume);
                false
            }
            _ => false,
        }
    }

    fn name(&mut self, volume: u32, name: &str) -> bool {
        self.named.insert(volume, name.to_string());
        true
    }

    /// The map of the volume is that of a lost one.
    fn blame(&self, table: &mut Table, volume: u32) -> bool {
        if let Some((vol, lost)) = table.get_mut(volume).zip(self.pages.first()) {
            let why = "the volume was rolled back to one whose entry in the volume table is lost".to_string();
            let range = (0, vol.core.size());
            let told = MapDamage { at: lost.page.address, why, range, pages: 1 };
            // Only a rescue comes here, which writes nothing: no page is looked at again.
            vol.damage = Some(Box::new(LostMap::new(told)));
        }
        true
    }

    /// What was lost, in words (L2).
    pub(super) fn words(&self, volumes: u32) -> Vec<String> {
        let mut said: Vec<String> = self.pages.iter().map(LostPage::words).collect();
        if let Some(last) = said.last_mut() {
            *last += &format!("; {} of the {volumes} volumes of the last checkpoint are missing", self.count);
            let numbers = self.ranges.iter().map(|(first, end)| format!("{first} to {}", end - 1));
            *last += &list(", with numbers from ", numbers.collect());
            let names = self.named.values().map(|name| format!("'{name}'"));
            *last += &list("; the journal has changes of these, which are missing too: ", names.collect());
        }
        said
    }
}

impl LostPage {
    fn words(&self) -> String {
        let at = self.page.address;
        format!(
            "a page of the volume table at byte {at} is damaged: {}; the volumes that it names are missing",
            self.why
        )
    }
}

/// A list after a few words; nothing for an empty one. Of a long one the beginning, and how many follow.
fn list(words: &str, mut items: Vec<String>) -> String {
    let more = items.len().saturating_sub(MOST_NAMED);
    items.truncate(MOST_NAMED);
    match (items.is_empty(), more) {
        (true, _) => String::new(),
        (_, 0) => format!("{words}{}", items.join(", ")),
        (_, more) => format!("{words}{} and {more} more", items.join(", ")),
    }
}
