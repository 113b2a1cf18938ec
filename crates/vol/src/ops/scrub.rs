//! Scrubs: read a pool through while it is in use, to find rotten blocks before they are needed.
//!
//! | module | holds |
//! |---|---|
//! | [`report`] | options, progress and result of a scrub |
//! | [`pace`] | the rate, and the clock that it is measured by |
//! | `fixed` | superblocks, their copies, labels, the live blocks of the journal |
//! | `trees` | pages: volume table, maps, checksums |
//! | `data` | the written blocks of all volumes |
//!
//! Owns the order and the bookkeeping. Everything is read without a lock, at an address that was looked up a moment
//! before. So a block that looks wrong is read again, while nothing can change, before it is reported.
//!
//! - S1: a finding in metadata is reported only if it is there while commits are held off. A finding in data is
//!   reported only if neither the place of the block in the map nor the writes to the block have changed between two
//!   looks.
//! - S2: commits are held off for [`AT_ONCE`] blocks at most, and only for blocks that look wrong. The state lock is
//!   held only to copy a few words. Writers do not wait for a scrub.
//! - S3: everything that exists from the beginning of a scrub to its end is read. Newer blocks may be left out.
//!
//! Called by [`Pool::scrub`](crate::Pool::scrub).

mod data;
mod fixed;
pub mod pace;
pub mod report;
mod trees;

use std::ops::ControlFlow;

use sheave_base::beside::Activity;
use sheave_base::status::Status;

use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::finding::{Finding, FindingKind, Place};
use crate::format::BLOCK_BYTES;
use crate::format::BLOCK_SHIFT;
use crate::format::settings::Checksum;
use crate::format::superblock::Superblock;
use pace::Pace;
pub use pace::{RealClock, ScrubClock};
pub use report::{ScrubOptions, ScrubPhase, ScrubProgress, ScrubReport};

/// Largest number of blocks that are looked at again under one hold of the commits.
const AT_ONCE: usize = 32;

/// Reason why a scrub ends early.
enum Stop {
    Cancelled,
    Failed(PoolError),
}

impl From<Status> for Stop {
    fn from(status: Status) -> Stop {
        Stop::Failed(PoolError::Io {
            what: "scrubbing the pool".into(),
            status,
            fix: "Give the program more memory, or a smaller rate".into(),
        })
    }
}

/// A scrub in progress.
struct Run<'a> {
    pool: &'a PoolInner,
    options: &'a ScrubOptions,
    pace: Pace,
    phase: ScrubPhase,
    total: u64,
    done: u64,
    report: ScrubReport,
    progress: &'a mut dyn FnMut(&ScrubProgress<'_>) -> ControlFlow<()>,
}

