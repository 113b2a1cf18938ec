//! Buckets compared with a model; the tail is checked after every operation.

use sheave_base::rng::Rng;

use super::super::work::WorkFlags;
use super::*;

fn entry(slot: u32, flags: WorkFlags) -> WorkEntry {
    WorkEntry::new(0, slot, 1, flags)
}

#[test]
fn a_bucket_is_due_once_and_claimed_once() {
    let mut runs = HashRuns::new();
    runs.reserve(8);
    let item = WorkFlags::hashed(0);
    assert!(runs.push(3, entry(0, item)), "due");
    assert!(!runs.push(3, entry(1, item)), "is due already");
    assert_eq!(runs.take(3).map(WorkEntry::slot), Some(0), "one at a time");
    assert!(!runs.push(3, entry(2, item)), "claimed: whoever runs it puts it back");
    for slot in [1, 2] {
        assert!(runs.release(3), "there is more");
        assert_eq!(runs.take(3).map(WorkEntry::slot), Some(slot));
    }
    assert!(!runs.release(3));
    assert!(runs.push(3, entry(4, item)), "due again");
    runs.sweep(&|_| false);
    assert_eq!(runs.take(3), None, "swept: free");
    assert!(runs.push(3, entry(5, item)), "due again");
    runs.check();
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
                let was_free = !claimed[bucket] && runs.buckets[bucket].state == BucketState::Free;
                assert_eq!(runs.push(bucket as u32, entry(slot, WorkFlags::hashed(0))), was_free);
                model[bucket].push_back(slot);
            }
            4 if claimed[bucket] => {
                assert_eq!(runs.release(bucket as u32), !model[bucket].is_empty());
                claimed[bucket] = false;
            }
            5 | 6 if !claimed[bucket] && runs.buckets[bucket].state == BucketState::Due => {
                let taken = runs.take(bucket as u32).map(WorkEntry::slot);
                claimed[bucket] = taken.is_some();
                assert_eq!(model[bucket].pop_front(), taken);
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
