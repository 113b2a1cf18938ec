//! Images: copies share until they differ.

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
