//! Many clients that take all they can of memory, of a thread's time, or of places, and give nothing back: a client
//! that wants little is served beside them. Slow clients that make progress stay.

mod rig;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use sheave_iomap::{File, RawFile};
use sheave_nbd::Extent;
use sheave_serve::{Address, Backend, Listener, NoStatus, Question, ServerOptions};

use rig::{Device, Rig, is_closed, listener, option, reply, request, rig, rig_at, rig_with};

const ATTACKERS: usize = 48;
const LARGEST: u32 = 32 << 20;

/// Options under which no client is dropped for being slow: all are to be served beside each other.
fn never_stalls() -> ServerOptions {
    let (never, drain) = (Duration::from_secs(3600), Duration::from_millis(100));
    ServerOptions { reactors: 1, server_bytes: 256 << 20, stall: never, idle: never, drain, ..ServerOptions::default() }
}

/// Asserts that small requests are answered while all these clients stay connected.
fn serves_beside(rig: &Rig, attackers: &[UnixStream]) {
    rig.serves();
    rig.serves_alone(512);
    // The clients that were just served may be about to end.
    assert!(rig.server.clients().iter().filter(|client| client.export.is_some()).count() >= attackers.len());
    assert!(rig.notices.lock().expect("nobody panics").is_empty(), "nobody was dropped");
}

#[test]
fn writes_that_are_announced_and_not_sent_hold_up_nobody() {
    let Some(rig) = rig(never_stalls()) else { return };
    let mut attackers: Vec<UnixStream> = (0..ATTACKERS).map(|_| rig.client()).collect();
    let begun = [request(1, 1, 0, LARGEST), vec![7; 100]].concat();
    attackers.iter_mut().for_each(|stream| stream.write_all(&begun).expect("sent"));
    serves_beside(&rig, &attackers);
    // The announced writes hold so little that a new client has what it needs at once.
    let mut client = rig.client();
    client.write_all(&[request(1, 2, 0, LARGEST), vec![8; LARGEST as usize]].concat()).expect("sent");
    assert_eq!(reply(&mut client), (0, 2));
    rig.server.stop().expect("it ends");
}

#[test]
fn replies_that_nobody_takes_hold_up_nobody_else() {
    let Some(rig) = rig(never_stalls()) else { return };
    let mut attackers: Vec<UnixStream> = (0..ATTACKERS).map(|_| rig.client()).collect();
    let reads: Vec<u8> = (0..4).flat_map(|cookie| request(0, cookie, 0, LARGEST)).collect();
    attackers.iter_mut().for_each(|stream| stream.write_all(&reads).expect("sent"));
    serves_beside(&rig, &attackers);
    rig.server.stop().expect("it ends");
}

#[test]
fn replies_of_any_size_that_nobody_takes_hold_up_nobody_else() {
    let Some(rig) = rig(never_stalls()) else { return };
    let mut attackers: Vec<UnixStream> = (0..ATTACKERS).map(|_| rig.client()).collect();
    // Each asks for everything that it can get, in pieces that fit into what others leave.
    let reads: Vec<u8> = (0..400).flat_map(|cookie| request(0, cookie, 0, 256 << 10)).collect();
    attackers.iter_mut().for_each(|stream| stream.write_all(&reads).expect("sent"));
    serves_beside(&rig, &attackers);
    rig.server.stop().expect("it ends");
}

/// Connects a client in the transmission phase with structured replies.
fn structured(rig: &Rig) -> UnixStream {
    let mut stream = rig.connect();
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream.write_all(&[vec![0, 0, 0, 3], option(8, b""), option(1, b"x")].concat()).expect("sent");
    stream.read_exact(&mut [0; 20 + 10]).expect("an export");
    stream
}

