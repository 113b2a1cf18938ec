//! Damage that a rescue passes over.
//!
//! Owns the messages about that damage. Each caller decides which damage may be passed over.
//!
//! Called by recovery.

use crate::error::PoolError;

/// Collects messages about the damage that a rescue passes over; `rescue` is false in any other opening.
pub(super) struct Unsure {
    rescue: bool,
    words: Vec<String>,
}

impl Unsure {
    pub(super) fn new(rescue: bool) -> Unsure {
        Unsure { rescue, words: Vec::new() }
    }

    pub(super) fn into_words(self) -> Vec<String> {
        self.words
    }

    pub(super) fn add(&mut self, words: Vec<String>) {
        self.words.extend(words);
    }

    pub(super) fn is_rescue(&self) -> bool {
        self.rescue
    }

    /// Passes over `error` in a rescue, and records its consequence `means`; otherwise returns it.
    pub(super) fn pass(&mut self, error: PoolError, means: &str) -> Result<(), PoolError> {
        let words = match &error {
            PoolError::Damaged { what, at, why } => format!("{what} at byte {at} is damaged: {why}; {means}"),
            PoolError::Members { what, .. } => format!("{what}; {means}"),
            PoolError::Io { what, status, .. } => format!("{what} failed: {status}; {means}"),
            _ => return Err(error),
        };
        if !self.rescue {
            return Err(error);
        }
        self.words.push(words);
        Ok(())
    }
}
