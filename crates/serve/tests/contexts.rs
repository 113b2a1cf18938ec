//! Metadata contexts of a backend: several at once, contexts that go away, many to search.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sheave_iomap::{File, RawFile};
use sheave_nbd::Extent;
use sheave_serve::{Backend, NoStatus, Question, ServerOptions};

use rig::{Rig, looked_before_ten_reads, option, options, request, rig_with};

/// A backend with contexts `n:0` to `n:9`, numbered from 70 on. `n:9` is gone.
#[derive(Debug)]
struct Several {
    file: Arc<dyn File>,
    asked: Arc<Mutex<Vec<Question>>>,
    looked: Arc<AtomicUsize>,
}

impl Backend for Several {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn contexts(&self, each: &mut dyn FnMut(&str)) {
        std::thread::sleep(Duration::from_millis(1));
        self.looked.fetch_add(1, Ordering::Relaxed);
        (0..10).for_each(|number| each(&format!("n:{number}")));
    }

    fn context(&self, name: &[u8]) -> Option<u64> {
        str::from_utf8(name).ok()?.strip_prefix("n:")?.parse().ok().map(|number: u64| number + 70)
    }

    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        self.asked.lock().expect("nobody panics").push(*question);
        match question.context {
            79 => Err(NoStatus("it is gone")),
            78 => Ok(Vec::new()),
            number => Ok(vec![Extent { len: 4096, status: number as u32 }]),
        }
    }
}

type Asked = Arc<Mutex<Vec<Question>>>;

fn several(options: ServerOptions) -> Option<(Rig, Asked, Arc<AtomicUsize>)> {
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let (asked, looked) = (Asked::default(), Arc::new(AtomicUsize::new(0)));
    let backend = Several { file: Arc::new(RawFile::new(device)), asked: asked.clone(), looked: looked.clone() };
    Some((rig_with(Box::new(backend), options)?, asked, looked))
}

fn queries(names: &[&str]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let names: Vec<Vec<u8>> = names.iter().map(|name| string(name)).collect();
    [string("x"), (names.len() as u32).to_be_bytes().to_vec(), names.concat()].concat()
}

/// Connects a client with structured replies that has selected these contexts.
fn client(rig: &Rig, names: &[&str]) -> UnixStream {
    let mut stream = rig.connect();
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    let asked = [vec![0, 0, 0, 3], option(8, b""), option(10, &queries(names)), option(7, b"\0\0\0\x01x\0\0")];
    stream.write_all(&asked.concat()).expect("sent");
    let told: usize = names.iter().map(|name| 20 + 4 + name.len()).sum();
    stream.read_exact(&mut vec![0; 20 + told + 20 + 20 + 12 + 20 + 14 + 20]).expect("an export");
    stream
}

/// Receives a chunk. Returns its flags, its kind and its data.
fn chunk(stream: &mut UnixStream, cookie: u64) -> (u16, u16, Vec<u8>) {
    let mut head = [0; 20];
    stream.read_exact(&mut head).expect("a chunk");
    assert_eq!(head[..4], 0x668e_33efu32.to_be_bytes());
    assert_eq!(head[8..16], cookie.to_be_bytes());
    let mut data = vec![0; u32::from_be_bytes(head[16..].try_into().expect("four")) as usize];
    stream.read_exact(&mut data).expect("its data");
    (u16::from_be_bytes([head[4], head[5]]), u16::from_be_bytes([head[6], head[7]]), data)
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_be_bytes()).collect()
}

#[test]
fn each_context_has_its_chunk_under_the_number_that_the_client_has() {
    let Some((rig, asked, _)) = several(options()) else { return };
    let mut client = client(&rig, &["n:5", "n:1", "n:7"]);
    client.write_all(&request(7, 3, 8192, 1 << 20)).expect("sent");
    for (place, status) in [(0, 75), (1, 71), (2, 77)] {
        let expected = (u16::from(place == 2), 5, words(&[place, 4096, status]));
        assert_eq!(chunk(&mut client, 3), expected, "context {place}");
    }
    let of = |context| Question { context, pos: 8192, len: 1 << 20, among: 3 };
    assert_eq!(*asked.lock().expect("nobody panics"), [of(75), of(71), of(77)]);
    rig.server.stop().expect("it ends");
}

