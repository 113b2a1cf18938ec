//! Upgrades of a daemon, simulated: an old and a new process, the socket between them, a client, and a real pool.
//!
//! Both processes take the steps that [`sheave_daemon::upgrade::protocol`] gives them, in an order that a seed draws.
//! Each may be killed at any step, in the middle of opening or closing the pool too; messages come late, in part or not
//! at all; waits end early. Judged after each step and at the end of a run:
//!
//! - O1. At most one process has the pool open, and none serves that does not own it.
//! - O2. Somebody holds the lock of the pool as long as a process lives that has it or is to get it.
//! - O3. While the owner lives, each request of the client is done once and answered once.
//! - O4. The pool opens, and each block has the last value that was written to it.
//!
//! [`Mutant`] names ways to break the processes, each of which a run must find.

use std::collections::{BTreeMap, VecDeque};

use sheave_base::buf::Buf;
use sheave_base::rng::{Rng, mix};
use sheave_base::sync::Arc;
use sheave_daemon::upgrade::protocol::{Give, Take};
use sheave_uring::{Fd, Ring, prep};
use sheave_vol::{CreateOptions, OpenOptions, Pool, with_recent_memory};

use crate::disk::{DiskOptions, Image, Media, SimDisk};

const BLOCK: usize = 4096;
const BLOCKS: u32 = 24;
const POOL_BYTES: u64 = 16 << 20;
const VOLUME: &str = "v";
/// Most steps of a run.
const STEPS: u32 = 400;
/// Requests of the client.
const REQUESTS: u32 = 24;
/// Messages of descriptors that follow the state.
const FDS: usize = 2;

/// A way to break a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// The old process closes its descriptors before the new one has said that it has taken everything.
    LockReleasedEarly,
    /// The state is collected before the requests under way have ended.
    ParcelBeforeDrain,
    /// Bytes that were received and not parsed are not handed over.
    UnreadDropped,
    /// Replies that were not sent are not handed over.
    UnsentDropped,
    /// The old process gives up waiting without shutting the connection down.
    NoShut,
    /// The old process does not look for `Taken` once more after shutting the connection down.
    NoLook,
    /// The old process opens the pool again without ending the new one.
    NewNotEnded,
    /// The new process serves before it has said that it has taken everything.
    ServesEarly,
    /// The new process takes everything although it could not say so and the old one lives.
    OwnsUnsaid,
    /// The new process says that it has taken everything before the pool is open.
    SaysEarly,
}

/// All of them.
pub const MUTANTS: [Mutant; 10] = [
    Mutant::LockReleasedEarly,
    Mutant::ParcelBeforeDrain,
    Mutant::UnreadDropped,
    Mutant::UnsentDropped,
    Mutant::NoShut,
    Mutant::NoLook,
    Mutant::NewNotEnded,
    Mutant::ServesEarly,
    Mutant::OwnsUnsaid,
    Mutant::SaysEarly,
];

/// Counts of what runs have met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Processes killed, waits that ended early, messages that were lost.
    pub cuts: u64,
    /// Deaths in the middle of an opening or a close of the pool.
    pub within: u64,
    /// Runs after which the new process served.
    pub taken: u64,
    /// Runs after which the old process served.
    pub back: u64,
    /// Runs after which nobody served, and the pool was opened by a third process.
    pub gone: u64,
}

