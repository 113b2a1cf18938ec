//! librados and librbd, loaded at run time, and wrapped so that calls in the wrong order do not compile.
//!
//! Owns the declarations, written from the documentation of the public interfaces, and three nested handles: a
//! connection to a cluster, a pool's context, an image. Does not own requests: the caller that submits I/O vouches for
//! its memory and for the argument of the callback.
//!
//! Invariants:
//! - L1: the libraries are never closed: their threads and destructors outlive every device.
//! - L2: an [`Image`] closes itself before its pool's context, and that before the connection.
//! - L3: all functions may be called from any thread, as librbd and librados promise. Those that communicate with the
//!   cluster block, except `rbd_aio_*`.
#![allow(unsafe_code)] // Calls C.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{null, null_mut};
use std::sync::{Arc, OnceLock};

use libloading::Library;
use sheave::{DeviceError, Op};
use sheave_base::panics::discard;

/// The callback of an I/O, with its completion and the argument given to [`Image::submit`].
pub(crate) type Ended = unsafe extern "C" fn(completion: *mut c_void, arg: *mut c_void);
/// The callback for a change of an image's header.
type Changed = unsafe extern "C" fn(arg: *mut c_void);

/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_LOCK_MODE_EXCLUSIVE`: the owner does not release the lock when another client requests it.
const LOCK_MODE_EXCLUSIVE: c_int = 0;
/// Size of the buffer for each text about an owner of an image's lock.
const LOCKER_BYTES: usize = 4096;

/// A client that watches an image: `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct WatcherOf {
    address: Bytes,
    id: i64,
    cookie: u64,
}

