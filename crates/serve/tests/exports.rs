//! Exports that come and go while clients have them, and clients that are listed and disconnected.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rig::{Device, Rig, SIZE, is_closed, option, options, reply, request, rig};
use sheave_iomap::{File, RawFile};
use sheave_serve::{Export, ServeError};

fn device() -> Arc<dyn File> {
    Arc::new(RawFile::new(sheave_drivers::open_device("ram:size=64M").expect("a device")))
}

fn export(name: &str, file: &Arc<dyn File>) -> Export {
    let backend = Box::new(Device(file.clone()));
    Export { name: name.into(), description: "a line".into(), read_only: false, backend }
}

/// A client that has chosen this export; `None` when it is refused.
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
    let end = Instant::now() + Duration::from_secs(10);
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
    // On both reactors, so that both have a way into the file.
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
    // It comes back in its place, and is another one: what the first held is not in the way.
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

/// Clients choose an export while it is taken out and put back, again and again: none is counted wrongly, and none has
/// the file when it has been let go of.
#[test]
fn clients_that_come_while_an_export_goes_are_counted() {
    let Some(rig) = rig(options()) else { return };
    let (file, chosen) = (device(), AtomicU64::new(0));
    rig.server.add_export(export("more", &file)).expect("added");
    let (rig, ends) = (&rig, Instant::now() + Duration::from_secs(1));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while Instant::now() < ends {
                    let got = choose(rig, "more").is_some();
                    chosen.fetch_add(u64::from(got), Ordering::Relaxed);
                }
            });
        }
        while Instant::now() < ends {
            rig.server.take_export("more", true).expect("taken");
            assert_eq!(Arc::strong_count(&file), 1);
            rig.server.put_export(export("more", &file));
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(chosen.load(Ordering::Relaxed) > 10, "few clients had it");
    until(|| rig.server.exports()[1].clients == 0 && rig.server.clients().is_empty());
}
