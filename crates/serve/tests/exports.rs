//! Exports that are added and removed while clients have them, and clients that are listed and disconnected.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rig::{Device, Rig, SIZE, is_closed, option, options, reply, request, rig};
use sheave_base::status::Status;
use sheave_blk::Device as BlockDevice;
use sheave_iomap::io_stats::IoGroup;
use sheave_iomap::mapping::Intent;
use sheave_iomap::slow::SlowIo;
use sheave_iomap::{File, Mapping, RawFile};
use sheave_serve::{Allow, DefaultExport, Export, ServeError, ServerOptions};

fn device() -> Arc<dyn File> {
    Arc::new(RawFile::new(sheave_drivers::open_device("ram:size=64M").expect("a device")))
}

/// Most devices that one reactor can have attached.
const MOST_DEVICES: usize = 64;

fn export(name: &str, file: &Arc<dyn File>) -> Export {
    let backend = Box::new(Device(file.clone()));
    Export {
        name: name.into(),
        description: "a line".into(),
        read_only: false,
        allow: Allow::All,
        backend,
        vhost_user: None,
    }
}

/// Connects a client that chooses this export. `None` if it is refused.
fn choose(rig: &Rig, name: &str) -> Option<UnixStream> {
    let mut stream = rig.connect();
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream.write_all(&[vec![0, 0, 0, 3], option(1, name.as_bytes())].concat()).expect("sent");
    let mut export = [0; 10];
    stream.read_exact(&mut export).ok()?;
    assert_eq!(export[..8], SIZE.to_be_bytes());
    Some(stream)
}

fn until(mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < end, "it does not come about");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn an_export_that_is_added_is_served_and_one_that_is_taken_out_lets_go_of_its_file() {
    let Some(rig) = rig(options()) else { return };
    let file = device();
    rig.server.add_export(export("more", &file)).expect("added");
    let again = rig.server.add_export(export("more", &file));
    assert!(matches!(again, Err(ServeError::ExportExists { .. })), "{again:?}");
    // Enough clients that both reactors have the file attached.
    let mut clients: Vec<UnixStream> = (0..8).map(|_| choose(&rig, "more").expect("it is there")).collect();
    for client in &mut clients {
        client.write_all(&[request(1, 7, 0, 4096), vec![7; 4096]].concat()).expect("sent");
        assert_eq!(reply(client), (0, 7));
    }
    let refused = rig.server.take_export("more", false);
    assert!(matches!(refused, Err(ServeError::ExportInUse { clients: 8, .. })), "{refused:?}");
    clients[0].write_all(&request(3, 8, 0, 0)).expect("a refusal changes nothing");
    assert_eq!(reply(&mut clients[0]), (0, 8));
    rig.server.take_export("more", true).expect("taken");
    assert_eq!(Arc::strong_count(&file), 1, "somebody still has the file");
    assert!(clients.iter_mut().all(is_closed) && choose(&rig, "more").is_none());
    // A new export in the same place: the clients of the first one do not hold it up.
    rig.server.put_export(export("more", &file));
    drop(choose(&rig, "more").expect("it is there again"));
    until(|| rig.server.exports()[1].clients == 0);
    rig.server.take_export("more", false).expect("nobody has it");
    rig.server.forget_export("more");
    assert_eq!(rig.server.exports().len(), 1);
    assert!(matches!(rig.server.take_export("more", true), Err(ServeError::NoExport { .. })));
    rig.serves();
}

#[test]
fn a_client_that_names_no_export_gets_the_default_one_or_none() {
    let Some(rig) = rig(options()) else { return };
    let file = device();
    rig.server.add_export(export("more", &file)).expect("added");
    let chosen = || {
        let client = choose(&rig, "")?;
        let has = |of: &sheave_serve::Client| of.export.clone();
        until(|| rig.server.clients().iter().any(|client| client.export.is_some()));
        let name = rig.server.clients().iter().find_map(has);
        drop(client);
        until(|| rig.server.clients().is_empty());
        name
    };
    assert_eq!(chosen().as_deref(), Some("x"), "the first");
    rig.server.set_default_export(DefaultExport::Named("more".into()));
    assert_eq!(chosen().as_deref(), Some("more"));
    rig.server.take_export("more", false).expect("nobody has it");
    assert_eq!(chosen(), None, "it keeps its place, and is not served");
    rig.server.forget_export("more");
    assert_eq!(chosen(), None);
    rig.server.put_export(export("more", &file));
    assert_eq!(chosen().as_deref(), Some("more"));
    rig.server.set_default_export(DefaultExport::Nobody);
    assert_eq!(chosen(), None);
    rig.server.set_default_export(DefaultExport::First);
    assert_eq!(chosen().as_deref(), Some("x"));
}

#[test]
fn one_thread_serves_more_devices_than_it_may_have_at_a_time_one_after_the_other() {
    let Some(rig) = rig(ServerOptions { reactors: 1, ..options() }) else { return };
    let names: Vec<String> = (0..=MOST_DEVICES).map(|number| format!("e{number}")).collect();
    names.iter().for_each(|name| rig.server.add_export(export(name, &device())).expect("added"));
    let reads = |client: &mut UnixStream| {
        client.write_all(&request(0, 5, 0, 512)).expect("sent");
        assert_eq!(reply(client), (0, 5));
        client.read_exact(&mut [0; 512]).expect("data");
    };
    let left = || until(|| rig.server.clients().is_empty());
    for round in 0..2 {
        for name in &names {
            let mut client = choose(&rig, name).unwrap_or_else(|| panic!("{name} in round {round}"));
            reads(&mut client);
            drop(client);
            left();
        }
    }
    // Only this many fit at the same time, and one more when one is gone.
    let mut clients: Vec<UnixStream> =
        names[..MOST_DEVICES].iter().map(|name| choose(&rig, name).expect("there is room")).collect();
    assert!(choose(&rig, &names[MOST_DEVICES]).is_none() && rig.heard("devices of one ring"));
    clients.iter_mut().for_each(reads);
    drop(clients.remove(0));
    until(|| rig.server.clients().len() == MOST_DEVICES - 1);
    reads(&mut choose(&rig, &names[MOST_DEVICES]).expect("there is room again"));
    // Two clients of one export: it stays for the second when the first is gone.
    let mut second = choose(&rig, &names[1]).expect("there is room");
    drop(clients.remove(0));
    until(|| rig.server.clients().len() == MOST_DEVICES - 1);
    drop(choose(&rig, &names[0]));
    reads(&mut second);
}