macro_rules! functions {
    ($librados:ident, $librbd:ident; $($lib:ident: $name:ident($($arg:ty),*) -> $ret:ty;)*) => {
        /// The functions of both libraries.
        pub(crate) struct Api {
            $($name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            /// Missing in releases before Octopus.
            rbd_aio_write_zeroes: Option<unsafe extern "C" fn(Ptr, u64, usize, Ptr, c_int, c_int) -> c_int>,
        }

        impl Api {
            fn of($librados: &Library, $librbd: &Library) -> Result<Api, libloading::Error> {
                // SAFETY: the types are those that the libraries document, and both stay open (L1).
                unsafe {
                    Ok(Api {
                        $($name: *$lib.get(stringify!($name))?,)*
                        rbd_aio_write_zeroes: $librbd.get("rbd_aio_write_zeroes").ok().map(|found| *found),
                    })
                }
            }
        }
    };
}

type Ptr = *mut c_void;
type Text = *const c_char;
type Bytes = *mut c_char;
type Vector = *const libc::iovec;
type Place = *mut Bytes;
type Len = *mut usize;

functions! {
    librados, librbd;
    librados: rados_create(*mut Ptr, Text) -> c_int;
    librados: rados_conf_read_file(Ptr, Text) -> c_int;
    librados: rados_conf_set(Ptr, Text, Text) -> c_int;
    librados: rados_connect(Ptr) -> c_int;
    librados: rados_wait_for_latest_osdmap(Ptr) -> c_int;
    librados: rados_mon_command(Ptr, *const Text, usize, Text, usize, Place, Len, Place, Len) -> c_int;
    librados: rados_buffer_free(Bytes) -> ();
    librados: rados_get_instance_id(Ptr) -> u64;
    librados: rados_shutdown(Ptr) -> ();
    librados: rados_ioctx_create(Ptr, Text, *mut Ptr) -> c_int;
    librados: rados_ioctx_set_namespace(Ptr, Text) -> ();
    librados: rados_ioctx_destroy(Ptr) -> ();
    librbd: rbd_open(Ptr, Text, *mut Ptr, Text) -> c_int;
    librbd: rbd_open_read_only(Ptr, Text, *mut Ptr, Text) -> c_int;
    librbd: rbd_close(Ptr) -> c_int;
    librbd: rbd_snap_set(Ptr, Text) -> c_int;
    librbd: rbd_get_size(Ptr, *mut u64) -> c_int;
    librbd: rbd_get_features(Ptr, *mut u64) -> c_int;
    librbd: rbd_update_watch(Ptr, *mut u64, Changed, Ptr) -> c_int;
    librbd: rbd_update_unwatch(Ptr, u64) -> c_int;
    librbd: rbd_lock_acquire(Ptr, c_int) -> c_int;
    librbd: rbd_lock_release(Ptr) -> c_int;
    librbd: rbd_is_exclusive_lock_owner(Ptr, *mut c_int) -> c_int;
    librbd: rbd_lock_get_owners(Ptr, *mut c_int, *mut Bytes, *mut usize) -> c_int;
    librbd: rbd_lock_get_owners_cleanup(*mut Bytes, usize) -> ();
    librbd: rbd_list_lockers(Ptr, *mut c_int, Bytes, Len, Bytes, Len, Bytes, Len, Bytes, Len) -> isize;
    librbd: rbd_get_id(Ptr, Bytes, usize) -> c_int;
    librbd: rbd_metadata_get(Ptr, Text, Bytes, Len) -> c_int;
    librbd: rbd_metadata_set(Ptr, Text, Text) -> c_int;
    librbd: rbd_metadata_remove(Ptr, Text) -> c_int;
    librbd: rbd_flush(Ptr) -> c_int;
    librbd: rbd_invalidate_cache(Ptr) -> c_int;
    librbd: rbd_watchers_list(Ptr, *mut WatcherOf, *mut usize) -> c_int;
    librbd: rbd_watchers_list_cleanup(*mut WatcherOf, usize) -> ();
    librbd: rbd_aio_create_completion(Ptr, Ended, *mut Ptr) -> c_int;
    librbd: rbd_aio_get_return_value(Ptr) -> isize;
    librbd: rbd_aio_release(Ptr) -> ();
    librbd: rbd_aio_read(Ptr, u64, usize, Bytes, Ptr) -> c_int;
    librbd: rbd_aio_readv(Ptr, Vector, c_int, u64, Ptr) -> c_int;
    librbd: rbd_aio_write(Ptr, u64, usize, Text, Ptr) -> c_int;
    librbd: rbd_aio_writev(Ptr, Vector, c_int, u64, Ptr) -> c_int;
    librbd: rbd_aio_discard(Ptr, u64, u64, Ptr) -> c_int;
    librbd: rbd_aio_flush(Ptr, Ptr) -> c_int;
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Api")
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// Returns the libraries. The first call loads them.
///
/// # Errors
///
/// Returns an error if a library is missing or lacks a function.
pub(crate) fn api() -> Result<&'static Api, DeviceError> {
    match API.get() {
        Some(api) => Ok(api),
        None => load("librados.so.2", "librbd.so.1").map(|api| API.get_or_init(|| api)),
    }
}

fn load(librados: &str, librbd: &str) -> Result<Api, DeviceError> {
    let failed = |name: &str, package: &str, error: libloading::Error| {
        // The source has the dynamic linker's own words.
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        let text = format!(
            "rbd: needs Ceph's library {name}, which cannot be used: {why}. Install the package that has it (on \
             Debian `apt-get install {package}`), or put its directory into LD_LIBRARY_PATH"
        );
        DeviceError::Driver(text.into())
    };
    // SAFETY: initializers of Ceph's libraries ask nothing of who opens them.
    let rados = unsafe { Library::new(librados) }.map_err(|error| failed(librados, "librados2", error))?;
    // SAFETY: as above.
    let rbd = unsafe { Library::new(librbd) }.map_err(|error| failed(librbd, "librbd1", error))?;
    let api = Api::of(&rados, &rbd).map_err(|error| failed(librbd, "librbd1 librados2", error))?;
    // L1.
    std::mem::forget((rados, rbd));
    Ok(api)
}

impl Api {
    /// Returns true if ranges can be zeroed without sending zeroes.
    pub(crate) fn zeroes(&self) -> bool {
        self.rbd_aio_write_zeroes.is_some()
    }
}

/// Converts a negative result into an errno.
fn check(result: c_int) -> Result<(), i32> {
    if result < 0 { Err(-result) } else { Ok(()) }
}

/// Converts a text for C. Callers have checked that it has no NUL.
fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// A connection to a cluster, or one that is being prepared.
pub(crate) struct Cluster {
    api: &'static Api,
    handle: Ptr,
}

// SAFETY: L3.
unsafe impl Send for Cluster {}
// SAFETY: L3.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Prepares a connection as the user `id`, which is a name without `client.`.
    pub(crate) fn new(api: &'static Api, id: &str) -> Result<Cluster, i32> {
        let (id, mut handle) = (text(id), null_mut());
        // SAFETY: both are valid for the call.
        check(unsafe { (api.rados_create)(&mut handle, id.as_ptr()) })?;
        Ok(Cluster { api, handle })
    }

    /// Reads the configuration file at `path`, or the first one at the usual paths of Ceph's tools.
    pub(crate) fn read_conf(&self, path: Option<&str>) -> Result<(), i32> {
        let path = path.map(text);
        // SAFETY: the handle is open, and the path, if any, valid for the call.
        check(unsafe {
            (self.api.rados_conf_read_file)(self.handle, path.as_ref().map_or(null(), |path| path.as_ptr()))
        })
    }

    pub(crate) fn set(&self, key: &str, value: &str) -> Result<(), i32> {
        let (key, value) = (text(key), text(value));
        // SAFETY: the handle is open, and the texts are valid for the call.
        check(unsafe { (self.api.rados_conf_set)(self.handle, key.as_ptr(), value.as_ptr()) })
    }

    pub(crate) fn connect(&self) -> Result<(), i32> {
        // SAFETY: the handle is open.
        check(unsafe { (self.api.rados_connect)(self.handle) })
    }

    /// Waits until this client has the cluster's newest map. Messages that it sends afterwards make the OSDs fetch that
    /// map too, and with it the blocklist.
    fn wait_for_latest_map(&self) -> Result<(), i32> {
        // SAFETY: the cluster is open.
        check(unsafe { (self.api.rados_wait_for_latest_osdmap)(self.handle) })
    }

    /// Returns the number of this client, which no other client of the cluster ever has.
    fn number(&self) -> u64 {
        // SAFETY: the cluster is open.
        unsafe { (self.api.rados_get_instance_id)(self.handle) }
    }

    /// Sends a command, in JSON, to a monitor, and returns the answer.
    fn ask_monitor(&self, command: &str) -> Result<String, i32> {
        let command = text(command);
        let (mut out, mut out_len, mut said, mut said_len) = (null_mut(), 0, null_mut(), 0);
        // SAFETY: the cluster is open, the command and the places for both answers are valid for the call, and there is
        // no further input.
        let result = check(unsafe {
            let command = command.as_ptr();
            (self.api.rados_mon_command)(
                self.handle,
                &command,
                1,
                c"".as_ptr(),
                0,
                &mut out,
                &mut out_len,
                &mut said,
                &mut said_len,
            )
        });
        let mut answer = String::new();
        if !out.is_null() {
            // SAFETY: librados has put `out_len` bytes there, which stay valid until they are freed below.
            answer = String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(out.cast(), out_len) }).into_owned();
        }
        for buffer in [out, said] {
            if !buffer.is_null() {
                // SAFETY: librados gave it, and it is given back once.
                unsafe { (self.api.rados_buffer_free)(buffer) };
            }
        }
        result.map(|()| answer)
    }

    /// Opens the context of a pool. The cluster must be connected.
    pub(crate) fn pool(self, name: &str, namespace: &str) -> Result<Pool, i32> {
        let (name, namespace, mut handle) = (text(name), text(namespace), null_mut());
        // SAFETY: the cluster is open, and the arguments are valid for the call.
        check(unsafe { (self.api.rados_ioctx_create)(self.handle, name.as_ptr(), &mut handle) })?;
        let pool = Pool { handle, cluster: self };
        // SAFETY: the context was made above, and the text is valid for the call.
        unsafe { (pool.cluster.api.rados_ioctx_set_namespace)(handle, namespace.as_ptr()) };
        Ok(pool)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: it is open, and what was opened in it is closed (L2).
        unsafe { (self.api.rados_shutdown)(self.handle) };
    }
}

