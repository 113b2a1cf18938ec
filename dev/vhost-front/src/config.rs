//! The configuration space of a virtio-blk device, decoded from bytes.
//!
//! Offsets are those of section 5.2.4 of the virtio specification, version 1.2.

/// Number of bytes up to and including the limits of WRITE_ZEROES; QEMU reads the same number.
pub const CONFIG_LEN: usize = 60;

/// Offset of the byte that switches the write cache (CONFIG_WCE).
pub const WRITE_CACHE: u32 = 32;

/// The configuration space of a block device. A field is meaningful only if its feature was offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of the specification.
pub struct BlkConfig {
    /// Size of the device in sectors of 512 bytes.
    pub capacity: u64,
    pub size_max: u32,
    pub seg_max: u32,
    pub blk_size: u32,
    pub physical_block_exp: u8,
    pub alignment_offset: u8,
    pub min_io_size: u16,
    pub opt_io_size: u32,
    /// 1 if completed writes may be in a volatile cache until a flush.
    pub writeback: u8,
    pub num_queues: u16,
    pub max_discard_sectors: u32,
    pub max_discard_seg: u32,
    pub discard_sector_alignment: u32,
    pub max_write_zeroes_sectors: u32,
    pub max_write_zeroes_seg: u32,
    pub write_zeroes_may_unmap: u8,
}

impl BlkConfig {
    /// Decodes a configuration space. Bytes that a shorter space does not have are taken as 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
        let u16_at = |at: usize| u16::from_le_bytes([byte(at), byte(at + 1)]);
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| byte(at + n)));
        BlkConfig {
            capacity: u64::from_le_bytes(std::array::from_fn(byte)),
            size_max: u32_at(8),
            seg_max: u32_at(12),
            blk_size: u32_at(20),
            physical_block_exp: byte(24),
            alignment_offset: byte(25),
            min_io_size: u16_at(26),
            opt_io_size: u32_at(28),
            writeback: byte(WRITE_CACHE as usize),
            num_queues: u16_at(34),
            max_discard_sectors: u32_at(36),
            max_discard_seg: u32_at(40),
            discard_sector_alignment: u32_at(44),
            max_write_zeroes_sectors: u32_at(48),
            max_write_zeroes_seg: u32_at(52),
            write_zeroes_may_unmap: byte(56),
        }
    }

    /// Returns the size of the device in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.capacity.saturating_mul(512)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_at_the_offsets_of_the_specification() {
        let bytes: Vec<u8> = (1..=CONFIG_LEN as u8).collect();
        let config = BlkConfig::decode(&bytes);
        assert_eq!(config.capacity, 0x0807_0605_0403_0201);
        assert_eq!((config.size_max, config.seg_max), (0x0C0B_0A09, 0x100F_0E0D));
        assert_eq!((config.blk_size, config.physical_block_exp, config.alignment_offset), (0x1817_1615, 25, 26));
        assert_eq!((config.min_io_size, config.opt_io_size), (0x1C1B, 0x201F_1E1D));
        assert_eq!((config.writeback, config.num_queues), (33, 0x2423));
        assert_eq!(config.max_discard_sectors, 0x2827_2625);
        assert_eq!((config.max_discard_seg, config.discard_sector_alignment), (0x2C2B_2A29, 0x302F_2E2D));
        assert_eq!((config.max_write_zeroes_sectors, config.max_write_zeroes_seg), (0x3433_3231, 0x3837_3635));
        assert_eq!(config.write_zeroes_may_unmap, 57);
    }

    #[test]
    fn a_short_space_reads_as_zeroes() {
        let config = BlkConfig::decode(&[1, 0, 0]);
        assert_eq!((config.capacity, config.seg_max, config.write_zeroes_may_unmap), (1, 0, 0));
        assert_eq!(config.len_bytes(), 512);
    }
}
