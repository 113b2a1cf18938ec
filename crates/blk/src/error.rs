//! Errors of the control path of the block layer: opening, attaching, freezing.

use thiserror::Error;

/// Why a device could not be opened, attached or frozen. Every message names the cause and the fix.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The spec is not understood.
    #[error("device spec '{spec}': {why}")]
    Spec {
        /// As given by the user.
        spec: String,
        /// What is wrong with it and what would be right.
        why: String,
    },
    /// The host refused something.
    #[error("{what}: {source}. {fix}")]
    Host {
        /// What was tried, on what.
        what: String,
        /// How to mend it.
        fix: String,
        /// The host's answer.
        #[source]
        source: std::io::Error,
    },
    /// A bound was reached.
    #[error("{what}: the limit is {limit}. {fix}")]
    Limit {
        /// What there are too many of.
        what: String,
        /// The bound.
        limit: u64,
        /// How to mend it.
        fix: String,
    },
    /// Somebody holds the device for himself.
    #[error("{what} is in use: {who}. {fix}")]
    Claimed {
        /// The device.
        what: String,
        /// Who has it.
        who: String,
        /// How to mend it.
        fix: String,
    },
    /// The device does not answer.
    #[error(
        "{what} did not become idle within {ms} ms: {in_flight} requests are in flight. Let the rings that use it \
             poll or drain, or give it more time"
    )]
    Busy {
        /// The device.
        what: String,
        /// How long was waited.
        ms: u64,
        /// What it still holds.
        in_flight: u32,
    },
    /// There is no kernel ring for a device that needs one.
    #[error("{what}: {source}")]
    Kring {
        /// What was tried, on what.
        what: String,
        /// The cause, with its fix.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What a driver says about itself: an error of its own, whose text names the cause and the fix.
    #[error(transparent)]
    Driver(Box<dyn std::error::Error + Send + Sync>),
}

impl DeviceError {
    /// A spec error.
    pub fn spec(spec: impl Into<String>, why: impl Into<String>) -> DeviceError {
        DeviceError::Spec { spec: spec.into(), why: why.into() }
    }
}
