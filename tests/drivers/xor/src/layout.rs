//! Location of a sector and of its parity: the devices have units of 64 KiB, one row of units is a stripe, and the
//! parity of each stripe is on another device than that of the stripe before.

/// Number of sectors of a unit.
pub(crate) const UNIT_SECTORS: u64 = 128;

/// Number and size of the devices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) devices: usize,
    /// Number of units of each device.
    pub(crate) units: u64,
}

/// Location of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) stripe: u64,
    /// Index of the device that has it.
    pub(crate) data: usize,
    /// Index of the device that has its parity.
    pub(crate) parity: usize,
    /// Sector on both devices.
    pub(crate) sector: u64,
}

impl Layout {
    pub(crate) fn size_bytes(self) -> u64 {
        self.units * (self.devices as u64 - 1) * UNIT_SECTORS * 512
    }

    pub(crate) fn place(self, sector: u64) -> Place {
        let (unit, within) = (sector / UNIT_SECTORS, sector % UNIT_SECTORS);
        let others = self.devices as u64 - 1;
        let (stripe, at) = (unit / others, (unit % others) as usize);
        let parity = (stripe % self.devices as u64) as usize;
        Place { stripe, data: at + usize::from(at >= parity), parity, sector: stripe * UNIT_SECTORS + within }
    }
}
