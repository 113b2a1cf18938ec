//! Clocks and figures that several benches share.

/// Returns the time of a clock in ns.
pub fn ns(clock: rustix::time::ClockId) -> f64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the CPU time of all threads of this process, those of the kernel's io-wq included.
pub fn process_ns() -> f64 {
    ns(rustix::time::ClockId::ProcessCPUTime)
}

/// Returns the median; of an even number of values the upper one of the two in the middle. NaN without values.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Formats the median with the lowest and the highest value.
pub fn spread(values: &[f64], unit: &str) -> String {
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    format!("{:.2}{unit} ({low:.2} to {high:.2})", median(values))
}
