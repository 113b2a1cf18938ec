//! The thread of a device: it opens the image, makes the calls to librbd that block, and closes the image.
//!
//! Owns the order of these steps. Opening and claiming wait for the keeper no longer than the spec allows (R2). The
//! keeper completes what it has begun, and undoes it if nobody waits for it any more.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheave::drivers::Params;
use sheave::{Device, DeviceError};

use crate::desk::{Desk, Order, Refused};
use crate::device::{self, Rbd};
use crate::fence::{self, Before};
use crate::librbd::{self, Api, Cluster, Image};
use crate::shared::Shared;
use crate::spec::Target;

struct Opened {
    image: Arc<Image>,
    /// Size read after the watch began. A change since then makes the keeper read it again.
    size: u64,
    lockable: bool,
}

pub(crate) fn open(params: &mut Params<'_>) -> Result<Device, DeviceError> {
    let target = Target::read(params)?;
    let api = librbd::api()?;
    let desk = Arc::new(Desk::new(&target));
    // A channel without room, so that a result that nobody waits for any more fails to be sent, and is undone.
    let (opened, opens) = sync_channel(0);
    let (alive, keeper) = sync_channel(0);
    let (for_keeper, desk_of_keeper) = (target.clone(), desk.clone());
    let started = std::thread::Builder::new().name("sheave-rbd".into()).spawn(move || {
        // Dropped with this thread, whose end `Shared::drop` waits for.
        let _alive: SyncSender<()> = alive;
        match open_image(api, &for_keeper, &desk_of_keeper) {
            Ok(image) => {
                let (image_of_keeper, size) = (image.image.clone(), image.size);
                if opened.send(Ok(image)).is_ok() {
                    keep(&image_of_keeper, size, &for_keeper, &desk_of_keeper);
                }
                drop(image_of_keeper); // R3
            }
            Err(error) => _ = opened.send(Err(error)),
        }
    });
    started.map_err(|source| DeviceError::Host {
        what: format!("starting the thread of the {}", target.words()),
        fix: "Raise the limit of processes (ulimit -u)".into(),
        source,
    })?;
    let Opened { image, size, lockable } = match opens.recv_timeout(target.connect) {
        Ok(opened) => opened?,
        Err(RecvTimeoutError::Timeout) => {
            return Err(host(
                format!("opening the {} within {:?}", target.words(), target.connect),
                "The cluster does not answer: `ceph -s` shows what it does; connect= waits longer",
                libc::ETIMEDOUT,
            ));
        }
        Err(RecvTimeoutError::Disconnected) => {
            return Err(DeviceError::Driver(format!("{}: its thread has ended", target.words()).into()));
        }
    };
    let zeroes = api.zeroes();
    let shared = Shared { target, desk, size, zeroes, lockable, image: Some(image), keeper: Mutex::new(keeper) };
    Ok(device::device(Rbd::new(Arc::new(shared))))
}

fn host(what: String, fix: impl Into<String>, errno: i32) -> DeviceError {
    DeviceError::Host { what, fix: fix.into(), source: io::Error::from_raw_os_error(errno) }
}

/// Connects, and opens the image. Blocks for as long as librados does.
fn open_image(api: &'static Api, target: &Target, desk: &Arc<Desk>) -> Result<Opened, DeviceError> {
    let words = target.words();
    let failed = |what: &str, fix: String| {
        let what = format!("{what} the {words}");
        move |errno| host(what, fix, errno)
    };
    let cluster =
        Cluster::new(api, &target.id).map_err(failed("preparing a connection for", "Is the user right?".into()))?;
    configure(&cluster, target)?;
    cluster.connect().map_err(|errno| failed("connecting to the cluster of", connect_fix(target, errno))(errno))?;
    let pool = cluster.pool(&target.pool, &target.namespace);
    let pool = pool.map_err(|errno| failed("opening the pool of", pool_fix(target, errno))(errno))?;
    let image = pool.image(&target.image, target.is_read_only());
    let mut image = image.map_err(|errno| failed("opening", image_fix(target, errno))(errno))?;
    if let Some(snapshot) = &target.snapshot {
        let fix = format!("`rbd snap ls {}/{}` lists its snapshots", target.pool, target.image);
        image.set_snapshot(snapshot).map_err(failed("opening the snapshot of", fix))?;
    }
    if !target.is_read_only() {
        // Before the size is read, so that no change is missed.
        image.watch(desk.clone()).map_err(failed("watching", "Do the user's rights allow it?".into()))?;
    }
    let size = image.size().map_err(failed("reading the size of", String::new()))?;
    let lockable = image.has_exclusive_lock().map_err(failed("reading the features of", String::new()))?;
    Ok(Opened { image: Arc::new(image), size, lockable })
}

