//! Metrics of the devices that pools and exports stand on.
//!
//! V1. At most [`MOST_IN_DETAIL`] devices have values of their own, in the order of [`device_statistics`]. The sum of
//! all others has empty labels. That limits the page to about 2,000 values.
//!
//! [`device_statistics`]: crate::device_statistics

use super::detail::{MOST_IN_DETAIL, seconds};
use super::page::Page;
use crate::api::types as t;

/// Values of one device, or sums of several.
#[derive(Default)]
struct Values {
    of: t::DeviceStatistics,
    /// Number of devices that keep statistics.
    kept: u64,
}

impl Values {
    fn add(&mut self, other: &t::DeviceStatistics) {
        self.kept += u64::from(other.kept);
        let of = &mut self.of;
        of.busy_ns += other.busy_ns;
        of.in_flight_reads += other.in_flight_reads;
        of.in_flight_writes += other.in_flight_writes;
        of.in_flight_others += other.in_flight_others;
        if of.operations.is_empty() {
            return of.operations.clone_from(&other.operations);
        }
        // Each device lists all operations in the same order.
        for (sum, one) in of.operations.iter_mut().zip(&other.operations) {
            sum.ios += one.ios;
            sum.bytes += one.bytes;
            sum.merges += one.merges;
            sum.errors += one.errors;
            sum.time_ns += one.time_ns;
        }
    }

    /// Returns the labels that name the device, and after them `more`.
    fn labels<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut labels = vec![("device", self.of.name.as_str())];
        labels.extend(self.of.pool.as_deref().map(|pool| ("pool", pool)));
        labels.extend(self.of.export.as_deref().map(|export| ("export", export)));
        labels.extend(more);
        labels
    }
}

/// Writes all metrics of devices.
pub(super) fn families(page: &mut Page, devices: impl Iterator<Item = t::DeviceStatistics>) {
    let (mut named, mut others): (Vec<Values>, Option<Values>) = (Vec::new(), None);
    for of in devices {
        if named.len() < MOST_IN_DETAIL {
            named.push(Values { kept: u64::from(of.kept), of });
        } else {
            others.get_or_insert_default().add(&of);
        }
    }
    named.extend(others);
    type Value = fn(&t::DeviceOperation) -> String;
    let counters: [(&str, &str, Value); 5] = [
        ("sheave_device_ios", "Requests that a device has completed.", |op| op.ios.to_string()),
        ("sheave_device_bytes", "Bytes of the ranges of these requests.", |op| op.bytes.to_string()),
        ("sheave_device_merges", "I/Os that were merged into the request of another one.", |op| op.merges.to_string()),
        ("sheave_device_errors", "Requests of a device that failed.", |op| op.errors.to_string()),
        ("sheave_device_io_seconds", "Sum of the latencies of requests of a device.", |op| seconds(op.time_ns)),
    ];
    for (name, help, value) in counters {
        page.head(name, "counter", help);
        for device in &named {
            for operation in &device.of.operations {
                let labels = device.labels(&[("operation", &operation.operation)]);
                page.value(&format!("{name}_total"), &labels, value(operation));
            }
        }
    }
    page.head("sheave_device_busy_seconds", "counter", "Time in which a device had at least one request.");
    for device in &named {
        page.value("sheave_device_busy_seconds_total", &device.labels(&[]), seconds(device.of.busy_ns));
    }
    page.head("sheave_device_in_flight", "gauge", "Requests that the driver of a device has.");
    for device in &named {
        let of = &device.of;
        let in_flight = [("read", of.in_flight_reads), ("write", of.in_flight_writes), ("other", of.in_flight_others)];
        for (kind, requests) in in_flight {
            page.value("sheave_device_in_flight", &device.labels(&[("kind", kind)]), requests);
        }
    }
    page.head("sheave_device_statistics", "gauge", "Whether statistics of a device are kept.");
    for device in &named {
        page.value("sheave_device_statistics", &device.labels(&[]), device.kept);
    }
}
