//! Deserialisation that serde does not have: static strings, which experiments and so their reports use, and `null` for
//! NaN.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer};

/// All strings that were made static. Each is in the set once.
static WORDS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Returns a static copy of a text. Each text is leaked at most once.
pub fn for_ever(text: String) -> &'static str {
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(word) = words.get(text.as_str()) {
        return word;
    }
    let word = text.leak();
    words.insert(word);
    word
}

/// Deserialises a static string.
pub fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    String::deserialize(deserializer).map(for_ever)
}

/// Deserialises a number, with `null` for NaN.
pub fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Deserialises a pair of the lowest and the highest value.
pub fn range<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[f64; 2], D::Error> {
    let range: [Option<f64>; 2] = Deserialize::deserialize(deserializer)?;
    Ok(range.map(|end| end.unwrap_or(f64::NAN)))
}

/// Deserialises counters or gauges by their names.
pub fn figures<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<&'static str, f64>, D::Error> {
    let figures: BTreeMap<String, Option<f64>> = Deserialize::deserialize(deserializer)?;
    Ok(figures.into_iter().map(|(name, value)| (for_ever(name), value.unwrap_or(f64::NAN))).collect())
}

/// Deserialises the inputs of a prediction: name, value, unit.
pub fn inputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, f64, &'static str)>, D::Error> {
    let inputs: Vec<(String, Option<f64>, String)> = Deserialize::deserialize(deserializer)?;
    Ok(inputs.into_iter().map(|(name, value, unit)| (name, value.unwrap_or(f64::NAN), for_ever(unit))).collect())
}
