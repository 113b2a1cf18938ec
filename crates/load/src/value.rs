//! Parsers of argument values that the programs share. Each error names what is wrong with the value and shows a valid
//! one.

use std::time::Duration;

use sheave_base::units;

use crate::cpu;
use crate::error::LoadError;

/// Parses a time: `500ms`, `1.5s`, `2m`; a bare number is seconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let is_bare = text.ends_with(|last: char| last.is_ascii_digit());
    let parsed = units::parse_duration(&if is_bare { format!("{text}s") } else { text.to_owned() });
    match parsed {
        Ok(time) if time.is_zero() => Err("a time of 0 measures nothing; give for example 500ms or 5s".into()),
        parsed => parsed.map_err(|err| err.to_string()),
    }
}

/// Parses a count: `1000`, `50k`, `1.5M` (powers of 1000).
pub fn count(text: &str) -> Result<u64, String> {
    match units::parse_count(text) {
        Ok(0) => Err("0 leaves nothing to do; leave the option out for no limit".into()),
        parsed => parsed.map_err(|err| err.to_string()),
    }
}

/// Parses a list of CPUs in the kernel's format: `1`, `0,2`, `0-3`, `0-1,4`.
pub fn cpu_list(text: &str) -> Result<CpuList, String> {
    const MAX_CPU: usize = 4095;
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        match (from.trim().parse::<usize>(), to.trim().parse::<usize>()) {
            (Ok(from), Ok(to)) if from <= to && to <= MAX_CPU => cpus.extend(from..=to),
            _ => return Err("expected CPU numbers such as 1, 0,2 or 0-3".into()),
        }
    }
    Ok(CpuList(cpus))
}

/// CPUs in the order in which threads are placed on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl CpuList {
    /// Replaces each CPU that this process may not use by one that it may use. Returns the list, and a notice if the
    /// list was changed.
    pub fn on_this_machine(self) -> (CpuList, Option<String>) {
        let allowed = cpu::allowed();
        if allowed.is_empty() || self.0.iter().all(|cpu| allowed.contains(cpu)) {
            return (self, None);
        }
        let place = |(at, cpu): (usize, &usize)| if allowed.contains(cpu) { *cpu } else { allowed[at % allowed.len()] };
        let mapped: Vec<usize> = self.0.iter().enumerate().map(place).collect();
        let notice = format!("this process may not use all CPUs of {:?}: its threads run on {mapped:?}", self.0);
        (CpuList(mapped), Some(notice))
    }

    /// Returns the CPUs of the list, or an error if this process may not run on all of them.
    pub fn allowed(&self) -> Result<&[usize], LoadError> {
        let allowed = cpu::allowed();
        match self.0.iter().find(|cpu| !allowed.contains(cpu)) {
            Some(missing) => {
                Err(LoadError::usage(format!("CPU {missing} is not among those this process may use ({allowed:?})"))
                    .fix("choose from those, or widen the set with taskset or the container's cpuset"))
            }
            None => Ok(&self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(duration("20"), Ok(Duration::from_secs(20)));
        assert_eq!(duration("1.5 s"), Ok(Duration::from_millis(1500)));
        assert!(duration("0").is_err());
        assert!(duration("-1").is_err());
        assert!(duration("nan").is_err());
    }

    #[test]
    fn counts() {
        assert_eq!(count("50k"), Ok(50_000));
        assert_eq!(count("1.5M"), Ok(1_500_000));
        assert!(count("0").is_err());
        assert!(count("99999999999G").is_err());
        assert!(count("1e300").is_err());
        assert!(count("k").is_err());
        assert!(count("µ").is_err());
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("0-2,5"), Ok(CpuList(vec![0, 1, 2, 5])));
        assert!(cpu_list("3-1").is_err());
        assert!(cpu_list("").is_err());
        assert!(cpu_list("0-99999999").is_err());
    }

    #[test]
    fn a_cpu_that_the_process_may_not_use_is_refused() {
        let allowed = CpuList(cpu::allowed());
        assert_eq!(allowed.allowed(), Ok(&allowed.0[..]));
        let refused = CpuList(vec![allowed.0[0], 4095]).allowed().expect_err("there are fewer");
        assert!(refused.usage && refused.cause.contains("CPU 4095"), "{refused}");
    }
}
