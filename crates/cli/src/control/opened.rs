//! A pool that a command opened itself or that a daemon holds, with the same operations for both.

use serde::Deserialize;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_daemon::api::types as t;
use sheave_daemon::delete::delete_all;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::{Access, PoolPlace};
use sheave_daemon::shapes::extent::ExtentJson;
use sheave_daemon::shapes::pool::PoolJson;
use sheave_daemon::shapes::volume::VolumeJson;
use sheave_daemon::together;
use sheave_vol::{LowWater, Pool, PoolError};

use super::remote::{Holder, holder, look_elsewhere, named, not_all_of_it, not_while_served, refused_by};
use crate::output;
use crate::patience;
use crate::progress::Progress;

/// An open pool.
pub struct Opened {
    place: PoolPlace,
    by: By,
}

/// The process that has the pool open.
pub enum By {
    Us(Pool),
    Them(Holder),
}

#[derive(Deserialize)]
struct OneVolume {
    volume: VolumeJson,
}

#[derive(Deserialize)]
struct Volumes {
    volumes: Vec<VolumeJson>,
}

#[derive(Deserialize)]
struct Info {
    info: PoolJson,
}

#[derive(Deserialize)]
struct Extents {
    extents: Vec<ExtentJson>,
    next_bytes: Option<u64>,
}

impl Opened {
    /// Opens a pool, or finds the daemon that holds it. In the second case prints a note.
    pub fn open(place: &PoolPlace, access: Access) -> Result<Opened, Failure> {
        const RESCUE: &str = "a rescue reads a pool that nobody has open";
        if let Some(holder) = named(place)? {
            return match access {
                Access::Rescue => Err(refused_by(&holder, place, RESCUE, "")),
                _ => Ok(Opened::by_them(place, holder)),
            };
        }
        place.expect_pool()?;
        let mut whole = place.clone();
        let by = patience::until_free(|| match place.whole().and_then(|found| Ok((found.open_now(access)?, found))) {
            Ok((pool, found)) => {
                whole = found;
                Ok(By::Us(pool))
            }
            // The pool may be held by a daemon that knows a member which was not found here.
            Err(why) if access != Access::Rescue => {
                holder(place).map(By::Them).ok_or_else(|| look_elsewhere(not_all_of_it(place, why)))
            }
            Err(why) => Err(why),
        })
        .map_err(|busy| match access {
            Access::Rescue => not_while_served(place, RESCUE, "", busy),
            _ => busy,
        })?;
        match by {
            By::Them(holder) => Ok(Opened::by_them(place, holder)),
            By::Us(_) => Ok(Opened { place: whole, by }),
        }
    }

    /// Returns the pool that a daemon holds, and prints a note for the user.
    fn by_them(place: &PoolPlace, holder: Holder) -> Opened {
        output::note(format_args!("sheave: {place} is served: asking {}\n", holder.remote.describe()));
        holder.remote.be_patient();
        Opened { place: place.clone(), by: By::Them(holder) }
    }

    /// Returns the pool if a daemon holds it now.
    pub fn held(place: &PoolPlace) -> Result<Option<Opened>, Failure> {
        if let Some(holder) = named(place)? {
            return Ok(Some(Opened::by_them(place, holder)));
        }
        place.expect_pool()?;
        Ok(holder(place).map(|holder| Opened::by_them(place, holder)))
    }

    pub fn by(&self) -> &By {
        &self.by
    }

    pub fn place(&self) -> &PoolPlace {
        &self.place
    }

    /// Closes the pool if it was opened here.
    pub fn close(self) -> Result<(), Failure> {
        match self.by {
            By::Us(pool) => pool.close().map_err(failure::pool),
            By::Them(_) => Ok(()),
        }
    }

    /// Makes a change: calls `here` if the pool is open in this process, otherwise `method` of the daemon, whose reply
    /// has the volume.
    fn change<P: serde::Serialize>(
        &self,
        name: &str,
        here: impl FnOnce(&Pool) -> Result<(), PoolError>,
        method: &str,
        there: impl FnOnce(String) -> P,
    ) -> Result<VolumeJson, Failure> {
        match &self.by {
            By::Us(pool) => {
                here(pool).map_err(failure::pool)?;
                self.volume(name)
            }
            By::Them(Holder { remote, pool }) => {
                let reply: OneVolume = remote.call(method, &there(pool.clone()))?;
                Ok(reply.volume.named(&self.place))
            }
        }
    }

