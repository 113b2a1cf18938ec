//! Durability rules of the media, and the contents that a crash may leave.

use super::super::cut::Fate;
use super::*;

const SIZE: u64 = 1 << 16;

fn write(id: u64, sector: u64, byte: u8, fua: bool) -> Step {
    Step::Write { id, sector, data: vec![byte; SECTOR].into(), fua }
}

fn flush(id: u64) -> Step {
    Step::Flush { id, sectors: 0..u64::MAX }
}

fn media(steps: &[Step], lie: Option<Lie>) -> Media {
    let mut media = Media::new(Image::new(SIZE), lie);
    steps.iter().for_each(|step| media.step(step));
    media
}

/// Returns the contents that a sector may have after a crash, from 400 draws.
fn outcomes(media: &Media, sector: u64) -> Vec<u8> {
    let mut rng = Rng::new(1);
    let mut seen: Vec<u8> = (0..400).map(|_| media.crash(&mut rng).0.sector(sector)[0]).collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

#[test]
fn readers_see_what_ended_and_nothing_else() {
    let mut media = media(&[write(0, 3, 7, false)], None);
    assert_eq!(media.current().sector(3)[0], 0);
    media.step(&Step::End { id: 0 });
    assert_eq!(media.current().sector(3)[0], 7);
}

#[test]
fn a_write_on_its_way_or_in_the_cache_may_be_kept_or_lost() {
    let mut media = media(&[write(0, 3, 7, false)], None);
    assert_eq!(outcomes(&media, 3), [0, 7]);
    media.step(&Step::End { id: 0 });
    assert_eq!(outcomes(&media, 3), [0, 7]);
}

#[test]
fn a_flush_covers_what_ended_before_it_came() {
    let steps = [
        write(0, 1, 1, false),
        write(1, 2, 2, false),
        Step::End { id: 0 },
        flush(2),
        Step::End { id: 1 },
        Step::End { id: 2 },
    ];
    let media = media(&steps, None);
    assert_eq!(outcomes(&media, 1), [1]);
    assert_eq!(outcomes(&media, 2), [0, 2], "ended after the flush came");
}

#[test]
fn a_flush_of_one_disk_covers_no_other() {
    let steps = [write(0, 1, 1, false), write(1, 100, 2, false), Step::End { id: 0 }, Step::End { id: 1 }];
    let mut media = media(&steps, None);
    media.step(&Step::Flush { id: 2, sectors: 64..128 });
    media.step(&Step::End { id: 2 });
    assert_eq!((outcomes(&media, 1), outcomes(&media, 100)), (vec![0, 1], vec![2]));
}

#[test]
fn a_flush_that_has_not_ended_covers_nothing() {
    let media = media(&[write(0, 1, 1, false), Step::End { id: 0 }, flush(1)], None);
    assert_eq!(outcomes(&media, 1), [0, 1]);
}

#[test]
fn fua_is_durable_and_nothing_older_comes_after_it() {
    let steps = [write(0, 1, 1, false), Step::End { id: 0 }, write(1, 1, 2, true), Step::End { id: 1 }];
    let mut media = media(&steps, None);
    assert_eq!(outcomes(&media, 1), [2]);
    media.step(&flush(2));
    media.step(&Step::End { id: 2 });
    assert_eq!(outcomes(&media, 1), [2], "the older one is not brought back by a flush");
}

#[test]
fn of_two_versions_either_may_be_left() {
    let steps = [write(0, 1, 1, false), Step::End { id: 0 }, write(1, 1, 2, false), Step::End { id: 1 }];
    assert_eq!(outcomes(&media(&steps, None), 1), [0, 1, 2]);
}

#[test]
fn writes_are_torn_between_sectors_only() {
    let data: Arc<[u8]> = vec![9; 8 * SECTOR].into();
    let media = media(&[Step::Write { id: 0, sector: 8, data, fua: false }, Step::End { id: 0 }], None);
    let mut rng = Rng::new(5);
    let mut torn = 0;
    for _ in 0..200 {
        let (image, _) = media.crash(&mut rng);
        let sectors: Vec<[u8; SECTOR]> = (8..16).map(|sector| image.sector(sector)).collect();
        assert!(sectors.iter().all(|sector| *sector == [0; SECTOR] || *sector == [9; SECTOR]));
        torn += usize::from(sectors.iter().any(|sector| sector != &sectors[0]));
    }
    assert!(torn > 20, "{torn} of 200 were torn");
}

#[test]
fn the_same_cut_leaves_the_same_image() {
    let steps: Vec<Step> = (0..20).flat_map(|id| [write(id, id % 7, id as u8, false), Step::End { id }]).collect();
    let media = media(&steps, None);
    let (image, cut) = media.crash(&mut Rng::new(9));
    assert_eq!(media.crash_as(&cut).hash(), image.hash());
    assert_eq!(media.crash(&mut Rng::new(9)).0.hash(), image.hash());
    let kept = Cut { fates: vec![Fate::Kept; 20], order: (0..20).collect(), misdirected: None };
    assert_eq!(media.crash_as(&kept).hash(), media.current().hash());
}

#[test]
fn each_lie_is_one() {
    let steps = [write(0, 1, 1, true), Step::End { id: 0 }];
    assert_eq!(outcomes(&media(&steps, Some(Lie::FuaIsVolatile)), 1), [0, 1]);
    let steps = [write(0, 1, 1, false), Step::End { id: 0 }, flush(1), Step::End { id: 1 }];
    assert_eq!(outcomes(&media(&steps, Some(Lie::FlushDoesNothing)), 1), [0, 1]);
    let mut late = media(&steps, Some(Lie::LateFlush));
    assert_eq!(outcomes(&late, 1), [0, 1]);
    late.step(&flush(2));
    late.step(&Step::End { id: 2 });
    assert_eq!(outcomes(&late, 1), [1]);
}
