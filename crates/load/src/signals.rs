//! Ctrl-C, SIGTERM and SIGHUP as a flag that long work looks at, or as an end that a server waits for.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::error::LoadError;

/// What Ctrl-C, SIGTERM and SIGHUP do, once somebody has asked for a flag.
struct Stop {
    flag: Arc<AtomicBool>,
    /// How many have asked for the flag and still look at it.
    heard_by: usize,
    /// Nobody does: a signal ends the process, as it does without a handler.
    unheard: Arc<AtomicBool>,
}

/// One for the process, for handlers stay until its end.
static STOP: Mutex<Option<Stop>> = Mutex::new(None);

/// A flag that Ctrl-C, SIGTERM or SIGHUP sets; the second Ctrl-C ends the process at once. All who ask get the same
/// one.
pub fn stop_flag() -> Result<Arc<AtomicBool>, LoadError> {
    let mut stop = STOP.lock().unwrap_or_else(PoisonError::into_inner);
    let stop = match &mut *stop {
        Some(stop) => stop,
        none => none.insert(Stop::catch()?),
    };
    stop.heard_by += 1;
    // Relaxed, here and below: a flag, that carries nothing but itself.
    stop.unheard.store(false, Ordering::Relaxed);
    Ok(Arc::clone(&stop.flag))
}

/// One of those who asked for the flag looks at it no more. When none does, these signals end the process.
pub fn stop_unheard() {
    if let Some(stop) = &mut *STOP.lock().unwrap_or_else(PoisonError::into_inner) {
        stop.heard_by -= 1;
        stop.unheard.store(stop.heard_by == 0, Ordering::Relaxed);
    }
}

impl Stop {
    fn catch() -> Result<Stop, LoadError> {
        let [flag, unheard] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let stop = Stop { flag, heard_by: 0, unheard };
        #[cfg(not(sheave_mesi))]
        // The simulation of cache lines has atomics of its own; there a signal ends the process.
        {
            use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
            use signal_hook::flag;
            // nohup(1) has it ignored, for work that is to outlive its terminal.
            let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
            for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
                // In this order: the first signal finds the flag unset, then sets it. A terminal that goes sends SIGHUP
                // twice, itself and by the shell: the second one ends nothing at once.
                flag::register_conditional_default(signal, Arc::clone(&stop.unheard))
                    .and_then(|id| match signal {
                        SIGHUP => Ok(id),
                        _ => flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop.flag)),
                    })
                    .and_then(|_| flag::register(signal, Arc::clone(&stop.flag)))
                    .map_err(|err| LoadError::run(format!("cannot catch signal {signal}: {err}")))?;
            }
        }
        Ok(stop)
    }
}

/// Whether the process was started with this signal ignored; not, as far as is known, where there is no /proc.
#[cfg(not(sheave_mesi))]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 != 0
}

/// Makes writes beyond the largest file that the process may have (`ulimit -f`) fail with EFBIG, where SIGXFSZ would
/// end the process in the middle of its I/O. A program that is started from here has the signal as ever.
pub fn survive_file_size_limit() {
    #[cfg(not(sheave_mesi))] // as above
    {
        // A handler that does nothing, for the kernel gives the error when the signal does not end the process. Without
        // one all goes on as before.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
    }
}

/// Why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Ctrl-C or SIGTERM.
    Signal,
    /// [`Other::tell`] was called.
    Other,
}

/// Waits for Ctrl-C, SIGTERM, or something else; asleep, not by looking.
#[derive(Debug)]
pub struct Ender {
    wait: UnixStream,
    tell: UnixStream,
}

/// Tells an [`Ender`] of another end.
#[derive(Debug)]
pub struct Other(UnixStream);

/// Hears SIGHUP.
#[derive(Debug)]
pub struct Hangups(UnixStream);

/// Hears each SIGHUP from now on.
pub fn hangups() -> Result<Hangups, LoadError> {
    let failed = |err| LoadError::run(format!("cannot catch signals: {err}"));
    let (wait, tell) = UnixStream::pair().map_err(failed)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGHUP, tell).map_err(failed)?;
    Ok(Hangups(wait))
}

impl Hangups {
    /// Waits for the next SIGHUP: true. False when the other end of this socket is closed.
    pub fn wait(&mut self, end: &UnixStream) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            let mut polled = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
            if poll(&mut polled, None).is_err() {
                // A signal, such as the one that is waited for.
                continue;
            }
            if !polled[1].revents().is_empty() {
                return false;
            }
            let mut bytes = [0; 16];
            return matches!(self.0.read(&mut bytes), Ok(1..));
        }
    }
}

/// What [`Other`] writes; signals write another byte.
const OTHER: u8 = b'o';

impl Ender {
    /// One that hears the signals from now on.
    pub fn new() -> Result<Ender, LoadError> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let failed = |err| LoadError::run(format!("cannot catch signals: {err}"));
        let (wait, tell) = UnixStream::pair().map_err(failed)?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, tell.try_clone().map_err(failed)?).map_err(failed)?;
        }
        Ok(Ender { wait, tell })
    }

    /// Waits for the next end.
    pub fn wait(&self) -> std::io::Result<End> {
        let mut byte = [0];
        (&self.wait).read_exact(&mut byte)?;
        Ok(if byte[0] == OTHER { End::Other } else { End::Signal })
    }

    /// Something that can tell of another end.
    pub fn other(&self) -> std::io::Result<Other> {
        Ok(Other(self.tell.try_clone()?))
    }
}

impl Other {
    /// Ends the wait, or the next one.
    pub fn tell(mut self) {
        // Who waits holds the other half; nobody there is nobody to tell.
        let _ = self.0.write_all(&[OTHER]);
    }
}
