//! The file system that holds a pool's file: it allocates a page when that is first written, and may be full.
//!
//! Owns [`Host`]. A page stays allocated until it is discarded; after a crash, the pages that the image has are
//! allocated.

use super::image::{Image, PAGE, SECTOR};

/// The pages that the file system has allocated to the file, and the room that is left.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// True for each page that is allocated.
    given: Vec<bool>,
    /// Number of free pages.
    room: u64,
    /// True if other users take the pages that are given back at once.
    has_others: bool,
}

impl Host {
    /// Returns a file system that has allocated the pages of `image`, and has `room` free pages.
    pub(super) fn new(image: &Image, room: u64) -> Host {
        let mut given = vec![false; (image.size_bytes() / PAGE as u64) as usize];
        for (page, _) in image.pages() {
            given[page as usize] = true;
        }
        Host { given, room, has_others: false }
    }

    pub(super) fn set_others(&mut self, has_others: bool) {
        self.has_others = has_others;
    }

    pub(super) fn free(&mut self, pages: u64) {
        self.room += pages;
    }

    /// Frees the pages that lie wholly in a discarded range. Other users take them at once if there are any; otherwise
    /// any write may get them.
    pub(super) fn give_back(&mut self, sector: u64, bytes: usize) {
        let start = sector * SECTOR as u64;
        let pages = start.div_ceil(PAGE as u64)..(start + bytes as u64) / PAGE as u64;
        for page in pages {
            if let Some(given) = self.given.get_mut(page as usize) {
                self.room += u64::from(std::mem::take(given) && !self.has_others);
            }
        }
    }

    /// Allocates the pages of a write at `sector`. Returns the number of bytes from its start that have space.
    pub(super) fn take(&mut self, sector: u64, bytes: usize) -> usize {
        let start = sector * SECTOR as u64;
        let pages = start / PAGE as u64..(start + bytes as u64).div_ceil(PAGE as u64);
        for page in pages {
            let Some(given) = self.given.get_mut(page as usize).filter(|given| !**given) else { continue };
            if self.room == 0 {
                return (page * PAGE as u64).saturating_sub(start) as usize;
            }
            self.room -= 1;
            *given = true;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_given_once_and_a_write_gets_what_there_is() {
        let mut image = Image::new(64 << 10);
        image.write(8, &[1; PAGE]);
        let mut host = Host::new(&image, 2);
        assert_eq!(host.take(8, PAGE), PAGE, "it was given before");
        assert_eq!(host.take(0, 512), 512);
        assert_eq!(host.take(1, 512), 512, "of the page that was given");
        assert_eq!(host.take(17, 2 * PAGE), PAGE - SECTOR, "the second page finds no room");
        assert_eq!((host.take(32, PAGE), host.take(16, PAGE)), (0, PAGE));
        host.free(1);
        assert_eq!(host.take(32, 2 * PAGE), PAGE);
        host.give_back(31, 2 * PAGE);
        assert_eq!(host.take(16, 4 * PAGE), 2 * PAGE, "one page lay in it as a whole; whoever asks first has it");
        assert_eq!(host.take(32, PAGE), 0, "the page that was discarded has no space");
        host.set_others(true);
        host.give_back(16, PAGE);
        assert_eq!(host.take(16, PAGE), 0, "others have it");
    }
}
