//! Peers that are hostile, slow or without rights, and a well-behaved one.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sheave_varlink::{Call, CallError, Client, ClientError, Failed, Limits, Role, Roles, Server, Service};

const IDL: &str = "interface org.example.test\nmethod Echo(text: string) -> (text: string)\n";

/// A service that answers calls, and counts the streams that it has begun and given up.
#[derive(Default)]
struct Test {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Service for Test {
    fn about(&self) -> [&str; 3] {
        ["test", "1", "none"]
    }

    fn interfaces(&self) -> &[(&str, &str)] {
        &[("org.example.test", IDL)]
    }

    fn call(&self, call: &mut Call<'_>) -> Result<Value, CallError> {
        match call.method.as_str() {
            "org.example.test.Echo" => {
                let parameters: std::collections::BTreeMap<String, String> = call.parameters()?;
                Ok(json!(parameters))
            }
            "org.example.test.Flood" => {
                self.begun.fetch_add(1, Ordering::SeqCst);
                loop {
                    if let Err(error) = call.progress(&json!({ "text": "x".repeat(1000) })) {
                        self.ended.fetch_add(1, Ordering::SeqCst);
                        return Err(error);
                    }
                }
            }
            "org.example.test.Descriptor" => {
                let mut file = std::fs::File::from(call.take_fd()?);
                file.write_all(b"seen").expect("written");
                Ok(json!({}))
            }
            "org.example.test.Change" => {
                call.admin_only()?;
                Ok(json!({}))
            }
            "org.example.test.Panic" => panic!("a bug"),
            _ => Err(Failed::no_method(&call.method).into()),
        }
    }

    fn notice(&self, text: &str) {
        panic!("{text}");
    }
}

struct Rig {
    service: Arc<Test>,
    socket: PathBuf,
    server: Server,
    _dir: tempfile::TempDir,
}

/// Starts a server with time limits of clients that are longer than any test, also on a busy machine.
fn rig() -> Rig {
    rig_with(Duration::from_secs(60), Duration::from_secs(60))
}

fn impatient_rig() -> Rig {
    rig_with(Duration::from_millis(600), Duration::from_millis(300))
}

fn rig_with(idle: Duration, message: Duration) -> Rig {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).expect("bound");
    let service = Arc::new(Test::default());
    let limits = Limits { clients: 8, idle, message, ..Limits::default() };
    let server = Server::start(listener, service.clone(), limits, Roles::default()).expect("started");
    Rig { service, socket, server, _dir: dir }
}

impl Rig {
    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        stream
    }

    /// Checks that a well-behaved client is served.
    fn serves(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let mut client = Client::connect(&self.socket).expect("it listens");
            match client.call("org.example.test.Echo", &json!({ "text": "hello" })) {
                Ok(reply) => return assert_eq!(reply, json!({ "text": "hello" })),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    }
}