#[test]
fn a_context_that_is_gone_is_an_error_and_the_connection_goes_on() {
    let Some((rig, ..)) = several(options()) else { return };
    for (gone, why) in [("n:9", "it is gone"), ("n:8", "nothing is known of the range")] {
        let mut client = client(&rig, &["n:2", gone, "n:3"]);
        client.write_all(&[request(7, 3, 0, 1 << 20), request(0, 4, 0, 512)].concat()).expect("sent");
        assert_eq!(chunk(&mut client, 3), (0, 5, words(&[0, 4096, 72])));
        let text = [&22u32.to_be_bytes(), &(why.len() as u16).to_be_bytes()[..], why.as_bytes()].concat();
        assert_eq!(chunk(&mut client, 3), (1, 0x8001, text), "the last chunk, and none of the third context");
        let (_, kind, data) = chunk(&mut client, 4);
        assert_eq!((kind, data.len()), (1, 8 + 512));
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn who_looks_through_the_contexts_leaves_others_their_turn() {
    const ASKED: usize = 1000;
    let Some((rig, _, looked)) = several(ServerOptions { reactors: 1, ..ServerOptions::default() }) else { return };
    let mut other = rig.client();
    let mut curious = rig.connect();
    curious.read_exact(&mut [0; 18]).expect("a greeting");
    curious.write_all(&[vec![0, 0, 0, 3], option(8, b"")].concat()).expect("sent");
    curious.read_exact(&mut [0; 20]).expect("an acknowledgement");
    // On a busy machine the thread of this test may be late with its reads. Then all is repeated.
    for tries in 1.. {
        curious.write_all(&option(9, &queries(&["n:"])).repeat(ASKED)).expect("sent");
        let before = looked_before_ten_reads(&mut other, &looked);
        // All questions are answered.
        curious.read_exact(&mut vec![0; ASKED * (10 * (20 + 4 + 3) + 20)]).expect("all");
        if before < ASKED / 2 {
            break;
        }
        assert!(tries < 20, "{before} were looked through before ten reads of another");
        looked.store(0, Ordering::Relaxed);
    }
    rig.server.stop().expect("it ends");
}

/// A backend whose context `n:1` answers only when its lock is free, and reports when it begins.
#[derive(Debug)]
struct Slow {
    file: Arc<dyn File>,
    gate: Arc<Mutex<()>>,
    begun: Mutex<std::sync::mpsc::Sender<Question>>,
}

impl Backend for Slow {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn context(&self, name: &[u8]) -> Option<u64> {
        str::from_utf8(name).ok()?.strip_prefix("n:")?.parse().ok()
    }

    fn reads_for_status(&self, context: u64) -> bool {
        context == 1
    }

    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        if question.context == 1 {
            self.begun.lock().expect("nobody panics").send(*question).expect("the test listens");
            drop(self.gate.lock());
        }
        Ok(vec![Extent { len: 4096, status: 70 + question.context as u32 }])
    }
}

type Begun = std::sync::mpsc::Receiver<Question>;

fn slow() -> Option<(Rig, Arc<Mutex<()>>, Begun)> {
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let (gate, (begun, heard)) = (Arc::default(), std::sync::mpsc::channel());
    let file = Arc::new(RawFile::new(device));
    let backend = Slow { file, gate: Arc::clone(&gate), begun: Mutex::new(begun) };
    let options = ServerOptions { reactors: 1, ..ServerOptions::default() };
    Some((rig_with(Box::new(backend), options)?, gate, heard))
}

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn an_answer_that_reads_holds_up_nobody_else() {
    let Some((rig, gate, begun)) = slow() else { return };
    let (mut one, mut two, mut other) = (client(&rig, &["n:0", "n:1", "n:2"]), client(&rig, &["n:1"]), rig.client());
    let held = gate.lock().expect("nobody panics");
    one.write_all(&[request(7, 3, 0, 1 << 20), request(0, 4, 0, 512)].concat()).expect("sent");
    assert_eq!(chunk(&mut one, 3), (0, 5, words(&[0, 4096, 70])), "the context before it");
    let asked = begun.recv_timeout(PATIENCE).expect("it is looked for");
    assert_eq!(asked, Question { context: 1, pos: 0, len: 1 << 20, among: 3 });
    two.write_all(&request(7, 5, 8192, 1 << 20)).expect("sent");
    // Meanwhile the only reactor serves others, and questions of others that take no I/O.
    looked_before_ten_reads(&mut other, &AtomicUsize::new(1));
    let mut third = client(&rig, &["n:2"]);
    third.write_all(&request(7, 6, 0, 1 << 20)).expect("sent");
    assert_eq!(chunk(&mut third, 6), (1, 5, words(&[0, 4096, 72])));
    assert!(begun.try_recv().is_err(), "one answer of an export at a time");
    drop(held);
    assert_eq!(chunk(&mut one, 3), (0, 5, words(&[1, 4096, 71])));
    assert_eq!(chunk(&mut one, 3), (1, 5, words(&[2, 4096, 72])));
    assert_eq!(chunk(&mut one, 4).1, 1, "the request behind it");
    assert_eq!(chunk(&mut two, 5), (1, 5, words(&[0, 4096, 71])));
    rig.server.stop().expect("it ends");
}

#[test]
fn an_export_is_gone_when_nobody_reads_for_an_answer_any_more() {
    let Some((rig, gate, begun)) = slow() else { return };
    let held = gate.lock().expect("nobody panics");
    // One question of a client that has hung up, and one of a client that waits.
    let mut gone = client(&rig, &["n:1"]);
    gone.write_all(&request(7, 3, 0, 1 << 20)).expect("sent");
    begun.recv_timeout(PATIENCE).expect("it is looked for");
    drop(gone);
    let mut waits = client(&rig, &["n:1"]);
    waits.write_all(&request(7, 4, 0, 1 << 20)).expect("sent");
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| tell.send(rig.server.take_export("x", true)).expect("heard"));
        assert!(told.recv_timeout(Duration::from_millis(200)).is_err(), "its backend is still used");
        drop(held);
        told.recv_timeout(PATIENCE).expect("it ends").expect("it is out");
    });
    assert_eq!(waits.read(&mut [0; 1]).expect("shut"), 0, "no answer, for it was dropped");
    rig.server.stop().expect("it ends");
}