#[test]
fn long_reads_get_to_their_end_whatever_others_hold_and_never_give_back() {
    const LEN: usize = (8 << 20) + 4096;
    let Some(rig) = rig(never_stalls()) else { return };
    let bytes: Vec<u8> = (0..LEN).map(|at| (at / 4093) as u8).collect();
    let mut writer = rig.client();
    writer.write_all(&[request(1, 1, 0, LEN as u32), bytes.clone()].concat()).expect("sent");
    assert_eq!(reply(&mut writer), (0, 1));
    let mut attackers: Vec<UnixStream> = (0..ATTACKERS).map(|_| rig.client()).collect();
    let reads: Vec<u8> = (0..400).flat_map(|cookie| request(0, cookie, 0, 256 << 10)).collect();
    attackers.iter_mut().for_each(|stream| stream.write_all(&reads).expect("sent"));
    rig.serves_alone(512);
    // Requests before a long read are answered before it, and those after it wait for it; twice.
    let long = request(0, 7, 0, LEN as u32);
    let asks = [request(3, 6, 0, 0), long, request(3, 8, 0, 0), request(0, 9, 4096, 512)].concat();
    for (mut client, header) in [(rig.client(), 16), (structured(&rig), 28)] {
        for _ in 0..2 {
            client.write_all(&asks).expect("sent");
            assert_eq!(reply(&mut client), (0, 6));
            let mut back = vec![0; header + LEN];
            client.read_exact(&mut back).expect("the data");
            assert_eq!(back[8..16], 7u64.to_be_bytes());
            assert!(back[header..] == bytes, "what was read in pieces is whole");
            let mut rest = vec![0; 16 + header + 512];
            client.read_exact(&mut rest).expect("the other replies");
        }
    }
    // Also for unaligned reads, which read blocks of which the reply has a part.
    let mut odd = rig.client();
    odd.write_all(&request(0, 7, 3, LEN as u32 - 5)).expect("sent");
    let mut back = vec![0; 16 + LEN - 5];
    odd.read_exact(&mut back).expect("the data");
    assert!(back[16..] == bytes[3..LEN - 2], "what was read in pieces of blocks is what was asked for");
    // A client that leaves within a long read, or does not receive it, harms no other.
    let mut gone = rig.client();
    gone.write_all(&asks).expect("sent");
    gone.read_exact(&mut vec![0; 1 << 20]).expect("a part of it");
    drop(gone);
    let mut lazy = rig.client();
    lazy.write_all(&asks.repeat(3)).expect("sent");
    serves_beside(&rig, &attackers);
    rig.server.stop().expect("it ends");
}

/// A backend with 32 contexts, each of which takes a millisecond to answer.
#[derive(Debug)]
struct Scattered {
    file: Arc<dyn File>,
    looked: Arc<AtomicUsize>,
    other: Option<Arc<Other>>,
}

/// A client that sends another request while the first of 32 contexts is answered.
#[derive(Debug, Default)]
struct Other {
    may_ask: AtomicBool,
    has_asked: AtomicBool,
    is_answered: AtomicBool,
    /// The reply had not arrived when the last context was about to be answered.
    is_late: AtomicBool,
}

impl Other {
    /// Called on the reactor's thread: the other client is answered between two contexts, or not at all.
    fn meet(&self, context: u64) {
        match context {
            0 => {
                self.may_ask.store(true, Ordering::SeqCst);
                within_a_minute(&self.has_asked);
            }
            31 => self.is_late.store(!within_a_minute(&self.is_answered), Ordering::SeqCst),
            _ => {}
        }
    }
}

/// Waits until the flag is set. Returns false if it is not set within a minute.
fn within_a_minute(flag: &AtomicBool) -> bool {
    let end = Instant::now() + Duration::from_secs(60);
    while !flag.load(Ordering::SeqCst) && Instant::now() < end {
        std::thread::yield_now();
    }
    flag.load(Ordering::SeqCst)
}

impl Backend for Scattered {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn context(&self, name: &[u8]) -> Option<u64> {
        str::from_utf8(name).ok()?.strip_prefix("n:")?.parse().ok()
    }

    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        std::thread::sleep(Duration::from_millis(1));
        self.looked.fetch_add(1, Ordering::Relaxed);
        self.other.iter().for_each(|other| other.meet(question.context));
        Ok(vec![Extent { len: question.len, status: 0 }])
    }
}