    /// Returns properties and usage of the pool.
    pub fn info(&self) -> Result<PoolJson, Failure> {
        match &self.by {
            By::Us(pool) => Ok(PoolJson::new(&self.place, &pool.info())),
            By::Them(Holder { remote, pool }) => {
                let reply: Info = remote.call("GetPoolInfo", &t::OfPool { pool: pool.clone() })?;
                Ok(PoolJson { pool: self.place.to_string(), ..reply.info })
            }
        }
    }

    /// Sets the low-water mark, switches discard, or acknowledges a loss of data.
    pub fn set(
        &self,
        low_water: Option<LowWater>,
        discard: Option<bool>,
        acknowledge_loss: bool,
    ) -> Result<PoolJson, Failure> {
        match &self.by {
            By::Us(pool) => {
                if acknowledge_loss {
                    pool.acknowledge_loss().map_err(failure::pool)?;
                }
                low_water.map_or(Ok(()), |mark| pool.set_low_water(mark)).map_err(failure::pool)?;
                discard.map_or(Ok(()), |on| pool.set_discard(on)).map_err(failure::pool)?;
                self.info()
            }
            By::Them(Holder { remote, pool }) => {
                let low_water = low_water.map(|mark| mark.to_string());
                let acknowledge_loss = Some(acknowledge_loss);
                let set = t::SetPool { pool: pool.clone(), low_water, discard, acknowledge_loss };
                let reply: Info = remote.call("SetPool", &set)?;
                Ok(PoolJson { pool: self.place.to_string(), ..reply.info })
            }
        }
    }

    /// Returns descriptions of the damage that was ignored when the pool was opened for a rescue.
    pub fn unsure(&self) -> Vec<String> {
        match &self.by {
            By::Us(pool) => pool.info().unsure,
            By::Them(_) => Vec::new(),
        }
    }

    pub fn volumes(&self) -> Result<Vec<VolumeJson>, Failure> {
        match &self.by {
            By::Us(pool) => Ok(pool.volumes().iter().map(|info| VolumeJson::new(&self.place, info)).collect()),
            By::Them(Holder { remote, pool }) => {
                let reply: Volumes = remote.call("ListVolumes", &t::OfPool { pool: pool.clone() })?;
                Ok(reply.volumes.into_iter().map(|volume| volume.named(&self.place)).collect())
            }
        }
    }

    /// Returns one volume or snapshot.
    pub fn volume(&self, name: &str) -> Result<VolumeJson, Failure> {
        match &self.by {
            By::Us(pool) => Ok(VolumeJson::new(&self.place, &pool.volume_info(name).map_err(failure::pool)?)),
            By::Them(Holder { remote, pool }) => {
                let reply: OneVolume =
                    remote.call("GetVolume", &t::OfVolume { pool: pool.clone(), volume: name.into() })?;
                Ok(reply.volume.named(&self.place))
            }
        }
    }

    /// Creates a volume.
    pub fn create(&self, name: &str, size_bytes: u64, max_size_bytes: Option<u64>) -> Result<VolumeJson, Failure> {
        let here = |pool: &Pool| match max_size_bytes {
            Some(most) => pool.create_growing_volume(name, size_bytes, most).map(drop),
            None => pool.create_volume(name, size_bytes).map(drop),
        };
        let there = |pool| t::Create { pool, volume: name.into(), size_bytes, max_size_bytes };
        self.change(name, here, "CreateVolume", there)
    }

    /// Changes the size of a volume. `here` is called if the pool is open in this process.
    pub fn resize(
        &self,
        name: &str,
        (size_bytes, max_size_bytes): (Option<u64>, Option<u64>),
        force: bool,
        here: impl FnOnce(&Pool) -> Result<(), PoolError>,
    ) -> Result<VolumeJson, Failure> {
        let there = |pool| t::Resize { pool, volume: name.into(), size_bytes, max_size_bytes, force: Some(force) };
        self.change(name, here, "ResizeVolume", there)
    }

    pub fn rename(&self, name: &str, new: &str) -> Result<VolumeJson, Failure> {
        let there = |pool| t::Named { pool, volume: name.into(), name: new.into() };
        self.change(new, |pool| pool.rename(name, new), "RenameVolume", there)
    }

    /// Creates a snapshot.
    pub fn snapshot(&self, name: &str, new: &str) -> Result<VolumeJson, Failure> {
        let there = |pool| t::Named { pool, volume: name.into(), name: new.into() };
        self.change(new, |pool| pool.snapshot(name, new), "CreateSnapshot", there)
    }

