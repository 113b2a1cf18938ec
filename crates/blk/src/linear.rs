//! partition, linear.
use crate::device::Device;
use crate::error::DeviceError;
use crate::spec::Params;
pub(crate) fn partition_from_spec(params: &mut Params) -> Result<Device, DeviceError> {
    Err(params.error("not yet"))
}

pub(crate) fn linear_from_spec(params: &mut Params) -> Result<Device, DeviceError> {
    Err(params.error("not yet"))
}