impl Met {
    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Met) {
        self.cuts += other.cuts;
        self.within += other.within;
        self.taken += other.taken;
        self.back += other.back;
        self.gone += other.gone;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request(u32);

/// The connection of the client, as a process has it.
#[derive(Clone, Debug, Default)]
struct Conn {
    unread: VecDeque<Request>,
    doing: Option<Request>,
    unsent: VecDeque<u32>,
}

#[derive(Clone, Debug)]
enum Said {
    Parcel(Conn),
    Fds,
    Refused,
    Failed,
    Taken,
}

/// A pool that a process has open.
struct House {
    // Declared first, hence dropped first.
    ring: Ring,
    fd: Fd,
    pool: Pool,
}

impl House {
    fn open(disk: &SimDisk) -> Result<House, String> {
        let options = with_recent_memory(OpenOptions::default(), disk.recent());
        let pool = Pool::open(&disk.device(), &options).map_err(|error| format!("the pool does not open: {error}"))?;
        let volume = pool.open_volume(VOLUME).map_err(|error| error.to_string())?;
        let mut ring = Ring::builder().entries(8).build().map_err(|error| error.to_string())?;
        let fd = ring.attach_file(Arc::new(volume)).map_err(|error| error.to_string())?;
        Ok(House { ring, fd, pool })
    }

    fn close(self) -> Result<(), String> {
        let House { ring, pool, .. } = self;
        drop(ring);
        pool.close().map_err(|error| format!("the pool does not close: {error}"))
    }

    fn run(&mut self, entry: impl prep::Op) -> Result<Option<Buf>, String> {
        self.ring.push(entry).map_err(|full| full.error.to_string())?;
        self.ring.submit_and_wait(1).map_err(|error| error.to_string())?;
        let done = self.ring.completions().next().ok_or("no completion")?;
        if done.res != BLOCK as i32 { Err(format!("an operation gave {}", done.res)) } else { Ok(done.into_buf()) }
    }

    fn write(&mut self, block: u32, value: u32) -> Result<(), String> {
        let mut buf = Buf::zeroed(BLOCK, BLOCK).map_err(|error| error.to_string())?;
        buf.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
        self.run(prep::write(self.fd, buf).offset(u64::from(block) * BLOCK as u64)).map(drop)
    }

    fn read(&mut self, block: u32) -> Result<u32, String> {
        let buf = Buf::zeroed(BLOCK, BLOCK).map_err(|error| error.to_string())?;
        let buf = self.run(prep::read(self.fd, buf).offset(u64::from(block) * BLOCK as u64))?.ok_or("no data")?;
        let words: Vec<u32> =
            buf.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect();
        match words.iter().all(|word| *word == words[0]) {
            true => Ok(words[0]),
            false => Err(format!("block {block} has parts of two writes")),
        }
    }
}

/// A process.
struct Process<S> {
    alive: bool,
    /// `None` while it serves.
    step: Option<S>,
    house: Option<House>,
    conn: Conn,
    /// True while it has descriptors of the pool, and so its lock.
    locks: bool,
}

/// The client: requests that no process has read are in its socket, which no death of a process empties.
struct Client {
    made: u32,
    socket: VecDeque<Request>,
    done: BTreeMap<u32, u32>,
    answered: BTreeMap<u32, u32>,
}

struct World {
    rng: Rng,
    mutant: Option<Mutant>,
    disk: SimDisk,
    /// Content of the disk before its first step.
    start: Image,
    old: Process<Give>,
    new: Process<Take>,
    /// The parcel as the new process has received it, and descriptors that have come.
    received: (Option<Conn>, usize),
    /// Messages that the old process has still to send.
    sending: VecDeque<Said>,
    to_old: VecDeque<Said>,
    to_new: VecDeque<Said>,
    shut: bool,
    began: bool,
    taken: bool,
    client: Client,
    content: BTreeMap<u32, u32>,
    met: Met,
}

/// Runs one upgrade.
///
/// # Errors
///
/// What was violated, in words.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Result<Met, String> {
    let mut world = World::new(seed, mutant)?;
    let kill_at = [35, 35].map(|chance| world.rng.percent(chance).then(|| world.rng.below(90) as u32));
    let kill_within = [15, 15].map(|chance| world.rng.percent(chance));
    for step in 0..STEPS {
        let old = world.rng.percent(50);
        let before = world.disk.time();
        // A process dies before or after what it does, or in the middle of opening or closing the pool.
        let (mut kills, within) = (kill_at[usize::from(old)] == Some(step), world.is_at_pool(old));
        if !kills || world.rng.percent(70) {
            if old { world.step_old()? } else { world.step_new()? }
        }
        kills |= within && before < world.disk.time() && kill_within[usize::from(old)];
        if kills {
            world.die(old, if within { before } else { world.disk.time() })?;
        }
        world.judge().map_err(|why| format!("step {step}: {why}"))?;
    }
    world.end()
}

