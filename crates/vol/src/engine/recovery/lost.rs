//! Volumes whose entries stood in lost pages of the volume table, when a pool is rescued.
//!
//! Owns the numbers that those volumes may have, and the treatment of journal records that refer to one of them: a copy
//! of a lost volume is lost too, and a volume that was rolled back to a lost one has an unknown map.
//!
//! - L1: a volume that is served has exactly the map that its own records and its own entry give. A record whose source
//!   is lost gives no volume a map.
//! - L2: the loss is reported: the number of volumes of the checkpoint that are missing, their numbers, and the names
//!   that the journal has.
//!
//! Called by recovery.

use std::collections::BTreeMap;

use crate::format::damage::MapDamage;
use crate::format::page::PageRef;
use crate::format::record::Record;
use crate::format::superblock::Superblock;
use crate::state::table::{LostMap, Table};

/// A lost page of the volume table. `leaves` is the range of leaf pages below it.
struct LostPage {
    leaves: (u64, u64),
    page: PageRef,
    why: String,
}

/// Largest number of ranges, and of names, in one report.
const MOST_NAMED: usize = 100;

/// The volumes whose entries stood in lost pages.
#[derive(Default)]
pub(super) struct LostVolumes {
    pages: Vec<LostPage>,
    /// Ranges of numbers that lost volumes may have, end excluded.
    ranges: Vec<(u32, u32)>,
    /// Number of volumes that the checkpoint counts and that no readable page has.
    count: u64,
    /// First number of a volume made after the checkpoint.
    next: u32,
    /// Names of lost volumes that journal records contain, by the number of the volume.
    named: BTreeMap<u32, String>,
}

impl LostVolumes {
    /// Adds a lost page; `leaves` is the range of leaf pages below it.
    pub(super) fn add(&mut self, page: PageRef, leaves: (u64, u64), why: String) {
        self.pages.push(LostPage { leaves, page, why });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Computes the ranges of numbers that lost volumes may have. Numbers ascend from page to page, so a lost page had
    /// numbers between the last one of the intact page before it and the first one of the intact page behind it.
    /// `found` is the number of volumes in intact leaf pages. `parts` has the index, the first and the last number of
    /// each of these pages. Called when all pages have been read.
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

    /// Returns true if the volume is lost, or was deleted before the checkpoint: these two cases look the same.
    fn has(&self, table: &Table, volume: u32) -> bool {
        table.get(volume).is_none() && (volume < self.next || self.named.contains_key(&volume))
    }

    /// Returns true if the record is about lost volumes, and must not be applied (L1).
    pub(super) fn keeps(&mut self, table: &mut Table, record: &Record) -> bool {
        if self.is_empty() {
            return false;
        }
        match record {
            // The volume's number shows that the checkpoint had the volume, or that it was deleted. Its map may have
            // more than these records give.
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

    /// Marks the map of `volume` as damaged, because it was replaced by the map of a lost volume. Always returns true,
    /// which the caller returns from `keeps`.
    fn blame(&self, table: &mut Table, volume: u32) -> bool {
        if let Some((vol, lost)) = table.get_mut(volume).zip(self.pages.first()) {
            let why = "the volume was rolled back to one whose entry in the volume table is lost".to_string();
            let range = (0, vol.core.size());
            let told = MapDamage { at: lost.page.address, why, range, pages: 1 };
            // Only a rescue gets here. It writes nothing, so the pages of this map are never read again.
            vol.damage = Some(Box::new(LostMap::new(told)));
        }
        true
    }

    /// Describes the loss in words (L2).
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

/// Formats `items` after `words`, or returns an empty string without items. A long list is cut, and ends with the
/// number of items left out.
fn list(words: &str, mut items: Vec<String>) -> String {
    let more = items.len().saturating_sub(MOST_NAMED);
    items.truncate(MOST_NAMED);
    match (items.is_empty(), more) {
        (true, _) => String::new(),
        (_, 0) => format!("{words}{}", items.join(", ")),
        (_, more) => format!("{words}{} and {more} more", items.join(", ")),
    }
}
