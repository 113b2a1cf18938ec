//! The device: its first connection, its limits and capabilities.
//!
//! A device must know its size before a ring attaches it, so opening it makes the first connection. That connection
//! later goes to the first ring, because some servers serve only one client, or end when their last client leaves.
//! Until then it is used for queries of block status.

use std::sync::Arc;

use sheave::drivers::{KernelUse, Open, Params, SafeDriver, SafeQueue, with_timeout};
use sheave::{Capabilities, Device, DeviceError, Extent, Limits};
use sheave_nbd::wire::tflag;

use crate::conn;
use crate::control::{Control, Fault};
use crate::negotiation::{Export, Wish};
use crate::queue::{self, NbdQueue};
use crate::shared::Shared;
use crate::spec::Target;

/// Length of the longest read or write, in bytes. The block layer splits longer ones.
const MAX_BYTES: u32 = 1 << 20;
/// Length of the longest discard, in bytes.
const MAX_DISCARD_BYTES: u32 = 1 << 30;
/// Length of the longest write-zeroes, in bytes. It is shorter than a discard, because a server may have to write the
/// zeroes.
const MAX_ZEROES_BYTES: u32 = 32 << 20;
/// Queue depth of a ring.
const DEPTH: u16 = 256;

#[derive(Debug)]
struct Nbd(Arc<Shared>);

pub(crate) fn open(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let mut target = Target::read(params)?;
    let (control, export) = Control::first(&mut target)?;
    let first = control.into_first().map_err(|source| DeviceError::Host {
        what: format!("connecting to the {}", target.words()),
        fix: "Use a server that follows the protocol".into(),
        source,
    })?;
    let notices = notices(&target, &export);
    let (spec, timeout) = (target.spec.clone(), target.timeout);
    let shared = Shared::new(target, export, first, notices);
    Ok(with_timeout(&spec, Nbd(Arc::new(shared)), Vec::new(), timeout))
}

/// Returns the notices of a fresh device.
fn notices(target: &Target, export: &Export) -> Vec<String> {
    let mut notices = Vec::new();
    let mut note = |text: String| notices.push(format!("{}: {text}", target.words()));
    let writable = !target.read_only && !export.has(tflag::READ_ONLY);
    if writable && !export.has(tflag::SEND_FLUSH) {
        note(
            "it offers no flush: a write that has ended counts as durable, and the server alone knows whether it is. A \
             flush fails when the connection was lost after a write"
                .into(),
        );
    }
    let block = u64::from(export.min_block.max(512));
    if target.wish() == Wish::Allow && !export.secure {
        note("it offers no TLS: what is read and written can be seen and changed on the way".into());
    }
    if !export.size.is_multiple_of(block) {
        note(format!("of its {} bytes the last {} are no whole block and not used", export.size, export.size % block));
    }
    notices
}

impl Nbd {
    /// Returns a connection for queries of block status, and true if it is the first one. Returns the cause as text if
    /// there is none.
    fn control(&self) -> Result<(Control, bool), String> {
        let shared = &self.0;
        if let Some(control) = shared.take_control() {
            return Ok(control);
        }
        let (control, export) = Control::connect(&shared.target, shared.wish()).map_err(|error| error.to_string())?;
        match shared.differs(&export) {
            Some(why) => Err(why),
            None => Ok((control, false)),
        }
    }
}

impl SafeDriver for Nbd {
    fn limits(&self) -> Limits {
        let export = &self.0.export;
        let block = export.min_block.max(512);
        let sectors = |bytes: u32| (bytes - bytes % block) / 512;
        let most = export.max_payload.min(MAX_BYTES);
        Limits::default()
            .logical_block(block)
            .physical_block(export.preferred_block.max(block))
            .max_sectors(sectors(most))
            .max_segments(conn::MAX_PIECES as u16)
            .max_discard_sectors(if export.has(tflag::SEND_TRIM) { sectors(MAX_DISCARD_BYTES) } else { 0 })
            .max_write_zeroes_sectors(if export.has(tflag::SEND_WRITE_ZEROES) { sectors(MAX_ZEROES_BYTES) } else { 0 })
            .queue_depth(DEPTH)
    }

    fn capabilities(&self) -> Capabilities {
        let export = &self.0.export;
        Capabilities::default()
            .fua(export.has(tflag::SEND_FUA))
            // Also without flush: FUA goes to the server, and losses are reported by flushes that fail.
            .volatile_cache(export.has(tflag::SEND_FLUSH) || !self.0.read_only())
            .discard(export.has(tflag::SEND_TRIM))
            .write_zeroes(export.has(tflag::SEND_WRITE_ZEROES))
            .read_only(self.0.read_only())
            .flush_per_ring(true) // S3 of `shared`.
            // Records of TLS are made and opened on the ring's thread.
            .asynchronous(self.0.target.tls.is_none())
    }

    fn size_bytes(&self) -> u64 {
        let block = u64::from(self.0.export.min_block.max(512));
        self.0.export.size - self.0.export.size % block
    }

    fn kernel(&self) -> Option<KernelUse> {
        Some(KernelUse::new(queue::operations(self.0.target.connections)))
    }

    fn open_queue(&self, open: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        match self.0.join() {
            Ok(seen) => Ok(Box::new(NbdQueue::new(open, self.0.clone(), seen))),
            Err(_) => Err(DeviceError::Driver(
                format!(
                    "{}: a second ring wants a connection, and the server does not say that a flush on one covers \
                     what was written by the other. Let it offer multi-conn (nbdkit does by itself for most plugins, \
                     qemu-nbd with --shared=8), open it with readonly=on, or, if you know that it is so, with \
                     multi_conn=assume",
                    self.0.target.words()
                )
                .into(),
            )),
        }
    }

    /// Queries the metadata context `base:allocation`. If the server lacks it, returns no extents, so that everything
    /// is read.
    fn extents(&self, from: u64) -> Result<Vec<Extent>, DeviceError> {
        let (shared, mut extents) = (&self.0, Vec::new());
        let words = shared.target.words();
        if !shared.target.block_status {
            return Ok(extents);
        }
        if shared.export.allocation.is_none() {
            shared.notice(format!("{words}: it does not tell where its data is, so all of it is read"));
            return Ok(extents);
        }
        let mut why = String::new();
        // Twice, because the idle connection may have been lost since it was made.
        for _ in 0..2 {
            let (mut control, is_first) = match self.control() {
                Ok(control) => control,
                Err(cannot) => {
                    why = cannot;
                    break;
                }
            };
            let end = self.size_bytes();
            match control.extents((from.min(end), end), shared.target.timeout, &mut extents) {
                Ok(()) => {
                    shared.give_control(control, is_first);
                    return Ok(extents);
                }
                Err(Fault::Lie(how)) => {
                    let text = format!(
                        "{words}: it tells wrongly where its data is: {how}. Use a server that follows the protocol, \
                         or read all of it by block_status=off"
                    );
                    return Err(DeviceError::Driver(text.into()));
                }
                Err(Fault::Refused(errno)) => {
                    why = format!("it says: error {errno}");
                    shared.give_control(control, is_first);
                    break;
                }
                Err(Fault::Lost(how)) => why = how,
            }
            if !extents.is_empty() {
                return Ok(extents);
            }
        }
        shared.notice(format!("{words}: it cannot be asked where its data is, so what follows is read: {why}"));
        Ok(extents)
    }

    fn notices(&self) -> Vec<String> {
        self.0.notices()
    }
}