pub(crate) struct Pool {
    handle: Ptr,
    cluster: Cluster,
}

// SAFETY: L3.
unsafe impl Send for Pool {}
// SAFETY: L3.
unsafe impl Sync for Pool {}

impl Pool {
    /// Opens an image. A read-only one is not watched, so changes of its size go unnoticed.
    pub(crate) fn image(self, name: &str, read_only: bool) -> Result<Image, i32> {
        let api = self.cluster.api;
        let (name, mut handle) = (text(name), null_mut());
        let open = if read_only { api.rbd_open_read_only } else { api.rbd_open };
        // SAFETY: the context is open, and the arguments are valid for the call; null is no snapshot.
        check(unsafe { open(self.handle, name.as_ptr(), &mut handle, null()) })?;
        Ok(Image { api, handle, watch: None, pool: self })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: it is open, and its image is closed (L2).
        unsafe { (self.cluster.api.rados_ioctx_destroy)(self.handle) };
    }
}

pub(crate) struct Image {
    api: &'static Api,
    handle: Ptr,
    watch: Option<(u64, Arc<dyn Watcher>)>,
    pool: Pool,
}

// SAFETY: L3.
unsafe impl Send for Image {}
// SAFETY: L3.
unsafe impl Sync for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({:p})", self.handle)
    }
}