/// Connects a client with structured replies that has selected 32 contexts.
fn curious(rig: &Rig) -> UnixStream {
    let mut stream = rig.connect();
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    let names: Vec<String> = (0..32).map(|number| format!("n:{number}")).collect();
    let string = |text: &str| [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat();
    let queries = [string("x"), 32u32.to_be_bytes().to_vec(), names.iter().flat_map(|name| string(name)).collect()];
    let said = [vec![0, 0, 0, 3], option(8, b""), option(10, &queries.concat()), option(7, b"\0\0\0\x01x\0\0")];
    stream.write_all(&said.concat()).expect("sent");
    let contexts: usize = names.iter().map(|name| 20 + 4 + name.len()).sum();
    stream.read_exact(&mut vec![0; 20 + contexts + 20 + 20 + 12 + 20 + 14 + 20]).expect("an export");
    stream
}

/// Bytes of the reply to a question for 32 contexts of one extent each.
const STATUS_BYTES: usize = 32 * (20 + 4 + 8);

/// Q1 of `questions`.
#[test]
fn others_are_answered_between_the_contexts_of_a_question() {
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let other = Arc::new(Other::default());
    let (file, looked) = (Arc::new(RawFile::new(device)), Arc::new(AtomicUsize::new(0)));
    let backend = Scattered { file, looked, other: Some(other.clone()) };
    let Some(rig) = rig_with(Box::new(backend), never_stalls()) else { return };
    let (mut asker, mut client) = (curious(&rig), rig.client());
    asker.write_all(&request(7, 1, 0, 1 << 20)).expect("sent");
    assert!(within_a_minute(&other.may_ask));
    client.write_all(&request(0, 2, 0, 512)).expect("sent");
    other.has_asked.store(true, Ordering::SeqCst);
    assert_eq!(reply(&mut client), (0, 2));
    other.is_answered.store(true, Ordering::SeqCst);
    asker.read_exact(&mut [0; STATUS_BYTES]).expect("all");
    assert!(!other.is_late.load(Ordering::SeqCst), "all contexts were looked at before another client was");
    drop((asker, client));
    rig.server.stop().expect("it ends");
}

/// A backend whose contexts have the largest number of extents that an answer may have.
#[derive(Debug)]
struct Long {
    file: Arc<dyn File>,
    looked: Arc<AtomicUsize>,
}

const EXTENTS: usize = 4096;

impl Backend for Long {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn context(&self, name: &[u8]) -> Option<u64> {
        str::from_utf8(name).ok()?.strip_prefix("n:")?.parse().ok()
    }

    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        self.looked.fetch_add(1, Ordering::SeqCst);
        let len = question.len / EXTENTS as u64;
        Ok((0..EXTENTS as u32).map(|number| Extent { len, status: number & 1 }).collect())
    }
}

#[test]
fn long_answers_that_nobody_takes_are_not_made() {
    const ANSWERS: usize = 32 * (20 + 4 + 8 * EXTENTS);
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let looked = Arc::new(AtomicUsize::new(0));
    let backend = Long { file: Arc::new(RawFile::new(device)), looked: looked.clone() };
    let Some(rig) = rig_with(Box::new(backend), never_stalls()) else { return };
    let mut asker = curious(&rig);
    // The data of the read is more than the sockets take, so all answers stay queued behind it.
    asker.write_all(&[request(0, 1, 0, LARGEST), request(7, 2, 0, LARGEST)].concat()).expect("sent");
    // Waits until no further context is answered.
    let mut before = 0;
    while before == 0 || before != looked.load(Ordering::SeqCst) {
        before = looked.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(200));
        rig.serves();
    }
    assert!(before < 32, "a client that takes nothing has answers for all contexts in the server's memory");
    asker.read_exact(&mut vec![0; 20 + 8 + LARGEST as usize + ANSWERS]).expect("all, when it takes them");
    assert_eq!(looked.load(Ordering::SeqCst), 32);
    rig.server.stop().expect("it ends");
}

