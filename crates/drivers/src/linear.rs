//! The specs of a piece of a device and of devices end to end: `partition:start=1M,size=10M,over=SPEC` and
//! `linear:over=SPEC+SPEC`. The block layer makes these devices itself ([`sheave_blk::linear`]): they have no driver.

use sheave_blk::linear::{concatenate, partition};
use sheave_blk::{Device, DeviceError};

use crate::spec::Params;

/// Opens `partition:...`.
pub(crate) fn partition_from_spec(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let start = params.size("start")?.unwrap_or(0);
    let size = params.size("size")?;
    let over = params.over()?;
    params.finish()?;
    let [device] = over.as_slice() else {
        return Err(params.error("a partition is of one device. Put linear:over=A+B under it for a piece of several"));
    };
    let rest = device.size_bytes().saturating_sub(start);
    partition(params.spec(), device, start, size.unwrap_or(rest))
}

/// Opens `linear:...`.
pub(crate) fn linear_from_spec(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let over = params.over()?;
    params.finish()?;
    concatenate(params.spec(), &over)
}
