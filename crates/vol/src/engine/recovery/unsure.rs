//! Damage that a rescue passes over.
//!
//! Owns what is said of it. What may be passed over is decided by those who find it.
//!
//! Called by recovery.

use crate::error::PoolError;

/// What is not certain of a pool that is rescued.
pub(super) struct Unsure {
    rescue: bool,
    words: Vec<String>,
}

impl Unsure {
    pub(super) fn new(rescue: bool) -> Unsure {
        Unsure { rescue, words: Vec::new() }
    }

    /// All that was passed over, in words.
    pub(super) fn into_words(self) -> Vec<String> {
        self.words
    }

    /// Something more was passed over.
    pub(super) fn add(&mut self, words: Vec<String>) {
        self.words.extend(words);
    }

    pub(super) fn is_rescue(&self) -> bool {
        self.rescue
    }

    /// Passes over it in a rescue, and says what that means; else it is an error.
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
