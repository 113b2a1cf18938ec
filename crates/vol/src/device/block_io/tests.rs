//! Blocking I/O on devices of all kinds.

use super::*;
use sheave_drivers::open_device;

#[test]
fn what_is_written_is_read_from_any_thread() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    for spec in ["ram:size=8M".to_string(), format!("file:{},size=8M", file.path().display())] {
        let device = open_device(&spec).expect("opens");
        let io = DeviceIo::new(&device).expect("attaches");
        let long: Vec<u8> = (0..3_000_000u32 / 4096 * 4096).map(|at| (at / 4096 + at) as u8).collect();
        io.write(4096, &long).expect("writes");
        io.flush().expect("flushes");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut back = vec![0; long.len()];
                io.read(4096, &mut back).expect("reads");
                assert!(back == long, "{spec}");
                let (mut a, mut b) = (vec![0; 4096], vec![0; 8192]);
                io.read_many(&mut [(4096, &mut a), (8192, &mut b)]).expect("reads");
                assert!(a == long[..4096] && b == long[4096..12288]);
            });
        });
        assert_eq!(io.read(100, &mut [0; 512]), Err(Status::Invalid));
        assert_eq!(io.write(8 << 20, &[0; 4096]), Err(Status::IoErr));
        io.discard(0, 8 << 20).expect("discards, or the device has none");
    }
}

#[test]
fn nothing_holds_the_device_after_drop() {
    let device = open_device("ram:size=1M").expect("opens");
    let rings = || device.whole_queue().map(sheave_base::sync::Arc::strong_count);
    let before = rings();
    let io = DeviceIo::new(&device).expect("attaches");
    assert!(rings() > before);
    drop(io);
    assert_eq!(rings(), before);
}
