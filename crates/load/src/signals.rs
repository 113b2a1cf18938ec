//! Ctrl-C and SIGTERM as a flag that long work looks at.

use std::sync::Arc;

use sheave::base::sync::atomic::AtomicBool;

use crate::error::LoadError;

/// A flag that Ctrl-C or SIGTERM sets; the second Ctrl-C ends the process at once.
pub fn stop_flag() -> Result<Arc<AtomicBool>, LoadError> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag unset, then sets it.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|err| LoadError::run(format!("cannot catch signal {signal}: {err}")))?;
    }
    Ok(stop)
}