#[test]
fn questions_for_many_contexts_are_answered_whole_beside_others() {
    const READS: u64 = 50;
    const ASKED: u64 = 3;
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let looked = Arc::new(AtomicUsize::new(0));
    let backend = Scattered { file: Arc::new(RawFile::new(device)), looked: looked.clone(), other: None };
    let Some(rig) = rig_with(Box::new(backend), never_stalls()) else { return };
    let mut attackers: Vec<UnixStream> = (0..ATTACKERS).map(|_| curious(&rig)).collect();
    let mut client = rig.client();
    let ask: Vec<u8> = (0..ASKED).flat_map(|cookie| request(7, cookie, 0, 1 << 20)).collect();
    attackers.iter_mut().for_each(|stream| stream.write_all(&ask).expect("sent"));
    while looked.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    for cookie in 0..READS {
        client.write_all(&request(0, cookie, 0, 512)).expect("sent");
        assert_eq!(reply(&mut client), (0, cookie));
        client.read_exact(&mut [0; 512]).expect("data");
    }
    // All questions are answered, each reply in one piece.
    for stream in &mut attackers {
        let mut replies = vec![0; ASKED as usize * STATUS_BYTES];
        stream.set_read_timeout(Some(Duration::from_secs(300))).expect("set");
        stream.read_exact(&mut replies).expect("all");
        for (at, chunk) in replies.chunks(32).enumerate() {
            let (flags, cookie) = (&chunk[4..6], &chunk[8..16]);
            assert_eq!(cookie, (at as u64 / 32).to_be_bytes());
            assert_eq!(flags[1] == 1, at % 32 == 31, "the last chunk of a reply says so");
            assert_eq!(chunk[20..24], (at as u32 % 32).to_be_bytes());
        }
    }
    rig.server.stop().expect("it ends");
}

#[test]
fn who_leaves_with_a_question_half_answered_harms_nobody_and_a_goodbye_waits_for_the_answer() {
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let looked = Arc::new(AtomicUsize::new(0));
    let backend = Scattered { file: Arc::new(RawFile::new(device)), looked: looked.clone(), other: None };
    let Some(rig) = rig_with(Box::new(backend), never_stalls()) else { return };
    for _ in 0..8 {
        let mut gone = curious(&rig);
        gone.write_all(&request(7, 1, 0, 1 << 20)).expect("sent");
        drop(gone);
    }
    let mut polite = curious(&rig);
    polite.write_all(&[request(7, 1, 0, 1 << 20), request(2, 2, 0, 0)].concat()).expect("sent");
    let mut all = Vec::new();
    polite.read_to_end(&mut all).expect("to the end");
    assert_eq!(all.len(), STATUS_BYTES);
    rig.serves();
    rig.server.stop().expect("it ends");
}

#[test]
fn clients_that_have_nothing_to_do_give_way_when_all_places_are_taken() {
    let options = ServerOptions { max_clients: 48, idle: Duration::from_millis(300), ..never_stalls() };
    let Some(rig) = rig(options) else { return };
    let mut silent: Vec<UnixStream> = (0..ATTACKERS).map(|_| rig.client()).collect();
    // One has sent a part of a request, which does not count as a request.
    silent[1].write_all(&request(0, 1, 0, 512)[..27]).expect("sent");
    rig.serves();
    assert!(rig.heard("it has nothing to do"));
    let still = silent.iter_mut().filter_map(|stream| {
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
        (!is_closed(stream)).then_some(())
    });
    assert!(still.count() >= ATTACKERS - 4, "no more go than are needed");
    rig.server.stop().expect("it ends");
}

#[test]
fn the_peer_that_has_most_places_gives_way_first() {
    let (dir, unix) = listener();
    let tcp = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).expect("it listens");
    let Address::Tcp(place) = tcp.address().clone() else { panic!("it is TCP") };
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let backend = Box::new(Device(Arc::new(RawFile::new(device))));
    let options = ServerOptions { max_clients: 6, idle: Duration::from_millis(300), ..never_stalls() };
    let Some(rig) = rig_at(dir, vec![unix, tcp], false, backend, options) else { return };
    // One client of another peer is silent for longer than all others.
    let mut alone = TcpStream::connect(place).expect("it answers");
    alone.read_exact(&mut [0; 18]).expect("a greeting");
    alone.write_all(&[vec![0, 0, 0, 3], option(1, b"x")].concat()).expect("sent");
    alone.read_exact(&mut [0; 10]).expect("an export");
    let _many: Vec<UnixStream> = (0..5).map(|_| rig.client()).collect();
    let _more: Vec<UnixStream> = (0..3).map(|_| rig.client()).collect();
    alone.write_all(&request(3, 5, 0, 0)).expect("it stays");
    alone.read_exact(&mut [0; 16]).expect("an answer");
    rig.server.stop().expect("it ends");
}

