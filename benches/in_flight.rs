//! A reading of in-flight I/O: the time that `Device::in_flight` takes, by the number of rings that use the device.
//!
//! ```sh
//! cargo bench --bench in_flight
//! ```
//!
//! Each ring has its own hardware queue of `null:`, with one read in flight that does not end. A row is the device, or
//! the innermost of partitions that are pieces of each other. Figures are the fastest of several rounds: a reading
//! takes no longer than that, and what the machine does beside it is no part of it.

use std::hint::black_box;
use std::time::Instant;

use sheave::{Buf, Device, Ring, op, open_device};

/// Readings of one round.
const READINGS: u32 = 20_000;
/// Rounds of one figure.
const ROUNDS: u32 = 25;

/// A device that ends nothing, behind so many partitions, each a piece of the one before.
fn device(partitions: usize) -> Device {
    let spec = format!("{}null:size=1G,latency=60s", "partition:start=4k,over=".repeat(partitions));
    open_device(&spec).expect("the spec is right")
}

/// A ring with one read in flight.
fn reading(device: &Device) -> Ring {
    let mut ring = Ring::builder().entries(4).build().expect("a ring can be made");
    let fd = ring.attach(device).expect("the device has room for a ring");
    ring.push(op::read(fd, Buf::zeroed(512, 512).expect("half a kilobyte"))).expect("an empty ring has room");
    ring.submit().expect("the read is valid");
    ring
}

/// The fastest round, in ns a reading.
fn measure(device: &Device) -> f64 {
    let round = |_| {
        let start = Instant::now();
        for _ in 0..READINGS {
            black_box(black_box(device).in_flight());
        }
        start.elapsed().as_nanos() as f64 / f64::from(READINGS)
    };
    (0..ROUNDS).map(round).fold(f64::MAX, f64::min)
}

fn main() {
    println!("{:>10} {:>6} {:>11} {:>11}", "partitions", "queues", "ns", "ns a queue");
    for partitions in [0, 1, 4] {
        let device = device(partitions);
        let mut rings: Vec<Ring> = Vec::new();
        for queues in [0, 1, 2, 4, 8, 16, 32, 64] {
            rings.resize_with(queues, || reading(&device));
            assert_eq!(device.in_flight().total() as usize, queues, "each ring has one read in flight");
            let ns = measure(&device);
            println!("{partitions:>10} {queues:>6} {ns:>11.1} {:>11.2}", ns / queues.max(1) as f64);
        }
    }
}
