//! What serde does not read by itself: the words of a report live for ever, as those of an experiment do, and JSON has
//! `null` for a number that is none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer};

/// All words that were read, each once.
static WORDS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// A text that lives for ever.
pub fn for_ever(text: String) -> &'static str {
    let mut words = WORDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(word) = words.get(text.as_str()) {
        return word;
    }
    let word = text.leak();
    words.insert(word);
    word
}

/// A word.
pub fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    String::deserialize(deserializer).map(for_ever)
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
    Ok(figures.into_iter().map(|(name, value)| (for_ever(name), value.unwrap_or(f64::NAN))).collect())
}

/// Inputs of a prediction: name, value, unit.
pub fn inputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, f64, &'static str)>, D::Error> {
    let inputs: Vec<(String, Option<f64>, String)> = Deserialize::deserialize(deserializer)?;
    Ok(inputs.into_iter().map(|(name, value, unit)| (name, value.unwrap_or(f64::NAN), for_ever(unit))).collect())
}
