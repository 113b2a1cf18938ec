//! The bytes of a simulated disk: sparse, and cheap to copy.
//!
//! Owns [`Image`]. Pages of 4 KiB are shared between copies until one of them writes; a crash point costs what it
//! changes, not what the disk holds.

use sheave_base::sync::Arc;

use sheave_base::rng::mix;

/// Bytes in a sector: what a disk writes as a whole or not at all.
pub const SECTOR: usize = 512;
/// Bytes in a page of an image.
pub const PAGE: usize = 4096;
const SECTORS_PER_PAGE: u64 = (PAGE / SECTOR) as u64;

/// Content of a disk.
#[derive(Clone, Debug)]
pub struct Image {
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
}

impl Image {
    /// Zeroes; the size is rounded up to whole pages.
    #[must_use]
    pub fn new(size_bytes: u64) -> Image {
        Image { pages: vec![None; size_bytes.div_ceil(PAGE as u64) as usize] }
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Makes it larger; what is new is zero.
    pub fn grow(&mut self, size_bytes: u64) {
        let pages = size_bytes.div_ceil(PAGE as u64) as usize;
        self.pages.resize(pages.max(self.pages.len()), None);
    }

    /// Copies the sectors from `sector` on into `out`. Past the end there are zeroes.
    pub fn read(&self, sector: u64, out: &mut [u8]) {
        for (at, piece) in out.chunks_mut(SECTOR).enumerate() {
            let (page, offset) = place(sector + at as u64);
            match self.pages.get(page) {
                Some(Some(page)) => piece.copy_from_slice(&page[offset..offset + piece.len()]),
                _ => piece.fill(0),
            }
        }
    }

    /// Writes whole sectors from `sector` on. What lies past the end is lost.
    pub fn write(&mut self, sector: u64, data: &[u8]) {
        for (at, piece) in data.chunks(SECTOR).enumerate() {
            let (page, offset) = place(sector + at as u64);
            if let Some(page) = self.pages.get_mut(page) {
                let page = page.get_or_insert_with(|| Arc::new([0; PAGE]));
                Arc::make_mut(page)[offset..offset + piece.len()].copy_from_slice(piece);
            }
        }
    }

    /// One sector.
    #[must_use]
    pub fn sector(&self, sector: u64) -> [u8; SECTOR] {
        let mut out = [0; SECTOR];
        self.read(sector, &mut out);
        out
    }

    /// The pages that were ever written, by number.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8; PAGE])> {
        self.pages.iter().enumerate().filter_map(|(at, page)| Some((at as u64, &**page.as_ref()?)))
    }

    /// What a copy of the file has that was made without its blank pages, from this byte on: pages of zeroes count as
    /// never written, and are read as zeroes all the same.
    #[must_use]
    pub fn sparse_from(mut self, byte: u64) -> Image {
        for page in self.pages.iter_mut().skip(byte.div_ceil(PAGE as u64) as usize) {
            page.take_if(|page| page.iter().all(|&byte| byte == 0));
        }
        self
    }

    /// A number that tells two images apart. Pages of zeroes count as never written.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let written = self.pages().filter(|(_, page)| page.iter().any(|&byte| byte != 0));
        written.fold(self.size_bytes(), |hash, (at, page)| mix(hash ^ mix(at) ^ hash_bytes(page)))
    }
}

/// A number that tells two runs of bytes apart.
#[must_use]
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hash = bytes.len() as u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    }
    mix(hash)
}

fn place(sector: u64) -> (usize, usize) {
    ((sector / SECTORS_PER_PAGE) as usize, (sector % SECTORS_PER_PAGE) as usize * SECTOR)
}

#[cfg(test)]
mod tests;
