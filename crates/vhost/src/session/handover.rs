//! The state of a device as plain data, for the process that takes over the connection of the front-end.
//!
//! Owns [`LifeState`], and the checks of a [`Life`] that comes from another process: the same ones that the messages of
//! a front-end pass. Does not own the transfer of the descriptors. Called by the owner of the connection, which stops
//! the queues before ([`Session::stopped_at`]).
//!
//! Invariant N4: [`Session::restored`] returns only sessions that the messages of a front-end can lead to.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Life, MAX_QUEUES, Offer, Session, Setup};
use crate::memory::{GuestMemory, RegionSpec};
use crate::{Broken, inflight, queue, trusted};

/// [`Life`] with numbers in place of descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeState {
    pub features: u64,
    pub protocol_features: u64,
    pub status: u8,
    pub writeback: bool,
    pub regions: Vec<(RegionSpec, u32)>,
    pub queues: Vec<SetupState>,
    pub inflight: Option<(inflight::Shape, u32)>,
    pub backend: Option<u32>,
}

/// [`Setup`] with numbers in place of descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetupState {
    pub size: u16,
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
    pub base: u16,
    pub kick: Option<u32>,
    pub call: Option<u32>,
    pub err: Option<u32>,
    pub enabled: bool,
    pub started: bool,
}

impl Life {
    /// Returns the state as plain data. `fd` returns the number under which the other process finds a descriptor.
    pub fn pack(&self, fd: &mut dyn FnMut(&Arc<OwnedFd>) -> u32) -> LifeState {
        LifeState {
            features: self.features,
            protocol_features: self.protocol_features,
            status: self.status,
            writeback: self.writeback,
            regions: self.regions.iter().map(|(spec, file)| (*spec, fd(file))).collect(),
            queues: self.queues.iter().map(|setup| setup.pack(fd)).collect(),
            inflight: self.inflight.as_ref().map(|(shape, file)| (*shape, fd(file))),
            backend: self.backend.as_ref().map(fd),
        }
    }
}

impl Setup {
    fn pack(&self, fd: &mut dyn FnMut(&Arc<OwnedFd>) -> u32) -> SetupState {
        let &Setup { size, descriptors, available, used, base, enabled, started, .. } = self;
        let [kick, call, err] = [&self.kick, &self.call, &self.err].map(|held| held.as_ref().map(&mut *fd));
        SetupState { size, descriptors, available, used, base, kick, call, err, enabled, started }
    }
}

impl LifeState {
    /// Returns the state with descriptors. `fd` returns the descriptor that has a number, if there is one. Nothing else
    /// is checked here: see [`Session::restored`].
    pub fn unpack(&self, fd: &mut dyn FnMut(u32) -> Option<Arc<OwnedFd>>) -> Result<Life, Broken> {
        let mut fd = |number| fd(number).ok_or(Broken::State("it names a descriptor that is not there"));
        let regions = self.regions.iter().map(|(spec, file)| Ok((*spec, fd(*file)?))).collect::<Result<_, _>>()?;
        let queues = self.queues.iter().map(|setup| setup.unpack(&mut fd)).collect::<Result<_, _>>()?;
        let inflight = match self.inflight {
            Some((shape, file)) => Some((shape, fd(file)?)),
            None => None,
        };
        let backend = self.backend.map(fd).transpose()?;
        let &LifeState { features, protocol_features, status, writeback, .. } = self;
        Ok(Life { features, protocol_features, status, writeback, regions, queues, inflight, backend })
    }
}

impl SetupState {
    fn unpack(&self, fd: &mut dyn FnMut(u32) -> Result<Arc<OwnedFd>, Broken>) -> Result<Setup, Broken> {
        let SetupState { size, descriptors, available, used, base, kick, call, err, enabled, started } = *self;
        let mut held = |number: Option<u32>| number.map(&mut *fd).transpose();
        let (kick, call, err) = (held(kick)?, held(call)?, held(err)?);
        Ok(Setup { size, descriptors, available, used, base, kick, call, err, enabled, started })
    }
}

impl Session {
    /// Continues the session of another process. The caller makes a [`crate::Queue`] of each started queue, as after
    /// [`super::Todo::Start`]. Fails if no messages of a front-end can lead to this state (N4).
    pub fn restored(mut offer: Offer, mut life: Life) -> Result<Session, Broken> {
        offer.queues = offer.queues.clamp(1, MAX_QUEUES);
        offer.check_features(life.features)?;
        offer.check_protocol_features(life.protocol_features)?;
        if life.queues.len() != usize::from(offer.queues) {
            return Err(Broken::State("it has another number of queues than the device"));
        }
        for (queue, setup) in (0..).zip(&life.queues) {
            check_queue(queue, setup)?;
        }
        if let Some(backend) = &life.backend {
            trusted::channel(backend)?;
        }
        let area = match life.inflight.take() {
            Some((inflight::Shape { queues, queue_size, .. }, _)) if queues > offer.queues => {
                return Err(Broken::InflightShape { queues, size: queue_size });
            }
            Some((shape, file)) => Some(inflight::Area::map(file, shape)?),
            None => None,
        };
        life.inflight = area.as_ref().map(|area| (area.shape(), area.file().clone()));
        let memory = GuestMemory::default().replaced(std::mem::take(&mut life.regions))?;
        let mut session = Session { offer, life, memory: Arc::default(), area };
        session.set_memory(memory);
        Ok(session)
    }

    /// Records the index at which a started queue has stopped for a handover: that of the next entry of the avail ring
    /// that the next process takes. The queue stays started.
    pub fn stopped_at(&mut self, queue: u16, last_avail: u16) {
        if let Some(setup) = self.life.queues.get_mut(usize::from(queue)).filter(|setup| setup.started) {
            setup.base = last_avail;
        }
    }
}

fn check_queue(queue: u16, setup: &Setup) -> Result<(), Broken> {
    let size = u32::from(setup.size);
    if size != 0 && !queue::is_size(size) {
        return Err(Broken::QueueSize { size });
    }
    match (&setup.kick, setup.started) {
        (None, true) => return Err(Broken::NoKick { queue }),
        (Some(_), false) => return Err(Broken::State("a queue that is not started has a kick descriptor")),
        (Some(_), true) if size == 0 => return Err(Broken::NotSetUp { queue }),
        _ => {}
    }
    [&setup.kick, &setup.call, &setup.err].into_iter().flatten().try_for_each(|fd| trusted::eventfd(fd))
}

#[cfg(test)]
mod tests;