fn is_closed(stream: &mut UnixStream) -> bool {
    let mut rest = Vec::new();
    !matches!(stream.read_to_end(&mut rest), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_call_is_answered_and_the_service_describes_itself() {
    let rig = rig();
    rig.serves();
    let mut client = Client::connect(&rig.socket).expect("it listens");
    let info = client.call("org.varlink.service.GetInfo", &json!({})).expect("answered");
    assert_eq!(info["interfaces"], json!(["org.varlink.service", "org.example.test"]));
    let asked = json!({ "interface": "org.example.test" });
    let idl = client.call("org.varlink.service.GetInterfaceDescription", &asked).expect("answered");
    assert_eq!(idl["description"], IDL);
    for (method, error) in [
        ("org.example.test.No", "MethodNotFound"),
        ("org.varlink.service.No", "MethodNotFound"),
        ("org.example.other.No", "InterfaceNotFound"),
        ("No", "InterfaceNotFound"),
        ("org.example.test.Descriptor", "InvalidParameter"),
    ] {
        let refused = client.call(method, &json!({})).expect_err(method);
        assert!(refused.to_string().contains(error), "{method}: {refused}");
    }
    let wrong = client.call("org.example.test.Echo", &json!({ "text": 1 })).expect_err("no string");
    assert!(wrong.to_string().contains("InvalidParameter"), "{wrong}");
}

#[test]
fn a_descriptor_travels_with_a_call() {
    let rig = rig();
    let (mut here, there) = UnixStream::pair().expect("a pair");
    let mut client = Client::connect(&rig.socket).expect("it listens");
    let method = "org.example.test.Descriptor";
    client.call_more(method, &json!({}), &[there.as_fd()], &mut |_| Ok(())).expect("answered");
    drop(there);
    let mut seen = String::new();
    here.read_to_string(&mut seen).expect("the server has closed its descriptor");
    assert_eq!(seen, "seen");
    // Only one is allowed; both are closed.
    let (mut here, there) = UnixStream::pair().expect("a pair");
    client.call_more(method, &json!({}), &[there.as_fd(), there.as_fd()], &mut |_| Ok(())).expect_err("two");
    drop(there);
    assert_eq!(here.read(&mut [0]).expect("closed"), 0);
}

#[test]
fn who_sends_descriptors_without_end_is_dropped() {
    let rig = rig();
    let (mut here, there) = UnixStream::pair().expect("a pair");
    let mut stream = rig.connect();
    let channel = sheave_varlink::channel::Channel::new(stream.try_clone().expect("another"), 1024).expect("set up");
    let fds = [there.as_fd(); 3];
    // No message is ever complete. The bytes bypass `Channel::send`, which would append a NUL.
    let mut sent = 0;
    while sent < 100 && send_part(channel.stream(), &fds) {
        sent += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    // On a busy machine all of them may be sent before the server looks at the first. Reads do not block.
    until("it is dropped", || is_closed(&mut stream));
    drop((there, channel, stream));
    assert_eq!(here.read(&mut [0]).expect("all are closed"), 0);
    rig.serves();
}

fn send_part(stream: &UnixStream, fds: &[std::os::fd::BorrowedFd<'_>]) -> bool {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    rustix::net::sendmsg(stream, &[std::io::IoSlice::new(b" ")], &mut control, SendFlags::NOSIGNAL).is_ok()
}

#[test]
fn a_message_without_end_is_not_taken() {
    let rig = rig();
    let mut stream = rig.connect();
    let mut sent = 0usize;
    while sent < 8 << 20 && stream.write_all(&[b'a'; 4096]).is_ok() {
        sent += 4096;
    }
    assert!(sent < 1 << 20, "it took {sent} bytes");
    assert!(is_closed(&mut stream));
    // Deeply nested JSON, and input that is not JSON.
    for message in [vec![b'['; 60_000], b"\xff\xfe".to_vec(), b"{}".to_vec(), b"[1,2]".to_vec()] {
        let mut stream = rig.connect();
        stream.write_all(&[message, vec![0]].concat()).expect("sent");
        assert!(is_closed(&mut stream));
    }
    rig.serves();
}

#[test]
fn who_sends_a_byte_now_and_then_is_dropped_in_time() {
    let rig = impatient_rig();
    let mut slow = rig.connect();
    let mut silent = rig.connect();
    let begun = Instant::now();
    while slow.write_all(b" ").is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it holds its place");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(is_closed(&mut silent));
    rig.serves();
}

#[test]
fn who_does_not_read_its_stream_is_dropped_in_time() {
    let rig = impatient_rig();
    let mut stream = rig.connect();
    stream.write_all(b"{\"method\":\"org.example.test.Flood\",\"more\":true}\0").expect("sent");
    until("the stream ends", || rig.service.ended.load(Ordering::SeqCst) == 1);
    // Without `more` nothing is sent, but the disconnect of the caller is noticed nevertheless.
    let mut other = rig.connect();
    other.write_all(b"{\"method\":\"org.example.test.Flood\"}\0").expect("sent");
    until("the call begins", || rig.service.begun.load(Ordering::SeqCst) == 2);
    drop(other);
    until("the call ends", || rig.service.ended.load(Ordering::SeqCst) == 2);
    rig.serves();
}

#[test]
fn more_clients_than_there_may_be_are_closed_at_once() {
    let rig = rig();
    let mut clients: Vec<UnixStream> = (0..200).map(|_| rig.connect()).collect();
    let threads = || std::fs::read_dir("/proc/self/task").expect("proc").count();
    assert!(threads() < 60, "{} threads", threads());
    assert!(clients.drain(100..).all(|mut stream| is_closed(&mut stream)));
    drop(clients);
    rig.serves();
}

#[test]
fn a_bug_in_a_call_costs_its_client_only() {
    let rig = rig();
    let mut client = Client::connect(&rig.socket).expect("it listens");
    for _ in 0..20 {
        let mut client = Client::connect(&rig.socket).expect("it listens");
        let broken = client.call("org.example.test.Panic", &json!({}));
        assert!(matches!(broken, Err(ClientError::Io(_))), "{broken:?}");
    }
    client.call("org.example.test.Change", &json!({})).expect("this user is an admin");
    rig.serves();
}

#[test]
fn the_end_waits_for_nobody() {
    let rig = rig();
    let mut stream = rig.connect();
    stream.write_all(b"{\"method\":\"org.example.test.Flood\"}\0").expect("sent");
    let _silent = rig.connect();
    until("the call begins", || rig.service.begun.load(Ordering::SeqCst) == 1);
    let begun = Instant::now();
    rig.server.stop();
    // Less than the ten seconds after which it waits for nothing.
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert_eq!(rig.service.ended.load(Ordering::SeqCst), 1, "the call was ended");
    assert!(Role::ReadOnly < Role::Admin);
}
