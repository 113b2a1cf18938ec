//! Errors of the control path of the block layer: opening, attaching, freezing.

use thiserror::Error;

/// Error of opening, attaching or freezing a device. Every message names the cause and the fix.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The spec is not valid.
    #[error("device spec '{spec}': {why}")]
    Spec {
        /// Spec as given by the user.
        spec: String,
        /// The mistake, and a valid form.
        why: String,
    },
    /// The host refused an operation.
    #[error("{what}: {source}. {fix}")]
    Host {
        /// Operation and its object.
        what: String,
        /// Fix.
        fix: String,
        /// The host's error.
        #[source]
        source: std::io::Error,
    },
    /// A limit was reached.
    #[error("{what}: the limit is {limit}. {fix}")]
    Limit {
        /// Operation, and the objects of which there are too many.
        what: String,
        /// Value of the limit.
        limit: u64,
        /// Fix.
        fix: String,
    },
    /// Another owner holds the device.
    #[error("{what} is in use: {who}. {fix}")]
    Claimed {
        /// Name of the device.
        what: String,
        /// The holder.
        who: String,
        /// Fix.
        fix: String,
    },
    /// The device did not become idle in time.
    #[error(
        "{what} did not become idle within {ms} ms: {in_flight} requests are in flight. Let the rings that use it \
             poll or drain, or give it more time"
    )]
    Busy {
        /// Name of the device.
        what: String,
        /// Length of the wait.
        ms: u64,
        /// Requests that are still in flight.
        in_flight: u32,
    },
    /// A device needs a kernel ring, and there is none.
    #[error("{what}: {source}")]
    Kring {
        /// Operation and its object.
        what: String,
        /// The cause, with its fix.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A driver's own error, whose text names the cause and the fix.
    #[error(transparent)]
    Driver(Box<dyn std::error::Error + Send + Sync>),
}

impl DeviceError {
    /// Makes a spec error.
    pub fn spec(spec: impl Into<String>, why: impl Into<String>) -> DeviceError {
        DeviceError::Spec { spec: spec.into(), why: why.into() }
    }
}