/// Sets the configuration that librados needs before it connects.
fn configure(cluster: &Cluster, target: &Target) -> Result<(), DeviceError> {
    let conf = target.conf.as_deref();
    cluster.read_conf(conf).map_err(|errno| match conf {
        Some(path) => host(
            format!("reading Ceph's configuration {path} for the {}", target.words()),
            "Check the path, its permissions and its text",
            errno,
        ),
        None => host(
            format!("reading Ceph's configuration for the {}", target.words()),
            "There is none where librados looks (/etc/ceph/ceph.conf, ~/.ceph/config, ./ceph.conf): name one by \
             conf=PATH, or by CEPH_CONF",
            errno,
        ),
    })?;
    let seconds = |time: Duration| time.as_secs_f64().ceil().to_string();
    let timeout = seconds(target.timeout);
    // Without these limits a request might never end, and no wait could be bounded (R5).
    let mut keys = vec![
        ("client_mount_timeout", seconds(target.connect)),
        ("rados_mon_op_timeout", timeout.clone()),
        ("rados_osd_op_timeout", timeout),
    ];
    keys.extend(target.keyring.iter().map(|path| ("keyring", path.clone())));
    // Makes librbd fence before it breaks a lock. The image and its pool may override that; see `fence`.
    keys.push(("rbd_blocklist_on_break_lock", "true".into()));
    for (key, value) in keys {
        let set = cluster.set(key, &value);
        // Releases before Pacific call the blocklist by its older name.
        let set = set.or_else(|_| cluster.set(&key.replace("blocklist", "blacklist"), &value));
        set.map_err(|errno| {
            host(format!("setting {key}={value} for the {}", target.words()), "Does this Ceph know that key?", errno)
        })?;
    }
    Ok(())
}

fn connect_fix(target: &Target, errno: i32) -> String {
    let id = &target.id;
    match errno {
        libc::ENOENT => format!(
            "There is no key of client.{id}: name a keyring that has one by keyring=PATH, or another user by id="
        ),
        libc::EACCES | libc::EPERM => format!(
            "The cluster refuses the key of client.{id}: `ceph auth get client.{id}` shows the right one, keyring= \
             names the file that has it"
        ),
        libc::ETIMEDOUT => "No monitor answers: check `mon host` in Ceph's configuration and the network; connect= \
                            waits longer"
            .into(),
        _ => "`ceph -s` with the same configuration and user tells more".into(),
    }
}

fn pool_fix(target: &Target, errno: i32) -> String {
    match errno {
        libc::ENOENT => format!("There is no pool '{}': `ceph osd pool ls` lists them", target.pool),
        _ => "`ceph -s` shows what the cluster does".into(),
    }
}

fn image_fix(target: &Target, errno: i32) -> String {
    let (id, pool) = (&target.id, &target.pool);
    match errno {
        libc::ENOENT => format!("There is no such image: `rbd ls {pool}` lists those that there are"),
        libc::EACCES | libc::EPERM => {
            format!(
                "client.{id} may not: `ceph auth caps` gives it mon 'profile rbd' and osd 'profile rbd pool={pool}'"
            )
        }
        libc::ESHUTDOWN => "This client is on the cluster's blocklist: `ceph osd blocklist ls` shows until when".into(),
        _ => "`rbd info` with the same configuration and user tells more".into(),
    }
}

/// Executes orders until the image is to be closed. `size` is the size with which the device was opened.
fn keep(image: &Image, mut size: u64, target: &Target, desk: &Desk) {
    // A claim exists now; a claim has existed.
    let (mut has_lock_now, mut had_lock) = (false, false);
    loop {
        match desk.next() {
            Order::Close => return,
            Order::Lock(answer) => {
                let locked = lock(image, target, desk);
                let has = locked.is_ok();
                had_lock |= has;
                has_lock_now = has;
                if answer.send(locked).is_err() && has {
                    // The claim has timed out.
                    has_lock_now = false;
                    _ = image.unlock();
                }
            }
            Order::Unlock(_done) => {
                has_lock_now = false;
                if let Err(errno) = image.unlock() {
                    desk.tell(format_args!("its exclusive lock was not released: {}", sheave::Errno(errno)));
                }
            }
            // Without a claim there is no lock to lose.
            Order::Owns(answer) if !has_lock_now => _ = answer.send(Ok(())),
            Order::Owns(answer) => {
                // A broken lock is lost even while no other client has it: the next one gets it without asking this
                // client.
                let owns = image.owns_lock();
                _ = answer.send(owns.and_then(|owns| if owns { Ok(()) } else { Err(libc::EROFS) }));
            }
            Order::Look(answer) => _ = answer.send(look(image, desk)),
            Order::Size => sized(image.size(), &mut size, desk),
            Order::Holder => match image.other_owner() {
                // librbd takes the lock for a write by itself, until it was told to take it; from then on only when
                // told.
                Ok(None) if had_lock => desk.tell(
                    "writes are refused: a claim of this device has ended, and it writes only under another. Claim it, \
                     or open it again",
                ),
                owner => desk.tell(format_args!(
                    "writes are refused, for {}. Have it close the image, then open the device again",
                    has_lock(owner.ok().flatten())
                )),
            },
        }
    }
}