impl World {
    fn new(seed: u64, mutant: Option<Mutant>) -> Result<World, String> {
        let disk = SimDisk::new(Image::new(POOL_BYTES), disk_options(seed)).with_recent(None);
        let options = CreateOptions::default().journal_bytes(Some(128 << 10));
        Pool::create(&disk.device(), &options).map_err(|error| error.to_string())?;
        let options = with_recent_memory(OpenOptions::default(), disk.recent());
        let pool = Pool::open(&disk.device(), &options).map_err(|error| error.to_string())?;
        pool.create_volume(VOLUME, u64::from(BLOCKS) * BLOCK as u64).map_err(|error| error.to_string())?;
        pool.close().map_err(|error| error.to_string())?;
        let start = disk.image();
        let disk = SimDisk::new(start.clone(), disk_options(seed)).with_recent(None);
        let house = Some(House::open(&disk)?);
        let old = Process { alive: true, step: None, house, conn: Conn::default(), locks: true };
        let new = Process { alive: true, step: Some(Take::Receive), house: None, conn: Conn::default(), locks: false };
        let client = Client { made: 0, socket: VecDeque::new(), done: BTreeMap::new(), answered: BTreeMap::new() };
        Ok(World {
            rng: Rng::new(mix(seed)),
            mutant,
            disk,
            start,
            old,
            new,
            received: (None, 0),
            sending: VecDeque::new(),
            to_old: VecDeque::new(),
            to_new: VecDeque::new(),
            shut: false,
            began: false,
            taken: false,
            client,
            content: BTreeMap::new(),
            met: Met::default(),
        })
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Returns true if the next step of a process opens or closes the pool.
    fn is_at_pool(&self, old: bool) -> bool {
        match old {
            true => matches!(self.old.step, Some(Give::TakeApart | Give::PutTogether)),
            false => self.new.step == Some(Take::Open),
        }
    }

    /// Returns true if a wait ends early, or a message is lost, by chance.
    fn is_cut(&mut self) -> bool {
        let cut = self.rng.percent(4);
        self.met.cuts += u64::from(cut);
        cut
    }

    fn step_old(&mut self) -> Result<(), String> {
        if !self.old.alive {
            return Ok(());
        }
        let Some(step) = self.old.step else {
            // The upgrade begins once, as soon as there is something to hand over.
            if !self.began && self.client.made > 6 && self.rng.percent(20) {
                self.began = true;
                self.old.step = Some(Give::Suspend);
                return Ok(());
            }
            return self.serve(true);
        };
        let ended_well = match step {
            Give::Suspend => {
                if self.is(Mutant::ParcelBeforeDrain) && self.sending.is_empty() {
                    let mut early = self.old.conn.clone();
                    early.doing.take().into_iter().for_each(|doing| early.unread.push_front(doing));
                    self.sending.push_back(Said::Parcel(early));
                }
                if self.old.conn.doing.is_some() {
                    return self.execute(true);
                }
                !self.is_cut()
            }
            Give::Resume => {
                self.sending.clear();
                self.say_to_new(Said::Refused);
                true
            }
            Give::TakeApart => {
                if let Some(house) = self.old.house.take() {
                    house.close()?;
                }
                let mut conn = std::mem::take(&mut self.old.conn);
                let kept = conn.clone();
                if self.is(Mutant::UnreadDropped) {
                    conn.unread.clear();
                }
                if self.is(Mutant::UnsentDropped) {
                    conn.unsent.clear();
                }
                if self.sending.is_empty() {
                    self.sending.push_back(Said::Parcel(conn));
                }
                self.old.conn = kept;
                self.sending.extend((0..FDS).map(|_| Said::Fds));
                true
            }
            Give::Pass => match self.sending.pop_front() {
                _ if self.is_cut() => false,
                Some(said) => match self.say_to_new(said) {
                    true => return Ok(()),
                    false => false,
                },
                None => {
                    if self.is(Mutant::LockReleasedEarly) {
                        self.old.locks = false;
                    }
                    true
                }
            },
            Give::Wait => match self.to_old.pop_front() {
                Some(Said::Taken) => true,
                Some(_) => false,
                None if !self.new.alive || self.is_cut() => false,
                None => return Ok(()),
            },
            Give::ShutAndLook => {
                self.shut = !self.is(Mutant::NoShut);
                let found = self.to_old.iter().any(|said| matches!(said, Said::Taken));
                found && !self.is(Mutant::NoLook)
            }
            Give::EndNew => {
                if !self.is(Mutant::NewNotEnded) {
                    let now = self.disk.time();
                    self.die(false, now)?;
                }
                true
            }
            Give::PutTogether => {
                self.old.house = Some(self.open_alone()?);
                true
            }
            Give::Leave => {
                (self.old.alive, self.old.locks) = (false, false);
                return Ok(());
            }
            Give::Abandon => return Err("the old process gives the pool up".into()),
        };
        self.old.step = step.next(ended_well);
        Ok(())
    }

    fn step_new(&mut self) -> Result<(), String> {
        if !self.new.alive {
            return Ok(());
        }
        let Some(step) = self.new.step else { return self.serve(false) };
        let is_cut_off = self.shut || !self.old.alive;
        let ended_well = match step {
            Take::Receive => match self.to_new.pop_front() {
                Some(Said::Parcel(conn)) => {
                    self.received.0 = Some(conn);
                    return Ok(());
                }
                Some(Said::Fds) => {
                    self.received.1 += 1;
                    if self.received.1 < FDS {
                        return Ok(());
                    }
                    self.new.locks = true;
                    true
                }
                Some(_) => false,
                None if is_cut_off => false,
                None => return Ok(()),
            },
            Take::Open if self.is(Mutant::SaysEarly) && !self.taken => {
                self.taken = self.say_to_old(Said::Taken);
                return Ok(());
            }
            Take::Open if self.is_cut() => false,
            Take::Open => {
                self.new.house = Some(self.open_alone()?);
                true
            }
            Take::GiveUp => {
                if let Some(house) = self.new.house.take() {
                    house.close()?;
                }
                self.say_to_old(Said::Failed);
                (self.new.alive, self.new.locks) = (false, false);
                return Ok(());
            }
            Take::Say if self.is(Mutant::ServesEarly) && self.rng.percent(70) => {
                if let Some(conn) = self.received.0.take() {
                    self.new.conn = conn;
                }
                return self.serve(false);
            }
            Take::Say => {
                let said = self.say_to_old(Said::Taken);
                self.taken |= said;
                said || self.is(Mutant::OwnsUnsaid)
            }
            Take::OldEnds if !self.old.alive => true,
            Take::OldEnds if self.is_cut() => false,
            Take::OldEnds => return Ok(()),
            Take::Own => {
                self.taken = true;
                if let Some(conn) = self.received.0.take() {
                    self.new.conn = conn;
                }
                true
            }
            Take::Die => {
                let now = self.disk.time();
                return self.die(false, now);
            }
        };
        self.new.step = step.next(ended_well);
        Ok(())
    }

    /// Opens the pool for a process. Fails if another one has it open (O1).
    fn open_alone(&mut self) -> Result<House, String> {
        if self.old.house.is_some() || self.new.house.is_some() {
            return Err("O1: a process opens the pool that another one has open".into());
        }
        House::open(&self.disk)
    }

    fn say_to_new(&mut self, said: Said) -> bool {
        let arrives = !self.shut && self.new.alive;
        self.to_new.extend(arrives.then_some(said));
        arrives
    }

    fn say_to_old(&mut self, said: Said) -> bool {
        let arrives = !self.shut && self.old.alive;
        self.to_old.extend(arrives.then_some(said));
        arrives
    }

    fn conn(&mut self, old: bool) -> &mut Conn {
        if old { &mut self.old.conn } else { &mut self.new.conn }
    }

    /// Does one thing for the client: its next request, a step of one, or a reply.
    fn serve(&mut self, old: bool) -> Result<(), String> {
        if !old && !self.taken && self.old.alive {
            return Err("O1: a process serves that does not own the pool".into());
        }
        if self.client.made < REQUESTS && self.rng.percent(40) {
            self.client.socket.push_back(Request(self.client.made));
            self.client.made += 1;
        }
        match self.rng.below(4) {
            0 => {
                let next = self.client.socket.pop_front();
                self.conn(old).unread.extend(next);
            }
            1 if self.conn(old).doing.is_none() => {
                let next = self.conn(old).unread.pop_front();
                self.conn(old).doing = next;
            }
            2 => self.execute(old)?,
            _ => {
                if let Some(reply) = self.conn(old).unsent.pop_front() {
                    *self.client.answered.entry(reply).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    /// Does the request under way.
    fn execute(&mut self, old: bool) -> Result<(), String> {
        let Some(Request(value)) = self.conn(old).doing.take() else { return Ok(()) };
        let block = (mix(u64::from(value)) % u64::from(BLOCKS)) as u32;
        let house = if old { &mut self.old.house } else { &mut self.new.house };
        let house = house.as_mut().ok_or("a process serves without a pool")?;
        house.write(block, value + 1)?;
        *self.client.done.entry(value).or_default() += 1;
        self.content.insert(block, value + 1);
        self.conn(old).unsent.push_back(value);
        Ok(())
    }

    /// Kills a process, now, or at an earlier step of the disk since `before`.
    fn die(&mut self, old: bool, before: usize) -> Result<(), String> {
        let alive = if old { self.old.alive } else { self.new.alive };
        if !alive {
            return Ok(());
        }
        self.met.cuts += 1;
        let now = self.disk.time();
        let has_pool = if old { self.old.house.is_some() } else { self.new.house.is_some() };
        if has_pool || before < now {
            let left = self.disk.left();
            let inner: Vec<usize> = left.keys().copied().filter(|at| (before..now).contains(at)).collect();
            let at = match inner.is_empty() || self.rng.percent(20) {
                true => now,
                false => {
                    self.met.within += 1;
                    *self.rng.pick(&inner)
                }
            };
            let log = self.disk.log();
            let mut media = Media::new(self.start.clone(), None);
            log[..at].iter().for_each(|step| media.step(step));
            let (image, _) = media.die(&mut self.rng);
            let next = SimDisk::new(image.clone(), disk_options(mix(now as u64))).with_recent(left.get(&at));
            let house = if old { self.old.house.take() } else { self.new.house.take() };
            // The pool of the dead process ends on a disk that nobody looks at any more.
            let was = std::mem::replace(&mut self.disk, next);
            self.start = image;
            drop((house, was));
        }
        if old {
            (self.old.alive, self.old.locks) = (false, false);
            self.old.conn = Conn::default();
        } else {
            (self.new.alive, self.new.locks) = (false, false);
            self.new.conn = Conn::default();
        }
        Ok(())
    }

    fn judge(&self) -> Result<(), String> {
        if self.old.house.is_some() && self.new.house.is_some() {
            return Err("O1: two processes have the pool open".into());
        }
        let has_parcel = self.received.0.is_some() && self.received.1 == FDS;
        let matters = self.old.alive || (self.new.alive && (has_parcel || self.taken));
        if matters && !self.old.locks && !self.new.locks {
            return Err("O2: nobody holds the lock of the pool".into());
        }
        let twice = |counts: &BTreeMap<u32, u32>| counts.iter().find(|(_, many)| **many > 1).map(|(value, _)| *value);
        match (twice(&self.client.done), twice(&self.client.answered)) {
            (Some(value), _) => Err(format!("O3: request {value} was done twice")),
            (_, Some(value)) => Err(format!("O3: request {value} was answered twice")),
            (None, None) => Ok(()),
        }
    }

    /// Lets the owner serve everything, and judges the whole run.
    fn end(mut self) -> Result<Met, String> {
        let old = self.old.alive && self.old.step.is_none();
        let new = self.new.alive && self.new.step.is_none();
        if old || new {
            for _ in 0..4000 {
                self.serve(old)?;
                if self.client.answered.len() as u32 == REQUESTS {
                    break;
                }
            }
            let lost = (0..REQUESTS).find(|value| !self.client.answered.contains_key(value));
            if let Some(lost) = lost {
                return Err(format!("O3: request {lost} was not answered, and somebody serves"));
            }
            self.judge()?;
        }
        match (old, new) {
            (true, true) => return Err("O1: both processes serve".into()),
            (true, false) => self.met.back += 1,
            (false, true) => self.met.taken += 1,
            (false, false) if self.old.alive || (self.new.alive && self.received.1 == FDS) => {
                return Err(format!("nobody serves: {:?}, {:?}", self.old.step, self.new.step));
            }
            (false, false) => self.met.gone += 1,
        }
        let house = self.old.house.take().or_else(|| self.new.house.take());
        if let Some(house) = house {
            house.close()?;
        }
        let mut house = House::open(&self.disk).map_err(|why| format!("O4: {why}"))?;
        for (block, value) in &self.content {
            let found = house.read(*block)?;
            if found != *value {
                return Err(format!("O4: block {block} has {found}, and {value} was written last"));
            }
        }
        house.close()?;
        Ok(self.met)
    }
}

fn disk_options(seed: u64) -> DiskOptions {
    DiskOptions { seed, max_delay: 0, ..DiskOptions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upgrades_that_are_cut_anywhere_leave_one_owner_and_lose_nothing() {
        let mut met = Met::default();
        for seed in 1..=1500 {
            met.add(&run(seed, None).unwrap_or_else(|why| panic!("seed {seed}: {why}")));
        }
        assert!(met.cuts > 1000 && met.within > 20 && met.taken > 100 && met.back > 100 && met.gone > 100, "{met:?}");
    }

    #[test]
    fn each_broken_process_is_found() {
        for mutant in MUTANTS {
            let found = (1..=3000).find_map(|seed| run(seed, Some(mutant)).err());
            assert!(found.is_some(), "{mutant:?} lives");
        }
    }
}