impl Image {
    /// Selects the snapshot from which later reads are served.
    pub(crate) fn set_snapshot(&self, name: &str) -> Result<(), i32> {
        let name = text(name);
        // SAFETY: the image is open, and the text valid for the call.
        check(unsafe { (self.api.rbd_snap_set)(self.handle, name.as_ptr()) })
    }

    /// Returns the present size in bytes.
    pub(crate) fn size(&self) -> Result<u64, i32> {
        let mut size = 0;
        // SAFETY: the image is open, and the number valid for the call.
        check(unsafe { (self.api.rbd_get_size)(self.handle, &mut size) })?;
        Ok(size)
    }

    /// Returns true if the image has the feature exclusive-lock.
    pub(crate) fn has_exclusive_lock(&self) -> Result<bool, i32> {
        let mut features = 0;
        // SAFETY: the image is open, and the number valid for the call.
        check(unsafe { (self.api.rbd_get_features)(self.handle, &mut features) })?;
        Ok(features & EXCLUSIVE_LOCK != 0)
    }

    /// Calls `watcher`, on a thread of librbd's, when the image's header changes, until the image is closed.
    pub(crate) fn watch<W: Watcher>(&mut self, watcher: Arc<W>) -> Result<(), i32> {
        let (mut handle, arg) = (0, Arc::as_ptr(&watcher).cast_mut().cast());
        // SAFETY: the image is open, the number valid for the call, and `arg` until the image is closed, for the image
        // keeps the watcher and ends the watch before it goes.
        check(unsafe { (self.api.rbd_update_watch)(self.handle, &mut handle, changed::<W>, arg) })?;
        self.watch = Some((handle, watcher));
        Ok(())
    }

    /// Takes the exclusive lock, and does not release it when another client requests it.
    pub(crate) fn lock(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        check(unsafe { (self.api.rbd_lock_acquire)(self.handle, LOCK_MODE_EXCLUSIVE) })
    }

    /// Drops librbd's cache, if the configuration gives it one.
    pub(crate) fn forget_cached(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        check(unsafe { (self.api.rbd_flush)(self.handle) })?;
        // SAFETY: as above.
        check(unsafe { (self.api.rbd_invalidate_cache)(self.handle) })
    }

    /// Releases the exclusive lock.
    pub(crate) fn unlock(&self) -> Result<(), i32> {
        // SAFETY: the image is open.
        check(unsafe { (self.api.rbd_lock_release)(self.handle) })
    }

    /// Queries the cluster if this client has the exclusive lock.
    pub(crate) fn owns_lock(&self) -> Result<bool, i32> {
        let mut own = 0;
        // SAFETY: the image is open, and the number valid for the call.
        check(unsafe { (self.api.rbd_is_exclusive_lock_owner)(self.handle, &mut own) })?;
        Ok(own != 0)
    }

    /// Returns the address of another client that has the exclusive lock now, if one has.
    pub(crate) fn other_owner(&self) -> Result<Option<String>, i32> {
        if self.owns_lock()? {
            return Ok(None);
        }
        let (mut mode, mut owner, mut many) = (0, null_mut(), 1);
        // SAFETY: the image is open; there is room for one text, which is as many as may have an exclusive lock.
        match check(unsafe { (self.api.rbd_lock_get_owners)(self.handle, &mut mode, &mut owner, &mut many) }) {
            Err(libc::ENOENT) => return Ok(None),
            found => found?,
        }
        if many == 0 || owner.is_null() {
            return Ok(None);
        }
        // SAFETY: librbd has put one text there, which is ours until it is given back below.
        let address = unsafe { CStr::from_ptr(owner) }.to_string_lossy().into_owned();
        // SAFETY: as above; it is given back once.
        unsafe { (self.api.rbd_lock_get_owners_cleanup)(&mut owner, many) };
        Ok(Some(address))
    }

