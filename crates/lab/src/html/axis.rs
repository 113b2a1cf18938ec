//! Where values lie on a drawing, and which of them are written at the edge.

/// How values lie.
#[derive(Clone, Debug, PartialEq)]
pub enum Lie {
    /// Evenly, from the first to the last.
    Even(f64, f64),
    /// By their logarithm. Values of 0 or less have a place of their own before the first when the flag says so.
    Log {
        /// The lowest above 0.
        low: f64,
        /// The highest.
        high: f64,
        /// There are values of 0.
        zero: bool,
    },
    /// Side by side, that many.
    Slots(usize),
}

/// An axis on the drawing: values to places.
#[derive(Clone, Debug)]
pub struct Along {
    lie: Lie,
    from: f64,
    to: f64,
}

/// What a place for 0 takes of a logarithmic axis.
const ZERO_SHARE: f64 = 0.12;

impl Along {
    /// An axis from one place on the drawing to another.
    pub fn new(lie: Lie, from: f64, to: f64) -> Self {
        Self { lie, from, to }
    }

    /// Where a value lies; a slot is named by its number.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.lie {
            Lie::Even(low, high) => (value - low) / (high - low).max(f64::MIN_POSITIVE),
            Lie::Log { zero: true, .. } if value <= 0.0 => 0.0,
            Lie::Log { low, high, zero } => {
                let span = (high / low).log2();
                let share = if span > 0.0 { (value / low).log2() / span } else { 0.5 };
                if zero { ZERO_SHARE + share * (1.0 - ZERO_SHARE) } else { share }
            }
            Lie::Slots(count) => (value + 0.5) / count.max(1) as f64,
        };
        self.from + share * (self.to - self.from)
    }

    /// The space that a slot has.
    pub fn slot(&self) -> f64 {
        match self.lie {
            Lie::Slots(count) => (self.to - self.from).abs() / count.max(1) as f64,
            _ => 0.0,
        }
    }
}

/// Round values from `low` to `high`, about `count` of them.
pub fn round_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let span = high - low;
    if span <= 0.0 || !span.is_finite() {
        return vec![low];
    }
    let rough = span / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|nice| nice * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let first = (low / step - 1e-9).ceil() as i64;
    let last = (high / step + 1e-9).floor() as i64;
    (first..=last).map(|index| index as f64 * step).collect()
}

/// An axis that holds all values and 0, and ends on a round one.
pub fn from_zero(values: impl Iterator<Item = f64>) -> (f64, f64, Vec<f64>) {
    let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    let low = values.iter().copied().fold(0.0, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    let high = if high == low { low + 1.0 } else { high };
    let ticks = round_ticks(low, high, 5);
    let step = ticks.get(1).zip(ticks.first()).map_or(high - low, |(second, first)| second - first);
    let low = (low / step + 1e-9).floor() * step;
    let high = (high / step - 1e-9).ceil() * step;
    (low, high, round_ticks(low, high, ((high - low) / step).round() as usize))
}

/// Powers of ten from `low` to `high`, and the values 2 and 5 between when there are few.
pub fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    if low <= 0.0 || high < low || !high.is_finite() {
        return Vec::new();
    }
    let decades = (high / low).log10();
    let within: &[f64] = if decades <= 2.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32;
    let all = (first..=last).flat_map(|power| within.iter().map(move |digit| digit * 10f64.powi(power)));
    all.filter(|tick| (low * 0.999..=high * 1.001).contains(tick)).collect()
}

/// A time for an axis: `500 ns`, `20 µs`.
pub fn time(ns: f64) -> String {
    let (value, unit) = match ns {
        ns if ns < 1e3 => (ns, "ns"),
        ns if ns < 1e6 => (ns / 1e3, "µs"),
        ns if ns < 1e9 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    let text = format!("{value:.2}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests;
