//! A blocking read of a device, while another device that stands on it is being opened.
//!
//! Owns a ring for this read alone. Blocks the caller until the read has ended, which opening a device may do.
#![allow(unsafe_code)] // The sender of an I/O vouches for its memory.

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_base::status::Status;
use sheave_blk::bio::{BVec, NO_FIXED_BUF, Op, SECTOR_SHIFT};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};
use sheave_blk::{Device, DeviceError};

/// Reads `len` bytes from byte `start` on. Both are multiples of the logical block.
pub(crate) fn read(device: &Device, start: u64, len: usize) -> Result<Vec<u8>, String> {
    let fail = |error: DeviceError| error.to_string();
    let bytes = u32::try_from(len).map_err(|_| format!("{len} bytes are too many for one read"))?;
    let mut memory = Buf::zeroed(len.max(1), 4096).map_err(|error| error.to_string())?;
    let options = IoCtxOptions { bios: 64, kring_entries: 8, iopoll: false, stats: false, clock: Clock::real() };
    let mut ctx = IoCtx::new(options).map_err(fail)?;
    let bdev = ctx.attach(device).map_err(fail)?;
    // SAFETY: the memory is nobody else's, and is dropped after the context, which waits for its I/O.
    let vec = unsafe { BVec::new(memory.as_mut_ptr().expose_provenance(), len) };
    let spec = BioSpec { bdev, op: Op::Read, flags: 0, sector: start >> SECTOR_SHIFT, bytes, owner: 0 };
    if !ctx.submit(&spec, &[vec], NO_FIXED_BUF) {
        return Err("no I/O can be sent".into());
    }
    let mut ended: Option<Status> = None;
    while ended.is_none() {
        ctx.poll(&mut |_, status| ended = Some(status));
        if ended.is_none() {
            ctx.wait(1, None);
        }
    }
    drop(ctx);
    match ended {
        Some(Status::Ok) => Ok(memory.to_vec()),
        _ => Err(format!("byte {start} cannot be read: {}", ended.unwrap_or_default())),
    }
}
