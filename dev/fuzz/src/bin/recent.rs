//! Fuzzes the file of recent changes: a process has died with an open pool, and the file that it left was changed or
//! made up since. The next opening returns an error or a pool, never a panic, and a pool that opens has its volumes and
//! can be checked after it was closed.
#![no_main]

use std::sync::Arc;

use sheave_base::lasting::Lasting;
use sheave_drivers::open_device;
use sheave_vol::{CheckOptions, CreateOptions, OpenOptions, Pool, check_device, with_recent_memory};

/// Count of numbers of the file.
const NUMBERS: usize = 64 + (4 << 20) / 8;
/// Most numbers of the file that are changed: the header, and some records.
const CHANGED: usize = 512;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let device = open_device("ram:size=4M").expect("a device");
    Pool::create(&device, &CreateOptions::default().uuid(Some([7; 16]))).expect("made");
    let memory = Arc::new(Lasting::in_memory(NUMBERS).expect("memory"));
    let options = with_recent_memory(OpenOptions::default(), Some(memory.clone()));
    let pool = Pool::open(&device, &options).expect("opened");
    drop(pool.create_volume("v", 8 << 20).expect("made"));
    drop(pool);
    // Each change is an index and a number. Whatever was at that place, the number is added to it, so that small
    // numbers keep what is right in the head of a record.
    for change in data.chunks_exact(10) {
        let (at, number) = change.split_at(2);
        let at = usize::from(u16::from_le_bytes([at[0], at[1]])) % CHANGED;
        let number = number.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
        memory.put(at, memory.get(at).wrapping_add(number));
    }
    let Ok(pool) = Pool::open(&device, &options) else { return };
    assert_eq!(pool.volumes().len(), 1);
    if pool.close().is_ok() {
        check_device(&device, &CheckOptions::default()).expect("the check itself works");
    }
});
