//! Control methods that run long and report their progress (import, export, scrub, trim), and `WatchPool`.
//!
//! Each method stops early when its caller disconnects, because nobody would receive the result.

use std::fs::File;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheave_varlink::{Call, Failed};
use sheave_vol::ScrubOptions;
use sheave_vol::rbd_diff::Version;

use crate::api::types as t;
use crate::copy::sink::Sink;
use crate::copy::source::Source;
use crate::copy::{self, Meter, export, export_diff, import, import_diff};
use crate::daemon::Held;
use crate::failure::{self, Failure};
use crate::place::VolumePlace;
use crate::service::{Control, Reply, volume_json};
use crate::shapes::report::ScrubJson;
use crate::value;

/// Interval between progress reports.
const TICK: Duration = Duration::from_millis(250);
/// Interval at which a watch checks that its caller is still connected.
const LOOK: Duration = Duration::from_millis(500);

/// Bytes copied so far, shared with the thread that reports the progress.
#[derive(Debug, Default)]
struct Told {
    done: AtomicU64,
}

impl Told {
    fn done(&self) -> u64 {
        // Relaxed: a number for display.
        self.done.load(Ordering::Relaxed)
    }
}

impl Meter for &Told {
    fn advance(&mut self, bytes: u64) {
        // Relaxed: as in `Told::done`.
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Reports progress to the caller, at most once in [`TICK`].
struct Teller<'a, 'b> {
    call: &'a Call<'b>,
    next: Instant,
}

impl<'a, 'b> Teller<'a, 'b> {
    fn new(call: &'a Call<'b>) -> Self {
        Self { call, next: Instant::now() }
    }

    /// Returns false when the caller has disconnected.
    fn tell(&mut self, done_bytes: u64, total_bytes: Option<u64>) -> bool {
        if Instant::now() < self.next {
            return true;
        }
        self.next = Instant::now() + TICK;
        self.call.progress(&json!({ "progress": t::Progress { done_bytes, total_bytes } })).is_ok()
    }
}

/// Runs `copy`. A thread beside it reports its progress, and stops it when the caller disconnects or the pool is lost:
/// the copy itself may be blocked on a pipe.
fn beside<T>(
    held: &Held,
    call: &Call<'_>,
    total_bytes: Option<u64>,
    copy: impl FnOnce(Arc<Told>, &Arc<AtomicBool>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let teller = call.teller().map_err(|error| Failure::run(format!("cannot tell the progress: {error}")))?;
    let (told, stop, ended) = (Arc::new(Told::default()), Arc::new(AtomicBool::new(false)), AtomicBool::new(false));
    let tell = || {
        // Relaxed: the flags carry nothing but themselves.
        while !ended.load(Ordering::Relaxed) {
            let progress = t::Progress { done_bytes: told.done(), total_bytes };
            if teller.progress(&json!({ "progress": progress })).is_err() || held.is_lost() {
                // Relaxed: as above.
                return stop.store(true, Ordering::Relaxed);
            }
            std::thread::park_timeout(TICK);
        }
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(tell);
        let copied = copy(told.clone(), &stop);
        // Relaxed: as above; the scope waits for the thread.
        ended.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        copied
    })
}

impl Control {
    /// `WatchPool`.
    pub(super) fn watch(&self, call: &Call<'_>) -> Reply {
        let of: t::OfPool = call.parameters()?;
        if !call.wants_more() {
            return Err(Failed::expected_more().into());
        }
        let held = self.daemon.held(&of.pool)?;
        let info = held.pool()?.info();
        let mut watch = held.pool()?.watch();
        drop(held);
        call.progress(&json!({
            "state": info.state.name(),
            "metadata_low": info.metadata_low,
            "free_bytes": info.free_bytes,
            "low_water_bytes": info.low_water_bytes,
        }))?;
        loop {
            let notice = watch.wait(LOOK);
            if notice.is_none() && watch.is_closed() {
                return Err(Failure::run(format!("the pool '{}' was closed", of.pool)).into());
            }
            if call.is_gone() {
                return Err(sheave_varlink::CallError::Gone(std::io::ErrorKind::BrokenPipe.into()));
            }
            if let Some(notice) = notice {
                call.progress(&json!({
                    "state": notice.state.name(),
                    "metadata_low": notice.metadata_low,
                    "free_bytes": notice.free_bytes,
                    "low_water_bytes": notice.low_water_bytes,
                }))?;
            }
        }
    }

    /// `ScrubPool`.
    pub(super) fn scrub(&self, call: &Call<'_>) -> Reply {
        call.admin_only()?;
        let scrub: t::Scrub = call.parameters()?;
        let held = self.daemon.held(&scrub.pool)?;
        let options = ScrubOptions::default().bytes_per_sec(scrub.bytes_per_second);
        let mut teller = Teller::new(call);
        let report = held.pool()?.scrub(&options, &mut |at| {
            let goes_on = teller.tell(at.done_bytes, Some(at.total_bytes));
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let report = ScrubJson::new(&held.place(), &report.map_err(failure::pool)?);
        Ok(json!({ "report": report }))
    }

    /// `TrimPool`.
    pub(super) fn trim(&self, call: &Call<'_>) -> Reply {
        call.admin_only()?;
        let of: t::OfPool = call.parameters()?;
        let held = self.daemon.held(&of.pool)?;
        let mut teller = Teller::new(call);
        let done = held.pool()?.trim(&mut |at| {
            let goes_on = teller.tell(at.done_bytes, Some(at.total_bytes));
            if goes_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        let done = done.map_err(failure::pool)?;
        let (trimmed, left) = (done.trimmed_bytes, done.left_bytes);
        Ok(json!({ "trimmed_bytes": trimmed, "left_bytes": left, "completed": done.completed }))
    }

    /// `ImportVolume`.
    pub(super) fn import(&self, call: &mut Call<'_>) -> Reply {
        call.admin_only()?;
        let wanted: t::Import = call.parameters()?;
        let file = File::from(call.take_fd()?);
        let t::Import { pool, volume, size_bytes, force, stream } = wanted;
        let held = self.daemon.held(&pool)?;
        let open = held.pool()?;
        let place = volume_place(&held, &volume)?;
        let wanted = import::Wanted { place: &place, size: size_bytes };
        // The command has asked its user already.
        let ask = &mut copy::agreed;
        let mut source = source(file, "the image", stream)?;
        let (total, exists) = (source.size(), open.volume_info(&volume).is_ok());
        let copied = beside(&held, call, total, |told, stop| {
            let meter = &mut &*told;
            if !exists {
                return import::into_pool(open, &wanted, exists, ask, &mut source, meter, stop);
            }
            self.daemon.change_alone(&pool, &[&volume], force.unwrap_or(false), |_, open| {
                import::into_pool(open, &wanted, exists, ask, &mut source, meter, stop)
            })
        })?;
        Ok(json!({
            "volume": volume_json(&held, open, &volume)?,
            "image_bytes": copied.image_bytes,
            "copied_bytes": copied.copied_bytes,
        }))
    }

    /// `ExportVolume`.
    pub(super) fn export(&self, call: &mut Call<'_>) -> Reply {
        // Reads a whole volume: costs the daemon time and disk bandwidth, so it is not for everybody who may look.
        call.admin_only()?;
        let of: t::Export = call.parameters()?;
        let file = File::from(call.take_fd()?);
        let held = self.daemon.held(&of.pool)?;
        let open = held.pool()?;
        let place = volume_place(&held, &of.volume)?;
        let size = open.volume_info(&of.volume).map_err(failure::pool)?.size_bytes;
        let sink = sink(file, "the image", size, of.stream)?;
        let copied = beside(&held, call, Some(size), |told, stop| {
            export::copy_to(open, &place, size, None, sink.stopped_by(stop), &mut &*told, stop)
        })?;
        let volume: Value = volume_json(&held, open, &of.volume)?;
        Ok(json!({ "volume": volume, "copied_bytes": copied.bytes }))
    }

    /// `ExportDiff`.
    pub(super) fn export_diff(&self, call: &mut Call<'_>) -> Reply {
        call.admin_only()?;
        let wanted: t::ExportDiff = call.parameters()?;
        let file = File::from(call.take_fd()?);
        let version = match wanted.format.as_deref() {
            None | Some("v2") => Version::V2,
            Some("v1") => Version::V1,
            Some(_) => return Err(Failed::parameter("format").into()),
        };
        let held = self.daemon.held(&wanted.pool)?;
        let open = held.pool()?;
        let place = volume_place(&held, &wanted.volume)?;
        let size = open.volume_info(&wanted.volume).map_err(failure::pool)?.size_bytes;
        let written = beside(&held, call, Some(size), |told, stop| {
            let sink = || Ok(sink(file, "the diff", 0, wanted.stream)?.stopped_by(stop));
            export_diff::write(open, &place, wanted.from.as_deref(), version, sink, &mut &*told, stop)
        })?;
        Ok(json!({
            "copied_bytes": written.copied_bytes,
            "zero_bytes": written.zero_bytes,
            "compared_bytes": written.compared_bytes,
        }))
    }

    /// `ImportDiff`.
    pub(super) fn import_diff(&self, call: &mut Call<'_>) -> Reply {
        call.admin_only()?;
        let t::ImportDiff { pool, volume, base, name, force, stream } = call.parameters()?;
        let file = File::from(call.take_fd()?);
        for name in [&base, &name].into_iter().flatten() {
            value::snapshot_name(name).map_err(|why| Failure::usage(format!("snapshot '{name}': {why}")))?;
        }
        let held = self.daemon.held(&pool)?;
        let place = volume_place(&held, &volume)?;
        let (base, name) = (base.as_deref(), name.as_deref());
        let wanted = import_diff::Wanted { file: "the diff", place: &place, base, name };
        let source = source(file, "the diff", stream)?;
        let total = source.size();
        let done = beside(&held, call, total, |told, stop| {
            let mut begun = import_diff::begin(&wanted, source, stop)?;
            let mut done = self.daemon.change_alone(&pool, &[&volume], force.unwrap_or(false), |_, open| {
                begun.into_pool(open, &wanted, &mut &*told)
            })?;
            // Without the pool's turn: the volume is already served again.
            begun.read_rest(&mut done, &mut &*told)?;
            Ok(done)
        })?;
        Ok(json!({
            "done": done.done,
            "from": done.from,
            "to": done.to,
            "format": done.format,
            "copied_bytes": done.copied_bytes,
            "zero_bytes": done.zero_bytes,
            "warnings": done.warnings,
        }))
    }
}

/// Wraps a file that the caller opened for reading.
fn source(file: File, name: &str, stream: Option<bool>) -> Result<Source, Failure> {
    if stream == Some(true) { Ok(Source::stream(file, name.into())) } else { Source::of(file, name.into()) }
}

/// Wraps a file that the caller opened for writing.
fn sink(file: File, name: &str, len: u64, stream: Option<bool>) -> Result<Sink, Failure> {
    if stream == Some(true) { Ok(Sink::stream(file, name.into())) } else { Sink::of(file, name.into(), len) }
}

/// Returns the place of `volume` in the pool, after checking that the name is valid.
fn volume_place(held: &Held, volume: &str) -> Result<VolumePlace, Failure> {
    let name = value::volume_name(volume).map_err(|why| Failure::usage(format!("volume: {why}")))?;
    Ok(VolumePlace { pool: held.place(), name })
}
