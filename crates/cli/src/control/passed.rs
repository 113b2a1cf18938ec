//! Files and sockets that a command opens and passes to a daemon.
//!
//! The command has the rights of its user. The daemon may lack access to the file, or find another file at that path.

use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use sheave_daemon::config::listen;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::PoolPlace;
use sheave_daemon::value;
use sheave_serve::{Address, Listener};

use crate::args::control::VhostUserArgs;
use crate::made::Made;

/// A device whose file is passed.
#[derive(Debug, Default)]
pub struct Passed {
    /// The spec for the daemon, which has another working directory.
    pub spec: Option<String>,
    /// Empty, or two descriptors of the same file: one for reads and writes, and one for the lock.
    pub files: Vec<File>,
    /// The file, if it was created here. It is removed unless [`Passed::keep`] is called. Dropped last, because the
    /// lock protects it.
    made: Option<Made>,
}

impl Passed {
    /// Opens the file of a `file:` spec with the rights of this user, or creates it if the spec has a size. If the file
    /// is under another device in the spec, only the daemon opens it, and refuses it unless this user has the daemon's
    /// rights.
    pub fn open(spec: &str, read_only: bool) -> Result<Passed, Failure> {
        let place: Option<PoolPlace> = spec.starts_with("file:").then(|| spec.parse().ok()).flatten();
        let file = place.and_then(|place| place.file_spec());
        // The daemon opens and refuses files of other types, because opening a pipe here could block.
        let is_other = |path: &String| std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !is_block(&meta));
        let Some((path, options)) = file.filter(|(path, _)| !is_other(path)) else { return Ok(Passed::default()) };
        let failed = |error: std::io::Error| {
            Failure::run(format!("cannot open {path}: {error}"))
                .fix("check the path, and what this user may do with it")
        };
        let changes = !read_only && !options.contains(",readonly=on");
        let size = spec.split(',').find(|part| part.starts_with("size="));
        let made = (changes && size.is_some()).then(|| Made::file(Path::new(&path))).transpose()?;
        let whole = std::fs::canonicalize(&path).map_err(failed)?;
        let exclusive = changes && std::fs::metadata(&path).is_ok_and(|meta| is_block(&meta));
        let open = |flags: i32| File::options().read(true).write(changes).custom_flags(flags).open(&path);
        let lock = open(if exclusive { OFlags::EXCL.bits().cast_signed() } else { 0 }).map_err(failed)?;
        let synced = if options.contains(",sync=on") { OFlags::DSYNC.bits().cast_signed() } else { 0 };
        let files = vec![open(synced).map_err(failed)?, lock];
        let size = size.map_or(String::new(), |size| format!(",{size}"));
        let spec = format!("file:{}{options}{size}", sheave_drivers::spec::quoted(&whole.to_string_lossy()));
        Ok(Passed { spec: Some(spec), files, made })
    }

    /// Keeps a file that was created for the daemon. Called when the daemon has accepted the device.
    pub fn keep(self) {
        self.made.into_iter().for_each(Made::keep);
    }
}

/// A listening socket for a vhost-user device, made with the rights of this user. Its path is removed unless
/// [`PassedSocket::keep`] is called.
#[derive(Debug)]
pub struct PassedSocket {
    /// The path for the daemon, which has another working directory.
    pub path: String,
    pub fd: OwnedFd,
    listener: Listener,
}

impl PassedSocket {
    /// Binds the socket that the arguments name; `None` if they name none.
    pub fn bind(args: &VhostUserArgs) -> Result<Option<PassedSocket>, Failure> {
        let Some(path) = &args.path else { return Ok(None) };
        let (owner, group) = (args.socket_owner.as_deref(), args.socket_group.as_deref());
        let access = listen::access(args.socket_mode, owner, group).map_err(Failure::usage)?;
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let whole = value::socket_path(&whole.to_string_lossy()).map_err(Failure::usage)?;
        let address = Address::Unix(whole.clone());
        let bound = match &access {
            Some(access) => Listener::bind_for(&address, access),
            None => Listener::bind(&address),
        };
        let listener = bound.map_err(failure::serve)?;
        let fd = listener.try_clone().map_err(|error| Failure::run(format!("passing the socket: {error}")))?;
        Ok(Some(PassedSocket { path: whole.display().to_string(), fd, listener }))
    }

    /// Leaves the path to the daemon. Called when the daemon has accepted the export.
    pub fn keep(self) {
        // Dropping the listener would remove its path. Its descriptor is closed at the end of this command.
        std::mem::forget(self.listener);
    }
}

fn is_block(meta: &Metadata) -> bool {
    meta.file_type().is_block_device()
}
