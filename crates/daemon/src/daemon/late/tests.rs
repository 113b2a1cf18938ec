//! Exports of servers that accept a connection and do not respond, for a while or for ever.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use sheave_kring::{KernelRing, KringOpts};
use sheave_serve::{Address, Listener};

use super::*;
use crate::config;
use crate::daemon::Opened;
use crate::devices::open_device;
use crate::opening::not_yet;

const LONG: Duration = Duration::from_secs(20);

/// Starts a daemon with this configuration, which listens on a socket in `dir`.
fn daemon(dir: &Path, name: &str, exports: &str, patience: Option<Duration>) -> Arc<Daemon> {
    let (file, socket) = (dir.join(format!("{name}.toml")), dir.join(format!("{name}.sock")));
    let listen = format!("listen = [\"unix:{}\"]\nthreads = 1\n", socket.display());
    std::fs::write(&file, listen + exports).expect("written");
    let plan = config::read(&file).expect("it is right");
    let listener = Listener::bind(&Address::Unix(socket)).expect("listening");
    Arc::new(Opened::new(&plan, patience).serve(vec![listener], &plan).expect("it serves"))
}

fn stop(daemon: Arc<Daemon>, late: Option<Late>) {
    late.into_iter().for_each(Late::stop);
    Arc::into_inner(daemon).expect("nobody else has it").stop().expect("it ends");
}

/// Accepts connections, and forwards them to another server once it is told to.
fn hold(path: &Path, to: &Path) -> Sender<()> {
    let (listener, to) = (UnixListener::bind(path).expect("listening"), to.to_owned());
    let (go, told) = channel();
    std::thread::spawn(move || {
        let mut held = false;
        for near in listener.incoming().map(|near| near.expect("a connection")) {
            if !std::mem::replace(&mut held, true) && told.recv().is_err() {
                return;
            }
            let far = UnixStream::connect(&to).expect("connected");
            for (mut from, mut to) in [(&near, &far), (&far, &near)].map(|(a, b)| (copy_of(a), copy_of(b))) {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    go
}

fn copy_of(stream: &UnixStream) -> UnixStream {
    stream.try_clone().expect("a descriptor")
}

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn devices_that_are_silent_hold_up_no_other_export_and_are_served_when_they_answer() {
    if KernelRing::new(8, KringOpts::default()).is_err() {
        return eprintln!("SKIPPED: no io_uring");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let far = daemon(dir.path(), "far", "[[export]]\nname = \"disk\"\nspec = \"ram:size=3M\"\n", None);
    let (go, mute) = (hold(&at("slow.sock"), &at("far.sock")), hold(&at("mute.sock"), &at("far.sock")));
    let export = |name: &str, spec: &str| format!("[[export]]\nname = \"{name}\"\nspec = \"{spec}\"\n");
    let nbd = |name: &str| format!("nbd:unix:{},export=disk,connect=30s", at(name).display());
    let exports =
        [export("slow", &nbd("slow.sock")), export("mute", &nbd("mute.sock")), export("scratch", "ram:size=1M")];
    let begun = Instant::now();
    let near = daemon(dir.path(), "near", &exports.concat(), Some(Duration::from_millis(50)));
    assert!(begun.elapsed() < LONG, "the others are served meanwhile");
    let why = |name: &str| {
        let row = near.rows().into_iter().find(|row| row.plan.name == name).expect("it is there");
        row.failed.map(|why| why.cause().to_owned())
    };
    assert_eq!(near.server.exports().iter().map(|export| export.name.clone()).collect::<Vec<_>>(), ["scratch"]);
    assert_eq!(["slow", "mute"].map(why), [Some(not_yet().cause().to_owned()), Some(not_yet().cause().to_owned())]);
    assert_eq!(why("scratch"), None);
    // Clients that name no export get the first one, and no other in its place.
    let unnamed = || open_device(&format!("nbd:unix:{}", at("near.sock").display()));
    assert!(unnamed().is_err(), "it is not served");
    let late = near.begin_late().expect("a thread");
    go.send(()).expect("it waits");
    until("it is served", || why("slow").is_none());
    assert_eq!(unnamed().expect("it is served").size_bytes(), 3 << 20);
    drop(mute);
    until("its server has gone", || why("mute").is_some_and(|why| why != not_yet().cause()));
    let order: Vec<_> = near.rows().iter().map(|row| (row.plan.name.clone(), row.failed.is_none())).collect();
    assert_eq!(order, [("slow".into(), true), ("mute".into(), false), ("scratch".into(), true)]);
    stop(near, late);
    stop(far, None);
}

#[test]
fn what_was_taken_out_while_it_was_being_opened_is_not_served() {
    if KernelRing::new(8, KringOpts::default()).is_err() {
        return eprintln!("SKIPPED: no io_uring");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let far = daemon(dir.path(), "far", "[[export]]\nname = \"disk\"\nspec = \"ram:size=3M\"\n", None);
    let go = hold(&at("slow.sock"), &at("far.sock"));
    let exports =
        format!("[[export]]\nname = \"slow\"\nspec = \"nbd:unix:{},connect=30s\"\n", at("slow.sock").display());
    let near = daemon(dir.path(), "near", &exports, Some(Duration::ZERO));
    near.remove_export("slow", false).expect("it goes");
    let late = near.begin_late().expect("a thread").expect("something is being opened");
    go.send(()).expect("it waits");
    until("it has opened", || late.thread.is_finished());
    assert_eq!((near.rows().len(), near.server.exports().len()), (0, 0));
    assert!(near.server.set_limit("slow", None).is_err(), "and it has no place any more");
    stop(near, Some(late));
    stop(far, None);
}
