//! Description of the machine of a run. The figures of the run depend on it.

use serde::{Deserialize, Serialize};

/// The description, as far as the system provides it. Unknown parts are left out.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Machine {
    pub cpu: String,
    /// Number of CPUs that this process may use.
    pub cpus: usize,
    pub cpus_online: usize,
    /// Number of CPUs that share a core; 1 without hyper-threading.
    pub threads_per_core: usize,
    /// Sizes of the caches of one CPU, for example `L1d 32K`.
    pub caches: Vec<String>,
    pub memory_bytes: u64,
    pub kernel: String,
    /// Governor of the CPU frequency.
    pub governor: Option<String>,
    pub virtual_machine: bool,
}

impl Machine {
    /// Describes this machine.
    pub fn here() -> Self {
        let info = read("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = info.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let uname = rustix::system::uname();
        let text = |bytes: &std::ffi::CStr| bytes.to_string_lossy().into_owned();
        let siblings = read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").unwrap_or_default();
        Self {
            cpu: field("model name").unwrap_or_else(|| text(uname.machine())),
            cpus: sheave_load::cpu::allowed().len(),
            cpus_online: count_cpus(&read("/sys/devices/system/cpu/online").unwrap_or_default()),
            threads_per_core: count_cpus(&siblings),
            caches: caches(),
            memory_bytes: memory_bytes(&read("/proc/meminfo").unwrap_or_default()),
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: field("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
        }
    }

    /// Formats the description in one line.
    pub fn line(&self) -> String {
        let Self { cpu, cpus, kernel, .. } = self;
        let memory = sheave_base::units::fmt_bytes(self.memory_bytes);
        let of = if self.cpus == self.cpus_online { String::new() } else { format!(" of {}", self.cpus_online) };
        let smt = if self.threads_per_core > 1 { format!(", {} a core", self.threads_per_core) } else { String::new() };
        let within = if self.virtual_machine { ", virtual machine" } else { "" };
        format!("{cpu}, {cpus}{of} CPUs{smt}, {memory} of memory, {kernel}{within}")
    }
}

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Returns the number of CPUs in a list such as `0-3,8`, at least 1.
fn count_cpus(list: &str) -> usize {
    let count = |part: &str| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        to.checked_sub(from).map(|more| more + 1)
    };
    list.split(',').filter_map(count).sum::<usize>().max(1)
}

fn memory_bytes(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|text| text.trim().split(' ').next()?.parse::<u64>().ok());
    kib.unwrap_or_default().saturating_mul(1024)
}

fn caches() -> Vec<String> {
    let index = |at: usize| {
        let file = |name: &str| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{at}/{name}"));
        let kind = match file("type")?.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        Some(format!("L{}{kind} {}", file("level")?, file("size")?))
    };
    (0..8).map_while(index).collect()
}

/// Returns the current time in the form `2026-01-31 12:00 UTC`.
pub fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    utc(since.as_secs())
}

/// Formats a time in seconds since 1970 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms",
/// `civil_from_days`).
fn utc(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", of_day / 3600, of_day / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(utc(1_798_761_599), "2026-12-31 23:59 UTC");
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(["0", "0-3", "0-3,8", "", "x"].map(count_cpus), [1, 4, 5, 1, 1]);
    }

    #[test]
    fn memory() {
        assert_eq!(memory_bytes("MemTotal:       16384 kB\nMemFree: 1 kB\n"), 16 << 20);
        assert_eq!(memory_bytes("nothing"), 0);
    }

    #[test]
    fn machine_description_is_filled_in() {
        let here = Machine::here();
        assert!(!here.cpu.is_empty() && here.cpus > 0 && here.memory_bytes > 0, "{here:?}");
        assert!(here.line().contains("CPUs"), "{}", here.line());
    }
}
