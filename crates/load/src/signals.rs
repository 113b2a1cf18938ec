//! Ctrl-C, SIGTERM and SIGHUP as a flag that long work polls, or as an event that a server waits for.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use sheave_base::sync::atomic::{AtomicBool, Ordering};

use crate::error::LoadError;

/// Handler of Ctrl-C, SIGTERM and SIGHUP, made by the first call of [`stop_flag`].
struct Stop {
    flag: Arc<AtomicBool>,
    /// Number of users that poll the flag.
    heard_by: usize,
    /// True if no user polls the flag. Then a signal ends the process, like without a handler.
    unheard: Arc<AtomicBool>,
}

/// There is one per process, because handlers stay until its end.
static STOP: Mutex<Option<Stop>> = Mutex::new(None);

/// Returns a flag that Ctrl-C, SIGTERM or SIGHUP sets. The second Ctrl-C ends the process at once. All callers share
/// one flag.
pub fn stop_flag() -> Result<Arc<AtomicBool>, LoadError> {
    let mut stop = STOP.lock().unwrap_or_else(PoisonError::into_inner);
    let stop = match &mut *stop {
        Some(stop) => stop,
        none => none.insert(Stop::catch()?),
    };
    stop.heard_by += 1;
    // Relaxed, here and below: the flag carries no other data.
    stop.unheard.store(false, Ordering::Relaxed);
    Ok(Arc::clone(&stop.flag))
}

/// Called by a user that no longer polls the flag. After the last user has called it, the signals end the process
/// again.
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
        // In the simulation of cache lines, atomics are replaced by types that signal-hook cannot set. There a signal
        // ends the process.
        {
            use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
            use signal_hook::flag;
            // nohup(1) starts the process with SIGHUP ignored, for work that must outlive its terminal. Then it stays
            // ignored.
            let hangup = (!is_ignored(SIGHUP)).then_some(SIGHUP);
            for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
                // Registered in this order, so that the first signal finds the flag unset and then sets it. A closing
                // terminal sends SIGHUP twice, itself and through the shell, so a second SIGHUP must not end the
                // process.
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

/// Returns true if the process was started with this signal ignored, and false if that cannot be read from /proc.
#[cfg(not(sheave_mesi))]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 != 0
}

/// Makes writes beyond the largest permitted file size (`ulimit -f`) fail with EFBIG, because SIGXFSZ would end the
/// process in the middle of its I/O. Child processes have the default handling of the signal.
pub fn survive_file_size_limit() {
    #[cfg(not(sheave_mesi))] // as above
    {
        // An empty handler is enough: the kernel returns the error if the signal does not end the process. If
        // registering fails, nothing changes.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
    }
}

/// The reason why a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Ctrl-C or SIGTERM.
    Signal,
    /// [`Other::tell`] was called.
    Other,
}

/// Waits for Ctrl-C, SIGTERM or [`Other::tell`]. Waiting sleeps and does not poll.
#[derive(Debug)]
pub struct Ender {
    wait: UnixStream,
    tell: UnixStream,
}

/// Ends the wait of an [`Ender`].
#[derive(Debug)]
pub struct Other(UnixStream);

/// Receiver of SIGHUP.
#[derive(Debug)]
pub struct Hangups(UnixStream);

/// Catches each SIGHUP from now on.
pub fn hangups() -> Result<Hangups, LoadError> {
    let failed = |err| LoadError::run(format!("cannot catch signals: {err}"));
    let (wait, tell) = UnixStream::pair().map_err(failed)?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGHUP, tell).map_err(failed)?;
    Ok(Hangups(wait))
}

/// Returns true if a byte waits in a socket.
fn has_byte(socket: &UnixStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|many| many > 0)
}

impl Hangups {
    /// Returns true if a SIGHUP has come that nobody has waited for.
    pub fn has_come(&self) -> bool {
        has_byte(&self.0)
    }

    /// Waits for the next SIGHUP and returns true. Returns false if the other end of the socket `end` was closed.
    pub fn wait(&self, end: &UnixStream) -> bool {
        use rustix::event::{PollFd, PollFlags, poll};
        loop {
            let mut polled = [PollFd::new(&self.0, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
            if poll(&mut polled, None).is_err() {
                // A signal has interrupted the poll, possibly the expected one. The next poll finds it.
                continue;
            }
            if !polled[1].revents().is_empty() {
                return false;
            }
            let mut bytes = [0; 16];
            return matches!((&self.0).read(&mut bytes), Ok(1..));
        }
    }
}

/// Byte that [`Other`] writes; signals write another one.
const OTHER: u8 = b'o';

impl Ender {
    /// Catches Ctrl-C and SIGTERM from now on.
    pub fn new() -> Result<Ender, LoadError> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let failed = |err| LoadError::run(format!("cannot catch signals: {err}"));
        let (wait, tell) = UnixStream::pair().map_err(failed)?;
        for signal in [SIGINT, SIGTERM] {
            signal_hook::low_level::pipe::register(signal, tell.try_clone().map_err(failed)?).map_err(failed)?;
        }
        Ok(Ender { wait, tell })
    }

    /// Waits for a signal or for a call of [`Other::tell`], and returns which of them came.
    pub fn wait(&self) -> std::io::Result<End> {
        let mut byte = [0];
        (&self.wait).read_exact(&mut byte)?;
        Ok(if byte[0] == OTHER { End::Other } else { End::Signal })
    }

    /// Returns true if the next wait would end at once.
    pub fn is_told(&self) -> bool {
        has_byte(&self.wait)
    }

    /// Returns a handle that can end the wait.
    pub fn other(&self) -> std::io::Result<Other> {
        Ok(Other(self.tell.try_clone()?))
    }
}

impl Other {
    /// Ends the current wait, or the next one.
    pub fn tell(mut self) {
        // The write fails only if the [`Ender`], which holds the other end, is gone.
        let _ = self.0.write_all(&[OTHER]);
    }
}
