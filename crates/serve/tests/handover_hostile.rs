//! The state of another process is decoded like the input of a peer (H2): nonsense harms the client that it is about,
//! at most those whose descriptors it names, and nothing else.

mod rig;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rig::handover::{Moving, Plan};
use rig::talker::{FLUSH, Form, READ, Talker, pattern};
use rig::{SIZE, option, options, reply, request};
use serde_json::Value;
use sheave_base::rng::Rng;
use sheave_serve::Parcel;
use sheave_serve::handover::State;
use sheave_vhost_front::{Driver, Options};

const PATIENCE: Duration = Duration::from_secs(10);

/// Held by each test, as all count the descriptors of this process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("procfs").count()
}

/// A server with clients at all stages, in the order of their numbers.
struct Company {
    moving: Moving,
    idle: Talker,
    writes: (Talker, Vec<u8>),
    skips: (Talker, Vec<u8>),
    chooses: UnixStream,
    new: UnixStream,
    lazy: Talker,
    guest: Driver,
}

const CLIENTS: u64 = 7;

impl Company {
    fn new() -> Option<Company> {
        let moving = (Plan { vhost_user: true, ..Plan::spec("ram:size=64M", options()) }).start()?;
        let mut idle = moving.talker(Form::Structured);
        idle.fill(1, 0, 2 << 20);
        let mut writes = moving.talker(Form::Simple);
        let write = writes.write(4 << 20, &pattern(1, 4 << 20, 64 << 10));
        writes.send(&write[..20_000]);
        let mut skips = moving.talker(Form::Extended);
        let refused = skips.write(SIZE, &[7; 4096]);
        skips.send(&refused[..1000]);
        let mut chooses = moving.connect();
        let queries = b"\0\0\0\x01x\0\0\0\x01\0\0\0\x0fbase:allocation";
        let said = [vec![0, 0, 0, 3], option(8, b""), option(10, queries), vec![b'I']].concat();
        chooses.write_all(&said).expect("sent");
        chooses.read_exact(&mut [0; 18 + 20 + 20 + 19 + 20]).expect("both are answered");
        let mut new = moving.connect();
        new.read_exact(&mut [0; 18]).expect("a greeting");
        let mut lazy = moving.talker(Form::Simple);
        let read = [lazy.ask(READ, 0, 2 << 20), lazy.ask(READ, 0, 512)].concat();
        lazy.send(&read);
        let guest = Options { queues: 2, ..Options::default() }.connect(moving.front()).expect("attached");
        let (writes, skips) = ((writes, write), (skips, refused));
        Some(Company { moving, idle, writes, skips, chooses, new, lazy, guest })
    }

    /// Asserts that all go on but this one.
    fn go_on_but(&mut self, victim: u64) {
        let goes_on = |number: u64| number != victim;
        if goes_on(1) {
            self.idle.has(1, 0, 4096);
        }
        if goes_on(2) {
            self.writes.0.send(&self.writes.1[20_000..]);
            self.writes.0.take_all(|_| Vec::new());
        }
        if goes_on(3) {
            self.skips.0.send(&self.skips.1[1000..]);
            self.skips.0.take_all(|_| Vec::new());
        }
        if goes_on(4) {
            self.chooses.write_all(&option(7, b"\0\0\0\x01x\0\0")[1..]).expect("sent");
            self.chooses.read_exact(&mut [0; 20 + 12 + 20 + 14 + 20]).expect("an export");
            self.chooses.write_all(&request(7, 5, 0, 4096)).expect("sent");
            self.chooses.read_exact(&mut [0; 20 + 12]).expect("the context is selected");
        }
        if goes_on(5) {
            self.new.write_all(&[vec![0, 0, 0, 3], option(1, b"x"), request(FLUSH, 5, 0, 0)].concat()).expect("sent");
            self.new.read_exact(&mut [0; 10]).expect("an export");
            assert_eq!(reply(&mut self.new), (0, 5));
        }
        if goes_on(6) {
            self.lazy.take_all(|asked| pattern(1, asked.offset, asked.len as usize));
        }
        if goes_on(7) {
            for queue in 0..2 {
                let read = self.guest.queue(queue).read_bytes(0, 4096, PATIENCE).expect("read");
                assert!(read == pattern(1, 0, 4096));
            }
        }
    }
}

