//! The file system that holds a pool's file: it gives a page when that is first written, and may be full.
//!
//! Owns [`Host`]. A page that was given stays so until it is discarded; after a crash those count that the image has.

use super::image::{Image, PAGE, SECTOR};

/// What the host has given and may still give.
#[derive(Clone, Debug)]
pub(super) struct Host {
    /// By page.
    given: Vec<bool>,
    /// Pages that it still gives.
    room: u64,
    /// Others take what is given back to it at once.
    has_others: bool,
}

impl Host {
    /// One that has given what the image has, and gives `room` pages more.
    pub(super) fn new(image: &Image, room: u64) -> Host {
        let mut given = vec![false; (image.size_bytes() / PAGE as u64) as usize];
        for (page, _) in image.pages() {
            given[page as usize] = true;
        }
        Host { given, room, has_others: false }
    }

    /// From now on others take at once what is given back, or do not.
    pub(super) fn set_others(&mut self, has_others: bool) {
        self.has_others = has_others;
    }

    /// It gives so many pages more.
    pub(super) fn free(&mut self, pages: u64) {
        self.room += pages;
    }

    /// The pages that lie in a discarded range go back: it may give as many more, to anybody.
    pub(super) fn give_back(&mut self, sector: u64, bytes: usize) {
        let start = sector * SECTOR as u64;
        let pages = start.div_ceil(PAGE as u64)..(start + bytes as u64) / PAGE as u64;
        for page in pages {
            if let Some(given) = self.given.get_mut(page as usize) {
                self.room += u64::from(std::mem::take(given) && !self.has_others);
            }
        }
    }

    /// Gives the pages of a write that begins at `sector`; the bytes from its start that have space then.
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
