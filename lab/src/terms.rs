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
    /// The mechanism in the form published on the mailing list.
    Seed,
    /// The mechanism in Sheave's form.
    After,
    /// A further variant.
    Other,
}

#[derive(Clone, Copy, Debug, serde::Deserialize, serde::Serialize)]
pub struct ArmInfo {
    /// Short name for tables and legends: `before`, `seed`, `after`, `shared pool`. The command line uses the same name
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
    /// Name of the figure: `iops`, or the name of a gauge.
    #[serde(deserialize_with = "serial::word")]
    pub name: &'static str,
    /// Label of an axis, for example `I/O per second` or `share of CPU time in the lock`.
    #[serde(deserialize_with = "serial::word")]
    pub label: &'static str,
    /// Unit of figures, for example `IOPS` or `%`.
    #[serde(deserialize_with = "serial::word")]
    pub unit: &'static str,
    pub more_is_better: bool,
}

impl Metric {
    pub const IOPS: Self = Self { name: "iops", label: "I/O per second", unit: "IOPS", more_is_better: true };

    /// Returns the label for an axis or a heading. The unit is appended unless the label contains it.
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
    /// Date in the form `2021-08-10`.
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
    /// Change in percent that the mails name.
    pub change_percent: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
pub struct Axis {
    /// Label of the axis, for example `queue depth`.
    #[serde(deserialize_with = "serial::word")]
    pub label: &'static str,
    /// Unit of the positions, for example `I/Os`; may be empty.
    #[serde(deserialize_with = "serial::word")]
    pub unit: &'static str,
    pub scale: AxisScale,
}

/// Spacing of the positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AxisScale {
    /// Equal differences have equal width.
    Linear,
    /// Each doubling has the same width.
    Log2,
    /// Positions are unordered and side by side, drawn as bars.
    Categories,
}

/// Result of a check.
#[derive(Clone, Debug, serde::Deserialize, serde::Serialize)]
pub struct Check {
    /// The condition, for example `after allocates nothing per I/O`.
    pub name: String,
    pub ok: bool,
    /// The figures that decided the check.
    pub detail: String,
}

/// Extent of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// All five experiments within two minutes, with few points and short turns.
    Quick,
    /// All points and sweeps.
    Full,
}
