//! Pools from the outside: flushed data survives every reopening.
#![cfg(not(shuttle))]

use crate::support::{User, format, open, pattern};
use sheave_drivers::open_device;
use sheave_vol::PoolError;

#[test]
fn what_was_flushed_is_there_after_a_drop() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    for spec in ["ram:size=64M".to_string(), format!("file:{},size=64M", file.path().display())] {
        let device = open_device(&spec).expect("opens");
        format(&device, 65536);
        let data = pattern(1, 300_000 / 4096 * 4096);
        for round in 0..3u64 {
            let pool = open(&device);
            let name = format!("v{round}");
            let user = User::new(pool.create_volume(&name, 10 << 20).expect("creates"));
            user.write(40960, &data).expect("writes");
            assert!(user.read(40960, data.len()).expect("reads") == data, "{spec}");
            assert!(user.read(0, 40960).expect("reads").iter().all(|byte| *byte == 0));
            user.sync().expect("syncs");
            user.write(8 << 20, &data[..8192]).expect("writes");
            assert_eq!(pool.info().recovered, round > 0);
            drop((user, pool));
        }
        let pool = open(&device);
        assert!(pool.info().recovered);
        for round in 0..3 {
            let user = User::new(pool.open_volume(&format!("v{round}")).expect("is there"));
            assert!(user.read(40960, data.len()).expect("reads") == data, "{spec} {round}");
        }
        let before = pool.info();
        pool.close().expect("closes");
        let pool = open(&device);
        let after = pool.info();
        assert!(!after.recovered);
        assert_eq!((before.data_bytes, before.free_bytes), (after.data_bytes, after.free_bytes));
    }
}

#[test]
fn one_owner_at_a_time() {
    let device = open_device("ram:size=16M").expect("opens");
    format(&device, 4096);
    let pool = open(&device);
    let error = sheave_vol::Pool::open(&device, &sheave_vol::OpenOptions::default()).expect_err("refused");
    assert!(matches!(error, PoolError::Busy { .. }), "{error}");
    drop(pool);
    let pool = open(&device);
    let volume = pool.create_volume("v", 1 << 20).expect("creates");
    assert!(matches!(pool.delete("v"), Err(PoolError::Busy { .. })), "open");
    assert!(matches!(pool.clone().close(), Err(PoolError::Busy { .. })), "open");
    drop(volume);
    pool.delete("v").expect("deletes");
    pool.close().expect("closes");
}
