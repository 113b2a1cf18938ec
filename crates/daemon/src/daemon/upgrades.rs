//! The part of a daemon that upgrades begin with: whether it can be upgraded, and that one upgrade at a time takes
//! place and no change through the control socket beside it.
//!
//! Does not own the upgrade itself, which the main thread does ([`upgrade`](crate::upgrade)).

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use sheave_load::signals::Ender;

use super::locked;
use crate::captive;
use crate::failure::Failure;

/// How a daemon was started: only one with a configuration can be started again like that.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) config: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// The part of a daemon that upgrades begin with.
#[derive(Default)]
pub(crate) struct Upgrades {
    start: Option<(Start, Arc<Ender>)>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The connection to the new process, until the main thread takes it.
    asked: Option<UnixStream>,
    /// True from the moment at which an upgrade was asked for until it has failed.
    begun: bool,
    /// Calls of the control socket that change or copy something, by method.
    under_way: BTreeMap<String, usize>,
}

/// A call that changes or copies something. No upgrade begins before its end.
pub(crate) struct UnderWay<'a>(&'a Upgrades, String);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = locked(&self.0.state);
        if let Some(many) = state.under_way.get_mut(&self.1) {
            *many -= 1;
        }
        state.under_way.retain(|_, many| *many > 0);
    }
}

impl Upgrades {
    /// The part of a daemon that was started so. `ender` is what its main thread waits for.
    pub(crate) fn of(start: Start, ender: Arc<Ender>) -> Upgrades {
        Upgrades { start: Some((start, ender)), state: Mutex::default() }
    }

    /// Called at the begin of a call that changes or copies something. Fails while an upgrade takes place.
    pub(crate) fn begins(&self, method: &str) -> Result<UnderWay<'_>, Failure> {
        let mut state = locked(&self.state);
        if state.begun {
            return Err(Failure::busy("the daemon is being upgraded").fix("try again in a moment"));
        }
        *state.under_way.entry(method.to_owned()).or_default() += 1;
        Ok(UnderWay(self, method.to_owned()))
    }

    /// Begins an upgrade: the main thread gets the connection to the new process.
    pub(crate) fn ask(&self, socket: UnixStream) -> Result<(), Failure> {
        let Some((_, ender)) = &self.start else { return Err(not_configured()) };
        let mut state = locked(&self.state);
        if state.begun {
            return Err(Failure::busy("another upgrade is under way").fix("wait until it has ended"));
        }
        if let Some(method) = state.under_way.keys().next() {
            return Err(Failure::busy(format!("{method} is under way")).fix("wait until it has ended, or end it"));
        }
        let other = ender.other().map_err(captive::ender_failed)?;
        (state.asked, state.begun) = (Some(socket), true);
        drop(state);
        other.tell();
        Ok(())
    }

    /// Returns how the daemon was started, if it can be started again like that.
    pub(crate) fn start(&self) -> Option<&Start> {
        self.start.as_ref().map(|(start, _)| start)
    }

    /// Returns the methods of calls under way that change or copy something.
    pub(crate) fn under_way(&self) -> Vec<String> {
        locked(&self.state).under_way.keys().cloned().collect()
    }

    /// Takes the connection to the new process.
    pub(crate) fn take(&self) -> Option<UnixStream> {
        locked(&self.state).asked.take()
    }

    /// Called when an upgrade has failed.
    pub(crate) fn failed(&self) {
        locked(&self.state).begun = false;
    }
}

/// Returns the failure for a daemon that was not started with a configuration.
pub(crate) fn not_configured() -> Failure {
    Failure::usage("this daemon serves one spec, which its command line names").fix("restart it")
}
