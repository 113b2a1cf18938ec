//! Servers that hand over to the next one in the same process: the device stays, the sockets go from one server to the
//! next, and the state goes through text, as it does between two processes.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sheave_blk::device::Device as DiskDevice;
use sheave_iomap::{File, RawFile};
use sheave_serve::listen::handover::{self as sockets, HandedOver};
use sheave_serve::{
    Address, Allow, Backend, Export, Exports, Limit, Listener, Notice, Parcel, ServeError, Server, ServerOptions, Tls,
    VhostUser, VhostUserStatus,
};

use super::{Device, Rig};

/// Time that requests have to end before a handover.
pub const WITHIN: Duration = Duration::from_secs(5);

/// Held while sockets leave a server or come to the next one: what is said about their paths concerns all sockets of a
/// process, and other tests run beside this one.
static SOCKETS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    SOCKETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a file of a device.
pub fn file(device: &DiskDevice) -> Arc<dyn File> {
    Arc::new(RawFile::new(device.clone()))
}

/// The properties of each of the servers.
pub struct Plan {
    pub options: ServerOptions,
    pub backend: Box<dyn Fn() -> Box<dyn Backend> + Send + Sync>,
    pub tls: Option<Tls>,
    /// Limit of the export, from the start of a server on.
    pub limit: Option<Limit>,
    /// True if front-ends attach the export at the socket `v`.
    pub vhost_user: bool,
    pub in_order: bool,
}

impl Plan {
    /// Plans servers of one device, each of which opens a file of its own.
    pub fn of(device: DiskDevice, options: ServerOptions) -> Plan {
        Plan::with(options, move || Box::new(Device(file(&device))))
    }

    /// Plans servers of the device of a spec.
    pub fn spec(spec: &str, options: ServerOptions) -> Plan {
        Plan::of(sheave_drivers::open_device(spec).expect("a device"), options)
    }

    /// Plans servers of a backend.
    pub fn with(options: ServerOptions, backend: impl Fn() -> Box<dyn Backend> + Send + Sync + 'static) -> Plan {
        Plan { options, backend: Box::new(backend), tls: None, limit: None, vhost_user: false, in_order: false }
    }

    pub fn start(self) -> Option<Moving> {
        let dir = Arc::new(tempfile::tempdir().expect("a directory"));
        let moved = Moved { parcel: Parcel::default(), sockets: Vec::new(), dir, notices: Arc::default() };
        match moved.start(&self) {
            Ok(rig) => Some(Moving { rig: Some(rig), plan: self }),
            Err(error @ (ServeError::Ring(_) | ServeError::OldKernel(_))) => {
                sheave_testkit::skip(&error.to_string());
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A server, and what the next ones are to be like.
pub struct Moving {
    rig: Option<Rig>,
    pub plan: Plan,
}

/// Everything that goes from one server to the next.
pub struct Moved {
    pub parcel: Parcel,
    sockets: Vec<HandedOver>,
    dir: Arc<tempfile::TempDir>,
    notices: Arc<Mutex<Vec<String>>>,
}

impl Deref for Moving {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        self.rig.as_ref().expect("it serves")
    }
}

impl Moving {
    /// Suspends the server and takes everything out of it.
    pub fn take_out(&mut self) -> Moved {
        self.server.suspend(WITHIN).unwrap_or_else(|error| panic!("{error}"));
        self.take_out_of_suspended()
    }

    /// Takes everything out of a server that was suspended.
    pub fn take_out_of_suspended(&mut self) -> Moved {
        let Rig { server, notices, _dir: dir, .. } = self.rig.take().expect("it serves");
        let _alone = alone();
        let mut sockets = sockets::open_now().expect("duplicated");
        sockets.retain(|one| matches!(&one.asked_for, Address::Unix(path) if path.starts_with(dir.path())));
        sockets::leave_paths(true);
        let parcel = server.take_out().unwrap_or_else(|error| panic!("{error}"));
        Moved { parcel: through_text(parcel), sockets, dir, notices }
    }

    /// Starts the next server with what was taken out.
    pub fn go_on(&mut self, moved: Moved) {
        self.rig = Some(moved.start(&self.plan).unwrap_or_else(|error| panic!("{error}")));
    }

    pub fn hand_over(&mut self) {
        let moved = self.take_out();
        self.go_on(moved);
    }

    /// Hands over to a server with so many reactors.
    pub fn hand_over_to(&mut self, reactors: usize) {
        self.plan.options.reactors = reactors;
        self.hand_over();
    }

    /// Returns the path of the socket for front-ends.
    pub fn front(&self) -> PathBuf {
        self.socket.with_file_name("v")
    }

    pub fn device(&self) -> VhostUserStatus {
        self.server.exports()[0].vhost_user.clone().expect("it has a device")
    }

    pub fn stop(mut self) -> Rig {
        self.rig.take().expect("it serves")
    }
}

impl Moved {
    /// Returns the path of the socket for front-ends.
    pub fn front(&self) -> PathBuf {
        self.dir.path().join("v")
    }

    fn start(self, plan: &Plan) -> Result<Rig, ServeError> {
        let Moved { parcel, sockets, dir, notices } = self;
        let bind = |name: &str| Listener::bind(&Address::Unix(dir.path().join(name))).expect("it listens");
        let (listener, front) = {
            let _alone = alone();
            sockets::inherit(sockets);
            let bound = (bind("s"), plan.vhost_user.then(|| bind("v")));
            assert!(sockets::end_inheritance().is_empty(), "all are used again");
            bound
        };
        listener.set_tls(plan.tls.clone());
        let vhost_user = front.map(|listener| VhostUser { listener, queues: None, in_order: plan.in_order });
        let export = Export {
            name: "x".into(),
            description: String::new(),
            read_only: false,
            allow: Allow::All,
            backend: (plan.backend)(),
            vhost_user,
        };
        let heard = notices.clone();
        let hear = Box::new(move |notice: &Notice<'_>| heard.lock().expect("nobody panics").push(notice.to_string()));
        let exports = Exports::new(vec![export]);
        let server = Server::start_suspended(exports, vec![listener], plan.options.clone(), hear)?;
        if let Some(limit) = plan.limit {
            server.set_limit("x", Some(limit)).expect("set");
        }
        server.go_on_with(parcel);
        let socket = dir.path().join("s");
        Ok(Rig { server, socket, notices, _dir: dir })
    }
}

/// Replaces the state by what another process makes of its text.
pub fn through_text(parcel: Parcel) -> Parcel {
    let text = serde_json::to_string(&parcel.state).expect("text");
    let state = serde_json::from_str(&text).expect("the text of a state");
    assert_eq!(parcel.state, state);
    Parcel { state, ..parcel }
}