/// Returns the places of all values in a document.
fn places(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.into());
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(n, item)| places(item, &format!("{at}/{n}"), all)),
        Value::Object(items) => items.iter().for_each(|(key, item)| places(item, &format!("{at}/{key}"), all)),
        _ => {}
    }
}

/// Returns true if the value at a place is the number of a descriptor or of a client.
fn names_something(place: &str) -> bool {
    let parts: Vec<&str> = place.split('/').collect();
    let last = parts.last().copied().unwrap_or_default();
    let before = parts.iter().rev().nth(1).copied().unwrap_or_default();
    // The second element of a pair of a region, or of the in-flight region.
    let pair = last == "1" && (before == "inflight" || parts.contains(&"regions"));
    ["fd", "id", "kick", "call", "err", "backend"].contains(&last) || before == "fds" || pair
}

/// Changes the value at a place. With `meek`, it names no descriptor or client of others afterwards.
fn change(value: &mut Value, place: &str, meek: bool, rng: &mut Rng) {
    let shift = rng.below(64);
    let draw = rng.draw();
    let strings = ["", "y", "x", "unix:/nowhere", "tcp:localhost:0", "Extended", "Ended", &"long".repeat(1000)];
    *value = match value {
        Value::Number(number) => {
            let old = number.as_u64().unwrap_or(0);
            let wild = [u64::MAX, u64::MAX - 1, 1 << 63, u64::from(u32::MAX), 1 << 32, 70_000];
            let near = [0, 1, old.wrapping_add(1), old.wrapping_sub(1), old ^ 1 << shift, draw >> shift, 2, 65535];
            let wild = wild[(draw % 6) as usize];
            (if meek && names_something(place) || rng.percent(30) { wild } else { near[(draw >> 8) as usize % 8] })
                .into()
        }
        Value::Bool(old) => (!*old).into(),
        Value::String(_) => strings[draw as usize % strings.len()].into(),
        Value::Null => [Value::from(draw >> shift), 99.into(), true.into()][draw as usize % 3].clone(),
        Value::Array(items) => {
            let mut items = items.clone();
            match draw % 4 {
                0 => items.clear(),
                1 => drop(items.pop()),
                // Two values that name the same thing, of which the first may not be the one that is right.
                2 if !meek => items.extend(items.clone()),
                _ => items.reverse(),
            }
            items.into()
        }
        Value::Object(_) => return,
    };
}

#[test]
fn nonsense_about_a_client_harms_no_other_and_is_reported() {
    let _alone = alone();
    let (mut rng, mut tried) = (Rng::new(1), 0);
    let mut before = None;
    for round in 0..90u64 {
        let Some(mut company) = Company::new() else { return };
        let moved = company.moving.take_out();
        let mut victim = round % CLIENTS + 1;
        let mut state = serde_json::to_value(&moved.parcel.state).expect("text");
        let all = state["clients"].as_array_mut().expect("clients");
        assert_eq!(all.len(), CLIENTS as usize);
        let client = all.iter_mut().find(|client| client["id"] == victim).expect("all have numbers");
        let mut of = Vec::new();
        places(client, "", &mut of);
        for _ in 0..rng.between(1, 3) {
            let place = rng.pick(&of).clone();
            // Changes before may have removed it.
            if let Some(value) = client.pointer_mut(&place) {
                change(value, &place, true, &mut rng);
            }
        }
        let mut moved = moved;
        match serde_json::from_value::<State>(state) {
            Ok(state) => {
                tried += 1;
                moved.parcel.state = state;
            }
            // The whole state is refused then, and nothing has happened to the clients.
            Err(_) => victim = 0,
        }
        company.moving.go_on(moved);
        company.go_on_but(victim);
        assert!(company.moving.server.is_alive(PATIENCE), "round {round}");
        company.moving.serves();
        let Company { moving, idle, writes, skips, chooses, new, lazy, guest } = company;
        drop((idle, writes, skips, chooses, new, lazy, guest));
        moving.stop().server.stop().unwrap_or_else(|error| panic!("round {round}: {error}"));
        // The first round opens what a process keeps.
        let now = descriptors();
        assert_eq!(*before.get_or_insert(now), now, "round {round}: descriptors are left");
    }
    assert!(tried > 40, "{tried}");
}

