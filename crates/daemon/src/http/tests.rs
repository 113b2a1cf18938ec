//! Limits of peers, and which requests are answered.

use std::sync::mpsc::RecvTimeoutError;

use super::*;

#[test]
fn who_reads_slowly_has_no_more_time_than_who_does_not() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut reader = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (mut stream, _) = listener.accept().expect("a peer");
    // Reads a little every tenth of a second: no single write blocks for long, but the response is never received
    // completely.
    let (told, hears) = std::sync::mpsc::channel::<()>();
    let reads = std::thread::spawn(move || {
        let mut bytes = [0; 64 << 10];
        while hears.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
            assert!(reader.read(&mut bytes).is_ok_and(|got| got > 0), "the answer has no end");
        }
    });
    let from = Instant::now();
    assert!(tell(&mut stream, &vec![1; 256 << 20]).is_err());
    assert!(from.elapsed() < Duration::from_secs(20), "{:?}", from.elapsed());
    drop(told);
    reads.join().expect("no panic");
}

#[test]
fn a_question_is_taken_apart() {
    let asked = "GET /metrics?x=1 HTTP/1.1\r\nHOST: a:1\r\naccept:  b \r\n\r\n";
    let question = parse(asked).expect("it is a GET");
    assert_eq!((question.path, question.host, question.accept), ("/metrics", Some("a:1"), "b"));
    for no_get in ["POST / HTTP/1.1\r\n\r\n", "", "GET", "get / HTTP/1.1\r\n\r\n"] {
        assert!(parse(no_get).is_none(), "{no_get}");
    }
}

#[test]
fn names_of_this_machine_are_known() {
    for host in ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:9180", "127.9.9.9:1", "[::1]:80", "[::1]"] {
        assert!(names_this_machine(host), "{host}");
    }
    for host in
        ["", "evil.example", "evil.example:9180", "localhost.evil.example", "10.0.0.1:80", "127.0.0.1.evil.example"]
    {
        assert!(!names_this_machine(host), "{host}");
    }
}

/// H3: responses that nobody reads are aborted; those being rendered, or just begun, are not.
#[test]
fn the_answer_that_is_sent_for_longest_gives_way_once_it_has_had_its_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut answers = Answers::default();
    let mut peers: Vec<TcpStream> = (0..MAX_ANSWERS)
        .map(|_| {
            let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
            answers.take(listener.accept().expect("a peer").0).expect("a place");
            peer
        })
        .collect();
    let more = peers[0].try_clone().expect("a descriptor");
    assert!(answers.take(more).is_none(), "more answers than places");
    let now = Instant::now();
    let is_ended = |peer: &mut TcpStream| {
        peer.set_nonblocking(true).expect("set");
        peer.read(&mut [0]).is_ok_and(|got| got == 0)
    };
    answers.end_longest(now + PEER);
    assert!(!peers.iter_mut().any(is_ended), "one ended that was being made");
    for (number, sending) in answers.all.values_mut().enumerate().skip(1) {
        sending.since = Some(now - SENT * u32::from(number == 3) + SENT / 2 - Duration::from_millis(number as u64));
    }
    answers.end_longest(now - SENT / 4);
    assert!(!peers.iter_mut().any(is_ended), "one ended that had just begun");
    answers.end_longest(now + SENT);
    let ended: Vec<usize> = (0..MAX_ANSWERS).filter(|&at| is_ended(&mut peers[at])).collect();
    assert_eq!(ended, [3], "the longest");
}

/// H2: a peer with a complete request keeps its place; the oldest of the others is replaced.
#[test]
fn the_oldest_peer_without_a_whole_question_gives_way() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.set_nonblocking(true).expect("set");
    let connect = |says: &[u8]| {
        let mut peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
        peer.write_all(says).expect("sent");
        peer
    };
    let mut askers = Vec::new();
    let mut peers = vec![connect(b"GET / HTTP/1.1\r\n\r\n")];
    for _ in 1..MAX_ASKING {
        peers.push(connect(b"GET / HT"));
    }
    let hear_all = |askers: &mut Vec<Asker>, many: usize| {
        let until = Instant::now() + Duration::from_secs(20);
        let mut came = 0;
        while came < many && Instant::now() < until {
            let before: Vec<_> = askers.iter().map(|asker: &Asker| asker.stream.peer_addr().expect("a peer")).collect();
            assert!(accept(&listener, askers));
            came += askers.iter().filter(|asker| !before.contains(&asker.stream.peer_addr().expect("a peer"))).count();
            askers.iter_mut().for_each(|asker| assert_ne!(asker.hear(), Heard::Over));
        }
        assert_eq!(came, many);
    };
    hear_all(&mut askers, MAX_ASKING);
    peers.push(connect(b"GET /metrics HTTP/1.1\r\n\r\n"));
    hear_all(&mut askers, 1);
    let is_there = |peer: &TcpStream| {
        let address = peer.local_addr().expect("an address");
        askers.iter().any(|asker| asker.stream.peer_addr().is_ok_and(|other| other == address))
    };
    let there: Vec<bool> = peers.iter().map(is_there).collect();
    assert_eq!(askers.len(), MAX_ASKING);
    assert!(there[0] && !there[1] && there[2..].iter().all(|there| *there), "{there:?}");
    let whole: Vec<bool> = askers.iter().map(Asker::is_whole).collect();
    assert!(whole[0] && whole[MAX_ASKING - 1] && !whole[1..MAX_ASKING - 1].iter().any(|whole| *whole), "{whole:?}");
}

#[test]
fn a_question_has_a_bound() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.set_nonblocking(true).expect("set");
    let mut peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    peer.write_all(&[b'x'; MAX_QUESTION + 2048]).expect("sent");
    let mut askers = Vec::new();
    let until = Instant::now() + Duration::from_secs(20);
    while askers.is_empty() {
        assert!(accept(&listener, &mut askers) && Instant::now() < until);
    }
    while askers[0].hear() == Heard::Part {
        assert!(Instant::now() < until, "it takes any number of bytes");
    }
    assert_eq!(askers[0].hear(), Heard::Over);
}