#[test]
fn clients_are_told_and_one_of_them_is_disconnected() {
    let Some(rig) = rig(options()) else { return };
    let (mut one, mut other) = (rig.client(), rig.client());
    let silent = rig.connect();
    until(|| rig.server.clients().len() == 3);
    let clients = rig.server.clients();
    assert_eq!(clients.iter().filter(|client| client.export.as_deref() == Some("x")).count(), 2);
    let me = format!("process {} of user", std::process::id());
    assert!(clients.iter().all(|client| client.peer.starts_with(&me)), "{clients:?}");
    rig.server.disconnect(clients[0].id).expect("it is there");
    assert!(is_closed(&mut one), "the first is disconnected");
    other.write_all(&request(3, 9, 0, 0)).expect("sent");
    assert_eq!(reply(&mut other), (0, 9), "the other goes on");
    until(|| rig.server.clients().len() == 2);
    let gone = rig.server.disconnect(clients[0].id);
    assert!(matches!(gone, Err(ServeError::NoClient { .. })), "{gone:?}");
    drop((silent, other));
    until(|| rig.server.clients().is_empty() && rig.server.exports()[0].clients == 0);
}

/// Clients choose an export while it is taken out and put back repeatedly: none is miscounted, and none has the file
/// once the server has let go of it.
#[test]
fn clients_that_come_while_an_export_goes_are_counted() {
    let Some(rig) = rig(options()) else { return };
    let (file, chosen) = (device(), AtomicU64::new(0));
    rig.server.add_export(export("more", &file)).expect("added");
    let (rig, begun) = (&rig, Instant::now());
    // For a second, and on a busy machine until some clients have had it.
    let goes_on = || {
        let least = if chosen.load(Ordering::Relaxed) > 10 { 1 } else { 30 };
        begun.elapsed() < Duration::from_secs(least)
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while goes_on() {
                    let got = choose(rig, "more").is_some();
                    chosen.fetch_add(u64::from(got), Ordering::Relaxed);
                }
            });
        }
        while goes_on() {
            rig.server.take_export("more", true).expect("taken");
            assert_eq!(Arc::strong_count(&file), 1);
            rig.server.put_export(export("more", &file));
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(chosen.load(Ordering::Relaxed) > 10, "few clients had it");
    until(|| rig.server.exports()[1].clients == 0 && rig.server.clients().is_empty());
}

/// A file that takes long to locate slow I/Os, and to be dropped.
#[derive(Debug)]
struct Slow {
    file: RawFile,
    looks: SyncSender<()>,
    goes_on: Mutex<Receiver<()>>,
    is_closed: Arc<AtomicBool>,
}

impl File for Slow {
    fn device(&self) -> &BlockDevice {
        self.file.device()
    }

    fn size_bytes(&self) -> u64 {
        self.file.size_bytes()
    }

    fn is_identity(&self) -> bool {
        true
    }

    fn io_group(&self) -> Option<&Arc<IoGroup>> {
        self.file.io_group()
    }

    fn locate(&self, _: &mut [SlowIo]) {
        self.looks.send(()).expect("the test is there");
        self.goes_on.lock().expect("nobody panics").recv().expect("the test is there");
    }

    fn map(&self, pos: u64, len: u64, intent: Intent) -> Result<Mapping, Status> {
        self.file.map(pos, len, intent)
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(50));
        self.is_closed.store(true, Ordering::Relaxed);
    }
}

#[test]
fn an_export_that_is_taken_out_while_a_report_looks_at_it_lets_go_of_its_file_all_the_same() {
    let Some(rig) = rig(options()) else { return };
    let ((looks, looked), (go_on, goes_on)) = (sync_channel(1), sync_channel(1));
    let is_closed = Arc::new(AtomicBool::new(false));
    let file = RawFile::new(sheave_drivers::open_device("ram:size=64M").expect("a device"));
    let slow = Slow { file, looks, goes_on: Mutex::new(goes_on), is_closed: is_closed.clone() };
    let backend = Box::new(Device(Arc::new(slow)));
    let more = Export {
        name: "more".into(),
        description: String::new(),
        read_only: false,
        allow: Allow::All,
        backend,
        vhost_user: None,
    };
    rig.server.add_export(more).expect("added");
    std::thread::scope(|scope| {
        scope.spawn(|| rig.server.slow_ios(&[]));
        looked.recv_timeout(Duration::from_secs(10)).expect("it looks");
        let taken = scope.spawn(|| {
            rig.server.take_export("more", false).expect("nobody has it");
            is_closed.load(Ordering::Relaxed)
        });
        // Long enough for a server that wrongly does not wait for the report.
        std::thread::sleep(Duration::from_millis(200));
        go_on.send(()).expect("it waits");
        assert!(taken.join().expect("no panic"), "the file was still open");
    });
}