/// Connects a client in the transmission phase from this address of the machine.
fn client_from(from: &str, to: &str) -> TcpStream {
    let at = |text: &str| text.parse::<SocketAddr>().expect("an address");
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    rustix::net::bind(&socket, &at(from)).expect("the address is of this machine");
    rustix::net::connect(&socket, &at(to)).expect("it answers");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
    stream
}

/// Chooses the export, once the server sends its greeting.
fn choose(stream: &mut (impl Read + Write)) {
    stream.read_exact(&mut [0; 18]).expect("a greeting");
    stream.write_all(&[vec![0, 0, 0, 3], option(1, b"x")].concat()).expect("sent");
    stream.read_exact(&mut [0; 10]).expect("an export");
}

fn flushes(stream: &mut (impl Read + Write)) -> bool {
    stream.write_all(&request(3, 5, 0, 0)).is_ok() && stream.read_exact(&mut [0; 16]).is_ok()
}

/// D1 and D3 of `places`: one address takes all places, with clients that never pause; as many as the server keeps wait
/// for more, and others queue behind them.
#[test]
fn the_newest_client_of_the_peer_that_has_all_places_gives_way_to_that_of_another() {
    const PLACES: usize = 48;
    let tcp = Listener::bind(&Address::Tcp("127.0.0.1:0".into())).expect("it listens");
    let Address::Tcp(place) = tcp.address().clone() else { panic!("it is TCP") };
    let device = sheave_drivers::open_device("ram:size=64M").expect("a device");
    let backend = Box::new(Device(Arc::new(RawFile::new(device))));
    let options = ServerOptions { max_clients: PLACES as u32, ..never_stalls() };
    let Some(rig) = rig_at(listener().0, vec![tcp], false, backend, options) else { return };
    let mut many: Vec<TcpStream> = (0..PLACES).map(|_| client_from("127.0.0.1:0", &place)).collect();
    many.iter_mut().for_each(choose);
    // The backlog of the socket has room for a hundred that the server does not accept.
    let mut waiting: Vec<TcpStream> = (0..150).map(|_| client_from("127.0.0.1:0", &place)).collect();
    assert!(many.iter_mut().all(flushes), "those that come later harm nobody who has the same address");
    let mut other = client_from("127.0.0.2:0", &place);
    choose(&mut other);
    assert!(flushes(&mut other));
    assert!(rig.heard("its address or user has most of them"));
    let last = many.pop().expect("there are many");
    assert!(is_gone(last), "the newest gives way");
    assert!(many.iter_mut().all(flushes), "one place is enough");
    // Repeats this until both have equally many; then no client gives way any more.
    let mut others = vec![other];
    while others.len() < PLACES / 2 {
        others.push(client_from("127.0.0.2:0", &place));
        choose(others.last_mut().expect("it was pushed"));
        assert!(is_gone(many.pop().expect("there are more")));
    }
    let mut too_many = client_from("127.0.0.2:0", &place);
    assert!(many.iter_mut().chain(&mut others).all(flushes));
    // A free place goes to the peer with the fewest, though clients of another have waited for longer.
    drop(others.pop());
    choose(&mut too_many);
    assert!(flushes(&mut too_many));
    assert!(many.iter_mut().chain(&mut others).all(flushes));
    assert!(is_gone(waiting.pop().expect("it was pushed")), "the newest of too many is turned away (D3)");
    waiting[0].set_nonblocking(true).expect("set");
    let read = waiting[0].read(&mut [0]);
    assert!(read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "the oldest goes on to wait");
    rig.server.stop().expect("it ends");
}

