//! Records that a checkpoint keeps about the places of damaged pages. They are applied before the journal.
//!
//! Owns the reading of their pages. [`kept`](crate::state::kept) says which records are kept, and why.
//!
//! Called by recovery.

use super::unsure::Unsure;
use crate::device::block_io::BlockIo;
use crate::device::reader::{failed, read_each};
use crate::device::walk::{Bad, Checkpoint, Page, decode};
use crate::error::PoolError;
use crate::format::damage::Damage;
use crate::format::journal::Bounds;
use crate::format::page::kept;
use crate::state::State;

/// Applies the records that the checkpoint of the superblock keeps; those whose pages are still damaged stay kept.
pub(super) fn load(io: &dyn BlockIo, state: &mut State, unsure: &mut Unsure) -> Result<(), PoolError> {
    let (checkpoint, most) = (Checkpoint::of(&state.sb), 2 * u64::from(state.sb.journal_blocks));
    let (mut next, mut index) = (state.sb.kept, 0);
    while !next.is_none() {
        let page = Page { page: next, level: 0, index, of: () };
        let at = next.address;
        super::loader::claim(state, next)?;
        state.kept.pages.push(at);
        let (mut records, mut bad_copies, mut found) = (Vec::new(), Vec::new(), Ok(next));
        read_each(io, checkpoint.unit_bytes(), vec![page], &mut bad_copies, &mut |page, block| {
            let expect = page.expect(&checkpoint);
            found = decode(block, |block| kept::decode(block, &checkpoint.geometry, &expect, &mut records));
            Ok(())
        })?;
        state.bad_copies.extend(bad_copies);
        let error = |why: Damage| PoolError::Damaged {
            what: "a page of records about damaged maps".into(),
            at,
            why: why.to_string(),
        };
        index += 1;
        match found {
            Ok(_) if index > most => return Err(error(Damage::field("index", index, "is more than a journal has"))),
            Ok(page) => next = page,
            Err(bad) => {
                let error = match bad {
                    Bad::Unreadable(status) => failed(status),
                    Bad::Damaged(damage) => error(damage),
                };
                unsure.pass(error, "the last changes of volumes with damaged maps are missing")?;
                break;
            }
        }
        for record in &records {
            state.apply_kept(record).map_err(failed)?;
            Bounds::check_cost(state.tree.cost).map_err(error)?;
            Bounds::check_nodes(state.tree.dirty_nodes()).map_err(error)?;
        }
    }
    Ok(())
}
