//! One owner at a time: the claim on the device under a pool.
//!
//! Owns the words of its refusal. Who holds what is the block layer's ([`sheave_blk::claim`]), which also keeps other
//! programs off where the driver can. The claim lasts as long as the pool, whatever rings are still attached.

use sheave_blk::Device;
use sheave_blk::claim::{Claim, Sharing};

use crate::error::PoolError;

/// Takes the device, or says who has it. Those that change nothing share it with each other.
pub(crate) fn claim(device: &Device, read_only: bool) -> Result<Claim, PoolError> {
    let sharing = if read_only { Sharing::WithReaders } else { Sharing::Alone };
    device.claim(sharing).map_err(|error| match error {
        sheave_blk::DeviceError::Claimed { what, who, fix } => PoolError::Busy { what, who, fix },
        other => PoolError::Device(other),
    })
}
