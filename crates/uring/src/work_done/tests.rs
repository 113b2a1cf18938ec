//! Encoding of results as words, and conversion of a file's results.

use super::*;

#[test]
fn every_way_comes_back_from_its_word() {
    let results = [0, 1, i32::MAX, -1, -125, -4095].map(WorkDone::Result);
    let ways = results.into_iter().chain([WorkDone::Reissue, WorkDone::Flush, WorkDone::NoThread]);
    let words: Vec<u32> = ways.clone().map(WorkDone::to_word).collect();
    assert_eq!(words.iter().copied().map(WorkDone::from_word).collect::<Vec<_>>(), ways.collect::<Vec<_>>());
    assert_eq!(words[1], 1, "a result is its own word");
}

#[test]
fn again_is_asked_again_and_other_errors_are_results() {
    for of in [WorkDone::of_mapping, WorkDone::of_fallocate] {
        assert_eq!(of(Err(Status::Again)), WorkDone::Reissue);
        assert_eq!(of(Err(Status::NoSpc)), WorkDone::Result(-28));
    }
    assert_eq!(WorkDone::of_mapping(Ok(())), WorkDone::Reissue, "the mapping is known now");
    assert_eq!(WorkDone::of_fallocate(Ok(())), WorkDone::Result(0));
    assert_eq!(WorkDone::from(Synced::Flush), WorkDone::Flush);
    assert_eq!(WorkDone::from(Synced::Done(-5)), WorkDone::Result(-5));
}
