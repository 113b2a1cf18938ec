//! Scrubs: reading a pool through while it is in use, to find what has rotted before somebody needs it.
//!
//! | module | holds |
//! |---|---|
//! | [`report`] | what a scrub is asked, and what it tells |
//! | [`pace`] | the rate, and the clock it is kept by |
//! | `fixed` | superblocks, their copies, labels, the live blocks of the journal |
//! | `trees` | pages: volume table, maps, checksums |
//! | `data` | the written blocks of all volumes |
//!
//! Owns the order and the bookkeeping. Everything is read without a lock, as it was found a moment ago; so whatever
//! looks wrong is looked at again where nothing can change under it, and only then told.
//!
//! - S1: a finding is told only when it was there with commits held off (metadata), or between two looks at the map
//!   and at the writes to the block that saw nothing change (data).
//! - S2: commits are held off for [`AT_ONCE`] blocks at most, and only for blocks that look wrong; the state lock is
//!   taken for a few words. Writers do not wait for a scrub.
//! - S3: what was there when the scrub began and is there when it ends is looked at. What came since may not be.
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

/// Blocks that are looked at again under one hold of the commits.
const AT_ONCE: usize = 32;

/// Why a scrub ends before its end.
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

/// A scrub on its way.
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
        // What several leaves have is read once: no more than there are units.
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
        self.total = self.done;
        self.tell()
    }

    /// Pages of maps that were damaged when the pool was opened, or could not be read then: what was behind them is not
    /// looked at, so they are told, even if they can be read now.
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

    /// Says how far it is; hears whether to go on.
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

    /// Waits until the next piece may be read.
    fn wait(&mut self) -> Result<(), Stop> {
        while let Some(nap) = self.pace.wait() {
            self.options.clock.sleep(nap);
            self.tell()?;
        }
        Ok(())
    }

    /// So many bytes of metadata were read.
    fn read_metadata(&mut self, blocks: usize) -> Result<(), Stop> {
        let bytes = blocks as u64 * BLOCK_BYTES;
        self.pace.pay(bytes);
        self.report.metadata_bytes += bytes;
        self.done += bytes;
        self.tell()
    }

    /// Takes a finding; one that continues the last makes that longer.
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

    /// The superblock as it is, and whether what is on the device can be told from it.
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

/// Whether a finding in data goes on where another ends, in the volume and on the device.
fn continues(last: &Finding, next: &Finding) -> bool {
    let (a, b) = (&last.place, &next.place);
    let (Some((pos, len)), Some((next_pos, _))) = (a.range, b.range) else { return false };
    let follows = a.address.map(|address| address + len) == b.address && pos + len == next_pos;
    last.kind == next.kind && last.means == next.means && a.what == b.what && a.volume == b.volume && follows
}

/// A place without a volume.
fn place(what: impl Into<String>, address: u64) -> Place {
    Place { what: what.into(), address: Some(address), ..Place::default() }
}

impl ScrubReport {
    /// Whether data could be verified at all.
    pub fn verified_data(&self) -> bool {
        self.checksum != Checksum::None
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
