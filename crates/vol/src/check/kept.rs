//! Records that a checkpoint keeps about the places of damaged pages. They are applied before the journal.
//!
//! Owns the reading of the pages that hold these records, and the findings about those pages. In the model, a damaged
//! page is a hole in its map. The kept records fill that hole, as they do in a repair.

use super::model::Model;
use super::walk::{Bad, KEPT, Walk};
use crate::finding::{Finding, FindingKind, Place};
use crate::format::BLOCK;
use crate::format::block::Block;
use crate::format::damage::Damage;
use crate::format::page::{PageRef, kept};

impl Walk<'_> {
    /// Applies the records in the superblock's list of kept pages to the model.
    pub(super) fn kept(&mut self, model: &mut Model) {
        let (mut next, mut index, mut count) = (self.sb.kept, 0, 0);
        while !next.is_none() && index < 2 * u64::from(self.sb.journal_blocks) {
            let (page, mut records) = (next, Vec::new());
            self.claim(page, KEPT, 0, index, None);
            let block = self.read_page(page);
            let expect = self.expect(page, index);
            let geometry = self.geometry;
            let read = block
                .and_then(|block| kept::decode(&block, &geometry, &expect, &mut records).map_err(Bad::Damaged))
                .and_then(|below| match records.iter().try_for_each(|record| model.replay_kept(record.clone())) {
                    Ok(()) => Ok(below),
                    Err(damage) => Err(Bad::Damaged(damage)),
                });
            count += records.len();
            index += 1;
            next = read.unwrap_or(PageRef::NONE);
            self.findings.extend(read.err().map(|bad| lost(page, bad)));
        }
        if count > 0 {
            self.notes.push(format!("{count} changes are kept of places of maps whose pages were damaged"));
        }
    }

    /// Reads a page: the good one of its two copies.
    fn read_page(&mut self, page: PageRef) -> Result<Block, Bad> {
        let io = self.io;
        let read = |at: u64| {
            let mut block: Block = [0; BLOCK];
            io.read(at, &mut block).or_else(|_| io.read(at, &mut block)).map_err(Bad::Unreadable).map(|()| block)
        };
        let second = page.second_copy(u64::from(self.geometry.unit_bytes));
        let second = second.map_or(Err(Bad::Damaged(Damage::Blank)), read);
        self.of_both(page, read(page.address), second)
    }
}

fn lost(page: PageRef, bad: Bad) -> Finding {
    Finding {
        kind: FindingKind::Journal,
        place: Place {
            what: "page of records about damaged maps".into(),
            address: Some(page.address),
            ..Place::default()
        },
        means: format!(
            "{}. What was written to volumes with damaged maps before a crash, in the places of the damaged pages, is \
             lost: data that was flushed may be missing there, or older data may show",
            bad.words()
        ),
        repair: Some("Go on without these records. Compare with a backup".into()),
    }
}
