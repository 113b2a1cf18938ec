//! The words in which an experiment describes itself and its results: arms, metrics, axes, published figures, checks.
//!
//! Owns these types and nothing that measures. Experiments and reports are both made of them, and neither of the other.

use crate::serial;

/// What an arm is to the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The mechanism is off.
    Before,
    /// The mechanism as the thread had it.
    Seed,
    /// The mechanism as Sheave has it.
    After,
    /// One more way to do it.
    Other,
}

/// An arm.
#[derive(Clone, Copy, Debug, serde::Deserialize, serde::Serialize)]
pub struct ArmInfo {
    /// Short, for tables and legends: `before`, `seed`, `after`, `shared pool`. Also its name on the command line, with
    /// `-` for spaces.
    #[serde(deserialize_with = "serial::word")]
    pub name: &'static str,
    /// Its role.
    pub role: Role,
    /// One sentence: the one thing that is changed.
    #[serde(deserialize_with = "serial::word")]
    pub what: &'static str,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Metric {
    /// `iops`, or the name of a gauge.
    #[serde(deserialize_with = "serial::word")]
    pub name: &'static str,
    /// For an axis: `I/O per second`, `share of CPU time in the lock`.
    #[serde(deserialize_with = "serial::word")]
    pub label: &'static str,
    /// For figures: `IOPS`, `%`.
    #[serde(deserialize_with = "serial::word")]
    pub unit: &'static str,
    /// Whether more is better.
    pub more_is_better: bool,
}

impl Metric {
    /// I/Os a second.
    pub const IOPS: Self = Self { name: "iops", label: "I/O per second", unit: "IOPS", more_is_better: true };

    /// For an axis or a heading, with the unit where the label does not say it.
    pub fn title(&self) -> String {
        if self.name == Self::IOPS.name { self.label.into() } else { format!("{} ({})", self.label, self.unit) }
    }

    /// Whether it is a percentage itself, whose change is told in points.
    pub fn in_points(&self) -> bool {
        self.unit == "%"
    }
}

/// Where the idea and the published figures come from.
#[derive(Clone, Copy, Debug, serde::Deserialize, serde::Serialize)]
pub struct Seed {
    /// Subject of the thread.
    #[serde(deserialize_with = "serial::word")]
    pub subject: &'static str,
    /// Who sent it.
    #[serde(deserialize_with = "serial::word")]
    pub author: &'static str,
    /// When: `2021-08-10`.
    #[serde(deserialize_with = "serial::word")]
    pub date: &'static str,
    /// Message-ID of its first mail.
    #[serde(deserialize_with = "serial::word")]
    pub message_id: &'static str,
    /// The command that it measured with.
    #[serde(deserialize_with = "serial::word")]
    pub command: &'static str,
    /// The machine that it measured on, as far as it says so.
    #[serde(deserialize_with = "serial::word")]
    pub machine: &'static str,
}

/// Published figures.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Published {
    /// Without the patches.
    pub before: f64,
    /// With them.
    pub after: f64,
    /// The change as the thread gives it.
    pub change_percent: f64,
}

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Axis {
    /// `queue depth`.
    #[serde(deserialize_with = "serial::word")]
    pub label: &'static str,
    /// `I/Os`, or nothing.
    #[serde(deserialize_with = "serial::word")]
    pub unit: &'static str,
    /// How places lie on it.
    pub scale: AxisScale,
}

/// How places lie on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AxisScale {
    /// Evenly.
    Linear,
    /// Each doubling as wide as the last.
    Log2,
    /// Side by side, without an order: bars.
    Categories,
}

/// A check's outcome.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
pub struct Check {
    /// What must be: `after allocates nothing per I/O`.
    pub name: String,
    /// Whether it is.
    pub ok: bool,
    /// The figures that it was decided by.
    pub detail: String,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// All five within two minutes: few points, short turns.
    Quick,
    /// Everything.
    Full,
}