#[test]
fn nonsense_of_all_kinds_makes_no_server_panic_or_hang() {
    let _alone = alone();
    let (mut rng, mut tried) = (Rng::new(2), 0);
    let mut before = None;
    for round in 0..90u64 {
        let Some(mut company) = Company::new() else { return };
        let mut moved = company.moving.take_out();
        let mut state = serde_json::to_value(&moved.parcel.state).expect("text");
        let mut of = Vec::new();
        places(&state, "", &mut of);
        for _ in 0..rng.between(1, 12) {
            let place = rng.pick(&of).clone();
            if let Some(value) = state.pointer_mut(&place) {
                change(value, &place, false, &mut rng);
            }
        }
        if let Ok(state) = serde_json::from_value::<State>(state) {
            tried += 1;
            moved.parcel.state = state;
        }
        if rng.percent(30) {
            rng.shuffle(&mut moved.parcel.fds);
        }
        if rng.percent(30) {
            moved.parcel.fds.truncate(rng.below(12) as usize);
        }
        for _ in 0..rng.below(20) {
            let len = moved.parcel.bytes.len() as u64;
            if let Some(byte) = moved.parcel.bytes.get_mut(rng.below(len) as usize) {
                *byte ^= 1 << rng.below(8);
            }
        }
        company.moving.go_on(moved);
        // Each says what it would say next. Whether it is answered depends.
        for stream in [&company.idle.stream, &company.lazy.stream, &company.chooses, &company.new] {
            let mut stream = stream;
            let _ = stream.write_all(&request(FLUSH, 9, 0, 0));
        }
        let _ = (&company.writes.0.stream).write_all(&company.writes.1[20_000..]);
        let _ = (&company.skips.0.stream).write_all(&company.skips.1[1000..]);
        let _ = company.guest.queue(0).kick_always();
        assert!(company.moving.server.is_alive(PATIENCE), "round {round}");
        company.moving.serves();
        // Reports of any numbers can be made.
        let (clients, exports) = (company.moving.server.clients(), company.moving.server.exports());
        assert!(
            clients.iter().map(|client| client.counts.answered()).chain([exports[0].counts.answered()]).count() > 0
        );
        let groups = company.moving.server.io_groups();
        let ios = groups.iter().map(|(_, group)| group.counts().ios()).sum::<u64>();
        let slow = company.moving.server.slow_ios(&[]);
        assert!(ios < u64::MAX / 2 && format!("{slow:?}").len() < 1 << 24);
        // And such a server can hand over in turn.
        if round % 3 == 0 {
            company.moving.hand_over();
            company.moving.serves();
        }
        let Company { moving, idle, writes, skips, chooses, new, lazy, guest } = company;
        drop((idle, writes, skips, chooses, new, lazy, guest));
        moving.stop().server.stop().unwrap_or_else(|error| panic!("round {round}: {error}"));
        let now = descriptors();
        assert_eq!(*before.get_or_insert(now), now, "round {round}: descriptors are left");
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn a_client_that_makes_no_sense_is_named_with_the_reason() {
    let _alone = alone();
    type Lie = fn(&mut Parcel, usize);
    let lies: [(&str, u64, Lie); 10] = [
        ("one of its descriptors did not come", 1, |parcel, at| parcel.state.clients[at].fd = 999),
        ("some of its bytes did not come", 2, |parcel, at| parcel.state.clients[at].unread.len = u64::MAX),
        ("some of its bytes did not come", 6, |parcel, at| parcel.state.clients[at].unsent.at = u64::MAX),
        ("another client has its number", 1, |parcel, at| parcel.state.clients[at].id = 1 << 60),
        ("it has no number", 1, |parcel, at| parcel.state.clients[at].id = 0),
        ("nobody listens at its address any more", 5, |parcel, at| {
            parcel.state.clients[at].listener = "unix:/y".into()
        }),
        ("its descriptor is no connection", 1, |parcel, at| {
            let fd = parcel.state.clients[at].fd as usize;
            parcel.fds[fd] = std::fs::File::open("/dev/null").expect("opened").into();
        }),
        ("one of its reads makes no sense", 1, |parcel, at| {
            let read = serde_json::json!({ "cookie": 1, "flags": 0, "offset": 0, "len": 512 });
            change_stage(parcel, at, "reads", vec![read; 513].into());
        }),
        ("its export 'y' is gone", 1, |parcel, at| rename(parcel, at)),
        ("its device is gone", 7, |parcel, at| rename(parcel, at)),
    ];
    for (why, victim, lie) in lies {
        let Some(mut company) = Company::new() else { return };
        let mut moved = company.moving.take_out();
        let at = moved.parcel.state.clients.iter().position(|client| client.id == victim).expect("it is there");
        lie(&mut moved.parcel, at);
        company.moving.go_on(moved);
        assert!(company.moving.heard(why), "{why}: {:?}", company.moving.notices.lock());
        company.go_on_but(victim);
        let left = company.moving.server.clients().len();
        assert_eq!(left, CLIENTS as usize - 1, "{why}");
        company.moving.stop().server.stop().expect("it ends");
    }
}

fn rename(parcel: &mut Parcel, at: usize) {
    change_stage(parcel, at, "export", "y".into());
}

fn change_stage(parcel: &mut Parcel, at: usize, key: &str, value: Value) {
    let mut client = serde_json::to_value(&parcel.state.clients[at]).expect("text");
    let stage = client["stage"].as_object_mut().expect("a stage").values_mut().next().expect("one");
    stage[key] = value;
    parcel.state.clients[at] = serde_json::from_value(client).expect("a client");
}

#[test]
fn numbers_that_no_server_reaches_harm_nobody() {
    let _alone = alone();
    let Some(mut company) = Company::new() else { return };
    let mut moved = company.moving.take_out();
    let state = &mut moved.parcel.state;
    state.last_client = u64::MAX;
    state.exports[0].refused = u64::MAX;
    state.exports[0].io = (0..10).map(|at| (at, u64::MAX - 1)).collect();
    state.queues = vec![state.exports[0].io.clone(); 3];
    state.exports[0].counts.reads = u64::MAX;
    state.clients.iter_mut().for_each(|client| (client.counts.reads, client.since) = (u64::MAX, u64::MAX));
    company.moving.go_on(moved);
    company.go_on_but(0);
    company.moving.serves();
    let server = &company.moving.server;
    // Reports can be made of any numbers.
    let answered: Vec<u64> = server.clients().iter().map(|client| client.counts.answered()).collect();
    assert!(!answered.is_empty());
    assert!(server.io_groups().iter().all(|(_, group)| group.counts().ios() < 1 << 32), "counters start again");
    assert!(server.queues().iter().all(|queue| queue.counts().ios() < 1 << 32));
    company.moving.hand_over();
    company.moving.serves();
    company.moving.stop().server.stop().expect("no reactor has panicked");
}