/// Returns true if the server closes the connection, or has closed it.
fn is_gone(mut stream: TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn who_asks_for_something_now_and_then_keeps_its_place() {
    let options = ServerOptions { max_clients: 2, idle: Duration::from_secs(2), ..never_stalls() };
    let Some(rig) = rig(options) else { return };
    let (mut seldom, mut never) = (rig.client(), rig.client());
    let waits = std::thread::scope(|scope| {
        let waits = scope.spawn(|| rig.client());
        while !waits.is_finished() {
            seldom.write_all(&request(3, 5, 0, 0)).expect("it stays");
            assert_eq!(reply(&mut seldom), (0, 5));
            std::thread::sleep(Duration::from_millis(50));
        }
        waits.join().expect("it came in")
    });
    assert!(is_closed(&mut never));
    seldom.write_all(&request(3, 6, 0, 0)).expect("it stays");
    assert_eq!(reply(&mut seldom), (0, 6));
    drop(waits);
    rig.server.stop().expect("it ends");
}

/// Options with memory for which a few large requests have to line up, and with a stall time of two seconds.
fn scarce() -> ServerOptions {
    let stall = Duration::from_secs(2);
    ServerOptions { reactors: 1, server_bytes: 10 << 20, stall, ..ServerOptions::default() }
}

/// Several times the stall time.
const SLOW: Duration = Duration::from_millis(7500);

#[test]
fn writers_that_are_slow_and_never_pause_stay() {
    const LEN: usize = 4 << 20;
    const PIECES: usize = 64;
    let Some(rig) = rig(scarce()) else { return };
    std::thread::scope(|scope| {
        for number in 0..3u64 {
            let mut stream = rig.client();
            stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set");
            scope.spawn(move || {
                stream.write_all(&request(1, number, number * LEN as u64, LEN as u32)).expect("sent");
                for piece in 0..PIECES {
                    stream.write_all(&vec![piece as u8; LEN / PIECES]).expect("it is not dropped");
                    std::thread::sleep(SLOW / PIECES as u32);
                }
                assert_eq!(reply(&mut stream), (0, number));
                stream.write_all(&request(0, 9, number * LEN as u64, LEN as u32)).expect("sent");
                assert_eq!(reply(&mut stream), (0, 9));
                let mut back = vec![0; LEN];
                stream.read_exact(&mut back).expect("data");
                assert!((0..LEN).all(|at| back[at] == (at / (LEN / PIECES)) as u8), "what came in parts is whole");
            });
        }
    });
    assert!(rig.notices.lock().expect("nobody panics").is_empty());
    rig.server.stop().expect("it ends");
}

#[test]
fn readers_that_are_slow_and_never_pause_stay_and_those_that_take_nothing_do_not() {
    // Three times the size of a socket's buffer.
    const LEN: usize = 24 << 20;
    let Some(rig) = rig(ServerOptions { server_bytes: 72 << 20, ..scarce() }) else { return };
    let mut client = rig.client();
    let bytes: Vec<u8> = (0..LEN).map(|at| (at / 4093) as u8).collect();
    client.write_all(&[request(1, 1, 0, LEN as u32), bytes.clone()].concat()).expect("sent");
    assert_eq!(reply(&mut client), (0, 1));
    let mut slow = rig.client();
    slow.write_all(&request(0, 7, 0, LEN as u32)).expect("sent");
    assert_eq!(reply(&mut slow), (0, 7));
    // Clients that receive nothing, and most of them wait for memory.
    let mut lazy: Vec<UnixStream> = (0..6).map(|_| rig.client()).collect();
    lazy.iter_mut().for_each(|stream| stream.write_all(&request(0, 1, 0, LEN as u32).repeat(8)).expect("sent"));
    let from = Instant::now();
    let mut back = Vec::new();
    while back.len() < LEN {
        let at = back.len();
        back.resize(LEN.min(at + LEN / 64), 0);
        slow.read_exact(&mut back[at..]).expect("it is not dropped");
        std::thread::sleep(SLOW / 64);
    }
    assert!(back == bytes, "what was sent in parts is whole");
    assert!(from.elapsed() >= SLOW);
    assert!(rig.heard("it took nothing of the replies"));
    drop(lazy);
    rig.server.stop().expect("it ends");
}