    /// Creates snapshots of several volumes at the same moment, each called `VOLUME@at`.
    pub fn snapshot_together(&self, volumes: &[String], at: &str) -> Result<Vec<VolumeJson>, Failure> {
        match &self.by {
            By::Us(pool) => {
                let names = together::snapshot_all(pool, volumes, at)?;
                names.iter().map(|name| self.volume(name)).collect()
            }
            By::Them(Holder { remote, pool }) => {
                together::names(volumes, at)?;
                let wanted = t::Together { pool: pool.clone(), volumes: volumes.to_vec(), at: at.into() };
                let reply: Volumes = remote.call("CreateSnapshots", &wanted)?;
                Ok(reply.volumes.into_iter().map(|volume| volume.named(&self.place)).collect())
            }
        }
    }

    /// Creates a writable copy.
    pub fn clone_volume(&self, name: &str, new: &str) -> Result<VolumeJson, Failure> {
        let there = |pool| t::Named { pool, volume: name.into(), name: new.into() };
        self.change(new, |pool| pool.clone_volume(name, new), "CloneVolume", there)
    }

    /// Resets a volume to a snapshot.
    pub fn rollback(&self, name: &str, snapshot: &str, force: bool) -> Result<VolumeJson, Failure> {
        let there = |pool| t::Rollback { pool, volume: name.into(), snapshot: snapshot.into(), force: Some(force) };
        self.change(name, |pool| pool.rollback(name, snapshot), "RollbackVolume", there)
    }

    /// Deletes volumes. Returns the number of bytes freed.
    pub fn delete(&self, names: &[&str], force: bool) -> Result<u64, Failure> {
        match &self.by {
            By::Us(pool) => delete_all(pool, names, |_| {}),
            By::Them(Holder { remote, pool }) => {
                let volumes = names.iter().map(ToString::to_string).collect();
                let freed: t::Freed =
                    remote.call("DeleteVolumes", &t::Delete { pool: pool.clone(), volumes, force: Some(force) })?;
                Ok(freed.freed_bytes)
            }
        }
    }

    /// Returns the ranges in which a volume of `size` bytes differs from another one.
    pub fn changes(
        &self,
        name: &str,
        since: &str,
        size: u64,
        progress: &mut Progress,
        stop: &AtomicBool,
    ) -> Result<Vec<ExtentJson>, Failure> {
        let ended = || Failure::interrupted("the comparison was ended");
        // Relaxed, both: the flag carries nothing but itself.
        match &self.by {
            By::Us(pool) => {
                let open = |name: &str| pool.open_volume(name).map_err(failure::pool);
                let told = open(name)?.differences_since(&open(since)?, 0, u64::MAX, &mut |upto| {
                    progress.reach(upto, None);
                    !stop.load(Ordering::Relaxed)
                });
                let told = told.map_err(failure::pool)?;
                if stop.load(Ordering::Relaxed) {
                    return Err(ended());
                }
                Ok(told.extents.iter().map(ExtentJson::new).collect())
            }
            By::Them(Holder { remote, pool }) => pages(0, size, |offset_bytes, length_bytes| {
                if stop.load(Ordering::Relaxed) {
                    return Err(ended());
                }
                progress.reach(offset_bytes, None);
                let (volume, since) = (name.to_owned(), since.to_owned());
                let compare = t::Compare { pool: pool.clone(), volume, since, offset_bytes, length_bytes };
                remote.call("CompareVolumes", &compare)
            }),
        }
    }

    /// Returns the extents of a range of a volume.
    pub fn map(&self, name: &str, offset: u64, len: u64) -> Result<Vec<ExtentJson>, Failure> {
        match &self.by {
            By::Us(pool) => {
                let volume = pool.open_volume(name).map_err(failure::pool)?;
                let extents = volume.extents(offset, len).map_err(failure::pool)?;
                Ok(extents.iter().map(ExtentJson::new).collect())
            }
            By::Them(Holder { remote, pool }) => pages(offset, len, |offset_bytes, length_bytes| {
                let map = t::Map { pool: pool.clone(), volume: name.into(), offset_bytes, length_bytes };
                remote.call("MapVolume", &map)
            }),
        }
    }
}

/// Collects extents that a daemon returns in several replies.
fn pages(
    offset: u64,
    len: u64,
    mut ask: impl FnMut(u64, u64) -> Result<Extents, Failure>,
) -> Result<Vec<ExtentJson>, Failure> {
    let mut all: Vec<ExtentJson> = Vec::new();
    let mut next = Some(offset);
    while let Some(at) = next {
        let reply = ask(at, (offset + len).saturating_sub(at))?;
        reply.extents.into_iter().for_each(|extent| ExtentJson::add(&mut all, extent));
        next = reply.next_bytes.filter(|next| *next > at);
    }
    Ok(all)
}