    /// Returns the address that is stored with the lock of the image. It is that of the owner even if that client is
    /// dead. This works on a read-only image too, on which [`Image::other_owner`] cannot query the lock.
    pub(crate) fn locker(&self) -> Result<Option<String>, i32> {
        let (mut exclusive, mut texts) = (0, [[0 as c_char; LOCKER_BYTES]; 4]);
        let mut room = [LOCKER_BYTES; 4];
        let ([tag, client, cookie, address], [a, b, c, d]) = (&mut texts, &mut room);
        // SAFETY: the image is open, and each text has as much room as is said with it.
        let many = unsafe {
            (self.api.rbd_list_lockers)(
                self.handle,
                &mut exclusive,
                tag.as_mut_ptr(),
                a,
                client.as_mut_ptr(),
                b,
                cookie.as_mut_ptr(),
                c,
                address.as_mut_ptr(),
                d,
            )
        };
        match many {
            0 => Ok(None),
            1.. => {
                let bytes: Vec<u8> = address.iter().map(|byte| *byte as u8).collect();
                Ok(CStr::from_bytes_until_nul(&bytes).ok().map(|text| text.to_string_lossy().into_owned()))
            }
            errno => Err(i32::try_from(-errno).unwrap_or(libc::EIO)),
        }
    }

    /// Starts an I/O. Unless this returns an error, `ended` is called once with the completion and `arg`, on a thread
    /// of librbd's, and must give the completion to [`take_result`].
    ///
    /// # Safety
    ///
    /// Until `ended` is called, `pieces` and the memory that they name stay where they are, the memory has `len` bytes
    /// in all and is nobody else's, and `arg` is what `ended` takes.
    #[inline]
    pub(crate) unsafe fn submit(
        &self,
        (op, at, len): (Op, u64, usize),
        pieces: &[libc::iovec],
        ended: Ended,
        arg: *mut c_void,
    ) -> Result<(), i32> {
        let (api, image, mut completion) = (self.api, self.handle, null_mut());
        let (vector, many) = (pieces.as_ptr(), pieces.len() as c_int);
        // SAFETY: `arg` is kept for `ended`, by the caller, and the place for the completion is valid for the call.
        check(unsafe { (api.rbd_aio_create_completion)(arg, ended, &mut completion) })?;
        // SAFETY: the image is open; the memory is the caller's promise, and so that `pieces` stays, which librbd reads
        // from when it has data.
        let result = unsafe {
            match (op, pieces, api.rbd_aio_write_zeroes) {
                (Op::Read, [one], _) => (api.rbd_aio_read)(image, at, len, one.iov_base.cast(), completion),
                (Op::Read, ..) => (api.rbd_aio_readv)(image, vector, many, at, completion),
                (Op::Write, [one], _) => {
                    (api.rbd_aio_write)(image, at, len, one.iov_base.cast_const().cast(), completion)
                }
                (Op::Write, ..) => (api.rbd_aio_writev)(image, vector, many, at, completion),
                (Op::Discard, ..) => (api.rbd_aio_discard)(image, at, len as u64, completion),
                (Op::WriteZeroes, _, Some(write_zeroes)) => write_zeroes(image, at, len, completion, 0, 0),
                (Op::Flush, ..) => (api.rbd_aio_flush)(image, completion),
                _ => -libc::EOPNOTSUPP,
            }
        };
        check(result).inspect_err(|_| {
            // SAFETY: nothing was started, so the completion is still this function's.
            unsafe { (api.rbd_aio_release)(completion) };
        })
    }
}

impl Drop for Image {
    /// Blocks until librbd has released the lock and ended the watch.
    fn drop(&mut self) {
        // SAFETY: it is open, no I/O is under way (its callers keep it until then), and nobody uses it afterwards.
        unsafe {
            if let Some((watch, _)) = &self.watch {
                (self.api.rbd_update_unwatch)(self.handle, *watch);
            }
            (self.api.rbd_close)(self.handle);
        }
    }
}

/// Called when an image's header changes, for example its size. Must not block.
pub(crate) trait Watcher: Send + Sync + 'static {
    fn changed(&self);
}

/// The callback for [`Image::watch`].
unsafe extern "C" fn changed<W: Watcher>(arg: *mut c_void) {
    // SAFETY: `Image::watch` gave a watcher, which the image keeps for as long as it is watched.
    let watcher = unsafe { &*arg.cast_const().cast::<W>() };
    // A panic must not unwind into C.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| watcher.changed())) {
        discard(payload);
    }
}

/// Returns the result of an I/O that has ended, and releases the completion.
///
/// # Safety
///
/// `completion` is the one that a callback of [`Image::submit`] was called with, for the first time.
#[inline]
pub(crate) unsafe fn take_result(completion: *mut c_void) -> isize {
    // A completion exists, so the library is loaded.
    let Some(api) = API.get() else { return -(libc::EIO as isize) };
    // SAFETY: the completion is the caller's until it is released here.
    unsafe {
        let result = (api.rbd_aio_get_return_value)(completion);
        (api.rbd_aio_release)(completion);
        result
    }
}

mod others;
#[cfg(test)]
mod tests;
