//! Tests that every request ends once, with its callback on another thread, whether the device's thread sleeps or
//! spins.

use std::sync::Mutex;
use std::thread::ThreadId;

use sheave::{Buf, Ring, op};

use super::*;

#[test]
fn requests_end_elsewhere_once_each_and_in_order() {
    for alone in [false, true] {
        let ended: Arc<Mutex<Vec<(ThreadId, Op)>>> = Arc::default();
        let told = ended.clone();
        let on_end: MakeOnEnd = Box::new(move || {
            let told = told.clone();
            Box::new(move |op| told.lock().expect("not poisoned").push((std::thread::current().id(), op)))
        });
        let cpus = vec![cpu::allowed()[0]];
        let elsewhere =
            Elsewhere::new(Settings { size: 1 << 20, latency: Duration::from_micros(20), cpus, alone, on_end });
        let mut ring = Ring::builder().entries(16).build().expect("a ring");
        let fd = ring.attach(&elsewhere.device).expect("attached");
        for n in 0..8 {
            // Not adjacent, so that none is merged.
            let buf = Buf::zeroed(512, 512).expect("memory");
            let pushed = match n % 2 {
                0 => ring.push(op::read(fd, buf).offset(n * 8192).user_data(n)),
                _ => ring.push(op::write(fd, buf).offset(n * 8192).user_data(n)),
            };
            pushed.expect("room");
        }
        ring.submit_and_wait(8).expect("submitted");
        let done: Vec<_> = ring.completions().map(|done| (done.user_data, done.res)).collect();
        assert_eq!(done, (0..8).map(|n| (n, 512)).collect::<Vec<_>>());
        assert_eq!(elsewhere.device.in_flight().total(), 0);
        drop(ring);
        let ended = ended.lock().expect("not poisoned");
        let ops: Vec<Op> = ended.iter().map(|&(_, op)| op).collect();
        assert_eq!(ops, [Op::Read, Op::Write].repeat(4));
        assert!(ended.iter().all(|&(thread, _)| thread != std::thread::current().id()));
        assert!(elsewhere.cpu_ns() > 0);
    }
}
