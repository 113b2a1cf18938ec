//! The buckets against a model, with the tail checked after every operation.

use sheave_base::rng::Rng;

use super::super::work::WorkFlags;
use super::*;

fn entry(slot: u32, flags: WorkFlags) -> Entry {
    Entry::new(0, slot, 1, flags)
}

fn slots(entries: &[Entry]) -> Vec<u32> {
    entries.iter().map(|entry| entry.slot()).collect()
}

#[test]
fn a_bucket_is_due_once_and_claimed_once() {
    let mut runs = HashRuns::new();
    runs.reserve(8);
    let short = WorkFlags::short_hashed(0);
    assert!(runs.push(3, entry(0, short)), "due");
    assert!(!runs.push(3, entry(1, short)), "is due already");
    let mut out = Vec::new();
    assert!(runs.take(3, 64, &mut out));
    assert!(!runs.push(3, entry(2, short)), "claimed: whoever runs it puts it back");
    assert_eq!(slots(&out), [0, 1]);
    assert!(runs.release(3), "there is more");
    out.clear();
    assert!(runs.take(3, 64, &mut out));
    assert_eq!(slots(&out), [2]);
    assert!(!runs.release(3));
    assert!(runs.push(3, entry(4, short)), "due again");
    runs.check();
}

#[test]
fn one_blocking_item_is_taken_at_a_time_and_short_ones_up_to_a_bound() {
    let mut runs = HashRuns::new();
    runs.reserve(16);
    for slot in 0..4 {
        runs.push(0, entry(slot, WorkFlags::short_hashed(0)));
    }
    runs.push(0, entry(4, WorkFlags::hashed(0)));
    runs.push(0, entry(5, WorkFlags::hashed(0)));
    runs.push(0, entry(6, WorkFlags::short_hashed(0)));
    let mut taken = Vec::new();
    loop {
        let mut out = Vec::new();
        assert!(runs.take(0, 3, &mut out));
        taken.push(slots(&out));
        if !runs.release(0) {
            break;
        }
        runs.check();
    }
    assert_eq!(taken, [vec![0, 1, 2], vec![3], vec![4], vec![5], vec![6]]);
}

#[test]
fn random_pushes_takes_and_sweeps_keep_each_buckets_order() {
    let mut rng = Rng::new(7);
    let mut next = |bound: u64| rng.below(bound);
    let mut runs = HashRuns::new();
    runs.reserve(64);
    let mut model: Vec<std::collections::VecDeque<u32>> = vec![Default::default(); 4];
    let mut claimed = [false; 4];
    let mut slot = 0;
    for _ in 0..20_000 {
        let bucket = next(4) as usize;
        match next(8) {
            0..4 if !runs.is_full() => {
                slot = (slot + 1) % 4096;
                let flags = if next(2) == 0 { WorkFlags::hashed(0) } else { WorkFlags::short_hashed(0) };
                let was_free = !claimed[bucket] && runs.buckets[bucket].state == State::Free;
                assert_eq!(runs.push(bucket as u32, entry(slot, flags)), was_free);
                model[bucket].push_back(slot);
            }
            4 if claimed[bucket] => {
                assert_eq!(runs.release(bucket as u32), !model[bucket].is_empty());
                claimed[bucket] = false;
            }
            5 | 6 if !claimed[bucket] && runs.buckets[bucket].state == State::Due => {
                let mut out = Vec::new();
                claimed[bucket] = runs.take(bucket as u32, 5, &mut out);
                assert_eq!(claimed[bucket], !model[bucket].is_empty());
                for slot in slots(&out) {
                    assert_eq!(model[bucket].pop_front(), Some(slot));
                }
            }
            7 => {
                let dropped = next(5) as u32;
                runs.sweep(&|entry| entry.slot() % 5 != dropped);
                for bucket in &mut model {
                    bucket.retain(|slot| slot % 5 != dropped);
                }
            }
            _ => {}
        }
        runs.check();
        assert_eq!(runs.len(), model.iter().map(|bucket| bucket.len()).sum::<usize>());
    }
}
