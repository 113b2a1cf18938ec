//! `fault`.
use crate::device::Device;
use crate::error::DeviceError;
use crate::spec::Params;
pub(crate) fn from_spec(params: &mut Params) -> Result<Device, DeviceError> {
    Err(params.error("not yet"))
}
