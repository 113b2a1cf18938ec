//! The bytes of a simulated disk: sparse, and cheap to copy.
//!
//! Owns [`Image`]. Copies share pages of 4 KiB until one of them writes, so a copy for a crash point uses memory only
//! for the pages that change after it.

use sheave_base::sync::Arc;

use sheave_base::rng::mix;

/// Bytes in a sector, the unit that a disk writes wholly or not at all.
pub const SECTOR: usize = 512;
/// Bytes in a page of an image.
pub const PAGE: usize = 4096;
const SECTORS_PER_PAGE: u64 = (PAGE / SECTOR) as u64;

#[derive(Clone, Debug)]
pub struct Image {
    pages: Vec<Option<Arc<[u8; PAGE]>>>,
}

impl Image {
    /// Returns an image of zeroes. The size is rounded up to whole pages.
    #[must_use]
    pub fn new(size_bytes: u64) -> Image {
        Image { pages: vec![None; size_bytes.div_ceil(PAGE as u64) as usize] }
    }

    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Extends the image with zeroes.
    pub fn grow(&mut self, size_bytes: u64) {
        let pages = size_bytes.div_ceil(PAGE as u64) as usize;
        self.pages.resize(pages.max(self.pages.len()), None);
    }

    /// Copies the sectors from `sector` on into `out`; zeroes beyond the end.
    pub fn read(&self, sector: u64, out: &mut [u8]) {
        for (at, piece) in out.chunks_mut(SECTOR).enumerate() {
            let (page, offset) = place(sector + at as u64);
            match self.pages.get(page) {
                Some(Some(page)) => piece.copy_from_slice(&page[offset..offset + piece.len()]),
                _ => piece.fill(0),
            }
        }
    }

    /// Writes whole sectors from `sector` on. Drops what lies beyond the end.
    pub fn write(&mut self, sector: u64, data: &[u8]) {
        for (at, piece) in data.chunks(SECTOR).enumerate() {
            let (page, offset) = place(sector + at as u64);
            if let Some(page) = self.pages.get_mut(page) {
                let page = page.get_or_insert_with(|| Arc::new([0; PAGE]));
                Arc::make_mut(page)[offset..offset + piece.len()].copy_from_slice(piece);
            }
        }
    }

    #[must_use]
    pub fn sector(&self, sector: u64) -> [u8; SECTOR] {
        let mut out = [0; SECTOR];
        self.read(sector, &mut out);
        out
    }

    /// Returns the pages that were ever written, by number.
    pub fn pages(&self) -> impl Iterator<Item = (u64, &[u8; PAGE])> {
        self.pages.iter().enumerate().filter_map(|(at, page)| Some((at as u64, &**page.as_ref()?)))
    }

    /// Returns the image of a file that was copied without its blank pages: from `byte` on, pages of zeroes count as
    /// never written.
    #[must_use]
    pub fn sparse_from(mut self, byte: u64) -> Image {
        for page in self.pages.iter_mut().skip(byte.div_ceil(PAGE as u64) as usize) {
            page.take_if(|page| page.iter().all(|&byte| byte == 0));
        }
        self
    }

    /// Returns a hash of the contents. Pages of zeroes count as never written.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let written = self.pages().filter(|(_, page)| page.iter().any(|&byte| byte != 0));
        written.fold(self.size_bytes(), |hash, (at, page)| mix(hash ^ mix(at) ^ hash_bytes(page)))
    }
}

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
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else_changes() {
        let mut image = Image::new(3 * PAGE as u64);
        image.write(7, &[5; 2 * SECTOR]);
        let mut out = vec![9; 4 * SECTOR];
        image.read(6, &mut out);
        assert_eq!((out[0], out[SECTOR], out[3 * SECTOR - 1], out[3 * SECTOR]), (0, 5, 5, 0));
    }

    #[test]
    fn a_sparse_copy_reads_as_the_original_and_has_no_blank_pages() {
        let mut image = Image::new(6 * PAGE as u64);
        [0, 2, 4].into_iter().for_each(|page| image.write(page * SECTORS_PER_PAGE, &[0; PAGE]));
        image.write(5 * SECTORS_PER_PAGE, &[0, 1].repeat(PAGE / 2));
        let copy = image.clone().sparse_from(2 * PAGE as u64);
        assert_eq!(copy.hash(), image.hash());
        let has = |image: &Image| image.pages().map(|(at, _)| at).collect::<Vec<_>>();
        assert_eq!((has(&image), has(&copy)), (vec![0, 2, 4, 5], vec![0, 5]));
    }

    #[test]
    fn a_copy_keeps_what_the_original_overwrites() {
        let mut image = Image::new(PAGE as u64);
        image.write(0, &[1; PAGE]);
        let copy = image.clone();
        assert_eq!(copy.hash(), image.hash());
        image.write(0, &[2; SECTOR]);
        assert_eq!((copy.sector(0)[0], image.sector(0)[0], image.sector(1)[0]), (1, 2, 1));
        assert_ne!(copy.hash(), image.hash());
    }

    #[test]
    fn zeroes_written_and_nothing_written_are_one() {
        let mut image = Image::new(2 * PAGE as u64);
        let empty = image.hash();
        image.write(1, &[0; SECTOR]);
        assert_eq!(image.hash(), empty);
        image.grow(4 * PAGE as u64);
        assert_eq!(image.size_bytes(), 4 * PAGE as u64);
        image.write(100, &[1; SECTOR]); // past the end: lost
        assert_eq!(image.sector(100), [0; SECTOR]);
    }
}