/// Reads the pool through.
pub(crate) fn scrub(
    pool: &PoolInner,
    options: &ScrubOptions,
    progress: &mut dyn FnMut(&ScrubProgress<'_>) -> ControlFlow<()>,
) -> Result<ScrubReport, PoolError> {
    let (total, checksum) = {
        let state = pool.lock();
        let fixed = 2 + state.sb.copy_units().count() as u64 + state.sb.members.len() as u64 - 1;
        let metadata = fixed + state.tree.pages.copies() * state.tree.pages.used();
        let journal = state.durable_seq.saturating_sub(state.sb.replay_seq);
        let units = state.tree.units.counts().data;
        // Blocks that several leaves share are read once: there are no more than the data units hold.
        let blocks = state.tree.leaves.total_written().min(units << (pool.map.geometry.unit_shift - BLOCK_SHIFT));
        ((metadata + journal + blocks) * BLOCK_BYTES, state.sb.checksum)
    };
    let _running = pool.beside.begin(Activity::Scrub);
    let report = ScrubReport { checksum, ..ScrubReport::default() };
    let pace = Pace::new(options.bytes_per_sec, options.clock.clone());
    let phase = ScrubPhase::Metadata;
    let mut run = Run { pool, options, pace, phase, total, done: 0, report, progress };
    match run.all() {
        Ok(()) => run.report.completed = true,
        Err(Stop::Cancelled) => {}
        Err(Stop::Failed(error)) => return Err(error),
    }
    Ok(run.report)
}

impl Run<'_> {
    fn all(&mut self) -> Result<(), Stop> {
        self.tell()?;
        self.fixed()?;
        self.trees()?;
        self.damaged_maps();
        self.phase = ScrubPhase::Data;
        self.data()?;
        // The total was an estimate. A scrub that has reached the end has read all of it.
        self.total = self.done;
        self.tell()
    }

    /// Reports the pages of maps that were damaged or unreadable when the pool was opened, even if they can be read
    /// now: nothing below them was read.
    fn damaged_maps(&mut self) {
        let damaged = self.pool.lock().table.damaged();
        for (volume, damage) in damaged {
            let told = |found: &Finding| found.place.address == Some(damage.at);
            if self.report.findings.iter().any(told) {
                continue;
            }
            let range = Some(damage.range);
            self.found(Finding {
                kind: FindingKind::MapPage,
                place: Place { volume: Some(volume), range, ..place("page of a map", damage.at) },
                means: format!("{}. Where the volume's data of this range lies was not known since", damage.why),
                repair: Some("Check the pool offline: if the page can be read now, opening it again is enough".into()),
            });
        }
    }

    /// Reports the progress. Fails with `Cancelled` if the caller breaks off.
    fn tell(&mut self) -> Result<(), Stop> {
        let progress = ScrubProgress {
            phase: self.phase,
            done_bytes: self.done,
            total_bytes: self.total.max(self.done),
            found: self.report.found,
            findings: &self.report.findings,
        };
        match (self.progress)(&progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Stop::Cancelled),
        }
    }

    /// Waits until the rate permits the next piece.
    fn wait(&mut self) -> Result<(), Stop> {
        while let Some(nap) = self.pace.wait() {
            self.options.clock.sleep(nap);
            self.tell()?;
        }
        Ok(())
    }

    /// Counts blocks of metadata that were read.
    fn read_metadata(&mut self, blocks: usize) -> Result<(), Stop> {
        let bytes = blocks as u64 * BLOCK_BYTES;
        self.pace.pay(bytes);
        self.report.metadata_bytes += bytes;
        self.done += bytes;
        self.tell()
    }

    /// Adds a finding. If it continues the last finding, extends that one instead.
    fn found(&mut self, finding: Finding) {
        if let Some(last) = self.report.findings.last_mut()
            && continues(last, &finding)
            && let (Some((_, len)), Some((_, more))) = (&mut last.place.range, finding.place.range)
        {
            *len += more;
            return;
        }
        self.report.found += 1;
        if self.report.findings.len() < self.options.max_findings {
            self.report.findings.push(finding);
        }
    }

    /// Returns the superblock in memory. Fails if the last checkpoint could not be written: the device may have another
    /// superblock then.
    fn superblock(&self) -> Result<Superblock, Stop> {
        let state = self.pool.lock();
        if state.next.plan().is_some() {
            return Err(Stop::Failed(PoolError::Io {
                what: "scrubbing: the last checkpoint could not be written, so what the device has is not known".into(),
                status: Status::IoErr,
                fix: "See to the device and sync the pool, which writes it again; then scrub".into(),
            }));
        }
        Ok(state.sb.clone())
    }
}

/// Returns true if `next`, a finding in data, continues `last` in the volume and on the device.
fn continues(last: &Finding, next: &Finding) -> bool {
    let (a, b) = (&last.place, &next.place);
    let (Some((pos, len)), Some((next_pos, _))) = (a.range, b.range) else { return false };
    let follows = a.address.map(|address| address + len) == b.address && pos + len == next_pos;
    last.kind == next.kind && last.means == next.means && a.what == b.what && a.volume == b.volume && follows
}

/// Returns a place without a volume.
fn place(what: impl Into<String>, address: u64) -> Place {
    Place { what: what.into(), address: Some(address), ..Place::default() }
}

impl ScrubReport {
    /// Returns true if the pool has checksums, by which data could be verified.
    pub fn verified_data(&self) -> bool {
        self.checksum != Checksum::None
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
