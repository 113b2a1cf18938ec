//! What serde does not read by itself: the words of a report live for ever, as those of an experiment do, and JSON has
//! `null` for a number that is none.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

/// A word.
pub fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    Ok(String::deserialize(deserializer)?.leak())
}

/// A number, or `null` for one that is none.
pub fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// The lowest and the highest.
pub fn range<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[f64; 2], D::Error> {
    let range: [Option<f64>; 2] = Deserialize::deserialize(deserializer)?;
    Ok(range.map(|end| end.unwrap_or(f64::NAN)))
}

/// Counters or gauges by their names.
pub fn figures<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<&'static str, f64>, D::Error> {
    let figures: BTreeMap<String, Option<f64>> = Deserialize::deserialize(deserializer)?;
    Ok(figures.into_iter().map(|(name, value)| (&*name.leak(), value.unwrap_or(f64::NAN))).collect())
}

/// Inputs of a prediction: name, value, unit.
pub fn inputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, f64, &'static str)>, D::Error> {
    let inputs: Vec<(String, Option<f64>, String)> = Deserialize::deserialize(deserializer)?;
    Ok(inputs.into_iter().map(|(name, value, unit)| (name, value.unwrap_or(f64::NAN), &*unit.leak())).collect())
}
