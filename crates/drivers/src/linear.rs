//! The specs of a piece of a device and of devices end to end: `partition:start=1M,size=10M,over=SPEC` and
//! `linear:over=SPEC+SPEC`; and of a partition by its place in a table: `partition:2,over=SPEC` and
//! `partition:name=boot,over=SPEC`. The block layer makes these devices itself ([`sheave_blk::linear`]): they have no
//! driver.

use sheave_blk::linear::{concatenate, partition};
use sheave_blk::{Device, DeviceError};

use crate::partition_table::{self, Disk, Wanted};
use crate::spec::Params;
use crate::whole_read;

/// Forms of a spec that name a partition, for errors.
const FORMS: &str = "Write partition:2,over=SPEC or partition:name=boot,over=SPEC for one of a partition table, and \
                     partition:start=1M,size=10M,over=SPEC for any other";

/// Opens `partition:...`.
pub(crate) fn partition_from_spec(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let (number, name) = (params.path(), params.text("name"));
    let (start, size) = (params.size("start")?, params.size("size")?);
    let number = match number {
        None => None,
        Some(text) => match text.parse::<u32>() {
            Ok(number) if number > 0 => Some(number),
            _ => return Err(params.error(format!("'{text}' is no number of a partition. {FORMS}"))),
        },
    };
    let wanted = match (number, name.as_deref()) {
        (Some(_), Some(_)) => return Err(params.error(format!("a number and a name are given. {FORMS}"))),
        (Some(number), None) => Some(Wanted::Number(number)),
        (None, name) => name.map(Wanted::Name),
    };
    if wanted.is_some() && (start.is_some() || size.is_some()) {
        let why = "the partition table says where a partition is that has a number or a name. Leave start and size out";
        return Err(params.error(why));
    }
    let over = params.over()?;
    params.finish()?;
    let [device] = over.as_slice() else {
        return Err(params.error("a partition is of one device. Put linear:over=A+B under it for a piece of several"));
    };
    if let Some(wanted) = wanted {
        let mut read = |start, len| whole_read::read(device, start, len);
        let mut disk = Disk { read: &mut read, block: device.limits().logical_block, size: device.size_bytes() };
        let found = partition_table::find(&mut disk, wanted);
        let found = found.map_err(|why| params.error(format!("{wanted}: {why}")))?;
        return partition(params.spec(), device, found.start, found.len);
    }
    let start = start.unwrap_or(0);
    let rest = device.size_bytes().saturating_sub(start);
    partition(params.spec(), device, start, size.unwrap_or(rest))
}

/// Opens `linear:...`.
pub(crate) fn linear_from_spec(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let over = params.over()?;
    params.finish()?;
    concatenate(params.spec(), &over)
}
