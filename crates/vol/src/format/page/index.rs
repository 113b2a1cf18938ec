//! Index pages: references to the pages one level below.
//!
//! Owns their encoding, and [`build_upper`], which builds the levels above a given level.

use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, require_zero_tail};
use crate::format::damage::{Damage, require};
use crate::format::page::{Expect, PagePlace, PageRef, Spot};
use crate::format::superblock::Geometry;
use crate::format::{BLOCK, Child, HEADER, INDEX_CHILDREN, MAX_LEVEL, kind};

const CHILD: usize = size_of::<Child>();
/// Offset of the upper bits of the second units, 2 bytes for each reference.
const SECONDS: usize = HEADER + CHILD * INDEX_CHILDREN;
const ALL: usize = (CHILD + 2) * INDEX_CHILDREN;

/// Encodes at most [`INDEX_CHILDREN`] references. The rest of the page, after a shorter slice, has no references.
pub fn encode(block: &mut Block, place: &PagePlace, level: u16, children: &[PageRef]) -> PageRef {
    block.fill(0);
    let mut count = 0;
    for (at, child) in children.iter().take(INDEX_CHILDREN).enumerate().filter(|(_, child)| !child.is_none()) {
        let (child, upper) = child.to_disk();
        block[HEADER + CHILD * at..][..CHILD].copy_from_slice(child.as_bytes());
        block[SECONDS + 2 * at..][..2].copy_from_slice(&upper.to_le_bytes());
        count += 1;
    }
    place.seal(block, kind::INDEX, level, count)
}

/// Decodes an index page of `level` (1 to [`MAX_LEVEL`]). Returns the number of references in it.
pub fn decode(
    block: &Block,
    geometry: &Geometry,
    expect: &Expect,
    level: u16,
    children: &mut [PageRef; INDEX_CHILDREN],
) -> Result<usize, Damage> {
    let head = expect.open(block, kind::INDEX, level)?;
    require((1..=MAX_LEVEL).contains(&level), "level", level, "is no level of an index page")?;
    require_zero_tail(&block[HEADER..], ALL)?;
    let (list, _) = <[Child]>::ref_from_prefix_with_elems(&block[HEADER..], INDEX_CHILDREN)
        .expect("a block has room for the references");
    let (uppers, _) = block[SECONDS..].as_chunks::<2>();
    let mut count = 0;
    for (to, (child, upper)) in children.iter_mut().zip(list.iter().zip(uppers)) {
        let page = PageRef::from_disk(child, u16::from_le_bytes(*upper));
        geometry.require_page(page, "child")?;
        count += usize::from(!page.is_none());
        *to = page;
    }
    require(count == head.count as usize, "count", head.count, "is not the number of references")?;
    Ok(count)
}

/// Receiver of the pages that [`build_upper`] makes.
pub trait Sink {
    /// Allocates a page, and its second copy in pools with two copies. Returns `None` if there is no room.
    fn allocate(&mut self) -> Option<Spot>;
    /// Takes the content of the page at `address`. The receiver writes it there and to the second copy that was
    /// allocated with it.
    fn page(&mut self, address: u64, block: &Block);
}

/// Makes the index pages above `pages`, which are of level `below`, up to one root. Returns the root and its level, or
/// `None` if `sink` has no room. `at_least` is the lowest level that the root may have: 1 for maps, 0 for the volume
/// table. Without pages there is no root.
pub fn build_upper(
    sink: &mut dyn Sink,
    place: &PagePlace,
    below: u16,
    at_least: u16,
    pages: &[PageRef],
) -> Option<(PageRef, u16)> {
    build_around(sink, place, (below, at_least), pages, &[])
}

/// Does what [`build_upper`] does, and places the existing pages of `stay` into the tree. Each has its level (above
/// `levels.0`), its number within the level, and its reference. `pages` has no pages below those of `stay`.
pub(crate) fn build_around(
    sink: &mut dyn Sink,
    place: &PagePlace,
    levels: (u16, u16),
    pages: &[PageRef],
    stay: &[(u16, u64, PageRef)],
) -> Option<(PageRef, u16)> {
    let ((mut level, at_least), mut pages) = (levels, pages.to_vec());
    let mut block = [0; BLOCK];
    if stay.is_empty() && pages.iter().all(PageRef::is_none) {
        return Some((PageRef::NONE, 0));
    }
    let highest = stay.iter().map(|page| page.0).max().unwrap_or(0).max(at_least);
    while pages.len() > 1 || level < highest {
        level += 1;
        let mut above = Vec::with_capacity(pages.len().div_ceil(INDEX_CHILDREN));
        for (index, children) in pages.chunks(INDEX_CHILDREN).enumerate() {
            if children.iter().all(PageRef::is_none) {
                above.push(PageRef::NONE);
                continue;
            }
            let place = place.at(sink.allocate()?, index as u64);
            above.push(encode(&mut block, &place, level, children));
            sink.page(place.address, &block);
        }
        for (_, number, page) in stay.iter().filter(|page| page.0 == level) {
            above.resize(above.len().max(*number as usize + 1), PageRef::NONE);
            above[*number as usize] = *page;
        }
        pages = above;
    }
    Some((pages[0], level))
}

/// Returns the largest number of index pages that [`build_upper`] makes above `slots` pages, of which `used` are not
/// empty.
pub(crate) fn upper_pages(slots: u64, used: u64) -> u64 {
    let (mut level, mut pages) = (slots, 0);
    while level > 1 && used > 0 {
        level = level.div_ceil(INDEX_CHILDREN as u64);
        pages += level.min(used);
    }
    pages
}