/// Compares the size that was read with the known one, and reports a change.
fn sized(read: Result<u64, i32>, known: &mut u64, desk: &Desk) {
    match read {
        Ok(now) if now != *known => {
            desk.resized(*known, now);
            *known = now;
        }
        Ok(_) => {}
        Err(libc::ENOENT) => desk.tell("the image was removed"),
        Err(errno) => desk.tell(format_args!("its size could not be read: {}", sheave::Errno(errno))),
    }
}

/// Takes the exclusive lock, after ensuring that the previous owner cannot write any more.
fn lock(image: &Image, target: &Target, desk: &Desk) -> Result<(), Refused> {
    let before = Before::ready(image, desk)?;
    let locked = image.lock();
    if let (Err(_), Some(before)) = (&locked, &before) {
        before.has_kept(image, image.other_owner().ok().flatten().as_deref());
    }
    match locked {
        Ok(()) => {
            let fenced = before.map_or(Ok(()), |before| {
                before.fence(image, desk)?;
                fence::unmark(image);
                Ok(())
            });
            // librbd's cache may be older than the previous owner's last writes.
            let fresh =
                |()| image.forget_cached().map_err(|errno| format!("its cache stays: {}", sheave::Errno(errno)));
            fenced.and_then(fresh).inspect_err(|_| {
                // The claim fails anyway, and has its reason.
                _ = image.unlock();
            })
        }
        Err(libc::EROFS | libc::EBUSY | libc::EAGAIN) => Err(has_lock(image.other_owner().ok().flatten())),
        Err(errno) => Err(format!("{} has no exclusive lock of it: {}", target.id, sheave::Errno(errno))),
    }
}

/// Checks that no other client has the lock. The lock of a dead client stays until another client takes it, and is only
/// reported.
fn look(image: &Image, desk: &Desk) -> Result<(), Refused> {
    let read = || {
        let Some(address) = image.locker()? else { return Ok(None) };
        let is_heard_of = !image.watches_of(&address)?.is_empty();
        Ok(Some((address, is_heard_of)))
    };
    match read() {
        Ok(None) => Ok(()),
        Ok(Some((address, true))) => Err(has_lock(Some(address))),
        Ok(Some((address, false))) => {
            desk.tell(format_args!(
                "the client at {address}, which has its exclusive lock, is not heard of any more. Nothing keeps that \
                 client from writing should it come back, and who only reads cannot fence it: read from a snapshot \
                 where that matters"
            ));
            Ok(())
        }
        Err(errno) => Err(format!("who has its lock could not be read: {}", sheave::Errno(errno))),
    }
}

fn has_lock(owner: Option<String>) -> String {
    match owner {
        Some(address) => format!("the client at {address} has its exclusive lock"),
        None => "another client has its exclusive lock, or has had it".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::sized;
    use crate::desk::tests::desk;

    #[test]
    fn a_size_is_told_that_differs_from_the_one_that_the_device_was_opened_with() {
        let (desk, mut known) = (desk(), 16 << 20);
        sized(Ok(16 << 20), &mut known, &desk);
        assert!(desk.notices().is_empty(), "{:?}", desk.notices());
        for _ in 0..2 {
            sized(Ok(24 << 20), &mut known, &desk);
            assert_eq!(known, 24 << 20);
        }
        let told = desk.notices();
        assert!(told.len() == 1 && told[0].ends_with("resized from 16777216 to 25165824 bytes"), "{told:?}");
        sized(Err(libc::ENOENT), &mut known, &desk);
        sized(Ok(24 << 20), &mut known, &desk);
        assert_eq!(known, 24 << 20, "what could not be read says nothing of it");
        assert_eq!(desk.notices().len(), 2, "{:?}", desk.notices());
    }
}
