//! The types that describe an experiment and its results: arms, metrics, axes, published figures, checks.
//!
//! Owns these types and measures nothing. Experiments and reports both use them, so that neither depends on the other.

use crate::serial;

/// Role of an arm in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The mechanism is off.
    Before,
    /// The mechanism as published on the mailing list.
    Seed,
    /// The mechanism as Sheave has it.
    After,
    /// A further variant.
    Other,
}

#[derive(Clone, Copy, Debug, serde::Deserialize, serde::Serialize)]
pub struct ArmInfo {
    /// Short name for tables and legends: `before`, `seed`, `after`, `shared pool`. Also the name on the command line,
    /// with `-` for spaces.
    #[serde(deserialize_with = "serial::word")]
    pub name: &'static str,
    pub role: Role,
    /// One sentence that names the one thing changed in this arm.
    #[serde(deserialize_with = "serial::word")]
    pub what: &'static str,
}

/// A measured figure.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Metric {
    /// `iops`, or the name of a gauge.
    #[serde(deserialize_with = "serial::word")]
    pub name: &'static str,
    /// Label of an axis: `I/O per second`, `share of CPU time in the lock`.
    #[serde(deserialize_with = "serial::word")]
    pub label: &'static str,
    /// Unit of figures: `IOPS`, `%`.
    #[serde(deserialize_with = "serial::word")]
    pub unit: &'static str,
    pub more_is_better: bool,
}

impl Metric {
    pub const IOPS: Self = Self { name: "iops", label: "I/O per second", unit: "IOPS", more_is_better: true };

    /// Returns the label for an axis or a heading, with the unit unless the label has it.
    pub fn title(&self) -> String {
        if self.name == Self::IOPS.name { self.label.into() } else { format!("{} ({})", self.label, self.unit) }
    }

    /// Returns true if the figure is a percentage, whose change is given in percentage points.
    pub fn in_points(&self) -> bool {
        self.unit == "%"
    }
}

/// The mailing-list thread with the idea and the published figures.
#[derive(Clone, Copy, Debug, serde::Deserialize, serde::Serialize)]
pub struct Seed {
    /// Subject line.
    #[serde(deserialize_with = "serial::word")]
    pub subject: &'static str,
    #[serde(deserialize_with = "serial::word")]
    pub author: &'static str,
    /// Date, as `2021-08-10`.
    #[serde(deserialize_with = "serial::word")]
    pub date: &'static str,
    /// Message-ID of the first mail.
    #[serde(deserialize_with = "serial::word")]
    pub message_id: &'static str,
    /// Command of the published measurement.
    #[serde(deserialize_with = "serial::word")]
    pub command: &'static str,
    /// Machine of the published measurement, as far as the mails describe it.
    #[serde(deserialize_with = "serial::word")]
    pub machine: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct Published {
    /// Figure without the patches.
    pub before: f64,
    /// Figure with the patches.
    pub after: f64,
    /// Change as the mails give it.
    pub change_percent: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Axis {
    /// `queue depth`.
    #[serde(deserialize_with = "serial::word")]
    pub label: &'static str,
    /// `I/Os`, or empty.
    #[serde(deserialize_with = "serial::word")]
    pub unit: &'static str,
    pub scale: AxisScale,
}

/// Spacing of the places on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AxisScale {
    /// Equal differences have equal width.
    Linear,
    /// Each doubling has the same width.
    Log2,
    /// Unordered places side by side, drawn as bars.
    Categories,
}

/// Result of a check.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
pub struct Check {
    /// The condition: `after allocates nothing per I/O`.
    pub name: String,
    pub ok: bool,
    /// The figures that decided the check.
    pub detail: String,
}

/// Extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// All five experiments within two minutes: few points, short turns.
    Quick,
    /// All points and sweeps.
    Full,
}
